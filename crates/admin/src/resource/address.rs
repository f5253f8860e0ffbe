//! The document that a request is about: validates the parts of the path, and makes the key.
//!
//! An id that no document can have is an error for a write, and "not found" for everything else.

use super::references::text_of;
use super::rules::is_good_id;
use crate::answer::Answer;
use crate::collections::Collection;
use serde_json::Value as Json;
use stillgate_datastore::Key;

/// The most bytes of an id, as in APISIX.
pub(crate) const ID_BYTES_MAX: usize = 64;

/// The most bytes of a consumer's name, as in APISIX.
pub(crate) const USERNAME_BYTES_MAX: usize = 100;

/// The decoded parts of a path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) id: Option<String>,
    /// The consumer of a credential, the secret manager of a secret.
    pub(crate) parent: Option<String>,
    /// The path within the document.
    pub(crate) sub_path: Option<String>,
}

/// The key of a document that may exist already; `None`: there can be none. In an etcd others may have written ids that this API
/// does not allow.
pub(crate) fn key_of_stored(collection: &Collection, address: &Address) -> Option<Key> {
    let given = || match collection.naming {
        // A path below a collection has only one meaning.
        crate::collections::DocumentNaming::Id | crate::collections::DocumentNaming::Plugin => {
            Key::parse(&format!("{}/{}", collection.name, address.id.as_deref()?)).ok()
        }
        crate::collections::DocumentNaming::Username
        | crate::collections::DocumentNaming::Credential
        | crate::collections::DocumentNaming::Manager => None,
    };
    key_of_path(collection, address).or_else(given)
}

/// The key of a document that a path may name; `None`: none can be written there.
pub(crate) fn key_of_path(collection: &Collection, address: &Address) -> Option<Key> {
    let id = address.id.as_deref()?;
    let path = match (collection.naming, address.parent.as_deref()) {
        (crate::collections::DocumentNaming::Username, _) => username(id).then(|| format!("consumers/{id}")),
        (crate::collections::DocumentNaming::Credential, Some(parent)) => {
            (username(parent) && is_id(id)).then(|| format!("consumers/{parent}/credentials/{id}"))
        }
        (crate::collections::DocumentNaming::Manager, Some(parent)) => {
            (is_id(parent) && is_id(id)).then(|| format!("secrets/{parent}/{id}"))
        }
        (crate::collections::DocumentNaming::Credential | crate::collections::DocumentNaming::Manager, None) => None,
        (crate::collections::DocumentNaming::Id | crate::collections::DocumentNaming::Plugin, _) => {
            is_id(id).then(|| format!("{}/{id}", collection.name))
        }
    };
    Key::parse(&path?).ok()
}

/// The key that a document is written to. Compares the document's id with the path's, and puts the id into the document.
pub(crate) fn key_to_write(collection: &Collection, address: &Address, document: &mut Json) -> Result<Key, Answer> {
    let own = address.id.as_deref();
    let id = match collection.naming {
        crate::collections::DocumentNaming::Username => {
            let name = document["username"].as_str().map(str::to_owned);
            let name = name.ok_or_else(|| Answer::invalid("property \"username\" is required"))?;
            if own.is_some_and(|own| own != name) {
                return Err(Answer::bad("wrong username"));
            }
            if !username(&name) {
                return Err(Answer::invalid(&format!(
                    "property \"username\" validation failed: failed to match pattern \"^[a-zA-Z0-9_\\-]+$\" with \"{name}\""
                )));
            }
            name
        }
        crate::collections::DocumentNaming::Plugin => own.ok_or_else(|| Answer::bad("missing plugin name"))?.to_owned(),
        crate::collections::DocumentNaming::Manager => {
            let parts = address.parent.as_deref().zip(own);
            let (parent, id) = parts.ok_or_else(|| Answer::bad("missing secret id"))?;
            same_id(collection, document, Some(&format!("{parent}/{id}")))?;
            id.to_owned()
        }
        crate::collections::DocumentNaming::Id | crate::collections::DocumentNaming::Credential => {
            same_id(collection, document, own)?
        }
    };
    let key = key_of_path(collection, &Address { id: Some(id), ..address.clone() });
    key.ok_or_else(|| match collection.naming {
        crate::collections::DocumentNaming::Plugin => Answer::bad("invalid plugin name"),
        _ => wrong_form(),
    })
}

/// For a document without an id so far.
pub(crate) fn no_id(collection: &Collection, address: &Address, document: &Json) -> Result<(), Answer> {
    match address.id.is_some() || !document["id"].is_null() {
        true => Err(Answer::bad(format!("wrong {} id, do not need it", collection.kind))),
        false => Ok(()),
    }
}

/// Compares the ids in path and document; the document gets the path's.
fn same_id(collection: &Collection, document: &mut Json, own: Option<&str>) -> Result<String, Answer> {
    let kind = collection.kind;
    let given = match &document["id"] {
        Json::Null => None,
        id if !is_good_id(id) => return Err(wrong_form()),
        id => Some(text_of(id).ok_or_else(wrong_form)?),
    };
    match (own, given) {
        (None, None) => Err(Answer::bad(format!("missing {kind} id"))),
        (Some(own), Some(given)) if own != given => Err(Answer::bad(format!("wrong {kind} id"))),
        (Some(own), _) => {
            document["id"] = own.into();
            Ok(own.to_owned())
        }
        (None, Some(given)) => Ok(given),
    }
}

fn wrong_form() -> Answer {
    Answer::invalid("property \"id\" validation failed: object matches none of the required")
}

pub(crate) fn is_id(id: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(is_good)
}

fn username(name: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=USERNAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_good)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Content;
    use serde_json::json;

    fn write(collection: &str, id: Option<&str>, mut document: Json) -> String {
        let collection = crate::collections::Collection::named(collection).unwrap();
        let address = Address { id: id.map(str::to_owned), parent: Some("jack".to_owned()), sub_path: None };
        match key_to_write(collection, &address, &mut document) {
            Ok(key) => format!("{key} {}", document["id"]),
            Err(Answer { content: Content::Json(json), .. }) => json["error_msg"].as_str().unwrap().to_owned(),
            Err(answer) => panic!("{answer:?}"),
        }
    }

    #[test]
    fn ids_of_path_and_document_meet() {
        let none = "invalid configuration: property \"id\" validation failed: object matches none of the required";
        let check = |collection, id, document, expected: &str| {
            assert_eq!(write(collection, id, document), expected);
        };
        check("routes", Some("1"), json!({}), "routes/1 \"1\"");
        check("routes", Some("1"), json!({"id": 1}), "routes/1 \"1\"");
        check("routes", None, json!({"id": 1}), "routes/1 1");
        check("routes", None, json!({"id": 1.0}), "routes/1 1.0");
        check("routes", None, json!({"id": "a.b-c_d"}), "routes/a.b-c_d \"a.b-c_d\"");
        check("routes", None, json!({}), "missing route id");
        check("routes", Some("1"), json!({"id": 2}), "wrong route id");
        check("routes", None, json!({"id": [1]}), none);
        for wrong in [json!(0), json!(-1), json!(1.5), json!(true)] {
            check("routes", None, json!({ "id": wrong }), none);
            assert_eq!(write("routes", Some(&wrong.to_string()), json!({ "id": wrong })), none);
        }
        let long = "x".repeat(65);
        for wrong in ["a b", "a/b", "..", "%2e", "", "é", "<script>", &long] {
            check("routes", Some(wrong), json!({}), none);
            check("routes", None, json!({ "id": wrong }), none);
        }
        check("consumers", None, json!({"username": "jack"}), "consumers/jack null");
        check("consumers", Some("jack"), json!({"username": "rose"}), "wrong username");
        check("consumers", None, json!({}), "invalid configuration: property \"username\" is required");
        check("credentials", Some("c1"), json!({}), "consumers/jack/credentials/c1 \"c1\"");
        check("credentials", None, json!({}), "missing credential id");
        check("secrets", Some("1"), json!({}), "secrets/jack/1 \"jack/1\"");
        check("secrets", Some("1"), json!({"id": "1"}), "wrong secret id");
        check("plugin_metadata", None, json!({}), "missing plugin name");
        check("plugin_metadata", Some("a/b"), json!({}), "invalid plugin name");
    }
}
