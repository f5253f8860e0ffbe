//! How a request continues after a plugin's phase: at once, with an answer, or when something that it waits for is
//! available.
//!
//! ```text
//!  rewrite, access ──▶ Continue              the next plugin
//!                  ──▶ Answer                the request ends here
//!                  ──▶ Wait(future)          IO, on the worker's event loop     ┐
//!                  ──▶ Offload(work)         CPU, on a thread that serves no one ├──▶ continuation(&mut Request) ──▶ Flow
//!                  ──▶ Body(bytes_max)       the whole body of the request       ┘
//! ```
//!
//! While a request waits, its worker serves others, and its client is watched: if it disconnects, the future is
//! dropped. Borrows of the request end before that, so a continuation gets the request again, and owns what it needs of
//! the plugin (an `Arc`). It may wait again. Waiting is possible in `rewrite` and `access`.

use crate::answer::Answer;
use crate::request::Request;
use crate::work::{LocalFuture, Output, QueueFull, Work};
use std::fmt;

/// Continuation of a request that has waited.
pub type Resume = Box<dyn FnOnce(&mut Request<'_>) -> Flow>;
/// Continuation with the result, or with an error if the work was never started.
pub type ResumeWith = Box<dyn FnOnce(Result<Output, QueueFull>, &mut Request<'_>) -> Flow>;

/// How a request continues after a plugin's phase.
#[must_use]
pub enum Flow {
    /// Continues with the next plugin, then the next phase.
    Continue,
    /// Answers the request here. `header_filter`, `body_filter` and `log` of the chain still run.
    Answer(Answer),
    /// Waits for IO; made by [`Flow::wait`].
    Wait(LocalFuture<Resume>),
    /// Waits for work that would block the worker; made by [`Flow::offload`].
    Offload(Offload),
    /// Waits for the body of the request; made by [`Flow::body`].
    Body(WholeBody),
}

/// Work for a thread that does not serve requests, and the continuation.
pub struct Offload {
    /// The work.
    pub work: Work,
    /// The continuation.
    pub then: ResumeWith,
}

/// A wait for a whole body.
pub struct WholeBody {
    /// Larger bodies are refused.
    pub bytes_max: usize,
    /// The answer for a larger body.
    pub too_large: Answer,
    /// The continuation. The body is then in [`Request::whole_body`].
    pub then: Resume,
}

impl Flow {
    /// Waits for a future of this worker, and continues with its result.
    ///
    /// The future must have a time limit of its own. It is dropped if the client disconnects.
    pub fn wait<T: 'static>(
        future: impl Future<Output = T> + 'static,
        then: impl FnOnce(T, &mut Request<'_>) -> Flow + 'static,
    ) -> Flow {
        Flow::Wait(Box::pin(async move {
            let output = future.await;
            Box::new(move |request: &mut Request<'_>| then(output, request)) as Resume
        }))
    }

    /// Offloads work that may take more than 100 µs to a small pool of threads of low priority. Its queue is bounded:
    /// if it is full, `then` gets an error (`full.into()` answers 503). Work of a request that has gone meanwhile is
    /// not started.
    pub fn offload<T: Send + 'static>(
        work: impl FnOnce() -> T + Send + 'static,
        then: impl FnOnce(Result<T, QueueFull>, &mut Request<'_>) -> Flow + 'static,
    ) -> Flow {
        Flow::Offload(Offload {
            work: Box::new(move || Box::new(work()) as Output),
            then: Box::new(move |output, request| {
                let output = output.map(|output| *output.downcast::<T>().expect("what `work` above has made"));
                then(output, request)
            }),
        })
    }

    /// Waits for the whole body of the request before anything else is done with it; it is in [`Request::whole_body`]
    /// in `then`. If it is larger than `bytes_max`, the request is answered with the page of 413. The node gets the
    /// same bytes, also at a retry.
    pub fn body(bytes_max: usize, then: impl FnOnce(&mut Request<'_>) -> Flow + 'static) -> Flow {
        Flow::body_or(bytes_max, Answer::page(413), then)
    }

    /// Like [`Flow::body`], with another answer for a larger body.
    pub fn body_or(bytes_max: usize, too_large: Answer, then: impl FnOnce(&mut Request<'_>) -> Flow + 'static) -> Flow {
        Flow::Body(WholeBody { bytes_max, too_large, then: Box::new(then) })
    }
}

impl Request<'_> {
    /// Offloads work with the whole body to a thread that does not serve requests. The body is not copied, so if the
    /// queue is full it is lost, and `then` must answer.
    pub fn offload_with_body<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&[u8]) -> T + Send + 'static,
        then: impl FnOnce(Result<T, QueueFull>, &mut Request<'_>) -> Flow + 'static,
    ) -> Flow {
        let body = self.take_whole_body();
        let work = move || (work(&body), body);
        Flow::offload(work, move |done, request| {
            let done = done.map(|(done, body)| {
                request.body.restore_replacement(body);
                done
            });
            then(done, request)
        })
    }
}

impl From<QueueFull> for Flow {
    fn from(_: QueueFull) -> Flow {
        Flow::Answer(Answer::page(503))
    }
}

impl From<Answer> for Flow {
    fn from(answer: Answer) -> Flow {
        Flow::Answer(answer)
    }
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Flow::Continue => f.write_str("Continue"),
            Flow::Answer(answer) => f.debug_tuple("Answer").field(answer).finish(),
            Flow::Wait(_) => f.write_str("Wait"),
            Flow::Offload(_) => f.write_str("Offload"),
            Flow::Body(body) => f.debug_tuple("Body").field(&body.bytes_max).finish(),
        }
    }
}
