//! The thread that talks to a datastore: takes its changes in, and makes requested ones, one after the other.

use super::backend::Backend;
use super::keeper::{FollowStatus, Keeper};
use super::trial::Trial;
use crate::configuration::background::CONTROL_NICE;
use std::collections::HashMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;
use stillgate_config::Config;
use stillgate_datastore::embedded::{BackError, Change, ChangeSummary, Unavailable, WayBack};
use stillgate_datastore::etcd::FollowerEvent;
use stillgate_datastore::{Author, CommitError, Transaction, Write};
use stillgate_profiler::threads::Registration;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tracing::{info, warn};

/// Maximum number of waiting requests; beyond it they are answered 503.
pub(super) const ASKED_MAX: usize = 256;

/// A request to the thread.
pub(crate) enum StoreRequest {
    /// Makes a change, unless one of its documents cannot be used.
    Write(Transaction, oneshot::Sender<Result<CommittedChange, WriteFailure>>),
    /// Makes a change with any number of writes.
    WriteMany(Transaction, oneshot::Sender<Result<CommittedChange, WriteFailure>>),
    /// Copies the whole datastore into a file without a name.
    Backup(oneshot::Sender<Result<StoreCopy, WriteFailure>>),
    /// Finds out the result of a change, and what would be served after it.
    Try(Transaction, oneshot::Sender<Result<(Trial, Option<Config>), WriteFailure>>),
    /// The changes before a revision.
    History(Option<u64>, usize, oneshot::Sender<Result<Vec<ChangeSummary>, WriteFailure>>),
    /// One change.
    Change(u64, oneshot::Sender<Result<Option<Change>, WriteFailure>>),
    /// The writes that lead back to a revision.
    BackTo(u64, oneshot::Sender<Result<Vec<Write>, WriteFailure>>),
    /// Goes back to a revision.
    RollBack(u64, Author, oneshot::Sender<Result<CommittedChange, WriteFailure>>),
    /// Lets go of the datastore, or takes it again.
    SetReleased(bool, oneshot::Sender<()>),
    /// Ends the thread: the process ends. Answered once everything is where a start finds it.
    End(oneshot::Sender<()>),
}

/// A change that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommittedChange {
    /// Revision of the datastore after the change.
    pub(crate) revision: u64,
    /// Warnings for the writer.
    pub(crate) warnings: Vec<String>,
}

/// A copy of the datastore.
#[derive(Debug)]
pub(crate) struct StoreCopy {
    /// The file, positioned at its beginning.
    pub(crate) file: File,
    /// Size in bytes.
    pub(crate) size: u64,
    /// Path of the datastore.
    pub(crate) path: PathBuf,
}

/// Why a change was not made, or a question not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WriteFailure {
    /// A document cannot be used.
    Refused(String),
    /// The datastore's own error.
    Commit(CommitError),
    /// This kind of datastore does not support it.
    Unsupported(String),
    /// History does not reach back that far.
    Unreachable(String),
}

/// Runs until it is asked to end, or until no sender of requests is left.
pub(super) fn run(
    runtime: &Runtime,
    keeper: &Arc<Keeper>,
    backend: Box<dyn Backend>,
    asked: mpsc::Receiver<StoreRequest>,
) {
    let _profiled = Registration::of_current();
    // The niceness of this thread alone; if the system refuses it, the thread competes with the workers.
    let _ = rustix::process::setpriority_process(None, CONTROL_NICE);
    runtime.block_on(talk(keeper, backend, asked));
}

async fn talk(keeper: &Arc<Keeper>, mut backend: Box<dyn Backend>, mut asked: mpsc::Receiver<StoreRequest>) {
    let ended = loop {
        let pause = backend.pause(SystemTime::now());
        tokio::select! {
            next = asked.recv() => {
                let Some(next) = next else { break None };
                if let ControlFlow::Break(ended) = answer(keeper, &mut *backend, next).await {
                    break Some(ended);
                }
            }
            Some(followed) = backend.followed() => apply_follower_event(keeper, &mut *backend, followed),
            () = sleep(pause) => tend(keeper, &mut *backend),
        }
    };
    backend.end(keeper);
    if let Some(ended) = ended {
        // The sender may have stopped waiting.
        let _ = ended.send(());
    }
}

/// Takes in a notice of a follower.
fn apply_follower_event(keeper: &Keeper, backend: &mut dyn Backend, followed: FollowerEvent) {
    match followed {
        FollowerEvent::Snapshot(snapshot) => {
            keeper.heard(Some(snapshot.revision));
            keeper.take_snapshot(snapshot, &HashMap::new());
            backend.changed();
        }
        FollowerEvent::Batch(batch) => {
            keeper.heard(Some(batch.revision));
            keeper.take_batch(batch);
            backend.changed();
        }
        FollowerEvent::Heard { revision } => keeper.heard(Some(revision)),
        FollowerEvent::Lost { reason } => {
            let serving = match keeper.stored.borrow().revision {
                Some(_) => "serving what was read last",
                None => "nothing has been read yet, so every request is answered 503",
            };
            warn!("{reason}; {serving}; trying again");
            keeper.set_connection(FollowStatus::Lost(reason));
        }
        FollowerEvent::Back => {
            keeper.heard(None);
            keeper.set_connection(FollowStatus::Good);
            info!("{}: followed", keeper.traits.name);
        }
    }
}

/// Runs due work: deletes documents whose time to live is over, writes a snapshot.
fn tend(keeper: &Arc<Keeper>, backend: &mut dyn Backend) {
    if let Some(batch) = backend.tend(keeper, SystemTime::now()) {
        keeper.take_batch(batch);
        backend.keep_last_good(keeper);
    }
}

/// `Break`: the sender to notify when the thread has ended.
async fn answer(
    keeper: &Arc<Keeper>,
    backend: &mut dyn Backend,
    asked: StoreRequest,
) -> ControlFlow<oneshot::Sender<()>> {
    // The sender of the request may have gone meanwhile.
    match asked {
        StoreRequest::Write(transaction, answer) => {
            let made = write(keeper, backend, transaction, false).await;
            let _ = answer.send(made);
        }
        StoreRequest::WriteMany(transaction, answer) => {
            let made = write(keeper, backend, transaction, true).await;
            let _ = answer.send(made);
        }
        StoreRequest::Backup(answer) => drop(answer.send(backend.backup())),
        StoreRequest::Try(transaction, answer) => drop(answer.send(Ok(keeper.look_over(&transaction)))),
        StoreRequest::History(before, count, answer) => drop(answer.send(backend.history(before, count))),
        StoreRequest::Change(revision, answer) => drop(answer.send(backend.change_at(revision))),
        StoreRequest::BackTo(revision, answer) => {
            let back = backend.way_back_to(revision, SystemTime::now());
            drop(answer.send(back.map(|back| keeper.in_plain(back.writes))));
        }
        StoreRequest::RollBack(to, author, answer) => drop(answer.send(roll_back(keeper, backend, to, author))),
        StoreRequest::SetReleased(is_released, answer) => {
            keeper.is_leaving.send_replace(is_released);
            backend.set_released(keeper, is_released);
            let _ = answer.send(());
        }
        StoreRequest::End(ended) => return ControlFlow::Break(ended),
    }
    ControlFlow::Continue(())
}

/// Makes a change that can be served.
async fn write(
    keeper: &Keeper,
    backend: &mut dyn Backend,
    transaction: Transaction,
    is_replacement: bool,
) -> Result<CommittedChange, WriteFailure> {
    let trial = keeper.try_out(&transaction);
    if !trial.refusals.is_empty() {
        return Err(WriteFailure::Refused(trial.refusals.join("; ")));
    }
    let mut warnings = trial.warnings;
    warnings.extend(trial.effects.into_iter().map(|(key, what)| format!("{key}: {what}")));
    let transaction = keeper.as_kept(transaction);
    let now = SystemTime::now();
    let batch = match is_replacement {
        true => backend.write_many(keeper, &transaction, now)?,
        false => backend.commit(keeper, &transaction, now).await?,
    };
    let revision = batch.revision;
    // A follower delivers the change by itself.
    if keeper.traits.is_embedded {
        keeper.take_batch(batch);
        backend.keep_last_good(keeper);
    }
    Ok(CommittedChange { revision, warnings })
}

fn roll_back(
    keeper: &Keeper,
    backend: &mut dyn Backend,
    to: u64,
    author: Author,
) -> Result<CommittedChange, WriteFailure> {
    let now = SystemTime::now();
    let WayBack { writes, expired } = backend.way_back_to(to, now)?;
    let writes = keeper.in_plain(writes);
    let transaction = Transaction { conditions: Vec::new(), unreferenced: Vec::new(), writes, author };
    // A resource that was served once may not be usable any more, for example where a secret has gone: the write warns of that, and
    // succeeds.
    let trial = keeper.try_out(&transaction);
    let batch = backend.roll_back(keeper, to, &transaction.author, now)?;
    let revision = batch.revision;
    keeper.take_batch(batch);
    backend.keep_last_good(keeper);
    let expired = expired.iter().map(|key| format!("{key} is not restored: its time to live has ended since"));
    let warnings = trial.refusals.into_iter().chain(trial.warnings).chain(expired).collect();
    Ok(CommittedChange { revision, warnings })
}

impl From<CommitError> for WriteFailure {
    fn from(error: CommitError) -> WriteFailure {
        WriteFailure::Commit(error)
    }
}

impl From<Unavailable> for WriteFailure {
    fn from(error: Unavailable) -> WriteFailure {
        WriteFailure::Commit(CommitError::Unavailable(error.to_string()))
    }
}

impl From<BackError> for WriteFailure {
    fn from(error: BackError) -> WriteFailure {
        match error {
            BackError::Commit(error) => WriteFailure::Commit(error),
            error => WriteFailure::Unreachable(error.to_string()),
        }
    }
}
