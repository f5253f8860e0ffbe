//! Remembers what references to secrets stood for, so that a change is noticed.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use stillgate_plugin::Secrets;

/// References that are remembered; a file that uses more is read as a whole each time.
const REFERENCES_MAX: usize = 1000;

/// Secrets, and hashes of what was told of them.
pub(super) struct Remembered {
    secrets: Arc<dyn Secrets>,
    told: Mutex<HashMap<String, u64>>,
    hasher: RandomState,
}

impl Remembered {
    pub(super) fn new(secrets: Arc<dyn Secrets>) -> Remembered {
        Remembered { secrets, told: Mutex::default(), hasher: RandomState::new() }
    }

    /// Whether everything that was told would be told again.
    pub(super) fn is_unchanged(&self) -> bool {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.iter().all(|(reference, hash)| self.hasher.hash_one(self.secrets.resolve(reference)) == *hash)
    }

    /// What was asked for.
    pub(super) fn references(&self) -> Vec<String> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Begins anew, with a text that is read as a whole.
    pub(super) fn forget(&self) {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Whether there is more than is remembered.
    pub(super) fn is_full(&self) -> bool {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).len() >= REFERENCES_MAX
    }
}

impl Secrets for Remembered {
    fn resolve(&self, reference: &str) -> Result<String, String> {
        let answer = self.secrets.resolve(reference);
        let hash = self.hasher.hash_one(&answer);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < REFERENCES_MAX {
            told.insert(reference.to_owned(), hash);
        }
        answer
    }
}
