//! Opens the datastore that the `gateway:` section names, and starts the thread that talks to it.

use super::backend::Backend;
use super::embedded_file::DatastoreFile;
use super::followed_etcd::FollowedEtcd;
use super::keeper::Keeper;
use super::thread::{ASKED_MAX, StoreRequest, run};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use stillgate_config::{EtcdKeys, Gateway, Pem, PluginSet, SourceKind};
use stillgate_datastore::embedded::{EmbeddedStore, HistoryBounds, OpenError, OpenProblem};
use stillgate_datastore::etcd::{Etcd, EtcdOptions, EtcdTls};
use stillgate_files::read_bounded;
use stillgate_tls::{FILE_BYTES_MAX, Problem};
use tokio::sync::mpsc;
use tracing::warn;

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
