//! A regex in the form that automata are built from: without groups, and on request without parts that only non-ASCII
//! bytes match.
//!
//! Whether a regex matches does not depend on its groups, nor on which of several matches is preferred. Unicode's `\d` is
//! seventy ranges and hundreds of states, of which a path, whose bytes are ASCII, can reach one.

use regex_syntax::hir::{Class, ClassBytes, ClassBytesRange, Hir, HirKind, Look, Repetition};

/// An equivalent regex as far as only the fact of a match counts; with `ascii` on values of ASCII only.
pub(super) fn reduce(hir: Hir, ascii: bool) -> Hir {
    match hir.into_kind() {
        HirKind::Empty => Hir::empty(),
        HirKind::Literal(literal) if ascii && !literal.0.is_ascii() => Hir::fail(),
        HirKind::Literal(literal) => Hir::literal(literal.0),
        HirKind::Class(class) => Hir::class(if ascii { Class::Bytes(ascii_class(&class)) } else { class }),
        HirKind::Look(look) => Hir::look(if ascii { ascii_look(look) } else { look }),
        HirKind::Repetition(Repetition { min, max, sub, .. }) => {
            Hir::repetition(Repetition { min, max, greedy: true, sub: Box::new(reduce(*sub, ascii)) })
        }
        HirKind::Capture(capture) => reduce(*capture.sub, ascii),
        HirKind::Concat(subs) => Hir::concat(subs.into_iter().map(|sub| reduce(sub, ascii)).collect()),
        HirKind::Alternation(subs) => Hir::alternation(subs.into_iter().map(|sub| reduce(sub, ascii)).collect()),
    }
}

fn ascii_class(class: &Class) -> ClassBytes {
    let byte = |end: u32| u8::try_from(end).unwrap_or(u8::MAX).min(0x7f);
    let range = |(start, end): (u32, u32)| (start <= 0x7f).then(|| ClassBytesRange::new(byte(start), byte(end)));
    match class {
        Class::Unicode(class) => {
            let ranges = class.iter().map(|range| (range.start().into(), range.end().into()));
            // Sorted, so those within ASCII come first.
            ClassBytes::new(ranges.map_while(range))
        }
        Class::Bytes(class) => {
            let ranges = class.iter().map(|range| (range.start().into(), range.end().into()));
            ClassBytes::new(ranges.map_while(range))
        }
    }
}

fn ascii_look(look: Look) -> Look {
    match look {
        Look::WordUnicode => Look::WordAscii,
        Look::WordUnicodeNegate => Look::WordAsciiNegate,
        Look::WordStartUnicode => Look::WordStartAscii,
        Look::WordEndUnicode => Look::WordEndAscii,
        Look::WordStartHalfUnicode => Look::WordStartHalfAscii,
        Look::WordEndHalfUnicode => Look::WordEndHalfAscii,
        other => other,
    }
}
