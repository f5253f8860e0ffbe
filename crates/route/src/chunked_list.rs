//! A list in pieces; equal pieces are shared with the previous list.
//!
//! Requests keep the Plan they began with, and Plans may follow each other many times a second. So of everything that
//! has an entry for every route, a matcher owns only a list of pieces, and the pieces in which something changed.

use std::ops::{Index, Range};
use std::sync::Arc;

/// Items of a piece.
const PIECE: usize = 512;

/// A list that never changes.
#[derive(Debug, Clone, PartialEq)]
pub struct ChunkedList<T> {
    pieces: Arc<[Arc<[T]>]>,
    len: usize,
}

impl<T: Clone> ChunkedList<T> {
    /// Makes a list of items; pieces whose items are all the `same` as in `previous` are shared with it.
    pub(crate) fn new(items: &[T], previous: Option<&ChunkedList<T>>, same: impl Fn(&T, &T) -> bool) -> ChunkedList<T> {
        let piece = |(index, items): (usize, &[T])| {
            let old = previous.and_then(|previous| previous.pieces.get(index));
            let is_same = |old: &&Arc<[T]>| old.len() == items.len() && old.iter().zip(items).all(|(a, b)| same(a, b));
            old.filter(is_same).map_or_else(|| items.into(), Arc::clone)
        };
        ChunkedList { pieces: items.chunks(PIECE).enumerate().map(piece).collect(), len: items.len() }
    }

    /// The list with other items in place of a range. Pieces before it are shared with this list, and pieces behind it
    /// if nothing moves.
    pub(crate) fn splice(&self, range: Range<usize>, items: &[T]) -> ChunkedList<T> {
        let first = range.start / PIECE;
        let last = match range.len() == items.len() {
            true => range.end.div_ceil(PIECE).max(first),
            false => self.pieces.len(),
        };
        let kept = |range: Range<usize>| range.map(|index| self[index].clone());
        let behind = kept(range.end..(last * PIECE).min(self.len));
        let between: Vec<T> =
            kept((first * PIECE).min(range.start)..range.start).chain(items.iter().cloned()).chain(behind).collect();
        let (before, after) = (self.pieces.iter().take(first).cloned(), self.pieces.iter().skip(last).cloned());
        let pieces = before.chain(between.chunks(PIECE).map(Arc::from)).chain(after).collect();
        ChunkedList { pieces, len: self.len - range.len() + items.len() }
    }
}

impl<T> ChunkedList<T> {
    /// The number of items.
    #[allow(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// All items in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.pieces.iter().flat_map(|piece| piece.iter())
    }

    /// Bytes of memory, shared or not.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.len * size_of::<T>() + size_of_val(&*self.pieces)
    }
}

impl<T> Index<usize> for ChunkedList<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: usize) -> &T {
        &self.pieces[index / PIECE][index % PIECE]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_same_is_shared() {
        let numbers: Vec<u32> = (0..3_000).collect();
        let before = ChunkedList::new(&numbers, None, |a, b| a == b);
        let mut changed = numbers.clone();
        changed[1_000] = 0;
        changed.pop();
        let after = ChunkedList::new(&changed, Some(&before), |a, b| a == b);
        let shared = before.pieces.iter().zip(after.pieces.iter()).filter(|(a, b)| Arc::ptr_eq(a, b)).count();
        assert_eq!((before.pieces.len(), shared), (6, 4));
        assert!(after.iter().eq(&changed) && after.iter().rev().eq(changed.iter().rev()));
        assert_eq!((after[1_000], after[2_998], after.len()), (0, 2_998, 2_999));
    }

    #[test]
    fn a_splice_is_what_it_is_of_a_vector() {
        for len in [0, 1, PIECE, PIECE + 1, 3 * PIECE, 3 * PIECE + 7] {
            let numbers: Vec<usize> = (0..len).collect();
            let before = ChunkedList::new(&numbers, None, |a, b| a == b);
            let ends = [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE, len].map(|end| end.min(len));
            for (start, end) in ends.iter().flat_map(|start| ends.map(|end| (*start, end))).filter(|(a, b)| a <= b) {
                for count in [0, 1, end - start, PIECE + 1] {
                    let items: Vec<usize> = (0..count).map(|item| item + 10_000).collect();
                    let after = before.splice(start..end, &items);
                    let mut expected = numbers.clone();
                    expected.splice(start..end, items);
                    assert!(after.iter().eq(&expected), "{len}: {start}..{end} by {count}");
                    assert_eq!(after.len(), expected.len());
                    assert!(expected.iter().enumerate().all(|(index, item)| after[index] == *item));
                }
            }
        }
        let numbers: Vec<usize> = (0..4 * PIECE).collect();
        let before = ChunkedList::new(&numbers, None, |a, b| a == b);
        let shared = |after: &ChunkedList<usize>| {
            let pairs = before.pieces.iter().zip(after.pieces.iter());
            pairs.map(|(a, b)| Arc::ptr_eq(a, b)).collect::<Vec<bool>>()
        };
        assert_eq!(shared(&before.splice(PIECE + 3..PIECE + 4, &[7])), [true, false, true, true]);
        assert_eq!(shared(&before.splice(4 * PIECE..4 * PIECE, &[7])), [true; 4]);
    }
}
