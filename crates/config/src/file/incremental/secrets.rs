//! Remembers what references to secrets stood for, so that a change is noticed.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use stillgate_plugin::Secrets;
use stillgate_plugin::secrets::Managers;

/// References that are remembered; a file that uses more is read as a whole each time.
const REFERENCES_MAX: usize = 1000;

/// Secrets, and hashes of what was told of them.
#[derive(Clone)]
pub(super) struct Remembered {
    secrets: Arc<dyn Secrets>,
    told: Arc<Mutex<Told>>,
    hasher: RandomState,
}

/// By reference, a hash of what it stood for.
#[derive(Default)]
struct Told {
    hashes: HashMap<String, u64>,
    /// Where the text that was read last names managers: what knows them.
    with_managers: Option<Arc<dyn Secrets>>,
}

impl Remembered {
    pub(super) fn new(secrets: Arc<dyn Secrets>) -> Remembered {
        Remembered { secrets, told: Arc::default(), hasher: RandomState::new() }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether everything that was told would be told again.
    pub(super) fn is_unchanged(&self) -> bool {
        let told = self.told();
        let secrets = told.with_managers.as_ref().unwrap_or(&self.secrets);
        told.hashes.iter().all(|(reference, hash)| self.hasher.hash_one(secrets.resolve(reference)) == *hash)
    }

    /// What was asked for.
    pub(super) fn references(&self) -> Vec<String> {
        self.told().hashes.keys().cloned().collect()
    }

    /// A text has been read: what was kept for those before it may be forgotten.
    pub(super) fn tell_in_use(&self) {
        let references = self.references();
        if let Some(secrets) = &self.told().with_managers {
            secrets.in_use(&references);
        }
    }

    /// Begins anew, with a text that is read as a whole.
    pub(super) fn forget(&self) {
        *self.told() = Told::default();
    }

    /// Whether there is more than is remembered.
    pub(super) fn is_full(&self) -> bool {
        self.told().hashes.len() >= REFERENCES_MAX
    }
}

impl Secrets for Remembered {
    fn with_managers(&self, managers: &Managers) -> Option<Arc<dyn Secrets>> {
        let secrets = self.secrets.with_managers(managers)?;
        self.told().with_managers = Some(secrets.clone());
        Some(Arc::new(Remembered { secrets, ..self.clone() }))
    }

    fn resolve(&self, reference: &str) -> Result<String, String> {
        let answer = self.secrets.resolve(reference);
        let hash = self.hasher.hash_one(&answer);
        let mut told = self.told();
        if told.hashes.len() < REFERENCES_MAX {
            told.hashes.insert(reference.to_owned(), hash);
        }
        answer
    }
}
