//! The layout of a segment: the contract between processes, so every offset is asserted at compile time.
//!
//! ```text
//!  0            4096                 log_at
//!  ├─ header ───┼─ epochs: a u32 a ──┼─ log: records of 8-byte words, append-only ──────────▶
//!  │            │  series            │  family │ series │ series │ tombstone │ …  │ zeros
//!                                                                               ▲ committed
//!  a record:    word 0   size in words (u32) │ kind (u8) │ flags (u8) │ family number (u16)
//!               word 1   series number (u32) │ bytes of the label text (u32)
//!               word 2   created, milliseconds since the epoch
//!               then     cells, exemplar slots, the label text padded with zeros
//! ```
//!
//! Any change here needs a new [`ABI`], and one of the shared folder's list: a reader refuses a number that it does not
//! know.

use crate::sync::{AtomicU32, AtomicU64, ReadOnly};
use std::mem::{offset_of, size_of};

/// "stillgat" as a little-endian number.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"stillgat");
/// The version of the formats in this file, in `family_record` and in `cells`.
pub(crate) const ABI: u32 = 3;
/// The oldest version that is read: it has no folds, and is equal otherwise.
pub(crate) const ABI_MIN: u32 = 2;

/// Size of the header: a page.
pub(crate) const HEADER_BYTES: usize = 4096;
/// Bytes of a word.
pub(crate) const WORD: usize = 8;
/// Words before a record's cells.
pub(crate) const HEAD_WORDS: usize = 3;
/// Words of a tombstone.
pub(crate) const TOMBSTONE_WORDS: usize = 5;
/// Words of a fold.
pub(crate) const FOLD_WORDS: usize = 3;
/// Words of the longest record: a histogram with every bucket, exemplar and label that is allowed.
pub(crate) const RECORD_WORDS_MAX: usize = 1 << 16;

/// The first page of a segment. Constant fields are written before any other thread can see the segment.
#[repr(C)]
pub(crate) struct SegmentHeader<W32 = AtomicU32, W64 = AtomicU64> {
    pub(crate) magic: W64,
    pub(crate) abi: W32,
    /// The writing process.
    pub(crate) pid: W32,
    /// When it started, in clock ticks since boot: identifies the process together with the pid.
    pub(crate) process_start: W64,
    /// Unique in the process; tombstones refer to a segment by it.
    pub(crate) serial: W64,
    pub(crate) created_ms: W64,
    /// Number of series for which the epochs area has room.
    pub(crate) series_max: W64,
    /// Offset of the log, in bytes.
    pub(crate) log_at: W64,
    /// Size of the log, in words.
    pub(crate) log_words: W64,
    /// Length of the whole records, in words from the log's beginning; grows, stored with release.
    pub(crate) committed: W64,
    /// The writer's current epoch; grows.
    pub(crate) epoch: W32,
    /// [`CLOSED`] once the writer is done with the segment, [`CLOSED_BASE`] for a base of a live process.
    pub(crate) closed: W32,
    /// When the writer last ticked, in milliseconds since the epoch.
    pub(crate) heartbeat_ms: W64,
}

/// The header as readers see it.
pub(crate) type ReadOnlyHeader = SegmentHeader<ReadOnly<AtomicU32>, ReadOnly<AtomicU64>>;

const _: () = {
    assert!(offset_of!(SegmentHeader, magic) == 0);
    assert!(offset_of!(SegmentHeader, abi) == 8);
    assert!(offset_of!(SegmentHeader, pid) == 12);
    assert!(offset_of!(SegmentHeader, process_start) == 16);
    assert!(offset_of!(SegmentHeader, serial) == 24);
    assert!(offset_of!(SegmentHeader, created_ms) == 32);
    assert!(offset_of!(SegmentHeader, series_max) == 40);
    assert!(offset_of!(SegmentHeader, log_at) == 48);
    assert!(offset_of!(SegmentHeader, log_words) == 56);
    assert!(offset_of!(SegmentHeader, committed) == 64);
    assert!(offset_of!(SegmentHeader, epoch) == 72);
    assert!(offset_of!(SegmentHeader, closed) == 76);
    assert!(offset_of!(SegmentHeader, heartbeat_ms) == 80);
    assert!(size_of::<SegmentHeader>() == 88);
    assert!(size_of::<SegmentHeader>() <= HEADER_BYTES);
};

/// The writer is done with the segment.
pub(crate) const CLOSED: u32 = 1;
/// The segment holds what still counts of other segments. Its epochs are times, in seconds, at which each series had
/// not changed for some time, and the header's epoch is later than all of them.
pub(crate) const CLOSED_BASE: u32 = 2;

/// The type of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordKind {
    /// Declares a family; the text after the head is in `family_record`'s format.
    Family = 1,
    /// A series of a family declared before in the same segment.
    Series = 2,
    /// Ends a series: word 1 is the serial of its segment, word 2 the place of its record, followed by pid and start of
    /// the process that wrote it (0 for a base).
    Tombstone = 3,
    /// For a family of this segment: the labels in which the series before this record count as `__other__`. The first
    /// half of word 1 is the number of labels that had collapsed so far, the second half the labels, one bit each.
    Fold = 4,
}

/// The label set is not the observed one: some of its values were replaced by `__other__`.
pub(crate) const FLAG_COLLAPSED: u8 = 1;

/// The label text contains an escaped value.
pub(crate) const FLAG_ESCAPED: u8 = 2;

/// The first words of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordHead {
    pub(crate) words: u32,
    pub(crate) kind: RecordKind,
    pub(crate) flags: u8,
    pub(crate) family: u16,
}

impl RecordHead {
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.words) | (self.kind as u64) << 32 | u64::from(self.flags) << 40 | u64::from(self.family) << 48
    }

    /// `None`: the memory does not hold a record there.
    pub(crate) fn unpack(word: u64) -> Option<RecordHead> {
        let kind = match (word >> 32) as u8 {
            1 => RecordKind::Family,
            2 => RecordKind::Series,
            3 => RecordKind::Tombstone,
            4 => RecordKind::Fold,
            _ => return None,
        };
        let words = word as u32;
        let fits = (HEAD_WORDS..=RECORD_WORDS_MAX).contains(&(words as usize));
        fits.then_some(RecordHead { words, kind, flags: (word >> 40) as u8, family: (word >> 48) as u16 })
    }
}

/// Packs two halves into a word, the low one first.
pub(crate) fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// The halves that [`pair`] packed.
pub(crate) fn unpair(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}
