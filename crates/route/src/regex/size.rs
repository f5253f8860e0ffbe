//! Estimates the size of a regex's automaton, mostly without building it.
//!
//! An upper bound is computed from the regex in nanoseconds. Only where that exceeds the limit is the automaton built;
//! building stops at the limit.

use regex_automata::nfa::thompson::{Compiler, Config};
use regex_syntax::hir::{Class, ClassUnicodeRange, Hir, HirKind, Repetition};

/// More than any state without transitions, in bytes.
const STATE_BYTES: usize = 64;
/// More than a transition of a state that has several, in bytes.
const TRANSITION_BYTES: usize = 16;

/// Whether the automaton has at most `bytes_max` bytes.
pub(super) fn is_within(hir: &Hir, bytes_max: usize) -> bool {
    if estimate(hir) <= bytes_max {
        return true;
    }
    let config = Config::new().utf8(false).nfa_size_limit(Some(bytes_max));
    Compiler::new().configure(config).build_from_hir(hir).is_ok()
}

/// An upper bound of the automaton's size, in bytes.
fn estimate(hir: &Hir) -> usize {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => STATE_BYTES,
        HirKind::Literal(literal) => literal.0.len().saturating_mul(STATE_BYTES),
        HirKind::Class(Class::Bytes(class)) => STATE_BYTES + class.ranges().len() * TRANSITION_BYTES,
        HirKind::Class(Class::Unicode(class)) => STATE_BYTES + class.iter().map(utf8_bytes).sum::<usize>(),
        HirKind::Repetition(Repetition { min, max, sub, .. }) => {
            let copies = max.unwrap_or(*min).max(1) as usize;
            let copy = estimate(sub).saturating_add(2 * STATE_BYTES);
            copies.saturating_mul(copy).saturating_add(STATE_BYTES)
        }
        HirKind::Capture(capture) => estimate(&capture.sub).saturating_add(2 * STATE_BYTES),
        HirKind::Concat(subs) | HirKind::Alternation(subs) => {
            let each = subs.iter().map(|sub| estimate(sub).saturating_add(TRANSITION_BYTES));
            each.fold(2 * STATE_BYTES, usize::saturating_add)
        }
    }
}

/// An upper bound of the states that match the UTF-8 of a range of characters, in bytes.
fn utf8_bytes(range: &ClassUnicodeRange) -> usize {
    let (start, end) = (range.start(), range.end());
    let (shortest, longest) = (start.len_utf8(), end.len_utf8());
    // For each length: a run of whole blocks, and at either end a part of a block for each byte but the first.
    let sequences =
        if u32::from(start) >> 6 == u32::from(end) >> 6 { 1 } else { (1 + longest - shortest) * (2 * longest - 1) };
    sequences * longest * (STATE_BYTES + TRANSITION_BYTES)
}

#[cfg(test)]
mod tests {
    use super::super::{Pattern, RegexError};
    use super::*;

    #[test]
    fn the_estimate_is_an_upper_bound() {
        let check = |pattern: &str| {
            let hir = regex_syntax::parse(pattern).unwrap();
            let nfa = Compiler::new().build_from_hir(&hir).unwrap();
            assert!(
                nfa.memory_usage() <= estimate(&hir) + 1024,
                "{pattern}: {} {}",
                nfa.memory_usage(),
                estimate(&hir)
            );
        };
        for pattern in
            ["", "a", "abc|def|[a-z]", r"\d+", r"\w{3,9}", r"\PL*", r"(?i)straße", "(a(b)?){4}", r"(?s).\b\w"]
        {
            check(pattern);
        }
    }

    #[test]
    fn large_ones_are_refused() {
        let check = |pattern: &str, good: bool| {
            let parsed = Pattern::unicode(pattern);
            assert_eq!(parsed.as_ref().err(), (!good).then_some(&RegexError::TooLarge), "{pattern}");
        };
        check(r"^/svc-123/v\d+/items/[0-9]+$", true);
        check(r"\w{20}", true);
        check("(a{100}){100}", true);
        check("(((a{100}){100}){100})", false);
        check("((((((a{99}){99}){99}){99}){99}){99}){99}", false);
        check("(?:){4294967295}", true);
        check("(?:a?){4294967295}", false);
        check(r"(?:\b){4294967295}", true);
        check(r"(?:a|\b){1000000}", false);
        check(r"\w{1000}", false);
    }
}
