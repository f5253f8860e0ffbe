//! The plugins' interface to their worker's event loop. The crate does no IO: the proxy implements this, tests have
//! their own.

use crate::calls::{Call, CallError, Link, LinkTo, Reply};
use crate::work::LocalFuture;
use std::time::Duration;

/// Severity of a plugin's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Something does not work.
    Error,
    /// Something may stop working soon.
    Warn,
    /// Information.
    Info,
    /// Details for debugging.
    Debug,
}

/// IO on the worker's event loop, for futures of [`crate::Flow::wait`].
pub trait Io {
    /// Completes after this time, to within a millisecond or two.
    fn sleep(&self, time: Duration) -> LocalFuture<()>;

    /// Calls another server. Connections are kept by worker and server, and calls to a server that failed five times in
    /// a row are paused. It takes three times [`Call::timeout`] at most.
    fn call(&self, call: Call) -> LocalFuture<Result<Reply, CallError>>;

    /// Connects to a server that does not use HTTP, or returns a kept connection. Calls to a server that failed five
    /// times in a row are paused.
    fn link(&self, _to: LinkTo) -> LocalFuture<Result<Box<dyn Link>, CallError>> {
        Box::pin(std::future::ready(Err(CallError::Connect)))
    }

    /// Like [`Io::call`] without waiting: the response is dropped, and so is the call if too many are in progress,
    /// which is counted for `plugin`.
    fn send(&self, plugin: &'static str, call: Call);

    /// Runs a task that outlives its request: only for work that many requests share, with its own limits of time and
    /// number.
    fn spawn(&self, task: LocalFuture<()>);

    /// Logs a warning that something in `plugin` does not work. Callers make sure that it is not logged for each
    /// request.
    fn warn(&self, plugin: &'static str, what: &str);

    /// Whether messages of a level are logged.
    fn is_logged(&self, level: LogLevel) -> bool;

    /// Logs a message that the configuration of `plugin` requests, possibly for each request.
    fn log(&self, plugin: &'static str, level: LogLevel, text: &str);

    /// Records that a function in the configuration of `plugin` has failed: it is counted, and the reason logged.
    fn fail(&self, plugin: &'static str, why: &str);

    /// Counts a call of [`Io::send`] that its plugin could not make, such as one with too large a body.
    fn drop_send(&self, plugin: &'static str);
}

/// No event loop: time passes at once, and servers do not answer.
pub(crate) struct NoIo;

impl Io for NoIo {
    fn sleep(&self, _: Duration) -> LocalFuture<()> {
        Box::pin(std::future::ready(()))
    }

    fn call(&self, _: Call) -> LocalFuture<Result<Reply, CallError>> {
        Box::pin(std::future::ready(Err(CallError::Connect)))
    }

    fn send(&self, _: &'static str, _: Call) {}

    fn spawn(&self, _: LocalFuture<()>) {}

    fn warn(&self, _: &'static str, _: &str) {}

    fn is_logged(&self, _: LogLevel) -> bool {
        false
    }

    fn log(&self, _: &'static str, _: LogLevel, _: &str) {}

    fn fail(&self, _: &'static str, _: &str) {}

    fn drop_send(&self, _: &'static str) {}
}
