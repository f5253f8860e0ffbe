//! Arguments in the body of a request, for conditions and texts that name them: the request waits for the body before
//! they are read.
//!
//! ```text
//!   Arguments (of a filter, of a plugin) ── Request::await_arguments ──▶ None: they are known
//!                                                                    ──▶ Flow::Body ──▶ read here, or on a thread for such work
//! ```
//!
//! Only the requested values of a body are kept, none longer than [`VALUE_BYTES_MAX`]. They are those of the body at
//! the time of the first look-up, even if it is changed later.
//!
//! A body that cannot be read, or a value that is longer, is not treated as absent: a node may read it, and a condition
//! on it may be what keeps clients out. The request is answered with 400 or 413, unless the plugin only watches.

mod body_format;
mod multipart;

use crate::answer::Answer;
use crate::flow::{Flow, QueueFull};
use crate::json::BudgetExhausted;
use crate::request::Request;
use body_format::{ArgumentError, BodyFormat};
use std::sync::Arc;
use stillgate_route::Variable;
use stillgate_wire::FieldName;

/// Longest value that is kept.
pub const VALUE_BYTES_MAX: usize = 64 * 1024;
/// A longer body is parsed on a thread that does not serve requests.
const SHORT_BYTES_MAX: usize = 8 * 1024;

const CONTENT_TYPE: FieldName<'static> = FieldName::constant("Content-Type");
const CONTENT_ENCODING: FieldName<'static> = FieldName::constant("Content-Encoding");

/// The arguments that a filter or plugin needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arguments {
    /// The variables in the body, each once.
    variables: Arc<[Variable]>,
    bytes_max: usize,
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

/// A value; `None`: the body does not have it.
type Value = Result<Option<Box<[u8]>>, ArgumentError>;

/// The values of a list of variables.
type Values = Vec<Value>;

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
    fn refusal(&self, wanted: &Arguments) -> Option<Flow> {
        if wanted.takes_unread {
            return None;
        }
        let unread = wanted.variables.iter().find_map(|variable| self.find(variable)?.as_ref().err())?;
        let status = match unread {
            ArgumentError::Body => 400,
            ArgumentError::TooLong => 413,
        };
        Some(Answer::page(status).into())
    }

    fn find(&self, variable: &Variable) -> Option<&Value> {
        self.0.iter().find_map(|(of, values)| values.get(of.iter().position(|of| of == variable)?))
    }

    fn note(&mut self, of: &Arguments, values: Values) {
        self.0.push((of.variables.clone(), values));
    }
}

impl Request<'_> {
    /// What to wait for before the arguments can be read; it ends with [`Flow::Continue`], or with an answer if one
    /// cannot be read. `None`: nothing.
    pub fn await_arguments(&mut self, wanted: &Arguments) -> Option<Flow> {
        if wanted.variables.iter().all(|variable| self.settled.arguments.find(variable).is_some()) {
            return self.settled.arguments.refusal(wanted);
        }
        let (mut of_type, mut of_coding) = (Vec::new(), Vec::new());
        let coding = self.header(CONTENT_ENCODING, &mut of_coding);
        let reading = self.header(CONTENT_TYPE, &mut of_type).and_then(|kind| BodyFormat::of(kind, coding));
        let reading = reading.filter(|reading| wanted.variables.iter().any(|variable| reading.may_have(variable)))?;
        if self.body_here().is_some_and(|body| body.len() <= wanted.bytes_max) {
            return self.read_arguments(wanted, reading);
        }
        let (bytes_max, wanted) = (wanted.bytes_max, wanted.clone());
        Some(Flow::body(bytes_max, move |request| request.read_arguments(&wanted, reading).unwrap_or(Flow::Continue)))
    }

    /// The body that the node will get, or the client's if a filter changes it on its way.
    fn body_here(&self) -> Option<&[u8]> {
        self.whole_body().or(self.received)
    }

    fn read_arguments(&mut self, wanted: &Arguments, reading: BodyFormat) -> Option<Flow> {
        let body = self.body_here().unwrap_or_default();
        if body.len() <= SHORT_BYTES_MAX {
            return match reading.values(body, &wanted.variables, wanted.bytes_max) {
                Ok(values) => {
                    self.settled.arguments.note(wanted, values);
                    self.settled.arguments.refusal(wanted)
                }
                Err(BudgetExhausted) => Some(Answer::page(413).into()),
            };
        }
        let (variables, bytes_max, wanted) = (wanted.variables.clone(), wanted.bytes_max, wanted.clone());
        let read = move |body: &[u8]| reading.values(body, &variables, bytes_max);
        let then =
            move |values: Result<Result<Values, BudgetExhausted>, QueueFull>, request: &mut Request<'_>| match values {
                Ok(Ok(values)) => {
                    request.settled.arguments.note(&wanted, values);
                    request.settled.arguments.refusal(&wanted).unwrap_or(Flow::Continue)
                }
                Ok(Err(BudgetExhausted)) => Answer::page(413).into(),
                Err(full) => full.into(),
            };
        Some(self.offload_with_body(read, then))
    }
}
