//! A message as it goes to the node that has its device, and what its sender is answered.

use super::registry::Gone;
use std::sync::Arc;
use stillgate_devices::protocol::{Body, BodyError, MessageId};
use stillgate_devices::session::{Level, Outcome, Refused};

/// A message for one device.
#[derive(Debug, Clone)]
pub(crate) struct Post {
    pub(crate) device: Arc<str>,
    /// Chosen by the node that was asked.
    pub(crate) id: MessageId,
    /// Encoded by the node that has the device.
    pub(crate) body: Body<'static>,
    pub(crate) level: Level,
    pub(crate) timeout_ms: u64,
    /// What it is the latest value of.
    pub(crate) key: Option<Box<str>>,
    /// Of the node that has the device.
    pub(crate) idempotency: Option<Box<str>>,
}

/// What a sender is answered.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Verdict {
    /// What became of the message.
    Outcome(Outcome),
    /// The device has replied to the first request with this key, and what it said was not kept.
    RepliedBefore,
    /// The session did not take it.
    Refused(Refused),
    /// Its body cannot be said in the device's protocol.
    Body(BodyError),
    /// More bytes than a message may have.
    TooLong { bytes_max: usize },
    /// The key was used with another body.
    OtherBody,
    /// No room for another key.
    KeysFull,
    /// Nobody has seen the device.
    Unknown,
    /// It is not connected. Of a node that has died nobody knows when its devices went.
    Offline { last_seen_ms: Option<u64> },
    /// Nobody can say now.
    Away,
    /// More waits for the device's worker than may.
    Busy,
    /// No word in time.
    Lost,
}

impl From<Gone> for Verdict {
    fn from(gone: Gone) -> Verdict {
        match gone {
            Gone::Offline { last_seen_ms } => Verdict::Offline { last_seen_ms },
            Gone::Unknown => Verdict::Unknown,
            Gone::Away => Verdict::Away,
        }
    }
}
