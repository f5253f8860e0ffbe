//! The control thread: how a gateway is brought up, what can wake it, and what keeps its work from disturbing the workers.

mod allocator;
mod event_loop;
pub(crate) mod signals;
pub(crate) mod start;
