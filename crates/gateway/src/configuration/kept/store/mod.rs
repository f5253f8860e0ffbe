//! An embedded store: one file, which only this process writes.

mod admin_key;
mod file;

use super::backend::{Backend, DatastoreKind, Pending};
use super::keeper::{DatastoreTraits, Keeper};
use super::thread::{StoreCopy, WriteFailure};
use crate::upgrade;
use file::DatastoreFile;
use std::future::pending;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use stillgate_config::{Gateway, SourceKind};
use stillgate_datastore::embedded::{
    Change, ChangeSummary, EmbeddedStore, HistoryBounds, OpenError, OpenProblem, WayBack,
};
use stillgate_datastore::etcd::FollowerEvent;
use stillgate_datastore::transaction::STORE_WRITES_MAX;
use stillgate_datastore::{Author, Batch, Documents as _, Transaction};
use stillgate_tls::Problem;
use tokio::runtime::Runtime;

const KEY: &str = "gateway.config.store";

pub(super) const KIND: DatastoreKind = DatastoreKind {
    source: SourceKind::Store,
    traits: DatastoreTraits { name: "store", writes_max: STORE_WRITES_MAX, is_embedded: true },
    addresses: |gateway| vec![gateway.config.store.display().to_string()],
    file: |gateway| Some((KEY, &gateway.config.store)),
    problem: |gateway| unreadable(&gateway.config.store),
    open,
    admin_key: admin_key::made_key,
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

impl Backend for DatastoreFile {
    fn pause(&self, now: SystemTime) -> Duration {
        self.pause(now)
    }

    fn followed(&mut self) -> Pending<'_, Option<FollowerEvent>> {
        Box::pin(pending())
    }

    /// Every change is in the file already.
    fn changed(&mut self) {}

    fn tend(&mut self, keeper: &Arc<Keeper>, now: SystemTime) -> Option<Batch> {
        self.expire(keeper, now)
    }

    fn commit<'a>(
        &'a mut self,
        keeper: &'a Keeper,
        change: &'a Transaction,
        now: SystemTime,
    ) -> Pending<'a, Result<Batch, WriteFailure>> {
        Box::pin(async move { self.write(keeper, |store| store.commit(change, now)) })
    }

    fn write_many(&mut self, keeper: &Keeper, change: &Transaction, now: SystemTime) -> Result<Batch, WriteFailure> {
        self.write(keeper, |store| store.commit_many(change, now))
    }

    fn backup(&mut self) -> Result<StoreCopy, WriteFailure> {
        self.backup()
    }

    fn keep_last_good(&mut self, keeper: &Keeper) {
        self.keep_last_good(keeper);
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

    fn hold(&mut self, keeper: &Keeper, is_held: bool) {
        self.hold(keeper, is_held);
    }

    fn end(self: Box<Self>, _keeper: &Keeper) {
        (*self).end();
    }
}
