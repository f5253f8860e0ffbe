//! What plugins have of the worker's event loop.

use std::time::Duration;
use stillgate_plugin::{Io, LocalFuture};

/// The event loop of the worker whose thread this is.
pub(crate) struct PluginIo;

impl Io for PluginIo {
    /// By the runtime's own timers, which know milliseconds: only requests that really wait pay for them.
    fn sleep(&self, time: Duration) -> LocalFuture<()> {
        Box::pin(tokio::time::sleep(time))
    }
}
