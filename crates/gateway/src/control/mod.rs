//! The control thread: how a gateway starts, which events can wake it, and how its work is kept from disturbing the workers.

mod event_loop;
pub(crate) mod signals;
pub(crate) mod start;
