//! The memory of segments and indices: a reserved range of addresses, made usable part by part. It is backed by a file
//! if other processes may have to read it, in a folder or unnamed (memfd); otherwise it is anonymous.
//!
//! Memory that is scanned from the beginning to the end is in huge pages. For anonymous memory advice is enough; for
//! files on tmpfs the usual setting of the system (`shmem_enabled`) gives none, so they are requested one by one
//! (`MADV_COLLAPSE`, since Linux 6.1), and processes that map a file later have them, too.
//!
//! All of it is accessed as atomics, so that two processes, or two threads, cannot cause a data race whatever they do;
//! for reading, as atomics without stores. This is the only place that turns addresses into references.

use crate::sync::{AtomicU32, AtomicU64, Ordering, ReadOnly};
use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
    memfd_create, open,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::ptr::NonNull;

/// The unit in which memory is made usable.
pub(crate) const PAGE: usize = 4096;
/// The unit of large areas: a page of this size needs one entry of the TLB instead of 512.
pub(crate) const HUGE_PAGE: usize = 2 << 20;
/// Advice for `madvise`: make one huge page of these. The `libc` crate defines it for some systems only.
const MADV_COLLAPSE: i32 = 25;
/// Up to this size, memory of an area is prepared in small pages, so that a small program stays small.
pub(crate) const SMALL_BYTES: usize = HUGE_PAGE;

/// A range of addresses, initially all zeros.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// Length of the writable part: all, or 0 if the range is mapped read-only.
    writable_bytes: usize,
    /// The file behind it, if this process writes it or may have to pass it on.
    file: Option<OwnedFd>,
}

// SAFETY: the range belongs to the mapping until it is dropped, and is only handed out as shared slices of atomics.
#[expect(unsafe_code, reason = "see above")]
unsafe impl Send for Mapping {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "see above")]
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves addresses; memory comes with [`Mapping::prepare`].
    #[expect(unsafe_code, reason = "mapping memory")]
    pub(crate) fn anonymous(bytes: usize) -> io::Result<Mapping> {
        let bytes = bytes.next_multiple_of(PAGE);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh range that nothing else refers to.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        Mapping::new(start, bytes, None, true)
    }

    /// Creates a new file of this size, without memory yet, that others may read.
    pub(crate) fn create(path: &Path, bytes: usize) -> io::Result<Mapping> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::from_raw_mode(0o644))?;
        let bytes = bytes.next_multiple_of(PAGE);
        ftruncate(&file, bytes as u64)?;
        Mapping::of_file(file, bytes, true)
    }

    /// Creates an unnamed file: only a process that receives it can read it.
    pub(crate) fn create_unnamed(bytes: usize) -> io::Result<Mapping> {
        let create = |flags| memfd_create(c"stillgate-metrics", flags | MemfdFlags::CLOEXEC);
        let file = match create(MemfdFlags::NOEXEC_SEAL) {
            // Before Linux 6.3, which may insist on it.
            Err(Errno::INVAL) => create(MemfdFlags::ALLOW_SEALING),
            created => created,
        }?;
        let bytes = bytes.next_multiple_of(PAGE);
        ftruncate(&file, bytes as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        Mapping::of_file(file, bytes, true)
    }

    /// Maps a whole file of another process, read-only, or writable if both sides write.
    pub(crate) fn open(path: &Path, is_writable: bool) -> io::Result<Mapping> {
        let mode = if is_writable { OFlags::RDWR } else { OFlags::RDONLY };
        let file = open(path, mode | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
        // Writers of these files never make them shorter.
        let bytes = bytes_of(&file)?;
        let mut mapping = Mapping::of_file(file, bytes, is_writable)?;
        // A process that only reads finds it by its name.
        mapping.file.take_if(|_| !is_writable);
        Ok(mapping)
    }

    /// Maps an unnamed file read-only, whatever process made it: refuses a file that could be truncated, as reading truncated
    /// memory would end this process.
    pub(crate) fn inherit(file: OwnedFd) -> io::Result<Mapping> {
        let is_lasting = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        if !is_lasting {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "not a memory file that is sealed against shrinking",
            ));
        }
        let bytes = bytes_of(&file)?;
        Mapping::of_file(file, bytes, false)
    }

    /// Maps a file at an address that is aligned to its huge pages.
    #[expect(unsafe_code, reason = "mapping memory")]
    fn of_file(file: OwnedFd, bytes: usize, is_writable: bool) -> io::Result<Mapping> {
        let reserved = bytes.checked_add(HUGE_PAGE).ok_or(io::ErrorKind::InvalidData)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh range that nothing else refers to.
        let range = unsafe { mmap_anonymous(std::ptr::null_mut(), reserved, ProtFlags::empty(), flags) }?;
        let before = range.align_offset(HUGE_PAGE);
        let protection = if is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: over a part of that range; the file is never truncated, by agreement or by its seals. The rest of the
        // range on both sides is unmapped, and nothing else even if mapping fails: by then the part between may be
        // another thread's.
        let start = unsafe {
            let start = range.byte_add(before);
            let mapped = mmap(start, bytes, protection, MapFlags::SHARED | MapFlags::FIXED, &file, 0);
            if before > 0 {
                munmap(range, before)?;
            }
            munmap(range.byte_add(before + bytes), HUGE_PAGE - before)?;
            mapped?
        };
        Mapping::new(start, bytes, Some(file), is_writable)
    }

    fn new(
        start: *mut std::ffi::c_void,
        bytes: usize,
        file: Option<OwnedFd>,
        is_writable: bool,
    ) -> io::Result<Mapping> {
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, bytes, writable_bytes: if is_writable { bytes } else { 0 }, file })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// A duplicate of the file behind it, if it can be passed on.
    pub(crate) fn file(&self) -> Option<io::Result<OwnedFd>> {
        self.file.as_ref().map(OwnedFd::try_clone)
    }

    /// Advises that `bytes` from `at` will be accessed at random: small pages only.
    pub(crate) fn keep_small(&self, at: usize, bytes: usize) {
        self.advise(at, bytes, Advice::LinuxNoHugepage);
    }

    /// Advises that `bytes` from `at` will be used from the beginning to the end: first small pages, then huge ones.
    pub(crate) fn grow_huge(&self, at: usize, bytes: usize) {
        let small = (SMALL_BYTES + at).next_multiple_of(PAGE).min(at + bytes) - at;
        self.keep_small(at, small);
        self.advise(at + small, bytes - small, Advice::LinuxHugepage);
    }

    /// Makes `bytes` from `at` usable without a later fault; an error means that memory ran out, and does not affect
    /// memory that was prepared before. Both are multiples of [`PAGE`].
    pub(crate) fn prepare(&self, at: usize, bytes: usize) -> io::Result<()> {
        assert!(at.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE) && at + bytes <= self.writable_bytes);
        if let Some(file) = &self.file {
            self.make_huge(file, at, bytes)?;
            // On tmpfs this allocates the memory now: a later store cannot fail.
            fallocate(file, FallocateFlags::empty(), at as u64, bytes as u64)?;
        }
        self.fault_in(at, bytes);
        Ok(())
    }

    /// Like [`Mapping::prepare`], for a few small pages, by a thread that must not wait: usually one system call, which
    /// takes no lock of the file.
    pub(crate) fn prepare_small(&self, at: usize, bytes: usize) -> io::Result<()> {
        assert!(at.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE) && at + bytes <= self.writable_bytes);
        if self.populate(at, bytes) {
            return Ok(());
        }
        // Memory has run out, or this is an older kernel: the file's own call knows.
        if let Some(file) = &self.file {
            fallocate(file, FallocateFlags::empty(), at as u64, bytes as u64)?;
        }
        self.fault_in(at, bytes);
        Ok(())
    }

    /// Faults in memory that has been allocated. Another thread may use it already.
    fn fault_in(&self, at: usize, bytes: usize) {
        if bytes > 0 && !self.populate(at, bytes) {
            // An older kernel: a store faults a page in. It must not change what another thread has stored there.
            for word in self.words(at, bytes / 8).iter().step_by(PAGE / 8) {
                word.fetch_or(0, Ordering::Relaxed);
            }
        }
    }

    /// Puts one page each behind the unused parts of a file that shall be huge, if the system can make them so. It
    /// would not do so for empty parts, and copies existing pages.
    #[expect(unsafe_code, reason = "advice on memory")]
    fn make_huge(&self, file: &OwnedFd, at: usize, bytes: usize) -> io::Result<()> {
        let mut huge = at.next_multiple_of(HUGE_PAGE);
        while huge + HUGE_PAGE <= at + bytes {
            fallocate(file, FallocateFlags::empty(), huge as u64, PAGE as u64)?;
            // SAFETY: inside the mapping; about page sizes, which change no content.
            // Refused if small pages are advised, or this system has no others; these work as well.
            let _ = unsafe { libc::madvise(self.start.as_ptr().add(huge).cast(), HUGE_PAGE, MADV_COLLAPSE) };
            huge += HUGE_PAGE;
        }
        Ok(())
    }

    /// A hint: a system that does not know it ignores it.
    #[expect(unsafe_code, reason = "advice on memory")]
    fn advise(&self, at: usize, bytes: usize, advice: Advice) {
        assert!(at.is_multiple_of(PAGE) && at + bytes <= self.bytes);
        // SAFETY: inside the mapping; about page sizes, which change no content.
        let _ = unsafe { madvise(self.start.as_ptr().add(at).cast(), bytes, advice) };
    }

    /// Faults `bytes` from `at` in, whatever they hold; returns false if the system does not support that.
    #[expect(unsafe_code, reason = "advice on memory")]
    pub(crate) fn populate(&self, at: usize, bytes: usize) -> bool {
        assert!(at.is_multiple_of(PAGE) && at <= self.bytes && bytes <= self.bytes - at);
        // SAFETY: inside the mapping; populating changes no content.
        unsafe { madvise(self.start.as_ptr().add(at).cast(), bytes, Advice::LinuxPopulateWrite) }.is_ok()
    }

    /// The 64-bit words from byte `at`, of a mapping that may be written.
    #[inline]
    #[expect(unsafe_code, reason = "a view of mapped memory")]
    pub(crate) fn words(&self, at: usize, count: usize) -> &[AtomicU64] {
        assert!(at.is_multiple_of(8) && at <= self.writable_bytes && count <= (self.writable_bytes - at) / 8);
        // SAFETY: inside the mapping, writable, and aligned, as the mapping is page-aligned; atomics may be shared, and
        // every bit pattern is valid.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at).cast(), count) }
    }

    /// The 32-bit words from byte `at`, of a mapping that may be written.
    #[inline]
    #[expect(unsafe_code, reason = "a view of mapped memory")]
    pub(crate) fn halves(&self, at: usize, count: usize) -> &[AtomicU32] {
        assert!(at.is_multiple_of(4) && at <= self.writable_bytes && count <= (self.writable_bytes - at) / 4);
        // SAFETY: as in `words`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at).cast(), count) }
    }

    /// The 64-bit words from byte `at`, for reading.
    #[inline]
    #[expect(unsafe_code, reason = "a view of mapped memory")]
    pub(crate) fn shown_words(&self, at: usize, count: usize) -> &[ReadOnly<AtomicU64>] {
        assert!(at.is_multiple_of(8) && at <= self.bytes && count <= (self.bytes - at) / 8);
        // SAFETY: as in `words`, but maybe not writable: `ReadOnly` has no stores, and its loads are relaxed, which std promises
        // to work in such memory.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at).cast(), count) }
    }

    /// The 32-bit words from byte `at`, for reading.
    #[inline]
    #[expect(unsafe_code, reason = "a view of mapped memory")]
    pub(crate) fn shown_halves(&self, at: usize, count: usize) -> &[ReadOnly<AtomicU32>] {
        assert!(at.is_multiple_of(4) && at <= self.bytes && count <= (self.bytes - at) / 4);
        // SAFETY: as in `shown_words`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at).cast(), count) }
    }

    /// Bytes that will never be written again: the caller has seen them committed, with acquire.
    #[inline]
    #[expect(unsafe_code, reason = "a view of mapped memory")]
    pub(crate) fn frozen(&self, at: usize, count: usize) -> &[u8] {
        assert!(at <= self.bytes && count <= self.bytes - at);
        // SAFETY: inside the mapping; a committed record's label text is never stored to again, so there is no race.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at), count) }
    }

    /// The type at the very beginning of a writable mapping.
    #[inline]
    #[expect(unsafe_code, reason = "a view of mapped memory")]
    pub(crate) fn header<T: Layout>(&self) -> &T {
        assert!(size_of::<T>() <= self.writable_bytes);
        // SAFETY: in the mapping, which is page-aligned; `T` consists of atomics only, by the contract of `Layout`.
        unsafe { &*self.start.as_ptr().cast::<T>() }
    }

    /// Like [`Mapping::header`], for reading.
    #[inline]
    #[expect(unsafe_code, reason = "a view of mapped memory")]
    pub(crate) fn shown_header<T: Layout>(&self) -> &T::ReadOnly {
        assert!(size_of::<T::ReadOnly>() <= self.bytes);
        // SAFETY: as in `header`; `T::ReadOnly` has no stores, by the contract of `Layout`.
        unsafe { &*self.start.as_ptr().cast::<T::ReadOnly>() }
    }
}

/// The size of a file that holds whole pages.
fn bytes_of(file: &OwnedFd) -> io::Result<usize> {
    let bytes = usize::try_from(fstat(file)?.st_size).unwrap_or(0);
    if bytes < PAGE || !bytes.is_multiple_of(PAGE) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{bytes} bytes are not the size of a segment")));
    }
    Ok(bytes)
}

impl Drop for Mapping {
    #[expect(unsafe_code, reason = "unmapping memory")]
    fn drop(&mut self) {
        // SAFETY: the range is this mapping's, and every reference into it borrowed from it.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a mapping that was made can be unmapped");
    }
}

/// A type that may be laid over mapped memory.
///
/// # Safety
///
/// It consists of atomics only, is `repr(C)`, and is aligned to at most a page. So is [`Layout::ReadOnly`], whose words are
/// [`ReadOnly`].
#[expect(unsafe_code, reason = "the contract of `Mapping::header`")]
pub(crate) unsafe trait Layout {
    /// This layout without stores.
    type ReadOnly;
}

// SAFETY: atomics only, `repr(C)`, aligned to 8.
#[expect(unsafe_code, reason = "see above")]
unsafe impl Layout for super::layout::SegmentHeader {
    type ReadOnly = super::layout::ReadOnlyHeader;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Word;
    use std::fs::read_to_string;
    use std::ops::Range;

    /// Bytes in huge pages, of the areas of a mapping that begin within `range`. Memory with the same advice is one
    /// area.
    fn huge_bytes(mapping: &Mapping, range: Range<usize>) -> usize {
        let (start, mut is_inside, mut huge) = (mapping.start.as_ptr() as usize, false, 0);
        let inside = start + range.start..start + range.end;
        for line in read_to_string("/proc/self/smaps").unwrap().lines() {
            let area = line.split(' ').next().and_then(|area| area.split_once('-'));
            if let Some(from) = area.and_then(|(from, _)| usize::from_str_radix(from, 16).ok()) {
                is_inside = inside.contains(&from);
            } else if let Some(size) = line.strip_prefix("ShmemPmdMapped:").filter(|_| is_inside) {
                huge += size.trim_end_matches("kB").trim().parse::<usize>().unwrap() << 10;
            }
        }
        huge
    }

    /// Whether the system currently makes a huge page of a memory file.
    #[expect(unsafe_code, reason = "advice on memory")]
    fn has_huge_pages() -> bool {
        let scratch = Mapping::create_unnamed(HUGE_PAGE).unwrap();
        scratch.words(0, 1)[0].store(1, Ordering::Relaxed);
        // SAFETY: the whole of the mapping; about page sizes, which change no content.
        let _ = unsafe { libc::madvise(scratch.start.as_ptr().cast(), HUGE_PAGE, MADV_COLLAPSE) };
        huge_bytes(&scratch, 0..HUGE_PAGE) > 0
    }

    #[test]
    fn what_is_scanned_is_in_huge_pages_for_its_writer_and_for_a_successor() {
        if !has_huge_pages() {
            eprintln!("skipped: this system has no huge pages for files of memory");
            return;
        }
        let mapping = Mapping::create_unnamed(5 * HUGE_PAGE).unwrap();
        mapping.keep_small(0, HUGE_PAGE);
        mapping.grow_huge(HUGE_PAGE, 4 * HUGE_PAGE);
        mapping.prepare(0, 5 * HUGE_PAGE).unwrap();
        // Neither the area before, nor the first part of the growing one.
        assert_eq!(huge_bytes(&mapping, 0..2 * HUGE_PAGE), 0);
        // If memory is fragmented there may be fewer than three.
        let huge = huge_bytes(&mapping, 2 * HUGE_PAGE..5 * HUGE_PAGE);
        assert!(huge > 0);
        let inherited = Mapping::inherit(mapping.file().unwrap().unwrap()).unwrap();
        for at in [2 * HUGE_PAGE, 3 * HUGE_PAGE, 4 * HUGE_PAGE] {
            mapping.words(at, 1)[0].store(7, Ordering::Relaxed);
            assert_eq!(inherited.shown_words(at, 1)[0].get(), 7);
        }
        assert_eq!(huge_bytes(&inherited, 0..5 * HUGE_PAGE), huge);
    }

    #[test]
    #[should_panic(expected = "writable_bytes")]
    fn what_is_mapped_for_reading_cannot_be_stored_to() {
        let mapping = Mapping::create_unnamed(PAGE).unwrap();
        Mapping::inherit(mapping.file().unwrap().unwrap()).unwrap().words(0, 1);
    }

    #[test]
    fn what_is_used_stays_as_it_is_while_more_is_made_ready() {
        let folder = tempfile::tempdir().unwrap();
        let in_folder = Mapping::create(&folder.path().join("file"), 4 * HUGE_PAGE).unwrap();
        for mapping in [in_folder, Mapping::create_unnamed(4 * HUGE_PAGE).unwrap()] {
            mapping.grow_huge(0, mapping.bytes());
            let pages = |from: usize, to: usize| (from..to).step_by(PAGE).map(|at| &mapping.words(at, 1)[0]);
            let mut from = 0;
            for to in [PAGE, 3 * PAGE, HUGE_PAGE + 5 * PAGE, 3 * HUGE_PAGE + PAGE, 4 * HUGE_PAGE] {
                mapping.prepare(from, to - from).unwrap();
                assert!(pages(from, to).all(|word| word.load(Ordering::Relaxed) == 0));
                pages(from, to).for_each(|word| word.store(to as u64, Ordering::Relaxed));
                assert!(pages(0, from).all(|word| word.load(Ordering::Relaxed) <= from as u64));
                assert!(pages(0, to).all(|word| word.load(Ordering::Relaxed) != 0));
                from = to;
            }
        }
    }
}
