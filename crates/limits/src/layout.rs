//! The memory layout of a table: the contract between the two processes of an upgrade.
//!
//! ```text
//!  0        4096
//!  ├ header ┼ bucket 0 ┼ bucket 1 ┼ …        512 bytes each
//! ```
//!
//! A change of anything here, of the words in `members` and `bucket`, or of the hash in `key`, requires a new
//! [`VERSION`].

use crate::bucket::Bucket;
use crate::members::WAYS_MAX;
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
