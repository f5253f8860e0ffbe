//! Masks in a file, which an export writes in place of secrets.
//!
//! A mask is valid text for any key. Used as the secret, it would admit anybody who sends it, so a file with one is refused. Every
//! value is checked, since only the code that reads a key knows whether it is a secret.

use stillgate_schema::secret_texts::{MASK, is_masked};
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink};
use stillgate_schema::text::tree::{Node, Value};

/// How to treat masks in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Masks {
    /// Refuse all of them.
    Refused,
    /// Refuse all except those of private keys of `ssls`, which the destination may already have.
    RefusedButKeys,
}

/// Reports every mask; returns whether there is one.
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

/// Whether it contains a mask.
pub(super) fn has_mask(node: &Node) -> bool {
    let mut is_masked = false;
    each(node, &Path::Root, "", &mut |_, _, _| is_masked = true);
    is_masked
}

/// Calls `found` with the position of each mask, and with the last name of its path.
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
