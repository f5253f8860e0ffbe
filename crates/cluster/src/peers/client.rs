//! The client side: a connection to each peer, made when needed.

use super::PeerTls;
use super::{CONNECTION_WINDOW_BYTES, CallError, NODE_FIELD, PeerReply, REQUESTS_MAX, STREAM_WINDOW_BYTES};
use bytes::{Bytes, BytesMut};
use h2::client::SendRequest;
use h2::{Ping, PingPong, Reason, RecvStream};
use http::{Request, StatusCode};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// Timeout of a connection, its handshakes and the first pong.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_000);
/// How long a failure to connect is remembered.
const FAILURE_KEPT: Duration = Duration::from_millis(250);
/// The shortest interval between log lines about one peer that cannot be reached.
const FAILURES_LOGGED_EVERY: Duration = Duration::from_secs(10);
const PING_INTERVAL: Duration = Duration::from_millis(1_500);
/// A hanging node is detected within this and the interval: before its lease ends.
const PING_TIMEOUT: Duration = Duration::from_millis(2_000);
/// The longest answer.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The connections of one node to others. Clones share them.
#[derive(Clone)]
pub struct Peers {
    shared: Arc<SharedPeers>,
}

struct SharedPeers {
    node: Box<str>,
    tls: Option<PeerTls>,
    /// By node, one entry per past or present member. The inner lock is held while a connection is made, so other
    /// callers wait for it.
    links: Mutex<HashMap<Box<str>, Arc<tokio::sync::Mutex<PeerLink>>>>,
    /// The number of connections made.
    count: AtomicU64,
}

#[derive(Default)]
enum PeerLink {
    #[default]
    None,
    Open {
        address: Box<str>,
        open: OpenLink,
        connection: AbortHandle,
    },
    /// Remembered, so that waiting callers do not each try again.
    Failed {
        address: Box<str>,
        at: Instant,
        logged: Instant,
    },
}

/// A connection, for all its callers.
#[derive(Clone)]
struct OpenLink {
    requests: SendRequest<Bytes>,
    /// A number that no other connection of this process has.
    serial: u64,
    /// Permits for as many requests as the peer accepts. h2 would queue more, and would not report which of those it
    /// has sent.
    room: Arc<Semaphore>,
}

/// A permit for one request on a connection.
struct RequestPermit {
    requests: SendRequest<Bytes>,
    serial: u64,
    _room: OwnedSemaphorePermit,
}

impl Peers {
    /// The peers of this node. Without TLS only peers on this machine can be reached.
    pub fn new(node: &str, tls: Option<PeerTls>) -> Peers {
        Peers {
            shared: Arc::new(SharedPeers { node: node.into(), tls, links: Mutex::default(), count: AtomicU64::new(0) }),
        }
    }

    /// Sends a request to a node. `kind` is a word. At most half of `patience` is spent waiting for a connection with
    /// room.
    pub async fn call(
        &self,
        (node, address): (&str, &str),
        kind: &str,
        body: Bytes,
        patience: Duration,
    ) -> Result<PeerReply, CallError> {
        let request = Request::post(format!("/{kind}")).header(NODE_FIELD, &*self.shared.node).body(());
        let request = request.map_err(|_| CallError::Unreachable)?;
        let until = Instant::now() + patience;
        let mut turn = self.turn(node, address, until - patience / 2).await?;
        let asked = async {
            let (answer, mut stream) =
                turn.requests.send_request(request, false).map_err(|_| CallError::Unreachable)?;
            stream.send_data(body, true).map_err(|error| call_error_of(&error))?;
            let answer = answer.await.map_err(|error| call_error_of(&error))?;
            let status = answer.status();
            let body = read(answer.into_body()).await?;
            Ok((status, body))
        };
        let (status, body) = timeout_at(until.into(), asked).await.unwrap_or(Err(CallError::Lost))?;
        match status {
            StatusCode::OK => Ok(PeerReply::Taken(body)),
            StatusCode::MISDIRECTED_REQUEST => Ok(PeerReply::Moved),
            StatusCode::SERVICE_UNAVAILABLE => {
                self.leave(node, turn.serial).await;
                Ok(PeerReply::Leaving)
            }
            status => {
                tracing::warn!(node, %status, "a peer refused a request: {}", String::from_utf8_lossy(&body));
                Err(CallError::Unreachable)
            }
        }
    }

    /// A connection that accepts a request now.
    async fn turn(&self, node: &str, address: &str, until: Instant) -> Result<RequestPermit, CallError> {
        // If it has just ended, it is made again once.
        for _ in 0..2 {
            let OpenLink { requests, serial, room } = self.link(node, address).await?;
            let room = timeout_at(until.into(), room.acquire_owned()).await.map_err(|_| CallError::Busy)?;
            // The semaphore is never closed.
            let Ok(room) = room else { return Err(CallError::Unreachable) };
            match timeout_at(until.into(), requests.ready()).await {
                Ok(Ok(requests)) => return Ok(RequestPermit { requests, serial, _room: room }),
                Ok(Err(_)) => self.leave(node, serial).await,
                Err(_) => break,
            }
        }
        Err(CallError::Unreachable)
    }

    /// Gives up the connection for new requests; requests in flight are still answered on it.
    async fn leave(&self, node: &str, serial: u64) {
        let link = self.shared.links.lock().expect("no holder panics").get(node).cloned();
        let Some(link) = link else { return };
        let mut link = link.lock().await;
        // Another request may have given it up already, and a third may have made a new one.
        if matches!(&*link, PeerLink::Open { open, .. } if open.serial == serial) {
            *link = PeerLink::None;
        }
    }

    /// The number of connected peers.
    pub fn connected(&self) -> usize {
        let links = self.shared.links.lock().expect("no holder panics");
        // A locked one is being made.
        let is_open = |link: &Arc<tokio::sync::Mutex<PeerLink>>| {
            link.try_lock()
                .is_ok_and(|link| matches!(&*link, PeerLink::Open { connection, .. } if !connection.is_finished()))
        };
        links.values().filter(|link| is_open(link)).count()
    }

    async fn link(&self, node: &str, address: &str) -> Result<OpenLink, CallError> {
        let link = self.shared.links.lock().expect("no holder panics").entry(node.into()).or_default().clone();
        let mut link = link.lock().await;
        match &*link {
            PeerLink::Open { address: known, open, connection } if **known == *address && !connection.is_finished() => {
                return Ok(open.clone());
            }
            PeerLink::Failed { address: known, at, .. } if **known == *address && at.elapsed() < FAILURE_KEPT => {
                return Err(CallError::Unreachable);
            }
            PeerLink::Open { connection, .. } => connection.abort(),
            PeerLink::Failed { .. } | PeerLink::None => {}
        }
        let logged = match &*link {
            PeerLink::Failed { logged, .. } => Some(*logged),
            _ => None,
        };
        // In case this is dropped halfway.
        *link = PeerLink::None;
        let made = timeout(CONNECT_TIMEOUT, self.connect(node, address)).await;
        match made.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok((requests, connection)) => {
                let serial = self.shared.count.fetch_add(1, Relaxed);
                let open = OpenLink { requests, serial, room: Arc::new(Semaphore::new(REQUESTS_MAX as usize)) };
                *link = PeerLink::Open { address: address.into(), open: open.clone(), connection };
                Ok(open)
            }
            Err(error) => {
                let now = Instant::now();
                let logged = logged.filter(|logged| now.duration_since(*logged) < FAILURES_LOGGED_EVERY);
                if logged.is_none() {
                    tracing::warn!(node, address, %error, "a peer cannot be reached");
                }
                *link = PeerLink::Failed { address: address.into(), at: now, logged: logged.unwrap_or(now) };
                Err(CallError::Unreachable)
            }
        }
    }

    async fn connect(&self, node: &str, address: &str) -> io::Result<(SendRequest<Bytes>, AbortHandle)> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        match &self.shared.tls {
            None if !stream.peer_addr()?.ip().is_loopback() => {
                Err(io::Error::other("without TLS peers must be on this machine"))
            }
            None => open(stream).await,
            Some(tls) => {
                let name = ServerName::try_from(node.to_owned()).map_err(io::Error::other)?;
                open(TlsConnector::from(tls.client.clone()).connect(name, stream).await?).await
            }
        }
    }
}

async fn open(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> io::Result<(SendRequest<Bytes>, AbortHandle)> {
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(STREAM_WINDOW_BYTES).initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    builder.enable_push(false);
    let (requests, mut connection) = builder.handshake(stream).await.map_err(io::Error::other)?;
    let mut pings = connection.ping_pong().ok_or_else(|| io::Error::other("no pings"))?;
    let (pong, is_there) = tokio::sync::oneshot::channel();
    let task = tokio::spawn(async move {
        tokio::select! {
            _ended = connection => {}
            () = keep_alive(&mut pings, pong) => {}
        }
    });
    // The kernel of a stopped process accepts connections. Nothing is sent before the node has answered a ping.
    match is_there.await {
        Ok(()) => Ok((requests, task.abort_handle())),
        Err(_) => Err(io::Error::other("the peer does not answer")),
    }
}

/// Ends when the peer does not answer any more.
async fn keep_alive(pings: &mut PingPong, first: tokio::sync::oneshot::Sender<()>) {
    if pings.ping(Ping::opaque()).await.is_err() || first.send(()).is_err() {
        return;
    }
    loop {
        sleep(PING_INTERVAL).await;
        if !matches!(timeout(PING_TIMEOUT, pings.ping(Ping::opaque())).await, Ok(Ok(_))) {
            return;
        }
    }
}

async fn read(mut body: RecvStream) -> Result<Bytes, CallError> {
    let mut whole = BytesMut::new();
    while let Some(part) = body.data().await {
        let part = part.map_err(|_| CallError::Lost)?;
        body.flow_control().release_capacity(part.len()).map_err(|_| CallError::Lost)?;
        whole.extend_from_slice(&part);
        if whole.len() > ANSWER_BYTES_MAX {
            return Err(CallError::Lost);
        }
    }
    Ok(whole.freeze())
}

/// Whether a failed request may have been processed (RFC 9113 section 8.7).
fn call_error_of(error: &h2::Error) -> CallError {
    // A GOAWAY is an error only for streams after the last one that the peer has processed.
    let is_unseen = error.is_go_away() && error.is_remote();
    match error.reason() {
        Some(Reason::REFUSED_STREAM) => CallError::Unreachable,
        Some(Reason::NO_ERROR) if is_unseen => CallError::Unreachable,
        _ => CallError::Lost,
    }
}
