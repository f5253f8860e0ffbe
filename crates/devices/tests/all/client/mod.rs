//! The other side of the frames: a client that masks, and a reader's view of its bytes.

use stillgate_devices::frame::{FrameError, FrameEvent, FrameReader};

/// A reader's events, as owned values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReaderEvent {
    Text(Vec<u8>),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<(u16, String)>),
    Error(FrameError),
}

/// A masked frame with this first byte.
pub(crate) fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    match payload.len() {
        len @ 0..126 => bytes.push(0x80 | len as u8),
        len @ 126..65_536 => bytes.extend([&[0xfe], &(len as u16).to_be_bytes()[..]].concat()),
        len => bytes.extend([&[0xff], &(len as u64).to_be_bytes()[..]].concat()),
    }
    let mask = [0x37, 0xfa, 0x21, 0x3d];
    bytes.extend(mask);
    bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    bytes
}

/// A masked close frame.
pub(crate) fn close(code: u16, reason: &[u8]) -> Vec<u8> {
    frame(0x88, &[&code.to_be_bytes(), reason].concat())
}

/// Everything that a reader returns for these pieces, up to the first error.
pub(crate) fn read(message_bytes_max: u32, pieces: &[&[u8]]) -> Vec<ReaderEvent> {
    let mut reader = FrameReader::new(message_bytes_max);
    let mut seen = Vec::new();
    for piece in pieces {
        let mut buffer = piece.to_vec();
        let mut at = 0;
        while at < buffer.len() {
            match reader.next(&mut buffer[at..]) {
                Ok((taken, event)) => {
                    at += taken;
                    seen.extend(event.map(ReaderEvent::from));
                }
                Err(error) => {
                    seen.push(ReaderEvent::Error(error));
                    let after = &mut frame(0x81, b"after")[..];
                    let len = after.len();
                    assert_eq!(reader.next(after), Ok((len, None)), "nothing is read after an error");
                    return seen;
                }
            }
        }
    }
    seen
}

impl From<FrameEvent<'_>> for ReaderEvent {
    fn from(event: FrameEvent<'_>) -> ReaderEvent {
        match event {
            FrameEvent::Text(payload) => ReaderEvent::Text(payload.into_owned()),
            FrameEvent::Binary(payload) => ReaderEvent::Binary(payload.into_owned()),
            FrameEvent::Ping(payload) => ReaderEvent::Ping(payload.into_owned()),
            FrameEvent::Pong(payload) => ReaderEvent::Pong(payload.into_owned()),
            FrameEvent::Close(said) => ReaderEvent::Close(said.map(|(code, reason)| (code.number(), reason))),
        }
    }
}
