//! Identities of configurations: digests that a process and its successor compute alike.

use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use stillgate_schema::{Node, Path, Sink, json_of};

/// Digest of a plugin's name, resource and configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity(pub u128);

impl Identity {
    /// Digest of parts, each with its length before it, so that different lists of parts differ.
    pub fn of(parts: &[&[u8]]) -> Identity {
        let mut digest = Sha256::new();
        for part in parts {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        let bytes: [u8; 32] = digest.finalize().into();
        let half: [u8; 16] = std::array::from_fn(|at| bytes[at]);
        Identity(u128::from_le_bytes(half))
    }
}

/// Digest of parts and the content of a node.
pub(crate) fn of_node(parts: &[&[u8]], node: &Node, path: &Path<'_>, sink: &mut Sink) -> Identity {
    let mut text = String::new();
    if let Some(json) = json_of(node, path, sink) {
        write_sorted(&json, &mut text);
    }
    Identity::of(&[parts, &[text.as_bytes()]].concat())
}

fn write_sorted(json: &Json, out: &mut String) {
    match json {
        Json::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_unstable_by_key(|(key, _)| key.as_str());
            out.push('{');
            for (key, value) in entries {
                out.push_str(&Json::from(key.as_str()).to_string());
                out.push(':');
                write_sorted(value, out);
                out.push(',');
            }
            out.push('}');
        }
        Json::Array(items) => {
            out.push('[');
            for item in items {
                write_sorted(item, out);
                out.push(',');
            }
            out.push(']');
        }
        plain => out.push_str(&plain.to_string()),
    }
}
