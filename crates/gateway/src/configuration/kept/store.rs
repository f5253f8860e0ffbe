//! An embedded store: one file, which only this process writes, until an upgrade needs it elsewhere; and the key of the Admin API
//! that a store brings with it.

use super::backend::{Backend, DatastoreKind, PAUSE_MAX, Pending};
use super::keeper::{DatastoreTraits, FollowStatus, Keeper};
use super::thread::{StoreCopy, WriteFailure};
use crate::upgrade;
use rand::random;
use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::future::{pending, ready};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use stillgate_config::{Gateway, SourceKind};
use stillgate_datastore::embedded::{
    Change, ChangeSummary, EmbeddedStore, HistoryBounds, OpenError, OpenProblem, WayBack,
};
use stillgate_datastore::etcd::FollowerEvent;
use stillgate_datastore::transaction::STORE_WRITES_MAX;
use stillgate_datastore::{Author, Batch, CommitError, Documents as _, Key, Transaction};
use stillgate_files::read_bounded;
use stillgate_tls::Problem;
use tokio::runtime::Runtime;
use tracing::{error, info, warn};

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

/// How long a start waits for a store that another process has open: the former one in an upgrade, or one that ends.
const IN_USE_PATIENCE: Duration = Duration::from_secs(10);
const IN_USE_PAUSE: Duration = Duration::from_millis(20);
/// How long it waits before it logs that: a process that hands the store over takes less.
const IN_USE_SAID_AFTER: Duration = Duration::from_secs(1);

/// How soon opening a store, or deleting expired documents, is tried again.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Bits of a file's mode by which others than its owner read or write it.
const OTHERS_MODE: u32 = 0o066;

/// The file system of a file, and its number there.
type FileIdentity = (u64, u64);

fn identity(path: &Path) -> Option<FileIdentity> {
    fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// An embedded store that this process has open.
struct DatastoreFile {
    path: PathBuf,
    bounds: HistoryBounds,
    /// `None`: another process has it open, or opening failed.
    open: Option<EmbeddedStore>,
    /// Which file it is.
    identity: Option<FileIdentity>,
    /// Another process is to open it.
    is_released: bool,
    /// Documents as the store has them.
    last_good: HashMap<Key, Arc<str>>,
    /// When the last write failed; `None`: it did not.
    failed_at: Option<Instant>,
}

impl DatastoreFile {
    /// Opens the store, or creates an empty one.
    fn open(path: PathBuf, bounds: HistoryBounds) -> Result<DatastoreFile, OpenError> {
        let is_new = matches!(path.try_exists(), Ok(false));
        let (began, mut is_said) = (Instant::now(), false);
        let open = loop {
            match EmbeddedStore::open(&path, bounds) {
                Err(OpenError { problem: OpenProblem::InUse, .. }) if began.elapsed() < IN_USE_PATIENCE => {
                    if !is_said && began.elapsed() >= IN_USE_SAID_AFTER {
                        let (path, patience_s) = (path.display(), IN_USE_PATIENCE.as_secs());
                        warn!("store: {path}: another process has the store open; waiting up to {patience_s} s");
                        is_said = true;
                    }
                    std::thread::sleep(IN_USE_PAUSE);
                }
                opened => break opened?,
            }
        };
        match is_new {
            true => info!("store: created a new, empty store at {}", path.display()),
            false => warn_of_mode(&path),
        }
        let last_good = open.last_good().unwrap_or_default();
        let last_good = last_good.into_iter().map(|(key, value)| (key, value.into())).collect();
        let identity = identity(&path);
        Ok(DatastoreFile { path, bounds, open: Some(open), identity, is_released: false, last_good, failed_at: None })
    }

    /// Takes in everything that it contains.
    fn read(&self, keeper: &Keeper) -> Result<(), CommitError> {
        let Some(open) = &self.open else { return Ok(()) };
        let snapshot = open.snapshot().map_err(|error| CommitError::Unavailable(error.to_string()))?;
        keeper.take_snapshot(snapshot, &self.last_good);
        Ok(())
    }

    /// Makes a change.
    fn write<E>(
        &mut self,
        keeper: &Keeper,
        write: impl FnOnce(&mut EmbeddedStore) -> Result<Batch, E>,
    ) -> Result<Batch, WriteFailure>
    where
        WriteFailure: From<E>,
    {
        let made = match self.replaced_reason() {
            Some(why) => Err(CommitError::Unavailable(why).into()),
            None => write(self.store()?).map_err(WriteFailure::from),
        };
        match &made {
            Ok(batch) if !batch.events.is_empty() => self.note(keeper, None),
            Err(WriteFailure::Commit(CommitError::Unavailable(why))) => self.note(keeper, Some(why)),
            // Nothing had to be written.
            _ => {}
        }
        made
    }

    /// Why nothing may be written: what is at the path now is not the file that is open, so a restart would not find the write.
    fn replaced_reason(&self) -> Option<String> {
        let is_other = self.open.is_some() && identity(&self.path) != self.identity;
        let path = self.path.display();
        is_other.then(|| {
            format!("{path} was moved, removed or replaced; put the file back, or restart to use what is there")
        })
    }

    /// Logs the first of several writes that fail, and the first that succeeds again.
    fn note(&mut self, keeper: &Keeper, failure: Option<&str>) {
        let has_failed = self.failed_at.is_some();
        self.failed_at = failure.map(|_| Instant::now());
        match failure {
            Some(why) if !has_failed => {
                error!("store: a write failed, and later ones may fail, too; serving goes on: {why}");
                keeper.set_connection(FollowStatus::Lost(format!("it cannot be written: {why}")));
            }
            None if has_failed => {
                info!("store: writes are made again");
                keeper.set_connection(FollowStatus::Good);
            }
            _ => {}
        }
    }

    /// The store, where it can be written.
    fn store(&mut self) -> Result<&mut EmbeddedStore, CommitError> {
        let why = match self.is_released {
            true => "the gateway is being upgraded, and the new process takes the store; try again in a moment",
            false => "the store could not be opened; see the gateway's log",
        };
        self.open.as_mut().ok_or_else(|| CommitError::Unavailable(why.to_owned()))
    }

    /// Opens the store that was open before; never creates one.
    fn open_again(&mut self, keeper: &Keeper) {
        let opened = match self.path.try_exists() {
            Ok(false) => Err(format!("the store {} is gone; put the file back", self.path.display())),
            Ok(true) if identity(&self.path) != self.identity => {
                Err(format!("{} was replaced; put the file back, or restart to use what is there", self.path.display()))
            }
            _ => DatastoreFile::open(self.path.clone(), self.bounds).map_err(|error| error.to_string()),
        };
        match opened {
            Ok(file) => {
                info!("store: opened again");
                *self = file;
                if let Err(error) = self.read(keeper) {
                    error!("store: {error}");
                }
            }
            Err(error) => {
                let lost = FollowStatus::Lost(error);
                if let FollowStatus::Lost(why) = &lost
                    && keeper.stored.borrow().connection != lost
                {
                    error!("store: {why}");
                }
                keeper.set_connection(lost);
            }
        }
    }
}

impl Backend for DatastoreFile {
    fn pause(&self, now: SystemTime) -> Duration {
        match &self.open {
            Some(open) => {
                let left = open.next_expiry().map(|at| at.duration_since(now).unwrap_or_default());
                // Expired documents are still there if they could not be deleted.
                let again = self.failed_at.map(|at| TRY_AGAIN_AFTER.saturating_sub(at.elapsed())).unwrap_or_default();
                left.unwrap_or(PAUSE_MAX).max(again).min(PAUSE_MAX)
            }
            None if self.is_released => PAUSE_MAX,
            None => TRY_AGAIN_AFTER,
        }
    }

    fn next_follower_event(&mut self) -> Pending<'_, Option<FollowerEvent>> {
        Box::pin(pending())
    }

    /// Every change is in the file already.
    fn note_change(&mut self) {}

    /// Deletes expired documents, and opens a store that could not be opened before.
    fn tend(&mut self, keeper: &Arc<Keeper>, now: SystemTime) -> Option<Batch> {
        if self.open.is_none() && !self.is_released {
            self.open_again(keeper);
        }
        if let Some(why) = self.replaced_reason() {
            self.note(keeper, Some(&why));
            return None;
        }
        match self.open.as_mut()?.expire(now) {
            Ok(None) => None,
            Ok(Some(batch)) => {
                self.note(keeper, None);
                Some(batch)
            }
            Err(error) => {
                self.note(keeper, Some(&error.to_string()));
                None
            }
        }
    }

    fn commit(
        &mut self,
        keeper: &Keeper,
        change: Transaction,
        now: SystemTime,
        _arrived: Instant,
    ) -> Pending<'static, Result<Batch, WriteFailure>> {
        Box::pin(ready(self.write(keeper, |store| store.commit(&change, now))))
    }

    fn write_many(&mut self, keeper: &Keeper, change: &Transaction, now: SystemTime) -> Result<Batch, WriteFailure> {
        self.write(keeper, |store| store.commit_many(change, now))
    }

    /// Copies the store into a file in its folder, whose name is then removed.
    fn backup(&mut self) -> Result<StoreCopy, WriteFailure> {
        let path = self.path.clone();
        let store = self.store()?;
        let mut name = path.clone().into_os_string();
        name.push(format!(".backup-{:016x}", rand::random::<u64>()));
        let name = PathBuf::from(name);
        store.backup(&name)?;
        let unreadable = |error: io::Error| CommitError::Unavailable(format!("{}: {error}", name.display()));
        let file = fs::File::open(&name);
        fs::remove_file(&name).map_err(unreadable)?;
        let file = file.map_err(unreadable)?;
        let size = file.metadata().map_err(unreadable)?.len();
        Ok(StoreCopy { file, size, path: fs::canonicalize(&path).unwrap_or(path) })
    }

    /// Keeps the last good documents in step with what is served.
    fn keep_last_good(&mut self, keeper: &Keeper) {
        let now = keeper.last_good();
        let gone = self.last_good.keys().filter(|key| !now.contains_key(*key)).map(|key| (key.clone(), None));
        let new = now.iter().filter(|(key, value)| self.last_good.get(*key) != Some(*value));
        let changes: Vec<(Key, Option<String>)> =
            gone.chain(new.map(|(key, value)| (key.clone(), Some(value.to_string())))).collect();
        let Some(open) = self.open.as_mut().filter(|_| !changes.is_empty()) else { return };
        match open.set_last_good(&changes) {
            Ok(()) => self.last_good = now,
            Err(error) => self.note(keeper, Some(&format!("the last valid version of a resource: {error}"))),
        }
    }

    fn history(&mut self, before: Option<u64>, count: usize) -> Result<Vec<ChangeSummary>, WriteFailure> {
        Ok(self.store()?.history(before, count)?)
    }

    fn change_at(&mut self, revision: u64) -> Result<Option<Change>, WriteFailure> {
        Ok(self.store()?.change_at(revision)?)
    }

    fn way_back_to(&mut self, revision: u64, now: SystemTime) -> Result<WayBack, WriteFailure> {
        Ok(self.store()?.way_back_to(revision, now)?)
    }

    fn roll_back(&mut self, keeper: &Keeper, to: u64, author: &Author, now: SystemTime) -> Result<Batch, WriteFailure> {
        let expected = keeper.revision();
        self.write(keeper, |store| store.roll_back(to, expected, author, now))
    }

    /// Lets go of the store, or takes it again.
    fn set_released(&mut self, keeper: &Keeper, is_released: bool) {
        self.is_released = is_released;
        match is_released {
            true => {
                if let Some(open) = self.open.take()
                    && let Err(error) = open.close()
                {
                    error!("store: {error}");
                }
                keeper.set_connection(FollowStatus::HandedOver);
            }
            false if self.open.is_none() => self.open_again(keeper),
            false => {}
        }
    }

    fn end(self: Box<Self>, _keeper: &Keeper) {
        if let Some(open) = self.open
            && let Err(error) = open.close()
        {
            error!("store: {error}");
        }
    }
}

/// Warns of its mode: it contains credentials. A store is created for its owner alone; a copy may be readable for others.
fn warn_of_mode(path: &Path) {
    let mode = fs::metadata(path).map_or(0, |found| found.permissions().mode());
    if mode & OTHERS_MODE != 0 {
        let (mode, path) = (mode & 0o777, path.display());
        warn!(
            "store: other users can open {path} (mode {mode:04o}), which has credentials in it; run: chmod 600 {path}"
        );
    }
}
