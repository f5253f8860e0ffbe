//! What plugins have of their worker's event loop. The crate does no IO: the proxy implements this, tests have their own.

use crate::flow::LocalFuture;
use std::time::Duration;

/// IO on the worker's event loop, for futures of [`crate::Flow::wait`].
pub trait Io {
    /// Ready after this time, to within a millisecond or two.
    fn sleep(&self, time: Duration) -> LocalFuture<()>;
}

/// There is no event loop: nothing is ever ready at once but what takes no time.
pub(crate) struct NoIo;

impl Io for NoIo {
    fn sleep(&self, _: Duration) -> LocalFuture<()> {
        Box::pin(std::future::ready(()))
    }
}
