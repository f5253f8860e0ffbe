//! Hides parts of answers: private keys of certificates from everybody, other secrets from viewers.
//!
//! A mask must not be written: if a document that was read with masks is written again, asterisks would replace secrets. So every
//! write is searched for masks in all its strings, since a secret may have moved.

use crate::collections::Collection;
use crate::control::Control;
use serde_json::Value as Json;
use stillgate_schema::secret_texts::remove_private_keys;
pub use stillgate_schema::secret_texts::{MASK, is_masked};

/// Hides the private keys of a document. `key` is removed, as in APISIX; `keys` stays as long as `certs`, since clients such as ADC
/// pair the two. A private key that is in the same text as a certificate is removed from it.
pub(crate) fn hide_private_keys(collection: &Collection, value: &mut Json) {
    let (true, Json::Object(fields)) = (collection.name == "ssls", value) else { return };
    fields.shift_remove("key");
    for key in fields.get_mut("keys").and_then(Json::as_array_mut).into_iter().flatten() {
        *key = MASK.into();
    }
    for name in ["cert", "certs"] {
        let texts: &mut [Json] = match fields.get_mut(name) {
            Some(Json::Array(certs)) => certs,
            Some(cert) => std::slice::from_mut(cert),
            None => &mut [],
        };
        for text in texts {
            if let Json::String(text) = text {
                remove_private_keys(text);
            }
        }
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
    fn private_keys_are_hidden_from_everybody() {
        let collection = crate::collections::Collection::named("ssls").unwrap();
        let (cert, key) =
            ("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n", "-----BEGIN PRIVATE KEY-----\nk");
        let both = format!("{cert}{key}");
        let mut value = json!({"cert": both, "key": key, "certs": [both, cert], "keys": [key, key], "snis": ["a"]});
        hide_private_keys(collection, &mut value);
        assert_eq!(value, json!({"cert": cert, "certs": [cert, cert], "keys": [MASK, MASK], "snis": ["a"]}));
    }

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
            json!("********@127.0.0.1:80"),
            json!("-----BEGIN CERTIFICATE-----\n********"),
        ] {
            assert!(has_mask(&value), "{value}");
        }
        for value in [json!("*******"), json!("{\"card\": \"********\"}"), json!("-- ********"), json!(7)] {
            assert!(!has_mask(&value), "{value}");
        }
    }
}
