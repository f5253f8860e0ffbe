//! Errors of expressions, in words for the person who must fix them at night, and the excerpt that each points into: a line
//! of the text with a caret below, fit for any terminal, since it is bounded in width and nothing in it moves the cursor.

use super::{ERRORS_MAX, EXPRESSION_BYTES_MAX, NESTING_MAX, PREDICATES_MAX};
use crate::condition::{Field, FieldKind};
use std::fmt::{self, Write};
use std::ops::Range;

/// One error of an expression.
///
/// Its `Display` has several lines: the error, the line of the expression, carets below the place, and a suggestion;
/// the last does not end in a line break. It is safe to print: nothing of the expression moves a terminal's cursor, and
/// no line is long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpressionError {
    /// From 1.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
    /// The place in bytes. Empty where something is missing.
    pub span: Range<usize>,
    /// The error.
    pub kind: ExpressionErrorKind,
    /// A suggestion.
    pub hint: Option<String>,
    pub(super) excerpt: Excerpt,
}

/// Kinds of errors.
///
/// Texts called `found` are excerpts: in backquotes, on one line, cut where they are long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExpressionErrorKind {
    /// There is nothing but blanks.
    Empty,
    /// It has more than [`EXPRESSION_BYTES_MAX`].
    TooLong {
        /// Its length in bytes.
        bytes: usize,
    },
    /// It nests deeper than [`NESTING_MAX`].
    TooDeep,
    /// It has more than [`PREDICATES_MAX`].
    TooManyPredicates,
    /// There were [`ERRORS_MAX`] errors before; the rest was not read.
    TooManyErrors,
    /// Something other than the expected is here.
    Expected {
        /// The expected part.
        expected: ExpectedPart,
        /// The actual text.
        found: String,
    },
    /// It has a meaning in another language.
    Foreign {
        /// The foreign text.
        found: String,
    },
    /// A parenthesis, quote or bracket is never closed.
    Unclosed {
        /// The opening sign.
        opened: &'static str,
    },
    /// A `)` closes nothing.
    Unopened,
    /// `()`
    EmptyParentheses,
    /// `&&` or `||` joins nothing on one side.
    MissingOperand {
        /// `&&` or `||`.
        operator: &'static str,
        /// Whether the operand behind it is missing.
        behind: bool,
    },
    /// Unknown escape in a text.
    Escape {
        /// With its backslash.
        found: String,
    },
    /// An invalid number.
    Number {
        /// The text as written.
        found: String,
        /// Why it is invalid.
        reason: &'static str,
    },
    /// An invalid address or network.
    Address {
        /// The text as written.
        found: String,
        /// Why it is invalid.
        reason: &'static str,
    },
    /// Unknown field.
    UnknownField {
        /// The text as written.
        found: String,
    },
    /// The field's last part is wrong.
    FieldName {
        /// The text as written.
        found: String,
        /// Why it is wrong.
        reason: &'static str,
    },
    /// Unknown function.
    UnknownFunction {
        /// The text as written.
        found: String,
    },
    /// `lower()` of a field that is not text.
    Lower {
        /// The field.
        field: Field,
    },
    /// The operator cannot be used with fields of that type.
    OperatorType {
        /// Its spelling.
        operator: &'static str,
        /// The field.
        field: Field,
    },
    /// The value is not of the type that field and operator require.
    ValueType {
        /// The required type.
        expected: ExpectedPart,
        /// The field.
        field: Field,
        /// Its type and its text.
        found: String,
    },
    /// The regex is invalid or too large.
    Regex {
        /// The reason on one line.
        reason: String,
    },
}

/// A part that a position can require.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedPart {
    /// A predicate or a parenthesis.
    Condition,
    /// A field, in a function.
    Field,
    /// An operator that compares.
    Operator,
    /// A value of any type.
    Value,
    /// A text.
    Text,
    /// A number.
    Number,
    /// An address.
    Address,
    /// A network.
    Network,
    /// An operator that joins conditions, or the end.
    LogicalOperatorOrEnd,
    /// An operator that joins conditions, or `)`.
    LogicalOperatorOrClosing,
    /// `(`, behind `!`.
    Parenthesis,
    /// `)`, at the end of a function.
    Closing,
}

impl ExpressionError {
    /// The line of the error, and below it carets; empty where there is no line.
    pub fn excerpt(&self) -> String {
        self.excerpt.to_string().trim_start_matches('\n').to_owned()
    }
}

impl fmt::Display for ExpressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}{}", self.line, self.column, self.kind, self.excerpt)?;
        match &self.hint {
            Some(hint) => write!(f, "\n    hint: {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ExpressionError {}

impl fmt::Display for ExpressionErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the expression is empty"),
            Self::TooLong { bytes } => {
                write!(f, "the expression has {bytes} bytes; at most {EXPRESSION_BYTES_MAX} are read")
            }
            Self::TooDeep => write!(f, "more than {NESTING_MAX} parentheses are open here"),
            Self::TooManyPredicates => write!(f, "an expression has at most {PREDICATES_MAX} predicates"),
            Self::TooManyErrors => {
                write!(f, "there are {ERRORS_MAX} errors before this; the rest was not read")
            }
            Self::Expected { expected, found } => write!(f, "expected {expected}, found {found}"),
            Self::Foreign { found } => write!(f, "{found} is not in the expression language"),
            Self::Unclosed { opened } => write!(f, "the `{opened}` that is opened here is never closed"),
            Self::Unopened => f.write_str("this `)` closes nothing"),
            Self::EmptyParentheses => f.write_str("there is nothing in these parentheses"),
            Self::MissingOperand { operator, behind } => {
                write!(f, "there is no condition {} `{operator}`", if *behind { "after" } else { "before" })
            }
            Self::Escape { found } => write!(f, "there is no escape {found}"),
            Self::Number { found, reason } => write!(f, "{found} is not a number: {reason}"),
            Self::Address { found, reason } => write!(f, "{found} is not an address or network: {reason}"),
            Self::UnknownField { found } => write!(f, "there is no field {found}"),
            Self::FieldName { found, reason } => write!(f, "{found} is not a field: {reason}"),
            Self::UnknownFunction { found } => write!(f, "there is no function {found}"),
            Self::Lower { field } => write!(f, "`lower` is for texts, but `{field}` is {}", type_of(field)),
            Self::OperatorType { operator, field } => {
                write!(f, "`{operator}` cannot be used with `{field}`, which is {}", type_of(field))
            }
            Self::ValueType { expected: ExpectedPart::Network, found, .. } => {
                write!(f, "expected {}, found {found}", ExpectedPart::Network)
            }
            Self::ValueType { expected, field, found } => {
                write!(f, "expected {expected}, since `{field}` is {}, found {found}", type_of(field))
            }
            Self::Regex { reason } => write!(f, "the regex is refused: {reason}"),
        }
    }
}

impl fmt::Display for ExpectedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ExpectedPart::Condition => "a condition",
            ExpectedPart::Field => "a field",
            ExpectedPart::Operator => "an operator, such as `==`",
            ExpectedPart::Value => "a value",
            ExpectedPart::Text => "a text in double quotes",
            ExpectedPart::Number => "a whole number",
            ExpectedPart::Address => "an address",
            ExpectedPart::Network => "a network, such as `10.0.0.0/8`",
            ExpectedPart::LogicalOperatorOrEnd => "`&&`, `||` or the end",
            ExpectedPart::LogicalOperatorOrClosing => "`&&`, `||` or `)`",
            ExpectedPart::Parenthesis => "`(` after `!`",
            ExpectedPart::Closing => "`)`",
        })
    }
}

/// The type of a field's values, in words.
fn type_of(field: &Field) -> &'static str {
    match field.kind() {
        FieldKind::Text => "a text",
        FieldKind::Int => "a number",
        FieldKind::Ip => "an address",
    }
}

/// Most characters of a line that are shown before and behind the place in question.
const MARGIN_CHARS_MAX: usize = 60;
/// Most carets.
const CARETS_MAX: usize = 60;

/// A line of a text, with the marked part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Excerpt {
    line: String,
    /// Characters of `line` before the carets.
    indent: usize,
    carets: usize,
}

impl Excerpt {
    /// The line in which `span` begins; later lines of `span` are not marked.
    pub(super) fn new(text: &str, span: &Range<usize>) -> Excerpt {
        let begin = text[..span.start].rfind('\n').map_or(0, |at| at + 1);
        let end = text[span.start..].find('\n').map_or(text.len(), |at| span.start + at);
        let end = if text[span.start..end].ends_with('\r') { end - 1 } else { end };
        let mut excerpt = Excerpt { line: String::new(), indent: 0, carets: 0 };

        let before = &text[begin..span.start];
        let near = fitting(before.char_indices().rev(), MARGIN_CHARS_MAX).map_or("", |(at, _)| &before[at..]);
        if near.len() < before.len() {
            excerpt.line.push('…');
        }
        escape(near, &mut excerpt.line);
        excerpt.indent = excerpt.line.chars().count();

        let marked = head(&text[span.start..span.end.min(end)], CARETS_MAX);
        escape(marked, &mut excerpt.line);
        excerpt.carets = (excerpt.line.chars().count() - excerpt.indent).max(1);

        let after = &text[span.start + marked.len()..end];
        excerpt.line += &shown(after, MARGIN_CHARS_MAX);
        excerpt.line.truncate(excerpt.line.trim_end().len());
        excerpt
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line.is_empty() {
            return Ok(());
        }
        writeln!(f, "\n    {}", self.line)?;
        write!(f, "    {:indent$}{:^<carets$}", "", "", indent = self.indent, carets = self.carets)
    }
}

/// A part of the text within a message: in backquotes, on one line, and not too long.
pub(super) fn quoted(text: &str) -> String {
    const CHARS_MAX: usize = 40;
    format!("`{}`", shown(text, CHARS_MAX))
}

/// A text on one line, cut if it has more than this many visible characters.
pub(super) fn shown(text: &str, chars_max: usize) -> String {
    let head = head(text, chars_max);
    let mut shown = String::new();
    escape(head, &mut shown);
    if head.len() < text.len() {
        shown.push('…');
    }
    shown
}

fn head(text: &str, chars_max: usize) -> &str {
    fitting(text.char_indices(), chars_max).map_or("", |(at, c)| &text[..at + c.len_utf8()])
}

/// The last of the characters that are shown within a width.
fn fitting(chars: impl Iterator<Item = (usize, char)>, chars_max: usize) -> Option<(usize, char)> {
    let (mut width, mut escaped) = (0, String::new());
    chars
        .take_while(|(_, c)| {
            escaped.clear();
            escape(c.encode_utf8(&mut [0; 4]), &mut escaped);
            width += escaped.chars().count();
            width <= chars_max
        })
        .last()
}

/// Appends `text`; a tab becomes a blank, and a character that is invisible or moves the cursor becomes its code.
fn escape(text: &str, into: &mut String) {
    for c in text.chars() {
        match c {
            '\t' => into.push(' '),
            '\n' => into.push_str("\\n"),
            '\r' => into.push_str("\\r"),
            c if c != ' ' && (c.is_control() || c.is_whitespace() || is_invisible(c)) => {
                write!(into, "\\u{{{:x}}}", u32::from(c)).expect("a String takes everything");
            }
            c => into.push(c),
        }
    }
}

/// Characters without a visible place: those that turn the direction of writing, join, or break lines.
pub(super) fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{300}'..='\u{36f}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}
