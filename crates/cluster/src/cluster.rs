//! Routes a message to the node that has its device, using the directory and the peers.

use crate::peers::{
    Call, CallError, Handler, KnownNodes, NodeLookup, PeerRefusals, PeerReply, PeerServerSettings, PeerTls, Peers,
    serve,
};
use crate::registry::{Directory, DirectorySettings, FormerDirectory, Hooks, StoreAddressError};
use bytes::Bytes;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use stillgate_devices::directory::{DeliveryError, DeliveryStep, Location, MessageRoute, Rejection};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Timeout of the question to peers whether they have a device.
const HAVE_PATIENCE: Duration = Duration::from_millis(500);
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);
/// Most queued requests to close connections on other nodes. If there are more, a node finds out when it registers them again.
const CLOSES_MAX: usize = 10_000;
/// How many of these requests are sent concurrently.
const CLOSING_MAX: usize = 64;
/// How often a request is tried, with a second in between: a node that is unreachable for longer finds out by itself.
const CLOSE_TRIES_MAX: usize = 30;
const CLOSE_PAUSE: Duration = Duration::from_secs(1);
/// The pause before a request is repeated to a node whose process is being replaced.
const LEAVING_PAUSE: Duration = Duration::from_millis(20);

/// How long an ending process waits for the directory, and how often it checks.
const END_PATIENCE: Duration = Duration::from_secs(2);
const END_LOOK: Duration = Duration::from_millis(10);

/// Requests that the cluster answers itself.
const HAVE: &str = "have";
const CLOSE: &str = "close";

/// The settings and callbacks of a node.
pub struct ClusterSettings {
    /// Settings of its directory.
    pub directory: DirectorySettings,
    /// Its identity to its peers.
    pub tls: Option<PeerTls>,
    /// The listener for its peers.
    pub listener: Option<TcpListener>,
    /// The longest body of their requests.
    pub body_bytes_max: usize,
    /// Answers requests of any kind except `have` and `close`, from peers and from itself.
    pub handler: Handler,
    /// Closes a connection whose device has a newer one. Must not wait.
    pub close: Arc<dyn Fn(u64) + Send + Sync>,
}

/// One node of the cluster. Its tasks end with it.
pub struct Cluster {
    directory: Directory,
    peers: Peers,
    refusals: Arc<PeerRefusals>,
    handler: Handler,
    /// Dropped when another process accepts the peers; `None` if one already does.
    accepting: Mutex<Option<oneshot::Sender<()>>>,
    _tasks: JoinSet<()>,
}

/// A read-only view of the cluster for others than its owner.
#[derive(Clone)]
pub struct Watch {
    directory: Directory,
    peers: Peers,
    refusals: Arc<PeerRefusals>,
}

/// Why a request got no answer from its device's node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendError {
    /// It has not reached its device, and will not.
    Unsent(DeliveryError),
    /// It was not sent: too many requests to that node are already in flight.
    Busy,
    /// It may have reached the device (504): the connection to the node or the time ended first.
    Lost,
}

impl Cluster {
    /// Starts it on the current runtime.
    pub fn start(settings: ClusterSettings) -> Result<Cluster, StoreAddressError> {
        let ClusterSettings { directory, tls, listener, body_bytes_max, handler, close } = settings;
        let directory = Directory::new(directory)?;
        let peers = Peers::new(directory.node(), tls.clone());
        let (closes, to_close) = mpsc::channel(CLOSES_MAX);
        let close_here = close.clone();
        let hooks = Hooks {
            close: Box::new(move |connection| close_here(connection)),
            close_there: Box::new(move |device, place| {
                if closes.try_send((device, place)).is_err() {
                    tracing::warn!("too many connections to close on other nodes; they find out by themselves");
                }
            }),
        };
        let refusals = Arc::new(PeerRefusals::default());
        let (accepting, leaving) = oneshot::channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(directory.clone().run(hooks));
        tasks.spawn(close_there(directory.clone(), peers.clone(), to_close));
        if let Some(listener) = listener {
            // Completes when the sender is dropped.
            let leaving = async { drop(leaving.await) };
            let handler = directory_handler(directory.clone(), close, handler.clone());
            let (nodes, refusals) = (known_nodes(directory.clone()), refusals.clone());
            let served = PeerServerSettings { tls, body_bytes_max, handler, nodes, refusals };
            tasks.spawn(serve(listener, served, leaving));
        }
        let accepting = Mutex::new(Some(accepting));
        Ok(Cluster { directory, peers, refusals, handler, accepting, _tasks: tasks })
    }

    /// The directory, to connect and disconnect devices.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// A view that can be used on another thread.
    pub fn watch(&self) -> Watch {
        Watch { directory: self.directory.clone(), peers: self.peers.clone(), refusals: self.refusals.clone() }
    }

    /// Another process of this node takes over: it holds the lease and accepts the peers. Existing connections stay.
    pub fn leave(&self) {
        self.directory.leave();
        self.accepting.lock().expect("no holder panics").take();
    }

    /// Ends the process's part: reports pending changes to the directory, and releases the node's lease.
    pub async fn end(&self) {
        let told = async {
            while self.directory.pending_count() > 0 && !self.directory.is_away() {
                sleep(END_LOOK).await;
            }
        };
        // Devices that were not reported in time count as offline anyway once the lease is released.
        let _told = timeout(END_PATIENCE, told).await;
        let _released = timeout(END_PATIENCE, self.directory.release()).await;
    }

    /// Sends a request to every node but this one; returns their names and answers. `None` for a node without an
    /// answer.
    pub async fn ask_all(&self, kind: &str, body: Bytes, patience: Duration) -> Vec<(Arc<str>, Option<Bytes>)> {
        self.ask_others(kind, &body, patience).join_all().await
    }

    /// Like [`Cluster::ask_all`], but returns the first answer, for questions that only one node can answer.
    pub async fn ask_any(&self, kind: &str, body: Bytes, patience: Duration) -> Option<(Arc<str>, Bytes)> {
        let mut asked = self.ask_others(kind, &body, patience);
        while let Some(answer) = asked.join_next().await {
            if let Ok((node, Some(answer))) = answer {
                return Some((node, answer));
            }
        }
        None
    }

    fn ask_others(&self, kind: &str, body: &Bytes, patience: Duration) -> JoinSet<(Arc<str>, Option<Bytes>)> {
        let mut asked = JoinSet::new();
        for (node, member) in self.directory.members().iter().filter(|(node, _)| *node != self.directory.node()) {
            let (peers, kind, body) = (self.peers.clone(), kind.to_owned(), body.clone());
            let (node, address): (Arc<str>, Box<str>) = (node.into(), member.address.clone());
            asked.spawn(async move {
                let answer = match address.is_empty() {
                    true => None,
                    false => ask_one(&peers, (&node, &address), &kind, body, patience).await,
                };
                (node, answer)
            });
        }
        asked
    }

    /// Sends a request to the node of this name, and returns its answer.
    pub async fn call(&self, node: &str, kind: &str, body: Bytes, patience: Duration) -> Result<PeerReply, CallError> {
        if node == self.directory.node() {
            return Ok(self.ask_myself(kind, body).await);
        }
        let members = self.directory.members();
        let Some(member) = members.get(node).filter(|member| !member.address.is_empty()) else {
            return Err(CallError::Unreachable);
        };
        self.peers.call((node, &member.address), kind, body, patience).await
    }

    /// Sends a request to the node that has a device, and returns that node's answer. `patience` is the timeout for
    /// that node.
    pub async fn send(&self, device: &str, kind: &str, body: Bytes, patience: Duration) -> Result<Bytes, SendError> {
        let (mut sending, mut step) = self.directory.step(|view| MessageRoute::begin(device, view));
        loop {
            step = match step {
                DeliveryStep::LookUp => {
                    let entry = self.directory.look_up(device).await;
                    self.directory.step(|view| sending.on_entry(entry, view))
                }
                DeliveryStep::ReadMembers => {
                    let read = self.directory.read_members().await;
                    self.directory.step(|view| sending.members_read(read, view))
                }
                DeliveryStep::AskPeers => {
                    let found = self.who_has(device).await;
                    self.directory.step(|view| sending.peers_asked(found, view))
                }
                DeliveryStep::Send { node } => {
                    let why = match self.call(&node, kind, body.clone(), patience).await {
                        Ok(PeerReply::Taken(answer)) => return Ok(answer),
                        Ok(PeerReply::Moved) => Rejection::Moved,
                        Ok(PeerReply::Leaving) | Err(CallError::Unreachable) => Rejection::Unreachable,
                        Err(CallError::Busy) => return Err(SendError::Busy),
                        Err(CallError::Lost) => return Err(SendError::Lost),
                    };
                    self.directory.step(|view| sending.on_rejection(why, node, view))
                }
                DeliveryStep::Answer(unsent) => return Err(SendError::Unsent(unsent)),
            };
        }
    }

    /// Sends a question to all peers at once: whether they have a device.
    async fn who_has(&self, device: &str) -> Option<Arc<str>> {
        let found = self.ask_any(HAVE, Bytes::copy_from_slice(device.as_bytes()), HAVE_PATIENCE).await;
        found.map(|(node, _)| node)
    }

    async fn ask_myself(&self, kind: &str, body: Bytes) -> PeerReply {
        (self.handler)(Call { from: self.directory.node().into(), kind: kind.into(), body }).await
    }
}

impl Watch {
    /// The state that a process taking over from this one begins with.
    pub fn former(&self) -> FormerDirectory {
        self.directory.former()
    }

    /// Whether the last command to the directory was answered.
    pub fn is_up(&self) -> bool {
        !self.directory.is_away()
    }

    /// Why the directory cannot be used; `None` if it can, or if nothing was sent yet.
    pub fn error(&self) -> Option<Box<str>> {
        self.directory.error()
    }

    /// The number of commands sent to Redis so far.
    pub fn commands(&self) -> u64 {
        self.directory.commands()
    }

    /// Connects and disconnects that were not reported to the directory yet.
    pub fn pending_count(&self) -> usize {
        self.directory.pending_count()
    }

    /// Nodes whose lease has not ended, this one included.
    pub fn nodes(&self) -> usize {
        self.directory.members().iter().count()
    }

    /// Connections at the address for peers that were closed, as they did not prove to be a node's.
    pub fn refused_peers(&self) -> u64 {
        self.refusals.count()
    }

    /// Nodes that this one is connected to.
    pub fn peers(&self) -> usize {
        self.peers.connected()
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.directory.fmt(f)
    }
}

/// Sends a request to a node, and repeats it while one process replaces another there.
async fn ask_one(peers: &Peers, to: (&str, &str), kind: &str, body: Bytes, patience: Duration) -> Option<Bytes> {
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match peers.call(to, kind, body.clone(), left).await {
            Ok(PeerReply::Taken(answer)) => return Some(answer),
            Ok(PeerReply::Leaving) if left > LEAVING_PAUSE => sleep(LEAVING_PAUSE).await,
            _ => return None,
        }
    }
}

/// The nodes in the directory, for the server of peers.
fn known_nodes(directory: Directory) -> NodeLookup {
    Arc::new(move |since| {
        let directory = directory.clone();
        Box::pin(async move {
            let is_read = match since {
                Some(since) => directory.read_members_since(since).await.is_ok(),
                None => false,
            };
            let members = directory.members();
            KnownNodes { is_all: is_read && members.is_complete(), members }
        })
    })
}

/// Answers requests about the directory, and passes on the others.
fn directory_handler(directory: Directory, close: Arc<dyn Fn(u64) + Send + Sync>, node: Handler) -> Handler {
    Arc::new(move |call| match &*call.kind {
        HAVE => {
            let has = std::str::from_utf8(&call.body).is_ok_and(|device| directory.has(device));
            ready(match has {
                true => PeerReply::Taken(Bytes::new()),
                false if directory.may_have_devices_elsewhere() => PeerReply::Leaving,
                false => PeerReply::Moved,
            })
        }
        CLOSE => {
            let connection = read_close(&call.body, directory.node())
                .and_then(|(device, place)| directory.close_superseded(&device, &place));
            if let Some(connection) = connection {
                close(connection);
            }
            ready(PeerReply::Taken(Bytes::new()))
        }
        _ => node(call),
    })
}

fn ready(reply: PeerReply) -> crate::peers::ReplyFuture {
    Box::pin(std::future::ready(reply))
}

/// Requests other nodes to close connections.
async fn close_there(directory: Directory, peers: Peers, mut to_close: mpsc::Receiver<(Arc<str>, Location)>) {
    let mut closing = JoinSet::new();
    loop {
        tokio::select! {
            Some((device, place)) = to_close.recv(), if closing.len() < CLOSING_MAX => {
                closing.spawn(close_one(directory.clone(), peers.clone(), device, place));
            }
            Some(_) = closing.join_next() => {}
            else => return,
        }
    }
}

async fn close_one(directory: Directory, peers: Peers, device: Arc<str>, place: Location) {
    let body: Bytes = format!("{} {} {device}", place.epoch, place.connection).into();
    for _ in 0..CLOSE_TRIES_MAX {
        let members = directory.members();
        // A node whose lease has ended registers everything again, and finds out.
        let Some(member) = members.get(&place.node).filter(|member| !member.address.is_empty()) else { return };
        let asked = peers.call((&place.node, &member.address), CLOSE, body.clone(), CLOSE_PATIENCE).await;
        if asked.is_ok() {
            return;
        }
        sleep(CLOSE_PAUSE).await;
    }
    tracing::warn!(node = %place.node, "a node could not be reached to close a connection; it finds out by itself");
}

fn read_close(body: &[u8], node: &str) -> Option<(Box<str>, Location)> {
    let mut parts = std::str::from_utf8(body).ok()?.splitn(3, ' ');
    let (epoch, connection) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some((parts.next()?.into(), Location { node: node.into(), epoch, connection }))
}
