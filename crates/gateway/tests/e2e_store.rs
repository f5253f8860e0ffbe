//! Resources in an embedded store, administered through the Admin API: the real binary, from the first write to the last crash.

mod authority;
#[path = "store/mod.rs"]
mod store;
mod upgrade;
