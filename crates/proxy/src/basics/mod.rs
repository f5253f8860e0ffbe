//! What everything else stands on: a worker's clock and its memory, its counts, the least rate of whoever takes bytes.

pub(crate) mod buffer;
pub(crate) mod clock;
pub(crate) mod counters;
pub mod slow_request;
pub(crate) mod text;
pub(crate) mod uptake;
