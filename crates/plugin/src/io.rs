//! What plugins have of their worker's event loop. The crate does no IO: the proxy implements this, tests have their own.

use crate::calls::{Call, CallError, Reply};
use crate::flow::LocalFuture;
use crate::link::{Link, LinkTo};
use std::time::Duration;

/// How much a message of a plugin's own matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Something does not work.
    Error,
    /// Something may not work soon.
    Warn,
    /// Worth to be known.
    Info,
    /// For whoever looks for a fault.
    Debug,
}

/// IO on the worker's event loop, for futures of [`crate::Flow::wait`].
pub trait Io {
    /// Ready after this time, to within a millisecond or two.
    fn sleep(&self, time: Duration) -> LocalFuture<()>;

    /// Asks another server. Connections are kept by worker and server, and a server that failed five times in a row is left
    /// alone for a while. It takes three times [`Call::timeout`] at most.
    fn call(&self, call: Call) -> LocalFuture<Result<Reply, CallError>>;

    /// Connects to a server that speaks no HTTP, or gives a connection that was kept. One that failed five times in a row is left
    /// alone for a while.
    fn link(&self, _to: LinkTo) -> LocalFuture<Result<Box<dyn Link>, CallError>> {
        Box::pin(std::future::ready(Err(CallError::Connect)))
    }

    /// As [`Io::call`] without waiting for anything: what comes back is dropped, and so is the call where too many are under way, which
    /// is counted for `plugin`.
    fn send(&self, plugin: &'static str, call: Call);

    /// Does work that outlives the request which began it: only what many requests share, with a bound in time and number of its
    /// own.
    fn spawn(&self, task: LocalFuture<()>);

    /// Tells the log that something of `plugin` does not work. Not once for each request: callers see to that.
    fn warn(&self, plugin: &'static str, what: &str);

    /// Whether messages of a level are written anywhere.
    fn is_logged(&self, level: LogLevel) -> bool;

    /// Writes a message that the configuration of `plugin` asks for, once for each request if that says so.
    fn log(&self, plugin: &'static str, level: LogLevel, text: &str);

    /// What the configuration of `plugin` has run for a request has failed: it is counted, and the log says why.
    fn fail(&self, plugin: &'static str, why: &str);

    /// Counts a call of [`Io::send`] that its plugin could not make, such as one with too large a body.
    fn drop_send(&self, plugin: &'static str);
}

/// There is no event loop: time passes at once, and nobody answers.
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
