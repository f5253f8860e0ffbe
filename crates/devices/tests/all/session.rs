//! A session as its gateway drives it, as seen by back-ends and devices.

use proptest::prelude::*;
use stillgate_devices::Generation;
use stillgate_devices::protocol::{Body, DeviceProtocol, MessageId};
use stillgate_devices::session::{
    AckError, AckLevel, Idempotency, IdempotencyError, IdempotencyLimits, Message, MessageOutcome, MessageRefusal,
    Notice, QueuePolicy, RepeatOutcome, ResumeError, ResumeToken, Session, SessionId, SessionLimits,
};

const LIMITS: SessionLimits =
    SessionLimits { queue_bytes_max: 1000, resume_ms: 120_000, policy: QueuePolicy::Refuse, acknowledges: true };

/// A session, its notices and its clock.
struct SessionHarness {
    session: Session,
    limits: SessionLimits,
    notices: Vec<Notice>,
    now_ms: u64,
}

fn begin(limits: SessionLimits) -> SessionHarness {
    let session = Session::new(SessionId(1), Generation(1));
    SessionHarness { session, limits, notices: Vec::new(), now_ms: 0 }
}

impl SessionHarness {
    /// Sends a message of 100 bytes with its overhead; its sender waits for 5 seconds.
    fn push(&mut self, id: u128, level: AckLevel, key: Option<&str>) -> Result<(), MessageRefusal> {
        let bytes = 36 - key.map_or(0, str::len);
        let encoded = DeviceProtocol::Raw.encode(&Body::Bytes(vec![b'*'; bytes].into())).unwrap();
        let key = key.map(Into::into);
        let message = Message { id: MessageId(id), encoded, key, level, deadline_ms: self.now_ms + 5_000 };
        self.session.push(message, &self.limits, &mut self.notices)
    }

    /// Writes all pending messages: ids and numbers.
    fn write(&mut self) -> Vec<(u128, u64)> {
        let mut written = Vec::new();
        while let Some(next) = self.session.next_to_write(self.now_ms) {
            written.push((next.id.0, next.seq));
        }
        self.session.on_written(&self.limits, &mut self.notices);
        written
    }

    fn acknowledge(&mut self, seq: u64) -> Result<(), AckError> {
        self.session.acknowledge(seq, &mut self.notices)
    }

    fn reply(&mut self, id: u128) -> bool {
        self.session.reply(MessageId(id), Body::Json("1".into()), &mut self.notices)
    }

    fn tick(&mut self, now_ms: u64) -> Option<u64> {
        self.now_ms = now_ms;
        self.session.tick(now_ms, &self.limits, &mut self.notices)
    }

    fn detach(&mut self) {
        self.session.detach(self.now_ms, &self.limits, &mut self.notices);
    }

    fn resume(&mut self, token: ResumeToken, generation: u64) -> Result<(), ResumeError> {
        self.session.resume(token, Generation(generation), self.now_ms, &self.limits)
    }

    /// The outcomes that senders got since the last call.
    fn learned(&mut self) -> Vec<(u128, MessageOutcome)> {
        self.notices.drain(..).map(|notice| (notice.id.0, notice.outcome)).collect()
    }
}

#[test]
fn senders_learn_what_they_wait_for() {
    let mut it = begin(LIMITS);
    it.push(1, AckLevel::Written, None).unwrap();
    it.push(2, AckLevel::Acknowledged, None).unwrap();
    it.push(3, AckLevel::Replied, None).unwrap();
    assert_eq!(it.learned(), []);
    assert_eq!(it.write(), [(1, 1), (2, 2), (3, 3)]);
    assert_eq!(it.learned(), [(1, MessageOutcome::Written)]);
    it.acknowledge(3).unwrap();
    assert_eq!(it.learned(), [(2, MessageOutcome::Acknowledged)]);
    assert!(it.reply(3));
    assert_eq!(it.learned(), [(3, MessageOutcome::Replied(Body::Json("1".into())))]);
    assert!(!it.reply(3), "the second answer to the same message");
    assert_eq!((it.session.queued_bytes(), it.tick(1_000_000)), (0, None));
}

#[test]
fn acknowledgements_are_cumulative_and_replies_are_not() {
    let mut it = begin(LIMITS);
    for id in 1..=4 {
        it.push(id, AckLevel::Acknowledged, None).unwrap();
    }
    it.write();
    assert!(it.reply(3));
    assert_eq!(it.learned(), [(3, MessageOutcome::Acknowledged)]);
    it.acknowledge(2).unwrap();
    assert_eq!(it.learned(), [(1, MessageOutcome::Acknowledged), (2, MessageOutcome::Acknowledged)]);
    it.acknowledge(1).unwrap();
    assert_eq!(it.acknowledge(5), Err(AckError { seq: 5, sent: 4 }));
    assert_eq!(it.learned(), []);
}

#[test]
fn what_was_never_sent_cannot_be_acknowledged() {
    let mut it = begin(LIMITS);
    it.push(1, AckLevel::Acknowledged, None).unwrap();
    assert_eq!(it.acknowledge(1), Err(AckError { seq: 1, sent: 0 }));
    assert!(!it.reply(1));
    assert_eq!(it.learned(), []);
}

#[test]
fn timeouts_say_whether_the_message_may_have_arrived() {
    let mut it = begin(LIMITS);
    it.push(1, AckLevel::Acknowledged, None).unwrap();
    it.write();
    it.push(2, AckLevel::Written, None).unwrap();
    assert_eq!(it.tick(4_999), Some(5_000));
    assert_eq!(it.learned(), []);
    it.tick(5_000);
    let late = |was_written| MessageOutcome::TimedOut { was_written };
    assert_eq!(it.learned(), [(1, late(true)), (2, late(false))]);
    // The second was withdrawn, as its sender was notified. The first can be acknowledged, though no sender is waiting.
    assert_eq!(it.write(), []);
    it.acknowledge(1).unwrap();
    assert_eq!((it.learned(), it.session.queued_bytes()), (vec![], 0));
}

#[test]
fn written_messages_give_way_if_nobody_waits() {
    let mut it = begin(LIMITS);
    for id in 1..=20 {
        it.push(id, AckLevel::Written, None).unwrap();
        it.write();
    }
    assert!(it.session.queued_bytes() <= 1000);
    let token = it.session.token();
    it.detach();
    it.resume(token, 2).unwrap();
    assert_eq!(it.write(), (11..=20).map(|id| (id, id as u64)).collect::<Vec<_>>(), "a gap shows the loss");
}

#[test]
fn a_full_queue_refuses() {
    let mut it = begin(LIMITS);
    for id in 1..=10 {
        it.push(id, AckLevel::Acknowledged, None).unwrap();
    }
    it.write();
    assert_eq!(it.push(11, AckLevel::Written, None), Err(MessageRefusal::Full));
    it.acknowledge(1).unwrap();
    assert_eq!(it.push(11, AckLevel::Written, None), Ok(()));
    let mut tiny = begin(SessionLimits { queue_bytes_max: 99, ..LIMITS });
    assert_eq!(tiny.push(1, AckLevel::Written, None), Err(MessageRefusal::TooLong));
}

#[test]
fn a_full_queue_drops_the_oldest() {
    let mut it = begin(SessionLimits { policy: QueuePolicy::DropOldest, ..LIMITS });
    it.push(1, AckLevel::Acknowledged, None).unwrap();
    it.write();
    for id in 2..=12 {
        it.push(id, AckLevel::Written, None).unwrap();
    }
    let dropped = |was_written| MessageOutcome::Dropped { was_written };
    assert_eq!(it.learned(), [(1, dropped(true)), (2, dropped(false))]);
    // Numbers are assigned on writing, so the device sees no gap.
    assert_eq!(it.write(), (3..=12).zip(2..=11).collect::<Vec<_>>());
}

#[test]
fn the_latest_of_a_key_remains() {
    let mut it = begin(SessionLimits { policy: QueuePolicy::LatestPerKey, ..LIMITS });
    it.push(1, AckLevel::Written, Some("a")).unwrap();
    it.write();
    it.push(2, AckLevel::Written, Some("a")).unwrap();
    it.push(3, AckLevel::Written, Some("b")).unwrap();
    it.push(4, AckLevel::Written, Some("a")).unwrap();
    assert_eq!(it.learned(), [(1, MessageOutcome::Written), (2, MessageOutcome::Superseded)]);
    assert_eq!(it.write(), [(3, 2), (4, 3)]);
    // A resume gives the latest ones only.
    let token = it.session.token();
    it.resume(token, 2).unwrap();
    assert_eq!(it.write(), [(3, 2), (4, 3)]);
}

#[test]
fn a_resume_gives_what_was_not_acknowledged() {
    let mut it = begin(LIMITS);
    for id in 1..=3 {
        it.push(id, AckLevel::Acknowledged, None).unwrap();
    }
    it.write();
    it.acknowledge(1).unwrap();
    it.push(4, AckLevel::Written, None).unwrap();
    let token = it.session.token();
    it.detach();
    assert_eq!(it.push(5, AckLevel::Written, None), Err(MessageRefusal::Offline));
    assert!(it.session.next_to_write(0).is_none());
    assert_eq!(it.resume(ResumeToken { session: SessionId(9), ..token }, 2), Err(ResumeError::OtherSession));
    it.resume(token, 2).unwrap();
    assert_eq!(it.resume(token, 3), Err(ResumeError::Stale), "an older copy of the token");
    assert_eq!(it.write(), [(2, 2), (3, 3), (4, 4)]);
    it.acknowledge(4).unwrap();
    let expected = [
        (1, MessageOutcome::Acknowledged),
        (4, MessageOutcome::Written),
        (2, MessageOutcome::Acknowledged),
        (3, MessageOutcome::Acknowledged),
    ];
    assert_eq!(it.learned(), expected);
}

#[test]
fn a_session_ends_when_its_device_stays_away() {
    let mut it = begin(LIMITS);
    it.push(1, AckLevel::Replied, None).unwrap();
    it.write();
    it.acknowledge(1).unwrap();
    it.detach();
    let token = it.session.token();
    it.now_ms = 120_000;
    assert_eq!(it.resume(token, 2), Err(ResumeError::Over));
    it.tick(120_000);
    assert!(it.session.is_over());
    assert_eq!(it.learned(), [(1, MessageOutcome::Ended { was_written: true })]);
}

#[test]
fn written_messages_stay_for_two_minutes() {
    let mut it = begin(LIMITS);
    it.push(1, AckLevel::Written, None).unwrap();
    it.write();
    assert_eq!(it.tick(119_999), Some(120_000));
    assert_eq!((it.tick(120_000), it.session.queued_bytes()), (None, 0));
}

#[test]
fn a_session_moves_with_its_device() {
    let mut it = begin(LIMITS);
    for id in 1..=3 {
        it.push(id, AckLevel::Acknowledged, None).unwrap();
    }
    it.session.next_to_write(0).unwrap();
    it.session.next_to_write(0).unwrap();
    it.acknowledge(1).unwrap();
    let token = it.session.token();
    let carried = it.session.carry(token, &mut it.notices).unwrap();
    let ended = |was_written| MessageOutcome::Ended { was_written };
    // Unwritten messages do not move, so that they certainly have not arrived.
    assert_eq!(it.learned(), [(1, MessageOutcome::Acknowledged), (2, ended(true)), (3, ended(false))]);
    assert!(it.session.carry(token, &mut it.notices).is_err());
    let mut there = SessionHarness { session: Session::from_carried(carried, Generation(2), 0), ..begin(LIMITS) };
    there.push(4, AckLevel::Acknowledged, None).unwrap();
    assert_eq!(there.write(), [(2, 2), (4, 3)]);
    assert_eq!(there.session.token(), ResumeToken { generation: Generation(2), ..token });
}

#[test]
fn raw_devices_have_nothing_to_resume() {
    let mut it = begin(SessionLimits { acknowledges: false, ..LIMITS });
    assert_eq!(it.push(1, AckLevel::Acknowledged, None), Err(MessageRefusal::NeverAcknowledges));
    it.push(1, AckLevel::Written, None).unwrap();
    it.write();
    it.push(2, AckLevel::Written, None).unwrap();
    it.detach();
    assert!(it.session.is_over());
    assert_eq!(it.learned(), [(1, MessageOutcome::Written), (2, MessageOutcome::Ended { was_written: false })]);
}

#[test]
fn repeated_requests_are_sent_once() {
    let limits = IdempotencyLimits { keep_ms: 600_000, bytes_max: 400 };
    let mut table = Idempotency::new((1, 2));
    let (a, b, c) = (("device", "a"), ("device", "b"), ("device", "c"));
    let [one, two] = [MessageId(1), MessageId(2)];
    assert_eq!(table.begin(a, b"on", one, 0, limits), Ok(None));
    assert_eq!(table.begin(a, b"on", two, 0, limits), Ok(Some((one, RepeatOutcome::Pending))));
    assert_eq!(table.begin(a, b"off", two, 0, limits), Err(IdempotencyError::OtherBody));
    assert_eq!(table.begin(("devic", "ea"), b"on", two, 0, limits), Ok(None), "not the same pair");
    table.cancel(("devic", "ea"));
    let replied = MessageOutcome::Replied(Body::Json("1".into()));
    table.finish(a, &replied, limits);
    assert_eq!(table.begin(a, b"on", two, 599_999, limits), Ok(Some((one, RepeatOutcome::Done(replied)))));
    // A message that did not arrive may be sent again.
    assert_eq!(table.begin(b, b"on", two, 0, limits), Ok(None));
    assert_eq!(table.begin(c, b"on", two, 0, limits), Err(IdempotencyError::Full));
    table.finish(b, &MessageOutcome::TimedOut { was_written: false }, limits);
    assert_eq!(table.begin(b, b"on", two, 0, limits), Ok(None));
    table.finish(b, &MessageOutcome::Replied(Body::Bytes(vec![0; 200].into())), limits);
    assert_eq!(table.begin(b, b"on", one, 0, limits), Ok(Some((two, RepeatOutcome::RepliedBefore))));
    assert_eq!(table.begin(a, b"off", two, 600_000, limits), Ok(None), "ten minutes later");
    assert!(table.bytes() <= 400);
}

/// A step of a session's life.
#[derive(Debug, Clone)]
enum Step {
    Push(AckLevel),
    Write,
    Acknowledge(prop::sample::Index),
    Reply(prop::sample::Index),
    Pass(u64),
    Reconnect,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let level = prop::sample::select(vec![AckLevel::Written, AckLevel::Acknowledged, AckLevel::Replied]);
    let step = prop_oneof![
        4 => level.prop_map(Step::Push),
        3 => Just(Step::Write),
        2 => any::<prop::sample::Index>().prop_map(Step::Acknowledge),
        2 => any::<prop::sample::Index>().prop_map(Step::Reply),
        1 => prop_oneof![0u64..6_000, Just(60_000u64)].prop_map(Step::Pass),
        1 => Just(Step::Reconnect),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn senders_are_always_notified_once_and_truthfully(steps in steps(), policy in 0..3u8) {
        let policy = [QueuePolicy::Refuse, QueuePolicy::DropOldest, QueuePolicy::LatestPerKey][usize::from(policy)];
        let mut it = begin(SessionLimits { policy, ..LIMITS });
        let (mut pushed, mut written, mut told) = (Vec::new(), Vec::<(u128, u64)>::new(), std::collections::HashMap::new());
        let (mut acknowledged, mut replied) = (0u64, std::collections::HashSet::new());
        for (step, id) in steps.into_iter().zip(1u128..) {
            match step {
                Step::Push(level) => pushed.extend(it.push(id, level, None).is_ok().then_some(id)),
                Step::Write => written.extend(it.write()),
                Step::Acknowledge(up_to) => {
                    let highest = written.iter().map(|(_, seq)| *seq).max().unwrap_or(0);
                    let seq = up_to.index(highest as usize + 1) as u64;
                    it.acknowledge(seq).unwrap();
                    acknowledged = acknowledged.max(seq);
                }
                Step::Reply(which) if !written.is_empty() => {
                    let (id, _) = written[which.index(written.len())];
                    replied.insert(id);
                    it.reply(id);
                }
                Step::Reply(_) => {}
                Step::Pass(ms) => drop(it.tick(it.now_ms + ms)),
                Step::Reconnect => {
                    let token = it.session.token();
                    it.detach();
                    it.resume(token, token.generation.0 + 1).unwrap();
                }
            }
            prop_assert!(it.session.queued_bytes() <= 1000);
            for (id, outcome) in it.learned() {
                let seq = written.iter().find(|(written, _)| *written == id).map(|(_, seq)| *seq);
                match &outcome {
                    MessageOutcome::Written => prop_assert!(seq.is_some()),
                    MessageOutcome::Acknowledged => {
                        prop_assert!(seq.is_some_and(|seq| seq <= acknowledged) || replied.contains(&id));
                    }
                    MessageOutcome::Replied(_) => prop_assert!(replied.contains(&id)),
                    MessageOutcome::TimedOut { was_written } | MessageOutcome::Dropped { was_written } | MessageOutcome::Ended { was_written } => {
                        prop_assert_eq!(*was_written, seq.is_some());
                    }
                    MessageOutcome::Superseded => prop_assert!(false, "no key was given"),
                }
                prop_assert!(told.insert(id, outcome).is_none(), "notified twice");
            }
        }
        it.session.end(&mut it.notices);
        told.extend(it.learned());
        prop_assert_eq!(told.len(), pushed.len());
        // A message that was reported as undelivered is never written afterwards.
        for (id, _) in written {
            let is_undelivered = matches!(
                told[&id],
                MessageOutcome::TimedOut { was_written: false } | MessageOutcome::Dropped { was_written: false } | MessageOutcome::Ended { was_written: false }
            );
            prop_assert!(!is_undelivered);
        }
    }
}
