//! An embedded store that this process has open, until an upgrade needs it elsewhere.

use crate::configuration::kept::backend::{Backend, PAUSE_MAX, Pending};
use crate::configuration::kept::keeper::{FollowStatus, Keeper};
use crate::configuration::kept::thread::{StoreCopy, WriteFailure};
use std::collections::HashMap;
use std::fs;
use std::future::{pending, ready};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use stillgate_datastore::embedded::{
    Change, ChangeSummary, EmbeddedStore, HistoryBounds, OpenError, OpenProblem, WayBack,
};
use stillgate_datastore::etcd::FollowerEvent;
use stillgate_datastore::{Author, Batch, CommitError, Documents as _, Key, Transaction};
use tracing::{error, info, warn};

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

/// An embedded store.
pub(super) struct DatastoreFile {
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
    pub(super) fn open(path: PathBuf, bounds: HistoryBounds) -> Result<DatastoreFile, OpenError> {
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
    pub(super) fn read(&self, keeper: &Keeper) -> Result<(), CommitError> {
        let Some(open) = &self.open else { return Ok(()) };
        let snapshot = open.snapshot().map_err(|error| CommitError::Unavailable(error.to_string()))?;
        keeper.take_snapshot(snapshot, &self.last_good);
        Ok(())
    }

    /// Makes a change.
    pub(super) fn write<E>(
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
    pub(super) fn store(&mut self) -> Result<&mut EmbeddedStore, CommitError> {
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
