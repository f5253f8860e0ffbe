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

use crate::family::{Buckets, Family, FamilyType, Merge, Native};
use crate::sync::{AtomicU32, AtomicU64, ReadOnly};
use std::mem::{offset_of, size_of};

/// "stillgat" as a little-endian number.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"stillgat");
/// The version of the formats in this file and in `cells`.
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
    /// Declares a family; the text after the head is written by [`encode_family`].
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
    #[inline]
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.words) | (self.kind as u64) << 32 | u64::from(self.flags) << 40 | u64::from(self.family) << 48
    }

    /// `None`: the memory does not hold a record there.
    #[inline]
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

// Encodes a family's declaration for a segment and decodes it: this makes a segment readable on its own.
//
// The bytes are not trusted: the file may be another version's, or damaged.

/// The bytes that follow a family record's head.
pub(crate) fn encode_family(family: &Family) -> Vec<u8> {
    let mut out = Vec::with_capacity(128 + family.help.len());
    let code = match &family.kind {
        FamilyType::Counter => 0,
        FamilyType::FloatCounter => 1,
        FamilyType::Gauge(Merge::Sum) => 2,
        FamilyType::Gauge(Merge::Last) => 3,
        FamilyType::Gauge(Merge::Max) => 4,
        FamilyType::Info => 5,
        FamilyType::Histogram(_) => 6,
        FamilyType::Gauge(Merge::Total) => 7,
    };
    out.extend([code, u8::from(family.exemplars), family.labels.len() as u8]);
    let labels = family.labels.iter();
    for text in [&family.name, &family.help, &family.unit].into_iter().chain(labels) {
        out.extend((text.len() as u16).to_le_bytes());
        out.extend(text.as_bytes());
    }
    if let FamilyType::Histogram(buckets) = &family.kind {
        out.extend((buckets.classic.len() as u16).to_le_bytes());
        buckets.classic.iter().for_each(|bound| out.extend(bound.to_le_bytes()));
        if let Some(native) = &buckets.native {
            out.push(native.schema.cast_unsigned());
            out.extend(native.zero_threshold.to_le_bytes());
            out.extend(native.buckets_max.to_le_bytes());
        }
    }
    out
}

/// The declaration; `None` if the bytes do not encode one that passes [`Family::check`].
pub(crate) fn decode_family(bytes: &[u8]) -> Option<Family> {
    let mut rest = ByteReader(bytes);
    let [code, exemplars, labels] = rest.array()?;
    let name = rest.text()?;
    let help = rest.text()?;
    let unit = rest.text()?;
    let labels = (0..labels).map(|_| rest.text()).collect::<Option<Vec<String>>>()?;
    let kind = match code {
        0 => FamilyType::Counter,
        1 => FamilyType::FloatCounter,
        2 => FamilyType::Gauge(Merge::Sum),
        3 => FamilyType::Gauge(Merge::Last),
        4 => FamilyType::Gauge(Merge::Max),
        5 => FamilyType::Info,
        6 => {
            let count = u16::from_le_bytes(rest.array()?);
            let classic = (0..count).map(|_| rest.array().map(f64::from_le_bytes)).collect::<Option<Vec<f64>>>()?;
            let native = match rest.0.is_empty() {
                true => None,
                false => Some(Native {
                    schema: rest.array::<1>()?[0].cast_signed(),
                    zero_threshold: f64::from_le_bytes(rest.array()?),
                    buckets_max: u16::from_le_bytes(rest.array()?),
                }),
            };
            FamilyType::Histogram(Buckets { classic, native })
        }
        7 => FamilyType::Gauge(Merge::Total),
        _ => return None,
    };
    let family = Family { name, help, unit, kind, labels, exemplars: exemplars == 1 };
    (rest.0.is_empty() && family.check().is_ok()).then_some(family)
}

struct ByteReader<'a>(&'a [u8]);

impl ByteReader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn text(&mut self) -> Option<String> {
        let length = u16::from_le_bytes(self.array()?) as usize;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let check = |kind: FamilyType, labels: &[&str]| {
            let labels = labels.iter().map(|label| (*label).to_owned()).collect();
            let (name, help, unit) = ("a_bytes_total".into(), "What.\n\"x\"".into(), "bytes".into());
            let family = Family { name, help, unit, kind, labels, exemplars: true };
            let bytes = encode_family(&family);
            assert_eq!(decode_family(&bytes).as_ref(), Some(&family));
            for end in 0..bytes.len() {
                // A truncated declaration of a histogram may still be one of a histogram without native buckets.
                let cut = decode_family(&bytes[..end]);
                assert!(cut.is_none_or(|cut| cut.kind != family.kind), "{end}");
            }
        };
        check(FamilyType::Counter, &["a", "b"]);
        check(FamilyType::FloatCounter, &[]);
        for merge in [Merge::Sum, Merge::Total, Merge::Last, Merge::Max] {
            check(FamilyType::Gauge(merge), &["a"]);
        }
        check(FamilyType::Info, &["version"]);
        check(FamilyType::Histogram(Buckets { classic: vec![0.1, 2.5], native: None }), &[]);
        check(FamilyType::Histogram(Buckets { classic: vec![], native: Some(Native::default()) }), &["a"]);
    }

    #[test]
    fn rubbish_is_refused() {
        assert_eq!(decode_family(b""), None);
        assert_eq!(decode_family(&[9, 0, 0, 1, 0, b'a', 0, 0, 0, 0]), None);
        assert_eq!(decode_family(&[0, 0, 0, 1, 0, b'-', 0, 0, 0, 0]), None);
        assert_eq!(decode_family(&[0, 0, 0, 255, 255, b'a']), None);
    }
}
