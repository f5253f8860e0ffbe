//! An embedded store: one file, which only this process writes; and the key of the Admin API that a store brings with it.

mod file;

use super::backend::{Backend, DatastoreKind};
use super::keeper::{DatastoreTraits, Keeper};
use crate::upgrade;
use file::DatastoreFile;
use rand::random;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stillgate_config::{Gateway, SourceKind};
use stillgate_datastore::embedded::{EmbeddedStore, HistoryBounds, OpenError, OpenProblem};
use stillgate_datastore::transaction::STORE_WRITES_MAX;
use stillgate_files::read_bounded;
use stillgate_tls::Problem;
use tokio::runtime::Runtime;
use tracing::warn;

const KEY: &str = "gateway.config.store";

pub(super) const KIND: DatastoreKind = DatastoreKind {
    source: SourceKind::Store,
    traits: DatastoreTraits { name: "store", writes_max: STORE_WRITES_MAX, is_embedded: true },
    addresses: |gateway| vec![gateway.config.store.display().to_string()],
    file: |gateway| Some((KEY, &gateway.config.store)),
    problem: |gateway| unreadable(&gateway.config.store),
    open,
    admin_key: made_key,
};

/// Why a file is not a readable store. A store that a gateway has open is readable.
fn unreadable(path: &Path) -> Option<Problem> {
    if !path.is_file() {
        return None;
    }
    let problem = |message: String| Problem { path: KEY.to_owned(), message, hint: None };
    match EmbeddedStore::open_copy(path) {
        Ok(store) => store.snapshot().err().map(|error| problem(error.to_string())),
        // A copy that cannot be written is not the store's fault.
        Err(OpenError { problem: OpenProblem::InUse | OpenProblem::Denied(_) | OpenProblem::Disk(_), .. }) => None,
        Err(error) => Some(problem(error.to_string())),
    }
}

fn open(gateway: &Gateway, _runtime: &Runtime, keeper: &Keeper) -> Result<Box<dyn Backend>, Problem> {
    let config = &gateway.config;
    let problem = |message: String| Problem { path: KEY.to_owned(), message, hint: None };
    let bounds =
        HistoryBounds { history_changes_max: config.history_changes as u64, history_age_max: config.history_age };
    if upgrade::is_successor() && matches!(config.store.try_exists(), Ok(false)) {
        let store = config.store.display();
        let message = format!(
            "the store {store} does not exist, and an upgrade does not create one: an empty store would serve nothing"
        );
        let hint = Some("name an existing store, or restart to begin with an empty one".to_owned());
        return Err(Problem { hint, ..problem(message) });
    }
    let file = DatastoreFile::open(config.store.clone(), bounds).map_err(|error| problem(error.to_string()))?;
    file.read(keeper).map_err(|error| problem(error.to_string()))?;
    Ok(Box::new(file))
}

/// Bytes of a key that was made, and of its file.
const KEY_BYTES_MIN: usize = 16;
const KEY_BYTES_MAX: usize = 4096;

/// The key that is generated where a store is opened and none is configured: a user who can read the store's folder may write the
/// store. Without `may_make` a missing key stays missing.
pub(super) fn made_key(gateway: &Gateway, may_make: bool) -> Result<Option<Arc<str>>, Problem> {
    let has_keys = gateway.admin.as_ref().is_none_or(|admin| admin.key.is_some() || !admin.keys.is_empty());
    if has_keys {
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
        Err(error) if error.kind() == ErrorKind::NotFound && !may_make => Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound => {
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
    random::<[u8; 32]>().iter().map(|byte| format!("{byte:02x}")).collect()
}
