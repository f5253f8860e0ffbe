//! What the process that takes over learns of broadcasts: the jobs that this one knows, and how those that it has begun go on.

use super::node::DeviceNode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use stillgate_proxy::handover::{BROADCAST_BYTES_MAX, HandedState, Parcel};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

/// Interval of looks for news.
const TELL_EVERY: Duration = Duration::from_millis(50);

/// Notifies the thread that another process takes over. When it is dropped, that has happened.
#[derive(Debug)]
pub struct Leaving {
    /// The channel by which that process receives reports about broadcasts.
    pub outbox: oneshot::Sender<mpsc::Sender<Parcel>>,
    /// The other process serves alongside this one.
    pub has_company: Arc<AtomicBool>,
}

/// Sends the news until `over` is dropped, when the workers have ended. Nothing more goes to the other process after this.
pub(super) async fn tell(node: Arc<DeviceNode>, outbox: mpsc::Sender<Parcel>, mut over: oneshot::Receiver<()>) {
    let mut is_over = false;
    loop {
        let news = node.state().jobs.news();
        for bytes in news {
            // With the names of so many nodes the report would be too large.
            if bytes.len() > BROADCAST_BYTES_MAX {
                continue;
            }
            let state = HandedState::Broadcast { bytes: bytes.len() };
            if outbox.send(Parcel { state, bytes, sockets: Vec::new() }).await.is_err() {
                return;
            }
        }
        if is_over {
            return;
        }
        is_over = tokio::select! {
            // Nothing is ever sent: the other end is dropped.
            _ = &mut over => true,
            () = sleep(TELL_EVERY) => false,
        };
        if is_over {
            node.state().jobs.settle();
        }
    }
}
