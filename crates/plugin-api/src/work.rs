//! Work elsewhere that a request may wait for: IO on the worker's event loop, and CPU on threads that serve no requests.

use std::any::Any;
use std::pin::Pin;

/// A future of one worker.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// The result of offloaded work.
pub type Output = Box<dyn Any + Send>;

/// Work for a thread that does not serve requests.
pub type Work = Box<dyn FnOnce() -> Output + Send>;

/// The queue of offloaded work is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueFull;
