//! Where everything stands in a segment: the contract between processes, so every offset is asserted at compile time.
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
//! Changing anything here means a new [`ABI`], and one of the shared folder's list: a reader refuses a number it does not
//! know.

use crate::sync::{AtomicU32, AtomicU64, Shown};
use std::mem::{offset_of, size_of};

/// "stillgat" as a little-endian number.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"stillgat");
/// The version of everything in this file, in `family_record` and in `cells`.
pub(crate) const ABI: u32 = 3;
/// The oldest version that is read: it has no folds, and is the same otherwise.
pub(crate) const ABI_MIN: u32 = 2;

/// Bytes of the header: a page.
pub(crate) const HEADER_BYTES: usize = 4096;
/// Bytes of a word.
pub(crate) const WORD: usize = 8;
/// Words before a record's cells.
pub(crate) const HEAD_WORDS: usize = 3;
/// Words of a tombstone.
pub(crate) const TOMBSTONE_WORDS: usize = 5;
/// Words of a fold.
pub(crate) const FOLD_WORDS: usize = 3;
/// Words of the longest record: a histogram with every bucket, exemplar and label there may be.
pub(crate) const RECORD_WORDS_MAX: usize = 1 << 16;

/// The first page of a segment. What does not change is written before anybody else can see the segment.
#[repr(C)]
pub(crate) struct Header<W32 = AtomicU32, W64 = AtomicU64> {
    pub(crate) magic: W64,
    pub(crate) abi: W32,
    /// The writing process.
    pub(crate) pid: W32,
    /// When it started, in clock ticks since boot: with the pid, who it is.
    pub(crate) process_start: W64,
    /// Unique in the process; what tombstones call a segment by.
    pub(crate) serial: W64,
    pub(crate) created_ms: W64,
    /// Series that the epochs area has room for.
    pub(crate) series_max: W64,
    /// Where the log begins, in bytes.
    pub(crate) log_at: W64,
    /// Room of the log, in words.
    pub(crate) log_words: W64,
    /// Whole records, in words from the log's beginning; grows, stored with release.
    pub(crate) committed: W64,
    /// The writer's present epoch; grows.
    pub(crate) epoch: W32,
    /// [`CLOSED`] once the writer is done with the segment, [`CLOSED_BASE`] for a base of a process that lives.
    pub(crate) closed: W32,
    /// When the writer was last seen, in milliseconds since the epoch.
    pub(crate) heartbeat_ms: W64,
}

/// The header as readers have it.
pub(crate) type ShownHeader = Header<Shown<AtomicU32>, Shown<AtomicU64>>;

const _: () = {
    assert!(offset_of!(Header, magic) == 0);
    assert!(offset_of!(Header, abi) == 8);
    assert!(offset_of!(Header, pid) == 12);
    assert!(offset_of!(Header, process_start) == 16);
    assert!(offset_of!(Header, serial) == 24);
    assert!(offset_of!(Header, created_ms) == 32);
    assert!(offset_of!(Header, series_max) == 40);
    assert!(offset_of!(Header, log_at) == 48);
    assert!(offset_of!(Header, log_words) == 56);
    assert!(offset_of!(Header, committed) == 64);
    assert!(offset_of!(Header, epoch) == 72);
    assert!(offset_of!(Header, closed) == 76);
    assert!(offset_of!(Header, heartbeat_ms) == 80);
    assert!(size_of::<Header>() == 88);
    assert!(size_of::<Header>() <= HEADER_BYTES);
};

/// The writer is done with the segment.
pub(crate) const CLOSED: u32 = 1;
/// The segment is what still counts of others. Its epochs are times, in seconds, at which each series had not changed for
/// some time, and the header's epoch is later than all of them.
pub(crate) const CLOSED_BASE: u32 = 2;

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordKind {
    /// Declares a family; the text after the head is in `family_record`'s form.
    Family = 1,
    /// A series of a family declared before in the same segment.
    Series = 2,
    /// Ends a series: word 1 is the serial of its segment, word 2 the place of its record, then pid and start of the process
    /// that wrote it (0 for a base).
    Tombstone = 3,
    /// Of a family of this segment: in which labels the series before this record count as `__other__`. The first half of
    /// word 1 is the number of labels that had collapsed so far, the second half the labels, one bit each.
    Fold = 4,
}

/// The label set is not the one that was observed: some of its values were replaced by `__other__`.
pub(crate) const FLAG_COLLAPSED: u8 = 1;

/// Some value in the label text is escaped.
pub(crate) const FLAG_ESCAPED: u8 = 2;

/// The first words of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) words: u32,
    pub(crate) kind: RecordKind,
    pub(crate) flags: u8,
    pub(crate) family: u16,
}

impl Head {
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.words) | (self.kind as u64) << 32 | u64::from(self.flags) << 40 | u64::from(self.family) << 48
    }

    /// `None`: the memory does not hold a record there.
    pub(crate) fn unpack(word: u64) -> Option<Head> {
        let kind = match (word >> 32) as u8 {
            1 => RecordKind::Family,
            2 => RecordKind::Series,
            3 => RecordKind::Tombstone,
            4 => RecordKind::Fold,
            _ => return None,
        };
        let words = word as u32;
        let fits = (HEAD_WORDS..=RECORD_WORDS_MAX).contains(&(words as usize));
        fits.then_some(Head { words, kind, flags: (word >> 40) as u8, family: (word >> 48) as u16 })
    }
}

/// Two halves of a word: the low one first.
pub(crate) fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// What [`pair`] put together.
pub(crate) fn unpair(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}
