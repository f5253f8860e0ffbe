//! The worker's pools of memory for active connections.
//!
//! An idle connection owns no buffer; it takes one when bytes arrive and returns it when they have been processed. The pool is last
//! in, first out, so that the buffer in use is the one in the cache.

use std::cell::{Cell, RefCell};

/// Size of a buffer, which bounds what is held for one direction of an exchange. A little under 64 KiB: were it a power of two, the
/// beginnings of all buffers would compete for the same few cache sets.
pub(crate) const BUFFER_BYTES: usize = 64 * 1024 - 704;
/// Free buffers kept by a worker; beyond that they go back to the allocator.
const BUFFERS_FREE_MAX: usize = 256;
/// Free output vectors kept by a worker.
const OUTPUTS_FREE_MAX: usize = 256;
/// Initial capacity of an output vector: a head of usual size and a small body.
const OUTPUT_BYTES: usize = 8 * 1024;
/// An output vector that grew beyond this is not kept.
const OUTPUT_BYTES_KEPT_MAX: usize = 64 * 1024;

const _: () = assert!(BUFFER_BYTES <= 64 * 1024 && BUFFER_BYTES > stillgate_wire::HEAD_BYTES_MAX + 16 * 1024);

/// Memory for received bytes.
pub(crate) type Buffer = Box<[u8]>;

/// Free buffers of one worker.
#[derive(Default)]
pub(crate) struct Buffers {
    buffers: RefCell<Vec<Buffer>>,
    outputs: RefCell<Vec<Vec<u8>>>,
    /// Bytes that have been freed, because there were enough free ones.
    freed_bytes: Cell<usize>,
}

impl Buffers {
    /// Takes a buffer of [`BUFFER_BYTES`] with arbitrary content.
    pub(crate) fn take(&self) -> Buffer {
        self.buffers.borrow_mut().pop().unwrap_or_else(|| vec![0; BUFFER_BYTES].into_boxed_slice())
    }

    /// Returns a buffer.
    pub(crate) fn give(&self, buffer: Buffer) {
        let mut free = self.buffers.borrow_mut();
        if free.len() < BUFFERS_FREE_MAX {
            free.push(buffer);
        } else {
            self.count_freed(buffer.len());
        }
    }

    /// An empty vector for serialised bytes.
    pub(crate) fn take_output(&self) -> Vec<u8> {
        self.outputs.borrow_mut().pop().unwrap_or_else(|| Vec::with_capacity(OUTPUT_BYTES))
    }

    /// Returns an output vector.
    pub(crate) fn give_output(&self, mut output: Vec<u8>) {
        let mut free = self.outputs.borrow_mut();
        if free.len() < OUTPUTS_FREE_MAX && output.capacity() <= OUTPUT_BYTES_KEPT_MAX {
            output.clear();
            free.push(output);
        } else {
            self.count_freed(output.capacity());
        }
    }

    fn count_freed(&self, bytes: usize) {
        self.freed_bytes.set(self.freed_bytes.get() + bytes);
    }

    /// Whether so many bytes were freed since it was true last: the allocator has them, and does not return them by itself.
    pub(crate) fn take_freed(&self, enough: usize) -> bool {
        let is_enough = self.freed_bytes.get() >= enough;
        if is_enough {
            self.freed_bytes.set(0);
        }
        is_enough
    }

    /// Frees memory that a burst left behind; called when the worker has nothing to do.
    pub(crate) fn shrink(&self, keep: usize) {
        let mut buffers = self.buffers.borrow_mut();
        self.count_freed(buffers.len().saturating_sub(keep) * BUFFER_BYTES);
        buffers.truncate(keep);
        let mut outputs = self.outputs.borrow_mut();
        self.count_freed(outputs.iter().skip(keep).map(Vec::capacity).sum());
        outputs.truncate(keep);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_burst_has_freed_is_counted() {
        let (buffers, enough) = (Buffers::default(), 32 * BUFFER_BYTES);
        let burst = |count: usize| {
            let taken: Vec<_> = (0..count).map(|_| buffers.take()).collect();
            taken.into_iter().for_each(|buffer| buffers.give(buffer));
        };
        burst(BUFFERS_FREE_MAX);
        assert!(!buffers.take_freed(enough), "they are kept for the next ones");
        burst(BUFFERS_FREE_MAX + 31);
        assert!(!buffers.take_freed(enough));
        burst(BUFFERS_FREE_MAX + 1);
        assert!(buffers.take_freed(enough) && !buffers.take_freed(enough));
        buffers.shrink(8);
        assert!(buffers.take_freed((BUFFERS_FREE_MAX - 8) * BUFFER_BYTES));
        let outputs: Vec<_> = (0..OUTPUTS_FREE_MAX + 2).map(|_| buffers.take_output()).collect();
        outputs.into_iter().for_each(|output| buffers.give_output(output));
        assert!(buffers.take_freed(2 * OUTPUT_BYTES));
    }
}
