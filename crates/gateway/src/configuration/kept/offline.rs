//! A store that no gateway has open: read, or copied. Its file is not changed.

use super::encryption::Encryption;
use super::keeper::collection;
use serde_json::Value as Json;
use std::path::Path;
use stillgate_admin::MASK;
use stillgate_config::ENCRYPTED_WITH;
use stillgate_config::secret_fields::{each_combined_certificate, each_encrypted};
use stillgate_datastore::embedded::{EmbeddedStore, OpenProblem};
use stillgate_datastore::{Document, Key};

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
