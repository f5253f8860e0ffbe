//! Regexes as conditions hold them: parsed, bounded and taken apart, but not compiled.
//!
//! Rust's syntax, over bytes. Kong's `~` has Unicode classes, as the `regex` crate has for text; `~~` and `~*` of
//! `vars` have those of ASCII. A configuration may hold a hundred thousand regexes, so a [`Pattern`] is its text and
//! facts about its syntax: the literal that a value must begin with ([`split`]) and an upper bound of its automaton
//! ([`size`]). [`group`] matches many regexes at once; [`tail`] matches the rest behind a literal, shared by all
//! patterns with that rest.

mod example;
mod group;
mod linger;
mod memory;
mod reduce;
mod share;
mod size;
mod split;
mod tail;
#[cfg(test)]
mod tests;

pub(crate) use group::RegexGroup;
pub(crate) use memory::RegexMemory;
pub(crate) use split::Tail;
pub(crate) use tail::TailEngine;

use ::regex::bytes::{Regex, RegexBuilder};
use regex_syntax::hir::{Hir, HirKind};
use regex_syntax::{ast, hir};
use split::SplitRegex;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Most memory of one regex's automaton, and of the states that are built from it while matching.
pub const REGEX_BYTES_MAX: usize = 1 << 20;
/// Longest regex, in bytes. A short name of a Unicode class means kilobytes of ranges, so a long text needs much memory
/// even before its size is known.
pub const REGEX_TEXT_BYTES_MAX: usize = 16 << 10;

/// Least length of a literal before a tail. Every path begins with a slash, so a shorter one selects nothing: regexes
/// with one are better searched for together.
const PREFIX_BYTES_MIN: usize = 2;

/// A valid regex of bounded size.
#[derive(Debug, Clone)]
pub struct Pattern(Arc<ParsedRegex>);

#[derive(Debug)]
struct ParsedRegex {
    source: Box<str>,
    dialect: Dialect,
    split: Option<SplitRegex>,
    /// Names by position in the text.
    names: Box<[Box<str>]>,
    /// Compiled when first needed: the matcher does not use it.
    regex: OnceLock<Regex>,
}

/// Called with a group's number, its name if it has one, and the text it matched.
pub type VisitGroup<'f> = dyn FnMut(usize, Option<&str>, &[u8]) + 'f;

/// The rules by which a text is parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Dialect {
    unicode: bool,
    any_case: bool,
}

/// Why a text cannot be used as a regex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegexError {
    /// It is not well-formed, or requires more than linear time.
    Syntax {
        /// The error, in one line.
        reason: String,
        /// The position of the error, in bytes of the text.
        span: Range<usize>,
    },
    /// It has more than [`REGEX_TEXT_BYTES_MAX`] bytes.
    TooLong,
    /// Its automaton has more than [`REGEX_BYTES_MAX`] bytes.
    TooLarge,
}

impl Pattern {
    /// Parses a regex of Kong's `~`.
    pub fn unicode(source: &str) -> Result<Pattern, RegexError> {
        Pattern::parse(source, Dialect { unicode: true, any_case: false })
    }

    /// Parses a regex of `~~`, or `~*` with `any_case`, in `vars`.
    pub fn ascii(source: &str, any_case: bool) -> Result<Pattern, RegexError> {
        Pattern::parse(source, Dialect { unicode: false, any_case })
    }

    fn parse(source: &str, dialect: Dialect) -> Result<Pattern, RegexError> {
        if source.len() > REGEX_TEXT_BYTES_MAX {
            return Err(RegexError::TooLong);
        }
        let (ast, hir) = dialect.parse(source)?;
        if !size::is_within(&hir, REGEX_BYTES_MAX) {
            return Err(RegexError::TooLarge);
        }
        let mut names = Vec::new();
        if hir.properties().explicit_captures_len() > 0 {
            collect_names(&hir, &mut names);
        }
        let split = split::split(source, dialect, &ast, hir);
        let (source, names) = (source.into(), names.into());
        Ok(Pattern(Arc::new(ParsedRegex { source, dialect, split, names, regex: OnceLock::new() })))
    }

    /// The text as written.
    pub fn source(&self) -> &str {
        &self.0.source
    }

    /// Whether it matches anywhere in a value. Compiles the regex at the first call, so it is for infrequent callers.
    pub fn is_match(&self, value: &[u8]) -> bool {
        self.regex().is_match(value)
    }

    /// Like [`Pattern::is_match`], but does not keep a regex that had to be compiled: for callers that use very many
    /// regexes once each.
    pub(crate) fn is_match_once(&self, value: &[u8]) -> bool {
        match (self.anchored_prefix(), self.0.regex.get()) {
            (Some((prefix, _)), _) if !value.starts_with(prefix) => false,
            (Some((_, None)), _) => true,
            (_, Some(regex)) => regex.is_match(value),
            (_, None) => self.compiled().is_match(value),
        }
    }

    /// Its named groups, in the order of their opening brackets.
    pub fn names(&self) -> &[Box<str>] {
        &self.0.names
    }

    /// Calls `visit` with number, name and content of every group that takes part in the first match; number 0 is the
    /// whole match. `false` where there is none. Compiles the regex at the first call.
    pub fn captures(&self, value: &[u8], visit: &mut VisitGroup<'_>) -> bool {
        let regex = self.regex();
        let Some(captures) = regex.captures(value) else {
            return false;
        };
        for ((number, name), group) in regex.capture_names().enumerate().zip(captures.iter()) {
            if let Some(group) = group {
                visit(number, name, group.as_bytes());
            }
        }
        true
    }

    /// The bytes that a matching value begins with, never empty, and the tail that must match behind them; without a
    /// tail every value with this beginning matches. `None` where the regex does not begin with `^` and a literal, or
    /// with one that is too short (see [`PREFIX_BYTES_MIN`]).
    pub(crate) fn anchored_prefix(&self) -> Option<(&[u8], Option<&Tail>)> {
        let SplitRegex { prefix, tail, is_whole } = self.0.split.as_ref()?;
        let is_enough = match tail {
            Some(_) if !is_whole => prefix.len() >= PREFIX_BYTES_MIN,
            _ => !prefix.is_empty(),
        };
        is_enough.then_some((&**prefix, tail.as_ref()))
    }

    /// The only value that matches, if there is only one.
    pub(crate) fn anchored_literal(&self) -> Option<&[u8]> {
        let split = self.0.split.as_ref()?;
        split.is_whole.then_some(&*split.prefix)
    }

    /// A value that is likely to match, for samples.
    pub(crate) fn example(&self) -> Vec<u8> {
        example::example(&self.hir())
    }

    fn hir(&self) -> Hir {
        self.0.dialect.parse(&self.0.source).expect("it was parsed by the same rules before").1
    }

    fn regex(&self) -> &Regex {
        self.0.regex.get_or_init(|| self.compiled())
    }

    fn compiled(&self) -> Regex {
        let Dialect { unicode, any_case } = self.0.dialect;
        RegexBuilder::new(&self.0.source)
            .unicode(unicode)
            .case_insensitive(any_case)
            // The forward automaton was found to be small; the reverse one, which is also built, may be a little
            // larger.
            .size_limit(usize::MAX)
            .dfa_size_limit(REGEX_BYTES_MAX)
            .build()
            .expect("it was parsed by the same rules before, and there is no limit")
    }
}

impl Dialect {
    fn parse(self, source: &str) -> Result<(ast::Ast, Hir), RegexError> {
        let ast = ast::parse::Parser::new().parse(source).map_err(|error| {
            let span = error.span();
            RegexError::Syntax { reason: error.kind().to_string(), span: span.start.offset..span.end.offset }
        })?;
        let mut translator = hir::translate::TranslatorBuilder::new()
            .unicode(self.unicode)
            .case_insensitive(self.any_case)
            // Values are bytes: a split need not be between characters.
            .utf8(false)
            .build();
        let hir = translator.translate(source, &ast).map_err(|error| {
            let span = error.span();
            RegexError::Syntax { reason: error.kind().to_string(), span: span.start.offset..span.end.offset }
        })?;
        Ok((ast, hir))
    }
}

fn collect_names(hir: &Hir, names: &mut Vec<Box<str>>) {
    if let HirKind::Capture(capture) = hir.kind() {
        names.extend(capture.name.clone());
    }
    hir.kind().subs().iter().for_each(|sub| collect_names(sub, names));
}

impl RegexError {
    /// Position in the text, in bytes, if known.
    pub fn span(&self) -> Option<Range<usize>> {
        match self {
            RegexError::Syntax { span, .. } => Some(span.clone()),
            RegexError::TooLong | RegexError::TooLarge => None,
        }
    }
}

impl fmt::Display for RegexError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegexError::Syntax { reason, .. } => f.write_str(reason),
            RegexError::TooLong => write!(f, "a regex has at most {REGEX_TEXT_BYTES_MAX} bytes; write several"),
            RegexError::TooLarge => {
                write!(f, "the regex needs more than {REGEX_BYTES_MAX} bytes; write fewer or smaller repetitions")
            }
        }
    }
}

impl std::error::Error for RegexError {}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || (&self.0.source, self.0.dialect) == (&other.0.source, other.0.dialect)
    }
}

impl Eq for Pattern {}

impl Hash for Pattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.0.source, self.0.dialect).hash(state);
    }
}
