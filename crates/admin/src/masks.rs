//! What answers hide: private keys of certificates from everybody, other secrets from viewers.
//!
//! A mask must not come back: a document that was read with masks and is written again would replace secrets by
//! asterisks. So every write is searched for masks, in all its strings: a secret may have moved.

use crate::collections::Collection;
use crate::control::Control;
use serde_json::Value as Json;

/// What stands in the place of a secret.
pub const MASK: &str = "********";

/// Fields of `ssls` that no answer has.
const PRIVATE_KEYS: [&str; 2] = ["key", "keys"];

/// Removes private keys from a document of a collection.
pub(crate) fn remove_private_keys(collection: &Collection, value: &mut Json) {
    let (true, Json::Object(fields)) = (collection.name == "ssls", value) else { return };
    for key in PRIVATE_KEYS {
        // The order of fields is what a reader compares with.
        fields.shift_remove(key);
    }
}

/// Puts masks in the place of secrets.
pub(crate) fn mask(control: &dyn Control, collection: &Collection, value: &mut Json) {
    control.secrets(collection.name, value, &mut |secret| MASK.clone_into(secret));
}

/// Whether a mask is anywhere in a document.
pub(crate) fn has_mask(value: &Json) -> bool {
    match value {
        Json::String(text) => text == MASK,
        Json::Array(items) => items.iter().any(has_mask),
        Json::Object(fields) => fields.values().any(has_mask),
        Json::Null | Json::Bool(_) | Json::Number(_) => false,
    }
}
