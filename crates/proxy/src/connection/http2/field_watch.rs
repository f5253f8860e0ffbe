//! Looks into incoming heads and trailers for what `h2` and `http` repair or drop silently: a `#` in a request's `:path`, which is
//! cut off there, and pseudo-headers in trailers or of a request in a response. All of these are malformed (RFC 9113 sections 8.1,
//! 8.3 and 8.3.1). So are fields of HTTP/1.1 connections, and pseudo-headers that come twice or late, which `h2` notices in a block
//! of one frame, and of several only in the last.
//!
//! It only watches: `h2` decodes the same bytes later, and `h2` ends a connection whose blocks cannot be decoded. A block that `h2`
//! skips must be skipped here as well, as both must have the same dynamic table.

use super::bounds::{ANSWERED_MAX, MARKED_MAX, WAITING_INTERIMS_MAX};
use super::frames::{END_HEADERS, FrameHead, kind};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use stillgate_wire::{FieldBlockFacts, FieldWalker};

const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Bytes of a priority, which begins with the stream depended on (RFC 9113 section 6.2).
const PRIORITY_BYTES: usize = 5;

/// The streams that are served, with what was seen of them until their tasks look: malformed heads and trailers, and interim
/// responses.
#[derive(Debug, Default)]
pub(crate) struct ServedStreams {
    streams: RefCell<Vec<u32>>,
    /// The streams that are served. Others are never looked at: `h2` refuses requests by itself, and a node may answer a request
    /// that was never sent.
    served: RefCell<Vec<ServedStream>>,
    /// The sum over the streams that are served.
    waiting_interims: Cell<u32>,
}

/// A stream that is served.
#[derive(Debug)]
struct ServedStream {
    stream: u32,
    /// Its interim responses that wait in `h2`.
    interims: u32,
}

impl ServedStreams {
    /// The stream is served from now on.
    pub(super) fn begin(&self, stream: u32) {
        self.served.borrow_mut().push(ServedStream { stream, interims: 0 });
    }

    /// The stream is not served any more.
    pub(super) fn end(&self, stream: u32) {
        let mut served = self.served.borrow_mut();
        if let Some(at) = served.iter().position(|other| other.stream == stream) {
            let ServedStream { interims, .. } = served.swap_remove(at);
            self.waiting_interims.set(self.waiting_interims.get() - interims);
        }
        drop(served);
        self.take(stream);
    }

    /// Takes the mark of a stream; returns whether it was marked.
    pub(super) fn take(&self, stream: u32) -> bool {
        let mut streams = self.streams.borrow_mut();
        let at = streams.iter().position(|marked| *marked == stream);
        at.map(|at| streams.remove(at)).is_some()
    }

    /// Forgets the marks of streams that are not served. Must be called when `h2` has processed everything that has arrived.
    ///
    /// A reset sent by us does not show that: `h2` still hands on a request that it resets, and that request must stay marked.
    pub(crate) fn forget_unserved(&self) {
        let mut streams = self.streams.borrow_mut();
        if !streams.is_empty() {
            let served = self.served.borrow();
            streams.retain(|stream| served.iter().any(|served| served.stream == *stream));
        }
    }

    /// An interim response has arrived on the stream.
    fn interim_arrived(&self, stream: u32) {
        if let Some(served) = self.served.borrow_mut().iter_mut().find(|served| served.stream == stream) {
            served.interims += 1;
            self.waiting_interims.set(self.waiting_interims.get() + 1);
        }
    }

    /// An interim response of the stream was taken from `h2`.
    pub(super) fn interim_taken(&self, stream: u32) {
        let mut all = self.served.borrow_mut();
        if let Some(served) = all.iter_mut().find(|served| served.stream == stream && served.interims > 0) {
            served.interims -= 1;
            self.waiting_interims.set(self.waiting_interims.get() - 1);
        }
    }

    /// Interim responses that wait in `h2`.
    pub(super) fn waiting_interims(&self) -> u32 {
        self.waiting_interims.get()
    }

    fn add(&self, stream: u32) {
        let mut streams = self.streams.borrow_mut();
        if streams.len() == MARKED_MAX {
            streams.remove(0);
        }
        streams.push(stream);
    }
}

/// Kind of incoming messages.
#[derive(Debug)]
enum Messages {
    Requests,
    /// Streams with a final head and no end yet, in the order of their heads: a further head on one of them is trailers.
    Responses {
        answered: VecDeque<u32>,
    },
}

/// The field blocks that a peer sends.
#[derive(Debug)]
pub(super) struct FieldWatch {
    messages: Messages,
    walker: FieldWalker,
    /// The current frame, if it carries fields.
    frame: Option<HeadersFrame>,
    /// Stream of the block, and whether the block opens or ends it, which CONTINUATION does not say.
    stream: u32,
    is_new: bool,
    ends_stream: bool,
    /// The last stream opened; stream numbers only grow (RFC 9113 section 5.1.1).
    opened: u32,
    /// The block spans several frames.
    is_continued: bool,
    marked: Rc<ServedStreams>,
    /// How many were marked since this was last read.
    malformed: u32,
}

/// One HEADERS or CONTINUATION.
#[derive(Debug)]
struct HeadersFrame {
    /// Padding length and priority, as far as the frame has them.
    prefix: [u8; 1 + PRIORITY_BYTES],
    prefix_bytes: usize,
    have: usize,
    flags: u8,
    /// Bytes of the block after the prefix; includes the padding until the prefix is complete.
    left: usize,
    /// `h2` resets the stream, and does not decode the block.
    is_left_out: bool,
}

impl FieldWatch {
    pub(super) fn of_requests(marked: Rc<ServedStreams>) -> FieldWatch {
        FieldWatch::of(Messages::Requests, marked)
    }

    pub(super) fn of_responses(marked: Rc<ServedStreams>) -> FieldWatch {
        FieldWatch::of(Messages::Responses { answered: VecDeque::new() }, marked)
    }

    fn of(messages: Messages, marked: Rc<ServedStreams>) -> FieldWatch {
        FieldWatch {
            messages,
            walker: FieldWalker::default(),
            frame: None,
            stream: 0,
            is_new: false,
            ends_stream: false,
            opened: 0,
            is_continued: false,
            marked,
            malformed: 0,
        }
    }

    /// An incoming frame begins.
    #[inline]
    pub(super) fn begin(&mut self, head: &FrameHead) {
        match head.kind {
            kind::HEADERS => {
                (self.stream, self.is_new) = (head.stream, head.stream > self.opened);
                self.opened = self.opened.max(head.stream);
                self.ends_stream = head.is_last_of_stream();
                self.is_continued = false;
                self.frame = Some(HeadersFrame::new(head));
            }
            kind::CONTINUATION => {
                self.is_continued = true;
                self.frame = Some(HeadersFrame::new(&FrameHead { flags: head.flags & END_HEADERS, ..*head }))
            }
            kind::DATA if head.is_last_of_stream() => self.forget(head.stream),
            kind::RST_STREAM => self.forget(head.stream),
            _ => {}
        }
    }

    /// Whether more interim responses wait to be looked at than may.
    pub(super) fn has_too_many_interims(&self) -> bool {
        self.marked.waiting_interims() > WAITING_INTERIMS_MAX
    }

    /// How many streams were marked since the last call.
    pub(super) fn take_malformed(&mut self) -> u32 {
        std::mem::take(&mut self.malformed)
    }

    /// The stream has ended, on either side.
    pub(super) fn forget(&mut self, stream: u32) {
        if let Messages::Responses { answered } = &mut self.messages
            && let Some(at) = answered.iter().position(|open| *open == stream)
        {
            answered.remove(at);
        }
    }

    /// More of the frame's payload.
    #[inline]
    pub(super) fn payload(&mut self, bytes: &[u8]) {
        if let Some(frame) = &mut self.frame {
            self.walker.walk(frame.block(bytes, self.stream));
        }
    }

    /// The frame is complete.
    #[inline]
    pub(super) fn end(&mut self) {
        if let Some(frame) = self.frame.take()
            && frame.flags & END_HEADERS != 0
            && !frame.is_left_out
            && let Some(block) = self.walker.end()
        {
            self.judge(block);
        }
    }

    fn judge(&mut self, block: FieldBlockFacts) {
        let stream = self.stream;
        let is_malformed = match &mut self.messages {
            Messages::Requests if self.is_new => block.has_fragment,
            Messages::Requests => block.has_pseudo,
            Messages::Responses { answered } => {
                let is_trailers = answered.contains(&stream);
                if block.is_interim && !is_trailers {
                    self.marked.interim_arrived(stream);
                }
                if !is_trailers && !block.is_interim && !self.ends_stream {
                    if answered.len() == ANSWERED_MAX {
                        answered.pop_front();
                    }
                    answered.push_back(stream);
                }
                if is_trailers { block.has_pseudo } else { block.has_request_pseudo }
            }
        };
        if is_malformed || (block.is_malformed && self.is_continued) {
            self.marked.add(stream);
            self.malformed = self.malformed.saturating_add(1);
        }
        if self.ends_stream {
            self.forget(stream);
        }
    }
}

impl HeadersFrame {
    fn new(head: &FrameHead) -> HeadersFrame {
        let has = |flag, bytes| if head.flags & flag != 0 { bytes } else { 0 };
        let prefix_bytes = has(PADDED, 1) + has(PRIORITY, PRIORITY_BYTES);
        HeadersFrame {
            prefix: [0; 1 + PRIORITY_BYTES],
            prefix_bytes,
            have: 0,
            flags: head.flags,
            // A frame that is too short for its prefix ends the connection.
            left: head.payload_bytes.saturating_sub(prefix_bytes),
            is_left_out: false,
        }
    }

    /// The part of the next payload bytes that belongs to the block.
    fn block<'b>(&mut self, mut bytes: &'b [u8], stream: u32) -> &'b [u8] {
        if self.have < self.prefix_bytes {
            let (prefix, rest) = bytes.split_at(bytes.len().min(self.prefix_bytes - self.have));
            self.prefix[self.have..self.have + prefix.len()].copy_from_slice(prefix);
            self.have += prefix.len();
            bytes = rest;
            if self.have == self.prefix_bytes {
                self.read_prefix(stream);
            }
        }
        let block = &bytes[..bytes.len().min(self.left)];
        self.left -= block.len();
        block
    }

    fn read_prefix(&mut self, stream: u32) {
        let (padding, priority) = self.prefix.split_at(usize::from(self.flags & PADDED != 0));
        let padding = padding.first().copied().unwrap_or(0);
        self.left = self.left.saturating_sub(usize::from(padding));
        if self.flags & PRIORITY != 0
            && let [a, b, c, d, ..] = *priority
            // Mask out the exclusive bit.
            && u32::from_be_bytes([a, b, c, d]) & 0x7fff_ffff == stream
        {
            (self.left, self.is_left_out) = (0, true);
        }
    }
}

#[cfg(test)]
mod tests;
