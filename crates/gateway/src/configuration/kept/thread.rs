//! The thread that talks to a datastore: takes its changes in, and makes those that are asked for, one after the other.

use super::backend::Backend;
use super::followed_etcd::tell_read;
use super::keeper::{Connection, Keeper};
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
use stillgate_datastore::etcd::Followed;
use stillgate_datastore::{Author, CommitError, Transaction, Write};
use stillgate_profiler::threads::Registration;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tracing::{info, warn};

/// Writes and questions that may wait; beyond it they are answered 503.
pub(super) const ASKED_MAX: usize = 256;

/// Something that is asked of the thread.
pub(crate) enum Asked {
    /// To make a change, unless one of its documents cannot be used.
    Write(Transaction, oneshot::Sender<Result<Written, WriteFailure>>),
    /// To make a change with any number of writes.
    Replace(Transaction, oneshot::Sender<Result<Written, WriteFailure>>),
    /// To copy the whole datastore into a file without a name.
    Backup(oneshot::Sender<Result<Copied, WriteFailure>>),
    /// To find out what a change would come to, and what would be served after it.
    Try(Transaction, oneshot::Sender<Result<(Trial, Option<Config>), WriteFailure>>),
    /// The changes before a revision.
    History(Option<u64>, usize, oneshot::Sender<Result<Vec<ChangeSummary>, WriteFailure>>),
    /// One change.
    Change(u64, oneshot::Sender<Result<Option<Change>, WriteFailure>>),
    /// The writes that lead back to a revision.
    BackTo(u64, oneshot::Sender<Result<Vec<Write>, WriteFailure>>),
    /// To go back to a revision.
    RollBack(u64, Author, oneshot::Sender<Result<Written, WriteFailure>>),
    /// To let go of the datastore, or to take it again.
    Hold(bool, oneshot::Sender<()>),
    /// To end: the process does. Answered once everything is where a start finds it.
    End(oneshot::Sender<()>),
}

/// A change that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Written {
    /// Of the datastore, after it.
    pub(crate) revision: u64,
    /// What the writer should know.
    pub(crate) warnings: Vec<String>,
}

/// A copy of the datastore.
#[derive(Debug)]
pub(crate) struct Copied {
    /// At its beginning.
    pub(crate) file: File,
    /// In bytes.
    pub(crate) size: u64,
    /// Of the datastore.
    pub(crate) path: PathBuf,
}

/// Why a change was not made, or a question not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WriteFailure {
    /// A document cannot be used.
    Refused(String),
    /// As the datastore says.
    Commit(CommitError),
    /// This kind of datastore has no such thing.
    Unsupported(String),
    /// History does not reach there.
    Unreachable(String),
}

/// Runs until it is asked to end, or nobody can ask any more.
pub(super) fn run(runtime: &Runtime, keeper: &Arc<Keeper>, backend: Backend, asked: mpsc::Receiver<Asked>) {
    let _profiled = Registration::of_current();
    // Of this thread alone; refused, it competes with the workers.
    let _ = rustix::process::setpriority_process(None, CONTROL_NICE);
    runtime.block_on(talk(keeper, backend, asked));
}

async fn talk(keeper: &Arc<Keeper>, mut backend: Backend, mut asked: mpsc::Receiver<Asked>) {
    let ended = loop {
        let pause = backend.pause(SystemTime::now());
        tokio::select! {
            next = asked.recv() => {
                let Some(next) = next else { break None };
                if let ControlFlow::Break(ended) = answer(keeper, &mut backend, next).await {
                    break Some(ended);
                }
            }
            Some(followed) = backend.followed() => take(keeper, &mut backend, followed),
            () = sleep(pause) => tend(keeper, &mut backend),
        }
    };
    backend.end(keeper);
    if let Some(ended) = ended {
        // Who asked may wait no longer.
        let _ = ended.send(());
    }
}

/// Takes in what a follower tells.
fn take(keeper: &Keeper, backend: &mut Backend, followed: Followed) {
    match followed {
        Followed::Snapshot(snapshot) => {
            tell_read(&snapshot, &keeper.prefix);
            keeper.heard(Some(snapshot.revision));
            keeper.take_snapshot(snapshot, &HashMap::new());
            backend.changed();
        }
        Followed::Batch(batch) => {
            keeper.heard(Some(batch.revision));
            keeper.take_batch(batch);
            backend.changed();
        }
        Followed::Heard { revision } => keeper.heard(Some(revision)),
        Followed::Lost { reason } => {
            let serving = match keeper.stored.borrow().revision {
                Some(_) => "serving what was read last",
                None => "nothing has been read yet, so every request is answered 503",
            };
            warn!("{reason}; {serving}; trying again");
            keeper.set_connection(Connection::Lost(reason));
        }
        Followed::Back => {
            keeper.heard(None);
            keeper.set_connection(Connection::Good);
            info!("etcd: followed");
        }
    }
}

/// What is due: documents whose time to live is over, a snapshot to be written.
fn tend(keeper: &Arc<Keeper>, backend: &mut Backend) {
    if let Some(batch) = backend.tend(keeper, SystemTime::now()) {
        keeper.take_batch(batch);
        backend.keep_last_good(keeper);
    }
}

/// `Break`: whoever is to know that it has ended.
async fn answer(keeper: &Arc<Keeper>, backend: &mut Backend, asked: Asked) -> ControlFlow<oneshot::Sender<()>> {
    // Who asked may have gone meanwhile.
    match asked {
        Asked::Write(transaction, answer) => {
            let made = write(keeper, backend, transaction, false).await;
            let _ = answer.send(made);
        }
        Asked::Replace(transaction, answer) => {
            let made = write(keeper, backend, transaction, true).await;
            let _ = answer.send(made);
        }
        Asked::Backup(answer) => drop(answer.send(backend.backup())),
        Asked::Try(transaction, answer) => drop(answer.send(Ok(keeper.look_over(&transaction)))),
        Asked::History(before, count, answer) => drop(answer.send(backend.history(before, count))),
        Asked::Change(revision, answer) => drop(answer.send(backend.change_at(revision))),
        Asked::BackTo(revision, answer) => {
            let back = backend.way_back_to(revision, SystemTime::now());
            drop(answer.send(back.map(|back| keeper.in_plain(back.writes))));
        }
        Asked::RollBack(to, author, answer) => drop(answer.send(roll_back(keeper, backend, to, author))),
        Asked::Hold(is_held, answer) => {
            keeper.is_leaving.send_replace(is_held);
            backend.hold(keeper, is_held);
            let _ = answer.send(());
        }
        Asked::End(ended) => return ControlFlow::Break(ended),
    }
    ControlFlow::Continue(())
}

/// Makes a change that can be served.
async fn write(
    keeper: &Keeper,
    backend: &mut Backend,
    transaction: Transaction,
    is_replacement: bool,
) -> Result<Written, WriteFailure> {
    let trial = keeper.try_out(&transaction);
    if !trial.refusals.is_empty() {
        return Err(WriteFailure::Refused(trial.refusals.join("; ")));
    }
    let mut warnings = trial.warnings;
    warnings.extend(trial.effects.into_iter().map(|(key, what)| format!("{key}: {what}")));
    let transaction = keeper.as_kept(transaction);
    let now = SystemTime::now();
    let batch = match is_replacement {
        true => backend.replace(keeper, &transaction, now)?,
        false => backend.commit(keeper, &transaction, now).await?,
    };
    let revision = batch.revision;
    // What is followed comes by itself.
    if backend.is_embedded() {
        keeper.take_batch(batch);
        backend.keep_last_good(keeper);
    }
    Ok(Written { revision, warnings })
}

fn roll_back(keeper: &Keeper, backend: &mut Backend, to: u64, author: Author) -> Result<Written, WriteFailure> {
    let now = SystemTime::now();
    let WayBack { writes, expired } = backend.way_back_to(to, now)?;
    let writes = keeper.in_plain(writes);
    let transaction = Transaction { conditions: Vec::new(), unreferenced: Vec::new(), writes, author };
    // What was served once may not be usable any more, as where a secret has gone: that is told, and done.
    let trial = keeper.try_out(&transaction);
    let batch = backend.roll_back(keeper, to, &transaction.author, now)?;
    let revision = batch.revision;
    keeper.take_batch(batch);
    backend.keep_last_good(keeper);
    let expired = expired.iter().map(|key| format!("{key} is not restored: its time to live has ended since"));
    let warnings = trial.refusals.into_iter().chain(trial.warnings).chain(expired).collect();
    Ok(Written { revision, warnings })
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
