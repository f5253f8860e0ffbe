//! The path of one body: from where it is received, through what changes it, to where it is sent.
//!
//! ```text
//!   Receiver.content ───────────────────────────────▶ Sender      a body that nothing changes
//!   Receiver.content ──▶ filter ──▶ filter ──▶ out ──▶ Sender      a piece at a time
//!                                    Replace ──▶ out ──▶ Sender      what is received is dropped
//! ```
//!
//! When the node has nothing more for now, filters release what they hold back without need. A slow filter limits how much it takes
//! at once, and the worker serves others in between; a filter that is too slow for that has its work done on another thread, and
//! nothing is read meanwhile. If those threads are too busy, the body waits for its turn, up to a bound.
//!
//! Nothing is read, and no filter is given a piece, before the output for the last piece is written: that is the backpressure, and
//! what bounds the memory where a small piece becomes a large one. A request can be sent again as long as all output of its filters
//! is still in `out`: filters run once, however many nodes are tried.
//!
//! The part of a body that a log wants is captured while it is passed on.

mod filters;

use super::receiver::Receiver;
use super::sender::Sender;
use crate::basics::buffer::Buffers;
use crate::basics::clock::thread_cpu_time;
use crate::connection::stream::Stream;
use crate::worker::Worker;
use crate::worker::plugins::{PluginRefusal, Plugins, call_guarded};
use filters::{Filters, OffloadState, PieceEnd};
use std::borrow::Cow;
use std::cell::Cell;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use stillgate_plugin_api::BodyChanges;
use stillgate_plugin_api::body::BodyChange;
use stillgate_plugin_api::client_bound::{Full, Lease};
use stillgate_plugin_api::work::Output;
use stillgate_wire::Edits;
use tokio::time::Sleep;

/// Bytes that a filter gets at once.
pub(super) const PIECE_BYTES_MAX: usize = 16 * 1024;
/// CPU time that filters may take for a body, and what each byte of their input or output and each piece adds to it: a long body
/// may take long, but a body may not cost more than others of its length. What pieces add is at most a quarter of the time that has
/// passed: an endless stream of short pieces stays within the bound, and a sender gains no time by sending many quickly.
const CPU_MAX: Duration = Duration::from_millis(200);
const CPU_NANOS_PER_BYTE: u64 = 50;
const CPU_PER_PIECE: Duration = Duration::from_micros(100);
/// CPU time after which others are served before filters get more of a body.
const TURN_CPU: Duration = Duration::from_micros(100);
/// How much of a changed request is kept so that it can be sent to another node.
const KEPT_BYTES_MAX: usize = 64 * 1024;
/// Bytes that are read and dropped after a response that was replaced, so that its connection can be reused.
const DROPPED_BYTES_MAX: u64 = 256 * 1024;

/// The changes of one body, and their output that has not been written yet.
#[derive(Default)]
pub(crate) struct FilteredBody {
    pub(crate) changes: BodyChanges,
    /// Output of the filters.
    out: Vec<u8>,
    /// How much of it has been written.
    written: usize,
    /// Data between filters.
    between: [Vec<u8>; 2],
    /// For a body that replaces another: how much of the original the filters have seen.
    taken: usize,
    /// Whether `out` is kept from its beginning on.
    keeps: bool,
    /// Most bytes that the filters get at once.
    piece_bytes: usize,
    /// CPU time of the filters since others were served.
    turn_cpu: Duration,
    /// It was long: others are served before they get more.
    is_tired: bool,
    /// Since the last piece the filters have been requested to release what they hold back without need.
    is_paused: bool,
    /// Work of a filter that is done on another thread.
    waiting: Option<OffloadedFilter>,
    /// The filters have been notified of the end.
    is_ended: bool,
    /// The sender has been notified of the end.
    is_end_staged: bool,
    /// There was something to send.
    has_begun: bool,
    dropped: u64,
    held: Option<Lease>,
    /// Memory held for a body that was awaited as a whole.
    kept: Option<Lease>,
    /// Memory held for the part kept for the log.
    captured: Option<Lease>,
    /// Input and output of the filters in bytes, and the time that they took.
    seen_bytes: u64,
    cpu: Duration,
    /// What the pieces so far have added to the bound of `cpu`.
    cpu_of_pieces: Duration,
    began: Option<Instant>,
    /// The body is that of a call of gRPC, whose trailers say what became of it.
    pub(crate) passes_trailers: bool,
    /// CPU time that they have taken on other threads.
    offloaded_cpu: Duration,
}

/// Filters that continue when the work of one of them is done. The output of that filter is kept in [`FilteredBody::between`], or is in
/// [`FilteredBody::out`] if it is the last.
struct OffloadedFilter {
    /// Its place among the filters.
    at: usize,
    plugin: &'static str,
    step: PieceEnd,
    doing: OffloadState,
    /// Ends the wait; `None`: it has not begun.
    limit: Option<Pin<Box<Sleep>>>,
}

/// Why a body cannot be passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BrokenBody {
    /// The plugin whose filter was running.
    plugin: &'static str,
    cause: BreakCause,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BreakCause {
    Refused(PluginRefusal),
    /// A filter panicked.
    Panic,
}

impl BrokenBody {
    /// Status if the request's body is refused.
    pub(crate) fn status(self) -> u16 {
        match self.cause {
            BreakCause::Refused(PluginRefusal::Malformed) => 400,
            BreakCause::Refused(PluginRefusal::Failed) | BreakCause::Panic => 500,
            BreakCause::Refused(PluginRefusal::Busy) => 503,
            BreakCause::Refused(_) => 413,
        }
    }

    /// Status if the response's body is refused.
    pub(crate) fn status_of_response(self) -> u16 {
        match self.cause {
            BreakCause::Refused(PluginRefusal::Busy) => 503,
            _ => 502,
        }
    }

    pub(crate) fn message(self) -> &'static str {
        match self.cause {
            BreakCause::Refused(PluginRefusal::Malformed) => "the body is not in the coding that its head names",
            BreakCause::Refused(PluginRefusal::Memory | PluginRefusal::ClientMemory) => {
                "the memory limit for bodies held by plugins is reached"
            }
            BreakCause::Refused(PluginRefusal::Busy) => "the threads that do the work of plugins are busy",
            BreakCause::Refused(PluginRefusal::Time) => "plugins exceeded their CPU limit for this body",
            BreakCause::Refused(PluginRefusal::Head | PluginRefusal::TooLarge) => {
                "the body is larger than a plugin may hold"
            }
            BreakCause::Refused(PluginRefusal::Failed) | BreakCause::Panic => "a plugin failed",
        }
    }

    /// The body is larger than this plugin accepts.
    pub(crate) fn too_large(plugin: &'static str) -> BrokenBody {
        BrokenBody { plugin, cause: BreakCause::Refused(PluginRefusal::TooLarge) }
    }

    pub(crate) fn is_panic(self) -> bool {
        self.cause == BreakCause::Panic
    }

    pub(crate) fn is_busy(self) -> bool {
        self.cause == BreakCause::Refused(PluginRefusal::Busy)
    }

    /// Counts and logs it.
    pub(crate) fn tell(self, worker: &Worker) {
        match self.cause {
            BreakCause::Refused(refusal) => worker.note_refusal(self.plugin, refusal),
            BreakCause::Panic => worker.note_filter_panic(self.plugin),
        }
    }
}

impl FilteredBody {
    /// Whether the body is passed on unchanged.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The body is about to be sent. `keeps`: it may have to be sent again.
    pub(crate) fn start(&mut self, keeps: bool, held: Lease) {
        self.keeps = keeps;
        self.piece_bytes = self.changes.piece_bytes_max().clamp(1, PIECE_BYTES_MAX);
        self.held = Some(held);
        self.began = Some(Instant::now());
    }

    /// Accounts for a body that replaces the one received.
    pub(crate) fn hold(&mut self, bytes: usize, begin: impl FnOnce() -> Lease) -> Result<(), BrokenBody> {
        let kept = self.kept.get_or_insert_with(begin);
        let plugin = self.changes.plugin;
        kept.set(bytes).map_err(|full| BrokenBody { plugin, cause: BreakCause::Refused(full.into()) })
    }

    /// Like `hold`, for what plugins have put in place of the body, if anything.
    #[inline]
    pub(crate) fn hold_replaced(&mut self, begin: impl FnOnce() -> Lease) -> Result<(), BrokenBody> {
        match self.changes.replaced_bytes() {
            0 => Ok(()),
            bytes => self.hold(bytes, begin),
        }
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
        let (changes, captured) = (std::mem::take(&mut self.changes), self.captured.take());
        *self = FilteredBody { changes, captured, out: std::mem::take(&mut self.out), ..FilteredBody::default() };
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
            self.changes.captured_mut().rewind();
            (self.taken, self.is_ended) = (0, false);
        } else {
            return;
        }
        self.is_end_staged = false;
    }

    fn unwritten(&self) -> &[u8] {
        &self.out[self.written..]
    }

    /// The message has been sent to its end, and further input is dropped.
    pub(crate) fn is_end_staged(&self) -> bool {
        !self.is_empty() && self.is_end_staged
    }

    fn is_dropped_enough(&self) -> bool {
        self.is_end_staged() && self.dropped > DROPPED_BYTES_MAX
    }

    /// Feeds the filters with what has arrived, until there is something to send.
    fn advance(&mut self, receiver: &mut Receiver) -> Result<(), BrokenBody> {
        if !self.unwritten().is_empty() || self.is_ended {
            return Ok(());
        }
        self.make_room();
        while !self.is_ended && self.waiting.is_none() && !self.is_tired {
            let is_replaced = self.changes.drops_what_comes();
            let is_last = !is_replaced && receiver.content().is_empty() && receiver.is_done();
            // The end goes with the last piece, which saves a write.
            if !self.unwritten().is_empty() && !is_last {
                break;
            }
            if is_replaced {
                self.drop_received(receiver);
                self.take_replacement()?;
            } else if !receiver.content().is_empty() {
                let piece = &receiver.content()[..receiver.content().len().min(self.piece_bytes)];
                let (bytes, left) = (piece.len(), receiver.content().len() - piece.len());
                assert!(bytes > 0);
                // The end comes with the last piece: what filters do is counted once, and is one write.
                let step = if left == 0 && receiver.is_done() { PieceEnd::End } else { PieceEnd::Piece };
                self.run(piece, step)?;
                receiver.consume_all_but(left);
            } else if receiver.is_done() {
                self.run(&[], PieceEnd::End)?;
            } else {
                break;
            }
        }
        self.has_begun |= self.is_ended || !self.unwritten().is_empty();
        Ok(())
    }

    /// What was written is kept only if it may have to be written again.
    fn make_room(&mut self) {
        self.keeps &= self.out.len() <= KEPT_BYTES_MAX;
        if !self.keeps {
            self.clear_out();
        }
    }

    /// Nothing more of the body has arrived for now; returns whether filters still have output.
    fn pause(&mut self) -> Result<bool, BrokenBody> {
        let is_under_way = self.held.is_some() && !self.is_ended && !self.changes.drops_what_comes();
        if !is_under_way || self.is_paused || self.waiting.is_some() || !self.unwritten().is_empty() {
            return Ok(false);
        }
        self.make_room();
        self.run(&[], PieceEnd::Pause)?;
        self.has_begun |= !self.unwritten().is_empty();
        Ok(!self.unwritten().is_empty() || self.waiting.is_some())
    }

    fn drop_received(&mut self, receiver: &mut Receiver) {
        self.dropped += receiver.content().len() as u64;
        receiver.consume_all_but(0);
    }

    /// Takes the next piece of the replacement body.
    fn take_replacement(&mut self) -> Result<(), BrokenBody> {
        // Taken out while the filters after it run.
        let body = std::mem::take(replacement(&mut self.changes));
        let rest = &body[self.taken..];
        let piece = &rest[..rest.len().min(self.piece_bytes)];
        let step = if piece.len() == rest.len() { PieceEnd::End } else { PieceEnd::Piece };
        let ran = self.run(piece, step);
        self.taken += piece.len();
        *replacement(&mut self.changes) = body;
        ran
    }

    /// Runs a body that has arrived completely.
    async fn run_all(&mut self, body: &[u8], plugins: &Plugins) -> Result<(), BrokenBody> {
        if !self.changes.drops_what_comes() {
            for piece in body.chunks(PIECE_BYTES_MAX) {
                self.run(piece, PieceEnd::Piece)?;
                self.finish_work(plugins).await?;
                self.leave_turn().await;
            }
            self.run(&[], PieceEnd::End)?;
            return self.finish_work(plugins).await;
        }
        while !self.is_ended {
            self.take_replacement()?;
            self.finish_work(plugins).await?;
            self.leave_turn().await;
        }
        Ok(())
    }

    /// Lets others be served if the filters took long.
    async fn leave_turn(&mut self) {
        if std::mem::take(&mut self.is_tired) {
            self.turn_cpu = Duration::ZERO;
            tokio::task::yield_now().await;
        }
    }

    /// Runs a piece, and what follows it, through all filters.
    fn run(&mut self, piece: &[u8], step: PieceEnd) -> Result<(), BrokenBody> {
        if self.changes.filters_mut().next().is_none() {
            self.out.extend_from_slice(piece);
            self.is_ended |= step == PieceEnd::End;
            if self.changes.captured().is_on() {
                self.capture(piece, self.is_ended);
            }
            return Ok(());
        }
        self.is_paused = step == PieceEnd::Pause;
        self.seen_bytes += piece.len() as u64;
        self.cpu_of_pieces += CPU_PER_PIECE;
        self.run_from(0, None, (piece, step))
    }

    /// Runs a piece through the filters from one on; with a result, the work of that filter is done.
    fn run_from(
        &mut self,
        at: usize,
        result: Option<Output>,
        (piece, step): (&[u8], PieceEnd),
    ) -> Result<(), BrokenBody> {
        let stopwatch = Stopwatch::start();
        let (running, uncounted) = (Cell::new(""), Cell::new(Duration::ZERO));
        let before = self.out.len();
        let ran = call_guarded(|| {
            let (changes, between) = (&mut self.changes, &mut self.between);
            let filters = Filters { changes, between, running: &running, uncounted: &uncounted };
            filters.run(at, result, (piece, step), &mut self.out)
        });
        let took = stopwatch.elapsed();
        self.cpu += took.saturating_sub(uncounted.get());
        self.turn_cpu += took;
        self.is_tired = step == PieceEnd::Piece && self.turn_cpu >= TURN_CPU;
        let broken = |why| BrokenBody { plugin: running.get(), cause: why };
        let work =
            ran.map_err(|_| broken(BreakCause::Panic))?.map_err(|refusal| broken(BreakCause::Refused(refusal)))?;
        self.is_ended |= step == PieceEnd::End && work.is_none();
        if self.changes.captured().is_on() {
            let out = std::mem::take(&mut self.out);
            self.capture(&out[before..], self.is_ended);
            self.out = out;
        }
        let given = (self.out.len() - before) as u64;
        self.seen_bytes += given;
        let of_bytes = Duration::from_nanos(self.seen_bytes.saturating_mul(CPU_NANOS_PER_BYTE));
        let of_pieces = || self.cpu_of_pieces.min(self.began.map_or(Duration::ZERO, |began| began.elapsed() / 4));
        if self.cpu > CPU_MAX + of_bytes && self.cpu > CPU_MAX + of_bytes + of_pieces() {
            return Err(broken(BreakCause::Refused(PluginRefusal::Time)));
        }
        let plugin = running.get();
        self.waiting = work.map(|(at, work)| OffloadedFilter {
            at,
            plugin,
            step,
            doing: OffloadState::NotBegun(work),
            limit: None,
        });
        let held: usize = self.changes.filters_mut().map(|(_, filter)| filter.held_bytes()).sum();
        let bytes = held + self.out.len() + self.between.iter().map(Vec::capacity).sum::<usize>();
        let counted = self.held.as_mut().map_or(Ok(()), |counted| counted.set(bytes));
        counted.map_err(|full| broken(BreakCause::Refused(full.into())))
    }
}

/// The body that replaces the one received.
fn replacement(changes: &mut BodyChanges) -> &mut Vec<u8> {
    match changes.iter_mut().next() {
        Some(BodyChange::Replace(body)) => body,
        _ => unreachable!("asked of a body that is replaced"),
    }
}

impl From<Full> for PluginRefusal {
    fn from(full: Full) -> PluginRefusal {
        match full {
            Full::Worker => PluginRefusal::Memory,
            Full::Client => PluginRefusal::ClientMemory,
        }
    }
}

/// All output for a body that has arrived completely.
///
/// `None`: nothing changes it.
pub(crate) async fn filter_all(
    filtered: &mut FilteredBody,
    body: &[u8],
    client: IpAddr,
    worker: &Worker,
) -> Result<Option<Vec<u8>>, BrokenBody> {
    filtered.start_capture(|| worker.plugins.held.begin(client));
    if filtered.is_empty() {
        if filtered.changes.captured().is_on() {
            filtered.capture(body, true);
        }
        return Ok(None);
    }
    filtered.start(false, worker.plugins.held.begin(client));
    filtered.run_all(body, &worker.plugins).await?;
    Ok(Some(std::mem::take(&mut filtered.out)))
}

/// One direction of an exchange.
pub(crate) struct BodyPipe<'a> {
    pub(crate) receiver: &'a mut Receiver,
    pub(crate) filtered: &'a mut FilteredBody,
    pub(crate) sender: &'a mut Sender,
    pub(crate) trailers: Trailers<'a>,
}

/// What becomes of the trailer lines of an unchanged body, or of a call of gRPC.
#[derive(Clone, Copy)]
pub(crate) enum Trailers<'a> {
    Pass,
    /// Fields that plugins checked, set or removed in a request's head must not return after its body: some servers read trailers
    /// as if they had been in the head.
    Drop,
    /// Fields with names that were edited in the head are left out.
    Filter(&'a Edits),
}

impl BodyPipe<'_> {
    /// Stages what has arrived of the body, and its end if that has arrived as well.
    #[inline]
    pub(crate) fn stage(&mut self, worker: &Worker) -> Result<(), BrokenBody> {
        if !self.filtered.is_empty() {
            return self.stage_filtered(worker).inspect_err(|broken| broken.tell(worker));
        }
        let buffers = &worker.buffers;
        let end = self.receiver.is_done().then(|| self.receiver.trailers());
        let end = end.map(|lines| match self.trailers {
            Trailers::Pass => Cow::Borrowed(lines),
            Trailers::Drop => Cow::Borrowed(&[][..]),
            Trailers::Filter(edits) => edits.trailers(lines),
        });
        self.sender.stage(self.receiver.content(), end.as_deref(), buffers);
        self.pass_on(self.sender.content_left());
        Ok(())
    }

    /// All but the last `left` bytes of an unchanged body have been passed on.
    #[inline]
    fn pass_on(&mut self, left: usize) {
        if self.filtered.changes.captured().is_on() {
            let content = self.receiver.content();
            self.filtered.capture(&content[..content.len() - left], left == 0 && self.receiver.is_done());
        }
        self.receiver.consume_all_but(left);
    }

    #[cold]
    fn stage_filtered(&mut self, worker: &Worker) -> Result<(), BrokenBody> {
        let filtered = &mut *self.filtered;
        if filtered.is_end_staged {
            filtered.drop_received(self.receiver);
            return Ok(());
        }
        filtered.advance(self.receiver)?;
        let end = filtered.is_ended.then(|| match self.trailers {
            // What became of a call: without it the client has not been answered.
            Trailers::Filter(edits) if filtered.passes_trailers && self.receiver.is_done() => {
                edits.trailers(self.receiver.trailers())
            }
            // Others would describe a body that has been replaced.
            _ => Cow::Borrowed(&[][..]),
        });
        self.sender.stage(filtered.unwritten(), end.as_deref(), &worker.buffers);
        filtered.is_end_staged = filtered.is_ended;
        filtered.written = filtered.out.len() - self.sender.content_left();
        Ok(())
    }

    /// Writes what is staged. Ready when all of it has been sent.
    #[inline]
    pub(crate) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut Stream,
        buffers: &Buffers,
    ) -> Poll<io::Result<()>> {
        if self.filtered.is_empty() {
            let flushed = self.sender.poll_flush(cx, stream, self.receiver.content(), buffers);
            self.pass_on(self.sender.content_left());
            return flushed;
        }
        let flushed = self.sender.poll_flush(cx, stream, self.filtered.unwritten(), buffers);
        self.filtered.written = self.filtered.out.len() - self.sender.content_left();
        flushed
    }

    /// With nothing left to write: stages what filters hold back without need, as there is no more input for now. Returns whether
    /// there is something to write.
    #[cold]
    pub(crate) fn pause(&mut self, worker: &Worker) -> Result<bool, BrokenBody> {
        let comes = self.filtered.pause().inspect_err(|broken| broken.tell(worker))?;
        if !self.filtered.unwritten().is_empty() {
            self.stage(worker)?;
        }
        Ok(comes)
    }

    /// Waits for filters that work on other threads, or that got as much as they take at once. Ready when something can be staged,
    /// or more be read.
    pub(crate) fn wait_for_filters(&mut self, cx: &mut Context<'_>, worker: &Worker) -> Poll<Result<(), BrokenBody>> {
        if std::mem::take(&mut self.filtered.is_tired) {
            self.filtered.turn_cpu = Duration::ZERO;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let worked = self.filtered.poll_work(cx, &worker.plugins);
        worked.map_err(|broken| {
            broken.tell(worker);
            broken
        })
    }

    /// With nothing left to write: whether something can be staged before more is read.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        !self.filtered.is_empty() && self.has_more_filtered()
    }

    #[cold]
    fn has_more_filtered(&self) -> bool {
        let filtered = &*self.filtered;
        let is_here = !self.receiver.content().is_empty() || self.receiver.is_done();
        let has_given = !filtered.unwritten().is_empty();
        !filtered.is_end_staged && (is_here || has_given || filtered.changes.drops_what_comes())
    }

    /// With nothing left to write: whether the message has been sent to its end, and enough was read of the one that it replaced.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.receiver.is_done() || self.filtered.is_dropped_enough()
    }

    /// Returns to the beginning of the body, to send it again if that is possible.
    pub(crate) fn rewind(&mut self) {
        if self.filtered.is_empty() {
            if self.receiver.replayable {
                self.receiver.rewind();
                self.filtered.changes.captured_mut().rewind();
            }
        } else {
            self.filtered.rewind();
        }
    }
}

impl FilteredBody {
    /// Begins to keep the body, as it is passed on, for the log, if plugins require that.
    #[inline]
    pub(crate) fn start_capture(&mut self, begin: impl FnOnce() -> Lease) {
        if self.changes.captured().is_on() {
            self.captured = Some(begin());
        }
    }

    /// Nothing is kept for the log.
    #[inline]
    pub(crate) fn end_capture(&mut self) {
        if self.captured.is_some() || self.changes.captured().is_on() {
            self.give_up_capture();
        }
    }

    #[cold]
    fn give_up_capture(&mut self) {
        self.changes.captured_mut().give_up();
        self.captured = None;
    }

    /// Captures a piece that is passed on, perhaps the last; without memory for it, nothing of the body is kept.
    #[cold]
    fn capture(&mut self, piece: &[u8], is_last: bool) {
        let capture = self.changes.captured_mut();
        capture.piece(piece);
        if is_last {
            capture.end();
        }
        let bytes = capture.bytes().map_or(0, <[u8]>::len);
        if self.captured.as_mut().is_some_and(|held| held.set(bytes).is_err()) {
            self.give_up_capture();
        }
    }
}

#[cfg(test)]
mod tests;

// How long filters of a body take, in CPU time of the thread: others that want its core do not count.
//
// Reading the CPU clock is a system call of half a microsecond, which is more than most filters take for a piece. The wall clock
// is read without one, and never shows less than the CPU clock. So the wall clock counts, as long as it shows little; where it
// shows more, the CPU clock is read as well, and compared with its value up to [`APART_MAX`] before. So a time is never too short,
// and too long by less than that.

/// Maximum time between a reading of the CPU clock and what is measured from it.
const APART_MAX: Duration = Duration::from_millis(1);

thread_local! {
    /// When the CPU clock was last read, and its value.
    static READ: Cell<Option<(Instant, Duration)>> = const { Cell::new(None) };
}

/// Measures from its start, on the thread that started it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stopwatch {
    began: Instant,
    /// Value of the CPU clock, read no later than `began` and less than [`APART_MAX`] before it.
    cpu: Duration,
}

impl Stopwatch {
    pub(super) fn start() -> Stopwatch {
        let began = Instant::now();
        let read = READ.get().filter(|(at, _)| began.saturating_duration_since(*at) < APART_MAX);
        let (_, cpu) = read.unwrap_or_else(|| {
            let read = (began, thread_cpu_time());
            READ.set(Some(read));
            read
        });
        Stopwatch { began, cpu }
    }

    pub(super) fn elapsed(&self) -> Duration {
        let wall = self.began.elapsed();
        if wall < APART_MAX { wall } else { wall.min(thread_cpu_time().saturating_sub(self.cpu)) }
    }
}

#[cfg(test)]
mod filter_time_tests {
    use super::*;

    const LONG: Duration = Duration::from_millis(40);

    fn work_for(time: Duration) {
        let until = thread_cpu_time() + time;
        while thread_cpu_time() < until {}
    }

    #[test]
    fn work_counts_and_waiting_does_not() {
        let stopwatch = Stopwatch::start();
        work_for(APART_MAX / 2);
        assert!(stopwatch.elapsed() >= APART_MAX / 2);
        work_for(LONG);
        assert!(stopwatch.elapsed() >= LONG);
        let stopwatch = Stopwatch::start();
        // This is another thread's work.
        std::thread::spawn(|| work_for(LONG)).join().unwrap();
        assert!(stopwatch.elapsed() < LONG / 2, "{:?}", stopwatch.elapsed());
    }
}
