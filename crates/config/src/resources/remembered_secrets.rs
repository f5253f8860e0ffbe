//! Remembers the values of secret references, to detect changes.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use stillgate_plugin::Secrets;
use stillgate_plugin::secrets::Managers;

/// A source of secrets, with hashes of the values that it returned.
#[derive(Clone)]
pub(crate) struct RememberedSecrets {
    /// The most references that are remembered.
    references_max: usize,
    secrets: Arc<dyn Secrets>,
    told: Arc<Mutex<SecretHashes>>,
    hasher: RandomState,
}

/// The hash of the value, by reference.
#[derive(Clone, Default)]
pub(crate) struct SecretHashes {
    hashes: HashMap<String, u64>,
    /// The resolver for managers that the last text names.
    with_managers: Option<Arc<dyn Secrets>>,
}

impl RememberedSecrets {
    /// Remembers at most this many references.
    pub(crate) fn new(secrets: Arc<dyn Secrets>, references_max: usize) -> RememberedSecrets {
        RememberedSecrets { references_max, secrets, told: Arc::default(), hasher: RandomState::new() }
    }

    fn told(&self) -> MutexGuard<'_, SecretHashes> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all returned values are still current.
    pub(crate) fn is_unchanged(&self) -> bool {
        let told = self.told();
        let secrets = told.with_managers.as_ref().unwrap_or(&self.secrets);
        told.hashes.iter().all(|(reference, hash)| self.hasher.hash_one(secrets.resolve(reference)) == *hash)
    }

    /// The references that were resolved.
    pub(crate) fn references(&self) -> Vec<String> {
        self.told().hashes.keys().cloned().collect()
    }

    /// Handles that a text was read: values of earlier texts may be forgotten. With very many references none is, since not all are
    /// known here.
    pub(crate) fn report_in_use(&self) {
        if self.is_full() {
            return;
        }
        let references = self.references();
        if let Some(secrets) = &self.told().with_managers {
            secrets.in_use(&references);
        }
    }

    /// Starts over, for a text that is read as a whole.
    pub(crate) fn forget(&self) {
        *self.told() = SecretHashes::default();
    }

    /// The values that were returned so far.
    pub(crate) fn copy(&self) -> SecretHashes {
        self.told().clone()
    }

    /// Restores a copy.
    pub(crate) fn put_back(&self, told: SecretHashes) {
        *self.told() = told;
    }

    /// Whether there are more than are remembered.
    pub(crate) fn is_full(&self) -> bool {
        self.told().hashes.len() >= self.references_max
    }
}

/// Omits the remembered values, which are secrets.
impl fmt::Debug for RememberedSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RememberedSecrets")
    }
}

impl Secrets for RememberedSecrets {
    fn with_managers(&self, managers: &Managers) -> Option<Arc<dyn Secrets>> {
        let secrets = self.secrets.with_managers(managers)?;
        self.told().with_managers = Some(secrets.clone());
        Some(Arc::new(RememberedSecrets { secrets, ..self.clone() }))
    }

    fn resolve(&self, reference: &str) -> Result<String, String> {
        let answer = self.secrets.resolve(reference);
        let hash = self.hasher.hash_one(&answer);
        let mut told = self.told();
        if told.hashes.len() < self.references_max {
            // The first value counts: if a later one differs, what was compiled from the first is out of date.
            told.hashes.entry(reference.to_owned()).or_insert(hash);
        }
        answer
    }
}
