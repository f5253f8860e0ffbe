//! The datastore behind a keeper: a file that only this process changes, or an etcd that is followed.

use super::embedded_file::DatastoreFile;
use super::keeper::Keeper;
use super::open::FollowedEtcd;
use super::thread::{StoreCopy, WriteFailure};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use stillgate_datastore::embedded::{Change, ChangeSummary, WayBack};
use stillgate_datastore::etcd::FollowerEvent;
use stillgate_datastore::transaction::WRITES_MAX;
use stillgate_datastore::{Author, Batch, CommitError, Documents as _, Transaction};

/// The longest time without due work.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(60);

const NO_HISTORY: &str = "etcd keeps no history to read or roll back to; only `source: store` has one";

const NO_BACKUP: &str = "the resources are in etcd; back up etcd (`etcdctl snapshot save`), or use `stillgate export`";

/// A datastore.
pub(super) enum Backend {
    /// A file.
    File(DatastoreFile),
    /// An etcd.
    Etcd(FollowedEtcd),
}

impl Backend {
    /// Whether a committed change has to be taken in by its writer; otherwise the follower delivers it.
    pub(super) fn is_embedded(&self) -> bool {
        matches!(self, Backend::File(_))
    }

    /// Time until something is due.
    pub(super) fn pause(&self, now: SystemTime) -> Duration {
        match self {
            Backend::File(file) => file.pause(now),
            Backend::Etcd(etcd) => etcd.pause(),
        }
    }

    /// The follower's next notice; never returns where nothing is followed. It may be cancelled without losing anything.
    pub(super) async fn followed(&mut self) -> Option<FollowerEvent> {
        match self {
            Backend::File(_) => std::future::pending().await,
            Backend::Etcd(etcd) => etcd.next().await,
        }
    }

    /// Notes a change that a restart should know.
    pub(super) fn changed(&mut self) {
        if let Backend::Etcd(etcd) = self {
            etcd.changed();
        }
    }

    /// Runs the work that is due.
    pub(super) fn tend(&mut self, keeper: &Arc<Keeper>, now: SystemTime) -> Option<Batch> {
        match self {
            Backend::File(file) => file.expire(keeper, now),
            Backend::Etcd(etcd) => {
                etcd.save_if_due(keeper);
                None
            }
        }
    }

    /// Makes a change, whose documents are in their stored form.
    pub(super) async fn commit(
        &mut self,
        keeper: &Keeper,
        change: &Transaction,
        now: SystemTime,
    ) -> Result<Batch, WriteFailure> {
        match self {
            Backend::File(file) => file.write(keeper, |store| store.commit(change, now)),
            Backend::Etcd(etcd) => Ok(etcd.commit(change).await?),
        }
    }

    /// Makes a change with any number of writes.
    pub(super) fn write_many(
        &mut self,
        keeper: &Keeper,
        change: &Transaction,
        now: SystemTime,
    ) -> Result<Batch, WriteFailure> {
        match self {
            Backend::File(file) => file.write(keeper, |store| store.commit_many(change, now)),
            Backend::Etcd(_) => {
                let count = change.writes.len();
                let why = format!("{count} documents change; with etcd, one request can change {WRITES_MAX}: split it");
                Err(CommitError::TooLarge(why).into())
            }
        }
    }

    /// Copies everything into a file without a name.
    pub(super) fn backup(&mut self) -> Result<StoreCopy, WriteFailure> {
        match self {
            Backend::File(file) => file.backup(),
            Backend::Etcd(_) => Err(WriteFailure::Unsupported(NO_BACKUP.to_owned())),
        }
    }

    /// Keeps the last good documents in step with what is served.
    pub(super) fn keep_last_good(&mut self, keeper: &Keeper) {
        if let Backend::File(file) = self {
            file.keep_last_good(keeper);
        }
    }

    fn history_of(&mut self) -> Result<&mut DatastoreFile, WriteFailure> {
        match self {
            Backend::File(file) => Ok(file),
            Backend::Etcd(_) => Err(WriteFailure::Unsupported(NO_HISTORY.to_owned())),
        }
    }

    pub(super) fn history(&mut self, before: Option<u64>, count: usize) -> Result<Vec<ChangeSummary>, WriteFailure> {
        Ok(self.history_of()?.store()?.history(before, count)?)
    }

    pub(super) fn change_at(&mut self, revision: u64) -> Result<Option<Change>, WriteFailure> {
        Ok(self.history_of()?.store()?.change_at(revision)?)
    }

    pub(super) fn way_back_to(&mut self, revision: u64, now: SystemTime) -> Result<WayBack, WriteFailure> {
        Ok(self.history_of()?.store()?.way_back_to(revision, now)?)
    }

    pub(super) fn roll_back(
        &mut self,
        keeper: &Keeper,
        to: u64,
        author: &Author,
        now: SystemTime,
    ) -> Result<Batch, WriteFailure> {
        let expected = keeper.revision();
        self.history_of()?.write(keeper, |store| store.roll_back(to, expected, author, now))
    }

    /// Lets go of the datastore, for another process, or takes it again.
    pub(super) fn hold(&mut self, keeper: &Keeper, is_held: bool) {
        match self {
            Backend::File(file) => file.hold(keeper, is_held),
            Backend::Etcd(etcd) => etcd.hold(is_held),
        }
    }

    /// Ends with the process.
    pub(super) fn end(self, keeper: &Keeper) {
        match self {
            Backend::File(file) => file.end(),
            Backend::Etcd(etcd) => etcd.end(keeper),
        }
    }
}
