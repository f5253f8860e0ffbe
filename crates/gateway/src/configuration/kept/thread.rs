//! The thread that talks to a datastore: takes its changes in, and makes requested ones, one after the other.

use super::backend::{Backend, Pending};
use super::keeper::{FollowStatus, Keeper};
use super::trial::Trial;
use crate::configuration::background::CONTROL_NICE;
use std::collections::HashMap;
use std::fs::File;
use std::future::pending;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use stillgate_config::Config;
use stillgate_datastore::embedded::{BackError, Change, ChangeSummary, Unavailable, WayBack};
use stillgate_datastore::etcd::FollowerEvent;
use stillgate_datastore::{Author, Batch, CommitError, Transaction, Write};
use stillgate_profiler::threads::Registration;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tracing::{debug, info, warn};

/// Maximum number of waiting requests; beyond it they are answered 503.
pub(super) const ASKED_MAX: usize = 256;

/// A request to the thread.
pub(crate) enum StoreRequest {
    /// Makes a change, which arrived then, unless one of its documents cannot be used.
    Write(Transaction, Instant, oneshot::Sender<Result<CommittedChange, WriteFailure>>),
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

/// A change that the datastore is making.
struct ChangeUnderWay {
    commit: Pending<'static, Result<Batch, WriteFailure>>,
    warnings: Vec<String>,
    answer: oneshot::Sender<Result<CommittedChange, WriteFailure>>,
}

async fn talk(keeper: &Arc<Keeper>, mut backend: Box<dyn Backend>, mut asked: mpsc::Receiver<StoreRequest>) {
    let mut under_way: Option<ChangeUnderWay> = None;
    let ended = loop {
        let (pause, is_idle) = (backend.pause(SystemTime::now()), under_way.is_none());
        let made = async {
            match &mut under_way {
                Some(change) => change.commit.as_mut().await,
                None => pending().await,
            }
        };
        tokio::select! {
            made = made => {
                if let Some(ChangeUnderWay { warnings, answer, .. }) = under_way.take() {
                    finish(keeper, &mut *backend, made, warnings, answer);
                }
            }
            // One change after the other. A slow one does not hold up what others have changed.
            next = asked.recv(), if is_idle => {
                let Some(next) = next else { break None };
                match answer(keeper, &mut *backend, next) {
                    ControlFlow::Break(ended) => break Some(ended),
                    // An embedded store has made it.
                    ControlFlow::Continue(Some(mut change)) if keeper.traits.is_embedded => {
                        let made = change.commit.as_mut().await;
                        finish(keeper, &mut *backend, made, change.warnings, change.answer);
                    }
                    ControlFlow::Continue(begun) => under_way = begun,
                }
            }
            Some(followed) = backend.next_follower_event() => apply_follower_event(keeper, &mut *backend, followed),
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
            keeper.note_contact(Some(snapshot.revision));
            keeper.take_snapshot(snapshot, &HashMap::new());
            backend.note_change();
        }
        FollowerEvent::Batch(batch) => {
            keeper.note_contact(Some(batch.revision));
            keeper.take_batch(batch);
            backend.note_change();
        }
        FollowerEvent::Heard { revision } => keeper.note_contact(Some(revision)),
        FollowerEvent::Lost { reason } => {
            let serving = match keeper.stored.borrow().revision {
                Some(_) => "serving what was read last",
                None => "nothing has been read yet, so every request is answered 503",
            };
            warn!("{reason}; {serving}; trying again");
            keeper.set_connection(FollowStatus::Lost(reason));
        }
        FollowerEvent::Back => {
            keeper.note_contact(None);
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

/// `Break`: the sender to notify when the thread has ended. `Continue`: a change that has begun.
fn answer(
    keeper: &Arc<Keeper>,
    backend: &mut dyn Backend,
    asked: StoreRequest,
) -> ControlFlow<oneshot::Sender<()>, Option<ChangeUnderWay>> {
    // The sender of the request may have gone meanwhile. Then a change is not made: its client has given it up, and may have made
    // another one since.
    match asked {
        StoreRequest::Write(transaction, arrived, answer) if !answer.is_closed() => {
            match prepare(keeper, transaction) {
                Ok((transaction, warnings)) => {
                    let commit = backend.commit(keeper, transaction, SystemTime::now(), arrived);
                    return ControlFlow::Continue(Some(ChangeUnderWay { commit, warnings, answer }));
                }
                Err(refused) => drop(answer.send(Err(refused))),
            }
        }
        StoreRequest::WriteMany(transaction, answer) if !answer.is_closed() => match prepare(keeper, transaction) {
            Ok((transaction, warnings)) => {
                let made = backend.write_many(keeper, &transaction, SystemTime::now());
                finish(keeper, backend, made, warnings, answer);
            }
            Err(refused) => drop(answer.send(Err(refused))),
        },
        StoreRequest::RollBack(to, author, answer) if !answer.is_closed() => {
            drop(answer.send(roll_back(keeper, backend, to, author)));
        }
        StoreRequest::Write(..) | StoreRequest::WriteMany(..) | StoreRequest::RollBack(..) => {
            debug!("a change was given up by its client before it began");
        }
        StoreRequest::Backup(answer) => drop(answer.send(backend.backup())),
        StoreRequest::Try(transaction, answer) => drop(answer.send(Ok(keeper.look_over(&transaction)))),
        StoreRequest::History(before, count, answer) => drop(answer.send(backend.history(before, count))),
        StoreRequest::Change(revision, answer) => drop(answer.send(backend.change_at(revision))),
        StoreRequest::BackTo(revision, answer) => {
            let back = backend.way_back_to(revision, SystemTime::now());
            drop(answer.send(back.map(|back| keeper.in_plain(back.writes))));
        }
        StoreRequest::SetReleased(is_released, answer) => {
            keeper.is_leaving.send_replace(is_released);
            backend.set_released(keeper, is_released);
            let _ = answer.send(());
        }
        StoreRequest::End(ended) => return ControlFlow::Break(ended),
    }
    ControlFlow::Continue(None)
}

/// The change in its stored form, with warnings for the writer, if it can be served.
fn prepare(keeper: &Keeper, transaction: Transaction) -> Result<(Transaction, Vec<String>), WriteFailure> {
    let trial = keeper.try_out(&transaction);
    if !trial.refusals.is_empty() {
        return Err(WriteFailure::Refused(trial.refusals.join("; ")));
    }
    let mut warnings = trial.warnings;
    warnings.extend(trial.effects.into_iter().map(|(key, what)| format!("{key}: {what}")));
    Ok((keeper.as_kept(transaction), warnings))
}

/// Takes a change in that was made, and answers its writer.
fn finish(
    keeper: &Keeper,
    backend: &mut dyn Backend,
    made: Result<Batch, WriteFailure>,
    warnings: Vec<String>,
    answer: oneshot::Sender<Result<CommittedChange, WriteFailure>>,
) {
    let result = made.map(|batch| {
        let revision = batch.revision;
        // A follower delivers the change by itself.
        if keeper.traits.is_embedded {
            keeper.take_batch(batch);
            backend.keep_last_good(keeper);
        }
        CommittedChange { revision, warnings }
    });
    let _ = answer.send(result);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::source::plugins;
    use std::time::Duration;
    use stillgate_config::load;
    use stillgate_datastore::{Document, Documents as _, Event, Key};
    use stillgate_testkit::PATIENCE;
    use tokio::task::{LocalSet, yield_now};
    use tokio::time::timeout;

    /// A datastore whose commits end when the test says so.
    struct SlowStore {
        followed: mpsc::Receiver<FollowerEvent>,
        commits: mpsc::Receiver<u64>,
        /// Transactions that have begun.
        begun: mpsc::Sender<Transaction>,
    }

    impl Backend for SlowStore {
        fn pause(&self, _now: SystemTime) -> Duration {
            Duration::from_secs(60)
        }

        fn next_follower_event(&mut self) -> Pending<'_, Option<FollowerEvent>> {
            Box::pin(self.followed.recv())
        }

        fn note_change(&mut self) {}

        fn tend(&mut self, _keeper: &Arc<Keeper>, _now: SystemTime) -> Option<Batch> {
            None
        }

        fn commit(
            &mut self,
            _keeper: &Keeper,
            change: Transaction,
            _now: SystemTime,
            _arrived: Instant,
        ) -> Pending<'static, Result<Batch, WriteFailure>> {
            self.begun.try_send(change).unwrap();
            let (done, ended) = oneshot::channel();
            let mut commits = std::mem::replace(&mut self.commits, mpsc::channel(1).1);
            tokio::task::spawn_local(async move {
                let revision = commits.recv().await.unwrap_or_default();
                let _ = done.send(revision);
            });
            Box::pin(async move { Ok(Batch { revision: ended.await.unwrap_or_default(), events: Vec::new() }) })
        }

        fn write_many(&mut self, _: &Keeper, _: &Transaction, _: SystemTime) -> Result<Batch, WriteFailure> {
            unreachable!("the test does not call it")
        }

        fn backup(&mut self) -> Result<StoreCopy, WriteFailure> {
            unreachable!("the test does not call it")
        }

        fn keep_last_good(&mut self, _keeper: &Keeper) {}

        fn history(&mut self, _: Option<u64>, _: usize) -> Result<Vec<ChangeSummary>, WriteFailure> {
            unreachable!("the test does not call it")
        }

        fn change_at(&mut self, _: u64) -> Result<Option<Change>, WriteFailure> {
            unreachable!("the test does not call it")
        }

        fn way_back_to(&mut self, _: u64, _: SystemTime) -> Result<WayBack, WriteFailure> {
            unreachable!("the test does not call it")
        }

        fn roll_back(&mut self, _: &Keeper, _: u64, _: &Author, _: SystemTime) -> Result<Batch, WriteFailure> {
            unreachable!("the test does not call it")
        }

        fn set_released(&mut self, _keeper: &Keeper, _is_released: bool) {}

        fn end(self: Box<Self>, _keeper: &Keeper) {}
    }

    /// While a change takes long, changes of others are taken in; and one that its client has given up is not made.
    #[test]
    fn a_slow_change_holds_up_nothing_and_one_that_was_given_up_is_not_made() {
        let gateway = load("gateway: {}\nroutes: []\n", &|_| None).unwrap().config.gateway;
        let keeper = Arc::new(Keeper::new(&crate::configuration::kept::etcd::KIND.traits, &gateway, plugins()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (notices, followed) = mpsc::channel(4);
        let (ends, commits) = mpsc::channel(4);
        let (begun, mut beginnings) = mpsc::channel(4);
        let (ask, asked) = mpsc::channel(4);
        let backend = Box::new(SlowStore { followed, commits, begun });
        let write = |path: &str| {
            let (answer, answered) = oneshot::channel();
            let put =
                Write::Put { key: Key::from_etcd_path(path), value: r#"{"plugins":{}}"#.to_owned(), ttl_seconds: None };
            let change = Transaction {
                conditions: Vec::new(),
                unreferenced: Vec::new(),
                writes: vec![put],
                author: Author::default(),
            };
            (StoreRequest::Write(change, Instant::now(), answer), answered)
        };
        let session = async {
            let (first, made) = write("plugin_configs/1");
            ask.send(first).await.unwrap();
            assert_eq!(beginnings.recv().await.unwrap().writes.len(), 1);
            let (given_up, gone) = write("plugin_configs/2");
            ask.send(given_up).await.unwrap();
            drop(gone);
            let document = Document { value: "{}".into(), created: 7, modified: 7 };
            let event = Event { key: Key::from_etcd_path("protos/3"), document: Some(document) };
            notices.send(FollowerEvent::Batch(Batch { revision: 7, events: vec![event] })).await.unwrap();
            while keeper.revision() != 7 {
                yield_now().await;
            }
            ends.send(8).await.unwrap();
            assert_eq!(made.await.unwrap().map(|made| made.revision), Ok(8));
            let (ended, end) = oneshot::channel();
            ask.send(StoreRequest::End(ended)).await.unwrap();
            end.await.unwrap();
            assert!(beginnings.try_recv().is_err(), "nobody waits for it");
        };
        let both = async { tokio::join!(talk(&keeper, backend, asked), session) };
        LocalSet::new().block_on(&runtime, async { timeout(PATIENCE, both).await.expect("it takes too long") });
    }
}
