//! The datastore, as the control loop sees it: a source of changes, which a successor may need.

use crate::configuration::kept::{FollowStatus, FollowedRevision, OpenStore, StoreRequest};
use std::time::Duration;
use stillgate_config::SourceKind;
use stillgate_measures::own_metrics::{EtcdFacts, SourceFacts};
use stillgate_measures::process_stats::now_unix_ms;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tracing::warn;

/// Time for a datastore to end: a snapshot of etcd may have to be written.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// A datastore that is followed.
pub(super) struct Datastore {
    kind: SourceKind,
    name: &'static str,
    stored: watch::Receiver<FollowedRevision>,
    asks: mpsc::Sender<StoreRequest>,
    /// Revision that was last requested to be read.
    revision: Option<u64>,
}

impl Datastore {
    pub(super) fn new(kept: OpenStore) -> Datastore {
        let mut stored = kept.keeper.stored.subscribe();
        // The datastore may have changed since it was read at the start.
        stored.mark_changed();
        Datastore { kind: kept.keeper.kind, name: kept.keeper.name(), stored, asks: kept.asks, revision: None }
    }

    /// Waits until there is a change to read. May be cancelled without losing anything.
    pub(super) async fn changed(&mut self) {
        loop {
            if self.stored.changed().await.is_err() {
                return std::future::pending().await;
            }
            let revision = self.stored.borrow_and_update().revision;
            if revision != self.revision {
                self.revision = revision;
                return;
            }
        }
    }

    /// `store` or `etcd`.
    pub(super) fn kind(&self) -> &'static str {
        self.name
    }

    /// How it is followed.
    pub(super) fn state(&self) -> FollowedRevision {
        self.stored.borrow().clone()
    }

    /// When the datastore last answered, in milliseconds since 1970. A store that can be written is in this process.
    pub(super) fn heard_unix_ms(&self) -> Option<u64> {
        let stored = self.stored.borrow();
        match self.kind == SourceKind::Store && stored.connection == FollowStatus::Good {
            true => Some(now_unix_ms()),
            false => stored.heard_unix_ms,
        }
    }

    /// Values for the metrics.
    pub(super) fn facts(&self) -> SourceFacts {
        let heard_unix_ms = self.heard_unix_ms();
        let stored = self.stored.borrow();
        // A datastore that a successor has opened is not lost.
        let is_up = !matches!(stored.connection, FollowStatus::Lost(_));
        let etcd = EtcdFacts { newest: stored.newest, modified: stored.modified };
        let etcd = (self.kind == SourceKind::Etcd).then_some(etcd);
        SourceFacts { is_up, revision: stored.revision, heard_unix_ms, etcd }
    }

    /// Lets go of it, so that a successor can open it, or takes it again. It is not waited for: a successor tries until it can.
    pub(super) fn hold(&self, is_held: bool) {
        let (done, _) = oneshot::channel();
        if let Err(TrySendError::Full(asked)) = self.asks.try_send(StoreRequest::Hold(is_held, done)) {
            warn!("the datastore is too busy to be handed over; the upgrade waits for it");
            let asks = self.asks.clone();
            // They are sent in the order of the calls: senders that wait for a place get it one after the other.
            tokio::spawn(async move { drop(asks.send(asked).await) });
        }
    }

    /// Ends it, so that a start finds what was written last.
    pub(super) async fn end(&self) {
        let (done, ended) = oneshot::channel();
        let ending = async {
            if self.asks.send(StoreRequest::End(done)).await.is_ok() {
                // It answers, or it has ended already.
                let _ = ended.await;
            }
        };
        if timeout(END_TIMEOUT, ending).await.is_err() {
            warn!("the datastore takes too long to end; a start without it may serve an older configuration");
        }
    }
}
