//! Matches the rest of a regex where its literal ends.
//!
//! It is determinised when it is compiled, as far as its automaton stays small: matching is a walk through a table that
//! workers share without sharing anything that changes. Few have large automata (many alternatives in a row of any text);
//! those are left to `regex` and its pool of caches.

use super::reduce::reduce;
use super::split::Tail;
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson;
use regex_automata::{Anchored, Input, MatchKind, meta};
use regex_syntax::hir::Hir;

/// Most memory of one determinised tail, in bytes.
const AUTOMATON_BYTES_MAX: usize = 128 << 10;

/// A compiled tail.
#[derive(Debug)]
pub(crate) enum TailEngine {
    /// It knows every answer.
    Table(dense::DFA<Vec<u32>>),
    /// It gives up where a Unicode word boundary would have to look at bytes that are not ASCII.
    AsciiTable(dense::DFA<Vec<u32>>, meta::Regex),
    /// Too large for a table.
    Regex(meta::Regex),
}

impl TailEngine {
    /// `ascii`: all values will be.
    pub(crate) fn compile(tail: &Tail, ascii: bool) -> TailEngine {
        let hir = reduce(tail.hir(), ascii);
        let gives_up = hir.properties().look_set().contains_word_unicode();
        match (determinise(&hir), gives_up) {
            (Some(table), false) => TailEngine::Table(table),
            (Some(table), true) => TailEngine::AsciiTable(table, regex(&hir)),
            (None, _) => TailEngine::Regex(regex(&hir)),
        }
    }

    /// Whether the tail matches at `from`, which is at most the value's length; what stands before is looked at by word
    /// boundaries only.
    #[inline]
    pub(crate) fn is_match(&self, value: &[u8], from: usize) -> bool {
        let input = Input::new(value).range(from..).anchored(Anchored::Yes).earliest(true);
        match self {
            TailEngine::Table(table) => table.try_search_fwd(&input).is_ok_and(|found| found.is_some()),
            TailEngine::AsciiTable(table, regex) => match table.try_search_fwd(&input) {
                Ok(found) => found.is_some(),
                Err(_) => regex.is_match(input),
            },
            TailEngine::Regex(regex) => regex.is_match(input),
        }
    }

    /// Heap memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            TailEngine::Table(table) => table.memory_usage(),
            TailEngine::AsciiTable(table, regex) => table.memory_usage() + regex.memory_usage(),
            TailEngine::Regex(regex) => regex.memory_usage(),
        }
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
        .unicode_word_boundary(true)
        .dfa_size_limit(Some(AUTOMATON_BYTES_MAX))
        .determinize_size_limit(Some(AUTOMATON_BYTES_MAX));
    dense::Builder::new().configure(config).build_from_nfa(&nfa).ok()
}

fn regex(hir: &Hir) -> meta::Regex {
    let config = meta::Config::new()
        .utf8_empty(false)
        .nfa_size_limit(None)
        .which_captures(thompson::WhichCaptures::Implicit)
        .hybrid_cache_capacity(super::REGEX_BYTES_MAX);
    meta::Builder::new().configure(config).build_from_hir(hir).expect("without a limit every parsed regex compiles")
}
