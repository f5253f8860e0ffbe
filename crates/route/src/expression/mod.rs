//! Kong's expression language: from text to a [`Condition`], with errors that point into the text.
//!
//! The language is that of the crate `atc-router` 1.7 with Kong's fields of HTTP requests; tests compare the two. It is
//! read by hand, without tokens: the reference's grammar has none (`a in10.0.0.0/8` is right), and every parsing step
//! knows best what was meant. Nothing recurses, so the cost of a text is bounded by the constants below.
//!
//! Intended differences from the reference:
//!
//! - `not in` takes any blanks between its words; `notin` is an error. The reference panics on both.
//! - The least number, `-9223372036854775808`, is accepted.
//! - `http.path.segments.X` needs an `X` that can be there (`N`, `N_M` with N < M, `len`); the reference takes any.
//! - `http.headers.` and `http.queries.` need a name. Header names may be in upper case and mean the same.
//! - An IPv4 address or network written as IPv6 (`::ffff:a00:1`) is the IPv4 one, since requests' addresses are.
//! - Texts, nesting, the number of predicates and the memory of a regex are bounded.
//! - Values are bytes that need not be UTF-8, so a regex may match them (`(?-u:\xff)`).

mod cursor;
mod error;
mod foreign;
mod literal;
mod parse;
mod predicate;

pub use error::{ExpectedPart, ExpressionError, ExpressionErrorKind};

use crate::condition::Condition;
use std::fmt;

/// Longest expression.
pub const EXPRESSION_BYTES_MAX: usize = 64 << 10;
/// Deepest nesting of parentheses, those of functions included.
pub const NESTING_MAX: usize = 64;
/// Most predicates of one expression.
pub const PREDICATES_MAX: usize = 4096;
/// Most errors reported of one expression, not counting the one which says that there may be more.
pub const ERRORS_MAX: usize = 16;

/// An expression that is understood in full.
#[derive(Debug, Clone, PartialEq)]
pub struct Expression {
    text: Box<str>,
    condition: Condition,
    mixed: Vec<(u32, u32)>,
}

impl Expression {
    /// Parses an expression. All errors of it are reported, in the order of the text, but no more than [`ERRORS_MAX`]
    /// and one that says so.
    pub fn parse(text: &str) -> Result<Expression, Vec<ExpressionError>> {
        parse::parse(text)
    }

    /// The text as written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// As it was written, not simplified: a chain of one operator is one [`Condition::All`] or [`Condition::Any`], and
    /// parentheses make a condition of their own. Predicates know their text and position.
    pub fn condition(&self) -> &Condition {
        &self.condition
    }

    /// Positions where `&&` and `||` are mixed without parentheses: line and column, from 1 and in characters, of the
    /// first operator that differs from those before it in the same parentheses. The text reads as if `&&` bound
    /// tighter, but `||` does.
    pub fn mixed(&self) -> &[(u32, u32)] {
        &self.mixed
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
