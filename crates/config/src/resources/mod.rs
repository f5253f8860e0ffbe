//! Compiles resources by themselves and with their references, independently of their source.
//!
//! ```text
//!  keys ─▶ ResourceKeys ─▶ Catalog::compile_resource ─▶ CompiledResource ─▶ Catalog::put, for those that refer to it
//!                                                             │ claims: what only one may have
//!                                                             ▼
//!                              the source: what is refused, what is served, in which order
//! ```
//!
//! References are resolved, services are merged into routes, and defaults that depend on other values are filled in. Checks that
//! need more than one value are here and nowhere else. An error in one resource does not hide those of others. All look-ups are by
//! hash, so that the time for 100,000 routes stays linear.

pub(crate) mod addresses;
mod catalog;
mod catalog_item;
mod claims;
mod compiled_resource;
mod consumers;
mod plugins;
mod refusal;
mod ssls;
mod upstream;

pub(crate) use catalog::Catalog;
pub(crate) use claims::{Claim, Claims, Holder};
pub(crate) use compiled_resource::{CompiledResource, ResourceKeys, own_upstreams, with_managers};
pub(crate) use plugins::{
    Metadata, PluginList, SkippedPlugin, check_ignored, deduplicate_global_rules, metadata_table, unavailable,
    usable_chain, with_custom_plugins,
};
pub use plugins::{PluginSet, ReadPluginFiles};
pub(crate) use ssls::ResourceId;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use stillgate_plugin_api::Secrets;
use stillgate_plugin_api::secrets::{Managers, references_in};
use stillgate_schema::kind::At;
use stillgate_schema::text::diagnostic::{Fault, Path, Sink};

/// Records the line of an id; reports one that is taken.
pub(crate) fn take_id(
    lines: &mut HashMap<String, u32>,
    id: &At<String>,
    line: u32,
    path: &Path<'_>,
    sink: &mut Sink,
) -> bool {
    if let Some(first) = lines.get(&id.value) {
        let message = format!("the id {:?} is taken by the one in line {first}", id.value);
        sink.error(id.at, &path.key("id"), Fault::new(message).hint("write another"));
        return false;
    }
    lines.insert(id.value.clone(), line);
    true
}

// Remembers the values of secret references, to detect changes.

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

    fn lock_hashes(&self) -> MutexGuard<'_, SecretHashes> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all returned values are still current.
    pub(crate) fn is_unchanged(&self) -> bool {
        let told = self.lock_hashes();
        let secrets = told.with_managers.as_ref().unwrap_or(&self.secrets);
        told.hashes.iter().all(|(reference, hash)| self.hasher.hash_one(secrets.resolve(reference)) == *hash)
    }

    /// The references that were resolved.
    pub(crate) fn references(&self) -> Vec<String> {
        self.lock_hashes().hashes.keys().cloned().collect()
    }

    /// Looks up the secrets that texts refer to, with the managers of the last one.
    pub(crate) fn fetch_those_of<'t>(&self, texts: impl IntoIterator<Item = &'t str>) {
        let references: BTreeSet<&str> = texts.into_iter().flat_map(references_in).collect();
        if !references.is_empty() {
            self.current().fetch(&references.into_iter().map(str::to_owned).collect::<Vec<_>>());
        }
    }

    /// The source with the managers of the last text.
    pub(crate) fn current(&self) -> Arc<dyn Secrets> {
        self.lock_hashes().with_managers.clone().unwrap_or_else(|| self.secrets.clone())
    }

    /// Handles that a text was read: values of earlier texts may be forgotten. With very many references none is, since not all are
    /// known here.
    pub(crate) fn report_in_use(&self) {
        if self.is_full() {
            return;
        }
        let references = self.references();
        if let Some(secrets) = &self.lock_hashes().with_managers {
            secrets.in_use(&references);
        }
    }

    /// Starts over, for a text that is read as a whole.
    pub(crate) fn forget(&self) {
        *self.lock_hashes() = SecretHashes::default();
    }

    /// The values that were returned so far.
    pub(crate) fn copy(&self) -> SecretHashes {
        self.lock_hashes().clone()
    }

    /// Restores a copy.
    pub(crate) fn restore(&self, told: SecretHashes) {
        *self.lock_hashes() = told;
    }

    /// Whether there are more than are remembered.
    pub(crate) fn is_full(&self) -> bool {
        self.lock_hashes().hashes.len() >= self.references_max
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
        self.lock_hashes().with_managers = Some(secrets.clone());
        Some(Arc::new(RememberedSecrets { secrets, ..self.clone() }))
    }

    fn fetch(&self, references: &[String]) {
        self.secrets.fetch(references);
    }

    fn has_fetched(&self, references: &[String]) -> bool {
        self.secrets.has_fetched(references)
    }

    fn resolve(&self, reference: &str) -> Result<String, String> {
        let answer = self.secrets.resolve(reference);
        let hash = self.hasher.hash_one(&answer);
        let mut told = self.lock_hashes();
        if told.hashes.len() < self.references_max {
            // The first value counts: if a later one differs, what was compiled from the first is out of date.
            told.hashes.entry(reference.to_owned()).or_insert(hash);
        }
        answer
    }
}
