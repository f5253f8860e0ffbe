//! How a request goes on after a plugin's phase: at once, with an answer, or when something that it waits for is here.
//!
//! ```text
//!  rewrite, access ──▶ Continue              the next plugin
//!                  ──▶ Answer                the request ends here
//!                  ──▶ Wait(future)          IO, on the worker's event loop     ┐
//!                  ──▶ Offload(work)         CPU, on a thread that serves no one ├──▶ continuation(&mut Request) ──▶ Flow
//!                  ──▶ Body(bytes_max)       the whole body of the request       ┘
//! ```
//!
//! While a request waits, its worker serves others, and its client is watched: if it goes away, the future is dropped. What was
//! borrowed from the request is gone by then, so a continuation is given the request again, and brings along what it needs of
//! the plugin (an `Arc`). It may wait once more. Waiting is possible in `rewrite` and `access`.

use crate::answer::Answer;
use crate::request::Request;
use std::any::Any;
use std::fmt;
use std::pin::Pin;

/// A future of one worker.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;
/// What a plugin does with its request when it has waited.
pub type Resume = Box<dyn FnOnce(&mut Request<'_>) -> Flow>;
/// What comes of work that was offloaded.
pub type Output = Box<dyn Any + Send>;
/// The same with what came of it, or without where it was never begun.
pub type ResumeWith = Box<dyn FnOnce(Result<Output, QueueFull>, &mut Request<'_>) -> Flow>;

/// How a request goes on after a plugin's phase.
#[must_use]
pub enum Flow {
    /// The next plugin, then the next phase.
    Continue,
    /// The request is answered here. `header_filter`, `body_filter` and `log` of the chain still run.
    Answer(Answer),
    /// The request waits for IO; made by [`Flow::wait`].
    Wait(LocalFuture<Resume>),
    /// The request waits for work that would hold the worker up; made by [`Flow::offload`].
    Offload(Offload),
    /// The request waits for its body; made by [`Flow::body`].
    Body(WholeBody),
}

/// Work for a thread that serves no requests.
pub type Work = Box<dyn FnOnce() -> Output + Send>;

/// Work for a thread that serves no requests, and what is done with its result.
pub struct Offload {
    /// The work.
    pub work: Work,
    /// What is done then.
    pub then: ResumeWith,
}

/// As much work waits already as may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueFull;

/// A body that is waited for as a whole.
pub struct WholeBody {
    /// A larger one is refused.
    pub bytes_max: usize,
    /// What it is answered with.
    pub too_large: Answer,
    /// What is done when it is here. [`Request::whole_body`] has it then.
    pub then: Resume,
}

impl Flow {
    /// Waits for a future of this worker, and goes on with what it gives.
    ///
    /// The future must have a bound in time of its own. It is dropped where the client goes away.
    pub fn wait<T: 'static>(
        future: impl Future<Output = T> + 'static,
        then: impl FnOnce(T, &mut Request<'_>) -> Flow + 'static,
    ) -> Flow {
        Flow::Wait(Box::pin(async move {
            let output = future.await;
            Box::new(move |request: &mut Request<'_>| then(output, request)) as Resume
        }))
    }

    /// Has work done that may take more than 100 µs, by a small pool of threads of low priority. Its queue is bounded: where
    /// it is full, `then` is told (`full.into()` answers 503). Work whose request has gone meanwhile is not begun.
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

    /// Waits for the whole body of the request before anything else is done with it; [`Request::whole_body`] has it in `then`. Where
    /// it is larger than `bytes_max` the request is answered with the page of 413. What was kept is what the node gets, also at a
    /// retry.
    pub fn body(bytes_max: usize, then: impl FnOnce(&mut Request<'_>) -> Flow + 'static) -> Flow {
        Flow::body_or(bytes_max, Answer::page(413), then)
    }

    /// The same with another answer where the body is larger.
    pub fn body_or(bytes_max: usize, too_large: Answer, then: impl FnOnce(&mut Request<'_>) -> Flow + 'static) -> Flow {
        Flow::Body(WholeBody { bytes_max, too_large, then: Box::new(then) })
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
