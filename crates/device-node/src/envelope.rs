//! The encoding of posts and verdicts between nodes: one line of JSON, then a body as it is.
//!
//! Nodes of two releases may talk while one replaces the other: an unknown key is skipped, and an unknown verdict counts as an
//! unknown outcome.

use crate::registry::NotConnected;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::Arc;
use stillgate_devices::protocol::{Body, BodyError, MessageId};
use stillgate_devices::session::{AckLevel, MessageOutcome, MessageRefusal};

#[derive(Serialize, Deserialize)]
struct PostHead<'a> {
    #[serde(borrow)]
    device: Cow<'a, str>,
    id: Cow<'a, str>,
    body: BodyKind,
    level: LevelName,
    timeout_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    idempotency: Option<Box<str>>,
}

#[derive(Serialize, Deserialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum BodyKind {
    Json,
    Text,
    Bytes,
}

#[derive(Serialize, Deserialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum LevelName {
    Written,
    Acknowledged,
    Replied,
}

/// [`PostVerdict`], without the variants that only a sender's own node uses.
#[derive(Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
enum VerdictHead {
    Written,
    Acknowledged,
    Replied { body: BodyKind },
    TimedOut { was_written: bool },
    Superseded,
    Dropped { was_written: bool },
    Ended { was_written: bool },
    RepliedBefore,
    RefusedOffline,
    RefusedFull,
    RefusedTooLong,
    NeverAcknowledges,
    BodyJson { line: usize, column: usize },
    BodyUtf8 { at: usize },
    BodyDepth,
    BodyNumber,
    BodyCbor { at: usize },
    BodyKey { at: usize },
    TooLong { bytes_max: usize },
    OtherBody,
    KeysFull,
    Unknown,
    Offline { last_seen_ms: Option<u64> },
    Away,
    Busy,
    Lost,
}

/// The answer of a node.
#[derive(Serialize, Deserialize)]
struct AnswerHead<'a> {
    /// The message that was sent before, if the request repeats an earlier one.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    id: Option<Cow<'a, str>>,
    #[serde(flatten)]
    verdict: VerdictHead,
}

/// A post as a request.
pub(super) fn write_post(post: &Post) -> Vec<u8> {
    let head = PostHead {
        device: Cow::Borrowed(&post.device),
        id: post.id.to_string().into(),
        body: kind(&post.body),
        level: match post.level {
            AckLevel::Written => LevelName::Written,
            AckLevel::Acknowledged => LevelName::Acknowledged,
            AckLevel::Replied => LevelName::Replied,
        },
        timeout_ms: post.timeout_ms,
        key: post.key.clone(),
        idempotency: post.idempotency.clone(),
    };
    join(&head, post.body.bytes())
}

/// Parses a request; `None`: it is not one of ours.
pub(super) fn read_post(bytes: &[u8]) -> Option<Post> {
    let (head, body) = split(bytes)?;
    let head: PostHead<'_> = serde_json::from_slice(head).ok()?;
    Some(Post {
        device: (&*head.device).into(),
        id: MessageId::parse(&head.id)?,
        body: body_of(head.body, body)?,
        level: match head.level {
            LevelName::Written => AckLevel::Written,
            LevelName::Acknowledged => AckLevel::Acknowledged,
            LevelName::Replied => AckLevel::Replied,
        },
        timeout_ms: head.timeout_ms,
        key: head.key,
        idempotency: head.idempotency,
    })
}

/// A verdict as an answer. `id` is that of the earlier message, if the request repeats one.
pub(super) fn write_verdict(verdict: &PostVerdict, id: Option<MessageId>) -> Vec<u8> {
    let mut body: &[u8] = b"";
    let verdict = match verdict {
        PostVerdict::Outcome(MessageOutcome::Written) => VerdictHead::Written,
        PostVerdict::Outcome(MessageOutcome::Acknowledged) => VerdictHead::Acknowledged,
        PostVerdict::Outcome(MessageOutcome::Replied(reply)) => {
            body = reply.bytes();
            VerdictHead::Replied { body: kind(reply) }
        }
        PostVerdict::Outcome(MessageOutcome::TimedOut { was_written }) => {
            VerdictHead::TimedOut { was_written: *was_written }
        }
        PostVerdict::Outcome(MessageOutcome::Superseded) => VerdictHead::Superseded,
        PostVerdict::Outcome(MessageOutcome::Dropped { was_written }) => {
            VerdictHead::Dropped { was_written: *was_written }
        }
        PostVerdict::Outcome(MessageOutcome::Ended { was_written }) => VerdictHead::Ended { was_written: *was_written },
        PostVerdict::RepliedBefore => VerdictHead::RepliedBefore,
        PostVerdict::Refused(MessageRefusal::Offline) => VerdictHead::RefusedOffline,
        PostVerdict::Refused(MessageRefusal::Full) => VerdictHead::RefusedFull,
        PostVerdict::Refused(MessageRefusal::TooLong) => VerdictHead::RefusedTooLong,
        PostVerdict::Refused(MessageRefusal::NeverAcknowledges) => VerdictHead::NeverAcknowledges,
        PostVerdict::Body(BodyError::Json { line, column }) => VerdictHead::BodyJson { line: *line, column: *column },
        PostVerdict::Body(BodyError::Utf8 { at }) => VerdictHead::BodyUtf8 { at: *at },
        PostVerdict::Body(BodyError::Depth) => VerdictHead::BodyDepth,
        PostVerdict::Body(BodyError::Number) => VerdictHead::BodyNumber,
        PostVerdict::Body(BodyError::Cbor { at }) => VerdictHead::BodyCbor { at: *at },
        PostVerdict::Body(BodyError::Key { at }) => VerdictHead::BodyKey { at: *at },
        PostVerdict::TooLong { bytes_max } => VerdictHead::TooLong { bytes_max: *bytes_max },
        PostVerdict::OtherBody => VerdictHead::OtherBody,
        PostVerdict::KeysFull => VerdictHead::KeysFull,
        PostVerdict::Unknown => VerdictHead::Unknown,
        PostVerdict::Offline { last_seen_ms } => VerdictHead::Offline { last_seen_ms: *last_seen_ms },
        PostVerdict::Away => VerdictHead::Away,
        PostVerdict::Busy => VerdictHead::Busy,
        PostVerdict::Lost => VerdictHead::Lost,
    };
    join(&AnswerHead { id: id.map(|id| id.to_string().into()), verdict }, body)
}

/// Parses an answer.
pub(super) fn read_verdict(bytes: &[u8]) -> (Option<MessageId>, PostVerdict) {
    let read = split(bytes).and_then(|(head, body)| Some((serde_json::from_slice::<AnswerHead<'_>>(head).ok()?, body)));
    let Some((head, body)) = read else { return (None, PostVerdict::Lost) };
    (head.id.and_then(|id| MessageId::parse(&id)), verdict_of(head.verdict, body))
}

fn verdict_of(head: VerdictHead, body: &[u8]) -> PostVerdict {
    let outcome = match head {
        VerdictHead::Written => MessageOutcome::Written,
        VerdictHead::Acknowledged => MessageOutcome::Acknowledged,
        VerdictHead::Replied { body: kind } => match body_of(kind, body) {
            Some(body) => MessageOutcome::Replied(body),
            None => return PostVerdict::Lost,
        },
        VerdictHead::TimedOut { was_written } => MessageOutcome::TimedOut { was_written },
        VerdictHead::Superseded => MessageOutcome::Superseded,
        VerdictHead::Dropped { was_written } => MessageOutcome::Dropped { was_written },
        VerdictHead::Ended { was_written } => MessageOutcome::Ended { was_written },
        VerdictHead::RepliedBefore => return PostVerdict::RepliedBefore,
        VerdictHead::RefusedOffline => return PostVerdict::Refused(MessageRefusal::Offline),
        VerdictHead::RefusedFull => return PostVerdict::Refused(MessageRefusal::Full),
        VerdictHead::RefusedTooLong => return PostVerdict::Refused(MessageRefusal::TooLong),
        VerdictHead::NeverAcknowledges => return PostVerdict::Refused(MessageRefusal::NeverAcknowledges),
        VerdictHead::BodyJson { line, column } => return PostVerdict::Body(BodyError::Json { line, column }),
        VerdictHead::BodyUtf8 { at } => return PostVerdict::Body(BodyError::Utf8 { at }),
        VerdictHead::BodyDepth => return PostVerdict::Body(BodyError::Depth),
        VerdictHead::BodyNumber => return PostVerdict::Body(BodyError::Number),
        VerdictHead::BodyCbor { at } => return PostVerdict::Body(BodyError::Cbor { at }),
        VerdictHead::BodyKey { at } => return PostVerdict::Body(BodyError::Key { at }),
        VerdictHead::TooLong { bytes_max } => return PostVerdict::TooLong { bytes_max },
        VerdictHead::OtherBody => return PostVerdict::OtherBody,
        VerdictHead::KeysFull => return PostVerdict::KeysFull,
        VerdictHead::Unknown => return PostVerdict::Unknown,
        VerdictHead::Offline { last_seen_ms } => return PostVerdict::Offline { last_seen_ms },
        VerdictHead::Away => return PostVerdict::Away,
        VerdictHead::Busy => return PostVerdict::Busy,
        VerdictHead::Lost => return PostVerdict::Lost,
    };
    PostVerdict::Outcome(outcome)
}

fn kind(body: &Body<'_>) -> BodyKind {
    match body {
        Body::Json(_) => BodyKind::Json,
        Body::Text(_) => BodyKind::Text,
        Body::Bytes(_) => BodyKind::Bytes,
    }
}

/// JSON was checked where it arrived.
fn body_of(kind: BodyKind, bytes: &[u8]) -> Option<Body<'static>> {
    let text = || String::from_utf8(bytes.to_vec()).ok();
    Some(match kind {
        BodyKind::Json => Body::Json(text()?.into()),
        BodyKind::Text => Body::Text(text()?.into()),
        BodyKind::Bytes => Body::Bytes(bytes.to_vec().into()),
    })
}

/// A line of JSON, followed by a body.
pub(super) fn join(head: &impl Serialize, body: &[u8]) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(head).expect("numbers, words and text become JSON");
    bytes.push(b'\n');
    bytes.extend_from_slice(body);
    bytes
}

/// The inverse of [`join`].
pub(super) fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

// A message on its way to the node that has its device, and the answer to its sender.

/// A message for one device.
#[derive(Debug, Clone)]
pub(crate) struct Post {
    pub(crate) device: Arc<str>,
    /// The node that received the request chooses it.
    pub(crate) id: MessageId,
    /// The body, encoded by the node that has the device.
    pub(crate) body: Body<'static>,
    pub(crate) level: AckLevel,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_post_arrives_as_it_was_sent() {
        for body in
            [Body::Json("{\"a\":\n1}".into()), Body::Text("\n\u{e4}".into()), Body::Bytes(vec![10, 0, 255].into())]
        {
            let post = Post {
                device: "a \"device\"\n".into(),
                id: MessageId(7),
                body,
                level: AckLevel::Replied,
                timeout_ms: 5_000,
                key: Some("k".into()),
                idempotency: None,
            };
            let read = read_post(&write_post(&post)).unwrap();
            assert_eq!(format!("{read:?}"), format!("{post:?}"));
        }
        for garbage in ["", "\n", "{}\n", "{\"device\":\"a\"}\n"] {
            assert!(read_post(garbage.as_bytes()).is_none(), "{garbage}");
        }
    }

    #[test]
    fn a_verdict_arrives_as_it_was_sent() {
        let verdicts = [
            PostVerdict::Outcome(MessageOutcome::Acknowledged),
            PostVerdict::Outcome(MessageOutcome::Replied(Body::Json("[1,\n2]".into()))),
            PostVerdict::Outcome(MessageOutcome::Ended { was_written: true }),
            PostVerdict::Refused(MessageRefusal::Full),
            PostVerdict::Body(BodyError::Json { line: 3, column: 4 }),
            PostVerdict::TooLong { bytes_max: 9 },
            PostVerdict::Offline { last_seen_ms: Some(5) },
            PostVerdict::Busy,
        ];
        for verdict in verdicts {
            for id in [None, Some(MessageId(7))] {
                assert_eq!(read_verdict(&write_verdict(&verdict, id)), (id, verdict.clone()));
            }
        }
        assert_eq!(read_verdict(b"{\"verdict\":\"of a later release\"}\n"), (None, PostVerdict::Lost));
    }
}
