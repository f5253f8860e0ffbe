//! The last lines of the access log, in memory: a dry run replays them to show the effect of a change.
//!
//! ```text
//!  access log's thread ──chunks──▶ RecentLines ──▶ admin API
//! ```
//!
//! Workers take no part. Lines that the destination rejects, for example because its disk is full, are kept here nonetheless.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Number of bytes that are kept: some two thousand lines.
const BYTES_MAX: usize = 512 * 1024;

/// Number of lines that are returned.
const LINES_MAX: usize = 1000;

/// The kept lines.
#[derive(Debug, Default)]
pub struct RecentLines(Mutex<VecDeque<Box<[u8]>>>);

impl RecentLines {
    /// Keeps whole lines, each with its line end, and forgets older ones.
    pub(super) fn keep(&self, lines: &[u8]) {
        let mut chunks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        chunks.push_back(last_lines(lines, LINES_MAX).into());
        let mut bytes: usize = chunks.iter().map(|chunk| chunk.len()).sum();
        while bytes > BYTES_MAX && chunks.len() > 1 {
            bytes -= chunks.pop_front().map_or(0, |chunk| chunk.len());
        }
    }

    /// The last lines, each with its line end, the oldest first.
    pub fn copied(&self) -> Vec<u8> {
        let chunks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.iter().copied()).collect();
        drop(chunks);
        let left_out = all.len() - last_lines(&all, LINES_MAX).len();
        all.drain(..left_out);
        all
    }
}

/// The end of a text, from the beginning of its last `count` lines.
fn last_lines(text: &[u8], count: usize) -> &[u8] {
    let ends = text.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    match ends.map(|(at, _)| at + 1).nth(count) {
        Some(start) => &text[start..],
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept() {
        let recent = RecentLines::default();
        assert_eq!(recent.copied(), b"");
        recent.keep(b"one\ntwo\n");
        recent.keep(b"three\n");
        assert_eq!(recent.copied(), b"one\ntwo\nthree\n");
        recent.keep("x\n".repeat(LINES_MAX - 1).as_bytes());
        assert!(recent.copied().starts_with(b"three\nx\n"));
        recent.keep("y\n".repeat(2 * LINES_MAX).as_bytes());
        assert_eq!(recent.copied(), "y\n".repeat(LINES_MAX).as_bytes());
    }

    #[test]
    fn memory_is_bounded() {
        let recent = RecentLines::default();
        let line = format!("{}\n", "z".repeat(60 * 1024 - 1));
        (0..100).for_each(|_| recent.keep(line.as_bytes()));
        assert_eq!(recent.copied().len(), BYTES_MAX / line.len() * line.len());
    }
}
