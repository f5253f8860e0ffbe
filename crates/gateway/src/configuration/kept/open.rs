//! Opens the datastore that the `gateway:` section names, and starts the thread that talks to it.

use super::backend::DatastoreKind;
use super::keeper::Keeper;
use super::thread::{ASKED_MAX, StoreRequest, run};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use stillgate_config::{Gateway, PluginSet};
use stillgate_tls::Problem;
use tokio::sync::mpsc;

/// How long the thread that saves waits for more work: when it ends, the memory for all documents goes back to the system.
const SAVING_IDLE_MAX: Duration = Duration::from_millis(100);

/// A datastore that is open: its state, and the channel for requests.
#[derive(Clone)]
pub(crate) struct OpenStore {
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) asks: mpsc::Sender<StoreRequest>,
    /// Key of the Admin API, generated at the first start because none is configured.
    pub(crate) key: Option<Arc<str>>,
}

/// Why the datastore that the section names cannot be opened. The check changes nothing and opens no connection.
pub(crate) fn problem(gateway: &Gateway) -> Option<Problem> {
    let kind = DatastoreKind::of(gateway)?;
    (kind.problem)(gateway).or_else(|| (kind.admin_key)(gateway, false).err())
}

/// Opens a datastore; the error says what is wrong and what to do.
pub(super) fn open(kind: &'static DatastoreKind, gateway: &Gateway, plugins: PluginSet) -> Result<OpenStore, Problem> {
    let no_thread = |error| {
        let message = format!("cannot start the thread for the datastore: {error}");
        Problem { path: "gateway.config".to_owned(), message, hint: None }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("datastore-save")
        .thread_keep_alive(SAVING_IDLE_MAX)
        .build()
        .map_err(no_thread)?;
    let keeper = Arc::new(Keeper::new(&kind.traits, gateway, plugins));
    let backend = (kind.open)(gateway, &runtime, &keeper)?;
    let (asks, asked) = mpsc::channel(ASKED_MAX);
    let known = keeper.clone();
    let started =
        thread::Builder::new().name("datastore".to_owned()).spawn(move || run(&runtime, &known, backend, asked));
    started.map_err(no_thread)?;
    let key = (kind.admin_key)(gateway, true)?;
    Ok(OpenStore { keeper, asks, key })
}
