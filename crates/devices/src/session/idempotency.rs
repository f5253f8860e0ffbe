//! Requests that a back-end repeats with the same `Idempotency-Key`: each is sent to the device once, and all get the
//! same answer.
//!
//! One table per node, bounded in bytes. At the bound a new key is refused rather than an old one forgotten: forgetting
//! one would send its message twice. Keys, devices and bodies are kept as keyed hashes of 128 bits.

use crate::protocol::{Body, EncodedBody, MessageId};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::collections::{BTreeMap, HashMap};
use std::hash::Hasher;

/// Bytes that an entry counts besides its stored reply.
const ENTRY_BYTES: usize = 160;

/// The bounds of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdempotencyLimits {
    /// How long a key is stored, from its first request on.
    pub keep_ms: u64,
    /// Bytes of all entries, each 160 plus its stored reply.
    pub bytes_max: usize,
}

/// The outcome of an earlier message with the same key and body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RepeatOutcome {
    /// It is on its way: wait for its outcome.
    Pending,
    /// It is done.
    Done(MessageOutcome),
    /// The device has replied, but there was no room to store the reply.
    RepliedBefore,
}

/// Why a request with a key is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdempotencyError {
    /// The key was used with another body (422).
    OtherBody,
    /// No room for another key (429).
    Full,
}

#[derive(Debug)]
struct KeyEntry {
    body: u128,
    /// Id of the message that was sent.
    id: MessageId,
    /// Its place in the order: when it expires, and a number.
    order: (u64, u64),
    outcome: RepeatOutcome,
}

/// The keys of one node.
#[derive(Debug)]
pub struct Idempotency {
    seed: (u64, u64),
    entries: HashMap<u128, KeyEntry>,
    /// The keys of all entries, by the time when they expire.
    order: BTreeMap<(u64, u64), u128>,
    /// Number of the next entry.
    next: u64,
    bytes: usize,
}

impl Idempotency {
    /// An empty table. `seed` is random, so that colliding keys cannot be chosen.
    pub fn new(seed: (u64, u64)) -> Idempotency {
        Idempotency { seed, entries: HashMap::new(), order: BTreeMap::new(), next: 0, bytes: 0 }
    }

    /// Bytes of all entries.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Begins a request: `None` if its key is new, and `id` is the message to send. Otherwise the id that was sent, and
    /// its outcome so far.
    pub fn begin(
        &mut self,
        (device, key): (&str, &str),
        body: &[u8],
        id: MessageId,
        now_ms: u64,
        limits: IdempotencyLimits,
    ) -> Result<Option<(MessageId, RepeatOutcome)>, IdempotencyError> {
        self.expire(now_ms);
        let (key, body) = (self.hash(device.as_bytes(), key.as_bytes()), self.hash(body, b""));
        if let Some(known) = self.entries.get(&key) {
            return match known.body == body {
                true => Ok(Some((known.id, known.outcome.clone()))),
                false => Err(IdempotencyError::OtherBody),
            };
        }
        if self.bytes + ENTRY_BYTES > limits.bytes_max {
            return Err(IdempotencyError::Full);
        }
        let order = (now_ms.saturating_add(limits.keep_ms), self.next);
        self.next += 1;
        self.entries.insert(key, KeyEntry { body, id, order, outcome: RepeatOutcome::Pending });
        self.order.insert(order, key);
        self.bytes += ENTRY_BYTES;
        Ok(None)
    }

    /// Stores the outcome of a request's message. If the message never reaches its device, the entry is removed: the
    /// next request with its key sends it.
    pub fn finish(&mut self, (device, key): (&str, &str), outcome: &MessageOutcome, limits: IdempotencyLimits) {
        let key = self.hash(device.as_bytes(), key.as_bytes());
        if is_undelivered(outcome) {
            self.forget(key);
            return;
        }
        let Some(known) = self.entries.get_mut(&key) else { return };
        let bytes = reply_bytes(outcome);
        known.outcome = if self.bytes + bytes > limits.bytes_max {
            RepeatOutcome::RepliedBefore
        } else {
            self.bytes += bytes;
            RepeatOutcome::Done(outcome.clone())
        };
    }

    /// Removes a request whose message was refused: the next one with its key may send it.
    pub fn cancel(&mut self, (device, key): (&str, &str)) {
        let key = self.hash(device.as_bytes(), key.as_bytes());
        self.forget(key);
    }

    fn forget(&mut self, key: u128) {
        let Some(known) = self.entries.remove(&key) else { return };
        self.order.remove(&known.order);
        self.bytes -= ENTRY_BYTES;
        if let RepeatOutcome::Done(outcome) = &known.outcome {
            self.bytes -= reply_bytes(outcome);
        }
    }

    /// Removes expired entries.
    fn expire(&mut self, now_ms: u64) {
        while let Some((&(until_ms, _), &key)) = self.order.first_key_value()
            && until_ms <= now_ms
        {
            self.forget(key);
        }
    }

    fn hash(&self, first: &[u8], second: &[u8]) -> u128 {
        let mut hasher = SipHasher13::new_with_keys(self.seed.0, self.seed.1);
        // The length separates the two.
        hasher.write_usize(first.len());
        hasher.write(first);
        hasher.write(second);
        hasher.finish128().as_u128()
    }
}

fn is_undelivered(outcome: &MessageOutcome) -> bool {
    match outcome {
        MessageOutcome::Superseded => true,
        MessageOutcome::TimedOut { was_written }
        | MessageOutcome::Dropped { was_written }
        | MessageOutcome::Ended { was_written } => !was_written,
        MessageOutcome::Written | MessageOutcome::Acknowledged | MessageOutcome::Replied(_) => false,
    }
}

fn reply_bytes(outcome: &MessageOutcome) -> usize {
    match outcome {
        MessageOutcome::Replied(Body::Json(text) | Body::Text(text)) => text.len(),
        MessageOutcome::Replied(Body::Bytes(bytes)) => bytes.len(),
        _ => 0,
    }
}

// The outcome of a message, for the back-end that sent it.

/// The point that a message must reach before its sender is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckLevel {
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
    pub level: AckLevel,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancelled_keys_leave_nothing_behind() {
        let limits = IdempotencyLimits { keep_ms: 600_000, bytes_max: 100 * ENTRY_BYTES };
        let mut keys = Idempotency::new((1, 2));
        let id = MessageId::parse(&"1".repeat(32)).expect("an id");
        for number in 0..10_000u64 {
            let (key, kept) = (format!("k{number}"), format!("kept{number}"));
            assert_eq!(keys.begin(("d", &key), b"x", id, number, limits), Ok(None));
            keys.cancel(("d", &key));
            if number < 50 {
                assert_eq!(keys.begin(("d", &kept), b"x", id, number, limits), Ok(None));
            }
        }
        assert_eq!((keys.bytes(), keys.order.len(), keys.entries.len()), (50 * ENTRY_BYTES, 50, 50));
        assert_eq!(keys.begin(("d", "late"), b"x", id, 700_000, limits), Ok(None));
        assert_eq!((keys.bytes(), keys.order.len()), (ENTRY_BYTES, 1), "all others have expired");
    }
}
