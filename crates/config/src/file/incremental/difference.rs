//! Finds the items of a list that are the same in two texts.

use super::List;
use super::outline::Item;
use crate::file::FILE_BYTES_MAX;
use foldhash::quality::RandomState;
use std::collections::HashMap;
use stillgate_schema::text::cuts::{Cuts, ItemText, cut, has_plain_lines};

/// The items of a text that are also in the previous text.
pub(super) struct TextDifference {
    /// Number of equal items at the beginning of the list.
    pub(super) first: usize,
    /// The items in between.
    pub(super) changed: Vec<ItemText>,
    /// Number of equal items at its end.
    pub(super) last: usize,
}

impl TextDifference {
    /// `old` has the items; `None`: something else differs, or may differ.
    pub(super) fn between(old: &[u8], list: &List, items: &[Item], new: &[u8]) -> Option<TextDifference> {
        if new.len() > FILE_BYTES_MAX || new.len() < list.head + list.tail {
            return None;
        }
        let (old_end, new_end) = (old.len() - list.tail, new.len() - list.tail);
        if new[..list.head] != old[..list.head] || new[new_end..] != old[old_end..] {
            return None;
        }
        // The tail still begins with a line.
        if list.tail > 0 && new[new_end - 1] != b'\n' {
            return None;
        }
        let (old, new) = (&old[list.head..old_end], &new[list.head..new_end]);
        // One item less than is equal: then the dash of the next one, where the last one ends, is equal too.
        let prefix = common_prefix(old, new);
        let (first, begin) = whole(items.iter(), prefix);
        let suffix = common_suffix(&old[begin..], &new[begin..]);
        let (last, end) = whole(items[first..].iter().rev(), suffix);
        let between = &new[begin..new.len() - end];
        if !has_plain_lines(between) || std::str::from_utf8(between).is_err() {
            return None;
        }
        let changed = match between {
            [] => Vec::new(),
            _ => match cut(between, Some(list.column))? {
                Cuts { items, rest: 0, .. } => items,
                _ => return None,
            },
        };
        Some(TextDifference { first, changed, last })
    }
}

/// The number of items within this many bytes, less one, and their length.
fn whole<'a>(items: impl Iterator<Item = &'a Item>, bytes: usize) -> (usize, usize) {
    let (mut count, mut length, mut before) = (0usize, 0, 0);
    for item in items {
        let with = length + item.cut.bytes as usize;
        if with > bytes {
            break;
        }
        (count, before, length) = (count + 1, length, with);
    }
    (count.saturating_sub(1), before)
}

/// Compared at once; the standard library does that with `memcmp`.
const BLOCK_BYTES: usize = 4096;

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let blocks = a.chunks_exact(BLOCK_BYTES).zip(b.chunks_exact(BLOCK_BYTES)).take_while(|(a, b)| a == b).count();
    let at = blocks * BLOCK_BYTES;
    at + a[at..].iter().zip(&b[at..]).take_while(|(a, b)| a == b).count()
}

fn common_suffix(a: &[u8], b: &[u8]) -> usize {
    let blocks = a.rchunks_exact(BLOCK_BYTES).zip(b.rchunks_exact(BLOCK_BYTES)).take_while(|(a, b)| a == b).count();
    let bytes = blocks * BLOCK_BYTES;
    let (a, b) = (&a[..a.len() - bytes], &b[..b.len() - bytes]);
    bytes + a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count()
}

/// Old items that may occur elsewhere in the new text.
pub(super) struct OldItems<'a> {
    /// The index of the first one.
    first: usize,
    texts: Vec<&'a [u8]>,
    used: Vec<bool>,
    by_text: HashMap<&'a [u8], usize, RandomState>,
}

impl<'a> OldItems<'a> {
    /// `at`: the position of the first one in the old text.
    pub(super) fn new(old: &'a [u8], items: &[Item], range: std::ops::Range<usize>, mut at: usize) -> OldItems<'a> {
        let first = range.start;
        let texts: Vec<&[u8]> = items[range]
            .iter()
            .map(|item| {
                at += item.cut.bytes as usize;
                &old[at - item.cut.bytes as usize..at]
            })
            .collect();
        let by_text = texts.iter().enumerate().map(|(n, text)| (*text, first + n)).collect();
        OldItems { first, used: vec![false; texts.len()], texts, by_text }
    }

    /// The old item with this text, preferably with the same index. No item is found twice, since two items would then have one id.
    pub(super) fn find(&mut self, index: usize, text: &[u8]) -> Option<usize> {
        let in_place = index.checked_sub(self.first).and_then(|n| self.texts.get(n)).is_some_and(|old| *old == text);
        let found = if in_place { index } else { *self.by_text.get(text)? };
        let is_used = std::mem::replace(&mut self.used[found - self.first], true);
        (!is_used).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_ends_are_found_in_and_between_blocks() {
        let long: Vec<u8> = (0..3 * BLOCK_BYTES + 100).map(|n| n as u8).collect();
        let places = [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES + 7, 3 * BLOCK_BYTES + 99];
        for place in places {
            let mut other = long.clone();
            other[place] ^= 1;
            assert_eq!(common_prefix(&long, &other), place);
            assert_eq!(common_suffix(&long, &other), long.len() - 1 - place);
            assert_eq!(common_prefix(&long, &long[..place]), place);
            assert_eq!(common_suffix(&long[place..], &long), long.len() - place);
        }
    }
}
