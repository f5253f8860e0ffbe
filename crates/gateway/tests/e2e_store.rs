//! Resources in an embedded store, administered through the Admin API: the real binary, from the first write to the last crash.

mod authority;
#[allow(dead_code, reason = "e2e_upgrade_probation uses the rest")]
#[path = "upgrade/killing.rs"]
mod killing;
#[path = "store/mod.rs"]
mod store;
mod upgrade;
