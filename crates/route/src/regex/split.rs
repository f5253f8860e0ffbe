//! A regex taken apart: the literal that a value must begin with, and the rest.
//!
//! `^/svc-17/v\d+$` matches values that begin with `/svc-17/v` and continue as `\d+$` requires. An index finds the
//! former; the latter is the same for a thousand services, and compiled once. A rest that may be empty is dropped,
//! since the end of a match does not matter.
//!
//! Mostly the text itself is cut. If groups or flags are in front of the literal, the parsed form is taken apart, and
//! its rest printed.

use super::Dialect;
use super::reduce::reduce;
use regex_syntax::ast::{AssertionKind, Ast, LiteralKind, RepetitionKind, RepetitionRange};
use regex_syntax::hir::{Hir, HirKind, Look};

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
