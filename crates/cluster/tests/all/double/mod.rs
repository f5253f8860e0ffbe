//! Nodes with simulated devices: connections are a list, and a message is answered with itself.

#![allow(dead_code, reason = "each test file uses its part")]

use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use stillgate_cluster::peers::{Call, Handler, PeerReply, PeerTls, ReplyFuture};
use stillgate_cluster::registry::{DirectorySettings, FormerDirectory, RedisAddress};
use stillgate_cluster::{Cluster, ClusterSettings, SendError};
use stillgate_devices::directory::{ConnectOutcome, DeliveryError, DirectoryUnavailable, Duplicate};
pub(crate) use stillgate_testkit::PATIENCE;
use stillgate_testkit::{Redis, is_nightly};
use tokio::net::TcpListener;

/// How long a message waits for the answer of the device's node.
pub(crate) const MESSAGE_PATIENCE: Duration = PATIENCE;

/// A device that accepts a message and never acknowledges it.
pub(crate) const SILENT: &str = "silent";

static CONNECTIONS: AtomicU64 = AtomicU64::new(1);

/// Devices and their connections.
type Devices = Arc<Mutex<BTreeMap<Box<str>, u64>>>;

pub(crate) struct Node {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) devices: Devices,
    /// The number of accepted messages.
    pub(crate) taken: Arc<AtomicU64>,
    /// This many requests are answered as by a process that is being replaced.
    pub(crate) leaving: Arc<AtomicU64>,
}

pub(crate) fn address_of(redis: &Redis) -> RedisAddress {
    RedisAddress { urls: vec![redis.url(0)], is_cluster: false, ca_pem: None }
}

impl Node {
    /// Starts a node, and waits until the directory lists it.
    pub(crate) async fn start(name: &str, redis: &RedisAddress) -> Node {
        Node::start_with(name, redis, None, None).await
    }

    pub(crate) async fn start_with(
        name: &str,
        redis: &RedisAddress,
        tls: Option<PeerTls>,
        former: Option<FormerDirectory>,
    ) -> Node {
        let node = Node::begin(name, redis, tls, former).await;
        eventually("the node to be listed", || node.cluster.directory().members().get(name).is_some()).await;
        node
    }

    /// Starts a node that the directory may not list.
    pub(crate) async fn begin(
        name: &str,
        redis: &RedisAddress,
        tls: Option<PeerTls>,
        former: Option<FormerDirectory>,
    ) -> Node {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string().into();
        let (devices, [taken, leaving]) = (Devices::default(), [(); 2].map(|()| Arc::new(AtomicU64::new(0))));
        let closing = devices.clone();
        let settings = ClusterSettings {
            directory: DirectorySettings {
                node: name.into(),
                address,
                former,
                redis: redis.clone(),
                lookup_bytes_max: 1_000_000,
            },
            tls,
            listener: Some(listener),
            body_bytes_max: 100_000,
            handler: handler(devices.clone(), taken.clone(), leaving.clone()),
            close: Arc::new(move |connection| closing.lock().unwrap().retain(|_, it| *it != connection)),
        };
        Node { cluster: Arc::new(Cluster::start(settings).unwrap()), devices, taken, leaving }
    }

    pub(crate) async fn connect(&self, device: &str) -> Result<ConnectOutcome, DirectoryUnavailable> {
        self.connect_as(device, Duplicate::Replace).await
    }

    pub(crate) async fn connect_as(
        &self,
        device: &str,
        duplicate: Duplicate,
    ) -> Result<ConnectOutcome, DirectoryUnavailable> {
        let connection = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        let connected = self.cluster.directory().connect(&device.into(), connection, duplicate).await;
        if !matches!(connected, Ok(ConnectOutcome::Occupied { .. })) {
            self.devices.lock().unwrap().insert(device.into(), connection);
        }
        connected
    }

    pub(crate) fn disconnect(&self, device: &str) {
        let connection = self.devices.lock().unwrap().remove(device).unwrap();
        self.cluster.directory().disconnect(&device.into(), connection);
    }

    pub(crate) fn has(&self, device: &str) -> bool {
        self.devices.lock().unwrap().contains_key(device)
    }

    pub(crate) async fn send(&self, device: &str) -> Result<Bytes, SendError> {
        let body = Bytes::copy_from_slice(device.as_bytes());
        self.cluster.send(device, "message", body, MESSAGE_PATIENCE).await
    }

    /// Connects a device and waits until it is registered: on a busy machine the directory may not answer in time.
    pub(crate) async fn register(&self, device: &str) {
        if !matches!(self.connect(device).await, Ok(ConnectOutcome::Current { .. })) {
            self.await_registered().await;
        }
    }

    /// Sends a message until its device accepts it. It is repeated if it was not sent: on a busy machine a directory or
    /// a node may not answer in time.
    pub(crate) async fn deliver(&self, device: &str) -> Bytes {
        let begun = Instant::now();
        loop {
            match self.send(device).await {
                Ok(answer) => return answer,
                Err(SendError::Unsent(DeliveryError::Unknown)) => {}
                Err(other) => panic!("{device}: {other:?}"),
            }
            assert!(begun.elapsed() < PATIENCE, "{device} cannot be reached");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Sends a message until its device is known.
    pub(crate) async fn send_until_known(&self, device: &str) -> Result<Bytes, SendError> {
        let begun = Instant::now();
        let mut sent = self.send(device).await;
        while sent == Err(SendError::Unsent(DeliveryError::Unknown)) {
            assert!(begun.elapsed() < PATIENCE, "{device} is still unknown");
            tokio::time::sleep(Duration::from_millis(20)).await;
            sent = self.send(device).await;
        }
        sent
    }

    /// Waits until all its devices are registered.
    pub(crate) async fn await_registered(&self) {
        eventually("all to be registered", || self.cluster.directory().pending_count() == 0).await;
    }
}

fn handler(devices: Devices, taken: Arc<AtomicU64>, leaving: Arc<AtomicU64>) -> Handler {
    Arc::new(move |call: Call| -> ReplyFuture {
        if leaving.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
            return Box::pin(async { PeerReply::Leaving });
        }
        let device = String::from_utf8(call.body.to_vec()).unwrap();
        if !devices.lock().unwrap().contains_key(&*device) {
            return Box::pin(async { PeerReply::Moved });
        }
        taken.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            if device.starts_with(SILENT) {
                std::future::pending::<()>().await;
            }
            PeerReply::Taken(call.body)
        })
    })
}

/// Checks a promised time, which only holds if a node gets the CPU time it needs; only the nightly run can be sure of
/// that.
#[track_caller]
pub(crate) fn check_promised(what: &str, took: Duration, promised: Duration) {
    println!("{what} took {took:?}");
    assert!(!is_nightly() || took < promised, "{what} took {took:?}, not {promised:?}");
}

/// Waits for a condition, and lets the nodes continue meanwhile.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "timed out waiting for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
