//! Metrics that never cost a request.

#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(not(loom))]
pub(crate) mod declared;
pub mod encode;
pub mod family;
pub mod gzip;
pub mod labels;
pub(crate) mod protocol;
#[cfg(not(loom))]
pub mod reader;
#[cfg(not(loom))]
pub mod registry;
#[cfg(not(loom))]
pub(crate) mod segment;
#[cfg(not(loom))]
mod sets;
#[cfg(not(loom))]
pub(crate) mod shared;
#[cfg(not(loom))]
mod sketch;
mod sync;
pub mod value;
#[cfg(not(loom))]
pub mod writer;

pub use family::{Buckets, Family, FamilyError, Kind, Merge, Native};
#[cfg(not(loom))]
pub use declared::{Declared, OTHER};
#[cfg(not(loom))]
pub use registry::{Options, Registry, RegistryError};
#[cfg(not(loom))]
pub use writer::{Handle, Writer};
#[cfg(not(loom))]
pub use shared::{CollectError, Collector, CollectorOptions, DirectoryError, Event};
#[cfg(not(loom))]
pub use segment::cells::EXEMPLAR_BYTES_MAX;
#[cfg(not(loom))]
pub use segment::{Process, SegmentError};
pub use value::{Distribution, Exemplar, Exponential, Value};
