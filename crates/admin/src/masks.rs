//! Hides parts of answers: private keys of certificates from everybody, other secrets from viewers.
//!
//! A mask must not be written: if a document that was read with masks is written again, asterisks would replace secrets. So every
//! write is searched for masks in all its strings, since a secret may have moved.

use crate::collections::Collection;
use crate::control::Control;
use serde_json::Value as Json;

/// The text that replaces a secret.
pub const MASK: &str = "********";

/// Hides the private keys of a document. `key` is removed, as in APISIX; `keys` stays as long as `certs`, since clients such as ADC
/// pair the two.
pub(crate) fn hide_private_keys(collection: &Collection, value: &mut Json) {
    let (true, Json::Object(fields)) = (collection.name == "ssls", value) else { return };
    fields.shift_remove("key");
    for key in fields.get_mut("keys").and_then(Json::as_array_mut).into_iter().flatten() {
        *key = MASK.into();
    }
}

/// Removes masks of private keys from a certificate that a client sends back.
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

/// Replaces secrets by masks.
pub(crate) fn mask(control: &dyn Control, collection: &Collection, value: &mut Json) {
    control.secrets(collection.name, value, &mut |secret| MASK.clone_into(secret));
}

/// Whether a text is a mask, or an address or expression with a mask in place of its secret part.
pub fn is_masked(text: &str) -> bool {
    let is_partly = |known: &str| text.contains(known);
    text == MASK
        || text.contains(MASK) && ["://", "?********", "http.headers.", "http.queries."].into_iter().any(is_partly)
}

/// Whether a document contains a mask.
pub(crate) fn has_mask(value: &Json) -> bool {
    match value {
        Json::String(text) => is_masked(text),
        Json::Array(items) => items.iter().any(has_mask),
        Json::Object(fields) => fields.iter().any(|(name, field)| name == MASK || has_mask(field)),
        Json::Null | Json::Bool(_) | Json::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn masks_are_found_in_parts_of_texts() {
        for value in [
            json!(MASK),
            json!({"a": [{"b": MASK}]}),
            json!({"headers": {MASK: "v"}}),
            json!({"expression": "http.path == \"/\" && http.headers.x == \"********\""}),
            json!("any(http.queries.sig) == r#\"********\"#"),
            json!({"uri": "https://hooks.test/********"}),
            json!({"uri": "https://********@hooks.test"}),
            json!({"uri": "/a?********"}),
        ] {
            assert!(has_mask(&value), "{value}");
        }
        for value in [json!("*******"), json!("{\"card\": \"********\"}"), json!("-- ********"), json!(7)] {
            assert!(!has_mask(&value), "{value}");
        }
    }
}
