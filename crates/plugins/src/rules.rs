//! Rules with conditions, the first of which that applies counts.
//!
//! A condition that cannot be evaluated ends the search: a later rule may be the one that lets the request pass.

use stillgate_plugin_api::{Filter, Request};
use stillgate_route::PathError;

/// The first rule that applies, and its index.
pub(crate) fn first<T>(
    rules: &[T],
    applies: impl Fn(&T) -> Result<bool, PathError>,
) -> Result<Option<(usize, &T)>, PathError> {
    for (index, rule) in rules.iter().enumerate() {
        if applies(rule)? {
            return Ok(Some((index, rule)));
        }
    }
    Ok(None)
}

/// Whether one of the conditions holds.
pub(crate) fn any_is_true(conditions: &[Filter], request: &Request<'_>) -> Result<bool, PathError> {
    first(conditions, |condition| condition.is_true(&request.facts, request)).map(|found| found.is_some())
}
