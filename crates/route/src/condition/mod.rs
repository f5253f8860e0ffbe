//! The condition that a route sets for requests: a boolean combination of predicates, whatever language it was written
//! in.
//!
//! Kong's expressions, APISIX's `vars` and the parts of URI routes all become a [`Condition`]; the compiler, explain
//! and lint know nothing else. [`predicate`] defines the meaning of predicates, [`field`] the fields they read,
//! [`implies`] what follows from them, [`decided`] which of them need no request; [`simplify`] makes conditions short.

pub(crate) mod decided;
mod field;
pub(crate) mod implies;
mod path_sets;
mod predicate;
pub(crate) mod simplify;
#[cfg(test)]
mod tests;

pub use field::{Field, FieldError, FieldKind};
pub use predicate::{ConditionValue, NumberTest, Predicate, PredicateOrigin, Test};
pub(crate) use predicate::{parse_address, parse_number};

use std::sync::Arc;

/// A condition on a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Condition {
    /// Always holds.
    True,
    /// Never holds.
    False,
    /// Every one holds; empty, it holds.
    All(Vec<Condition>),
    /// At least one holds; empty, it does not.
    Any(Vec<Condition>),
    /// Holds if the condition does not. True for a predicate on an absent field, since predicates do not hold for
    /// absent values.
    Not(Box<Condition>),
    /// A predicate.
    Is(Arc<Predicate>),
}

impl Condition {
    /// Whether it holds, given by `predicate` the value of each of its predicates. Evaluated from the left, and no
    /// further than needed.
    pub fn holds(&self, predicate: &mut dyn FnMut(&Predicate) -> bool) -> bool {
        match self {
            Condition::True => true,
            Condition::False => false,
            Condition::All(all) => all.iter().all(|condition| condition.holds(predicate)),
            Condition::Any(any) => any.iter().any(|condition| condition.holds(predicate)),
            Condition::Not(condition) => !condition.holds(predicate),
            Condition::Is(is) => predicate(is),
        }
    }

    /// Its value, given by `predicate` the known values of its predicates; `None` if it depends on unknown ones.
    pub fn known(&self, predicate: &mut dyn FnMut(&Predicate) -> Option<bool>) -> Option<bool> {
        match self {
            Condition::True => Some(true),
            Condition::False => Some(false),
            Condition::All(all) => one_decides(all, false, predicate),
            Condition::Any(any) => one_decides(any, true, predicate),
            Condition::Not(condition) => condition.known(predicate).map(|holds| !holds),
            Condition::Is(is) => predicate(is),
        }
    }

    /// Calls `visit` with every predicate, as often as it occurs in the condition.
    pub fn each_predicate<'a>(&'a self, visit: &mut dyn FnMut(&'a Arc<Predicate>)) {
        match self {
            Condition::True | Condition::False => {}
            Condition::All(conditions) | Condition::Any(conditions) => {
                conditions.iter().for_each(|condition| condition.each_predicate(visit));
            }
            Condition::Not(condition) => condition.each_predicate(visit),
            Condition::Is(predicate) => visit(predicate),
        }
    }
}

/// The value of a chain in which one part that is `deciding` is enough.
fn one_decides(
    parts: &[Condition],
    deciding: bool,
    predicate: &mut dyn FnMut(&Predicate) -> Option<bool>,
) -> Option<bool> {
    let mut result = Some(!deciding);
    for part in parts {
        match part.known(predicate) {
            Some(value) if value == deciding => return Some(deciding),
            Some(_) => {}
            None => result = None,
        }
    }
    result
}
