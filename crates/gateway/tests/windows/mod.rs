//! A side of an HTTP/2 connection that sends as much as the other side's windows allow, and notices where that ends.

use std::collections::HashMap;
use stillgate_testkit::http2::{Frame, Http2, kind};

/// What RFC 9113 section 6.9.2 lets a side send before it is told otherwise.
const INITIAL_WINDOW_BYTES: i64 = 65_535;
/// Round trips without a new window after which none is expected.
const ROUND_TRIPS_MAX: u32 = 20;

/// A connection with its windows. The other side's SETTINGS must leave the initial window as it is.
pub(crate) struct Windowed {
    pub(crate) peer: Http2,
    connection: i64,
    streams: HashMap<u32, i64>,
    pings: u64,
}

impl Windowed {
    pub(crate) fn new(peer: Http2) -> Windowed {
        Windowed { peer, connection: INITIAL_WINDOW_BYTES, streams: HashMap::new(), pings: 0 }
    }

    /// The next frame that `wanted` holds for; windows that open on the way are noted.
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

    /// Sends frames of at most this size until the stream's window or the connection's is used up for good, at most
    /// `bytes_max`; tells how much that was.
    #[track_caller]
    pub(crate) fn fill(&mut self, stream: u32, frame_bytes: usize, bytes_max: usize) -> usize {
        /// Frames between two looks at what has come.
        const BATCH: usize = 64;
        let payload = vec![7; frame_bytes];
        let (mut sent, mut idle_round_trips) = (0, 0);
        while sent < bytes_max && idle_round_trips < ROUND_TRIPS_MAX {
            let before = sent;
            for _ in 0..BATCH {
                let window = self.streams.entry(stream).or_insert(INITIAL_WINDOW_BYTES);
                let room = usize::try_from((*window).min(self.connection)).unwrap_or(0);
                let take = room.min(frame_bytes).min(bytes_max - sent);
                if take == 0 {
                    break;
                }
                self.peer.send(kind::DATA, 0, stream, &payload[..take]);
                *window -= take as i64;
                self.connection -= take as i64;
                sent += take;
            }
            idle_round_trips = if sent > before { 0 } else { idle_round_trips + 1 };
            self.round_trip();
        }
        sent
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
