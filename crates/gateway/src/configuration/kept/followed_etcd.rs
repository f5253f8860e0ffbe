//! An etcd that is followed, and the file with what was read of it last.

use super::backend::PAUSE_MAX;
use super::keeper::{Connection, Keeper};
use super::snapshot_file::SnapshotFile;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stillgate_datastore::etcd::{Etcd, Followed, follow};
use stillgate_datastore::{Batch, CommitError, Key, Snapshot, Transaction};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{Receiver, channel};
use tracing::{error, warn};

/// What a follower may tell before it is taken in.
const TOLD_MAX: usize = 64;

/// An etcd with its follower.
pub(super) struct FollowedEtcd {
    etcd: Arc<Etcd>,
    followed: Receiver<Followed>,
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

    /// Takes in what was read of etcd in a former process; whether there was anything.
    pub(super) fn read_file(&self, keeper: &Keeper) -> bool {
        let Some(file) = &self.file else { return false };
        match file.read(keeper) {
            Ok(revision) => {
                keeper.set_connection(Connection::Lost("it has not answered since the start".to_owned()));
                warn!(revision, "etcd does not answer; serving the snapshot");
                true
            }
            Err(why) => {
                error!("etcd: {why}");
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
        self.file.as_ref().map_or(HashMap::new(), SnapshotFile::last_good)
    }

    pub(super) async fn next(&mut self) -> Option<Followed> {
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

    /// Writes the file, where it has been behind for long enough, on another thread.
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
