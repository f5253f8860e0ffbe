//! The filters of one body, called one after the other with what comes of the one before.

use super::body_pipe::PIECE_BYTES_MAX;
use crate::worker::plugins::Refusal;
use std::cell::Cell;
use std::time::Duration;
use stillgate_plugin::flow::{Output, Work};
use stillgate_plugin::{BodyChanges, BodyError};

/// Of memory between filters, what is kept.
const KEPT_BYTES_MAX: usize = 64 * 1024;

/// What a piece is followed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Perhaps by another.
    Piece,
    /// By nothing for now.
    Pause,
    /// By the end.
    End,
}

/// The filters of a body, about to be given a piece.
pub(super) struct Filters<'a> {
    pub(super) changes: &'a mut BodyChanges,
    pub(super) between: &'a mut [Vec<u8>; 2],
    /// The plugin whose filter is called; after that, the one whose filter holds most.
    pub(super) running: &'a Cell<&'static str>,
    /// In CPU time of the thread.
    pub(super) until: Duration,
}

impl Filters<'_> {
    /// Appends to `out` what they make of what comes to the first of them, which is in `between`; with a result, the work of that
    /// one is done. Gives work that has to be done before the filter of that place goes on.
    pub(super) fn run(
        self,
        first: usize,
        mut result: Option<Output>,
        step: Step,
        out: &mut Vec<u8>,
    ) -> Result<Option<(usize, Work)>, Refusal> {
        let [current, next] = self.between;
        let mut most = (0, "");
        for (at, (plugin, filter)) in self.changes.filters_mut().enumerate().skip(first) {
            self.running.set(plugin);
            match result.take() {
                // What it gave before its work is in `next` already.
                Some(result) => filter.worked(result, next).map_err(refusal)?,
                None => {
                    next.clear();
                    for piece in current.chunks(PIECE_BYTES_MAX) {
                        filter.piece(piece, next).map_err(refusal)?;
                    }
                    match step {
                        Step::Piece => {}
                        Step::Pause => filter.pause(next).map_err(refusal)?,
                        Step::End => {
                            filter.end(next).map_err(refusal)?;
                            while filter.has_more() && cpu_time() <= self.until {
                                filter.end(next).map_err(refusal)?;
                            }
                        }
                    }
                }
            }
            if let Some(work) = filter.work() {
                return Ok(Some((at, work)));
            }
            most = most.max((filter.held_bytes() + next.len(), plugin));
            std::mem::swap(current, next);
        }
        self.running.set(most.1);
        out.extend_from_slice(current);
        for memory in self.between {
            memory.clear();
            memory.shrink_to(KEPT_BYTES_MAX);
        }
        Ok(None)
    }
}

/// Of this thread. Others that want its core do not count.
pub(super) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

fn refusal(error: BodyError) -> Refusal {
    match error {
        BodyError::TooLarge => Refusal::TooLarge,
        BodyError::Malformed => Refusal::Malformed,
        BodyError::Failed => Refusal::Failed,
    }
}
