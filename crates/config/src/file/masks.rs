//! Masks in a file, which stand where an export hides a secret.
//!
//! A mask is valid text for any key. Used as the secret, it would admit anybody who sends it, so a file with one is refused.
//! It is looked for everywhere, since which keys are secrets is known to those that read them only.

use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink};
use stillgate_schema::text::tree::{Node, Value};

/// What `stillgate export` and the Admin API show of a secret.
pub const MASK: &str = "********";

/// Whether a text is a mask, or an address or an expression with a mask in place of its secret part.
pub fn is_masked(text: &str) -> bool {
    let is_partly = |known: &str| text.contains(known);
    text == MASK
        || text.contains(MASK) && ["://", "?********", "http.headers.", "http.queries."].into_iter().any(is_partly)
}

/// What a mask in a file means for its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Masks {
    /// All are refused.
    Refused,
    /// All but those of private keys of `ssls`, which may stand for keys that are where the file is going to.
    RefusedButKeys,
}

/// Reports every mask; whether there is one.
pub(super) fn refuse(root: &Node, masks: Masks, sink: &mut Sink) -> bool {
    let mut is_masked = false;
    let Value::Map(entries) = &root.value else { return false };
    for entry in entries.iter() {
        let path = Path::Root.key(&entry.key);
        let is_of_ssls = &*entry.key == "ssls";
        each(&entry.value, &path, &entry.key, &mut |at, path, key| {
            let is_private_key = is_of_ssls && matches!(key, "key" | "keys");
            if is_private_key && masks == Masks::RefusedButKeys {
                return;
            }
            let remedy = match is_private_key {
                true => "write the private key, or the path of its file; the Admin API never returns it",
                false => "write the secret, or export the file again with --secrets",
            };
            sink.error(at, path, Fault::new(format!("{MASK} is a mask in place of a secret")).hint(remedy));
            is_masked = true;
        });
    }
    is_masked
}

/// Whether there is a mask in it.
pub(super) fn has_mask(node: &Node) -> bool {
    let mut is_masked = false;
    each(node, &Path::Root, "", &mut |_, _, _| is_masked = true);
    is_masked
}

/// Calls `found` with the place of each mask, and with the last name that leads to it.
fn each(node: &Node, path: &Path<'_>, name: &str, found: &mut dyn FnMut(Position, &Path<'_>, &str)) {
    match &node.value {
        Value::Scalar(scalar) if is_masked(&scalar.text) => found(node.at, path, name),
        Value::List(items) => {
            items.iter().enumerate().for_each(|(index, item)| each(item, &path.index(index), name, found));
        }
        Value::Map(entries) => {
            for entry in entries.iter() {
                let path = path.key(&entry.key);
                if &*entry.key == MASK {
                    found(entry.key_at, &path, &entry.key);
                }
                each(&entry.value, &path, &entry.key, found);
            }
        }
        Value::Scalar(_) | Value::Refused => {}
    }
}
