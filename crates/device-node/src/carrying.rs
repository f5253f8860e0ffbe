//! A session on its way to the node that its device has come back to.
//!
//! The old node ends the session and hands it over. Messages that the device has not acknowledged are sent again by the new node;
//! callers still waiting at the old node are answered 504. If the answer is lost, so is the session, and the device starts a new one.

use super::clock::session_ms;
use super::envelope::{join, split};
use super::node::DeviceNode;
use super::peers::{CARRY, PATIENCE};
use super::registry::SharedRegistry;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use stillgate_devices::protocol::{EncodedBody, MessageId};
use stillgate_devices::session::{OutgoingMessage, ResumeToken, Session, SessionTransfer};
use tokio::time::sleep;

/// How long to wait for the end of the device's older connection, which has been requested.
const ENDING_MS: u64 = 1_500;
const ENDING_LOOK: Duration = Duration::from_millis(10);

/// The request for a session.
#[derive(Serialize, Deserialize)]
struct SessionRequest {
    device: String,
    token: String,
}

/// A session, followed by its messages.
#[derive(Serialize, Deserialize)]
struct CarriedSession {
    sent: u64,
    messages: Vec<GivenMessage>,
}

#[derive(Serialize, Deserialize)]
struct GivenMessage {
    id: String,
    seq: u64,
    bytes: usize,
    is_text: bool,
}

/// Fetches the session that a device wants to resume from the node that has it.
pub(super) async fn fetch(shared: &SharedRegistry, device: &str, token: ResumeToken) -> Option<Session> {
    let wanted = SessionRequest { device: device.to_owned(), token: token.to_string() };
    let given = shared.ask_any(CARRY, serde_json::to_vec(&wanted).ok()?.into(), PATIENCE).await?;
    let carried = read(&given, token)?;
    Some(Session::from_carried(carried, token.generation, session_ms()))
}

/// Gives a session away; `None`: it is not here.
pub(super) async fn give(node: &DeviceNode, wanted: &[u8]) -> Option<Vec<u8>> {
    let SessionRequest { device, token } = serde_json::from_slice(wanted).ok()?;
    let token = ResumeToken::parse(&token)?;
    let until_ms = session_ms() + ENDING_MS;
    loop {
        {
            let mut state = node.state();
            if let Some((mut session, _)) = state.away.take(&device, token) {
                let mut notices = Vec::new();
                let carried = session.carry(token, &mut notices);
                state.tell(notices);
                return carried.ok().map(|carried| write(&carried));
            }
            let may_come = state.devices.contains_key(&*device) || state.ending.contains_key(&*device);
            if !may_come || session_ms() >= until_ms {
                return None;
            }
        }
        sleep(ENDING_LOOK).await;
    }
}

fn write(carried: &SessionTransfer) -> Vec<u8> {
    let messages = carried.messages.iter().map(|OutgoingMessage { id, seq, encoded }| GivenMessage {
        id: id.to_string(),
        seq: *seq,
        bytes: encoded.len(),
        is_text: encoded.is_text(),
    });
    let bytes: Vec<u8> = carried.messages.iter().flat_map(|message| message.encoded.as_bytes()).copied().collect();
    join(&CarriedSession { sent: carried.sent, messages: messages.collect() }, &bytes)
}

fn read(given: &[u8], token: ResumeToken) -> Option<SessionTransfer> {
    let (head, mut bytes) = split(given)?;
    let CarriedSession { sent, messages } = serde_json::from_slice(head).ok()?;
    let mut read = Vec::with_capacity(messages.len());
    for message in messages {
        let (encoded, behind) = bytes.split_at_checked(message.bytes)?;
        let encoded = EncodedBody::from_parts(encoded, message.is_text);
        read.push(OutgoingMessage { id: MessageId::parse(&message.id)?, seq: message.seq, encoded });
        bytes = behind;
    }
    Some(SessionTransfer { id: token.session, sent, messages: read })
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_devices::Generation;
    use stillgate_devices::session::SessionId;

    #[test]
    fn a_session_arrives_as_it_was_given() {
        let message = |id, seq, bytes: &[u8], is_text| OutgoingMessage {
            id: MessageId(id),
            seq,
            encoded: EncodedBody::from_parts(bytes, is_text),
        };
        let messages = vec![message(7, 3, b"\n{}", true), message(8, 4, b"", true), message(9, 5, &[0, 255], false)];
        let carried = SessionTransfer { id: SessionId(5), sent: 5, messages };
        let token = ResumeToken { session: SessionId(5), generation: Generation(1) };
        let given = write(&carried);
        assert_eq!(format!("{:?}", read(&given, token)), format!("{:?}", Some(carried)));
        assert!(read(&given[..given.len() - 1], token).is_none() && read(b"", token).is_none());
    }
}
