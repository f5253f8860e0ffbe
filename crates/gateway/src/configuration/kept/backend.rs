//! What a kind of datastore is, and what an open one can do for the thread that talks to it.

use super::keeper::{DatastoreTraits, Keeper};
use super::thread::{StoreCopy, WriteFailure};
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use stillgate_config::{Gateway, SourceKind};
use stillgate_datastore::embedded::{Change, ChangeSummary, WayBack};
use stillgate_datastore::etcd::FollowerEvent;
use stillgate_datastore::{Author, Batch, Transaction};
use stillgate_tls::Problem;
use tokio::runtime::Runtime;

/// The longest time without due work.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(60);

type Open = fn(&Gateway, &Runtime, &Keeper) -> Result<Box<dyn Backend>, Problem>;
type AdminKey = fn(&Gateway, bool) -> Result<Option<Arc<str>>, Problem>;

/// A kind of datastore.
pub(crate) struct DatastoreKind {
    /// The value of `gateway.config.source` that selects it.
    pub(super) source: SourceKind,
    /// What others know of it.
    pub(super) traits: DatastoreTraits,
    /// Where it is: its file, or its endpoints.
    pub(super) addresses: fn(&Gateway) -> Vec<String>,
    /// The file that it writes, with the key that names it.
    pub(super) file: fn(&Gateway) -> Option<(&'static str, &Path)>,
    /// Why it cannot be opened. The check changes nothing and opens no connection.
    pub(super) problem: fn(&Gateway) -> Option<Problem>,
    /// Opens it and reads it for the first time.
    pub(super) open: Open,
    /// The key of the Admin API that opening it creates if none is configured. With `false` none is created.
    pub(super) admin_key: AdminKey,
}

/// A future that may borrow from the datastore.
pub(super) type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A datastore that is open.
pub(super) trait Backend: Send {
    /// Time until something is due.
    fn pause(&self, now: SystemTime) -> Duration;

    /// The follower's next notice; never returns where nothing is followed. It may be cancelled without losing anything.
    fn next_follower_event(&mut self) -> Pending<'_, Option<FollowerEvent>>;

    /// Notes a change that a restart should know.
    fn note_change(&mut self);

    /// Runs the work that is due.
    fn tend(&mut self, keeper: &Arc<Keeper>, now: SystemTime) -> Option<Batch>;

    /// Makes a change, whose documents are in their stored form, and that has waited since it arrived. The future borrows nothing, so that changes of others are followed
    /// while it runs.
    fn commit(
        &mut self,
        keeper: &Keeper,
        change: Transaction,
        now: SystemTime,
        arrived: Instant,
    ) -> Pending<'static, Result<Batch, WriteFailure>>;

    /// Makes a change with any number of writes.
    fn write_many(&mut self, keeper: &Keeper, change: &Transaction, now: SystemTime) -> Result<Batch, WriteFailure>;

    /// Copies everything into a file without a name.
    fn backup(&mut self) -> Result<StoreCopy, WriteFailure>;

    /// Keeps the last good documents in step with what is served.
    fn keep_last_good(&mut self, keeper: &Keeper);

    /// The changes before a revision, newest first.
    fn history(&mut self, before: Option<u64>, count: usize) -> Result<Vec<ChangeSummary>, WriteFailure>;

    /// One change; `None`: it is not in the history.
    fn change_at(&mut self, revision: u64) -> Result<Option<Change>, WriteFailure>;

    /// The writes that lead back to a revision.
    fn way_back_to(&mut self, revision: u64, now: SystemTime) -> Result<WayBack, WriteFailure>;

    /// Goes back to a revision.
    fn roll_back(&mut self, keeper: &Keeper, to: u64, author: &Author, now: SystemTime) -> Result<Batch, WriteFailure>;

    /// Lets go of the datastore, for another process, or takes it again.
    fn set_released(&mut self, keeper: &Keeper, is_released: bool);

    /// Ends with the process.
    fn end(self: Box<Self>, keeper: &Keeper);
}
