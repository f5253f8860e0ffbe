//! The directory in Redis or Valkey, alone or as a cluster.
//!
//! | key | what |
//! |---|---|
//! | `sg:d:ID` | the entry of a device: `1 GENERATION SINCE EPOCH CONNECTION NODE`, or `0 GENERATION LAST_SEEN 0 0 ` |
//! | `sg:{nodes}:leases` | a hash: node to `EPOCH UNTIL FILLED_ERA ADDRESS` |
//! | `sg:{nodes}:era` | the beginning of this directory |
//!
//! Every script accesses keys of one slot. Everything can be lost at any time: nodes notice by the era and write it
//! again.

#[cfg(test)]
mod agreement;
mod directory;
mod store;
mod task;

pub(crate) use directory::Hooks;
pub use directory::{Directory, DirectorySettings, FormerDirectory};
pub use stillgate_devices::directory::DirectoryUnavailable;
pub use store::{RedisAddress, StoreAddressError};
