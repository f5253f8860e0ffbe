//! The remembered state of a list's items, and the parsing of one item by itself.

use crate::file::masks::has_mask;
use std::hash::{DefaultHasher, Hash, Hasher};
use stillgate_schema::text::cuts::ItemText;
use stillgate_schema::text::diagnostic::Sink;
use stillgate_schema::text::environment::Lookup;
use stillgate_schema::text::tree::{Node, Value, parse};

/// One valid item of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) cut: ItemText,
    /// Number of lines from its first one to the one in which the resource begins.
    pub(super) at: u32,
    /// Number of keys and values.
    pub(super) nodes: u32,
    /// Hash of the resource's id, whether it is enabled or not.
    pub(super) id: u64,
    pub(super) keeps: Keeps,
    /// Whether it is enabled, and so part of the configuration.
    pub(super) is_enabled: bool,
    /// Whether it is an enabled route with an inline upstream.
    pub(super) has_upstream: bool,
}

const _: () = assert!(size_of::<Item>() == 32, "the documentation says so");

/// The part of an item's meaning that does not depend on its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeps {
    /// Everything.
    Always,
    /// Everything, as long as its index in the list, which is its id, stays the same.
    InPlace,
    /// It has warnings, which contain its line and index; it is read each time.
    Never,
}

/// Parses an item that begins in `line` as the only one of a list under `key`; returns it with its offset from that line. `None`:
/// it is not one item by itself, or has a mask.
pub(super) fn only_item(
    key: &str,
    text: &[u8],
    line: u32,
    cut: ItemText,
    environment: Lookup<'_>,
    sink: &mut Sink,
) -> Option<(Node, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    // `line` is not the first, since the line of the list's key precedes it.
    let tree = parse(line - 2, &format!("{key}:\n{text}"), Some(environment), sink)?;
    let Value::Map(entries) = &tree.root.value else { return None };
    let [entry] = &**entries else { return None };
    let Value::List(nodes) = &entry.value.value else { return None };
    let [node] = &**nodes else { return None };
    let at = node.at.line.checked_sub(line).filter(|at| *at < cut.lines)?;
    (tree.is_plain && &*entry.key == key && !has_mask(node)).then(|| (node.clone(), at))
}

/// For comparing ids: different hashes mean different ids.
pub(super) fn hash_of(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}
