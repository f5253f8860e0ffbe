//! A message on its way to the node that has its device, and the answer to its sender.

use super::registry::NotConnected;
use std::sync::Arc;
use stillgate_devices::protocol::{Body, BodyError, MessageId};
use stillgate_devices::session::{Level, MessageOutcome, MessageRefusal};

/// A message for one device.
#[derive(Debug, Clone)]
pub(crate) struct Post {
    pub(crate) device: Arc<str>,
    /// The node that received the request chooses it.
    pub(crate) id: MessageId,
    /// The body, encoded by the node that has the device.
    pub(crate) body: Body<'static>,
    pub(crate) level: Level,
    pub(crate) timeout_ms: u64,
    /// The key whose latest value it is.
    pub(crate) key: Option<Box<str>>,
    /// Idempotency key, as the node that has the device knows it.
    pub(crate) idempotency: Option<Box<str>>,
}

/// The answer to a sender.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PostVerdict {
    /// The message's outcome.
    Outcome(MessageOutcome),
    /// The device has replied to the first request with this key, and its reply was not kept.
    RepliedBefore,
    /// The session did not take it.
    Refused(MessageRefusal),
    /// Its body cannot be expressed in the device's protocol.
    Body(BodyError),
    /// More bytes than a message may have.
    TooLong { bytes_max: usize },
    /// The key was used with another body.
    OtherBody,
    /// No room for another key.
    KeysFull,
    /// The device has never been seen.
    Unknown,
    /// It is not connected. If its node has died, the time at which it went is not known.
    Offline { last_seen_ms: Option<u64> },
    /// The state is not known now.
    Away,
    /// The queue for the device's worker is full.
    Busy,
    /// The outcome did not arrive in time.
    Lost,
}

impl From<NotConnected> for PostVerdict {
    fn from(gone: NotConnected) -> PostVerdict {
        match gone {
            NotConnected::Offline { last_seen_ms } => PostVerdict::Offline { last_seen_ms },
            NotConnected::Unknown => PostVerdict::Unknown,
            NotConnected::Away => PostVerdict::Away,
        }
    }
}
