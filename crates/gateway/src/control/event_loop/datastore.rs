//! The datastore, as the control loop sees it: something that has news, and that a successor may need.

use crate::configuration::kept::{Asked, Opened, Stored};
use std::time::Duration;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tracing::warn;

/// What a datastore gets to end in: a snapshot of etcd may have to be written.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// A datastore that is followed.
pub(super) struct Datastore {
    kind: &'static str,
    stored: watch::Receiver<Stored>,
    asks: mpsc::Sender<Asked>,
    /// Of what was asked to be read last.
    revision: Option<u64>,
}

impl Datastore {
    pub(super) fn new(kept: Opened) -> Datastore {
        let mut stored = kept.keeper.stored.subscribe();
        // What is there at the start may not be what was read then.
        stored.mark_changed();
        Datastore { kind: kept.keeper.name(), stored, asks: kept.asks, revision: None }
    }

    /// Waits until there is something to be read. May be cancelled without losing anything.
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
        self.kind
    }

    /// How it is followed.
    pub(super) fn state(&self) -> Stored {
        self.stored.borrow().clone()
    }

    /// Lets go of it, so that a successor can open it, or takes it again. It is not waited for: a successor tries until it can.
    pub(super) fn hold(&self, is_held: bool) {
        let (done, _) = oneshot::channel();
        if let Err(TrySendError::Full(asked)) = self.asks.try_send(Asked::Hold(is_held, done)) {
            warn!("the datastore is too busy to be handed over; the upgrade waits for it");
            let asks = self.asks.clone();
            // In the order of the calls: those who wait for a place get it one after the other.
            tokio::spawn(async move { drop(asks.send(asked).await) });
        }
    }

    /// Ends it, so that a start finds what was written last.
    pub(super) async fn end(&self) {
        let (done, ended) = oneshot::channel();
        let ending = async {
            if self.asks.send(Asked::End(done)).await.is_ok() {
                // It answers, or it has ended already.
                let _ = ended.await;
            }
        };
        if timeout(END_TIMEOUT, ending).await.is_err() {
            warn!("the datastore takes too long to end; a start without it may serve an older configuration");
        }
    }
}
