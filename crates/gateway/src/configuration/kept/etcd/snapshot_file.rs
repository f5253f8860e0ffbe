//! The file with the last snapshot of etcd: what a former process has left there, and when it is rewritten.
//!
//! It is written soon after a change, since a start without etcd serves its contents; not at once, since it is written as a whole.
//! A failed write is tried again, whether anything changes or not. The time is an argument.

use crate::configuration::kept::backend::PAUSE_MAX;
use crate::configuration::kept::keeper::Keeper;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};
use stillgate_datastore::etcd::{SavedError, SavedSnapshot};
use stillgate_datastore::{Document, Documents as _, Key, Snapshot};
use tokio::task::spawn_blocking;
use tracing::{error, info, warn};

/// It is written once nothing has changed for so long.
const QUIET: Duration = Duration::from_secs(1);

/// How long it may be behind under continuous changes.
const BEHIND_MAX: Duration = Duration::from_secs(5);

/// Time until a failed write is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// Interval of checks whether it has been written.
const LOOK_AFTER: Duration = Duration::from_millis(100);

type SnapshotWriteResult = Result<u64, SavedError>;

/// The file of one prefix.
pub(super) struct SnapshotFile {
    path: PathBuf,
    prefix: String,
    /// The first and the last change that it does not have.
    behind: Option<(Instant, Instant)>,
    /// When it could not be written; `None`: it could.
    failed_at: Option<Instant>,
    /// The result of writing it, while another thread does that.
    writing: Option<Receiver<SnapshotWriteResult>>,
    /// Another process writes it.
    is_released: bool,
}

impl SnapshotFile {
    pub(super) fn new(path: PathBuf, prefix: &str) -> SnapshotFile {
        SnapshotFile {
            path,
            prefix: prefix.to_owned(),
            behind: None,
            failed_at: None,
            writing: None,
            is_released: false,
        }
    }

    /// Takes in the snapshot that a former process has written; its revision, or why there is nothing.
    pub(super) fn read(&self, keeper: &Keeper) -> Result<u64, String> {
        match SavedSnapshot::read(&self.path, &self.prefix) {
            Ok(SavedSnapshot { snapshot, last_good }) => {
                let revision = snapshot.revision;
                let last_good = still_good(last_good, &snapshot);
                keeper.take_snapshot(snapshot, &last_good);
                Ok(revision)
            }
            Err(SavedError::Absent(path)) => Err(format!("there is no snapshot yet ({})", path.display())),
            Err(error) => Err(format!("the snapshot cannot be used ({error})")),
        }
    }

    /// The last good documents of rejected ones in etcd's snapshot, as a former process has saved them.
    pub(super) fn last_good(&self, snapshot: &Snapshot) -> HashMap<Key, Arc<str>> {
        match SavedSnapshot::read(&self.path, &self.prefix) {
            Ok(saved) => still_good(saved.last_good, snapshot),
            Err(SavedError::Absent(_)) => HashMap::new(),
            Err(error) => {
                warn!("etcd: the snapshot cannot be used, and is written again: {error}");
                HashMap::new()
            }
        }
    }

    /// Notes a change that the file does not have.
    pub(super) fn note_change(&mut self, now: Instant) {
        let first = self.behind.map_or(now, |(first, _)| first);
        self.behind = Some((first, now));
    }

    /// Time until the next attempt.
    pub(super) fn pause(&self, now: Instant) -> Duration {
        match (&self.writing, self.due()) {
            (Some(_), _) => LOOK_AFTER,
            (None, Some(due)) => due.saturating_duration_since(now),
            (None, None) => PAUSE_MAX,
        }
    }

    /// Writes it on another thread, where it is due.
    pub(super) fn tend(&mut self, keeper: &Arc<Keeper>, now: Instant) {
        let ended = self.writing.as_ref().map(Receiver::try_recv);
        match ended {
            Some(Err(TryRecvError::Empty)) => return,
            Some(Ok(written)) => self.note(written, now),
            // The thread has panicked, which is in the log.
            Some(Err(TryRecvError::Disconnected)) => self.writing = None,
            None => {}
        }
        if self.due().is_none_or(|due| due > now) {
            return;
        }
        self.behind = None;
        let (tell, writing) = sync_channel(1);
        let (keeper, path, prefix) = (keeper.clone(), self.path.clone(), self.prefix.clone());
        drop(spawn_blocking(move || tell.send(write(&keeper, &path, &prefix))));
        self.writing = Some(writing);
    }

    /// Lets another process write it, or writes it again.
    pub(super) fn set_released(&mut self, is_released: bool) {
        self.is_released = is_released;
    }

    /// Writes it where it is behind, for the last time.
    pub(super) fn end(mut self, keeper: &Keeper) {
        if let Some(Ok(written)) = self.writing.take().map(|writing| writing.recv()) {
            self.note(written, Instant::now());
        }
        if self.behind.is_some() && !self.is_released {
            let written = write(keeper, &self.path, &self.prefix);
            self.note(written, Instant::now());
        }
    }

    fn due(&self) -> Option<Instant> {
        let (first, last) = self.behind.filter(|_| !self.is_released)?;
        let due = (last + QUIET).min(first + BEHIND_MAX);
        Some(self.failed_at.map_or(due, |failed_at| due.max(failed_at + RETRY_AFTER)))
    }

    /// Logs the first of several failures, and their end.
    fn note(&mut self, written: SnapshotWriteResult, now: Instant) {
        self.writing = None;
        let had_failed = self.failed_at.is_some();
        match written {
            Ok(revision) => {
                self.failed_at = None;
                let again = if had_failed { ", after it could not be" } else { "" };
                info!(revision, "etcd: snapshot written{again}");
            }
            Err(error) => {
                self.failed_at = Some(now);
                self.note_change(now);
                if !had_failed {
                    let seconds = RETRY_AFTER.as_secs();
                    error!(
                        "etcd: cannot write the snapshot, and a restart without etcd would serve an older one; trying \
                         again every {seconds} s: {error}"
                    );
                }
            }
        }
    }
}

/// The last good documents that still are: those of documents that have not been written since. What was written, or deleted and
/// created again, may have been good in between, and its former version must not come back.
fn still_good(last_good: Vec<(Key, Document)>, snapshot: &Snapshot) -> HashMap<Key, Arc<str>> {
    let now: HashMap<&Key, &Document> = snapshot.documents.iter().map(|(key, document)| (key, document)).collect();
    let is_still = |(key, good): &(Key, Document)| {
        let is_same = |now: &&Document| {
            // `created` was not always saved.
            now.modified == good.modified && (good.created == 0 || now.created == good.created)
        };
        now.get(key).is_some_and(is_same)
    };
    last_good.into_iter().filter(is_still).map(|(key, document)| (key, document.value)).collect()
}

fn write(keeper: &Keeper, path: &Path, prefix: &str) -> SnapshotWriteResult {
    let Snapshot { revision, documents } = keeper.snapshot();
    let kept = |(key, document): (Key, Document)| {
        let value = keeper.encryption.stored_text(&key, &document.value);
        (key, Document { value, ..document })
    };
    let documents: Vec<(Key, Document)> = documents.into_iter().map(kept).collect();
    if documents.is_empty() {
        keep_aside(path, prefix);
    }
    let last_good = keeper.last_good().into_iter().map(|(key, value)| {
        // These are the revisions of the rejected document.
        let (created, modified) = keeper.get(&key).map_or((0, 0), |document| (document.created, document.modified));
        (key, Document { value, created, modified })
    });
    let saved = SavedSnapshot { snapshot: Snapshot { revision, documents }, last_good: last_good.collect() };
    saved.write(path, prefix).map(|()| revision)
}

/// Keeps a snapshot that has documents when etcd has none any more: it may be the last copy.
fn keep_aside(path: &Path, prefix: &str) {
    let has_documents = SavedSnapshot::read(path, prefix).is_ok_and(|saved| !saved.snapshot.documents.is_empty());
    if !has_documents {
        return;
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".before-empty");
    match std::fs::rename(path, &name) {
        Ok(()) => {
            warn!("etcd: it has no documents any more; the last snapshot that has some is kept in {}", name.display())
        }
        Err(error) => warn!("etcd: it has no documents any more, and the last snapshot cannot be kept: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::source::plugins;
    use stillgate_config::load;
    use stillgate_testkit::eventually;

    const PREFIX: &str = "/apisix";

    fn keeper(revision: u64) -> Arc<Keeper> {
        let gateway = load("gateway: {}\nroutes: []\n", &|_| None).unwrap().config.gateway;
        let keeper = Keeper::new(&crate::configuration::kept::etcd::KIND.traits, &gateway, plugins());
        keeper.take_snapshot(Snapshot { revision, documents: Vec::new() }, &HashMap::new());
        Arc::new(keeper)
    }

    fn revision(path: &Path) -> Option<u64> {
        SavedSnapshot::read(path, PREFIX).ok().map(|saved| saved.snapshot.revision)
    }

    /// Runs the work that is due at a time, to its end.
    fn tend(file: &mut SnapshotFile, keeper: &Arc<Keeper>, now: Instant) {
        eventually("the file", || {
            file.tend(keeper, now);
            file.writing.is_none()
        });
    }

    #[test]
    fn it_is_written_after_a_quiet_second_and_every_five() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _entered = runtime.enter();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        let (mut file, keeper, start) = (SnapshotFile::new(path.clone(), PREFIX), keeper(7), Instant::now());
        let ms = Duration::from_millis;
        assert_eq!(file.pause(start), PAUSE_MAX);
        file.note_change(start);
        assert_eq!(file.pause(start + ms(400)), ms(600));
        file.note_change(start + ms(900));
        tend(&mut file, &keeper, start + ms(1800));
        assert_eq!(revision(&path), None);
        tend(&mut file, &keeper, start + ms(1900));
        assert_eq!((revision(&path), file.pause(start)), (Some(7), PAUSE_MAX));
        // Something changes all the time.
        (0..12).for_each(|step| file.note_change(start + ms(10_000 + 500 * step)));
        assert_eq!(file.pause(start + ms(15_500)), Duration::ZERO);
        file.set_released(true);
        assert_eq!(file.pause(start + ms(15_500)), PAUSE_MAX, "it is another's");
    }

    #[test]
    fn what_could_not_be_written_is_tried_again() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _entered = runtime.enter();
        let folder = tempfile::tempdir().unwrap();
        let (path, in_the_way) = (folder.path().join("snapshot"), folder.path().join("snapshot.new"));
        std::fs::create_dir(&in_the_way).unwrap();
        let (mut file, keeper, start) = (SnapshotFile::new(path.clone(), PREFIX), keeper(7), Instant::now());
        file.note_change(start);
        let failed_at = start + QUIET;
        tend(&mut file, &keeper, failed_at);
        assert_eq!(file.pause(failed_at), RETRY_AFTER, "nothing has changed, and it is behind");
        std::fs::remove_dir(&in_the_way).unwrap();
        tend(&mut file, &keeper, failed_at + RETRY_AFTER);
        assert_eq!((revision(&path), file.pause(failed_at)), (Some(7), PAUSE_MAX));
    }

    #[test]
    fn a_former_version_is_good_only_for_the_document_that_was_rejected() {
        let entry =
            |created, modified| (Key::from_etcd_path("routes/1"), Document { value: "{}".into(), created, modified });
        let still = |saved, now: (u64, u64)| {
            let snapshot = Snapshot { revision: 9, documents: vec![entry(now.0, now.1)] };
            !still_good(vec![saved], &snapshot).is_empty()
        };
        assert!(still(entry(2, 5), (2, 5)));
        assert!(!still(entry(2, 5), (2, 7)), "written since");
        assert!(!still(entry(2, 5), (7, 7)), "deleted, and created again");
        assert!(still(entry(0, 5), (2, 5)), "saved by an older process");
        assert!(still_good(vec![entry(2, 5)], &Snapshot::default()).is_empty());
    }

    #[test]
    fn the_last_snapshot_with_documents_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        let documents =
            vec![(Key::from_etcd_path("routes/1"), Document { value: "{}".into(), created: 2, modified: 2 })];
        let full = SavedSnapshot { snapshot: Snapshot { revision: 2, documents }, last_good: Vec::new() };
        full.write(&path, PREFIX).unwrap();
        for empty in [3, 4] {
            write(&keeper(empty), &path, PREFIX).unwrap();
            assert_eq!(revision(&path), Some(empty));
        }
        assert_eq!(SavedSnapshot::read(&folder.path().join("snapshot.before-empty"), PREFIX).unwrap(), full);
    }

    #[test]
    fn the_end_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        let of = |is_changed: bool, is_released: bool| {
            let mut file = SnapshotFile::new(path.clone(), PREFIX);
            file.set_released(is_released);
            if is_changed {
                file.note_change(Instant::now());
            }
            file
        };
        of(false, false).end(&keeper(1));
        of(true, true).end(&keeper(2));
        assert_eq!(revision(&path), None);
        of(true, false).end(&keeper(3));
        assert_eq!(revision(&path), Some(3));
    }
}
