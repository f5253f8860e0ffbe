//! Arguments in the body of a request, for conditions and texts that name them: they are waited for before they are asked for.
//!
//! ```text
//!   Arguments (of a filter, of a plugin) ── Request::await_arguments ──▶ None: they are known
//!                                                                    ──▶ Flow::Body ──▶ read here, or on a thread for such work
//! ```
//!
//! Of a body nothing is kept but the values that are asked for, none longer than [`VALUE_BYTES_MAX`]; a longer one is as if it were
//! not there. They are those of the body that was here when they were first asked for, whatever becomes of it behind.

mod reading;

use crate::answer::Answer;
use crate::flow::{Flow, QueueFull};
use crate::json::Exhausted;
use crate::request::Request;
use reading::Reading;
use std::sync::Arc;
use stillgate_route::Variable;
use stillgate_wire::FieldName;

/// Bytes of a value that is kept.
pub const VALUE_BYTES_MAX: usize = 64 * 1024;
/// A longer body is read on a thread that serves no requests.
const SHORT_BYTES_MAX: usize = 8 * 1024;

const CONTENT_TYPE: FieldName<'static> = FieldName::constant("Content-Type");

/// Arguments that somebody asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arguments {
    /// In the body, each once.
    variables: Arc<[Variable]>,
    bytes_max: usize,
}

impl Arguments {
    /// Of the variables that `each` visits, those in the body, which may have so many bytes; `None`: there are none.
    pub fn among(each: impl FnOnce(&mut dyn FnMut(&Variable)), bytes_max: usize) -> Option<Arguments> {
        let mut variables = Vec::new();
        each(&mut |variable| {
            let is_in_body = matches!(variable, Variable::PostArg(_) | Variable::BodyArg(_));
            if is_in_body && !variables.contains(variable) {
                variables.push(variable.clone());
            }
        });
        (!variables.is_empty()).then(|| Arguments { variables: variables.into(), bytes_max })
    }
}

/// A value each; `None`: the body has none.
type Values = Vec<Option<Box<[u8]>>>;

/// Arguments that are known of one request.
#[derive(Debug, Default)]
pub(crate) struct Known(Vec<(Arc<[Variable]>, Values)>);

impl Known {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn value(&self, variable: &Variable) -> Option<&[u8]> {
        self.find(variable)?.as_deref()
    }

    fn find(&self, variable: &Variable) -> Option<&Option<Box<[u8]>>> {
        self.0.iter().find_map(|(of, values)| values.get(of.iter().position(|of| of == variable)?))
    }

    fn note(&mut self, of: &Arguments, values: Values) {
        self.0.push((of.variables.clone(), values));
    }
}

impl Request<'_> {
    /// What is to be waited for before the arguments can be asked for; it ends with [`Flow::Continue`]. `None`: nothing.
    pub fn await_arguments(&mut self, wanted: &Arguments) -> Option<Flow> {
        if wanted.variables.iter().all(|variable| self.settled.arguments.find(variable).is_some()) {
            return None;
        }
        let mut buffer = Vec::new();
        let reading = self.header(CONTENT_TYPE, &mut buffer).and_then(Reading::of);
        let reading = reading.filter(|reading| wanted.variables.iter().any(|variable| reading.may_have(variable)))?;
        if self.body_here().is_some_and(|body| body.len() <= wanted.bytes_max) {
            return self.read_arguments(wanted, reading);
        }
        let (bytes_max, wanted) = (wanted.bytes_max, wanted.clone());
        Some(Flow::body(bytes_max, move |request| request.read_arguments(&wanted, reading).unwrap_or(Flow::Continue)))
    }

    /// What the node will get, or what the client has sent where that is changed on its way.
    fn body_here(&self) -> Option<&[u8]> {
        self.whole_body().or(self.received)
    }

    fn read_arguments(&mut self, wanted: &Arguments, reading: Reading) -> Option<Flow> {
        let body = self.body_here().unwrap_or_default();
        if body.len() <= SHORT_BYTES_MAX {
            return match reading.values(body, &wanted.variables, wanted.bytes_max) {
                Ok(values) => {
                    self.settled.arguments.note(wanted, values);
                    None
                }
                Err(Exhausted) => Some(Answer::page(413).into()),
            };
        }
        let (variables, bytes_max, wanted) = (wanted.variables.clone(), wanted.bytes_max, wanted.clone());
        let read = move |body: &[u8]| reading.values(body, &variables, bytes_max);
        let then = move |values: Result<Result<Values, Exhausted>, QueueFull>, request: &mut Request<'_>| match values {
            Ok(Ok(values)) => {
                request.settled.arguments.note(&wanted, values);
                Flow::Continue
            }
            Ok(Err(Exhausted)) => Answer::page(413).into(),
            Err(full) => full.into(),
        };
        Some(self.offload_with_body(read, then))
    }
}
