//! Resources of a datastore as a source of configurations, with the `gateway:` section of a file.

use super::backend::DatastoreKind;
use super::keeper::Keeper;
use super::thread::{ASKED_MAX, StoreRequest, run};
use crate::configuration::secrets::{CachedSecrets, file_of};
use crate::configuration::source::plugins;
use crate::configuration::tls_material;
use crate::configuration::watch::FileStamp;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use stillgate_config::{Config, Diagnostic, Gateway, LoadedConfig, PluginSet, Severity};
use stillgate_datastore::{Documents as _, Key};
use stillgate_plugin_api::CustomPlugins;
use stillgate_tls::Problem;
use tokio::sync::mpsc;

/// Maximum number of checks of certificates during one reading: each refuses those that cannot be used.
const LOOKS_MAX: usize = 3;

/// Maximum number of documents without a collection that warnings name.
const UNREAD_NAMED_MAX: usize = 16;

/// References to secrets that are resolved again with each change; if there are more, only where nothing else changed.
const CHECKED_REFERENCES_MAX: usize = 1000;

/// Gives what a datastore means.
pub(crate) struct DatastoreSource {
    opened: OpenStore,
    secrets: CachedSecrets,
    gateway: Gateway,
    /// Plugins of files that the section names.
    custom: CustomPlugins,
    /// Revision that was given last.
    given: Option<u64>,
    /// The files for TLS of resources that were refused because of them, as they were then.
    missed: BTreeMap<PathBuf, FileStamp>,
}

impl DatastoreSource {
    /// Opens the datastore of this kind that the `gateway:` section of a file names.
    pub(crate) fn open(kind: &'static DatastoreKind, file: &Config) -> Result<DatastoreSource, Problem> {
        let (gateway, custom) = (&file.gateway, &file.plugins.custom);
        let mut plugins = plugins();
        plugins.table.custom = custom.clone();
        let secrets = CachedSecrets::default();
        secrets.set_folders(&gateway.config.secret_folders);
        plugins.secrets = Arc::new(secrets.clone());
        let opened = open(kind, gateway, plugins)?;
        let (gateway, custom) = (gateway.clone(), custom.clone());
        Ok(DatastoreSource { opened, secrets, gateway, custom, given: None, missed: BTreeMap::new() })
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
        let (gateway, custom) = (&file.config.gateway, &file.config.plugins.custom);
        let mut meaning = keeper.meaning();
        let revision = meaning.revision;
        let store = &mut meaning.store;
        let is_new = self.given != Some(revision);
        let are_few = store.secret_references().len() <= CHECKED_REFERENCES_MAX;
        let is_other = self.gateway != *gateway || self.custom != *custom;
        // What was refused because of files is tried again when they change.
        let is_retry = self.missed.iter().any(|(file, before)| FileStamp::of(file) != *before);
        let must_renew = is_other || is_retry || (are_few || !is_new) && !store.has_current_secrets();
        if must_renew {
            self.missed.clear();
            self.secrets.set_folders(&gateway.config.secret_folders);
            store.renew(gateway.clone(), custom.clone());
            keeper.set_checker(store.checker());
            (self.gateway, self.custom) = (gateway.clone(), custom.clone());
        }
        let digest = format!("{}@{revision}", file.config.digest);
        if !must_renew && unless == Some(&digest) {
            return None;
        }
        let mut loaded = store.load(&digest);
        let looks_max = if store.uses_tls() { LOOKS_MAX } else { 0 };
        if looks_max == 0 {
            *keeper.tls() = None;
        }
        for _ in 0..looks_max {
            // Before they are read.
            let files = tls_material::files(&loaded.config).into_iter();
            let stamps: Vec<(PathBuf, FileStamp)> = files.map(|file| (file.clone(), FileStamp::of(&file))).collect();
            let problems = keeper.unusable_tls(&loaded.config);
            if problems.is_empty() {
                break;
            }
            self.missed.extend(stamps);
            problems.into_iter().for_each(|(kind, id, reason)| store.refuse(kind, &id, &reason));
            loaded = store.load(&digest);
        }
        loaded.warnings.extend(meaning.unread.iter().take(UNREAD_NAMED_MAX).map(|key| unread(key, &keeper.prefix)));
        loaded.warnings_beside.clone_from(&file.warnings);
        self.given = Some(revision);
        Some(Arc::new(loaded))
    }

    /// The files whose change may change what is read.
    pub(crate) fn files(&self) -> BTreeSet<PathBuf> {
        let references = self.opened.keeper.meaning().store.secret_references();
        references.iter().filter_map(|reference| file_of(reference)).chain(self.missed.keys().cloned()).collect()
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

/// How long the thread that saves waits for more work: when it ends, the memory for all documents goes back to the system.
const SAVING_IDLE_MAX: Duration = Duration::from_millis(100);

/// A datastore that is open: its state, and the channel for requests.
#[derive(Clone)]
pub(crate) struct OpenStore {
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) asks: mpsc::Sender<StoreRequest>,
    /// Key of the Admin API, generated at the first start because none is configured.
    pub(crate) key: Option<Arc<str>>,
}

/// Why the datastore that the section names cannot be opened. The check changes nothing and opens no connection.
pub(crate) fn problem(gateway: &Gateway) -> Option<Problem> {
    let kind = DatastoreKind::of(gateway)?;
    (kind.problem)(gateway).or_else(|| (kind.admin_key)(gateway, false).err())
}

/// Opens a datastore; the error says what is wrong and what to do.
pub(super) fn open(kind: &'static DatastoreKind, gateway: &Gateway, plugins: PluginSet) -> Result<OpenStore, Problem> {
    let no_thread = |error| {
        let message = format!("cannot start the thread for the datastore: {error}");
        Problem { path: "gateway.config".to_owned(), message, hint: None }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("datastore-save")
        .thread_keep_alive(SAVING_IDLE_MAX)
        .build()
        .map_err(no_thread)?;
    let keeper = Arc::new(Keeper::new(&kind.traits, gateway, plugins));
    let backend = (kind.open)(gateway, &runtime, &keeper)?;
    let (asks, asked) = mpsc::channel(ASKED_MAX);
    let known = keeper.clone();
    let started =
        thread::Builder::new().name("datastore".to_owned()).spawn(move || run(&runtime, &known, backend, asked));
    started.map_err(no_thread)?;
    let key = (kind.admin_key)(gateway, true)?;
    Ok(OpenStore { keeper, asks, key })
}
