//! What is remembered of each item of the list of routes.

use std::hash::{DefaultHasher, Hash, Hasher};
use stillgate_schema::text::cuts::Cut;

/// One item of a text that was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) cut: Cut,
    /// Lines from its first to the one that the route begins in.
    pub(super) at: u32,
    /// Keys and values.
    pub(super) nodes: u32,
    /// Hash of the route's id, switched off or not.
    pub(super) id: u64,
    pub(super) keeps: Keeps,
    /// Whether it is switched on, and so in the configuration.
    pub(super) is_enabled: bool,
    /// Whether it is switched on and has its own upstream.
    pub(super) has_upstream: bool,
}

const _: () = assert!(size_of::<Item>() == 32, "the documentation says so");

/// What of an item's meaning does not depend on where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeps {
    /// Everything.
    Always,
    /// Everything, as long as its index in the list is the same: its id is.
    InPlace,
    /// It has warnings, which tell its line and index; it is read each time.
    Never,
}

/// For comparing ids: different hashes are different ids.
pub(super) fn hash_of(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}
