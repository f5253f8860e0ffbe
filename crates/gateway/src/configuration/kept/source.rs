//! Resources of a datastore as a source of configurations, with the `gateway:` section of a file.

use super::keeper::Keeper;
use super::open::{OpenStore, open};
use crate::configuration::secrets::file_of;
use crate::configuration::source::plugins;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use stillgate_config::{Config, Diagnostic, Gateway, LoadedConfig, Severity, SourceKind};
use stillgate_datastore::{Documents as _, Key};
use stillgate_plugin::OwnPlugins;
use stillgate_tls::Problem;

/// Maximum number of checks of certificates during one reading: each refuses those that cannot be used.
const LOOKS_MAX: usize = 3;

/// Maximum number of documents without a collection that warnings name.
const UNREAD_NAMED_MAX: usize = 16;

/// References to secrets that are resolved again with each change; if there are more, only where nothing else changed.
const CHECKED_REFERENCES_MAX: usize = 1000;

/// Gives what a datastore means.
pub(crate) struct KeptSource {
    opened: OpenStore,
    gateway: Gateway,
    /// Plugins of files that the section names.
    own: OwnPlugins,
    /// Revision that was given last.
    given: Option<u64>,
}

impl KeptSource {
    /// Opens the datastore that the `gateway:` section of a file names.
    pub(crate) fn open(file: &Config) -> Result<KeptSource, Problem> {
        let (gateway, own) = (&file.gateway, &file.plugins.own);
        let mut plugins = plugins();
        plugins.table.own = own.clone();
        let opened = open(gateway, plugins)?;
        Ok(KeptSource { opened, gateway: gateway.clone(), own: own.clone(), given: None })
    }

    /// The state of the datastore, and the channel for requests.
    pub(crate) fn opened(&self) -> &OpenStore {
        &self.opened
    }

    /// Whether there is something that has not been given.
    pub(crate) fn has_news(&self) -> bool {
        self.given != Some(self.opened.keeper.revision())
    }

    /// Makes the source return its last configuration again.
    pub(crate) fn give_again(&mut self) {
        self.given = None;
    }

    /// The current configuration of the datastore, unless that is what `unless` names. `file`: the file as it was read.
    pub(crate) fn read(&mut self, file: &LoadedConfig, unless: Option<&str>) -> Option<Arc<LoadedConfig>> {
        let keeper = &self.opened.keeper;
        let (gateway, own) = (&file.config.gateway, &file.config.plugins.own);
        let mut known = keeper.known();
        let revision = known.revision;
        let store = &mut known.store;
        let is_new = self.given != Some(revision);
        let are_few = store.secret_references().len() <= CHECKED_REFERENCES_MAX;
        let is_other = self.gateway != *gateway || self.own != *own;
        let must_renew = is_other || (are_few || !is_new) && !store.has_current_secrets();
        if must_renew {
            store.renew(gateway.clone(), own.clone());
            (self.gateway, self.own) = (gateway.clone(), own.clone());
        }
        let digest = format!("{}@{revision}", file.config.digest);
        if !must_renew && unless == Some(&digest) {
            return None;
        }
        let mut loaded = store.load(&digest);
        let looks_max = if store.uses_tls() { LOOKS_MAX } else { 0 };
        for _ in 0..looks_max {
            let problems = keeper.tls_problems(&loaded.config);
            if problems.is_empty() {
                break;
            }
            problems.into_iter().for_each(|(kind, id, reason)| store.refuse(kind, &id, &reason));
            loaded = store.load(&digest);
        }
        loaded.warnings.extend(known.unread().take(UNREAD_NAMED_MAX).map(|key| unread(key, &keeper.prefix)));
        loaded.warnings_beside.clone_from(&file.warnings);
        self.given = Some(revision);
        Some(Arc::new(loaded))
    }

    /// The files whose change may change what is read.
    pub(crate) fn files(&self) -> BTreeSet<PathBuf> {
        let references = self.opened.keeper.known().store.secret_references();
        references.iter().filter_map(|reference| file_of(reference)).collect()
    }
}

/// A warning of a document that nothing reads.
fn unread(key: &Key, prefix: &str) -> Diagnostic {
    let path = [prefix, key.as_str()].join("/");
    Diagnostic {
        severity: Severity::Warning,
        path: path.escape_debug().to_string(),
        line: 0,
        column: 0,
        message: format!("nothing reads this document: there is no collection {:?}", key.collection()),
        hint: Some("write it below a collection, such as `routes/`, or delete it".to_owned()),
        excerpt: None,
    }
}

/// The revision of a digest that a [`KeptSource`] has given.
pub(crate) fn revision_of(digest: &str) -> Option<u64> {
    digest.rsplit_once('@')?.1.parse().ok()
}

/// The part that the admin API uses.
impl Keeper {
    /// What the datastore is called in messages and in the status.
    pub(crate) fn name(&self) -> &'static str {
        match self.kind {
            SourceKind::File => "file",
            SourceKind::Store => "store",
            SourceKind::Etcd => "etcd",
        }
    }
}
