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
pub(crate) mod values;

pub use values::{Arguments, VALUE_BYTES_MAX};

use crate::answer::Answer;
use crate::flow::Flow;
use crate::json::BudgetExhausted;
use crate::request::Request;
use crate::work::QueueFull;
use body_format::BodyFormat;
use stillgate_wire::FieldName;
use values::Values;

/// A longer body is parsed on a thread that does not serve requests.
const SHORT_BYTES_MAX: usize = 8 * 1024;

const CONTENT_TYPE: FieldName<'static> = FieldName::constant("Content-Type");
const CONTENT_ENCODING: FieldName<'static> = FieldName::constant("Content-Encoding");

impl Request<'_> {
    /// What to wait for before the arguments can be read; it ends with [`Flow::Continue`], or with an answer if one
    /// cannot be read. `None`: nothing.
    pub fn await_arguments(&mut self, wanted: &Arguments) -> Option<Flow> {
        if wanted.variables.iter().all(|variable| self.settled.arguments.find(variable).is_some()) {
            return self.settled.arguments.refusal(wanted).map(Flow::from);
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
                    self.settled.arguments.refusal(wanted).map(Flow::from)
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
                    request.settled.arguments.refusal(&wanted).map_or(Flow::Continue, Flow::from)
                }
                Ok(Err(BudgetExhausted)) => Answer::page(413).into(),
                Err(full) => full.into(),
            };
        Some(self.offload_with_body(read, then))
    }
}
