//! Matches the rest of a regex behind its literal.
//!
//! It is determinised when it is compiled: matching is a walk through an immutable table that workers share. Tails that
//! would not stay small (many alternatives in a row of any text) have no such table, and are searched for with others,
//! as part of a group.

use super::reduce::reduce;
use super::split::Tail;
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson;
use regex_automata::{Anchored, Input, MatchKind};
use regex_syntax::hir::Hir;

/// Most memory of one determinised tail, in bytes. Also bounds the time it takes: a configuration may have many.
const AUTOMATON_BYTES_MAX: usize = 16 << 10;

/// A compiled tail.
#[derive(Debug)]
pub(crate) struct TailEngine(dense::DFA<Vec<u32>>);

impl TailEngine {
    /// `None` if its automaton would not stay small. `ascii`: all values will be ASCII.
    pub(crate) fn compile(tail: &Tail, ascii: bool) -> Option<TailEngine> {
        let hir = reduce(tail.hir(), ascii);
        // The automaton for these gives up at bytes that are not ASCII.
        if hir.properties().look_set().contains_word_unicode() {
            return None;
        }
        determinise(&hir).map(TailEngine)
    }

    /// Whether the tail matches at `from`, which is at most the value's length; only word boundaries look at the text
    /// before it.
    #[inline]
    pub(crate) fn is_match(&self, value: &[u8], from: usize) -> bool {
        let input = Input::new(value).range(from..).anchored(Anchored::Yes).earliest(true);
        // An automaton without quit bytes, as this one is, returns no errors.
        self.0.try_search_fwd(&input).is_ok_and(|found| found.is_some())
    }

    /// Heap memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.0.memory_usage()
    }
}

fn determinise(hir: &Hir) -> Option<dense::DFA<Vec<u32>>> {
    let nfa = thompson::Config::new()
        .utf8(false)
        .which_captures(thompson::WhichCaptures::None)
        .nfa_size_limit(Some(AUTOMATON_BYTES_MAX));
    let nfa = thompson::Compiler::new().configure(nfa).build_from_hir(hir).ok()?;
    let config = dense::Config::new()
        .start_kind(StartKind::Anchored)
        .match_kind(MatchKind::All)
        .accelerate(false)
        .dfa_size_limit(Some(AUTOMATON_BYTES_MAX))
        .determinize_size_limit(Some(AUTOMATON_BYTES_MAX));
    dense::Builder::new().configure(config).build_from_nfa(&nfa).ok()
}
