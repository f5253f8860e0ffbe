//! What is remembered of each item of a list, and one item by itself.

use crate::file::masks::has_mask;
use std::hash::{DefaultHasher, Hash, Hasher};
use stillgate_schema::text::cuts::Cut;
use stillgate_schema::text::diagnostic::Sink;
use stillgate_schema::text::environment::Lookup;
use stillgate_schema::text::tree::{Node, Value, parse};

/// One item of a text that was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) cut: Cut,
    /// Lines from its first to the one that the resource begins in.
    pub(super) at: u32,
    /// Keys and values.
    pub(super) nodes: u32,
    /// Hash of the resource's id, switched off or not.
    pub(super) id: u64,
    pub(super) keeps: Keeps,
    /// Whether it is switched on, and so in the configuration.
    pub(super) is_enabled: bool,
    /// Whether it is a route that is switched on and has its own upstream.
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

/// An item that begins in `line`, read as the only one of a list under `key`, and how many lines below that it stands. `None`:
/// it is not one item by itself, or has a mask.
pub(super) fn only_item(
    key: &str,
    text: &[u8],
    line: u32,
    cut: Cut,
    environment: Lookup<'_>,
    sink: &mut Sink,
) -> Option<(Node, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    // `line` is not the first, since that is at most the one of the list's key.
    let tree = parse(line - 2, &format!("{key}:\n{text}"), Some(environment), sink)?;
    let Value::Map(entries) = &tree.root.value else { return None };
    let [entry] = &**entries else { return None };
    let Value::List(nodes) = &entry.value.value else { return None };
    let [node] = &**nodes else { return None };
    let at = node.at.line.checked_sub(line).filter(|at| *at < cut.lines)?;
    (tree.is_plain && &*entry.key == key && !has_mask(node)).then(|| (node.clone(), at))
}

/// For comparing ids: different hashes are different ids.
pub(super) fn hash_of(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}
