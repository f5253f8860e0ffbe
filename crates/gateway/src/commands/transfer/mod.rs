//! `export`, `diff`, `apply`, `store backup`: resources between a file, a store and an etcd, through the Admin API.
//!
//! ```text
//!  file ──▶ Resources ─┐                    ┌─▶ lines of `diff`
//!                      ├─▶ meaning: equal? ─┤
//!  Admin API, store ───┘                    └─▶ plan: an order, batches ─▶ POST /v1/batch
//!       └─▶ YAML ─▶ `export`
//! ```
//!
//! A file is read by the same tables as that of `run`. Nothing here reads or writes etcd itself: the gateway that follows it does.

mod apply;
mod export;
mod order;
mod peer;
mod plan;
mod remote;
mod resources;

pub(crate) use apply::{apply, diff};
pub(crate) use export::{backup, export};
pub(super) use remote::Remote;

use super::cli::{EXIT_ERRORS, EXIT_UNUSABLE};

/// Why a command ends without having done its work.
#[derive(Debug)]
pub(super) enum TransferFailure {
    /// The arguments cannot be used.
    Unusable(String),
    /// The work failed.
    Failed(String),
}

impl TransferFailure {
    pub(super) fn message(&self) -> &str {
        match self {
            TransferFailure::Unusable(message) | TransferFailure::Failed(message) => message,
        }
    }

    /// Prints the failure, and returns the exit code.
    pub(super) fn report(&self) -> u8 {
        eprintln!("stillgate: {}", self.message());
        match self {
            TransferFailure::Unusable(_) => EXIT_UNUSABLE,
            TransferFailure::Failed(_) => EXIT_ERRORS,
        }
    }
}
