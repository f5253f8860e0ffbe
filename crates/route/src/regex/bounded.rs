//! A regex that is searched for with bounded work: for plugins, whose texts may be long and made for it.

use super::work::{CacheGrowth, RegexWork};
use regex_automata::hybrid::dfa::{Cache, Config, DFA};
use regex_automata::nfa::thompson::NFA;
use regex_automata::nfa::thompson::pikevm::PikeVM;
use regex_automata::util::pool::Pool;
use regex_automata::{Input, MatchKind};
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};

/// Most states of the automaton that are kept between searches, in bytes.
const CACHE_BYTES_MAX: usize = 256 << 10;
/// How many bytes are searched until what they have built is counted.
const COUNTED_BYTES: usize = 64;

/// The search would have taken more work than is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooMuchWork;

type Caches = Pool<Cache, Box<dyn Fn() -> Cache + Send + Sync + UnwindSafe + RefUnwindSafe>>;

/// A compiled regex.
pub struct BoundedSearch {
    nfa: NFA,
    /// `None`: it would be too large.
    automaton: Option<(DFA, Caches)>,
}

impl BoundedSearch {
    /// Takes an automaton that begins anywhere in a text.
    pub fn new(nfa: NFA) -> BoundedSearch {
        let config = Config::new().match_kind(MatchKind::All).unicode_word_boundary(true);
        let capacity = config.get_minimum_cache_capacity(&nfa).unwrap_or(0).saturating_mul(2).max(CACHE_BYTES_MAX);
        let dfa = DFA::builder().configure(config.cache_capacity(capacity)).build_from_nfa(nfa.clone()).ok();
        let automaton = dfa.map(|dfa| {
            let of_caches = dfa.clone();
            (dfa, Pool::new(Box::new(move || of_caches.create_cache()) as _))
        });
        BoundedSearch { nfa, automaton }
    }

    /// Whether it matches anywhere in a text.
    ///
    /// # Errors
    ///
    /// Fails if that takes more than what is left of `work`.
    pub fn is_match(&self, text: &[u8], work: &RegexWork) -> Result<bool, TooMuchWork> {
        if !work.pay(text.len()) {
            return Err(TooMuchWork);
        }
        if let Some((dfa, caches)) = &self.automaton
            && let Some(found) = search(dfa, &mut caches.get(), text, work)?
        {
            return Ok(found);
        }
        if !work.pay_for_search(text.len(), self.nfa.states().len()) {
            return Err(TooMuchWork);
        }
        let engine = PikeVM::new_from_nfa(self.nfa.clone()).map_err(|_| TooMuchWork)?;
        Ok(engine.is_match(&mut engine.create_cache(), text))
    }

    /// Memory that it takes, in bytes, without what searches keep.
    pub fn memory_bytes(&self) -> usize {
        self.nfa.memory_usage() + self.automaton.as_ref().map_or(0, |(dfa, _)| dfa.memory_usage())
    }
}

impl fmt::Debug for BoundedSearch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundedSearch").field("states", &self.nfa.states().len()).finish_non_exhaustive()
    }
}

/// `None`: the automaton cannot tell, because of a word boundary beside a byte that is not ASCII.
fn search(dfa: &DFA, cache: &mut Cache, text: &[u8], work: &RegexWork) -> Result<Option<bool>, TooMuchWork> {
    let Ok(mut state) = dfa.start_state_forward(cache, &Input::new(text)) else { return Ok(None) };
    let mut growth = CacheGrowth::of(cache);
    let capacity_bytes = dfa.get_config().get_cache_capacity();
    for piece in text.chunks(COUNTED_BYTES) {
        for byte in piece {
            let Ok(next) = dfa.next_state(cache, state, *byte) else { return Ok(None) };
            state = next;
            if state.is_tagged() {
                if state.is_match() {
                    return Ok(Some(true));
                } else if state.is_dead() {
                    return Ok(Some(false));
                } else if state.is_quit() {
                    return Ok(None);
                }
            }
        }
        if !work.pay_for_growth(cache, capacity_bytes, &mut growth) {
            return Err(TooMuchWork);
        }
    }
    // A match is reported one byte late, so the end is a step of its own.
    Ok(dfa.next_eoi_state(cache, state).ok().map(|state| state.is_match()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::regex::bytes::Regex;
    use proptest::prelude::*;
    use regex_automata::nfa::thompson::{Compiler, Config as NfaConfig, WhichCaptures};

    fn bounded(pattern: &str) -> BoundedSearch {
        let config = NfaConfig::new().utf8(false).which_captures(WhichCaptures::None);
        let hir = regex_syntax::ParserBuilder::new().utf8(false).build().parse(pattern).unwrap();
        BoundedSearch::new(Compiler::new().configure(config).build_from_hir(&hir).unwrap())
    }

    #[test]
    fn harmless_texts_cost_their_length_and_hostile_ones_are_given_up() {
        let search = bounded("(?-u)[ab].{0,900}[cd]x");
        let find = |text: &[u8], steps: usize| {
            let work = RegexWork::of_steps(steps);
            (search.is_match(text, &work), steps - work.steps_left())
        };
        let harmless = b"the usual text, ".repeat(64 << 10);
        assert_eq!(find(&harmless, 4_000_000).0, Ok(false));
        let (found, steps) = find(&harmless, 4_000_000);
        assert_eq!(found, Ok(false));
        assert!(steps < harmless.len() * 2, "{steps} once its states are known");
        let mut number = 5_u32;
        let hostile: Vec<u8> = std::iter::repeat_with(|| {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            b"abcdefgh"[(number >> 24) as usize % 8]
        })
        .take(7_000)
        .collect();
        assert_eq!(find(&hostile, 10_000_000).0, Err(TooMuchWork));
        assert_eq!(find(b"a and dx", 4_000_000).0, Ok(true));
        // And without an automaton.
        assert_eq!(bounded(r"\bq").is_match("é q".as_bytes(), &RegexWork::of_steps(1_000_000)), Ok(true));
        assert_eq!(bounded(r"\bq").is_match("é q".as_bytes(), &RegexWork::of_steps(50)), Err(TooMuchWork));
    }

    proptest! {
        #[test]
        fn it_finds_what_another_engine_finds(
            parts in prop::collection::vec(prop::sample::select(vec![
                "a", "b", ".", "[ab]*", "^", "$", r"\b", "(a|bc)+", "c{2,3}", "é", r"\w+", "(?i:B)",
            ]), 1..5),
            text in "[abcBé ]{0,9}",
        ) {
            let pattern = parts.concat();
            let expected = Regex::new(&pattern).unwrap().is_match(text.as_bytes());
            let found = bounded(&pattern).is_match(text.as_bytes(), &RegexWork::of_steps(10_000_000));
            prop_assert_eq!(found, Ok(expected), "{} {:?}", pattern, text);
        }
    }
}
