//! A store that no gateway has open: read, or copied. Its file is not changed.

use super::fields::each_encrypted;
use super::keeper::collection;
use serde_json::Value as Json;
use std::path::Path;
use stillgate_datastore::cipher::Keyring;
use stillgate_datastore::embedded::{Embedded, OpenProblem};
use stillgate_datastore::{Document, Key};

/// Why a store cannot be read.
#[derive(Debug)]
pub(crate) enum Offline {
    /// A gateway has it open.
    InUse,
    /// The text says why.
    Unusable(String),
}

/// All documents of a store, with the secrets in plain text that these keys decrypt.
pub(crate) fn read_store(path: &Path, keyring: &[&str]) -> Result<Vec<(Key, Document, Json)>, Offline> {
    let keyring = Keyring::new(keyring).ok();
    let snapshot = open(path)?.snapshot().map_err(|error| Offline::Unusable(error.to_string()))?;
    let read = |(key, document): (Key, Document)| {
        let mut plain: Json = serde_json::from_str(&document.value)
            .map_err(|error| Offline::Unusable(format!("{}: {key}: not JSON: {error}", path.display())))?;
        if let Some(keyring) = &keyring {
            each_encrypted(collection(&key), &mut plain, &mut |secret| {
                if let Some(decrypted) = keyring.decrypt(secret) {
                    *secret = decrypted;
                }
            });
        }
        Ok((key, document, plain))
    };
    snapshot.documents.into_iter().map(read).collect()
}

/// Copies a store, history included.
pub(crate) fn back_up(store: &Path, to: &Path) -> Result<(), Offline> {
    open(store)?.backup(to).map_err(|error| Offline::Unusable(error.to_string()))
}

fn open(path: &Path) -> Result<Embedded, Offline> {
    if let Err(error) = std::fs::metadata(path) {
        return Err(Offline::Unusable(format!("{}: {error}", path.display())));
    }
    Embedded::open_copy(path).map_err(|error| match error.problem {
        OpenProblem::InUse => Offline::InUse,
        OpenProblem::Denied(denied) => {
            Offline::Unusable(format!("{}: {denied}; run the command as a user who may read it", path.display()))
        }
        _ => Offline::Unusable(error.to_string()),
    })
}
