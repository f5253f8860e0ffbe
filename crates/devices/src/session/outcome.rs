//! The outcome of a message, for the back-end that sent it.

use crate::protocol::{Body, Encoded, MessageId};

/// How far a message must come before its sender is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Handed to the kernel. This says nothing about the device.
    Written,
    /// The device has acknowledged it.
    Acknowledged,
    /// The device has answered.
    Replied,
}

/// A message on its way into a session.
#[derive(Debug, Clone)]
pub struct Message {
    /// Its own.
    pub id: MessageId,
    /// Its body, for the session's protocol.
    pub encoded: Encoded,
    /// Under [`super::Policy::LatestPerKey`], what it is the latest value of.
    pub key: Option<Box<str>>,
    /// The level that its sender waits for.
    pub level: Level,
    /// How long, in milliseconds of the session's clock.
    pub deadline_ms: u64,
}

/// The outcome of a message. Reported once for each message, when its sender's wait is over.
///
/// `was_written`: whether it may have reached the device. If not, it has not, and will not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Handed to the kernel (202).
    Written,
    /// The device has it (200).
    Acknowledged,
    /// The device has it and says this (200).
    Replied(Body<'static>),
    /// Nothing in time (504). If it was written, the outcome is unknown.
    TimedOut {
        /// See [`Outcome`].
        was_written: bool,
    },
    /// A later message with the same key took its place before it was written (409).
    Superseded,
    /// It made room for a later one (409).
    Dropped {
        /// See [`Outcome`].
        was_written: bool,
    },
    /// Its session ended: the device connected again or elsewhere (409), or did not come back (410, or 504 if written).
    Ended {
        /// See [`Outcome`].
        was_written: bool,
    },
}

/// An outcome and whose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The message's.
    pub id: MessageId,
    /// The outcome of the message.
    pub outcome: Outcome,
}
