//! A body on its way through an encoder, and what all encoders of a worker may take.

use std::cell::Cell;
use stillgate_plugin::{BodyError, BodyFilter};

/// What the encoders of one worker may take. It is less than half of what filters may hold, above which each client has a bound
/// of its own: a response for which there is no more goes on without a coding.
const ENCODER_BYTES_MAX: usize = 24 * 1024 * 1024;

thread_local! {
    /// Workers are threads.
    static TAKEN_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// Memory that is set aside for an encoder, as long as the body has not ended.
#[derive(Debug)]
pub(super) struct Reserved {
    bytes: usize,
}

impl Reserved {
    /// `None`: there is no more.
    pub(super) fn take(bytes: usize) -> Option<Reserved> {
        let taken = TAKEN_BYTES.get() + bytes;
        (taken <= ENCODER_BYTES_MAX).then(|| {
            TAKEN_BYTES.set(taken);
            Reserved { bytes }
        })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        TAKEN_BYTES.set(TAKEN_BYTES.get() - self.bytes);
    }
}

/// What codes a body.
pub(super) trait Encoder {
    /// Takes a piece, and appends what can go on.
    fn write(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), BodyError>;

    /// Appends what of the pieces is held back.
    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError>;

    /// The body has ended: appends the rest.
    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError>;
}

/// The filter. Its encoder is there from the first piece to the end.
pub(super) struct Compressing<E, M> {
    make: M,
    encoder: Option<E>,
    reserved: Option<Reserved>,
    /// So much at once takes no more than about 100 µs.
    piece_bytes_max: usize,
}

impl<E: Encoder, M: FnMut() -> Option<E>> Compressing<E, M> {
    pub(super) fn new(make: M, reserved: Reserved, piece_bytes_max: usize) -> Compressing<E, M> {
        Compressing { make, encoder: None, reserved: Some(reserved), piece_bytes_max }
    }

    fn encoder(&mut self) -> Result<&mut E, BodyError> {
        if self.encoder.is_none() {
            self.encoder = Some((self.make)().ok_or(BodyError::TooLarge)?);
        }
        self.encoder.as_mut().ok_or(BodyError::TooLarge)
    }
}

impl<E: Encoder, M: FnMut() -> Option<E>> BodyFilter for Compressing<E, M> {
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), BodyError> {
        if piece.is_empty() { Ok(()) } else { self.encoder()?.write(piece, out) }
    }

    fn pause(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        match &mut self.encoder {
            Some(encoder) => encoder.flush(out),
            None => Ok(()),
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        let ended = self.encoder()?.finish(out);
        self.encoder = None;
        self.reserved = None;
        ended
    }

    fn held_bytes(&self) -> usize {
        self.reserved.as_ref().map_or(0, |reserved| reserved.bytes)
    }

    fn piece_bytes_max(&self) -> usize {
        self.piece_bytes_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_for_encoders_is_bounded_and_given_back() {
        let mut all: Vec<Reserved> = std::iter::from_fn(|| Reserved::take(1024 * 1024)).take(1000).collect();
        assert_eq!(all.len(), ENCODER_BYTES_MAX / (1024 * 1024));
        all.pop();
        assert!(Reserved::take(1024 * 1024).is_some());
        drop(all);
        assert_eq!(TAKEN_BYTES.get(), 0);
    }
}
