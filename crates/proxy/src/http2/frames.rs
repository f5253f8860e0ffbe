//! Watches the frames of a connection go by, to notice a peer that sends frames but nothing in them.
//!
//! `h2` answers each PING and SETTINGS before it reads on, so a flood of them takes no memory; it takes time, and this
//! is what bounds that. Nothing here is believed of a frame but its length and type.

use super::bounds::FRUITLESS_FRAMES_PER_SECOND_MAX;
use stillgate_wire::Progress;

/// Bytes of a frame's header (RFC 9113 section 4.1).
const HEADER_BYTES: usize = 9;
/// What a client's connection begins with.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Whether a connection begins as one of HTTP/2: wholly, as far as it has come, or (`None`) not at all.
pub(crate) fn starts(bytes: &[u8]) -> Option<Progress> {
    if bytes.starts_with(PREFACE) {
        Some(Progress::Complete(PREFACE.len()))
    } else {
        (!bytes.is_empty() && PREFACE.starts_with(bytes)).then_some(Progress::Partial)
    }
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Where in the frames of one direction we are.
#[derive(Debug, Default)]
pub(super) struct Frames {
    header: [u8; HEADER_BYTES],
    /// Bytes of the next header that are here.
    have: usize,
    /// Bytes until the next header.
    skip: usize,
    /// The stream opened last, and how far its head is.
    opened: u32,
    head: Head,
}

/// How far the head is that opens a stream.
#[derive(Debug, Default, PartialEq, Eq)]
enum Head {
    /// None is under way.
    #[default]
    No,
    /// It goes on in another frame.
    Begun,
    /// It ends with the present frame.
    Ending,
}

impl Frames {
    /// The direction in which the preface comes first.
    pub(super) fn after_preface() -> Frames {
        Frames { skip: PREFACE.len(), ..Frames::default() }
    }

    /// Whether one of the frames whose headers end in these bytes moves a request or a response on, and how many do not.
    pub(super) fn walk(&mut self, mut bytes: &[u8]) -> Walked {
        let mut walked = Walked::default();
        loop {
            let skip = self.skip.min(bytes.len());
            self.skip -= skip;
            bytes = &bytes[skip..];
            if self.skip == 0 && self.head == Head::Ending {
                self.head = Head::No;
                walked.opened += 1;
            }
            if bytes.is_empty() {
                return walked;
            }
            let take = (HEADER_BYTES - self.have).min(bytes.len());
            self.header[self.have..self.have + take].copy_from_slice(&bytes[..take]);
            self.have += take;
            bytes = &bytes[take..];
            if self.have == HEADER_BYTES {
                self.have = 0;
                let [a, b, c, kind, flags, stream @ ..] = self.header;
                self.skip = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                match kind {
                    DATA if self.skip > 0 || flags & END_STREAM != 0 => walked.moves = true,
                    HEADERS => walked.moves = true,
                    _ => walked.fruitless += 1,
                }
                // Without the reserved bit.
                self.follow_head(kind, flags, u32::from_be_bytes(stream) & 0x7fff_ffff);
            }
        }
    }

    /// The numbers of streams only grow (RFC 9113 section 5.1.1): the head of a lower one is its trailers.
    fn follow_head(&mut self, kind: u8, flags: u8, stream: u32) {
        let is_new = kind == HEADERS && stream > self.opened;
        if is_new {
            self.opened = stream;
        }
        if is_new || (kind == CONTINUATION && self.head == Head::Begun) {
            self.head = if flags & END_HEADERS != 0 { Head::Ending } else { Head::Begun };
        }
    }
}

/// What [`Frames::walk`] saw.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Walked {
    moves: bool,
    fruitless: u32,
    /// Heads of new streams that are whole.
    opened: u64,
}

/// Counts what comes too often, within a second.
#[derive(Debug, Default)]
pub(super) struct Rate {
    since_ms: u64,
    count: u32,
}

impl Rate {
    /// Adds some; whether there were more than `max` within the second.
    pub(super) fn exceeds(&mut self, more: u32, max: u32, now_ms: u64) -> bool {
        if now_ms >= self.since_ms + 1_000 {
            *self = Rate { since_ms: now_ms, count: 0 };
        }
        self.count = self.count.saturating_add(more);
        self.count > max
    }

    fn clear(&mut self) {
        self.count = 0;
    }
}

/// Both directions of a connection.
#[derive(Debug)]
pub(super) struct Watch {
    received: Frames,
    sent: Frames,
    fruitless: Rate,
    /// Streams that the peer has opened, with a whole head.
    pub(super) opened: u64,
    /// The peer sends what moves nothing, too often.
    pub(super) is_flooded: bool,
}

impl Watch {
    pub(super) fn of_client() -> Watch {
        Watch {
            received: Frames::after_preface(),
            sent: Frames::default(),
            fruitless: Rate::default(),
            opened: 0,
            is_flooded: false,
        }
    }

    pub(super) fn of_node() -> Watch {
        Watch { received: Frames::default(), sent: Frames::after_preface(), ..Watch::of_client() }
    }

    pub(super) fn received(&mut self, bytes: &[u8], now_ms: u64) {
        let walked = self.received.walk(bytes);
        self.opened += walked.opened;
        if walked.moves {
            self.fruitless.clear();
        }
        self.is_flooded |= self.fruitless.exceeds(walked.fruitless, FRUITLESS_FRAMES_PER_SECOND_MAX, now_ms);
    }

    /// A client that only reads tells its progress by frames that move nothing: its window updates.
    pub(super) fn sent(&mut self, bytes: &[u8]) {
        if self.sent.walk(bytes).moves {
            self.fruitless.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let mut bytes = vec![0, (payload >> 8) as u8, payload as u8, kind, flags, 0, 0, 0, 1];
        bytes.resize(HEADER_BYTES + payload, 7);
        bytes
    }

    fn of_stream(stream: u8) -> Vec<u8> {
        let mut head = frame(HEADERS, END_HEADERS, 3);
        head[HEADER_BYTES - 1] = stream;
        head
    }

    #[test]
    fn any_split_walks_alike() {
        let check = |frames: &[Vec<u8>], moves: bool, fruitless: u32, opened: u64| {
            let bytes = frames.concat();
            for step in 1..=bytes.len() {
                let mut walker = Frames::default();
                let mut seen = Walked::default();
                for piece in bytes.chunks(step) {
                    let walked = walker.walk(piece);
                    seen.moves |= walked.moves;
                    seen.fruitless += walked.fruitless;
                    seen.opened += walked.opened;
                }
                assert_eq!(seen, Walked { moves, fruitless, opened }, "by {step}");
            }
        };
        check(&[frame(6, 0, 8), frame(4, 0, 0), frame(8, 0, 4), frame(0, 0, 0)], false, 4, 0);
        check(&[frame(6, 0, 8), frame(1, END_HEADERS, 300)], true, 1, 1);
        check(&[frame(0, 0, 5)], true, 0, 0);
        check(&[frame(0, END_STREAM, 0), frame(9, END_HEADERS, 3)], true, 1, 0);
        // In several frames, and never to its end.
        check(&[frame(1, 0, 5), frame(9, 0, 0), frame(9, END_HEADERS, 0), frame(6, 0, 8)], true, 3, 1);
        check(&[frame(1, 0, 5), frame(9, 0, 3)], true, 1, 0);
        check(&[of_stream(1), frame(0, 0, 5), of_stream(1), of_stream(3), of_stream(9), of_stream(5)], true, 0, 3);
    }

    #[test]
    fn a_flood_is_what_moves_nothing_for_a_second() {
        let mut watch = Watch::of_client();
        watch.received(PREFACE, 1_000);
        let pings = frame(6, 0, 8).repeat(FRUITLESS_FRAMES_PER_SECOND_MAX as usize);
        watch.received(&pings, 1_000);
        assert!(!watch.is_flooded);
        watch.received(&frame(1, 4, 9), 1_100);
        watch.received(&pings, 1_200);
        assert!(!watch.is_flooded, "a request came between");
        watch.sent(&frame(0, 0, 9));
        watch.received(&pings, 1_300);
        assert!(!watch.is_flooded, "a response went out between");
        watch.received(&pings, 2_000);
        assert!(!watch.is_flooded, "a second has passed");
        watch.received(&frame(6, 0, 8), 2_999);
        assert!(watch.is_flooded);
    }
}
