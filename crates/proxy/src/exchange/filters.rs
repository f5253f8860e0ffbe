//! The filters of one body, each called with the output of the previous one.

use super::body_pipe::PIECE_BYTES_MAX;
use crate::worker::plugins::PluginRefusal;
use std::cell::Cell;
use stillgate_plugin_api::work::{Output, Work};
use stillgate_plugin_api::{BodyChanges, BodyError};

/// How much memory is kept of what lies between filters.
const KEPT_BYTES_MAX: usize = 64 * 1024;

/// What a piece is followed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PieceEnd {
    /// Another piece may follow.
    Piece,
    /// Nothing follows for now.
    Pause,
    /// The end follows.
    End,
}

/// The filters of a body, about to get a piece.
pub(super) struct Filters<'a> {
    pub(super) changes: &'a mut BodyChanges,
    pub(super) between: &'a mut [Vec<u8>; 2],
    /// The plugin whose filter is running; afterwards, the one whose filter holds most.
    pub(super) running: &'a Cell<&'static str>,
}

impl Filters<'_> {
    /// Appends to `out` what the filters make of a piece, starting with the given one; with a result, the work of that filter is
    /// done. Returns work that has to be done before the filter at that place can continue.
    pub(super) fn run(
        self,
        first: usize,
        mut result: Option<Output>,
        (piece, step): (&[u8], PieceEnd),
        out: &mut Vec<u8>,
    ) -> Result<Option<(usize, Work)>, PluginRefusal> {
        let [current, next] = self.between;
        let last = self.changes.filters_mut().count().saturating_sub(1);
        let mut most = (0, "");
        let mut piece = Some(piece);
        for (at, (plugin, filter)) in self.changes.filters_mut().enumerate().skip(first) {
            self.running.set(plugin);
            // The last filter writes to the final output: most bodies have one filter, and are not copied.
            let gives = if at == last { &mut *out } else { &mut *next };
            let (before, comes) = (gives.len(), piece.take().unwrap_or(&current[..]));
            match result.take() {
                // Its output from before its work is already there.
                Some(result) => filter.worked(result, gives).map_err(refusal)?,
                None => {
                    for piece in comes.chunks(PIECE_BYTES_MAX) {
                        filter.piece(piece, gives).map_err(refusal)?;
                    }
                    match step {
                        PieceEnd::Piece => {}
                        PieceEnd::Pause => filter.pause(gives).map_err(refusal)?,
                        PieceEnd::End => filter.end(gives).map_err(refusal)?,
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

fn refusal(error: BodyError) -> PluginRefusal {
    match error {
        BodyError::TooLarge => PluginRefusal::TooLarge,
        BodyError::Malformed => PluginRefusal::Malformed,
        BodyError::Failed => PluginRefusal::Failed,
    }
}
