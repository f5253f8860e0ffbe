//! Watches the frames of a connection, to detect a peer that sends frames without content.
//!
//! `h2` answers each PING and SETTINGS before it reads on, so a flood of them takes no memory; it takes time, and this is what
//! bounds that. Only the length and type of a frame are trusted here; [`FieldWatch`] looks into heads.

use super::bounds::{FRUITLESS_FRAMES_PER_SECOND_MAX, RESETS_PER_SECOND_MAX, SMALL_FRAME_BYTES, STREAMS_MAX};
use super::field_watch::{FieldWatch, ServedStreams};
use std::collections::VecDeque;
use std::rc::Rc;
use stillgate_wire::HeadProgress;

/// Bytes of a frame's header (RFC 9113 section 4.1).
pub(super) const HEADER_BYTES: usize = 9;
/// The preface of a client's connection.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Whether a connection begins with the HTTP/2 preface: completely, as far as it has arrived, or (`None`) not at all.
pub(crate) fn starts(bytes: &[u8]) -> Option<HeadProgress> {
    if bytes.starts_with(PREFACE) {
        Some(HeadProgress::Complete(PREFACE.len()))
    } else {
        (!bytes.is_empty() && PREFACE.starts_with(bytes)).then_some(HeadProgress::Partial)
    }
}

/// Types of frames (RFC 9113 section 6), and an unknown one, which is ignored (section 5.5).
pub(super) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
    pub(crate) const UNKNOWN: u8 = 0xff;
}

const ACK: u8 = 1;
pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload_bytes: usize,
}

impl FrameHead {
    /// Head of a frame that begins with these bytes; `None` if there are too few.
    pub(super) fn of(bytes: &[u8]) -> Option<FrameHead> {
        let [a, b, c, kind, flags, stream @ ..] = *bytes.first_chunk::<HEADER_BYTES>()?;
        let payload_bytes = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        // Mask out the reserved bit.
        Some(FrameHead { kind, flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff, payload_bytes })
    }

    pub(super) fn is_last_of_stream(&self) -> bool {
        self.flags & END_STREAM != 0
    }

    /// Whether its sender sends nothing more on the stream.
    fn ends_stream(&self) -> bool {
        match self.kind {
            kind::DATA | kind::HEADERS => self.is_last_of_stream(),
            kind => kind == kind::RST_STREAM,
        }
    }
}

/// What [`Frames::walk`] encounters.
#[derive(Debug)]
pub(super) enum FramePart<'b> {
    Begin(FrameHead),
    Payload(&'b [u8]),
    /// The payload was the last of its frame.
    End,
}

/// Position in the frames of one direction.
#[derive(Debug, Default)]
pub(super) struct Frames {
    header: [u8; HEADER_BYTES],
    /// Bytes of the next header that have arrived.
    have: usize,
    /// Bytes until the next header.
    skip: usize,
    /// The last stream opened, and the state of its head.
    opened: u32,
    head: HeadState,
    /// The current field section continues in another frame, and no other frame may come in between.
    is_amid_fields: bool,
}

/// State of the head that opens a stream.
#[derive(Debug, Default, PartialEq, Eq)]
enum HeadState {
    /// No head is under way.
    #[default]
    No,
    /// The head continues in another frame.
    Begun,
    /// The head ends with the current frame.
    Ending,
}

impl Frames {
    /// The direction in which the preface comes first.
    pub(super) fn after_preface() -> Frames {
        Frames { skip: PREFACE.len(), ..Frames::default() }
    }

    /// Whether one of the frames whose headers end in these bytes advances a request or a response, and how many do not. `see` gets
    /// all of them.
    fn walk(&mut self, mut bytes: &[u8], mut see: impl FnMut(FramePart<'_>)) -> WalkResult {
        let mut walked = WalkResult::default();
        loop {
            let (payload, rest) = bytes.split_at(self.skip.min(bytes.len()));
            self.skip -= payload.len();
            bytes = rest;
            see(FramePart::Payload(payload));
            if self.skip == 0 {
                see(FramePart::End);
                if self.head == HeadState::Ending {
                    self.head = HeadState::No;
                    walked.opened += 1;
                }
            }
            if bytes.is_empty() {
                return walked;
            }
            let take = (HEADER_BYTES - self.have).min(bytes.len());
            self.header[self.have..self.have + take].copy_from_slice(&bytes[..take]);
            self.have += take;
            bytes = &bytes[take..];
            if self.have == HEADER_BYTES
                && let Some(head) = FrameHead::of(&self.header)
            {
                self.have = 0;
                self.skip = head.payload_bytes;
                match head.kind {
                    kind::DATA if self.skip > 0 || head.is_last_of_stream() => walked.moves = true,
                    kind::HEADERS => walked.moves = true,
                    _ => walked.fruitless += 1,
                }
                self.follow_head(&head);
                see(FramePart::Begin(head));
            }
        }
    }

    /// Whether a frame of another type may follow.
    fn is_between(&self) -> bool {
        self.skip == 0 && self.have == 0 && !self.is_amid_fields
    }

    /// Stream numbers only grow (RFC 9113 section 5.1.1): the head of a lower one is its trailers.
    fn follow_head(&mut self, head: &FrameHead) {
        if matches!(head.kind, kind::HEADERS | kind::CONTINUATION) {
            self.is_amid_fields = head.flags & END_HEADERS == 0;
        }
        let is_new = head.kind == kind::HEADERS && head.stream > self.opened;
        if is_new {
            self.opened = head.stream;
        }
        if is_new || (head.kind == kind::CONTINUATION && self.head == HeadState::Begun) {
            self.head = if head.flags & END_HEADERS != 0 { HeadState::Ending } else { HeadState::Begun };
        }
    }
}

/// What [`Frames::walk`] saw.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct WalkResult {
    moves: bool,
    fruitless: u32,
    /// Complete heads of new streams.
    opened: u64,
}

/// Counts events per second.
#[derive(Debug, Default)]
pub(crate) struct EventRate {
    since_ms: u64,
    count: u32,
}

impl EventRate {
    /// Adds events; returns whether there were more than `max` within the second.
    pub(crate) fn exceeds(&mut self, more: u32, max: u32, now_ms: u64) -> bool {
        if now_ms >= self.since_ms + 1_000 {
            *self = EventRate { since_ms: now_ms, count: 0 };
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
pub(super) struct FrameWatch {
    received: Frames,
    sent: Frames,
    is_client: bool,
    fields: FieldWatch,
    malformed: EventRate,
    fruitless: EventRate,
    /// For a node: the windows that it has opened.
    windows: Option<Windows>,
    /// What the peer is to be sent in addition to the frames of `h2`.
    pub(super) owed: OwedFrames,
    /// Small DATA frames that have arrived since bodies were last gathered.
    pub(super) small: u32,
    /// Streams that the peer has opened with a complete head.
    pub(super) opened: u64,
    /// The peer sends too many frames that move no data, or more interim responses than may wait.
    pub(super) is_flooded: bool,
}

impl FrameWatch {
    pub(super) fn of_client(marked: Rc<ServedStreams>) -> FrameWatch {
        FrameWatch {
            received: Frames::after_preface(),
            sent: Frames::default(),
            is_client: true,
            fields: FieldWatch::of_requests(marked),
            malformed: EventRate::default(),
            fruitless: EventRate::default(),
            windows: None,
            owed: OwedFrames::default(),
            small: 0,
            opened: 0,
            is_flooded: false,
        }
    }

    pub(super) fn of_node(marked: Rc<ServedStreams>) -> FrameWatch {
        let (fields, windows) = (FieldWatch::of_responses(marked.clone()), Some(Windows::new()));
        FrameWatch {
            received: Frames::default(),
            sent: Frames::after_preface(),
            is_client: false,
            fields,
            windows,
            ..FrameWatch::of_client(marked)
        }
    }

    /// Rewrites a received frame that `h2` would not tolerate. `frame` is its header and the bytes that [`looked_into`] requires.
    pub(super) fn amend(&mut self, frame: &mut [u8]) {
        let Some(head) = FrameHead::of(frame) else { return };
        let payload = &frame[HEADER_BYTES..];
        match (head.kind, &mut self.windows) {
            // `h2` ends the connection at the 101st in its life. We set the limit per second.
            (kind::DATA, _) if is_empty_data(&head, payload) => {
                if head.payload_bytes > 0 {
                    self.owed.window(head.stream, head.payload_bytes);
                    self.is_flooded |= self.owed.is_too_much;
                }
                frame[3] = kind::UNKNOWN;
            }
            // Not looked into, as there are too many settings: from here on the windows are unknown.
            (kind::SETTINGS, windows) if payload.len() < head.payload_bytes => *windows = None,
            (kind::SETTINGS, Some(windows)) if head.flags & ACK == 0 => windows.set(payload),
            (kind::WINDOW_UPDATE, Some(windows)) => {
                let is_too_large = windows.on_window_update(&head, payload);
                if is_too_large {
                    self.owed.reset(head.stream);
                    make_reset(frame);
                }
            }
            _ => {}
        }
    }

    /// Whether other frames may be inserted after the frames that `h2` has sent.
    pub(super) fn may_interpose(&self) -> bool {
        self.sent.is_between()
    }

    pub(super) fn observe_received(&mut self, bytes: &[u8], now_ms: u64) {
        let (small, fields, windows) = (&mut self.small, &mut self.fields, &mut self.windows);
        let walked = self.received.walk(bytes, |seen| match seen {
            FramePart::Begin(head) => {
                if let Some(windows) = windows.as_mut().filter(|_| head.ends_stream()) {
                    windows.forget(head.stream);
                }
                let is_small = head.kind == kind::DATA && (1..SMALL_FRAME_BYTES).contains(&head.payload_bytes);
                *small += u32::from(is_small && !head.is_last_of_stream());
                fields.begin(&head);
            }
            FramePart::Payload(bytes) => fields.payload(bytes),
            FramePart::End => fields.end(),
        });
        // For a connection to a node, each head is a request of ours.
        let is_client = self.is_client;
        let malformed = self.fields.take_malformed();
        self.is_flooded |= is_client && self.malformed.exceeds(malformed, RESETS_PER_SECOND_MAX, now_ms);
        self.is_flooded |= self.fields.has_too_many_interims();
        self.opened += walked.opened;
        if walked.moves {
            self.fruitless.clear();
        }
        self.is_flooded |= self.fruitless.exceeds(walked.fruitless, FRUITLESS_FRAMES_PER_SECOND_MAX, now_ms);
    }

    /// A client that only reads shows its progress by frames that move no data: its window updates.
    pub(super) fn observe_sent(&mut self, bytes: &[u8]) {
        let (windows, fields) = (&mut self.windows, &mut self.fields);
        let walked = self.sent.walk(bytes, |seen| match (seen, &mut *windows) {
            (FramePart::Begin(head), Some(windows)) if head.kind == kind::DATA => {
                windows.on_sent(head.stream, head.payload_bytes);
            }
            (FramePart::Begin(head), windows) if head.kind == kind::RST_STREAM => {
                fields.forget(head.stream);
                windows.iter_mut().for_each(|windows| windows.forget(head.stream));
            }
            _ => {}
        });
        if walked.moves {
            self.fruitless.clear();
        }
    }
}

/// Bytes of a frame's payload that [`FrameWatch::amend`] looks at, of which at most `bytes_max` are available.
pub(super) fn looked_into(head: &FrameHead, bytes_max: usize) -> usize {
    match head.kind {
        kind::SETTINGS | kind::WINDOW_UPDATE if head.payload_bytes <= bytes_max => head.payload_bytes,
        // The padding length.
        kind::DATA if head.flags & PADDED != 0 => head.payload_bytes.min(1),
        _ => 0,
    }
}

/// Whether a DATA frame is empty, or only has padding, and does not end the stream.
fn is_empty_data(head: &FrameHead, payload: &[u8]) -> bool {
    let padding_bytes = match payload.first() {
        Some(length) if head.flags & PADDED != 0 => 1 + usize::from(*length),
        _ => 0,
    };
    head.payload_bytes == padding_bytes && !head.is_last_of_stream() && head.stream != 0
}

// Frames that the peer is owed because `h2` did not see what it sent, or saw it rewritten; they go out between those of `h2`.

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

// The windows that a node has opened for requests, as far as `h2` does not look at them.
//
// A window beyond 2^31-1 bytes ends its stream (RFC 9113 section 6.9.1). `h2` stops counting once the request has been sent; we
// would wait for its response in vain.

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
    pub(super) fn on_sent(&mut self, stream: u32, bytes: usize) {
        self.change(stream, -i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// The node has sent a complete WINDOW_UPDATE. Returns whether it makes a stream's window too large.
    pub(super) fn on_window_update(&mut self, head: &FrameHead, payload: &[u8]) -> bool {
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

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let mut bytes = vec![0, (payload >> 8) as u8, payload as u8, kind, flags, 0, 0, 0, 1];
        bytes.resize(HEADER_BYTES + payload, 7);
        bytes
    }

    fn of_stream(stream: u8) -> Vec<u8> {
        let mut head = frame(kind::HEADERS, END_HEADERS, 3);
        head[HEADER_BYTES - 1] = stream;
        head
    }

    #[test]
    fn any_split_walks_alike() {
        let check = |frames: &[Vec<u8>], moves: bool, fruitless: u32, opened: u64| {
            let bytes = frames.concat();
            for step in 1..=bytes.len() {
                let mut walker = Frames::default();
                let mut seen = WalkResult::default();
                for piece in bytes.chunks(step) {
                    let walked = walker.walk(piece, |_| {});
                    seen.moves |= walked.moves;
                    seen.fruitless += walked.fruitless;
                    seen.opened += walked.opened;
                }
                assert_eq!(seen, WalkResult { moves, fruitless, opened }, "by {step}");
            }
        };
        check(&[frame(6, 0, 8), frame(4, 0, 0), frame(8, 0, 4), frame(0, 0, 0)], false, 4, 0);
        check(&[frame(6, 0, 8), frame(1, END_HEADERS, 300)], true, 1, 1);
        check(&[frame(0, 0, 5)], true, 0, 0);
        check(&[frame(0, END_STREAM, 0), frame(9, END_HEADERS, 3)], true, 1, 0);
        // In several frames, and never complete.
        check(&[frame(1, 0, 5), frame(9, 0, 0), frame(9, END_HEADERS, 0), frame(6, 0, 8)], true, 3, 1);
        check(&[frame(1, 0, 5), frame(9, 0, 3)], true, 1, 0);
        check(&[of_stream(1), frame(0, 0, 5), of_stream(1), of_stream(3), of_stream(9), of_stream(5)], true, 0, 3);
    }

    #[test]
    fn a_flood_is_what_moves_nothing_for_a_second() {
        let mut watch = FrameWatch::of_client(Rc::default());
        watch.observe_received(PREFACE, 1_000);
        let pings = frame(6, 0, 8).repeat(FRUITLESS_FRAMES_PER_SECOND_MAX as usize);
        watch.observe_received(&pings, 1_000);
        assert!(!watch.is_flooded);
        watch.observe_received(&frame(1, 4, 9), 1_100);
        watch.observe_received(&pings, 1_200);
        assert!(!watch.is_flooded, "a request came between");
        watch.observe_sent(&frame(0, 0, 9));
        watch.observe_received(&pings, 1_300);
        assert!(!watch.is_flooded, "a response went out between");
        watch.observe_received(&pings, 2_000);
        assert!(!watch.is_flooded, "a second has passed");
        watch.observe_received(&frame(6, 0, 8), 2_999);
        assert!(watch.is_flooded);
    }
}

#[cfg(test)]
mod owed_frames_tests {
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

#[cfg(test)]
mod windows_tests {
    use super::*;

    #[test]
    fn windows_overflow_where_they_do() {
        let mut windows = Windows::new();
        let open = |windows: &mut Windows, stream: u32, increment: u32| {
            let head = FrameHead { kind: 8, flags: 0, stream, payload_bytes: 4 };
            windows.on_window_update(&head, &increment.to_be_bytes())
        };
        assert!(!open(&mut windows, 1, 0x7fff_0000), "with the first 65,535 it is all there may be");
        assert!(open(&mut windows, 1, 1));
        assert!(open(&mut windows, 3, 0x7fff_ffff));
        assert!(!open(&mut windows, 0, 0x7fff_ffff), "the connection's is looked at by `h2`");
        // A window that was used up may be opened again.
        windows.on_sent(5, 1_000);
        assert!(!open(&mut windows, 5, 0x7fff_0000 + 1_000));
        assert!(open(&mut windows, 5, 1));
        windows.set(&[0, 1, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0]);
        assert!(!open(&mut windows, 7, 0x7fff_ffff));
        // A stream that lasts is followed however many have ended since, and streams that do not fit are not judged.
        for stream in (9..).step_by(2).take(10 * FOLLOWED_MAX) {
            windows.on_sent(stream, 1);
            windows.forget(stream);
        }
        assert!(open(&mut windows, 7, 1));
        for stream in (100_001..).step_by(2).take(FOLLOWED_MAX) {
            windows.on_sent(stream, 1);
        }
        assert!(!open(&mut windows, 7, 1));
    }
}
