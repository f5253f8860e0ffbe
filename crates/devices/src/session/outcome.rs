//! The outcome of a message, for the back-end that sent it.

use crate::protocol::{Body, EncodedBody, MessageId};

/// The point that a message must reach before its sender is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Handed to the kernel. This does not show that the device has it.
    Written,
    /// Acknowledged by the device.
    Acknowledged,
    /// The device has replied.
    Replied,
}

/// A message for a session.
#[derive(Debug, Clone)]
pub struct Message {
    /// The id of the message.
    pub id: MessageId,
    /// Its body, for the session's protocol.
    pub encoded: EncodedBody,
    /// With [`super::QueuePolicy::LatestPerKey`], the key whose latest value it is.
    pub key: Option<Box<str>>,
    /// The level that its sender waits for.
    pub level: Level,
    /// The deadline of the wait, in milliseconds of the session's clock.
    pub deadline_ms: u64,
}

/// The outcome of a message. Reported once for each message, when its sender's wait is over.
///
/// `was_written`: whether it may have reached the device. If not, it has not, and will not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageOutcome {
    /// Handed to the kernel (202).
    Written,
    /// The device has it (200).
    Acknowledged,
    /// The device has it and replies with this (200).
    Replied(Body<'static>),
    /// No answer in time (504). If it was written, the outcome is unknown.
    TimedOut {
        /// See [`MessageOutcome`].
        was_written: bool,
    },
    /// A later message with the same key replaced it before it was written (409).
    Superseded,
    /// It made room for a later one (409).
    Dropped {
        /// See [`MessageOutcome`].
        was_written: bool,
    },
    /// Its session ended: the device connected again or elsewhere (409), or did not resume (410, or 504 if written).
    Ended {
        /// See [`MessageOutcome`].
        was_written: bool,
    },
}

/// An outcome and its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The id of the message.
    pub id: MessageId,
    /// The outcome of the message.
    pub outcome: MessageOutcome,
}
