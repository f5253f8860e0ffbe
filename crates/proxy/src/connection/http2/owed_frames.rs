//! Frames that the peer is owed because `h2` did not see what it sent, or saw it rewritten; they go out between those of `h2`.

use super::bounds::STREAMS_MAX;
use super::frames::kind;

/// Streams that may be owed something at once. A peer that needs more does not read what it is sent.
const STREAMS_OWED_MAX: usize = 2 * STREAMS_MAX as usize;
/// RFC 9113 section 7.
const FLOW_CONTROL_ERROR: u32 = 3;

/// Frames that one side of a connection is owed.
#[derive(Debug, Default)]
pub(super) struct OwedFrames {
    /// Bytes by which windows must grow: the connection's, and those of streams.
    connection: u32,
    windows: Vec<(u32, u32)>,
    /// Streams whose window was overflowed.
    resets: Vec<u32>,
    /// More was owed than can be remembered.
    pub(super) is_too_much: bool,
}

impl OwedFrames {
    /// Flow-controlled bytes that `h2` has not seen.
    pub(super) fn window(&mut self, stream: u32, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.connection = self.connection.saturating_add(bytes);
        if let Some((_, owed)) = self.windows.iter_mut().find(|window| window.0 == stream) {
            *owed = owed.saturating_add(bytes);
        } else if self.windows.len() < STREAMS_OWED_MAX {
            self.windows.push((stream, bytes));
        } else {
            self.is_too_much = true;
        }
    }

    /// Resets a stream that `h2` believes to have been ended by the peer.
    pub(super) fn reset(&mut self, stream: u32) {
        match self.resets.len() < STREAMS_OWED_MAX {
            true => self.resets.push(stream),
            false => self.is_too_much = true,
        }
    }

    /// Whether nothing is owed.
    pub(super) fn is_empty(&self) -> bool {
        self.connection == 0 && self.resets.is_empty()
    }

    /// Appends all frames.
    pub(super) fn write(&mut self, out: &mut Vec<u8>) {
        if self.connection > 0 {
            push(out, kind::WINDOW_UPDATE, 0, std::mem::take(&mut self.connection));
        }
        self.windows.drain(..).for_each(|(stream, bytes)| push(out, kind::WINDOW_UPDATE, stream, bytes));
        self.resets.drain(..).for_each(|stream| push(out, kind::RST_STREAM, stream, FLOW_CONTROL_ERROR));
    }
}

/// Appends a frame with a payload of four bytes.
fn push(out: &mut Vec<u8>, kind: u8, stream: u32, payload: u32) {
    out.extend_from_slice(&[0, 0, 4, kind, 0]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(&payload.to_be_bytes());
}

/// Turns a frame with a payload of four bytes, such as a WINDOW_UPDATE, into the reset for an overflowed window.
pub(super) fn make_reset(frame: &mut [u8]) {
    frame[3] = kind::RST_STREAM;
    if let Some(payload) = frame.last_chunk_mut() {
        *payload = FLOW_CONTROL_ERROR.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_owed_is_written_once_and_summed_up() {
        let mut owed = OwedFrames::default();
        assert!(owed.is_empty());
        owed.window(1, 5);
        owed.window(3, 7);
        owed.window(1, 1);
        owed.reset(5);
        let mut out = Vec::new();
        owed.write(&mut out);
        let frames = [
            [0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 13],
            [0, 0, 4, 8, 0, 0, 0, 0, 1, 0, 0, 0, 6],
            [0, 0, 4, 8, 0, 0, 0, 0, 3, 0, 0, 0, 7],
            [0, 0, 4, 3, 0, 0, 0, 0, 5, 0, 0, 0, 3],
        ];
        assert_eq!(out, frames.concat());
        assert!(owed.is_empty());
        owed.write(&mut out);
        assert_eq!(out.len(), 4 * 13);
    }

    #[test]
    fn it_is_bounded() {
        let mut owed = OwedFrames::default();
        for stream in 0..STREAMS_OWED_MAX as u32 {
            owed.window(stream, 1);
            owed.reset(stream);
        }
        assert!(!owed.is_too_much);
        owed.window(u32::MAX, 1);
        assert!(owed.is_too_much);
    }
}
