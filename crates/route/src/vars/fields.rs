//! The field that a variable of a condition means: the same as Kong's where both mean the same, so that an index finds
//! it.
//!
//! A header with several lines is one value in `vars` (joined) and several in Kong, a query argument is undecoded here
//! and decoded there, and the path is decoded here and in normal form there; these stay variables.

use crate::Variable;
use crate::condition::{Field, Test};

/// The field on which `test` has the same meaning as on the variable.
pub(super) fn field(variable: &Variable, test: &Test) -> Field {
    match (variable, test) {
        (Variable::RequestMethod, _) => Field::Method,
        (Variable::Scheme, _) => Field::Protocol,
        // A request without a host has an empty variable, but no field.
        (Variable::Host, Test::Equal(text)) if !text.is_empty() => Field::Host,
        // As a variable it is text, and only this test reads it as an address.
        (Variable::RemoteAddr, Test::Addresses(_)) => Field::SourceIp,
        _ => Field::Variable(variable.clone()),
    }
}
