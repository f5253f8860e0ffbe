//! The windows that a node has opened for requests, as far as `h2` does not look at them.
//!
//! A window beyond 2^31-1 bytes ends its stream (RFC 9113 section 6.9.1). `h2` stops counting once the request has been sent; we
//! would wait for its response in vain.

use super::bounds::STREAMS_MAX;
use super::frames::FrameHead;
use std::collections::VecDeque;

const WINDOW_BYTES_MAX: i64 = 0x7fff_ffff;
/// The initial window of a connection (RFC 9113 section 6.9.2).
const INITIAL_WINDOW_BYTES: i64 = 65_535;
/// SETTINGS_INITIAL_WINDOW_SIZE.
const INITIAL_WINDOW_SIZE: u16 = 4;
/// Streams that are followed at once: those under way, and as many that the node has ended while we are still sending.
const FOLLOWED_MAX: usize = 2 * STREAMS_MAX as usize;

/// Windows of one connection to a node.
#[derive(Debug)]
pub(super) struct Windows {
    /// Initial window of each stream.
    initial: i64,
    /// How much the windows of streams differ from it, in the order of their first change.
    streams: VecDeque<(u32, i64)>,
    /// Streams up to this one are no longer followed.
    forgotten: u32,
}

impl Windows {
    pub(super) fn new() -> Windows {
        Windows { initial: INITIAL_WINDOW_BYTES, streams: VecDeque::new(), forgotten: 0 }
    }

    /// We have sent content.
    pub(super) fn sent(&mut self, stream: u32, bytes: usize) {
        self.change(stream, -i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// The node has sent a complete WINDOW_UPDATE. Returns whether it makes a stream's window too large.
    pub(super) fn opened(&mut self, head: &FrameHead, payload: &[u8]) -> bool {
        let Ok(increment) = <[u8; 4]>::try_from(payload) else { return false };
        let increment = i64::from(u32::from_be_bytes(increment) & 0x7fff_ffff);
        let initial = self.initial;
        head.stream != 0
            && self.change(head.stream, increment).is_some_and(|change| initial + change > WINDOW_BYTES_MAX)
    }

    /// A stream has ended, at least for the node.
    pub(super) fn forget(&mut self, stream: u32) {
        self.streams.retain(|entry| entry.0 != stream);
    }

    /// The node has sent complete SETTINGS.
    pub(super) fn set(&mut self, payload: &[u8]) {
        for setting in payload.chunks_exact(6) {
            let (id, value) = setting.split_at(2);
            if id == INITIAL_WINDOW_SIZE.to_be_bytes() {
                self.initial = value.iter().fold(0, |sum, byte| sum << 8 | i64::from(*byte));
            }
        }
    }

    /// The difference of a stream's window after this change; `None`: it is not followed.
    fn change(&mut self, stream: u32, by: i64) -> Option<i64> {
        if stream <= self.forgotten {
            return None;
        }
        if let Some((_, change)) = self.streams.iter_mut().rev().find(|entry| entry.0 == stream) {
            *change += by;
            return Some(*change);
        }
        if self.streams.len() == FOLLOWED_MAX
            && let Some((oldest, _)) = self.streams.pop_front()
        {
            self.forgotten = self.forgotten.max(oldest);
        }
        self.streams.push_back((stream, by));
        Some(by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_overflow_where_they_do() {
        let mut windows = Windows::new();
        let open = |windows: &mut Windows, stream: u32, increment: u32| {
            let head = FrameHead { kind: 8, flags: 0, stream, payload_bytes: 4 };
            windows.opened(&head, &increment.to_be_bytes())
        };
        assert!(!open(&mut windows, 1, 0x7fff_0000), "with the first 65,535 it is all there may be");
        assert!(open(&mut windows, 1, 1));
        assert!(open(&mut windows, 3, 0x7fff_ffff));
        assert!(!open(&mut windows, 0, 0x7fff_ffff), "the connection's is looked at by `h2`");
        // A window that was used up may be opened again.
        windows.sent(5, 1_000);
        assert!(!open(&mut windows, 5, 0x7fff_0000 + 1_000));
        assert!(open(&mut windows, 5, 1));
        windows.set(&[0, 1, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0]);
        assert!(!open(&mut windows, 7, 0x7fff_ffff));
        // A stream that lasts is followed however many have ended since, and streams that do not fit are not judged.
        for stream in (9..).step_by(2).take(10 * FOLLOWED_MAX) {
            windows.sent(stream, 1);
            windows.forget(stream);
        }
        assert!(open(&mut windows, 7, 1));
        for stream in (100_001..).step_by(2).take(FOLLOWED_MAX) {
            windows.sent(stream, 1);
        }
        assert!(!open(&mut windows, 7, 1));
    }
}
