//! Errors of expressions, in words for the person who must fix them at night.

use super::excerpt::Excerpt;
use super::{ERRORS_MAX, EXPRESSION_BYTES_MAX, NESTING_MAX, PREDICATES_MAX};
use crate::condition::{Field, FieldKind};
use std::fmt;
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
    NothingToJoin {
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
    JointOrEnd,
    /// An operator that joins conditions, or `)`.
    JointOrClosing,
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
            Self::NothingToJoin { operator, behind } => {
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
            ExpectedPart::JointOrEnd => "`&&`, `||` or the end",
            ExpectedPart::JointOrClosing => "`&&`, `||` or `)`",
            ExpectedPart::Parenthesis => "`(` after `!`",
            ExpectedPart::Closing => "`)`",
        })
    }
}

/// The type of a field's values, in words.
pub(super) fn type_of(field: &Field) -> &'static str {
    match field.kind() {
        FieldKind::Text => "a text",
        FieldKind::Int => "a number",
        FieldKind::Ip => "an address",
    }
}
