//! Connections of devices, without IO, a clock or randomness: the work of a worker, the device API and peers, as state
//! machines that a test can drive.
//!
//! ```text
//!  a device's bytes ──▶ frame ──▶ protocol ──▶ session ◀── messages of back-ends
//!                                              directory: which node has it
//! ```
//!
//! - [`frame`]: WebSocket frames (RFC 6455) as a server reads and writes them.
//! - [`protocol`]: the messages between devices and the gateway, in JSON, CBOR or bare frames.
//! - [`session`]: the unfinished messages of a device, over one connection after the other; when to ping.
//! - [`directory`]: which node has a device's newest connection, over disconnects, lost leases and a lost directory.
//!
//! # How a gateway drives it
//!
//! Each connection belongs to one worker, which owns its [`frame::FrameReader`], its [`session::Session`] and its
//! [`session::Pulse`]. Bytes of a socket go through [`frame::FrameReader::next`]; each event but a close is a sign of life
//! ([`session::Pulse::heard`]), and a whole message goes through [`protocol::DeviceProtocol::read`] to
//! [`session::Session::acknowledge`] or [`session::Session::reply`]. Errors have a close code, and their text is the
//! reason. Once per turn the worker writes the messages of [`session::Session::next_to_write`], with one
//! [`protocol::DeviceProtocol::write_message`] and [`frame::FrameHead`] each, and calls [`session::Session::written`] when
//! the kernel has taken all of it. Notices go to the waiting requests. One timer per connection fires at the earlier of
//! [`session::Session::tick`] and [`session::Pulse::beat`].
//!
//! One thread per node owns [`directory::NodeRegistrations`] and talks to the directory: a heartbeat for its lease and the
//! era, then requests at its pace. It keeps a [`directory::Effect::Disconnect`] until it is answered.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod directory;
pub mod frame;
pub mod protocol;
pub mod session;

pub use session::Generation;
