//! One direction of a tunnel: reads from one side, writes to the other, passes the end on.

use crate::basics::buffer::{Buffer, Buffers};
use crate::connection::stream::Stream;
use crate::handover::{DirectionState, Ends};
use std::ops::Range;
use std::task::{Context, Poll};
use tokio::io::ReadBuf;

/// Buffers moved before the other direction, and other tasks, have their turn.
const ROUNDS_MAX: u32 = 16;

/// The side at which a direction broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BrokenSide {
    /// Reading failed.
    Sender,
    /// Writing failed.
    Receiver,
}

/// State of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FlowState {
    Flowing,
    /// The sender has ended; the receiver has not been notified.
    Ending,
    /// Both sides have ended.
    Done,
}

/// Bytes on their way from one side to the other.
#[derive(Debug)]
pub(crate) struct Direction {
    /// Bytes read and not yet written: `buffer[held]`. No buffer while there are none.
    buffer: Option<Buffer>,
    held: Range<usize>,
    /// The receiver's stream may hold data back, as TLS does.
    is_unflushed: bool,
    state: FlowState,
    /// Bytes read so far, and written.
    pub(crate) read: u64,
    pub(crate) written: u64,
    /// When something was last read or written.
    pub(crate) moved_ms: u64,
}

impl Direction {
    /// Begins with bytes that arrived early, after so many that were read and written before; `has_ended`: nothing more arrives.
    pub(crate) fn new(early: Option<(Buffer, Range<usize>)>, has_ended: bool, so_far: (u64, u64), now_ms: u64) -> Self {
        let (buffer, held) = early.map_or((None, 0..0), |(buffer, held)| (Some(buffer), held));
        let state = if has_ended { FlowState::Ending } else { FlowState::Flowing };
        let (read, written) = so_far;
        Direction { buffer, held, is_unflushed: false, state, read, written, moved_ms: now_ms }
    }

    /// State that another process needs to continue; the held bytes are appended to `bytes`.
    pub(super) fn pack(&self, bytes: &mut Vec<u8>, now_ms: u64) -> DirectionState {
        bytes.extend_from_slice(self.buffer.as_deref().map_or(&[], |buffer| &buffer[self.held.clone()]));
        DirectionState {
            held: self.buffer.as_ref().map_or(0, |_| self.held.len()),
            ends: match self.state {
                FlowState::Flowing => Ends::Open,
                FlowState::Ending => Ends::Untold,
                FlowState::Done => Ends::Told,
            },
            read: self.read,
            written: self.written,
            quiet_ms: now_ms.saturating_sub(self.moved_ms),
        }
    }

    /// Continues with what another process has packed. `held` fits into a buffer.
    pub(super) fn unpack(state: &DirectionState, held: &[u8], buffers: &Buffers, now_ms: u64) -> Direction {
        let buffer = (!held.is_empty()).then(|| {
            let mut buffer = buffers.take();
            buffer[..held.len()].copy_from_slice(held);
            buffer
        });
        Direction {
            buffer,
            held: 0..held.len(),
            is_unflushed: false,
            state: match state.ends {
                Ends::Open => FlowState::Flowing,
                Ends::Untold => FlowState::Ending,
                Ends::Told => FlowState::Done,
            },
            read: state.read,
            written: state.written,
            moved_ms: now_ms.saturating_sub(state.quiet_ms),
        }
    }

    /// Whether the sender has not ended.
    pub(super) fn is_flowing(&self) -> bool {
        self.state == FlowState::Flowing
    }

    /// Whether the end has been passed on.
    pub(super) fn is_done(&self) -> bool {
        self.state == FlowState::Done
    }

    /// Whether there are bytes that the receiver has not taken.
    pub(super) fn is_stuck(&self) -> bool {
        self.buffer.is_some() || self.is_unflushed
    }

    /// Drops the held bytes.
    pub(super) fn abandon(&mut self, buffers: &Buffers) {
        if let Some(buffer) = self.buffer.take() {
            buffers.give(buffer);
        }
        self.is_unflushed = false;
    }

    /// Moves bytes until it has to wait for one of the sides, both have ended, or others have waited long enough.
    pub(super) fn poll_pump(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Stream,
        to: &mut Stream,
        buffers: &Buffers,
        now_ms: u64,
    ) -> Result<(), BrokenSide> {
        for _ in 0..ROUNDS_MAX {
            if self.poll_write(cx, to, buffers, now_ms)?.is_pending() {
                return Ok(());
            }
            match self.state {
                FlowState::Done => return Ok(()),
                FlowState::Ending => {
                    // An error means that the receiver is gone, which ends this direction as well.
                    if to.poll_shutdown(cx).is_ready() {
                        self.state = FlowState::Done;
                    }
                    return Ok(());
                }
                FlowState::Flowing => {
                    if self.poll_read(cx, from, buffers, now_ms)?.is_pending() {
                        return Ok(());
                    }
                }
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Writes the held bytes; ready when there are none.
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut Stream,
        buffers: &Buffers,
        now_ms: u64,
    ) -> Result<Poll<()>, BrokenSide> {
        if let Some(buffer) = &self.buffer {
            while !self.held.is_empty() {
                match to.poll_write(cx, &buffer[self.held.clone()]) {
                    Poll::Pending => return Ok(Poll::Pending),
                    Poll::Ready(Ok(n)) if n > 0 => {
                        self.held.start += n;
                        self.written += n as u64;
                        self.moved_ms = now_ms;
                        self.is_unflushed = true;
                    }
                    Poll::Ready(_) => return Err(BrokenSide::Receiver),
                }
            }
            self.buffer.take().into_iter().for_each(|buffer| buffers.give(buffer));
        }
        if self.is_unflushed {
            match to.poll_flush(cx) {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(Ok(())) => self.is_unflushed = false,
                Poll::Ready(Err(_)) => return Err(BrokenSide::Receiver),
            }
        }
        Ok(Poll::Ready(()))
    }

    /// Reads once, into a buffer that is kept only if something came. If there is nothing to read, this costs no system call: the
    /// event loop's readiness says so, and TLS is polled each time, as it may hold bytes that nothing will announce.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Stream,
        buffers: &Buffers,
        now_ms: u64,
    ) -> Result<Poll<()>, BrokenSide> {
        let mut buffer = buffers.take();
        let mut space = ReadBuf::new(&mut buffer);
        let read = from.poll_read(cx, &mut space);
        let n = space.filled().len();
        if n > 0 {
            self.read += n as u64;
            self.moved_ms = now_ms;
            self.held = 0..n;
            self.buffer = Some(buffer);
            return Ok(Poll::Ready(()));
        }
        buffers.give(buffer);
        match read {
            Poll::Pending => Ok(Poll::Pending),
            Poll::Ready(Ok(())) => {
                self.state = FlowState::Ending;
                Ok(Poll::Ready(()))
            }
            Poll::Ready(Err(_)) => Err(BrokenSide::Sender),
        }
    }
}
