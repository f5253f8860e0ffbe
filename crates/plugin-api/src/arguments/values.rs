//! The arguments that filters and plugins need, and those of one request that have been read.

use crate::answer::Answer;
use std::sync::Arc;
use stillgate_route::Variable;

/// Longest value that is kept.
pub const VALUE_BYTES_MAX: usize = 64 * 1024;

/// The arguments that a filter or plugin needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arguments {
    /// The variables in the body, each once.
    pub(super) variables: Arc<[Variable]>,
    pub(super) bytes_max: usize,
    /// Whether an unreadable argument counts as absent.
    takes_unread: bool,
}

impl Arguments {
    /// The variables in the body among those that `each` visits, with the limit of the body's length; `None`: there are
    /// none. `only_watches`: the plugin can neither refuse nor change the request.
    pub fn among(
        each: impl FnOnce(&mut dyn FnMut(&Variable)),
        bytes_max: usize,
        only_watches: bool,
    ) -> Option<Arguments> {
        let mut variables = Vec::new();
        each(&mut |variable| {
            let is_in_body = matches!(variable, Variable::PostArg(_) | Variable::BodyArg(_));
            if is_in_body && !variables.contains(variable) {
                variables.push(variable.clone());
            }
        });
        let takes_unread = only_watches;
        (!variables.is_empty()).then(|| Arguments { variables: variables.into(), bytes_max, takes_unread })
    }
}

/// The reason why a value is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArgumentError {
    /// The body does not have the type of its `Content-Type`.
    Body,
    /// The value is longer than [`VALUE_BYTES_MAX`].
    TooLong,
}

/// A value; `None`: the body does not have it.
pub(super) type Value = Result<Option<Box<[u8]>>, ArgumentError>;

/// The values of a list of variables.
pub(super) type Values = Vec<Value>;

/// The arguments of one request that have been read.
#[derive(Debug, Default)]
pub(crate) struct ReadArguments(Vec<(Arc<[Variable]>, Values)>);

impl ReadArguments {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn value(&self, variable: &Variable) -> Option<&[u8]> {
        self.find(variable)?.as_ref().ok()?.as_deref()
    }

    /// The answer to a request of which a needed argument cannot be read.
    pub(super) fn refusal(&self, wanted: &Arguments) -> Option<Answer> {
        if wanted.takes_unread {
            return None;
        }
        let unread = wanted.variables.iter().find_map(|variable| self.find(variable)?.as_ref().err())?;
        Some(Answer::page(match unread {
            ArgumentError::Body => 400,
            ArgumentError::TooLong => 413,
        }))
    }

    pub(super) fn find(&self, variable: &Variable) -> Option<&Value> {
        self.0.iter().find_map(|(of, values)| values.get(of.iter().position(|of| of == variable)?))
    }

    pub(super) fn note(&mut self, of: &Arguments, values: Values) {
        self.0.push((of.variables.clone(), values));
    }
}
