//! Converts documents between their stored form and plain text, and marks secrets that no key decrypts.
//!
//! A ciphertext that passes for a plain secret would be a credential, for everybody who can read the datastore. So a document whose
//! secrets cannot be decrypted has [`ENCRYPTED_WITH`] in it, and is refused for that. They are recognised as follows:
//!
//! - A store is ours: a document with encrypted secrets is kept with the fingerprint of its key under [`ENCRYPTED_WITH`]. What
//!   is kept without one is plain, as before a keyring was configured.
//! - In etcd there is APISIX's format, which has no place for that. There a secret that has the form of a ciphertext is one.

use super::keeper::{DatastoreTraits, collection};
use serde_json::Value as Json;
use std::path::Path;
use std::sync::Arc;
use stillgate_admin::MASK;
use stillgate_config::secret_fields::{each_combined_certificate, each_encrypted, each_nested};
use stillgate_config::{ENCRYPTED_WITH, Gateway};
use stillgate_datastore::cipher::{Keyring, has_form};
use stillgate_datastore::embedded::{EmbeddedStore, OpenProblem};
use stillgate_datastore::{Document, Key};
use stillgate_schema::partial_json::PartialDocument;

/// Shown in place of the fingerprint of a key that is not known.
const UNKNOWN: &str = "unknown";

/// Encrypts and decrypts the secrets of documents.
pub(super) struct Encryption {
    keyring: Option<Keyring>,
    /// Documents are kept with a mark; otherwise in APISIX's format.
    has_marks: bool,
}

impl Encryption {
    pub(super) fn of(traits: &DatastoreTraits, gateway: &Gateway) -> Encryption {
        let keys: Vec<&str> = gateway.data_encryption.keyring.iter().map(|key| key.reveal()).collect();
        Encryption::with(&keys, traits.is_embedded)
    }

    /// Encrypts with these keys; if empty, nothing is encrypted.
    pub(super) fn with(keys: &[&str], has_marks: bool) -> Encryption {
        // The reader of the keys has checked their length.
        Encryption { keyring: Keyring::new(keys).ok(), has_marks }
    }

    /// The text of a stored document in plain text; with [`ENCRYPTED_WITH`] in it where a secret cannot be decrypted.
    pub(super) fn plain(&self, key: &Key, text: &Arc<str>) -> Arc<str> {
        if !self.may_be_encrypted(key, text) {
            return text.clone();
        }
        // A text that is not a JSON object is refused elsewhere, with a message; but what can be read of it is known by its secrets.
        let Some(mut document) = PartialDocument::read(text) else { return text.clone() };
        let mark = document.json.as_object_mut().and_then(|keys| keys.remove(ENCRYPTED_WITH));
        let (mut is_other, mut is_unreadable) = (mark.is_some(), false);
        self.each_secret(key, &mut document.json, &mut |secret| match self
            .keyring
            .as_ref()
            .and_then(|keyring| keyring.decrypt(secret))
        {
            Some(decrypted) => {
                *secret = decrypted;
                is_other = true;
            }
            None => is_unreadable |= self.is_ciphertext(secret, mark.is_some()),
        });
        match (is_unreadable, is_other) {
            // The original secret is kept; nothing of the new one is left by now.
            (true, _) => {
                let with = mark.as_ref().and_then(Json::as_str).unwrap_or(UNKNOWN);
                PartialDocument::read(text).map_or_else(|| text.clone(), |kept| marked(kept, with))
            }
            (false, true) => document.text().into(),
            (false, false) => text.clone(),
        }
    }

    /// The text of a document in its stored form.
    pub(super) fn stored_text(&self, key: &Key, text: &Arc<str>) -> Arc<str> {
        let may_be_marked = text.contains(ENCRYPTED_WITH);
        if self.keyring.is_none() && !may_be_marked {
            return text.clone();
        }
        let Some(mut document) = PartialDocument::read(text) else { return text.clone() };
        // A secret that could not be decrypted is kept as it was.
        if document.json.get(ENCRYPTED_WITH).is_some() {
            if let Some(keys) = document.json.as_object_mut().filter(|_| !self.has_marks) {
                keys.remove(ENCRYPTED_WITH);
            }
            return document.text().into();
        }
        let Some(keyring) = &self.keyring else { return text.clone() };
        let mut is_other = false;
        self.each_secret(key, &mut document.json, &mut |secret| {
            if !is_reference(secret) {
                *secret = keyring.encrypt(secret);
                is_other = true;
            }
        });
        match (is_other, self.has_marks) {
            (false, _) => text.clone(),
            (true, false) => document.text().into(),
            (true, true) => marked(document, &keyring.fingerprint),
        }
    }

    /// Why a document in plain text would not be what it is when it is read again.
    pub(super) fn misreading_reason(&self, key: &Key, text: &str) -> Option<&'static str> {
        const WHY: &str = "one of its secrets looks like one that APISIX has encrypted (base64 of whole blocks of 16 bytes), and \
                           would be taken for that; configure gateway.data_encryption.keyring, or use another secret";
        if self.has_marks || self.keyring.is_some() {
            return None;
        }
        let mut document: Json = serde_json::from_str(text).ok()?;
        let mut is_refused = false;
        each_encrypted(collection(key), &mut document, &mut |secret| is_refused |= has_form(secret));
        is_refused.then_some(WHY)
    }

    /// Visits all that is encrypted. APISIX would not decrypt a certificate, even if a private key is in the same text, nor what is in a
    /// plugin inside of a plugin.
    fn each_secret(&self, key: &Key, document: &mut Json, each: &mut dyn FnMut(&mut String)) {
        each_encrypted(collection(key), document, each);
        if self.has_marks {
            each_combined_certificate(collection(key), document, each);
            each_nested(document, each);
        }
    }

    /// Whether a secret that no key decrypts is a ciphertext. An earlier version left some secrets of a marked document plain.
    fn is_ciphertext(&self, secret: &str, is_marked: bool) -> bool {
        has_form(secret) && (is_marked || !self.has_marks)
    }

    /// Spares the documents that need not be parsed.
    fn may_be_encrypted(&self, key: &Key, text: &str) -> bool {
        // Keys below which there are secrets, with or without escaped quotes, and an escape that may hide one.
        const SIGNS: [&str; 3] = ["plugins", "client_key", "\\u"];
        match (&self.keyring, self.has_marks) {
            (Some(_), _) => true,
            (None, true) => text.contains(ENCRYPTED_WITH),
            (None, false) => collection(key) == "ssls" || SIGNS.iter().any(|sign| text.contains(sign)),
        }
    }
}

/// References are not secrets, and APISIX leaves them alone, too.
fn is_reference(secret: &str) -> bool {
    secret.starts_with('$')
}

fn marked(mut document: PartialDocument<'_>, with: &str) -> Arc<str> {
    if let Some(keys) = document.json.as_object_mut() {
        keys.insert(ENCRYPTED_WITH.to_owned(), with.into());
    }
    document.text().into()
}

// A store that no gateway has open: read, or copied. Its file is not changed.

/// Why a store cannot be read.
#[derive(Debug)]
pub(crate) enum Offline {
    /// A gateway has it open.
    InUse,
    /// The text says why.
    Unusable(String),
}

/// All documents of a store, with their secrets in plain text, and masks for those that these keys do not decrypt.
pub(crate) fn read_store(path: &Path, keyring: &[&str]) -> Result<Vec<(Key, Document, Json)>, Offline> {
    let encryption = Encryption::with(keyring, true);
    let snapshot = open(path)?.snapshot().map_err(|error| Offline::Unusable(error.to_string()))?;
    let read = |(key, document): (Key, Document)| {
        let mut plain: Json = serde_json::from_str(&encryption.plain(&key, &document.value))
            .map_err(|error| Offline::Unusable(format!("{}: {key}: not JSON: {error}", path.display())))?;
        if plain.as_object_mut().is_some_and(|keys| keys.remove(ENCRYPTED_WITH).is_some()) {
            let hide = &mut |secret: &mut String| MASK.clone_into(secret);
            each_encrypted(collection(&key), &mut plain, hide);
            each_combined_certificate(collection(&key), &mut plain, hide);
            each_nested(&mut plain, hide);
        }
        Ok((key, document, plain))
    };
    snapshot.documents.into_iter().map(read).collect()
}

/// Copies a store, history included.
pub(crate) fn back_up(store: &Path, to: &Path) -> Result<(), Offline> {
    open(store)?.backup(to).map_err(|error| Offline::Unusable(error.to_string()))
}

fn open(path: &Path) -> Result<EmbeddedStore, Offline> {
    if let Err(error) = std::fs::metadata(path) {
        return Err(Offline::Unusable(format!("{}: {error}", path.display())));
    }
    EmbeddedStore::open_copy(path).map_err(|error| match error.problem {
        OpenProblem::InUse => Offline::InUse,
        OpenProblem::Denied(denied) => {
            Offline::Unusable(format!("{}: {denied}; run the command as a user who may read it", path.display()))
        }
        _ => Offline::Unusable(error.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use stillgate_schema::partial_json::UNREADABLE;

    const OLD: &str = "qeddd145sfvddff3";
    const NEW: &str = "edd1c9f0985e76a2";

    /// Base64 of 32 random bytes: a usual secret, in the form of a ciphertext.
    const RANDOM: &str = "y4Z2rmvYl0Pc2l2k3w3mG7p2C0l8m8mYJt9mVbqv2kE=";

    fn jack(secret: &str) -> Arc<str> {
        json!({"username": "jack", "plugins": {"key-auth": {"key": secret}}}).to_string().into()
    }

    fn key() -> Key {
        Key::parse("consumers/jack").unwrap()
    }

    fn is_marked(text: &str) -> bool {
        text.contains(ENCRYPTED_WITH)
    }

    fn parsed(text: &str) -> Json {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn what_a_store_keeps_is_read_with_its_key_only() {
        let of = |keys: &[&str]| Encryption::with(keys, true);
        for secret in ["plain", RANDOM, "", "$env://A"] {
            let kept = of(&[OLD]).stored_text(&key(), &jack(secret));
            assert_eq!(is_marked(&kept), !secret.starts_with('$'), "{kept}");
            for keys in [&[OLD][..], &[NEW, OLD]] {
                assert_eq!(parsed(&of(keys).plain(&key(), &kept)), parsed(&jack(secret)), "{kept}");
            }
            for keys in [&[][..], &[NEW]] {
                let read = of(keys).plain(&key(), &kept);
                assert_eq!(parsed(&read), parsed(&kept), "left as it is");
                assert_eq!(parsed(&of(keys).stored_text(&key(), &read)), parsed(&kept), "and kept as it was");
            }
            // Kept before there was a keyring.
            let plain = of(&[]).stored_text(&key(), &jack(secret));
            assert_eq!(plain, jack(secret));
            assert_eq!(of(&[OLD]).plain(&key(), &plain), plain);
        }
    }

    #[test]
    fn a_private_key_beside_a_certificate_is_encrypted_in_a_store() {
        let key = Key::parse("ssls/1").unwrap();
        let cert = "-----BEGIN CERTIFICATE-----\nc\n-----END CERTIFICATE-----\n";
        let combined = format!("{cert}-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n");
        let document: Arc<str> = json!({"cert": combined, "certs": [cert], "key": "k"}).to_string().into();
        let store = Encryption::with(&[OLD], true);
        let kept = store.stored_text(&key, &document);
        assert!(!kept.contains("secret") && kept.contains("BEGIN CERTIFICATE"), "{kept}");
        assert_eq!(parsed(&store.plain(&key, &kept)), parsed(&document));
        // APISIX would not decrypt it.
        let kept = Encryption::with(&[OLD], false).stored_text(&key, &document);
        assert_eq!(parsed(&kept)["cert"], combined);
    }

    #[test]
    fn what_is_nested_in_plugins_is_encrypted() {
        let key = Key::parse("routes/1").unwrap();
        let route = |client_key: &str, password: &str| -> Arc<str> {
            let upstream = json!({"nodes": {"127.0.0.1:1": 1}, "tls": {"client_cert": "c", "client_key": client_key}});
            let split = json!({"rules": [{"weighted_upstreams": [{"weight": 1}, {"upstream": upstream}]}]});
            let workflow = json!({"rules": [{"actions": [["limit-count", {"redis_password": password}]]}]});
            json!({"uri": "/a", "plugins": {"traffic-split": split, "workflow": workflow}}).to_string().into()
        };
        let pem = "-----BEGIN PRIVATE KEY-----\nSECRET1\n-----END PRIVATE KEY-----\n";
        let plain = route(pem, "SECRET2");
        for (has_marks, left) in [(true, &[][..]), (false, &["SECRET2"])] {
            let encryption = Encryption::with(&[OLD], has_marks);
            let kept = encryption.stored_text(&key, &plain);
            let seen: Vec<&str> = ["SECRET1", "SECRET2"].into_iter().filter(|secret| kept.contains(secret)).collect();
            assert_eq!(seen, left, "{kept}");
            assert_eq!(parsed(&encryption.plain(&key, &kept)), parsed(&plain));
            assert!(is_marked(&Encryption::with(&[NEW], has_marks).plain(&key, &kept)), "{kept}");
        }
        // As an earlier version kept it, beside a secret that it encrypted.
        let mut document = parsed(&plain);
        document["plugins"]["csrf"] = json!({"key": "SECRET3"});
        let store = Encryption::with(&[OLD], true);
        let mut kept = parsed(&store.stored_text(&key, &document.to_string().into()));
        for plugin in ["traffic-split", "workflow"] {
            kept["plugins"][plugin] = document["plugins"][plugin].clone();
        }
        assert_eq!(parsed(&store.plain(&key, &kept.to_string().into())), document);
    }

    #[test]
    fn in_etcd_the_form_decides() {
        let of = |keys: &[&str]| Encryption::with(keys, false);
        let kept = of(&[OLD]).stored_text(&key(), &jack("plain"));
        assert!(!is_marked(&kept), "APISIX reads it, too");
        assert_eq!(of(&[NEW, OLD]).plain(&key(), &kept), jack("plain"));
        for keys in [&[][..], &[NEW]] {
            let read = of(keys).plain(&key(), &kept);
            assert!(is_marked(&read), "{read}");
            assert_eq!(parsed(&of(keys).stored_text(&key(), &read)), parsed(&kept), "in the snapshot as in etcd");
            for plain in ["plain", "$env://A"] {
                assert_eq!(of(keys).plain(&key(), &jack(plain)), jack(plain));
            }
        }
        let route: Arc<str> = r#"{"uri": "/a", "upstream": {"nodes": {"127.0.0.1:1": 1}}}"#.into();
        assert_eq!(of(&[]).plain(&Key::parse("routes/1").unwrap(), &route), route);
    }

    /// A consumer that cannot be read in part keeps its credentials, whichever consumers follow.
    #[test]
    fn secrets_of_what_cannot_be_read_in_part_are_decrypted() {
        let of = |keys: &[&str]| Encryption::with(keys, false);
        let encrypted = of(&[OLD]).stored_text(&key(), &jack("plain"));
        for (kept, prefix) in [
            (encrypted.replacen('{', "{\"desc\": 010, ", 1), ""),
            (format!("{}, \"labels\": nan}}", encrypted.strip_suffix('}').unwrap()), ""),
            (encrypted.strip_suffix('}').unwrap().to_owned(), ""),
            (format!("(no text: byte 9 is not UTF-8) {encrypted}"), "(no text: byte 9 is not UTF-8) "),
            (format!("\u{feff}{encrypted}"), ""),
            (format!("[{encrypted}]"), ""),
            (Json::String(encrypted.to_string()).to_string(), ""),
        ] {
            let read = of(&[NEW, OLD]).plain(&key(), &kept.as_str().into());
            let document = PartialDocument::read(&read).unwrap();
            assert_eq!(document.prefix, prefix);
            assert_eq!(document.json["plugins"]["key-auth"]["key"], "plain", "{read}");
            assert!(!document.faults().is_empty() || read.contains(UNREADABLE), "{read}");
            assert!(!of(&[OLD]).stored_text(&key(), &read).contains("plain"), "{read}");
            let read = of(&[]).plain(&key(), &kept.as_str().into());
            assert!(is_marked(&read), "{read}");
        }
        let raw: Arc<str> = r#"{"username": "jack", "desc": 010}"#.into();
        assert_eq!(of(&[OLD]).plain(&key(), &raw), raw);
    }

    #[test]
    fn without_a_key_what_would_be_misread_is_not_written() {
        let refused = |keys: &[&str], has_marks| {
            Encryption::with(keys, has_marks).misreading_reason(&key(), &jack(RANDOM)).is_some()
        };
        assert_eq!([refused(&[], false), refused(&[OLD], false), refused(&[], true)], [true, false, false]);
        assert_eq!(Encryption::with(&[], false).misreading_reason(&key(), &jack("plain")), None);
    }
}
