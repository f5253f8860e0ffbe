//! What is made of a regex's parsed form: it is taken apart, reduced to what automata need, and turned into an example.

use super::Dialect;
use regex_syntax::ast::{AssertionKind, Ast, LiteralKind, RepetitionKind, RepetitionRange};
use regex_syntax::hir::{Class, ClassBytes, ClassBytesRange, Hir, HirKind, Look, Repetition};

// A regex taken apart: the literal that a value must begin with, and the rest.
//
// `^/svc-17/v\d+$` matches values that begin with `/svc-17/v` and continue as `\d+$` requires. An index finds the
// former; the latter is the same for a thousand services, and compiled once. A rest that may be empty is dropped,
// since the end of a match does not matter.
//
// Mostly the text itself is cut. If groups or flags are in front of the literal, the parsed form is taken apart, and
// its rest printed.

/// The parts of a regex that begins with `^`.
#[derive(Debug)]
pub(super) struct SplitRegex {
    /// The beginning of a matching value.
    pub(super) prefix: Box<[u8]>,
    /// The rest that must match from there on, unless it matches anything.
    pub(super) tail: Option<Tail>,
    /// Whether the value must end with the prefix.
    pub(super) is_whole: bool,
}

/// The rest of a regex behind its literal; equal ones are compiled once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Tail {
    text: Box<str>,
    dialect: Dialect,
}

impl Tail {
    /// The length of its text.
    pub(crate) fn bytes(&self) -> usize {
        self.text.len()
    }

    pub(super) fn hir(&self) -> Hir {
        self.dialect.parse(&self.text).expect("a part of what was parsed, or its printed form").1
    }
}

pub(super) fn split(source: &str, dialect: Dialect, ast: &Ast, hir: Hir) -> Option<SplitRegex> {
    if !hir.properties().look_set_prefix().contains(Look::Start) {
        return None;
    }
    if !dialect.any_case
        && let Ast::Concat(concat) = ast
        && let Some(split) = split_text(source, dialect, &concat.asts)
    {
        return Some(split);
    }
    split_hir(hir)
}

/// `None` if something other than a literal follows `^`.
fn split_text(source: &str, dialect: Dialect, items: &[Ast]) -> Option<SplitRegex> {
    let (first, items) = items.split_first()?;
    let Ast::Assertion(start) = first else {
        return None;
    };
    if !matches!(start.kind, AssertionKind::StartLine | AssertionKind::StartText) {
        return None;
    }
    let mut prefix = String::new();
    let mut rest = items;
    while let [Ast::Literal(literal), after @ ..] = rest
        && matches!(literal.kind, LiteralKind::Verbatim | LiteralKind::Meta | LiteralKind::Superfluous)
    {
        prefix.push(literal.c);
        rest = after;
    }
    let whole = |ast: &Ast| matches!(ast, Ast::Assertion(end) if is_end(&end.kind));
    let is_whole = matches!(rest, [end] if whole(end));
    if prefix.is_empty() && !is_whole {
        return None;
    }
    let text = rest.first().map_or("", |ast| &source[ast.span().start.offset..]);
    let tail = (!rest.iter().all(may_be_empty)).then(|| Tail { text: text.into(), dialect });
    Some(SplitRegex { prefix: prefix.into_bytes().into(), tail, is_whole })
}

fn is_end(kind: &AssertionKind) -> bool {
    matches!(kind, AssertionKind::EndLine | AssertionKind::EndText)
}

/// Whether it matches the empty text at every position.
fn may_be_empty(ast: &Ast) -> bool {
    match ast {
        Ast::Empty(_) | Ast::Flags(_) => true,
        Ast::Repetition(repetition) => match &repetition.op.kind {
            RepetitionKind::ZeroOrOne | RepetitionKind::ZeroOrMore => true,
            RepetitionKind::Range(
                RepetitionRange::Exactly(0) | RepetitionRange::AtLeast(0) | RepetitionRange::Bounded(0, _),
            ) => true,
            RepetitionKind::OneOrMore | RepetitionKind::Range(_) => may_be_empty(&repetition.ast),
        },
        Ast::Group(group) => may_be_empty(&group.ast),
        Ast::Alternation(alternation) => alternation.asts.iter().any(may_be_empty),
        Ast::Concat(concat) => concat.asts.iter().all(may_be_empty),
        _ => false,
    }
}

fn split_hir(hir: Hir) -> Option<SplitRegex> {
    let HirKind::Concat(subs) = reduce(hir, false).into_kind() else {
        return None;
    };
    let mut rest = subs.into_iter().peekable();
    rest.next_if(|sub| matches!(sub.kind(), HirKind::Look(Look::Start)))?;
    let prefix = match rest.peek().map(Hir::kind) {
        Some(HirKind::Literal(literal)) => literal.0.clone(),
        _ => Box::default(),
    };
    if !prefix.is_empty() {
        rest.next();
    }
    let rest = Hir::concat(rest.collect());
    let is_whole = matches!(rest.kind(), HirKind::Look(Look::End));
    if prefix.is_empty() && !is_whole {
        return None;
    }
    if matches_empty(&rest) {
        return Some(SplitRegex { prefix, tail: None, is_whole });
    }
    // The dialect that the printer assumes; it writes flags where another is meant.
    let tail = Tail { text: rest.to_string().into(), dialect: Dialect { unicode: true, any_case: false } };
    // The printed form nests deeper than the source, sometimes too deep to be parsed again.
    tail.dialect.parse(&tail.text).is_ok().then_some(SplitRegex { prefix, tail: Some(tail), is_whole })
}

fn matches_empty(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Empty => true,
        HirKind::Literal(_) | HirKind::Class(_) | HirKind::Look(_) => false,
        HirKind::Repetition(repetition) => repetition.min == 0 || matches_empty(&repetition.sub),
        HirKind::Capture(capture) => matches_empty(&capture.sub),
        HirKind::Concat(subs) => subs.iter().all(matches_empty),
        HirKind::Alternation(subs) => subs.iter().any(matches_empty),
    }
}

// A regex in the form that automata are built from: without groups, and on request without parts that only non-ASCII
// bytes match.
//
// Whether a regex matches does not depend on its groups, nor on which of several matches is preferred. Unicode's `\d` is
// seventy ranges and hundreds of states, of which a path, whose bytes are ASCII, can reach one.

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

// A value that a regex matches, for samples: short and plain, and found without a search.
//
// If a regex looks around (`\b`), the example may not match after all; samples need not be perfect.

/// Longest example, in bytes.
const EXAMPLE_BYTES_MAX: usize = 512;

/// A value that the regex is likely to match.
pub(super) fn example(hir: &Hir) -> Vec<u8> {
    let mut out = Vec::new();
    write(hir, &mut out);
    out.truncate(EXAMPLE_BYTES_MAX);
    out
}

fn write(hir: &Hir, out: &mut Vec<u8>) {
    // Longer examples are cut off, so the rest need not be written.
    if out.len() > EXAMPLE_BYTES_MAX {
        return;
    }
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => {}
        HirKind::Literal(literal) => out.extend_from_slice(&literal.0),
        HirKind::Class(class) => out.extend_from_slice(&member(class)),
        HirKind::Capture(capture) => write(&capture.sub, out),
        HirKind::Concat(parts) => parts.iter().for_each(|part| write(part, out)),
        HirKind::Alternation(parts) => parts.iter().take(1).for_each(|part| write(part, out)),
        HirKind::Repetition(Repetition { min, max, sub, .. }) => {
            let times = (*min).max(1).min(max.unwrap_or(u32::MAX));
            // A repetition of nothing could take long.
            (0..times.min(EXAMPLE_BYTES_MAX as u32)).for_each(|_| write(sub, out));
        }
    }
}

/// A member of a class: a common one, or else its first.
fn member(class: &Class) -> Vec<u8> {
    const COMMON: [char; 3] = ['x', '7', 'A'];
    let (common, first) = match class {
        Class::Unicode(class) => {
            let has = |common: &char| class.iter().any(|range| (range.start()..=range.end()).contains(common));
            (COMMON.into_iter().find(has), class.iter().next().map(|range| range.start().to_string().into_bytes()))
        }
        Class::Bytes(class) => {
            let has =
                |common: &char| class.iter().any(|range| (range.start()..=range.end()).contains(&(*common as u8)));
            (COMMON.into_iter().find(has), class.iter().next().map(|range| vec![range.start()]))
        }
    };
    common.map(|common| vec![common as u8]).or(first).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use crate::regex::Pattern;

    #[test]
    fn examples_match() {
        let check = |regex: &str, expected: &str| {
            for pattern in [Pattern::unicode(regex).unwrap(), Pattern::ascii(regex, true).unwrap()] {
                let example = pattern.example();
                assert!(pattern.is_match(&example), "{regex}: {example:?}");
                assert_eq!(String::from_utf8_lossy(&example).to_lowercase(), expected, "{regex}");
            }
        };
        check(r"^/users/\d+/[a-z]{2,3}$", "/users/7/xx");
        check(r"/v[0-9]+/(?<name>\w*)", "/v7/x");
        check(r"(red|green) ?[^x]", "red 7");
        check("", "");
        assert_eq!(Pattern::unicode("[é-ü]").unwrap().example(), "é".as_bytes());
        let long = Pattern::unicode("(a{1000})?").unwrap().example();
        assert_eq!(long, [b'a'; super::EXAMPLE_BYTES_MAX]);
    }
}
