//! An etcd that is followed, and the file with its last snapshot.

use super::addresses::resource_of;
use super::backend::PAUSE_MAX;
use super::keeper::{FollowStatus, Keeper};
use super::snapshot_file::SnapshotFile;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stillgate_datastore::etcd::{Etcd, FollowerEvent, follow};
use stillgate_datastore::{Batch, CommitError, Snapshot, Transaction};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::timeout;
use tracing::{error, info, warn};

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
