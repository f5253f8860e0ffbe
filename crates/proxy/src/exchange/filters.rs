//! The filters of one body, called one after the other with what comes of the one before.

use super::body_pipe::PIECE_BYTES_MAX;
use crate::worker::plugins::Refusal;
use std::cell::Cell;
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
}

impl Filters<'_> {
    /// Appends to `out` what they make of a piece, the first of them given; with a result, the work of that one is done. Gives
    /// work that has to be done before the filter of that place goes on.
    pub(super) fn run(
        self,
        first: usize,
        mut result: Option<Output>,
        (piece, step): (&[u8], Step),
        out: &mut Vec<u8>,
    ) -> Result<Option<(usize, Work)>, Refusal> {
        let [current, next] = self.between;
        let last = self.changes.filters_mut().count().saturating_sub(1);
        let mut most = (0, "");
        let mut piece = Some(piece);
        for (at, (plugin, filter)) in self.changes.filters_mut().enumerate().skip(first) {
            self.running.set(plugin);
            // The last writes to where all goes: most bodies have one filter, and are not copied.
            let gives = if at == last { &mut *out } else { &mut *next };
            let (before, comes) = (gives.len(), piece.take().unwrap_or(&current[..]));
            match result.take() {
                // What it gave before its work is there already.
                Some(result) => filter.worked(result, gives).map_err(refusal)?,
                None => {
                    for piece in comes.chunks(PIECE_BYTES_MAX) {
                        filter.piece(piece, gives).map_err(refusal)?;
                    }
                    match step {
                        Step::Piece => {}
                        Step::Pause => filter.pause(gives).map_err(refusal)?,
                        Step::End => filter.end(gives).map_err(refusal)?,
                    }
                }
            }
            if let Some(work) = filter.work() {
                return Ok(Some((at, work)));
            }
            most = most.max((filter.held_bytes() + gives.len() - before, plugin));
            std::mem::swap(current, next);
            next.clear();
        }
        self.running.set(most.1);
        for memory in self.between {
            memory.clear();
            memory.shrink_to(KEPT_BYTES_MAX);
        }
        Ok(None)
    }
}

fn refusal(error: BodyError) -> Refusal {
    match error {
        BodyError::TooLarge => Refusal::TooLarge,
        BodyError::Malformed => Refusal::Malformed,
        BodyError::Failed => Refusal::Failed,
    }
}
