//! The result of changes if they were made: they are applied to the store, inspected, and undone.
//!
//! This costs three times as much as making them. Nothing is published in between: the store has one owner.

use super::Change;
use super::served::Store;
use super::stored_resource::Key;
use crate::model::{Kind, RejectedResource};
use std::collections::BTreeMap;
use stillgate_schema::text::diagnostic::Diagnostic;

/// The result of changes.
#[derive(Debug, Clone, Default)]
pub struct Attempt {
    /// The changed resources that would be rejected; and others that are not rejected yet, or for another reason.
    pub rejected: Vec<RejectedResource>,
    /// Warnings about the changed resources.
    pub warnings: Vec<Diagnostic>,
}

impl Store {
    /// Determines the result of changes, and leaves everything unchanged. `look`: inspects what would be served.
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
        let is_new = |(key, rejected): &(&Key, &RejectedResource)| {
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
