//! `ngx.re` on the engines of `regex-automata`: linear in time whatever the pattern. Compared with PCRE it lacks
//! look-around, back-references and atomic groups; a pattern that needs one fails with an error that says so.
//!
//! ```text
//!  where is it?  lazy DFA ── its states outgrow their memory ──▶ NFA, if the steps are few enough ──▶ an error
//!  its groups?   one-pass DFA, or backtracking where that is small ──▶ NFA, if the steps are few enough ──▶ an error
//! ```
//!
//! A search cannot be interrupted, and linear is not fast: megabytes times thousands of states take minutes. So each
//! engine is limited to what it does in some milliseconds. The crate `regex` chooses among the same engines, and
//! continues with the slowest without a limit.

use crate::pattern::Span;
use regex_automata::hybrid::{dfa as lazy_dfa, regex as lazy};
use regex_automata::nfa::thompson::backtrack::{self, BoundedBacktracker};
use regex_automata::nfa::thompson::pikevm::{self, PikeVM};
use regex_automata::nfa::thompson::{BuildError, Compiler, NFA, WhichCaptures};
use regex_automata::util::prefilter::Prefilter;
use regex_automata::util::primitives::NonMaxUsize;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input, MatchKind, PatternID, dfa::onepass};
use std::collections::HashMap;
use stillgate_pcre::{Options, translate};

/// Most compiled patterns that a worker keeps; when there are more, all are dropped.
const KEPT_MAX: usize = 512;
/// Memory limit of one pattern's program, and of its lazily built states.
const PROGRAM_BYTES_MAX: usize = 1 << 20;
const STATES_BYTES_MAX: usize = 1 << 20;
/// Longest text that is searched: about 10 ms.
const TEXT_BYTES_MAX: usize = 8 << 20;
/// Most program states times text bytes that the NFA processes: about 20 ms.
const STEPS_MAX: usize = 4_000_000;

/// The options of `ngx.re` that change the meaning of a pattern, as bits.
pub(crate) const CASELESS: u32 = 1;
pub(crate) const MULTILINE: u32 = 2;
pub(crate) const DOTALL: u32 = 4;
pub(crate) const EXTENDED: u32 = 8;
pub(crate) const UNICODE: u32 = 16;
pub(crate) const ANCHORED: u32 = 32;

/// The patterns of one worker.
#[derive(Default)]
pub(crate) struct Regexes {
    kept: HashMap<u32, HashMap<Box<[u8]>, CompiledPattern>>,
    count: usize,
}

/// A pattern's engines, each with its cache.
struct CompiledPattern {
    nfa: NFA,
    lazy: (lazy::Regex, lazy::Cache),
    /// Whether the cache of the lazy DFA is empty, so that a retry would be pointless.
    is_fresh: bool,
    one_pass: Option<(onepass::DFA, onepass::Cache)>,
    backtracker: (BoundedBacktracker, backtrack::Cache),
    pike: (PikeVM, pikevm::Cache),
    /// Start and end of each group.
    slots: Vec<Option<NonMaxUsize>>,
}

/// The requested details of a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MatchDetail {
    /// The groups, too.
    Groups,
    /// Only its position.
    Whole,
}

impl Regexes {
    /// Finds a pattern from a position on; the first span is the whole match, and groups follow. A group without a
    /// match is `None`.
    pub(crate) fn find(
        &mut self,
        text: &[u8],
        pattern: &[u8],
        (options, wanted): (u32, MatchDetail),
        from: usize,
        spans: &mut Vec<Option<Span>>,
    ) -> Result<bool, String> {
        spans.clear();
        let kept = self.cached_pattern(pattern, options)?;
        if from > text.len() {
            return Ok(false);
        }
        if text.len() - from > TEXT_BYTES_MAX {
            return Err(format!("a text of more than {TEXT_BYTES_MAX} bytes cannot be searched"));
        }
        let anchored = if options & ANCHORED != 0 { Anchored::Yes } else { Anchored::No };
        let is_there = kept.find(&Input::new(text).range(from..).anchored(anchored), wanted)?;
        if is_there {
            let count = if wanted == MatchDetail::Whole { 2 } else { kept.slots.len() };
            let place = |slot: &Option<NonMaxUsize>| slot.map(NonMaxUsize::get);
            spans.extend(
                kept.slots[..count].chunks_exact(2).map(|pair| Some((place(&pair[0])?, Some(place(&pair[1])?)))),
            );
        }
        Ok(is_there)
    }

    /// The names of a pattern's groups, each as `NUMBER NAME` and a line end.
    pub(crate) fn names(&mut self, pattern: &[u8], options: u32, out: &mut Vec<u8>) -> Result<(), String> {
        let CompiledPattern { nfa, .. } = self.cached_pattern(pattern, options)?;
        for (at, name) in nfa.group_info().pattern_names(PatternID::ZERO).enumerate() {
            if let Some(name) = name {
                out.extend_from_slice(format!("{at} {name}\n").as_bytes());
            }
        }
        Ok(())
    }

    fn cached_pattern(&mut self, pattern: &[u8], options: u32) -> Result<&mut CompiledPattern, String> {
        let is_known = self.kept.get(&options).is_some_and(|kept| kept.contains_key(pattern));
        if !is_known {
            let kept = compile(pattern, options)?;
            if self.count >= KEPT_MAX {
                self.kept.clear();
                self.count = 0;
            }
            self.count += 1;
            self.kept.entry(options).or_default().insert(pattern.into(), kept);
        }
        Ok(self.kept.get_mut(&options).and_then(|kept| kept.get_mut(pattern)).expect("inserted above"))
    }
}

impl CompiledPattern {
    /// Leaves the requested spans in the slots.
    fn find(&mut self, input: &Input<'_>, wanted: MatchDetail) -> Result<bool, String> {
        let (lazy, cache) = &mut self.lazy;
        let mut found = lazy.try_search(cache, input);
        if found.is_err() && !std::mem::replace(&mut self.is_fresh, false) {
            // The cache may be full of states for other texts.
            cache.reset(lazy);
            found = lazy.try_search(cache, input);
        }
        let Ok(found) = found else {
            cache.reset(lazy);
            self.is_fresh = true;
            return self.by_steps(input);
        };
        self.is_fresh = false;
        let Some(found) = found else { return Ok(false) };
        if wanted == MatchDetail::Groups && self.slots.len() > 2 {
            return self.groups(&input.clone().span(found.span()).anchored(Anchored::Yes));
        }
        self.slots[0] = NonMaxUsize::new(found.start());
        self.slots[1] = NonMaxUsize::new(found.end());
        Ok(true)
    }

    /// The groups of a match that is all of the input.
    fn groups(&mut self, input: &Input<'_>) -> Result<bool, String> {
        if let Some((dfa, cache)) = &mut self.one_pass
            && let Ok(found) = dfa.try_search_slots(cache, input, &mut self.slots)
        {
            return Ok(found.is_some());
        }
        let (backtracker, cache) = &mut self.backtracker;
        match backtracker.try_search_slots(cache, input, &mut self.slots) {
            Ok(found) => Ok(found.is_some()),
            // It is too long for that.
            Err(_) => self.by_steps(input),
        }
    }

    fn by_steps(&mut self, input: &Input<'_>) -> Result<bool, String> {
        let (states, bytes) = (self.nfa.states().len(), input.get_span().len());
        if states.saturating_mul(bytes) > STEPS_MAX {
            return Err(format!(
                "the pattern is too complex for {bytes} bytes: it takes more steps than a function may use; \
                 search a shorter text, or write it with less repetitions or groups"
            ));
        }
        let (pike, cache) = &mut self.pike;
        Ok(pike.search_slots(cache, input, &mut self.slots).is_some())
    }
}

/// Features of PCRE that these engines lack. `ngx.re` raises an error for them: "no match" would switch a guard off.
const UNBUILT: [&str; 16] =
    ["(?=", "(?!", "(?<=", "(?<!", "(?>", "\\1", "\\2", "\\3", "\\4", "\\5", "\\6", "\\7", "\\8", "\\9", "\\k", "\\g"];

fn compile(pattern: &[u8], options: u32) -> Result<CompiledPattern, String> {
    let text =
        std::str::from_utf8(pattern).map_err(|_| "a pattern has to be UTF-8; write bytes as \\xHH".to_owned())?;
    let is = |option: u32| options & option != 0;
    let refused = |reason: String| {
        format!("the pattern {text:?} cannot be compiled: {}", reason.lines().last().unwrap_or_default())
    };
    let meaning = Options { translates_end: true, is_multi_line: is(MULTILINE), is_extended: is(EXTENDED) };
    let translated = translate(text, meaning).map_err(|other| refused(other.reason))?;
    let syntax = syntax::Config::new()
        .case_insensitive(is(CASELESS))
        .multi_line(is(MULTILINE))
        .dot_matches_new_line(is(DOTALL))
        .ignore_whitespace(is(EXTENDED))
        .unicode(is(UNICODE))
        .utf8(false);
    let hir = syntax::parse_with(&translated, &syntax).map_err(|error| {
        match UNBUILT.iter().any(|mark| text.contains(mark)) {
            true => refused("look-around, back-references and atomic groups are not supported".to_owned()),
            false => refused(error.to_string()),
        }
    })?;
    let nfa = |is_reverse: bool| {
        let captures = if is_reverse { WhichCaptures::None } else { WhichCaptures::All };
        let config = NFA::config()
            .utf8(false)
            .nfa_size_limit(Some(PROGRAM_BYTES_MAX))
            .reverse(is_reverse)
            .which_captures(captures);
        Compiler::new().configure(config).build_from_hir(&hir).map_err(|error: BuildError| match error.size_limit() {
            Some(limit) => refused(format!("it takes more than {limit} bytes")),
            None => refused(error.to_string()),
        })
    };
    let (forward, backward) = (nfa(false)?, nfa(true)?);
    // It gives up when its states no longer fit: building them, not the search, is what takes its time.
    let config = lazy_dfa::Config::new()
        .unicode_word_boundary(true)
        .cache_capacity(STATES_BYTES_MAX)
        .skip_cache_capacity_check(true)
        .minimum_cache_clear_count(Some(0));
    let dfa = |config: lazy_dfa::Config, nfa: &NFA| {
        let built = lazy_dfa::DFA::builder().configure(config).build_from_nfa(nfa.clone());
        built.map_err(|error| refused(error.to_string()))
    };
    let prefilter = Prefilter::from_hir_prefix(MatchKind::LeftmostFirst, &hir);
    let lazy = lazy::Regex::builder().build_from_dfas(
        dfa(config.clone().prefilter(prefilter), &forward)?,
        dfa(config.match_kind(MatchKind::All), &backward)?,
    );
    let one_pass = onepass::DFA::builder()
        .configure(onepass::Config::new().size_limit(Some(PROGRAM_BYTES_MAX)))
        .build_from_nfa(forward.clone());
    let built = |error: BuildError| refused(error.to_string());
    let backtracker = BoundedBacktracker::builder().build_from_nfa(forward.clone()).map_err(built)?;
    let pike = PikeVM::builder().build_from_nfa(forward.clone()).map_err(built)?;
    let (of_lazy, of_backtracker, of_pike) = (lazy.create_cache(), backtracker.create_cache(), pike.create_cache());
    Ok(CompiledPattern {
        slots: vec![None; forward.group_info().slot_len()],
        lazy: (lazy, of_lazy),
        is_fresh: true,
        // Most patterns are not one-pass.
        one_pass: one_pass.ok().map(|dfa| {
            let cache = dfa.create_cache();
            (dfa, cache)
        }),
        backtracker: (backtracker, of_backtracker),
        pike: (pike, of_pike),
        nfa: forward,
    })
}
