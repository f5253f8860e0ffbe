//! Follows etcd as long as there is a receiver: lists, watches, and begins again after every failure.
//!
//! [`super::follower`] decides the next step; this module performs it. The receiver may be slow: then the watch is not
//! read, and etcd buffers the events.

use super::Etcd;
use super::error::EtcdError;
use super::follower::{Follower, FollowerEvent};
use super::watch::EtcdWatchEvent;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::mpsc::Sender;
use tokio::time::sleep;

/// Why following has ended, or must begin again.
enum FollowEnd {
    Failed(EtcdError),
    /// The receiver is gone.
    Unheard,
}

/// Follows etcd until the receiver is dropped.
pub async fn follow(etcd: Arc<Etcd>, sender: Sender<FollowerEvent>) {
    tokio::select! {
        () = sender.closed() => {}
        () = follow_on(&etcd, &sender) => {}
    }
}

async fn follow_on(etcd: &Etcd, sender: &Sender<FollowerEvent>) {
    let mut follower = Follower::default();
    loop {
        let error = match run(etcd, &mut follower, sender).await {
            Err(FollowEnd::Failed(error)) => error,
            Err(FollowEnd::Unheard) => return,
        };
        if let EtcdError::Replaced { why } = &error {
            tracing::warn!(why, "etcd: its history is not the one that was followed; reading everything again");
        }
        tracing::debug!(%error, "etcd: following is interrupted");
        let (told, pause) = follower.failed(&error, rand::random());
        if send_event(sender, told).await.is_err() {
            return;
        }
        sleep(pause).await;
    }
}

async fn run(etcd: &Etcd, follower: &mut Follower, sender: &Sender<FollowerEvent>) -> Result<Infallible, FollowEnd> {
    let (at, cluster) = match follower.position() {
        Some(position) => {
            etcd.must_have(&position).await?;
            (position.revision, position.cluster)
        }
        None => {
            let listed = etcd.list().await?;
            let at = (listed.snapshot.revision, listed.cluster);
            let told = follower.listed(listed.snapshot, listed.cluster);
            send_event(sender, Some(told)).await?;
            at
        }
    };
    let mut watch = etcd.watch(at, cluster).await?;
    send_event(sender, follower.watching()).await?;
    loop {
        match watch.next().await? {
            EtcdWatchEvent::Batch(batch) => send_event(sender, follower.batch(batch)).await?,
            EtcdWatchEvent::Progress(revision) => {
                follower.progress(revision);
                send_event(sender, Some(FollowerEvent::Heard { revision })).await?;
            }
            EtcdWatchEvent::Heard(revision) => send_event(sender, Some(FollowerEvent::Heard { revision })).await?,
        }
    }
}

async fn send_event(sender: &Sender<FollowerEvent>, told: Option<FollowerEvent>) -> Result<(), FollowEnd> {
    match told {
        Some(told) => sender.send(told).await.map_err(|_| FollowEnd::Unheard),
        None => Ok(()),
    }
}

impl From<EtcdError> for FollowEnd {
    fn from(error: EtcdError) -> FollowEnd {
        FollowEnd::Failed(error)
    }
}
