//! Matches the rest of a regex where its literal ends.
//!
//! It is determinised when it is compiled: matching is a walk through a table that workers share without sharing anything
//! that changes. What does not stay small (many alternatives in a row of any text) has no such table, and is searched for
//! with others, as part of a group.

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
    /// `None` where its automaton would not stay small. `ascii`: all values will be.
    pub(crate) fn compile(tail: &Tail, ascii: bool) -> Option<TailEngine> {
        let hir = reduce(tail.hir(), ascii);
        // Such an automaton gives up at bytes that are not ASCII.
        if hir.properties().look_set().contains_word_unicode() {
            return None;
        }
        determinise(&hir).map(TailEngine)
    }

    /// Whether the tail matches at `from`, which is at most the value's length; what stands before is looked at by word
    /// boundaries only.
    #[inline]
    pub(crate) fn is_match(&self, value: &[u8], from: usize) -> bool {
        let input = Input::new(value).range(from..).anchored(Anchored::Yes).earliest(true);
        // An automaton without quit bytes, as this one is, gives no errors.
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
