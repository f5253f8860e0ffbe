//! One device's session: its unfinished messages, over one connection after the other.
//!
//! ```text
//!  push ──▶ [ not handed out ] ──next──▶ [ handed out ] ──ack, reply──▶ done
//!               │ superseded,                │ timed out: outcome unknown,
//!               │ dropped, timed out         │ still kept for a resume       
//! ```
//!
//! A message gets its number when it is handed out for the first time, so a device that has missed nothing sees no
//! gaps. Delivery is at least once: a device that resumes with its token gets its unacknowledged messages again, with
//! the same numbers and ids. Every sender gets one [`MessageOutcome`].
//!
//! Bytes are bounded. At the bound, written messages without a waiting sender are dropped first (a resume will then
//! show a gap in the numbers), then the [`QueuePolicy`] decides. All lists here are walked: 64 KiB hold at most 1,024
//! entries.

mod idempotency;
mod unacknowledged;

pub use idempotency::{
    AckLevel, Idempotency, IdempotencyError, IdempotencyLimits, Message, MessageOutcome, Notice, RepeatOutcome,
};

use crate::protocol::{Body, EncodedBody, MessageId, write_id};
use std::fmt;
use unacknowledged::{MessageQueue, UnacknowledgedMessage};

/// The policy for a message that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueuePolicy {
    /// It is refused (429).
    Refuse,
    /// The oldest ones make room for it.
    DropOldest,
    /// A message replaces an earlier one with its key; if it still does not fit, it is refused.
    LatestPerKey,
}

/// The bounds of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLimits {
    /// Bytes of unfinished messages, each counted with 64 more.
    pub queue_bytes_max: usize,
    /// How long a session outlives its connection, and how long a written message without a waiting sender stays for a resume.
    pub resume_ms: u64,
    /// The policy at `queue_bytes_max`.
    pub policy: QueuePolicy,
    /// Whether the device acknowledges messages: not with `raw`.
    pub acknowledges: bool,
}

/// Why a message was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageRefusal {
    /// The device is not connected (410).
    Offline,
    /// The session's bytes are full (429).
    Full,
    /// It would not fit into an empty session (413).
    TooLong,
    /// Its sender wants to wait for an acknowledgement that this device never sends (400).
    NeverAcknowledges,
}

/// Why a device could not resume its session: it gets a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResumeError {
    /// The token belongs to another session.
    OtherSession,
    /// A newer connection has already resumed.
    Stale,
    /// It has expired.
    Over,
}

/// A device acknowledged a message that was never sent to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AckError {
    /// The number of the message that it acknowledged.
    pub seq: u64,
    /// The highest number that was sent; 0 for none.
    pub sent: u64,
}

/// A message to write now.
#[derive(Debug, Clone)]
pub struct OutgoingMessage {
    /// The id of the message.
    pub id: MessageId,
    /// Its number in the session, from 1.
    pub seq: u64,
    /// Its body.
    pub encoded: EncodedBody,
}

/// The state that moves to another node with its device: the messages that were sent to it and are not acknowledged.
#[derive(Debug, Clone)]
pub struct SessionTransfer {
    /// The session.
    pub id: SessionId,
    /// The highest number that was sent; 0 for none.
    pub sent: u64,
    /// In order.
    pub messages: Vec<OutgoingMessage>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionState {
    Attached,
    Detached { since_ms: u64 },
    Over,
}

/// A device's session, on the node where it is connected or last was.
#[derive(Debug)]
pub struct Session {
    id: SessionId,
    generation: Generation,
    state: SessionState,
    /// The highest number that was handed out.
    sent: u64,
    unacknowledged: MessageQueue,
}

impl Session {
    /// A new session, for a new connection.
    pub fn new(id: SessionId, generation: Generation) -> Session {
        Session { id, generation, state: SessionState::Attached, sent: 0, unacknowledged: MessageQueue::default() }
    }

    /// A session that came from another node with its device, which is now connected here.
    pub fn from_carried(carried: SessionTransfer, generation: Generation, now_ms: u64) -> Session {
        let mut session = Session { sent: carried.sent, ..Session::new(carried.id, generation) };
        for OutgoingMessage { id, seq, encoded } in carried.messages {
            session.unacknowledged.push_entry(UnacknowledgedMessage::from_transfer(id, seq, encoded, now_ms));
        }
        session
    }

    /// Whether it can continue in another process with its connection: no sender is waiting here, and all messages were
    /// handed out.
    pub fn is_movable(&self) -> bool {
        self.state == SessionState::Attached
            && self.unacknowledged.iter().all(|entry| entry.wait.is_none() && entry.seq > 0)
    }

    /// The connection is the same as before: messages already sent are not handed out again.
    pub fn keep_handed_out(&mut self) {
        self.unacknowledged.forward();
    }

    /// The token that the device sends to resume.
    pub fn token(&self) -> ResumeToken {
        ResumeToken { session: self.id, generation: self.generation }
    }

    /// Bytes of messages that are not done.
    pub fn queued_bytes(&self) -> usize {
        self.unacknowledged.bytes()
    }

    /// Whether it has ended, and can be forgotten.
    pub fn is_over(&self) -> bool {
        self.state == SessionState::Over
    }

    /// Accepts a message, or returns why not.
    pub fn push(
        &mut self,
        message: Message,
        limits: &SessionLimits,
        notices: &mut Vec<Notice>,
    ) -> Result<(), MessageRefusal> {
        if self.state != SessionState::Attached {
            return Err(MessageRefusal::Offline);
        }
        if !limits.acknowledges && message.level != AckLevel::Written {
            return Err(MessageRefusal::NeverAcknowledges);
        }
        let bytes = MessageQueue::bytes_of(&message);
        if bytes > limits.queue_bytes_max {
            return Err(MessageRefusal::TooLong);
        }
        if let (QueuePolicy::LatestPerKey, Some(key)) = (limits.policy, &message.key) {
            self.unacknowledged.supersede(key, notices);
        }
        while self.unacknowledged.bytes() + bytes > limits.queue_bytes_max {
            let kept_for_resume = |entry: &UnacknowledgedMessage| entry.was_written() && entry.wait.is_none();
            if self.unacknowledged.take_first(kept_for_resume).is_some() {
                continue;
            }
            if limits.policy != QueuePolicy::DropOldest {
                return Err(MessageRefusal::Full);
            }
            let mut oldest = self.unacknowledged.take_first(|_| true).expect("an empty session has room, see above");
            let was_written = oldest.was_written();
            oldest.notify(MessageOutcome::Dropped { was_written }, notices);
        }
        self.unacknowledged.push(message);
        Ok(())
    }

    /// The next message to write on this connection. From here on it may have reached the device.
    pub fn next_to_write(&mut self, now_ms: u64) -> Option<OutgoingMessage> {
        if self.state != SessionState::Attached {
            return None;
        }
        let entry = self.unacknowledged.hand_out()?;
        if entry.seq == 0 {
            self.sent += 1;
            entry.seq = self.sent;
        }
        entry.handed_out_ms = now_ms;
        let encoded = entry.encoded.clone().expect("`hand_out` skips what the device has");
        Some(OutgoingMessage { id: entry.id, seq: entry.seq, encoded })
    }

    /// The kernel has accepted everything that was handed out on this connection.
    pub fn on_written(&mut self, limits: &SessionLimits, notices: &mut Vec<Notice>) {
        self.unacknowledged.retain(|entry, is_handed_out| {
            if is_handed_out && entry.wait.is_some_and(|wait| wait.level == AckLevel::Written) {
                entry.notify(MessageOutcome::Written, notices);
            }
            limits.acknowledges || !is_handed_out
        });
    }

    /// The device has all messages up to this number.
    pub fn acknowledge(&mut self, seq: u64, notices: &mut Vec<Notice>) -> Result<(), AckError> {
        if seq > self.sent {
            return Err(AckError { seq, sent: self.sent });
        }
        self.unacknowledged.retain(|entry, _| {
            if entry.seq == 0 || entry.seq > seq {
                return true;
            }
            match entry.wait.map(|wait| wait.level) {
                Some(AckLevel::Replied) => {
                    entry.encoded = None;
                    return true;
                }
                Some(AckLevel::Acknowledged) => entry.notify(MessageOutcome::Acknowledged, notices),
                Some(AckLevel::Written) => entry.notify(MessageOutcome::Written, notices),
                None => {}
            }
            false
        });
        Ok(())
    }

    /// The device has this message and replies. False if the message is no longer known: its sender has its answer, or
    /// this is the second reply to a message that came twice.
    pub fn reply(&mut self, id: MessageId, body: Body<'_>, notices: &mut Vec<Notice>) -> bool {
        let Some(mut entry) = self.unacknowledged.take_first(|entry| entry.id == id && entry.was_written()) else {
            return false;
        };
        match entry.wait.map(|wait| wait.level) {
            Some(AckLevel::Replied) => entry.notify(MessageOutcome::Replied(body.into_owned()), notices),
            Some(AckLevel::Acknowledged) => entry.notify(MessageOutcome::Acknowledged, notices),
            Some(AckLevel::Written) => entry.notify(MessageOutcome::Written, notices),
            None => return false,
        }
        true
    }

    /// The connection has ended. The session waits for the device, unless it cannot resume.
    pub fn detach(&mut self, now_ms: u64, limits: &SessionLimits, notices: &mut Vec<Notice>) {
        if self.state != SessionState::Attached {
            return;
        }
        self.state = SessionState::Detached { since_ms: now_ms };
        if !limits.acknowledges {
            self.end(notices);
        }
    }

    /// The device resumes with this token, on a connection of this generation. Its unacknowledged messages are handed
    /// out again. An older connection that has not ended yet has to be closed.
    pub fn resume(
        &mut self,
        token: ResumeToken,
        generation: Generation,
        now_ms: u64,
        limits: &SessionLimits,
    ) -> Result<(), ResumeError> {
        if token.session != self.id {
            return Err(ResumeError::OtherSession);
        }
        if token.generation != self.generation {
            return Err(ResumeError::Stale);
        }
        match self.state {
            SessionState::Over => return Err(ResumeError::Over),
            SessionState::Detached { since_ms } if now_ms >= since_ms.saturating_add(limits.resume_ms) => {
                return Err(ResumeError::Over);
            }
            SessionState::Attached | SessionState::Detached { .. } => {}
        }
        self.state = SessionState::Attached;
        self.generation = generation;
        self.unacknowledged.rewind();
        Ok(())
    }

    /// Takes over the messages of the session that the device's connection began with, before the device resumed this
    /// one: after the messages sent here, with numbers of this session when they are handed out again. The other
    /// session ends.
    pub fn absorb(&mut self, other: &mut Session) {
        for mut entry in other.unacknowledged.clear() {
            entry.forget_number();
            self.unacknowledged.push_entry(entry);
        }
        other.state = SessionState::Over;
    }

    /// The device resumes on another node: its unacknowledged messages move there, and the session ends here.
    pub fn carry(&mut self, token: ResumeToken, notices: &mut Vec<Notice>) -> Result<SessionTransfer, ResumeError> {
        if token.session != self.id {
            return Err(ResumeError::OtherSession);
        }
        if token.generation != self.generation {
            return Err(ResumeError::Stale);
        }
        if self.state == SessionState::Over {
            return Err(ResumeError::Over);
        }
        let messages = self.unacknowledged.iter().filter(|entry| entry.was_written()).filter_map(|entry| {
            let encoded = entry.encoded.clone()?;
            Some(OutgoingMessage { id: entry.id, seq: entry.seq, encoded })
        });
        let carried = SessionTransfer { id: self.id, sent: self.sent, messages: messages.collect() };
        self.end(notices);
        Ok(carried)
    }

    /// Ends it: a new session of the device has begun, or it must not be resumed.
    pub fn end(&mut self, notices: &mut Vec<Notice>) {
        self.state = SessionState::Over;
        for mut entry in self.unacknowledged.clear() {
            let was_written = entry.was_written();
            entry.notify(MessageOutcome::Ended { was_written }, notices);
        }
    }

    /// Does everything that is due, and returns when to call again.
    pub fn tick(&mut self, now_ms: u64, limits: &SessionLimits, notices: &mut Vec<Notice>) -> Option<u64> {
        if let SessionState::Detached { since_ms } = self.state
            && now_ms >= since_ms.saturating_add(limits.resume_ms)
        {
            self.end(notices);
        }
        let mut next_ms = u64::MAX;
        self.unacknowledged.retain(|entry, _| {
            if entry.wait.is_some_and(|wait| now_ms >= wait.deadline_ms) {
                let was_written = entry.was_written();
                entry.notify(MessageOutcome::TimedOut { was_written }, notices);
                // Unwritten messages are withdrawn. For messages that the device has, no sender wants the reply any
                // longer.
                if !was_written || entry.encoded.is_none() {
                    return false;
                }
            }
            let until_ms = match entry.wait {
                Some(wait) => wait.deadline_ms,
                None => entry.handed_out_ms.saturating_add(limits.resume_ms),
            };
            if now_ms < until_ms {
                next_ms = next_ms.min(until_ms);
            }
            now_ms < until_ms
        });
        if let SessionState::Detached { since_ms } = self.state {
            next_ms = next_ms.min(since_ms.saturating_add(limits.resume_ms));
        }
        (next_ms != u64::MAX).then_some(next_ms)
    }
}

impl fmt::Display for MessageRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MessageRefusal::Offline => "the device is not connected; send again when it is",
            MessageRefusal::Full => "the device's queue is full; send again later",
            MessageRefusal::TooLong => "longer than the device's queue; send less at once",
            MessageRefusal::NeverAcknowledges => {
                "this device's protocol has no acknowledgements; send with ack=written"
            }
        })
    }
}

impl std::error::Error for MessageRefusal {}

impl fmt::Display for AckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"seq\" {} was never sent, {} was the last; acknowledge what you received", self.seq, self.sent)
    }
}

impl std::error::Error for AckError {}

impl fmt::Display for ResumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ResumeError::OtherSession => "the token belongs to another session",
            ResumeError::Stale => "a newer connection has resumed this session",
            ResumeError::Over => "the session is over",
        })
    }
}

impl std::error::Error for ResumeError {}

// The token that a device keeps to resume its session.

/// 128 random bits; 32 lowercase hexadecimal digits as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId(pub u128);

/// A session, and the connection that the token was given to: a copy of an older connection's token is worthless once a
/// newer one has resumed with its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumeToken {
    /// The session.
    pub session: SessionId,
    /// Generation of the connection.
    pub generation: Generation,
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_id(f, self.0)
    }
}

impl fmt::Display for ResumeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.session, self.generation.0)
    }
}

impl ResumeToken {
    /// Reads the text of a token.
    pub fn parse(text: &str) -> Option<ResumeToken> {
        let (session, generation) = text.split_once('.')?;
        let is_plain = session.len() == 32 && session.bytes().all(|byte| byte.is_ascii_hexdigit());
        let session = is_plain.then(|| u128::from_str_radix(session, 16).ok()).flatten()?;
        let is_plain = generation.bytes().all(|byte| byte.is_ascii_digit());
        let generation = is_plain.then(|| generation.parse().ok()).flatten()?;
        Some(ResumeToken { session: SessionId(session), generation: Generation(generation) })
    }
}

// When to ping a quiet connection, and when to give up on it.
//
// Any byte from the peer is a sign of life. After `ping_interval` without one, or up to a quarter of it sooner so that
// thousands of connections that began together do not ping together, a ping is due; after another `ping_timeout` the
// peer is dead. So a dead peer is found within `ping_interval + ping_timeout` of its last byte. A sign of life is a
// single store: the connection's timer may fire early and checks again.

/// Limits in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PulseLimits {
    /// The longest silence before a ping.
    pub ping_interval_ms: u32,
    /// The longest silence after it.
    pub ping_timeout_ms: u32,
}

/// The action that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beat {
    /// Nothing before this time.
    Quiet {
        /// When to call again.
        until_ms: u64,
    },
    /// Send a ping now, and call again then.
    Ping {
        /// When to call again.
        until_ms: u64,
    },
    /// The peer has not answered: close without a close frame.
    Dead,
}

/// The pulse of one connection.
#[derive(Debug, Clone, Copy)]
pub struct Pulse {
    heard_ms: u64,
    /// When the last ping was sent; before `heard_ms` once it was answered.
    pinged_ms: Option<u64>,
    /// How much sooner than the interval the next ping is due, in 1/65536 of a quarter of it.
    sooner: u16,
}

impl Pulse {
    /// The pulse of a connection that begins now.
    pub fn new(now_ms: u64, random: u16) -> Pulse {
        Pulse { heard_ms: now_ms, pinged_ms: None, sooner: random }
    }

    /// Bytes have come from the peer.
    pub fn on_bytes(&mut self, now_ms: u64) {
        self.heard_ms = now_ms;
        self.pinged_ms = None;
    }

    /// The action that is due now. A [`Beat::Ping`] counts as sent.
    pub fn beat(&mut self, now_ms: u64, random: u16, limits: PulseLimits) -> Beat {
        if let Some(pinged_ms) = self.pinged_ms {
            let until_ms = pinged_ms.saturating_add(u64::from(limits.ping_timeout_ms));
            return if now_ms >= until_ms { Beat::Dead } else { Beat::Quiet { until_ms } };
        }
        let interval_ms = u64::from(limits.ping_interval_ms);
        let until_ms = self.heard_ms.saturating_add(interval_ms - ((interval_ms / 4 * u64::from(self.sooner)) >> 16));
        if now_ms < until_ms {
            return Beat::Quiet { until_ms };
        }
        self.pinged_ms = Some(now_ms);
        self.sooner = random;
        Beat::Ping { until_ms: now_ms.saturating_add(u64::from(limits.ping_timeout_ms)) }
    }
}

// The order of a device's connections.

/// Grows with each connection of a device, over all nodes; given by the directory. Below 2^53, so that every number type of
/// JSON and of Lua holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Generation(pub u64);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_text_is_read_back() {
        let token = ResumeToken { session: SessionId(0xabc), generation: Generation(7) };
        assert_eq!(token.to_string(), "00000000000000000000000000000abc.7");
        assert_eq!(ResumeToken::parse(&token.to_string()), Some(token));
        for text in ["", ".", "abc.7", "00000000000000000000000000000abc.", "00000000000000000000000000000abc.-7"] {
            assert_eq!(ResumeToken::parse(text), None, "{text}");
        }
    }
}

#[cfg(test)]
mod pulse_tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: PulseLimits = PulseLimits { ping_interval_ms: 60_000, ping_timeout_ms: 10_000 };

    #[test]
    fn a_peer_that_answers_lives() {
        let mut pulse = Pulse::new(0, 0);
        assert_eq!(pulse.beat(59_999, 0, LIMITS), Beat::Quiet { until_ms: 60_000 });
        assert_eq!(pulse.beat(60_000, 0, LIMITS), Beat::Ping { until_ms: 70_000 });
        assert_eq!(pulse.beat(60_001, 0, LIMITS), Beat::Quiet { until_ms: 70_000 });
        pulse.on_bytes(60_050);
        assert_eq!(pulse.beat(70_000, 0, LIMITS), Beat::Quiet { until_ms: 120_050 });
    }

    proptest! {
        #[test]
        fn a_dead_peer_is_found_in_time(heard_ms in 0u64..1_000_000, random: u16, interval in 0u32..100_000, timeout in 0u32..100_000) {
            let limits = PulseLimits { ping_interval_ms: interval, ping_timeout_ms: timeout };
            let mut pulse = Pulse::new(0, random);
            pulse.on_bytes(heard_ms);
            let (mut now_ms, mut pings) = (heard_ms, 0);
            loop {
                match pulse.beat(now_ms, random, limits) {
                    Beat::Quiet { until_ms } => {
                        prop_assert!(until_ms > now_ms);
                        now_ms = until_ms;
                    }
                    Beat::Ping { until_ms } => (now_ms, pings) = (until_ms, pings + 1),
                    Beat::Dead => break,
                }
            }
            let (interval, timeout) = (u64::from(interval), u64::from(timeout));
            prop_assert_eq!(pings, 1);
            prop_assert!(now_ms - heard_ms <= interval + timeout);
            prop_assert!(now_ms - heard_ms >= interval - interval / 4 + timeout);
        }
    }
}
