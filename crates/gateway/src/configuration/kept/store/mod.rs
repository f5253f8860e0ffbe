//! An embedded store: one file, which only this process writes.

mod admin_key;
mod file;

use super::backend::{Backend, DatastoreKind};
use super::keeper::{DatastoreTraits, Keeper};
use crate::upgrade;
use file::DatastoreFile;
use std::path::Path;
use stillgate_config::{Gateway, SourceKind};
use stillgate_datastore::embedded::{EmbeddedStore, HistoryBounds, OpenError, OpenProblem};
use stillgate_datastore::transaction::STORE_WRITES_MAX;
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
