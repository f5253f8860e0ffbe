//! What answers hide: private keys of certificates from everybody, other secrets from viewers.
//!
//! A mask must not come back: a document that was read with masks and is written again would replace secrets by
//! asterisks. So every write is searched for masks, in all its strings: a secret may have moved.

use crate::collections::Collection;
use crate::control::Control;
use serde_json::Value as Json;

/// What stands in the place of a secret.
pub const MASK: &str = "********";

/// Hides the private keys of a document of a collection. `key` goes, as in APISIX; `keys` stays as long as `certs` is,
/// since clients such as ADC pair the two.
pub(crate) fn hide_private_keys(collection: &Collection, value: &mut Json) {
    let (true, Json::Object(fields)) = (collection.name == "ssls", value) else { return };
    fields.shift_remove("key");
    for key in fields.get_mut("keys").and_then(Json::as_array_mut).into_iter().flatten() {
        *key = MASK.into();
    }
}

/// Removes masks of private keys from a certificate that comes back.
pub(crate) fn remove_hidden_keys(value: &mut Json) {
    let Json::Object(fields) = value else { return };
    let is_hidden = |keys: &Json| keys.as_array().is_some_and(|keys| keys.iter().all(|key| key == MASK));
    if fields.get("keys").is_some_and(is_hidden) {
        fields.shift_remove("keys");
    }
    if fields.get("key").is_some_and(|key| key == MASK) {
        fields.shift_remove("key");
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
