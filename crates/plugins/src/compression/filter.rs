//! A filter that compresses a body, and the memory limit of all encoders of a worker.

use super::policy::Policy;
use std::cell::{Cell, RefCell};
use stillgate_plugin_api::{BodyError, BodyFilter, Response};

/// Most memory of one worker's encoders. It is less than half of the limit for filters, above which each client has a
/// limit of its own: a response for which there is no more memory is sent without a coding.
const ENCODER_BYTES_MAX: usize = 24 * 1024 * 1024;

thread_local! {
    /// Workers are threads.
    static TAKEN_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// Memory reserved for an encoder until the body has ended.
#[derive(Debug)]
pub(super) struct ReservedMemory {
    bytes: usize,
}

impl ReservedMemory {
    /// `None`: the limit is reached.
    pub(super) fn take(bytes: usize) -> Option<ReservedMemory> {
        let taken = TAKEN_BYTES.get() + bytes;
        (taken <= ENCODER_BYTES_MAX).then(|| {
            TAKEN_BYTES.set(taken);
            ReservedMemory { bytes }
        })
    }
}

impl Drop for ReservedMemory {
    fn drop(&mut self) {
        TAKEN_BYTES.set(TAKEN_BYTES.get() - self.bytes);
    }
}

/// Encoders that a worker keeps for later bodies, since creating one means clearing all its memory.
pub(super) struct IdleEncoders<T> {
    /// Each with its level.
    list: RefCell<Vec<(i32, T)>>,
    count_max: usize,
}

impl<T> IdleEncoders<T> {
    pub(super) const fn new(count_max: usize) -> IdleEncoders<T> {
        IdleEncoders { list: RefCell::new(Vec::new()), count_max }
    }

    /// Takes an encoder of a level.
    pub(super) fn take(&self, level: i32) -> Option<T> {
        let mut list = self.list.borrow_mut();
        let at = list.iter().position(|(of, _)| *of == level)?;
        Some(list.swap_remove(at).1)
    }

    /// Keeps an encoder, or drops it if enough are kept.
    pub(super) fn give(&self, level: i32, encoder: T) {
        let mut list = self.list.borrow_mut();
        if list.len() < self.count_max {
            list.push((level, encoder));
        }
    }
}

/// Compresses the body of a response if the policy says so, by an encoder that takes so much memory and is created when
/// the body begins. `piece_bytes_max`: the largest piece that takes no more than about 100 µs.
pub(super) fn begin<E: Encoder + 'static>(
    policy: &Policy,
    response: &mut Response<'_>,
    encoder_bytes: usize,
    piece_bytes_max: usize,
    make: impl FnMut() -> Option<E> + 'static,
) {
    let mut reserved = None;
    let begins = policy.begin(response, || {
        reserved = ReservedMemory::take(encoder_bytes);
        reserved.is_some()
    });
    if let Some(reserved) = reserved.filter(|_| begins) {
        response.body.filter(Box::new(CompressionFilter {
            make,
            encoder: None,
            reserved: Some(reserved),
            piece_bytes_max,
        }));
    }
}

/// An encoder of bodies.
pub(super) trait Encoder {
    /// Takes a piece, and appends available output.
    fn write(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), BodyError>;

    /// Appends the output that is held back.
    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError>;

    /// The body has ended: appends the rest.
    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError>;
}

/// The filter. Its encoder exists from the first piece to the end.
struct CompressionFilter<E, M> {
    make: M,
    encoder: Option<E>,
    reserved: Option<ReservedMemory>,
    piece_bytes_max: usize,
}

impl<E: Encoder, M: FnMut() -> Option<E>> CompressionFilter<E, M> {
    fn encoder(&mut self) -> Result<&mut E, BodyError> {
        if self.encoder.is_none() {
            self.encoder = Some((self.make)().ok_or(BodyError::TooLarge)?);
        }
        self.encoder.as_mut().ok_or(BodyError::TooLarge)
    }
}

impl<E: Encoder, M: FnMut() -> Option<E>> BodyFilter for CompressionFilter<E, M> {
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

    fn is_of_bounded_cost(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_for_encoders_is_bounded_and_given_back() {
        let mut all: Vec<ReservedMemory> =
            std::iter::from_fn(|| ReservedMemory::take(1024 * 1024)).take(1000).collect();
        assert_eq!(all.len(), ENCODER_BYTES_MAX / (1024 * 1024));
        all.pop();
        assert!(ReservedMemory::take(1024 * 1024).is_some());
        drop(all);
        assert_eq!(TAKEN_BYTES.get(), 0);
    }
}
