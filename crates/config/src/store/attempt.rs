//! What changes would come to, if they were made: tried on the store, looked at, and taken back.
//!
//! It costs what making them costs, three times. Nothing is published in between: its owner has it alone.

use super::Change;
use super::held::Key;
use super::served::Store;
use crate::model::{Kind, Rejected};
use std::collections::BTreeMap;
use stillgate_schema::text::diagnostic::Diagnostic;

/// What changes would come to.
#[derive(Debug, Clone, Default)]
pub struct Attempt {
    /// Of the changed resources those that would be rejected; of others those that are not yet, or for another reason.
    pub rejected: Vec<Rejected>,
    /// What the writer should know of the changed resources.
    pub warnings: Vec<Diagnostic>,
}

impl Store {
    /// Finds out what changes would come to, and leaves everything as it is. `look`: at what would be served.
    pub fn attempt(&mut self, changes: Vec<Change>, look: impl FnOnce(&Store)) -> Attempt {
        let before = self.rejected.clone();
        let mut saved = BTreeMap::new();
        for change in &changes {
            let (kind, id) = change.of();
            let key: Key = (kind, id.into());
            let held = self.held.get(&key).cloned();
            saved.entry(key).or_insert(held);
        }
        let has_managers = saved.keys().any(|(kind, _)| *kind == Kind::Secrets);
        self.apply(changes);
        look(self);
        let is_new = |(key, rejected): &(&Key, &Rejected)| {
            let known = before.get(*key).filter(|_| !saved.contains_key(key));
            known.is_none_or(|before| (&before.reason, before.serving) != (&rejected.reason, rejected.serving))
        };
        let rejected = self.rejected.iter().filter(is_new).map(|(_, rejected)| rejected.clone()).collect();
        let warnings = saved.keys().filter_map(|key| self.warnings.get(key)).flatten().cloned().collect();
        for (key, held) in saved {
            drop(self.forget(&key));
            self.hold_again(&key, held);
        }
        match has_managers {
            true => self.read_again(self.gateway.clone()),
            false => self.settle_all(),
        }
        Attempt { rejected, warnings }
    }
}
