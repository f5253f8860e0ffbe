//! A side of an HTTP/2 connection that sends as much as the other side's windows allow, and notices where that ends.

use std::collections::HashMap;
use stillgate_testkit::http2::{Frame, Http2, kind};

/// Bytes that RFC 9113 section 6.9.2 lets a side send until the window changes.
const INITIAL_WINDOW_BYTES: i64 = 65_535;
/// Round trips without a new window after which none is expected.
const ROUND_TRIPS_MAX: u32 = 20;

/// A connection with its windows. The other side's SETTINGS must leave the initial window as it is.
pub(crate) struct WindowedConnection {
    pub(crate) peer: Http2,
    connection: i64,
    streams: HashMap<u32, i64>,
    pings: u64,
}

impl WindowedConnection {
    pub(crate) fn new(peer: Http2) -> WindowedConnection {
        WindowedConnection { peer, connection: INITIAL_WINDOW_BYTES, streams: HashMap::new(), pings: 0 }
    }

    /// The next frame that `wanted` accepts; windows that open on the way are noted.
    #[track_caller]
    pub(crate) fn until(&mut self, wanted: impl Fn(&Frame) -> bool) -> Frame {
        loop {
            let frame = self.peer.until(|_| true);
            assert_ne!(frame.kind, kind::GOAWAY, "the connection ends: {}", frame.payload[8..].escape_ascii());
            if frame.kind == kind::WINDOW_UPDATE {
                let more = i64::from(u32::from_be_bytes(frame.payload[..].try_into().expect("four bytes")));
                match frame.stream {
                    0 => self.connection += more,
                    stream => *self.streams.entry(stream).or_insert(INITIAL_WINDOW_BYTES) += more,
                }
            }
            if wanted(&frame) {
                return frame;
            }
        }
    }

    /// Sends frames of at most this size until the stream's window or the connection's is used up for good, at most `bytes_max`;
    /// returns how much that was.
    #[track_caller]
    pub(crate) fn fill(&mut self, stream: u32, frame_bytes: usize, bytes_max: usize) -> usize {
        self.fill_by(bytes_max, |windowed, left| windowed.fill_once(stream, frame_bytes.min(left)))
    }

    /// Fills a window with whole frames that have this payload.
    #[track_caller]
    pub(crate) fn fill_with(&mut self, stream: u32, payload: &[u8], flags: u8, bytes_max: usize) -> usize {
        self.fill_by(bytes_max, |windowed, left| match windowed.room(stream).min(left) >= payload.len() {
            true => windowed.send(stream, flags, payload),
            false => 0,
        })
    }

    /// Sends one frame of at most this size; returns its size.
    pub(crate) fn fill_once(&mut self, stream: u32, frame_bytes: usize) -> usize {
        match self.room(stream).min(frame_bytes) {
            0 => 0,
            take => self.send(stream, 0, &vec![7; take]),
        }
    }

    /// Sends by `send`, which is given how much is left, until that is nothing or the windows are used up for good.
    pub(crate) fn fill_by(
        &mut self,
        bytes_max: usize,
        mut send: impl FnMut(&mut WindowedConnection, usize) -> usize,
    ) -> usize {
        /// Frames between two looks at what has come.
        const BATCH: usize = 64;
        let (mut sent, mut idle_round_trips) = (0, 0);
        while sent < bytes_max && idle_round_trips < ROUND_TRIPS_MAX {
            let before = sent;
            for _ in 0..BATCH {
                match send(self, bytes_max - sent) {
                    0 => break,
                    bytes => sent += bytes,
                }
            }
            idle_round_trips = if sent > before { 0 } else { idle_round_trips + 1 };
            self.round_trip();
        }
        sent
    }

    fn room(&mut self, stream: u32) -> usize {
        let window = *self.streams.entry(stream).or_insert(INITIAL_WINDOW_BYTES);
        usize::try_from(window.min(self.connection)).unwrap_or(0)
    }

    fn send(&mut self, stream: u32, flags: u8, payload: &[u8]) -> usize {
        self.peer.send(kind::DATA, flags, stream, payload);
        let bytes = payload.len() as i64;
        *self.streams.entry(stream).or_insert(INITIAL_WINDOW_BYTES) -= bytes;
        self.connection -= bytes;
        payload.len()
    }

    /// What was sent before has been looked at.
    #[track_caller]
    pub(crate) fn round_trip(&mut self) {
        self.pings += 1;
        let ping = self.pings.to_be_bytes();
        self.peer.send(kind::PING, 0, 0, &ping);
        self.until(|frame| frame.kind == kind::PING && frame.payload == ping);
    }
}
