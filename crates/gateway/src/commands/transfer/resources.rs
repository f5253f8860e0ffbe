//! Resources as documents by kind and id, wherever they come from.
//!
//! Those of a file are read here, too, and checked as `stillgate check --offline` does it; each has an id of its own. References to
//! secrets are not resolved: they refer to the gateway's machine, not to this one.

use super::TransferFailure;
use crate::configuration::source::{ConfigSource, plugins};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use stillgate_config::secret_fields::{each_combined_certificate, each_possible_secret, each_secret};
use stillgate_config::{Errors, FileDocument, PluginSet, ResourceKind, Severity, documents};
use stillgate_plugin_api::Secrets;
use stillgate_schema::secret_texts::{MASK, is_masked, remove_private_keys};

/// A kind and an id: `1`, of credentials `jack/1`, of secret managers `vault/1`.
pub(super) type Name = (ResourceKind, String);

/// One resource.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Resource {
    /// The document without the fields that only a datastore adds.
    pub(super) document: Json,
    /// The older of two routes comes first: a revision, or the place in a file.
    pub(super) created: u64,
    /// Line and column, of a file.
    pub(super) at: Option<(u32, u32)>,
}

/// All of them.
pub(super) type Resources = BTreeMap<Name, Resource>;

/// What a datastore adds to documents.
const ADDED: [&str; 4] = ["create_time", "update_time", "createdIndex", "modifiedIndex"];

impl Resource {
    /// The resource as a datastore stores it.
    pub(super) fn stored(mut document: Json, created: u64) -> Resource {
        if let Some(fields) = document.as_object_mut() {
            ADDED.iter().for_each(|name| drop(fields.shift_remove(*name)));
        }
        Resource { document, created, at: None }
    }
}

/// The path as messages show it: `routes/1`, `consumers/jack/credentials/1`.
pub(super) fn path_of((kind, id): &Name) -> String {
    match (kind, id.split_once('/')) {
        (ResourceKind::Credentials, Some((consumer, id))) => format!("consumers/{consumer}/credentials/{id}"),
        _ => format!("{}/{id}", kind.name()),
    }
}

/// Puts masks in the place of all secrets, and removes private keys from the texts of certificates.
pub(super) fn hide_secrets((kind, _): &Name, document: &mut Json) {
    each_combined_certificate(kind.name(), document, &mut remove_private_keys);
    each_secret(kind.name(), document, &mut |secret| {
        // A reference is not a secret.
        if !secret.starts_with('$') {
            MASK.clone_into(secret);
        }
    });
}

/// Whether a document has secrets in clear text.
pub(super) fn has_secrets(name: &Name, document: &Json) -> bool {
    let mut hidden = document.clone();
    hide_secrets(name, &mut hidden);
    hidden != *document
}

/// A document with masks in the place of all that may be a secret.
pub(super) fn without_possible_secrets((kind, _): &Name, document: &Json) -> Json {
    let mut document = document.clone();
    each_possible_secret(kind.name(), &mut document, &mut |secret| MASK.clone_into(secret));
    document
}

/// The private key of a certificate is in no answer of the Admin API; the mask says that there is one.
pub(super) fn mark_hidden_key(document: &mut Json) {
    if has(document, "cert") && !has(document, "key") {
        document["key"] = MASK.into();
    }
    let certs = document.get("certs").and_then(Json::as_array).map_or(0, Vec::len);
    if certs > 0 && !has(document, "keys") {
        document["keys"] = vec![json!(MASK); certs].into();
    }
}

fn has(document: &Json, name: &str) -> bool {
    document.get(name).is_some_and(|value| !value.is_null())
}

/// The places of masks in a document, as `plugins.key-auth.key`.
pub(super) fn masks(document: &Json) -> Vec<String> {
    let mut found = Vec::new();
    find_masks(document, "", &mut found);
    found
}

fn find_masks(value: &Json, path: &str, found: &mut Vec<String>) {
    match value {
        Json::String(text) if is_masked(text) => found.push(path.to_owned()),
        Json::Array(items) => {
            items.iter().enumerate().for_each(|(index, item)| find_masks(item, &format!("{path}[{index}]"), found));
        }
        Json::Object(fields) => {
            let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            for (name, field) in fields {
                found.extend((name == MASK).then(|| below(name)));
                find_masks(field, &below(name), found);
            }
        }
        _ => {}
    }
}

/// The value of each reference; findings that contain it are dropped.
const NOT_HERE: &str = "not looked up on this machine";

struct Elsewhere;

impl Secrets for Elsewhere {
    fn resolve(&self, _: &str) -> Result<String, String> {
        Err(NOT_HERE.to_owned())
    }
}

/// The bytes of a file.
pub(super) fn file_text(file: &Path) -> Result<Vec<u8>, TransferFailure> {
    ConfigSource::File(file.to_owned()).read().map_err(|error| TransferFailure::Unusable(error.to_string()))
}

/// Reads the text of a file; the error has every finding with its place. `beside`: the other resources, which those of the file may
/// refer to.
pub(super) fn read_file(file: &Path, text: &[u8], beside: &Resources) -> Result<Resources, TransferFailure> {
    let source = ConfigSource::File(file.to_owned());
    let refused = |errors: Errors| TransferFailure::Failed(format!("the file is refused\n{errors}"));
    source.check_end(text, false).map_err(refused)?;
    let plugins = PluginSet { secrets: Arc::new(Elsewhere), ..plugins() };
    let (found, mut errors) = documents(text, &|name| std::env::var(name).ok(), plugins, beside.keys().cloned());
    errors.diagnostics.retain(|found| found.severity == Severity::Error && !found.message.contains(NOT_HERE));
    if !errors.diagnostics.is_empty() {
        return Err(refused(Errors { file: source.name(), ..errors }));
    }
    let resource = |(index, found): (usize, FileDocument)| {
        let at = Some((found.line, found.column));
        ((found.kind, found.id), Resource { document: found.document, created: index as u64, at })
    };
    Ok(found.into_iter().enumerate().map(resource).collect())
}

/// A file that has masks in place of private keys that are not in the gateway. `places`: with line and column.
pub(super) fn refused_masks(file: &Path, places: &[String]) -> TransferFailure {
    let named: Vec<String> = places.iter().map(|place| format!("{}:{place}", file.display())).collect();
    TransferFailure::Failed(format!(
        "the file has masks in place of secrets; write the secrets, or export the file again with --secrets\n{}",
        named.join("\n")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_found_where_they_are() {
        let document = json!({"plugins": {"key-auth": {"key": MASK}}, "keys": ["k", MASK], "key": "x"});
        assert_eq!(masks(&document), ["plugins.key-auth.key", "keys[1]"]);
        let mut combined = json!({"cert": "c\n-----BEGIN PRIVATE KEY-----\nk", "key": "k"});
        hide_secrets(&(ResourceKind::Ssls, "1".to_owned()), &mut combined);
        assert_eq!(combined, json!({"cert": "c\n", "key": MASK}));
        let mut certificate = json!({"cert": "c", "certs": ["d", "e"]});
        mark_hidden_key(&mut certificate);
        assert_eq!(masks(&certificate), ["key", "keys[0]", "keys[1]"]);
    }
}
