//! Finds regexes that stay undecided until a value ends.
//!
//! `/a.*b` is active from its `/a` on until the value ends. If one automaton has many such regexes, any subset may be
//! active at a time, and each subset is a state of its own: a long value that was never sent before makes new states
//! all the way. A counted repetition as `[a-z]{1,200}` does that alone, since it may have begun anywhere. So such
//! regexes are put into automata of few, where the number of states stays small.

use regex_syntax::hir::{Class, Hir, HirKind};

/// Shorter counted repetitions end soon.
const REPEATS_MIN: u32 = 16;
/// A class of fewer ASCII characters, or without the slash that ends a segment, stops matching at one of the next
/// bytes.
const CLASS_MIN: usize = 64;

/// How much a regex lingers: 0 where it does not, else its share of [`super::group::LINGERING_MAX`].
pub(super) fn weight(hir: &Hir) -> usize {
    let counted = counts(hir) / REPEATS_MIN;
    usize::from(waits(hir, false, false)).max(counted as usize)
}

/// The number of positions that a regex counts at once.
fn counts(hir: &Hir) -> u32 {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) | HirKind::Literal(_) | HirKind::Class(_) => 0,
        HirKind::Capture(capture) => counts(&capture.sub),
        HirKind::Concat(subs) | HirKind::Alternation(subs) => {
            subs.iter().fold(0, |sum, sub| sum.saturating_add(counts(sub)))
        }
        HirKind::Repetition(repetition) => match repetition.max.unwrap_or(repetition.min) {
            0 | 1 => counts(&repetition.sub),
            times => times.saturating_mul(counts(&repetition.sub).max(1)),
        },
    }
}

/// Whether a regex, once it has begun to match, may wait for its next part until the value ends.
///
/// `is_begun`: something was matched before. `is_continued`: something must match behind.
fn waits(hir: &Hir, is_begun: bool, is_continued: bool) -> bool {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) | HirKind::Literal(_) | HirKind::Class(_) => false,
        HirKind::Capture(capture) => waits(&capture.sub, is_begun, is_continued),
        HirKind::Alternation(subs) => subs.iter().any(|sub| waits(sub, is_begun, is_continued)),
        HirKind::Repetition(repetition) => {
            let is_long = repetition.max.is_none_or(|max| max >= REPEATS_MIN);
            let is_repeated = repetition.max != Some(1);
            is_begun && is_continued && is_long && is_wide(&repetition.sub)
                // Its second round has begun, and all but the last are continued.
                || waits(&repetition.sub, is_begun || is_repeated, is_continued || is_repeated)
        }
        HirKind::Concat(subs) => {
            let consumes = |sub: &Hir| sub.properties().maximum_len() != Some(0);
            // A leading part that matches anything does not count: a match may begin anywhere anyway.
            let begins = |sub: &Hir| consumes(sub) && !is_any_rest(sub);
            subs.iter().enumerate().any(|(index, sub)| {
                let begun = is_begun || subs[..index].iter().any(begins);
                let continued = is_continued || subs[index + 1..].iter().any(consumes);
                waits(sub, begun, continued)
            })
        }
    }
}

fn is_any_rest(hir: &Hir) -> bool {
    matches!(hir.kind(), HirKind::Repetition(repetition) if repetition.max.is_none() && is_wide(&repetition.sub))
}

fn is_wide(hir: &Hir) -> bool {
    let HirKind::Class(class) = hir.kind() else { return false };
    let ranges: Vec<(u32, u32)> = match class {
        Class::Unicode(class) => class.iter().map(|range| (range.start().into(), range.end().into())).collect(),
        Class::Bytes(class) => class.iter().map(|range| (range.start().into(), range.end().into())).collect(),
    };
    let count: u32 =
        ranges.iter().filter(|(start, _)| *start < 128).map(|(start, end)| end.min(&127) - start + 1).sum();
    count as usize >= CLASS_MIN && ranges.iter().any(|(start, end)| (*start..=*end).contains(&u32::from(b'/')))
}

#[cfg(test)]
mod tests {
    use super::super::Pattern;
    use super::weight;

    #[test]
    fn what_waits_for_its_next_part() {
        let check = |pattern: &str, expected: bool| {
            assert_eq!(weight(&Pattern::unicode(pattern).unwrap().hir()) > 0, expected, "{pattern}");
        };
        check("/a.*b", true);
        check("^/a.*b$", true);
        check("(.*a){3}b", true);
        check("a.{20,49}b", true);
        check("[a-z]+/.*x", true);
        check(r"^/(v1|v2)/\S+-x", true);
        check("/a.*", false);
        check("^.*/a$", false);
        check(".*a", false);
        check("/item-[0-9]+-7$", false);
        check("^/users/[^/]+/orders/[0-9]+$", false);
        check("/a.{3}b", false);
        check("[a-z0-9-]{1,200}/p7$", true);
        check("(a{7}|b){900}x", true);
        check("[0-9]{4}-[0-9]{2}-[0-9]{2}", false);
        check(r"\.(png|jpe?g)$", false);
    }
}
