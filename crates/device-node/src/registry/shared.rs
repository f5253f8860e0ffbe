//! A directory that nodes share, and the way to the other nodes.

use super::NotConnected;
use bytes::Bytes;
use std::fmt;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;
use stillgate_cluster::peers::{Handler, PeerTls};
use stillgate_cluster::registry::{Directory, DirectorySettings, FormerDirectory, RedisAddress};
use stillgate_cluster::{Cluster, ClusterSettings, SendError, Watch};
use stillgate_devices::directory::DeliveryError;

/// The fields of a request besides its message, which may be in base64.
const WORDS_BYTES_MAX: usize = 64 * 1024;
/// Maximum size of cached look-ups, in bytes.
const LOOKUP_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The settings for taking part.
pub(crate) struct RegistrySettings {
    pub(crate) node: String,
    pub(crate) redis: RedisAddress,
    pub(crate) listener: TcpListener,
    /// The address for other nodes.
    pub(crate) advertise: String,
    pub(crate) tls: Option<PeerTls>,
    /// Directory of the process that this one follows.
    pub(crate) former: Option<FormerDirectory>,
    pub(crate) message_bytes_max: usize,
    /// Answers requests of other nodes.
    pub(crate) answers: Handler,
    /// Closes a connection that was replaced on another node.
    pub(crate) close: Arc<dyn Fn(u64) + Send + Sync>,
}

/// The directory and the peers of one node.
pub(crate) struct SharedRegistry {
    cluster: Cluster,
}

/// Why a device's node has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerSilence {
    /// No request was sent to it.
    Gone(NotConnected),
    /// Not sent: its node already has as many requests in flight as it takes.
    Busy,
    /// The request was sent, and the connection or the time ended first.
    Lost,
}

impl SharedRegistry {
    /// Begins, on the current runtime.
    pub(crate) fn start(sharing: RegistrySettings) -> io::Result<SharedRegistry> {
        let listener = tokio::net::TcpListener::from_std(sharing.listener)?;
        let cluster = Cluster::start(ClusterSettings {
            directory: DirectorySettings {
                node: sharing.node.into(),
                address: sharing.advertise.into(),
                former: sharing.former,
                redis: sharing.redis,
                lookup_bytes_max: LOOKUP_BYTES_MAX,
            },
            tls: sharing.tls,
            listener: Some(listener),
            body_bytes_max: 2 * sharing.message_bytes_max + WORDS_BYTES_MAX,
            handler: sharing.answers,
            close: sharing.close,
        });
        Ok(SharedRegistry { cluster: cluster.map_err(io::Error::other)? })
    }

    pub(super) fn directory(&self) -> &Directory {
        self.cluster.directory()
    }

    pub(crate) fn watch(&self) -> Watch {
        self.cluster.watch()
    }

    pub(super) fn leave(&self) {
        self.cluster.leave();
    }

    pub(super) async fn end(&self) {
        self.cluster.end().await;
    }

    /// Sends a request to the node of a device that was not here a moment ago.
    pub(crate) async fn ask(
        &self,
        device: &str,
        kind: &str,
        body: Bytes,
        patience: Duration,
    ) -> Result<Bytes, PeerSilence> {
        let gone = match self.cluster.send(device, kind, body, patience).await {
            Ok(answer) => return Ok(answer),
            Err(SendError::Lost) => return Err(PeerSilence::Lost),
            Err(SendError::Busy) => return Err(PeerSilence::Busy),
            Err(SendError::Unsent(DeliveryError::NeverSeen)) => NotConnected::Unknown,
            Err(SendError::Unsent(DeliveryError::Offline { last_seen_ms })) => NotConnected::Offline { last_seen_ms },
            Err(SendError::Unsent(DeliveryError::Moved | DeliveryError::Unknown)) => NotConnected::Away,
        };
        Err(PeerSilence::Gone(gone))
    }

    /// Sends a request to every other node: its name, and its answer if it sends one.
    pub(crate) async fn ask_all(&self, kind: &str, body: Bytes, patience: Duration) -> Vec<(Arc<str>, Option<Bytes>)> {
        self.cluster.ask_all(kind, body, patience).await
    }

    /// Sends a request to every other node for something that one of them has: the first answer.
    pub(crate) async fn ask_any(&self, kind: &str, body: Bytes, patience: Duration) -> Option<Bytes> {
        self.cluster.ask_any(kind, body, patience).await.map(|(_, answer)| answer)
    }
}

impl fmt::Debug for SharedRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.directory().fmt(f)
    }
}
