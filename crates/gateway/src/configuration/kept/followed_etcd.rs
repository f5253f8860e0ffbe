//! An etcd that is followed, and the file with what was read of it last.

use super::backend::PAUSE_MAX;
use super::keeper::{Connection, Keeper};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stillgate_datastore::etcd::{Etcd, Followed, Saved, SavedError, follow};
use stillgate_datastore::{Batch, CommitError, Document, Documents as _, Key, Snapshot, Transaction};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::{error, info, warn};

/// How soon after a change the file is written. One that changes all the time is written this often.
const SAVE_AFTER: Duration = Duration::from_secs(5);

/// What a follower may tell before it is taken in.
const TOLD_MAX: usize = 64;

/// An etcd with its follower.
pub(super) struct FollowedEtcd {
    etcd: Arc<Etcd>,
    followed: Receiver<Followed>,
    file: Option<PathBuf>,
    /// Since when the file is behind.
    changed_at: Option<Instant>,
    saving: Option<JoinHandle<()>>,
}

impl FollowedEtcd {
    /// Begins to follow.
    pub(super) fn start(runtime: &Runtime, etcd: Etcd, file: Option<PathBuf>) -> FollowedEtcd {
        let (tell, followed) = channel(TOLD_MAX);
        let etcd = Arc::new(etcd);
        drop(runtime.spawn(follow(etcd.clone(), tell)));
        FollowedEtcd { etcd, followed, file, changed_at: None, saving: None }
    }

    /// Takes in what was read of etcd in a former process; whether there was anything.
    pub(super) fn read_file(&self, keeper: &Keeper) -> bool {
        let Some(file) = &self.file else { return false };
        match Saved::read(file, self.etcd.prefix()) {
            Ok(Saved { snapshot, last_good }) => {
                let revision = snapshot.revision;
                let last_good: HashMap<Key, Arc<str>> =
                    last_good.into_iter().map(|(key, document)| (key, document.value)).collect();
                keeper.take_snapshot(snapshot, &last_good);
                keeper.set_connection(Connection::Lost("it has not answered since the start".to_owned()));
                warn!(revision, file = %file.display(), "etcd does not answer; serving the snapshot");
                true
            }
            Err(SavedError::Absent(_)) => false,
            Err(error) => {
                error!("etcd: the snapshot cannot be used: {error}");
                false
            }
        }
    }

    /// Everything, once etcd has answered; `None`: it cannot be followed.
    pub(super) async fn first(&mut self) -> Option<Snapshot> {
        loop {
            match self.followed.recv().await? {
                Followed::Snapshot(snapshot) => return Some(snapshot),
                Followed::Lost { reason } => warn!("etcd: {reason}; trying again"),
                Followed::Batch(_) | Followed::Back => {}
            }
        }
    }

    /// The last good documents of rejected ones, as a former process has saved them.
    pub(super) fn saved_last_good(&self) -> HashMap<Key, Arc<str>> {
        let saved = self.file.as_ref().and_then(|file| Saved::read(file, self.etcd.prefix()).ok());
        let last_good = saved.map_or(Vec::new(), |saved| saved.last_good);
        last_good.into_iter().map(|(key, document)| (key, document.value)).collect()
    }

    pub(super) async fn next(&mut self) -> Option<Followed> {
        self.followed.recv().await
    }

    pub(super) async fn commit(&self, change: &Transaction) -> Result<Batch, CommitError> {
        self.etcd.commit(change).await
    }

    pub(super) fn changed(&mut self) {
        self.changed_at.get_or_insert_with(Instant::now);
    }

    pub(super) fn pause(&self) -> Duration {
        match self.changed_at.filter(|_| self.file.is_some()) {
            Some(at) => SAVE_AFTER.saturating_sub(at.elapsed()).max(Duration::from_millis(10)),
            None => PAUSE_MAX,
        }
    }

    /// Writes the file, where it has been behind for long enough, on another thread.
    pub(super) fn save_if_due(&mut self, keeper: &Arc<Keeper>) {
        let is_due = self.changed_at.is_some_and(|at| at.elapsed() >= SAVE_AFTER);
        let is_saving = self.saving.as_ref().is_some_and(|saving| !saving.is_finished());
        let Some(file) = self.file.clone().filter(|_| is_due && !is_saving) else { return };
        self.changed_at = None;
        let (keeper, prefix) = (keeper.clone(), self.etcd.prefix().to_owned());
        self.saving = Some(spawn_blocking(move || save(&keeper, &file, &prefix)));
    }

    /// Writes the file, where it is behind.
    pub(super) fn save(self, keeper: &Keeper) {
        if let Some(file) = self.file.filter(|_| self.changed_at.is_some()) {
            save(keeper, &file, self.etcd.prefix());
        }
    }
}

fn save(keeper: &Keeper, file: &std::path::Path, prefix: &str) {
    let Snapshot { revision, documents } = keeper.known().snapshot();
    let kept = |(key, document): (Key, Document)| {
        let value = keeper.encryption.kept(&key, &document.value);
        (key, Document { value, ..document })
    };
    let documents = documents.into_iter().map(kept).collect();
    let last_good = keeper.last_good().into_iter().map(|(key, value)| {
        let modified = keeper.get(&key).map_or(0, |document| document.modified);
        (key, Document { value, created: 0, modified })
    });
    let saved = Saved { snapshot: Snapshot { revision, documents }, last_good: last_good.collect() };
    match saved.write(file, prefix) {
        Ok(()) => info!(revision, "etcd: snapshot written"),
        Err(error) => {
            error!("etcd: cannot write the snapshot; a restart without etcd would serve an older one: {error}")
        }
    }
}
