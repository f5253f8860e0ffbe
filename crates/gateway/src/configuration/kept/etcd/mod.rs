//! An etcd that is followed, and the file with its last snapshot.

mod snapshot_file;

use super::addresses::resource_of;
use super::backend::{Backend, DatastoreKind, PAUSE_MAX, Pending};
use super::keeper::{DatastoreTraits, FollowStatus, Keeper};
use super::thread::{StoreCopy, WriteFailure};
use snapshot_file::SnapshotFile;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use stillgate_config::{EtcdKeys, Gateway, Pem, SourceKind};
use stillgate_datastore::embedded::{Change, ChangeSummary, WayBack};
use stillgate_datastore::etcd::{Etcd, EtcdOptions, EtcdTls, FollowerEvent, RenewTls, follow};
use stillgate_datastore::transaction::WRITES_MAX;
use stillgate_datastore::{Author, Batch, CommitError, Snapshot, Transaction};
use stillgate_files::read_bounded;
use stillgate_tls::{FILE_BYTES_MAX, Problem};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::timeout;
use tracing::{error, info, warn};

pub(super) const KIND: DatastoreKind = DatastoreKind {
    source: SourceKind::Etcd,
    traits: DatastoreTraits { name: "etcd", writes_max: WRITES_MAX, is_embedded: false },
    addresses: |gateway| gateway.config.etcd.iter().flat_map(|etcd| etcd.endpoints.clone()).collect(),
    file: |gateway| Some(("gateway.config.etcd.snapshot", snapshot_of(gateway)?)),
    problem: |gateway| etcd(gateway).err(),
    open,
    admin_key: |_, _| Ok(None),
};

/// Time for etcd to answer before its snapshot is served, or 503.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum number of notices of a follower that wait to be taken in.
const TOLD_MAX: usize = 64;

const NO_HISTORY: &str = "etcd keeps no history to read or roll back to; only `source: store` has one";

const NO_BACKUP: &str = "the resources are in etcd; back up etcd (`etcdctl snapshot save`), or use `stillgate export`";

fn no_history() -> WriteFailure {
    WriteFailure::Unsupported(NO_HISTORY.to_owned())
}

/// The file for the snapshot.
fn snapshot_of(gateway: &Gateway) -> Option<&Path> {
    gateway.config.etcd.as_ref()?.snapshot.as_deref()
}

fn open(gateway: &Gateway, runtime: &Runtime, keeper: &Keeper) -> Result<Box<dyn Backend>, Problem> {
    let snapshot = snapshot_of(gateway).map(Path::to_owned);
    let mut followed = FollowedEtcd::start(runtime, etcd(gateway)?, snapshot);
    // Opened once.
    let _ = keeper.etcd.set(followed.etcd.clone());
    runtime.block_on(followed.begin(keeper));
    Ok(Box::new(followed))
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

fn options(keys: &EtcdKeys) -> Result<EtcdOptions, Problem> {
    let tls = read_tls(&keys.tls)?;
    let files = keys.tls.clone();
    let renew_tls: RenewTls = Arc::new(move || read_tls(&files).map_err(|problem| problem.message));
    Ok(EtcdOptions {
        endpoints: keys.endpoints.clone(),
        prefix: keys.prefix.clone(),
        user: keys.user.clone(),
        password: keys.password.as_ref().map(|password| password.reveal().to_owned()),
        tls: Some(tls),
        renew_tls: Some(renew_tls),
        request_timeout: keys.timeout,
    })
}

/// Reads the files of the TLS settings.
fn read_tls(tls: &stillgate_config::EtcdTls) -> Result<EtcdTls, Problem> {
    let at =
        |key: &str, message: String| Problem { path: format!("gateway.config.etcd.tls{key}"), message, hint: None };
    let read = |key: &str, pem: &Pem| match pem {
        Pem::Inline(text) => Ok(text.clone().into_bytes()),
        Pem::File(file) => read_bounded(file, FILE_BYTES_MAX)
            .map_err(|error| at(&format!(".{key}"), format!("cannot read {}: {error}", file.display()))),
    };
    let client = match (&tls.cert, &tls.key) {
        (Some(cert), Some(key)) => Some((read("cert", cert)?, read("key", key)?)),
        (None, None) => None,
        _ => return Err(at("", "only one of cert and key is here; write both, or neither".to_owned())),
    };
    let ca = tls.ca.as_ref().map(|ca| read("ca", ca)).transpose()?;
    Ok(EtcdTls { ca, client, verify: tls.verify })
}

/// An etcd with its follower.
struct FollowedEtcd {
    etcd: Arc<Etcd>,
    followed: Receiver<FollowerEvent>,
    file: Option<SnapshotFile>,
}

impl FollowedEtcd {
    /// Begins to follow.
    fn start(runtime: &Runtime, etcd: Etcd, file: Option<PathBuf>) -> FollowedEtcd {
        let (tell, followed) = channel(TOLD_MAX);
        let etcd = Arc::new(etcd);
        drop(runtime.spawn(follow(etcd.clone(), tell)));
        let file = file.map(|path| SnapshotFile::new(path, etcd.prefix()));
        FollowedEtcd { etcd, followed, file }
    }

    /// Reads everything for the first time; where etcd does not answer, the snapshot of a former process. Logs the result.
    async fn begin(&mut self, keeper: &Keeper) {
        let endpoints = self.etcd.endpoints();
        info!("waiting for etcd at {endpoints}");
        let mut why = format!("etcd at {endpoints}: no answer within {} s", FIRST_ANSWER_TIMEOUT.as_secs());
        if let Ok(Some(snapshot)) = timeout(FIRST_ANSWER_TIMEOUT, self.first(&mut why)).await {
            report_read(&snapshot, self.etcd.prefix());
            let last_good = self.file.as_ref().map(|file| file.last_good(&snapshot)).unwrap_or_default();
            keeper.note_contact(Some(snapshot.revision));
            keeper.take_snapshot(snapshot, &last_good);
            self.note_change();
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
}

impl Backend for FollowedEtcd {
    fn pause(&self, _now: SystemTime) -> Duration {
        self.file.as_ref().map_or(PAUSE_MAX, |file| file.pause(Instant::now()))
    }

    fn next_follower_event(&mut self) -> Pending<'_, Option<FollowerEvent>> {
        Box::pin(async move {
            let event = self.followed.recv().await;
            if let Some(FollowerEvent::Snapshot(snapshot)) = &event {
                report_read(snapshot, self.etcd.prefix());
            }
            event
        })
    }

    fn note_change(&mut self) {
        if let Some(file) = &mut self.file {
            file.note_change(Instant::now());
        }
    }

    /// Writes the file on another thread, if it has been behind for long enough.
    fn tend(&mut self, keeper: &Arc<Keeper>, _now: SystemTime) -> Option<Batch> {
        if let Some(file) = &mut self.file {
            file.tend(keeper, Instant::now());
        }
        None
    }

    fn commit(
        &mut self,
        _keeper: &Keeper,
        change: Transaction,
        _now: SystemTime,
        arrived: Instant,
    ) -> Pending<'static, Result<Batch, WriteFailure>> {
        let etcd = self.etcd.clone();
        Box::pin(async move { Ok(etcd.commit_queued(&change, arrived).await?) })
    }

    fn write_many(&mut self, _keeper: &Keeper, change: &Transaction, _now: SystemTime) -> Result<Batch, WriteFailure> {
        let count = change.writes.len();
        let why = format!("{count} documents change; with etcd, one request can change {WRITES_MAX}: split it");
        Err(CommitError::TooLarge(why).into())
    }

    fn backup(&mut self) -> Result<StoreCopy, WriteFailure> {
        Err(WriteFailure::Unsupported(NO_BACKUP.to_owned()))
    }

    /// The snapshot has them.
    fn keep_last_good(&mut self, _keeper: &Keeper) {}

    fn history(&mut self, _before: Option<u64>, _count: usize) -> Result<Vec<ChangeSummary>, WriteFailure> {
        Err(no_history())
    }

    fn change_at(&mut self, _revision: u64) -> Result<Option<Change>, WriteFailure> {
        Err(no_history())
    }

    fn way_back_to(&mut self, _revision: u64, _now: SystemTime) -> Result<WayBack, WriteFailure> {
        Err(no_history())
    }

    fn roll_back(
        &mut self,
        _keeper: &Keeper,
        _to: u64,
        _author: &Author,
        _now: SystemTime,
    ) -> Result<Batch, WriteFailure> {
        Err(no_history())
    }

    /// Leaves the file to another process, or takes it again.
    fn set_released(&mut self, _keeper: &Keeper, is_released: bool) {
        if let Some(file) = &mut self.file {
            file.set_released(is_released);
        }
    }

    /// Writes the file, where it is behind.
    fn end(self: Box<Self>, keeper: &Keeper) {
        if let Some(file) = self.file {
            file.end(keeper);
        }
    }
}

/// Logs what was read. With another prefix, or another etcd, it would be nothing.
fn report_read(snapshot: &Snapshot, prefix: &str) {
    let Snapshot { revision, documents } = snapshot;
    let resources = documents.iter().filter(|(key, _)| resource_of(key).is_some()).count();
    match resources {
        0 => warn!(revision, prefix, "etcd: there is no resource below the prefix; check gateway.config.etcd.prefix"),
        _ => info!(revision, resources, prefix, "etcd: read"),
    }
}
