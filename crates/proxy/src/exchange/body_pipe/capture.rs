//! The part of a body that is kept for the log while it is passed on.

use super::FilteredBody;
use crate::worker::body_memory::BodyLease;

impl FilteredBody {
    /// Begins to keep the body, as it is passed on, for the log, if plugins require that.
    #[inline]
    pub(crate) fn start_capture(&mut self, begin: impl FnOnce() -> BodyLease) {
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
    pub(super) fn capture(&mut self, piece: &[u8], is_last: bool) {
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
