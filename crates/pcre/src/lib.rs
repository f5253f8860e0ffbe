//! Patterns that were written for PCRE, as APISIX's are, in the syntax of the `regex` crate.
//!
//! Most patterns mean the same in both, and what one of the two lacks is an error of its parser. What both take with another meaning
//! would switch a guard off without a word: that is translated here, or refused.
//!
//! | pattern | PCRE | Rust | here |
//! |---|---|---|---|
//! | `$` | the end, or before a line feed at the end | the end | translated, where asked for |
//! | `\<` `\>` | `<` and `>` | the start and end of a word | translated |
//! | `\v` | vertical white space | a vertical tab | translated |
//! | `[a&&b]` `[a--b]` `[a~~b]` | characters | operations on classes | refused |
//! | `[a[b]` `[a[b]]` | `[` is a character | a class in a class | refused |
//! | `a*+` `a++` `a?+` | possessive | repeated twice | refused |
//! | `\b{start}` | `\b` and text | the start of a word | refused |
//! | `(?R)` | recursion | line ends are CR LF | refused |

#![forbid(unsafe_code)]

use regex_syntax::ast::parse::ParserBuilder;
use regex_syntax::ast::{
    AssertionKind, Ast, ClassSetBinaryOp, ClassSetItem, Flag, FlagsItemKind, LiteralKind, RepetitionKind, Span,
    SpecialLiteralKind, Visitor, visit,
};
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

/// `$` of PCRE, in Rust's syntax.
const BEFORE_LAST_LINE_FEED: &str = r"(?:\n?\z)";

/// Vertical white space, as items of a class.
const VERTICAL: &str = r"\n\x0B\x0C\r";

/// How a pattern is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Whether `$` is translated: values may end in a line feed.
    pub translates_end: bool,
    /// PCRE's `m`: `$` is the end of each line, in both syntaxes.
    pub is_multi_line: bool,
    /// PCRE's `x`: blanks and comments do not count.
    pub is_extended: bool,
}

/// A part of a pattern that PCRE reads in another way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherMeaning {
    /// Why it is refused, and what to write, in one line.
    pub reason: String,
    /// Its place in the pattern, in bytes.
    pub span: Range<usize>,
}

impl fmt::Display for OtherMeaning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for OtherMeaning {}

/// The pattern in Rust's syntax with PCRE's meaning. One that Rust's parser does not take is returned as it is: that parser says
/// why.
///
/// # Errors
/// A part of it has another meaning, and no translation.
pub fn translate(pattern: &str, options: Options) -> Result<Cow<'_, str>, OtherMeaning> {
    let Ok(ast) = ParserBuilder::new().ignore_whitespace(options.is_extended).build().parse(pattern) else {
        return Ok(Cow::Borrowed(pattern));
    };
    let Differences { ends, mut others, has_lines } =
        visit(&ast, Differences { has_lines: options.is_multi_line, ..Differences::default() })?;
    if options.translates_end && !has_lines {
        others.extend(ends.into_iter().map(|end| (end, BEFORE_LAST_LINE_FEED)));
    }
    if others.is_empty() {
        return Ok(Cow::Borrowed(pattern));
    }
    others.sort_by_key(|(range, _)| range.start);
    let (mut translated, mut done) = (String::with_capacity(2 * pattern.len()), 0);
    for (range, text) in others {
        translated.push_str(&pattern[done..range.start]);
        translated.push_str(text);
        done = range.end;
    }
    translated.push_str(&pattern[done..]);
    Ok(Cow::Owned(translated))
}

/// What differs in a pattern.
#[derive(Default)]
struct Differences {
    /// Each `$`.
    ends: Vec<Range<usize>>,
    /// Other parts, with their translation.
    others: Vec<(Range<usize>, &'static str)>,
    /// Whether `$` is the end of a line in some part of it.
    has_lines: bool,
}

fn range(span: &Span) -> Range<usize> {
    span.start.offset..span.end.offset
}

fn refused(span: &Span, reason: &str) -> OtherMeaning {
    OtherMeaning { reason: reason.to_owned(), span: range(span) }
}

impl Visitor for Differences {
    type Output = Differences;
    type Err = OtherMeaning;

    fn finish(self) -> Result<Differences, OtherMeaning> {
        Ok(self)
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), OtherMeaning> {
        let flags = match ast {
            Ast::Assertion(assertion) => {
                let range = range(&assertion.span);
                match assertion.kind {
                    AssertionKind::EndLine => self.ends.push(range),
                    AssertionKind::WordBoundaryStartAngle => self.others.push((range, "<")),
                    AssertionKind::WordBoundaryEndAngle => self.others.push((range, ">")),
                    AssertionKind::WordBoundaryStart
                    | AssertionKind::WordBoundaryEnd
                    | AssertionKind::WordBoundaryStartHalf
                    | AssertionKind::WordBoundaryEndHalf => {
                        return Err(refused(&assertion.span, r"\b{…} is \b and a text in PCRE; write \b, or \b\{"));
                    }
                    _ => {}
                }
                return Ok(());
            }
            Ast::Literal(literal) if literal.kind == LiteralKind::Special(SpecialLiteralKind::VerticalTab) => {
                self.others.push((range(&literal.span), r"[\n\x0B\x0C\r]"));
                return Ok(());
            }
            Ast::Repetition(outer) => {
                let is_possessive =
                    outer.op.kind == RepetitionKind::OneOrMore && matches!(*outer.ast, Ast::Repetition(_));
                return match is_possessive {
                    true => {
                        Err(refused(&outer.op.span, "possessive repetitions such as a*+ are not supported; write a*"))
                    }
                    false => Ok(()),
                };
            }
            Ast::Flags(set) => &set.flags,
            Ast::Group(group) => match group.flags() {
                Some(flags) => flags,
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        for item in &flags.items {
            match item.kind {
                FlagsItemKind::Flag(Flag::MultiLine) => self.has_lines = true,
                FlagsItemKind::Flag(Flag::CRLF) => {
                    return Err(refused(&item.span, "recursion, (?R), is not supported"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), OtherMeaning> {
        match item {
            ClassSetItem::Bracketed(class) => {
                Err(refused(&class.span, r"[ within a class is a character in PCRE; write \["))
            }
            ClassSetItem::Literal(literal) if literal.kind == LiteralKind::Special(SpecialLiteralKind::VerticalTab) => {
                self.others.push((range(&literal.span), VERTICAL));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn visit_class_set_binary_op_pre(&mut self, op: &ClassSetBinaryOp) -> Result<(), OtherMeaning> {
        Err(refused(&op.span, r"&&, -- and ~~ within a class are characters in PCRE; write \&\&, \-\- or \~\~"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VARS: Options = Options { translates_end: true, is_multi_line: false, is_extended: false };

    #[test]
    fn what_means_something_else_is_translated() {
        let check = |pattern: &str, expected: &str| {
            assert_eq!(translate(pattern, VARS).as_deref(), Ok(expected), "{pattern}");
        };
        check("^/a$", r"^/a(?:\n?\z)");
        check("a$|(b$)", r"a(?:\n?\z)|(b(?:\n?\z))");
        check("ü$", r"ü(?:\n?\z)");
        check(r"\<\?php$", r"<\?php(?:\n?\z)");
        check(r"\<b\>", "<b>");
        check(r"a\v[\v b]", r"a[\n\x0B\x0C\r][\n\x0B\x0C\r b]");
    }

    #[test]
    fn what_means_the_same_stays() {
        for pattern in [
            "",
            r"\$[$]a",
            "(?m)^a$",
            "(?m:a)$",
            r"a\z",
            r"[\[a\]]",
            "[[:alpha:]_]",
            "[]a]",
            "[a-z0-9&~-]",
            r"\bword\b",
            "(?i)a+?b*",
            "(a+)+",
            "a{2}{3}",
            // Rust's parser refuses these.
            "(",
            "(?=a)",
            r"(a)\1",
        ] {
            assert_eq!(translate(pattern, VARS), Ok(Cow::Borrowed(pattern)), "{pattern}");
        }
        let lines = Options { is_multi_line: true, ..VARS };
        assert_eq!(translate("a$", lines), Ok(Cow::Borrowed("a$")));
        assert_eq!(translate("a$", Options::default()), Ok(Cow::Borrowed("a$")));
        let extended = Options { is_extended: true, ..VARS };
        assert_eq!(translate("a # $\n$", extended).as_deref(), Ok("a # $\n(?:\\n?\\z)"));
    }

    #[test]
    fn what_cannot_be_translated_is_refused() {
        for (pattern, part) in [
            ("^[a&&b]+$", "a&&b"),
            ("[!--]", "!--"),
            ("[a~~b]", "a~~b"),
            ("[a[b]]", "[b]"),
            ("a*+b", "+"),
            ("a++", "+"),
            (r"\b{start}a", r"\b{start}"),
            ("(?R)a", "R"),
        ] {
            let span = translate(pattern, VARS).unwrap_err().span;
            assert_eq!(&pattern[span], part, "{pattern}");
        }
    }
}
