//! The way of one body: from where it is received, through what changes it, to where it is sent.
//!
//! ```text
//!   Receiver.content ───────────────────────────────▶ Sender      a body that nothing changes
//!   Receiver.content ──▶ filter ──▶ filter ──▶ out ──▶ Sender      a piece at a time
//!                                    Replace ──▶ out ──▶ Sender      what is received is dropped
//! ```
//!
//! Nothing is read, and no filter is given a piece, before what the last one came to is written: that is the backpressure, and
//! what bounds the memory where a small piece becomes a large one. A request can be sent again as long as all that its filters
//! have given is still in `out`: filters run once, however many nodes are asked.

use super::receiver::Receiver;
use super::sender::Sender;
use crate::basics::buffer::Buffers;
use crate::connection::stream::Stream;
use crate::worker::plugins::{HeldBytes, guarded};
use std::io;
use std::task::{Context, Poll};
use stillgate_plugin::body::Change;
use stillgate_plugin::{BodyChanges, BodyError};

/// What a filter is given at once.
const PIECE_BYTES_MAX: usize = 16 * 1024;
/// What filters of one worker may hold, with what they gave and nobody has taken yet.
const HELD_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Of a changed request, what is kept so that another node can be asked.
const KEPT_BYTES_MAX: usize = 64 * 1024;
/// What is read and dropped behind a response that was replaced, so that its connection can be used again.
const DROPPED_BYTES_MAX: u64 = 256 * 1024;

/// The changes of one body, and what has come of them that is not written yet.
#[derive(Default)]
pub(crate) struct Filtered {
    pub(crate) changes: BodyChanges,
    /// What the filters gave.
    out: Vec<u8>,
    /// How much of it has been written.
    written: usize,
    /// What goes from filter to filter.
    between: [Vec<u8>; 2],
    /// Of a body that takes the place of another: how much of it the filters have seen.
    taken: usize,
    /// Whether `out` is kept from its beginning on.
    keeps: bool,
    /// The filters have been told of the end.
    is_ended: bool,
    /// The sender has been told of the end.
    is_end_staged: bool,
    /// There was something to send.
    has_begun: bool,
    dropped: u64,
    held: Option<Held>,
    /// The same of a body that was waited for as a whole.
    kept: Option<Held>,
}

/// Why a body goes no further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BrokenBody {
    /// A filter says so.
    Filter(BodyError),
    /// All filters of the worker hold as much as they may.
    Memory,
    /// A filter panicked.
    Panic,
}

impl BrokenBody {
    /// What a request is answered with whose body it is.
    pub(crate) fn status(self) -> u16 {
        match self {
            BrokenBody::Filter(BodyError::TooLarge) | BrokenBody::Memory => 413,
            BrokenBody::Filter(BodyError::Malformed) => 400,
            BrokenBody::Panic => 500,
        }
    }

    pub(crate) fn message(self) -> &'static str {
        match self {
            BrokenBody::Filter(BodyError::TooLarge) => "the body is larger than a plugin may hold",
            BrokenBody::Filter(BodyError::Malformed) => "the body is not in the coding that its head names",
            BrokenBody::Memory => "plugins hold as much of bodies as they may",
            BrokenBody::Panic => "a plugin failed",
        }
    }
}

/// Bytes counted against the worker's bound, as long as they are held.
struct Held {
    bytes: usize,
    of_worker: HeldBytes,
}

impl Held {
    fn set(&mut self, bytes: usize) -> Result<(), BrokenBody> {
        let all = self.of_worker.get() - self.bytes + bytes;
        self.of_worker.set(all);
        self.bytes = bytes;
        if all > HELD_BYTES_MAX { Err(BrokenBody::Memory) } else { Ok(()) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of_worker.set(self.of_worker.get() - self.bytes);
    }
}

impl Filtered {
    /// Whether the body goes on as it is.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The body is about to go on its way. `keeps`: it may have to be sent again.
    pub(crate) fn start(&mut self, keeps: bool, of_worker: &HeldBytes) {
        self.keeps = keeps;
        self.held = Some(Held { bytes: 0, of_worker: of_worker.clone() });
    }

    /// Counts a body that takes the place of what came.
    pub(crate) fn hold(&mut self, bytes: usize, of_worker: &HeldBytes) -> Result<(), BrokenBody> {
        let kept = self.kept.get_or_insert_with(|| Held { bytes: 0, of_worker: of_worker.clone() });
        kept.set(bytes)
    }

    /// No changes, keeping some memory.
    #[inline]
    pub(crate) fn clear(&mut self) {
        if self.held.is_some() || self.kept.is_some() || !self.changes.is_empty() {
            self.forget();
        }
    }

    #[cold]
    fn forget(&mut self) {
        let changes = std::mem::take(&mut self.changes);
        *self = Filtered { changes, out: std::mem::take(&mut self.out), ..Filtered::default() };
        self.changes.clear();
        self.clear_out();
    }

    fn clear_out(&mut self) {
        self.out.clear();
        self.out.shrink_to(KEPT_BYTES_MAX);
        self.written = 0;
    }

    /// Whether there was something to send.
    #[inline]
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Whether the body could be sent from its beginning.
    #[inline]
    pub(crate) fn is_replayable(&self, receiver: &Receiver) -> bool {
        if self.is_empty() { receiver.replayable } else { self.keeps || self.changes.length().is_some() }
    }

    fn rewind(&mut self) {
        if self.keeps {
            self.written = 0;
        } else if self.changes.length().is_some() {
            self.clear_out();
            (self.taken, self.is_ended) = (0, false);
        } else {
            return;
        }
        self.is_end_staged = false;
    }

    fn unwritten(&self) -> &[u8] {
        &self.out[self.written..]
    }

    /// The message has been sent to its end, and what comes is dropped.
    pub(crate) fn is_end_staged(&self) -> bool {
        !self.is_empty() && self.is_end_staged
    }

    fn is_dropped_enough(&self) -> bool {
        self.is_end_staged() && self.dropped > DROPPED_BYTES_MAX
    }

    /// Gives the filters what is here, until there is something to send.
    fn advance(&mut self, receiver: &mut Receiver) -> Result<(), BrokenBody> {
        if !self.unwritten().is_empty() || self.is_ended {
            return Ok(());
        }
        self.keeps &= self.out.len() <= KEPT_BYTES_MAX;
        if !self.keeps {
            self.clear_out();
        }
        while self.unwritten().is_empty() && !self.is_ended {
            let is_replaced = self.changes.drops_what_comes();
            if is_replaced {
                self.drop_received(receiver);
                self.take_replacement()?;
            } else if !receiver.content().is_empty() {
                let piece = &receiver.content()[..receiver.content().len().min(PIECE_BYTES_MAX)];
                let (bytes, left) = (piece.len(), receiver.content().len() - piece.len());
                debug_assert!(bytes > 0);
                self.run(piece, false)?;
                receiver.written_but(left);
            } else if receiver.is_done() {
                self.run(&[], true)?;
            } else {
                break;
            }
        }
        self.has_begun |= self.is_ended || !self.unwritten().is_empty();
        Ok(())
    }

    fn drop_received(&mut self, receiver: &mut Receiver) {
        self.dropped += receiver.content().len() as u64;
        receiver.written_but(0);
    }

    /// Takes the next piece of what takes the place of the body.
    fn take_replacement(&mut self) -> Result<(), BrokenBody> {
        // Taken out while the filters behind it run.
        let body = std::mem::take(replacement(&mut self.changes));
        let rest = &body[self.taken..];
        let piece = &rest[..rest.len().min(PIECE_BYTES_MAX)];
        let ran = self.run(piece, piece.len() == rest.len());
        self.taken += piece.len();
        *replacement(&mut self.changes) = body;
        ran
    }

    /// Runs a piece, and the end behind it, through all filters.
    fn run(&mut self, piece: &[u8], is_end: bool) -> Result<(), BrokenBody> {
        let ran = guarded(|| run_filters(&mut self.changes, &mut self.between, piece, is_end, &mut self.out));
        let held = ran.map_err(|_| BrokenBody::Panic)?.map_err(BrokenBody::Filter)?;
        self.is_ended |= is_end;
        let bytes = held + self.out.len() + self.between.iter().map(Vec::capacity).sum::<usize>();
        self.held.as_mut().map_or(Ok(()), |counted| counted.set(bytes))
    }
}

/// The body that takes the place of what comes.
fn replacement(changes: &mut BodyChanges) -> &mut Vec<u8> {
    match changes.iter_mut().next() {
        Some(Change::Replace(body)) => body,
        _ => unreachable!("asked of a body that is replaced"),
    }
}

/// Appends to `out` what the filters make of a piece, and returns how many bytes they hold.
fn run_filters(
    changes: &mut BodyChanges,
    between: &mut [Vec<u8>; 2],
    piece: &[u8],
    is_end: bool,
    out: &mut Vec<u8>,
) -> Result<usize, BodyError> {
    let [current, next] = between;
    current.clear();
    current.extend_from_slice(piece);
    let mut held = 0;
    for change in changes.iter_mut() {
        let Change::Filter(filter) = change else { continue };
        next.clear();
        for piece in current.chunks(PIECE_BYTES_MAX) {
            filter.piece(piece, next)?;
        }
        if is_end {
            filter.end(next)?;
        }
        held += filter.held_bytes();
        std::mem::swap(current, next);
    }
    out.extend_from_slice(current);
    for memory in between {
        memory.clear();
        memory.shrink_to(KEPT_BYTES_MAX);
    }
    Ok(held)
}

/// All that comes of a body that is here as a whole.
pub(crate) fn filter_all(filtered: &mut Filtered, body: &[u8], of_worker: &HeldBytes) -> Result<Vec<u8>, BrokenBody> {
    filtered.start(false, of_worker);
    if filtered.changes.drops_what_comes() {
        while !filtered.is_ended {
            filtered.take_replacement()?;
        }
    } else {
        body.chunks(PIECE_BYTES_MAX).try_for_each(|piece| filtered.run(piece, false))?;
        filtered.run(&[], true)?;
    }
    Ok(std::mem::take(&mut filtered.out))
}

/// One direction of an exchange.
pub(crate) struct BodyPipe<'a> {
    pub(crate) receiver: &'a mut Receiver,
    pub(crate) filtered: &'a mut Filtered,
    pub(crate) sender: &'a mut Sender,
}

impl BodyPipe<'_> {
    /// Stages what is here of the body, and its end where that is here as well.
    #[inline]
    pub(crate) fn stage(&mut self, buffers: &Buffers) -> Result<(), BrokenBody> {
        if !self.filtered.is_empty() {
            return self.stage_filtered(buffers);
        }
        let end = self.receiver.is_done().then(|| self.receiver.trailers());
        self.sender.stage(self.receiver.content(), end, buffers);
        self.receiver.written_but(self.sender.content_left());
        Ok(())
    }

    #[cold]
    fn stage_filtered(&mut self, buffers: &Buffers) -> Result<(), BrokenBody> {
        let filtered = &mut *self.filtered;
        if filtered.is_end_staged {
            filtered.drop_received(self.receiver);
            return Ok(());
        }
        filtered.advance(self.receiver)?;
        // Trailers would speak of a body that is another by now.
        let end = filtered.is_ended.then_some(&[][..]);
        self.sender.stage(filtered.unwritten(), end, buffers);
        filtered.is_end_staged = filtered.is_ended;
        filtered.written = filtered.out.len() - self.sender.content_left();
        Ok(())
    }

    /// Writes what is staged. Ready when all of it is out.
    #[inline]
    pub(crate) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut Stream,
        buffers: &Buffers,
    ) -> Poll<io::Result<()>> {
        if self.filtered.is_empty() {
            let flushed = self.sender.poll_flush(cx, stream, self.receiver.content(), buffers);
            self.receiver.written_but(self.sender.content_left());
            return flushed;
        }
        let flushed = self.sender.poll_flush(cx, stream, self.filtered.unwritten(), buffers);
        self.filtered.written = self.filtered.out.len() - self.sender.content_left();
        flushed
    }

    /// With nothing left to write: whether something can be staged before more is read.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        !self.filtered.is_empty() && self.has_more_filtered()
    }

    #[cold]
    fn has_more_filtered(&self) -> bool {
        let is_here = !self.receiver.content().is_empty() || self.receiver.is_done();
        !self.filtered.is_end_staged && (is_here || self.filtered.changes.drops_what_comes())
    }

    /// With nothing left to write: whether the message has been sent to its end, and of what it took the place of enough was
    /// read.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.receiver.is_done() || self.filtered.is_dropped_enough()
    }

    /// Goes back to the body's beginning, to send it again where that is possible.
    pub(crate) fn rewind(&mut self) {
        if self.filtered.is_empty() {
            if self.receiver.replayable {
                self.receiver.rewind();
            }
        } else {
            self.filtered.rewind();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_plugin::BodyFilter;

    struct Holding(usize);

    impl BodyFilter for Holding {
        fn piece(&mut self, piece: &[u8], _: &mut Vec<u8>) -> Result<(), BodyError> {
            self.0 += piece.len();
            Ok(())
        }

        fn end(&mut self, _: &mut Vec<u8>) -> Result<(), BodyError> {
            Ok(())
        }

        fn held_bytes(&self) -> usize {
            self.0
        }
    }

    #[test]
    fn what_filters_of_a_worker_hold_is_bounded() {
        let worker = HeldBytes::default();
        let start = || {
            let mut filtered = Filtered::default();
            filtered.changes.filter(Box::new(Holding(0)));
            filtered.start(false, &worker);
            filtered
        };
        let piece = vec![0; 1024 * 1024];
        let mut bodies: Vec<Filtered> = Vec::new();
        let refused = loop {
            let mut filtered = start();
            let ran = filtered.run(&piece, false);
            bodies.push(filtered);
            if ran.is_err() {
                break ran;
            }
            assert!(worker.get() <= HELD_BYTES_MAX);
        };
        assert_eq!(refused, Err(BrokenBody::Memory));
        assert!(bodies.len() > 32, "{}", bodies.len());
        // Whatever ends a body gives back what it held.
        bodies.pop();
        assert!(start().run(&piece[..1024], false).is_ok());
        bodies.iter_mut().for_each(Filtered::clear);
        assert_eq!(worker.get(), 0);
    }
}
