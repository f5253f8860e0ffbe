//! The memory of a table: a file without a name that two processes map. The only module of the crate with unsafe code.
//!
//! ```text
//!  0        4096
//!  ├ header ┼ bucket 0 ┼ bucket 1 ┼ …        512 bytes each
//! ```
//!
//! This layout is the contract between the two processes of an upgrade: a change of it, of the words in `bucket`, or
//! of the hash in `key`, requires a new [`VERSION`].
//!
//! All of its content is accessed as atomics, so that neither threads nor processes can cause a data race. It is
//! separate from the mapping of `stillgate-metrics`, which reserves, grows and has one writer; this one has a fixed
//! size from the start.

use crate::bucket::{Bucket, WAYS_MAX};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// "sglimits" as a little-endian number.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"sglimits");
/// The version of the contract.
pub(crate) const VERSION: u64 = 1;
/// Bytes before the buckets.
pub(crate) const HEADER_BYTES: usize = 4096;
/// Slots of a bucket. With half of all slots in use, one bucket in three hundred has no room for another counter.
pub(crate) const WAYS: usize = WAYS_MAX;
/// Bytes of a bucket.
pub(crate) const BUCKET_BYTES: usize = size_of::<Shelf>();

/// A bucket in memory.
#[repr(C, align(512))]
pub(crate) struct Shelf(pub(crate) Bucket<WAYS>);

/// The first page. Its first two lines never change once the table is open.
#[repr(C)]
pub(crate) struct TableHeader {
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU64,
    pub(crate) buckets: AtomicU64,
    pub(crate) seeds: [AtomicU64; 2],
    spare: [AtomicU64; 11],
    pub(crate) evicted: AtomicU64,
    pub(crate) contended: AtomicU64,
    pub(crate) disturbed: AtomicU64,
}

const _: () = assert!(BUCKET_BYTES == 512 && size_of::<Bucket<WAYS>>() == 512);
const _: () = assert!(std::mem::offset_of!(TableHeader, evicted) == 128 && size_of::<TableHeader>() <= HEADER_BYTES);
const _: () = assert!(HEADER_BYTES.is_multiple_of(BUCKET_BYTES));

/// A mapped file: a [`TableHeader`], then shelves.
#[derive(Debug)]
pub(crate) struct TableMapping {
    start: NonNull<u8>,
    bytes: usize,
    file: OwnedFd,
}

// SAFETY: the range belongs to the mapping until it is dropped, and is only handed out as shared references to atomics.
#[expect(unsafe_code, reason = "see above")]
unsafe impl Send for TableMapping {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "see above")]
unsafe impl Sync for TableMapping {}

impl TableMapping {
    /// Makes a file with room for so many shelves, and allocates all of its memory now, so that a later store cannot
    /// fail for lack of memory.
    pub(crate) fn create(shelves: usize) -> io::Result<TableMapping> {
        let create = |flags| memfd_create(c"stillgate-limits", flags | MemfdFlags::CLOEXEC);
        let file = match create(MemfdFlags::NOEXEC_SEAL) {
            // Linux before 6.3 does not know the flag; later kernels may require it.
            Err(Errno::INVAL) => create(MemfdFlags::ALLOW_SEALING),
            created => created,
        }?;
        let bytes = shelves.checked_mul(BUCKET_BYTES).and_then(|bytes| bytes.checked_add(HEADER_BYTES));
        let bytes = bytes.ok_or(io::ErrorKind::InvalidInput)?;
        ftruncate(&file, bytes as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        fallocate(&file, FallocateFlags::empty(), 0, bytes as u64)?;
        TableMapping::map(file, bytes)
    }

    /// Maps a file of another process. A file that could be shortened is refused: an access beyond its end would kill
    /// this process.
    pub(crate) fn open(file: OwnedFd) -> io::Result<TableMapping> {
        let refuse = |what| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        if !fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
            return refuse("no file of memory that is sealed against shrinking");
        }
        let bytes = usize::try_from(fstat(&file)?.st_size).unwrap_or(0);
        if bytes < HEADER_BYTES + BUCKET_BYTES || !bytes.is_multiple_of(BUCKET_BYTES) {
            return refuse("a file of a size that no table of limits has");
        }
        TableMapping::map(file, bytes)
    }

    #[expect(unsafe_code, reason = "mapping memory")]
    fn map(file: OwnedFd, bytes: usize) -> io::Result<TableMapping> {
        // SAFETY: a new range without other references; by its seals the file is never shortened.
        let start = unsafe {
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(TableMapping { start, bytes, file })
    }

    pub(crate) fn file(&self) -> &OwnedFd {
        &self.file
    }

    #[inline]
    #[expect(unsafe_code, reason = "a view of mapped memory")]
    pub(crate) fn header(&self) -> &TableHeader {
        // SAFETY: inside the mapping, whose start is aligned to a page; a `TableHeader` is `repr(C)` and consists of atomics, for
        // which any bits are valid.
        unsafe { self.start.cast::<TableHeader>().as_ref() }
    }

    #[inline]
    #[expect(unsafe_code, reason = "a view of mapped memory")]
    pub(crate) fn shelves(&self) -> &[Shelf] {
        let count = (self.bytes - HEADER_BYTES) / BUCKET_BYTES;
        // SAFETY: inside the mapping; aligned, as a page and the header are multiples of a shelf's 512 bytes; a `Shelf`
        // consists of atomics, for which any bits are valid.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(HEADER_BYTES).cast(), count) }
    }
}

impl Drop for TableMapping {
    #[expect(unsafe_code, reason = "unmapping memory")]
    fn drop(&mut self) {
        // SAFETY: the range is this mapping's, and every reference into it borrowed from it.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a mapping that was made can be unmapped");
    }
}
