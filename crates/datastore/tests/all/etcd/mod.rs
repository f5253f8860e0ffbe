//! The client of etcd against real ones, of one member and of three: reading, following, writing, and access.

mod following;
mod reading;
mod securing;
mod writing;

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use stillgate_datastore::etcd::{Etcd, EtcdOptions, FollowerEvent, follow};
use stillgate_datastore::{DocumentTable, Documents as _, Key, Snapshot};
use stillgate_testkit::{PATIENCE, eventually};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

const PREFIX: &str = "/apisix";

/// Options for plain endpoints. The request timeout is longer than a running etcd ever takes.
fn options(endpoints: Vec<String>) -> EtcdOptions {
    let (prefix, request_timeout) = (PREFIX.to_owned(), PATIENCE / 2);
    EtcdOptions { endpoints, prefix, user: None, password: None, tls: None, renew_tls: None, request_timeout }
}

/// Options for a test that waits until an etcd fails to answer. On a busy machine a running one may also seem to fail,
/// until its next answer.
fn impatient(endpoints: Vec<String>) -> EtcdOptions {
    EtcdOptions { request_timeout: Duration::from_secs(2), ..options(endpoints) }
}

fn client(endpoint: String) -> Etcd {
    Etcd::new(options(vec![endpoint])).unwrap()
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs a future that must end in time.
fn run<T>(future: impl Future<Output = T>) -> T {
    runtime().block_on(async { timeout(PATIENCE, future).await.expect("it takes too long") })
}

fn key(path: &str) -> Key {
    Key::parse(path).unwrap()
}

/// Keys with their values, in a readable form.
fn texts(snapshot: &Snapshot) -> Vec<(String, String)> {
    let documents = snapshot.documents.iter();
    documents.map(|(key, document)| (key.to_string(), document.value.to_string())).collect()
}

/// A follower in a thread, with all its events.
struct FollowerThread {
    documents: Arc<DocumentTable>,
    told: Arc<Mutex<Vec<FollowerEvent>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FollowerThread {
    fn start(options: EtcdOptions) -> FollowerThread {
        let etcd = Arc::new(Etcd::new(options).unwrap());
        let (documents, told) = (Arc::<DocumentTable>::default(), Arc::<Mutex<Vec<FollowerEvent>>>::default());
        let (stop, mut stopped) = oneshot::channel();
        let (to, all) = (Arc::clone(&documents), Arc::clone(&told));
        let thread = std::thread::spawn(move || {
            runtime().block_on(async {
                let (sender, mut receiver) = mpsc::channel(16);
                let following = tokio::spawn(follow(etcd, sender));
                loop {
                    let followed = tokio::select! {
                        _ = &mut stopped => break,
                        followed = receiver.recv() => followed.expect("a follower goes on while it is heard"),
                    };
                    match &followed {
                        FollowerEvent::Snapshot(snapshot) => to.replace(snapshot.clone()),
                        FollowerEvent::Batch(batch) => {
                            assert!(batch.revision > to.revision(), "{batch:?} after {}", to.revision());
                            to.apply(batch);
                        }
                        FollowerEvent::Lost { .. } | FollowerEvent::Back | FollowerEvent::Heard { .. } => {}
                    }
                    all.lock().unwrap().push(followed);
                }
                drop(receiver);
                following.await.expect("a follower ends when it is no longer heard");
            });
        });
        FollowerThread { documents, told, stop: Some(stop), thread: Some(thread) }
    }

    fn value(&self, path: &str) -> Option<String> {
        self.documents.get(&key(path)).map(|document| document.value.to_string())
    }

    #[track_caller]
    fn await_value(&self, path: &str, value: Option<&str>) {
        eventually(&format!("{path} to be {value:?}"), || self.value(path).as_deref() == value);
    }

    fn count(&self, is_counted: impl Fn(&FollowerEvent) -> bool) -> usize {
        self.told.lock().unwrap().iter().filter(|told| is_counted(told)).count()
    }

    fn snapshots(&self) -> usize {
        self.count(|told| matches!(told, FollowerEvent::Snapshot(_)))
    }

    /// The highest revision that was heard.
    fn revisions_heard(&self) -> u64 {
        let told = self.told.lock().unwrap();
        let heard = told.iter().filter_map(|told| match told {
            FollowerEvent::Heard { revision } => Some(*revision),
            _ => None,
        });
        heard.max().unwrap_or_default()
    }

    fn losses(&self) -> usize {
        self.count(|told| matches!(told, FollowerEvent::Lost { .. }))
    }

    fn returns(&self) -> usize {
        self.count(|told| matches!(told, FollowerEvent::Back))
    }

    /// The last reason.
    fn reason(&self) -> String {
        let told = self.told.lock().unwrap();
        let last = told.iter().rev().find_map(|told| match told {
            FollowerEvent::Lost { reason } => Some(reason.clone()),
            _ => None,
        });
        last.unwrap_or_default()
    }

    /// Waits until its documents equal those of a fresh list.
    #[track_caller]
    fn await_equal(&self, endpoint: String) {
        let etcd = client(endpoint);
        eventually("the follower to have what a list has", || {
            run(etcd.list()).is_ok_and(|listed| listed.snapshot.documents == self.documents.snapshot().documents)
        });
    }
}

impl Drop for FollowerThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}
