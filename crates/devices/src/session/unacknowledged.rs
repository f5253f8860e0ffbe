//! The unfinished messages of a session: in order, bounded in bytes.
//!
//! ```text
//!  front                                                     back
//!  ┌──────────────────────────────┬─────────────┬─────────────┐
//!  │ handed out on this connection│ handed out  │ never handed│
//!  │                              │ on an older │ out: seq 0  │
//!  └──────────────────────────────┴─────────────┴─────────────┘
//!                          cursor ▲
//! ```

use super::idempotency::{AckLevel, Message, MessageOutcome, Notice};
use crate::protocol::{EncodedBody, MessageId};
use std::collections::VecDeque;

/// Bytes that an entry counts besides its contents, so that messages without any are bounded, too.
pub(super) const ENTRY_OVERHEAD_BYTES: usize = 64;

/// The level that a sender waits for, and its deadline.
#[derive(Debug, Clone, Copy)]
pub(super) struct AcknowledgementWait {
    pub(super) level: AckLevel,
    pub(super) deadline_ms: u64,
}

#[derive(Debug)]
pub(super) struct UnacknowledgedMessage {
    pub(super) id: MessageId,
    /// 0 until it is handed out for the first time in this session.
    pub(super) seq: u64,
    /// It was handed out in its former session.
    was_out: bool,
    /// `None` once the device has it, while its sender waits for the reply.
    pub(super) encoded: Option<EncodedBody>,
    key: Option<Box<str>>,
    /// `None` once its sender has been notified.
    pub(super) wait: Option<AcknowledgementWait>,
    /// When it was last handed out.
    pub(super) handed_out_ms: u64,
}

impl UnacknowledgedMessage {
    pub(super) fn from_transfer(id: MessageId, seq: u64, encoded: EncodedBody, now_ms: u64) -> UnacknowledgedMessage {
        UnacknowledgedMessage {
            id,
            seq,
            was_out: false,
            encoded: Some(encoded),
            key: None,
            wait: None,
            handed_out_ms: now_ms,
        }
    }

    pub(super) fn was_written(&self) -> bool {
        self.was_out || self.seq > 0
    }

    /// It moves to another session.
    pub(super) fn forget_number(&mut self) {
        self.was_out = self.was_written();
        self.seq = 0;
    }

    fn bytes(&self) -> usize {
        let key = self.key.as_ref().map_or(0, |key| key.len());
        ENTRY_OVERHEAD_BYTES + key + self.encoded.as_ref().map_or(0, EncodedBody::len)
    }

    /// Notifies its sender, if it still waits.
    pub(super) fn notify(&mut self, outcome: MessageOutcome, notices: &mut Vec<Notice>) {
        if self.wait.take().is_some() {
            notices.push(Notice { id: self.id, outcome });
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct MessageQueue {
    entries: VecDeque<UnacknowledgedMessage>,
    /// Number of entries at the front that were handed out on this connection, or need not be.
    cursor: usize,
    /// The sum over the entries.
    bytes: usize,
}

impl MessageQueue {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &UnacknowledgedMessage> {
        self.entries.iter()
    }

    /// The bytes that a message counts.
    pub(super) fn bytes_of(message: &Message) -> usize {
        ENTRY_OVERHEAD_BYTES + message.key.as_ref().map_or(0, |key| key.len()) + message.encoded.len()
    }

    pub(super) fn push(&mut self, message: Message) {
        let Message { id, encoded, key, level, deadline_ms } = message;
        let wait = Some(AcknowledgementWait { level, deadline_ms });
        self.push_entry(UnacknowledgedMessage {
            id,
            seq: 0,
            was_out: false,
            encoded: Some(encoded),
            key,
            wait,
            handed_out_ms: 0,
        });
    }

    pub(super) fn push_entry(&mut self, entry: UnacknowledgedMessage) {
        self.bytes += entry.bytes();
        self.entries.push_back(entry);
    }

    /// The next entry to hand out on this connection.
    pub(super) fn hand_out(&mut self) -> Option<&mut UnacknowledgedMessage> {
        let skip = self.entries.iter().skip(self.cursor).take_while(|entry| entry.encoded.is_none()).count();
        self.cursor += skip;
        let entry = self.entries.get_mut(self.cursor)?;
        self.cursor += 1;
        Some(entry)
    }

    /// All unfinished messages are to be handed out again, in the same order.
    pub(super) fn rewind(&mut self) {
        self.cursor = 0;
    }

    /// Everything was handed out on this connection.
    pub(super) fn forward(&mut self) {
        self.cursor = self.entries.len();
    }

    /// Keeps the entries for which `keep` returns true. It may shorten them.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&mut UnacknowledgedMessage, bool) -> bool) {
        let (mut index, mut cursor, mut bytes) = (0, self.cursor, 0);
        let before = self.cursor;
        self.entries.retain_mut(|entry| {
            let is_handed_out = index < before;
            index += 1;
            let is_kept = keep(entry, is_handed_out);
            match is_kept {
                true => bytes += entry.bytes(),
                false => cursor -= usize::from(is_handed_out),
            }
            is_kept
        });
        (self.cursor, self.bytes) = (cursor, bytes);
    }

    /// Removes the first entry that `is_it`.
    pub(super) fn take_first(
        &mut self,
        is_it: impl FnMut(&UnacknowledgedMessage) -> bool,
    ) -> Option<UnacknowledgedMessage> {
        let index = self.entries.iter().position(is_it)?;
        let entry = self.entries.remove(index)?;
        self.cursor -= usize::from(index < self.cursor);
        self.bytes -= entry.bytes();
        Some(entry)
    }

    /// Removes messages that a later one with this key makes obsolete: those not handed out yet, and those without a
    /// waiting sender.
    pub(super) fn supersede(&mut self, key: &str, notices: &mut Vec<Notice>) {
        self.retain(|entry, _| {
            let is_worthless = entry.key.as_deref() == Some(key) && (!entry.was_written() || entry.wait.is_none());
            if is_worthless {
                entry.notify(MessageOutcome::Superseded, notices);
            }
            !is_worthless
        });
    }

    /// Removes everything.
    pub(super) fn clear(&mut self) -> VecDeque<UnacknowledgedMessage> {
        (self.cursor, self.bytes) = (0, 0);
        std::mem::take(&mut self.entries)
    }
}
