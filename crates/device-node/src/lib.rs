//! One node of devices: its connected devices, and its API for back-ends.
//!
//! ```text
//!  back-end ─▶ api ─▶ Node::send(Post) ─▶ registry: where is it? ─▶ here ─▶ Command ─▶ worker ─▶ device
//!                                                                └▶ there ─▶ peers ═ HTTP/2 ═▶ Node::receive of that node
//!  device ─▶ worker ─▶ Report ─▶ reports ─▶ Node: who is there, who waits for what
//! ```
//!
//! All of it is on one thread, whose event loop serves the API and takes what the workers report. It holds no lock while it waits
//! for something, so its lock is never waited for; it is there because the server's handlers may be sent to other threads.

#![cfg_attr(test, allow(clippy::unwrap_used))]
#![forbid(unsafe_code)]

mod api;
mod carrying;
mod clock;
mod envelope;
mod jobs;
mod node;
mod peers;
mod presence;
mod registry;
mod reports;
mod thread;

pub use jobs::TakeoverNotice;
pub use thread::{DeviceThread, NodeParameters, PeerListener, listen, problem, reached_at};
