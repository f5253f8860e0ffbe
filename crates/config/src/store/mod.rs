//! The store source: resources are read, refused and replaced one by one.
//!
//! ```text
//! Change (put or delete of a kind and id) ─▶ document ─▶ by itself: right, or refused
//!                                                 │ the last right one serves on
//!                                                 ▼
//!      those that refer to it ◀── does it mean something else? ◀── resolved among the others
//! ```
//!
//! A file is refused as a whole; a store refuses one resource and continues, because its other writers cannot wait until a mistake
//! is fixed. It fails closed: requests for an invalid resource are answered with 503 if its match is known, and nothing is served
//! without its invalid parts. The result depends only on the content of the store, not on the order of changes.

mod served;
mod stored_resource;

use crate::model::{Origin, RejectedResource, ResourceKind};
use crate::resources::{Catalog, RememberedSecrets};
pub use served::Store;
use std::collections::BTreeMap;
use std::sync::Arc;
use stillgate_plugin_api::CustomPlugins;
use stillgate_schema::text::diagnostic::Diagnostic;
pub use stored_resource::ENCRYPTED_WITH;
use stored_resource::Key;

/// One change of a resource.
#[derive(Debug, Clone)]
pub enum Change {
    /// A new resource, or a new version of one.
    Put {
        /// Its kind.
        kind: ResourceKind,
        /// Unique within its kind: `1`; `jack/1` for credentials; `vault/1` for secret managers.
        id: String,
        /// JSON text, in the form of APISIX's Admin API.
        document: Arc<str>,
        /// When it was created: of two resources with the same claim the older one keeps it.
        created: u64,
        /// Its origin.
        origin: Origin,
    },
    /// A removed resource.
    Delete {
        /// Its kind.
        kind: ResourceKind,
        /// Unique within its kind.
        id: String,
    },
}

impl Change {
    /// The kind and id of the resource.
    pub fn of(&self) -> (ResourceKind, &str) {
        match self {
            Change::Put { kind, id, .. } | Change::Delete { kind, id } => (*kind, id),
        }
    }

    /// The new document; `None`: the resource is removed.
    pub fn document(&self) -> Option<&str> {
        match self {
            Change::Put { document, .. } => Some(document),
            Change::Delete { .. } => None,
        }
    }
}

// The result of changes if they were made: they are applied to the store, inspected, and undone.
//
// This costs three times as much as making them. Nothing is published in between: the store has one owner.

/// What the regular expressions of resources that are changed together may cost: each is compiled twice, while other writers
/// wait. As many changes as are more than a few are those of a whole configuration.
const FEW_COST_MAX: usize = 128 << 20;
const MANY_COST_MAX: usize = 1 << 30;
const FEW_CHANGES_MAX: usize = 1000;

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
        self.trial = Some(if changes.len() > FEW_CHANGES_MAX { MANY_COST_MAX } else { FEW_COST_MAX });
        let before = self.rejected.clone();
        let mut saved = BTreeMap::new();
        for change in &changes {
            let (kind, id) = change.of();
            let key: Key = (kind, id.into());
            let held = self.held.get(&key).cloned();
            saved.entry(key).or_insert(held);
        }
        let has_managers = saved.keys().any(|(kind, _)| *kind == ResourceKind::Secrets);
        self.attempted = saved.keys().cloned().collect();
        self.apply(changes);
        look(self);
        let is_new = |(key, rejected): &(&Key, &RejectedResource)| {
            let known = before.get(*key).filter(|_| !saved.contains_key(key));
            known.is_none_or(|before| (&before.reason, before.serving) != (&rejected.reason, rejected.serving))
        };
        let rejected = self.rejected.iter().filter(is_new).map(|(_, rejected)| rejected.clone()).collect();
        self.trial = Some(usize::MAX);
        self.attempted.clear();
        let warnings = saved.keys().filter_map(|key| self.warnings.get(key)).flatten().cloned().collect();
        for (key, held) in saved {
            drop(self.forget(&key));
            self.reinsert(&key, held);
        }
        match has_managers {
            true => self.reread(self.gateway.clone()),
            false => self.settle_all(),
        }
        self.trial = None;
        Attempt { rejected, warnings }
    }
}

/// Begins the id of a resource whose key is not below its collection; the key follows.
pub const ELSEWHERE: &str = "../";

/// The key of a resource in a datastore, below its prefix: `routes/1`, `consumers/jack/credentials/1`.
pub fn path_of(kind: ResourceKind, id: &str) -> String {
    if let Some(path) = id.strip_prefix(ELSEWHERE).filter(|_| kind != ResourceKind::Credentials) {
        return path.to_owned();
    }
    match (kind, id.split_once('/')) {
        (ResourceKind::Credentials, Some((name, id))) => {
            format!("{}/{name}/{}/{id}", ResourceKind::Consumers.name(), kind.name())
        }
        _ => format!("{}/{id}", kind.name()),
    }
}

/// Checks documents by themselves, whatever else a store has.
#[derive(Clone)]
pub struct DocumentChecker {
    nothing: Arc<Catalog>,
    secrets: Arc<RememberedSecrets>,
}

impl DocumentChecker {
    /// Validates one document, with any id.
    pub fn check(&self, kind: ResourceKind, document: &str) -> Result<(), String> {
        stored_resource::check(kind, document, &self.nothing)
    }

    /// Looks up the secrets of Vaults that documents refer to, all at the same time. Compiling them does not wait then.
    pub fn fetch<'t>(&self, documents: impl IntoIterator<Item = &'t str>) {
        self.secrets.fetch_those_of(documents);
    }

    /// Begins to look up the secrets of these references, without waiting; `true`: nothing has to be waited for any more.
    pub fn has_fetched(&self, references: &[String]) -> bool {
        references.is_empty() || self.secrets.current().has_fetched(references)
    }

    /// The plugins from files that documents may have.
    pub fn custom_plugins(&self) -> &CustomPlugins {
        &self.nothing.plugins.set.table.custom
    }
}

impl Store {
    /// Checks documents with the plugins and secret managers of the store as it is now.
    pub fn checker(&self) -> DocumentChecker {
        DocumentChecker { nothing: self.nothing.clone(), secrets: self.secrets.clone() }
    }
}
