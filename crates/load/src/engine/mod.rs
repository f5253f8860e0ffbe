//! Doing a run: threads that make requests by the schedule, and one that adds up what they count.
//!
//! The calling thread coordinates: it starts the generator threads, gives them the word to begin together, tells the
//! observer of each interval and puts the outcome together. Each generator thread has its own connections, schedule and
//! counters, and shares nothing on the way of a request. Linux only: epoll is the way to drive many connections from one
//! thread.

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
mod self_watch;
mod session;
mod sources;
mod traffic;
mod worker;

pub use coordinator::run;
pub use error::{Before, LoadError};
pub use link::Link;
