//! Opens the datastore that the `gateway:` section names, and starts the thread that talks to it.

use super::addresses::resource_of;
use super::backend::{Backend, PAUSE_MAX};
use super::embedded_file::DatastoreFile;
use super::keeper::{FollowStatus, Keeper};
use super::snapshot_file::SnapshotFile;
use super::thread::{ASKED_MAX, StoreRequest, run};
use crate::configuration::secrets::{LastingSecrets, file_of};
use crate::configuration::source::plugins;
use crate::configuration::tls_material;
use crate::configuration::watch::FileStamp;
use crate::upgrade;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use stillgate_config::{Config, Diagnostic, EtcdKeys, Gateway, LoadedConfig, Pem, PluginSet, Severity, SourceKind};
use stillgate_datastore::embedded::{EmbeddedStore, HistoryBounds, OpenError, OpenProblem};
use stillgate_datastore::etcd::{Etcd, EtcdOptions, EtcdTls, FollowerEvent, follow};
use stillgate_datastore::transaction::{STORE_WRITES_MAX, WRITES_MAX};
use stillgate_datastore::{Batch, CommitError, Documents as _, Key, Snapshot, Transaction};
use stillgate_files::read_bounded;
use stillgate_plugin::OwnPlugins;
use stillgate_tls::{FILE_BYTES_MAX, Problem};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{self, Receiver, channel};
use tokio::time::timeout;
use tracing::{error, info, warn};

/// Bytes of a key that was made, and of its file.
const KEY_BYTES_MIN: usize = 16;
const KEY_BYTES_MAX: usize = 4096;

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

/// What keeps the datastore that the section names from being opened. The check changes nothing, and does not contact etcd.
pub(crate) fn problem(gateway: &Gateway) -> Option<Problem> {
    let of_datastore = match gateway.config.source {
        SourceKind::Etcd => etcd(gateway).err(),
        SourceKind::Store => store_problem(&gateway.config.store),
        SourceKind::File => None,
    };
    of_datastore.or_else(|| made_key(gateway, false).err())
}

/// Why a file is not a readable store. A store that a gateway has open is readable.
fn store_problem(path: &Path) -> Option<Problem> {
    if !path.is_file() {
        return None;
    }
    let problem = |message: String| Problem { path: "gateway.config.store".to_owned(), message, hint: None };
    match EmbeddedStore::open_copy(path) {
        Ok(store) => store.snapshot().err().map(|error| problem(error.to_string())),
        // A copy that cannot be written is not the store's fault.
        Err(OpenError { problem: OpenProblem::InUse | OpenProblem::Denied(_) | OpenProblem::Disk(_), .. }) => None,
        Err(error) => Some(problem(error.to_string())),
    }
}

/// Opens the datastore; the error says what is wrong and what to do.
pub(super) fn open(gateway: &Gateway, plugins: PluginSet) -> Result<OpenStore, Problem> {
    let config = &gateway.config;
    let at = |path: &str| {
        let path = path.to_owned();
        move |message: String| Problem { path, message, hint: None }
    };
    let no_thread = |error| at("gateway.config")(format!("cannot start the thread for the datastore: {error}"));
    let keeper = Arc::new(Keeper::new(config.source, gateway, plugins));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("datastore-save")
        .thread_keep_alive(SAVING_IDLE_MAX)
        .build();
    let runtime = runtime.map_err(no_thread)?;
    let backend = match config.source {
        SourceKind::Etcd => {
            let snapshot = config.etcd.as_ref().and_then(|keys| keys.snapshot.clone());
            let mut followed = FollowedEtcd::start(&runtime, etcd(gateway)?, snapshot);
            runtime.block_on(followed.begin(&keeper));
            Backend::Etcd(followed)
        }
        SourceKind::Store | SourceKind::File => {
            let bounds = HistoryBounds {
                history_changes_max: config.history_changes as u64,
                history_age_max: config.history_age,
            };
            if upgrade::is_successor() && matches!(config.store.try_exists(), Ok(false)) {
                let store = config.store.display();
                let message = format!(
                    "the store {store} does not exist, and an upgrade does not create one: an empty store would serve nothing"
                );
                let hint = Some("name an existing store, or restart to begin with an empty one".to_owned());
                return Err(Problem { path: "gateway.config.store".to_owned(), message, hint });
            }
            let file = DatastoreFile::open(config.store.clone(), bounds);
            let file = file.map_err(|error| at("gateway.config.store")(error.to_string()))?;
            file.read(&keeper).map_err(|error| at("gateway.config.store")(error.to_string()))?;
            Backend::File(file)
        }
    };
    let (asks, asked) = mpsc::channel(ASKED_MAX);
    let known = keeper.clone();
    let started =
        thread::Builder::new().name("datastore".to_owned()).spawn(move || run(&runtime, &known, backend, asked));
    started.map_err(no_thread)?;
    let key = made_key(gateway, true)?;
    Ok(OpenStore { keeper, asks, key })
}

/// The etcd that the section names.
fn etcd(gateway: &Gateway) -> Result<Etcd, Problem> {
    let at = |message: String| Problem { path: "gateway.config.etcd".to_owned(), message, hint: None };
    let keys =
        gateway.config.etcd.as_ref().ok_or_else(|| at("it is missing; write etcd's endpoints there".to_owned()))?;
    Etcd::new(options(keys)?).map_err(|error| Problem {
        path: format!("gateway.config.etcd.{}", error.option),
        message: error.message,
        hint: None,
    })
}

/// The key that is generated where a store is opened and none is configured: a user who can read the store's folder may write the
/// store. Without `may_make` a missing key stays missing.
fn made_key(gateway: &Gateway, may_make: bool) -> Result<Option<Arc<str>>, Problem> {
    let has_keys = gateway.admin.as_ref().is_none_or(|admin| admin.key.is_some() || !admin.keys.is_empty());
    if has_keys || gateway.config.source != SourceKind::Store {
        return Ok(None);
    }
    let mut name = gateway.config.store.clone().into_os_string();
    name.push(".admin-key");
    let file = PathBuf::from(name);
    let problem = |message: String| Problem { path: "gateway.admin".to_owned(), message, hint: None };
    let fail = |error: std::io::Error| problem(format!("the admin key in {}: {error}", file.display()));
    match read_bounded(&file, KEY_BYTES_MAX) {
        Ok(key) => {
            let key = String::from_utf8_lossy(&key).trim().to_owned();
            let is_good = key.len() >= KEY_BYTES_MIN && key.bytes().all(|byte| byte.is_ascii_graphic());
            let why = || {
                format!("{} has no valid admin key; remove the file, and the gateway creates a new one", file.display())
            };
            is_good.then(|| Some(key.into())).ok_or_else(|| problem(why()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !may_make => Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let key: String = rand_hex();
            let mut options = OpenOptions::new();
            let mut made = options.write(true).create_new(true).mode(0o600).open(&file).map_err(fail)?;
            made.write_all(key.as_bytes()).and_then(|()| made.sync_all()).map_err(fail)?;
            warn!("no admin key is configured; the gateway created one in {}", file.display());
            Ok(Some(key.into()))
        }
        Err(error) => Err(fail(error)),
    }
}

/// 32 random bytes that cannot be guessed.
fn rand_hex() -> String {
    rand::random::<[u8; 32]>().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn options(keys: &EtcdKeys) -> Result<EtcdOptions, Problem> {
    let at =
        |key: &str, message: String| Problem { path: format!("gateway.config.etcd.tls{key}"), message, hint: None };
    let read = |key: &str, pem: &Pem| match pem {
        Pem::Inline(text) => Ok(text.clone().into_bytes()),
        Pem::File(file) => read_bounded(file, FILE_BYTES_MAX)
            .map_err(|error| at(&format!(".{key}"), format!("cannot read {}: {error}", file.display()))),
    };
    let tls = &keys.tls;
    let client = match (&tls.cert, &tls.key) {
        (Some(cert), Some(key)) => Some((read("cert", cert)?, read("key", key)?)),
        (None, None) => None,
        _ => return Err(at("", "only one of cert and key is here; write both, or neither".to_owned())),
    };
    let ca = tls.ca.as_ref().map(|ca| read("ca", ca)).transpose()?;
    Ok(EtcdOptions {
        endpoints: keys.endpoints.clone(),
        prefix: keys.prefix.clone(),
        user: keys.user.clone(),
        password: keys.password.as_ref().map(|password| password.reveal().to_owned()),
        tls: Some(EtcdTls { ca, client, verify: tls.verify }),
        request_timeout: keys.timeout,
    })
}

// An etcd that is followed, and the file with its last snapshot.

/// Time for etcd to answer before its snapshot is served, or 503.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum number of notices of a follower that wait to be taken in.
const TOLD_MAX: usize = 64;

/// An etcd with its follower.
pub(super) struct FollowedEtcd {
    etcd: Arc<Etcd>,
    followed: Receiver<FollowerEvent>,
    file: Option<SnapshotFile>,
}

impl FollowedEtcd {
    /// Begins to follow.
    pub(super) fn start(runtime: &Runtime, etcd: Etcd, file: Option<PathBuf>) -> FollowedEtcd {
        let (tell, followed) = channel(TOLD_MAX);
        let etcd = Arc::new(etcd);
        drop(runtime.spawn(follow(etcd.clone(), tell)));
        let file = file.map(|path| SnapshotFile::new(path, etcd.prefix()));
        FollowedEtcd { etcd, followed, file }
    }

    /// Reads everything for the first time; where etcd does not answer, the snapshot of a former process. Logs the result.
    pub(super) async fn begin(&mut self, keeper: &Keeper) {
        let endpoints = self.etcd.endpoints();
        info!("waiting for etcd at {endpoints}");
        let mut why = format!("etcd at {endpoints}: no answer within {} s", FIRST_ANSWER_TIMEOUT.as_secs());
        if let Ok(Some(snapshot)) = timeout(FIRST_ANSWER_TIMEOUT, self.first(&mut why)).await {
            tell_read(&snapshot, &keeper.prefix);
            let last_good = self.file.as_ref().map(SnapshotFile::last_good).unwrap_or_default();
            keeper.heard(Some(snapshot.revision));
            keeper.take_snapshot(snapshot, &last_good);
            self.changed();
            return;
        }
        let no_snapshot = || "no snapshot is configured (gateway.config.etcd.snapshot)".to_owned();
        match self.file.as_ref().ok_or_else(no_snapshot).and_then(|file| file.read(keeper)) {
            Ok(revision) => warn!(revision, "{why}; serving the snapshot, and trying again"),
            Err(no_snapshot) => {
                error!("{why}; {no_snapshot}, so every request is answered 503; trying again");
            }
        }
        keeper.set_connection(FollowStatus::Lost(why));
    }

    /// Everything, once etcd has answered; `None`: it cannot be followed. `why`: it has not answered so far.
    async fn first(&mut self, why: &mut String) -> Option<Snapshot> {
        loop {
            match self.followed.recv().await? {
                FollowerEvent::Snapshot(snapshot) => return Some(snapshot),
                FollowerEvent::Lost { reason } => *why = reason,
                FollowerEvent::Batch(_) | FollowerEvent::Back | FollowerEvent::Heard { .. } => {}
            }
        }
    }

    pub(super) async fn next(&mut self) -> Option<FollowerEvent> {
        self.followed.recv().await
    }

    pub(super) async fn commit(&self, change: &Transaction) -> Result<Batch, CommitError> {
        self.etcd.commit(change).await
    }

    pub(super) fn changed(&mut self) {
        if let Some(file) = &mut self.file {
            file.changed(Instant::now());
        }
    }

    pub(super) fn pause(&self) -> Duration {
        self.file.as_ref().map_or(PAUSE_MAX, |file| file.pause(Instant::now()))
    }

    /// Writes the file on another thread, if it has been behind for long enough.
    pub(super) fn save_if_due(&mut self, keeper: &Arc<Keeper>) {
        if let Some(file) = &mut self.file {
            file.tend(keeper, Instant::now());
        }
    }

    /// Leaves the file to another process, or takes it again.
    pub(super) fn hold(&mut self, is_held: bool) {
        if let Some(file) = &mut self.file {
            file.hold(is_held);
        }
    }

    /// Writes the file, where it is behind.
    pub(super) fn end(self, keeper: &Keeper) {
        if let Some(file) = self.file {
            file.end(keeper);
        }
    }
}

/// Logs what was read. With another prefix, or another etcd, it would be nothing.
pub(super) fn tell_read(snapshot: &Snapshot, prefix: &str) {
    let Snapshot { revision, documents } = snapshot;
    let resources = documents.iter().filter(|(key, _)| resource_of(key).is_some()).count();
    match resources {
        0 => warn!(
            revision,
            prefix, "etcd: read, and there is no resource below the prefix; is gateway.config.etcd.prefix right?"
        ),
        _ => info!(revision, resources, prefix, "etcd: read"),
    }
}

// Resources of a datastore as a source of configurations, with the `gateway:` section of a file.

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
    /// The files for TLS of resources that were refused because of them, as they were then.
    missed: BTreeMap<PathBuf, FileStamp>,
}

impl KeptSource {
    /// Opens the datastore that the `gateway:` section of a file names.
    pub(crate) fn open(file: &Config) -> Result<KeptSource, Problem> {
        let (gateway, own) = (&file.gateway, &file.plugins.own);
        let mut plugins = plugins();
        plugins.table.own = own.clone();
        plugins.secrets = Arc::new(LastingSecrets::default());
        let opened = open(gateway, plugins)?;
        Ok(KeptSource { opened, gateway: gateway.clone(), own: own.clone(), given: None, missed: BTreeMap::new() })
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
        // What was refused because of files is tried again when they change.
        let is_retry = self.missed.iter().any(|(file, before)| FileStamp::of(file) != *before);
        let must_renew = is_other || is_retry || (are_few || !is_new) && !store.has_current_secrets();
        if must_renew {
            self.missed.clear();
            store.renew(gateway.clone(), own.clone());
            (self.gateway, self.own) = (gateway.clone(), own.clone());
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
        loaded.warnings.extend(known.unread().take(UNREAD_NAMED_MAX).map(|key| unread(key, &keeper.prefix)));
        loaded.warnings_beside.clone_from(&file.warnings);
        self.given = Some(revision);
        Some(Arc::new(loaded))
    }

    /// The files whose change may change what is read.
    pub(crate) fn files(&self) -> BTreeSet<PathBuf> {
        let references = self.opened.keeper.known().store.secret_references();
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

    /// How many writes it makes as one change.
    pub(crate) fn writes_max(&self) -> usize {
        match self.kind {
            SourceKind::File | SourceKind::Store => STORE_WRITES_MAX,
            SourceKind::Etcd => WRITES_MAX,
        }
    }
}
