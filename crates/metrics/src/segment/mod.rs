//! A segment: the append-only memory that one writer writes and any number of readers read.

pub(crate) mod cells;
pub(crate) mod layout;
pub(crate) mod memory;
pub(crate) mod native;

use crate::protocol;
use crate::sync::{AtomicU32, AtomicU64, Ordering, ReadOnly, Word};
use layout::{ABI, ABI_MIN, HEADER_BYTES, MAGIC, ReadOnlyHeader, RecordHead, SegmentHeader, WORD, unpair};
use memory::{HUGE_PAGE, Mapping, PAGE};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Smallest record of a series in bytes; bounds the number of series in a segment of a given size.
const SERIES_BYTES_MIN: usize = 40;

/// The process that writes a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SegmentProcess {
    /// Its process id.
    pub pid: u32,
    /// When it started, in clock ticks since boot (field 22 of `/proc/PID/stat`): pids are reused.
    pub start: u64,
}

/// One writer's memory, as seen by the writer itself or by a reader.
pub(crate) struct Segment {
    mapping: Mapping,
    series_max: usize,
    log_at: usize,
    log_words: usize,
    /// Unique in the writing process.
    pub(crate) serial: u64,
    /// The process that writes it.
    pub(crate) process: SegmentProcess,
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment").field("process", &self.process).field("serial", &self.serial).finish_non_exhaustive()
    }
}

/// The reason why a file is not read as a segment. An unnamed file, which was inherited, is called by its number.
#[derive(Debug)]
pub enum SegmentError {
    /// It cannot be opened or mapped.
    Io(PathBuf, io::Error),
    /// It does not begin like a segment.
    NotASegment(PathBuf),
    /// It was written by a version with another layout.
    Version(PathBuf, u32),
    /// Its header contradicts its size.
    Damaged(PathBuf),
    /// It was inherited, and claims to be written by this process, or a second inherited one has the same identity: it
    /// would be counted twice.
    Twice(PathBuf),
}

impl fmt::Display for SegmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SegmentError::Io(path, error) => write!(f, "{}: {error}", path.display()),
            SegmentError::NotASegment(path) => write!(f, "{}: not a metrics segment", path.display()),
            SegmentError::Version(path, abi) => write!(
                f,
                "{}: written in layout version {abi}, this program reads version {ABI}; \
                 run exporter and gateway of the same release",
                path.display()
            ),
            SegmentError::Damaged(path) => write!(f, "{}: the header contradicts the file's size", path.display()),
            SegmentError::Twice(path) => write!(f, "{}: duplicate of a segment that is read already", path.display()),
        }
    }
}

impl std::error::Error for SegmentError {}

impl Segment {
    /// Creates an empty segment with room for `log_bytes` of records: in this file, or in an unnamed one. Only the
    /// header has memory yet.
    pub(crate) fn create(
        file: Option<&Path>,
        log_bytes: usize,
        process: SegmentProcess,
        serial: u64,
        now_ms: u64,
    ) -> io::Result<Segment> {
        let log_words = log_bytes.next_multiple_of(PAGE) / WORD;
        let series_max = (log_bytes / SERIES_BYTES_MIN).next_multiple_of(PAGE / 4);
        // Aligned, so that huge pages of the file hold nothing but the log.
        let log_at = (HEADER_BYTES + series_max * 4).next_multiple_of(HUGE_PAGE);
        let bytes = log_at + log_words * WORD;
        let mapping = match file {
            Some(path) => Mapping::create(path, bytes)?,
            None => Mapping::create_unnamed(bytes)?,
        };
        mapping.keep_small(0, log_at);
        mapping.grow_huge(log_at, log_words * WORD);
        mapping.prepare(0, HEADER_BYTES)?;
        let segment = Segment { mapping, series_max, log_at, log_words, serial, process };
        let header = segment.own_header();
        header.abi.store(ABI, Ordering::Relaxed);
        header.pid.store(process.pid, Ordering::Relaxed);
        header.process_start.store(process.start, Ordering::Relaxed);
        header.serial.store(serial, Ordering::Relaxed);
        header.created_ms.store(now_ms, Ordering::Relaxed);
        header.heartbeat_ms.store(now_ms, Ordering::Relaxed);
        header.series_max.store(series_max as u64, Ordering::Relaxed);
        header.log_at.store(log_at as u64, Ordering::Relaxed);
        header.log_words.store(log_words as u64, Ordering::Relaxed);
        header.epoch.store(1, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(segment)
    }

    /// Maps another process's segment for reading.
    pub(crate) fn open(path: &Path) -> Result<Segment, SegmentError> {
        Segment::of(Mapping::open(path, false), path)
    }

    /// Maps an unnamed file; `called` is its name in errors.
    pub(crate) fn inherit(file: OwnedFd, called: &Path) -> Result<Segment, SegmentError> {
        Segment::of(Mapping::inherit(file), called)
    }

    fn of(mapping: io::Result<Mapping>, path: &Path) -> Result<Segment, SegmentError> {
        let mapping = mapping.map_err(|error| SegmentError::Io(path.to_owned(), error))?;
        let header = mapping.shown_header::<SegmentHeader>();
        if protocol::acquire(&header.magic) != MAGIC {
            return Err(SegmentError::NotASegment(path.to_owned()));
        }
        let abi = header.abi.get();
        if !(ABI_MIN..=ABI).contains(&abi) {
            return Err(SegmentError::Version(path.to_owned(), abi));
        }
        let size = |word: &ReadOnly<AtomicU64>| usize::try_from(word.get()).unwrap_or(usize::MAX);
        let (series_max, log_at, log_words) = (size(&header.series_max), size(&header.log_at), size(&header.log_words));
        let epochs_end = series_max.checked_mul(4).and_then(|bytes| bytes.checked_add(HEADER_BYTES));
        let log_end = log_words.checked_mul(WORD).and_then(|bytes| bytes.checked_add(log_at));
        let fits = epochs_end.is_some_and(|end| end <= log_at) && log_end.is_some_and(|end| end <= mapping.bytes());
        if !fits || log_at % WORD != 0 {
            return Err(SegmentError::Damaged(path.to_owned()));
        }
        let process = SegmentProcess { pid: header.pid.get(), start: header.process_start.get() };
        let serial = header.serial.get();
        Ok(Segment { mapping, series_max, log_at, log_words, serial, process })
    }

    /// A duplicate of the file behind it, if it can be passed on.
    pub(crate) fn file(&self) -> Option<io::Result<OwnedFd>> {
        self.mapping.file()
    }

    #[inline]
    pub(crate) fn header(&self) -> &ReadOnlyHeader {
        self.mapping.shown_header::<SegmentHeader>()
    }

    /// The epochs, one for each series.
    #[inline]
    pub(crate) fn epochs(&self) -> &[ReadOnly<AtomicU32>] {
        self.mapping.shown_halves(HEADER_BYTES, self.series_max)
    }

    #[inline]
    pub(crate) fn log(&self) -> &[ReadOnly<AtomicU64>] {
        self.mapping.shown_words(self.log_at, self.log_words)
    }

    /// The header for its writer, in the process that made the segment.
    #[inline]
    pub(crate) fn own_header(&self) -> &SegmentHeader {
        self.mapping.header()
    }

    /// The epochs for their writer.
    #[inline]
    pub(crate) fn own_epochs(&self) -> &[AtomicU32] {
        self.mapping.halves(HEADER_BYTES, self.series_max)
    }

    /// The log for its writer.
    #[inline]
    pub(crate) fn own_log(&self) -> &[AtomicU64] {
        self.mapping.words(self.log_at, self.log_words)
    }

    /// Words of the log that may be read.
    #[inline]
    pub(crate) fn committed(&self) -> usize {
        usize::try_from(protocol::committed(&self.header().committed)).unwrap_or(usize::MAX).min(self.log_words)
    }

    /// Capacity: number of series, and words of log.
    pub(crate) fn room(&self) -> (usize, usize) {
        (self.series_max, self.log_words)
    }

    /// Allocates memory for the epochs of the series `from..to`.
    pub(crate) fn prepare_epochs(&self, from: usize, to: usize) -> io::Result<()> {
        self.mapping.prepare(HEADER_BYTES + from * 4, (to - from) * 4)
    }

    /// Allocates memory for the log's words `from..to`.
    pub(crate) fn prepare_log(&self, from: usize, to: usize) -> io::Result<()> {
        self.mapping.prepare(self.log_at + from * WORD, (to - from) * WORD)
    }

    /// Like [`Segment::prepare_epochs`], for its writer.
    pub(crate) fn prepare_few_epochs(&self, from: usize, to: usize) -> io::Result<()> {
        self.mapping.prepare_small(HEADER_BYTES + from * 4, (to - from) * 4)
    }

    /// Like [`Segment::prepare_log`], for its writer.
    pub(crate) fn prepare_short_log(&self, from: usize, to: usize) -> io::Result<()> {
        self.mapping.prepare_small(self.log_at + from * WORD, (to - from) * WORD)
    }

    /// The record at this word; `None` at the end, or if the memory is not what a writer of this version makes.
    #[inline]
    pub(crate) fn record(&self, at: usize, committed: usize) -> Option<RecordHead> {
        let head = RecordHead::unpack(self.log().get(at)?.get())?;
        (at + head.words as usize <= committed).then_some(head)
    }

    /// Number and label text of the series whose record is here.
    #[inline]
    pub(crate) fn series(&self, at: usize, head: RecordHead) -> Option<(u32, &[u8])> {
        let (number, bytes) = unpair(self.log()[at + 1].get());
        Some((number, self.text(at, head, bytes as usize)?))
    }

    /// So many bytes of a whole record from a word of the log on; empty beyond the end.
    #[inline]
    pub(crate) fn text_at(&self, word: usize, bytes: usize) -> &[u8] {
        match word <= self.log_words && bytes <= (self.log_words - word) * WORD {
            true => self.mapping.frozen(self.log_at + word * WORD, bytes),
            false => &[],
        }
    }

    /// Bytes of a committed record's text, from this word of the log.
    #[inline]
    pub(crate) fn frozen(&self, word: usize, bytes: usize) -> &[u8] {
        assert!(word <= self.log_words);
        self.mapping.frozen(self.log_at + word * WORD, bytes)
    }

    /// The last `bytes` bytes of a record, before its padding.
    #[inline]
    pub(crate) fn text(&self, at: usize, head: RecordHead, bytes: usize) -> Option<&[u8]> {
        let words = bytes.div_ceil(WORD);
        let start = (at + head.words as usize).checked_sub(words).filter(|start| *start >= at + layout::HEAD_WORDS)?;
        Some(self.mapping.frozen(self.log_at + start * WORD, bytes))
    }
}
