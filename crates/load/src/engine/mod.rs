//! Performs a run: threads that make requests by the schedule, and one that adds up their counts.
//!
//! The calling thread coordinates: it starts the generator threads, lets them begin together, reports each interval to
//! the observer and composes the outcome. Each generator thread has its own connections, schedule and counters, and
//! shares nothing on the path of a request. Linux only: epoll is the way to drive many connections from one thread.

mod clock;
mod connection;
mod connector;
mod coordinator;
mod descriptors;
mod error;
mod idle;
mod judge;
mod link;
mod message;
mod record;
mod response;
mod schedule;
mod session;
mod sources;
mod traffic;
mod worker;

pub use coordinator::run;
pub use error::{LoadError, PreparationPhase};
pub use link::Link;
