//! Kong's expression language: from text to a [`Condition`], with errors that point into the text.

use crate::condition::Condition;

/// An expression that is understood in full.
#[derive(Debug, Clone, PartialEq)]
pub struct Expression {
    /// As it was written.
    text: Box<str>,
    condition: Condition,
}
