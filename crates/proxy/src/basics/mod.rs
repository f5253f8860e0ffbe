//! What everything else builds on: a worker's clock and memory, its counters, and the minimum rate at which a receiver must take
//! bytes.

pub(crate) mod buffer;
pub(crate) mod clock;
pub(crate) mod counters;
pub(crate) mod min_rate;
pub mod slow_request;
