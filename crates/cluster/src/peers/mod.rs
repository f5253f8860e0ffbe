//! Requests from node to node: HTTP/2, one connection from each node to each other one, flow-controlled.
//!
//! Over TLS both sides present a certificate of the same roots with their node's name: another certificate of these
//! roots is not enough. Without TLS both ends are on one machine. Connections that have not proved to be a node's have few places
//! and little time ([`slots`]).
//!
//! A request is a POST with its kind as path and the sender's name in a field; 200 means that the node has processed
//! it, 421 that its subject is not there (any more), 503 that another process of the node takes over. A connection that
//! does not answer a ping is given up, so that requests on it do not wait for a hanging node.

mod client;
mod slots;

use bytes::{Bytes, BytesMut};
pub use client::Peers;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Request, Response, StatusCode};
pub use slots::PeerRefusals;
use slots::{PeerSlot, PeerSlots};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stillgate_devices::directory::Members;
use stillgate_tls::{client_verifier, server_verifier};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::NoServerSessionStorage;
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

/// The field with the name of the requesting node.
const NODE_FIELD: &str = "stillgate-node";

/// Unread bytes in flight on one stream and on a whole connection.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// Concurrent requests of one node. More wait at the sender, or are [`CallError::Busy`].
const REQUESTS_MAX: u32 = 10_000;

/// A request of another node.
#[derive(Debug, Clone)]
pub struct Call {
    /// Its name.
    pub from: Arc<str>,
    /// The kind of request: letters.
    pub kind: Box<str>,
    /// The body.
    pub body: Bytes,
}

/// The answer to a [`Call`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerReply {
    /// It was processed, with this result.
    Taken(Bytes),
    /// Its subject is not here.
    Moved,
    /// Its subject is not here, but may be in the process that takes over from this one: repeat it on another
    /// connection.
    Leaving,
}

/// Why a call has no [`PeerReply`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallError {
    /// The node has not received the request, and will not.
    Unreachable,
    /// It was not sent: the peer already had as many requests in flight as it accepts.
    Busy,
    /// The node may have received it: the connection or the time ended before its answer.
    Lost,
}

/// Answers the requests to a node.
pub type Handler = Arc<dyn Fn(Call) -> ReplyFuture + Send + Sync>;

/// A future answer.
pub type ReplyFuture = Pin<Box<dyn Future<Output = PeerReply> + Send>>;

// The identity of peers: a certificate of the peers' own roots with the node's name in it, on both
// sides.

const HTTP2: &[u8] = b"h2";

/// This node's certificate, and the roots of all peers.
#[derive(Debug, Clone)]
pub struct PeerTls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

/// Why it cannot be used.
#[derive(Debug)]
pub enum PeerTlsError {
    /// The certificate, its key or the roots are unusable.
    Unusable(Box<dyn std::error::Error + Send + Sync>),
    /// The certificate does not carry the node's name.
    OtherName {
        /// The node's name.
        node: Box<str>,
    },
}

impl PeerTls {
    /// Checks that the certificate is this node's.
    pub fn new(
        node: &str,
        certificates: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        roots: RootCertStore,
    ) -> Result<PeerTls, PeerTlsError> {
        let unusable = |error: Box<dyn std::error::Error + Send + Sync>| PeerTlsError::Unusable(error);
        if !certificates.first().is_some_and(|certificate| carries(certificate, node)) {
            return Err(PeerTlsError::OtherName { node: node.into() });
        }
        let roots = Arc::new(roots);
        let verifier = client_verifier(roots.clone()).map_err(|error| unusable(error.into()))?;
        let mut server = ServerConfig::builder_with_protocol_versions(&[&TLS13])
            .with_client_cert_verifier(verifier)
            .with_single_cert(certificates.clone(), key.clone_key())
            .map_err(|error| unusable(error.into()))?;
        server.alpn_protocols = vec![HTTP2.to_vec()];
        // A resumed session would outlive the peer's certificate, which is verified in full handshakes only.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let verifier = server_verifier(roots).map_err(|error| unusable(error.into()))?;
        let mut client = ClientConfig::builder_with_protocol_versions(&[&TLS13])
            // "Dangerous" is rustls's word for a verifier that is not its own; this one wraps it.
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_auth_cert(certificates, key)
            .map_err(|error| unusable(error.into()))?;
        client.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(PeerTls { client: Arc::new(client), server: Arc::new(server) })
    }
}

/// Whether a certificate carries a node's name.
fn carries(certificate: &CertificateDer<'_>, node: &str) -> bool {
    let Ok(name) = ServerName::try_from(node) else { return false };
    webpki::EndEntityCert::try_from(certificate).is_ok_and(|it| it.verify_is_valid_for_subject_name(&name).is_ok())
}

impl fmt::Display for PeerTlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerTlsError::Unusable(error) => write!(f, "{error}"),
            PeerTlsError::OtherName { node } => {
                let kind = match ServerName::try_from(&**node) {
                    Ok(ServerName::IpAddress(_)) => "IP address",
                    _ => "DNS name",
                };
                write!(f, "the certificate does not carry the node's name; add the {kind} {node:?} to it")
            }
        }
    }
}

impl std::error::Error for PeerTlsError {}

// The server side.

/// How long a connection has to prove that it is a node's, and how often one is looked at again for which that is not certain.
const PROOF_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a node that is not known yet waits until the nodes are read again: others share the reading.
const READING_PAUSE: Duration = Duration::from_millis(200);
/// The pause after an error of accepting, for example for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The nodes that this one knows.
#[derive(Debug, Clone)]
pub struct KnownNodes {
    /// Nodes that are alive.
    pub members: Arc<Members>,
    /// Whether there are no others. Not while the directory does not answer, or is being filled.
    pub is_all: bool,
}

/// Finds the known nodes. Given a time, they are read again, unless they were since then.
pub type NodeLookup = Arc<dyn Fn(Option<Instant>) -> NodesFuture + Send + Sync>;

/// Future nodes.
pub type NodesFuture = Pin<Box<dyn Future<Output = KnownNodes> + Send>>;

/// Settings of a server for peers.
#[derive(Clone)]
pub struct PeerServerSettings {
    /// Without it only peers on this machine are served.
    pub tls: Option<PeerTls>,
    /// The longest body of a request.
    pub body_bytes_max: usize,
    /// Answers the requests.
    pub handler: Handler,
    /// The nodes whose connections have places of their own.
    pub nodes: NodeLookup,
    /// Counts connections that are not those of nodes.
    pub refusals: Arc<PeerRefusals>,
}

/// Serves peers. When `leaving` completes, another process accepts them, and connected ones are served further.
pub async fn serve(listener: TcpListener, served: PeerServerSettings, leaving: impl Future<Output = ()>) {
    let mut leaving = std::pin::pin!(leaving);
    let (serves, served_until) = watch::channel(());
    let mut connections = JoinSet::new();
    let slots = PeerSlots::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = &mut leaving => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let place = slots.take(peer.ip());
                connections.spawn(connection((stream, peer), served.clone(), served_until.clone(), place));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections of peers");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop((listener, serves));
    while connections.join_next().await.is_some() {}
}

async fn connection(
    (stream, peer): (TcpStream, SocketAddr),
    served: PeerServerSettings,
    until: watch::Receiver<()>,
    (slot, evicted): (PeerSlot, oneshot::Receiver<()>),
) {
    let mut identity = PeerIdentity { slot, certificate: None, claimed: None, begun: Instant::now() };
    let ended = tokio::select! {
        ended = answer_connection(stream, peer.ip().is_loopback(), (&served, until), &mut identity) => ended,
        _ = evicted => Err(io::Error::other("too many connections; newer ones have its place")),
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection of a peer has ended");
        if !identity.slot.is_node() {
            served.refusals.add(peer, &error);
        }
    }
}

/// Which node a connection is of, as far as it has proved it.
struct PeerIdentity {
    slot: PeerSlot,
    /// `None` without TLS.
    certificate: Option<CertificateDer<'static>>,
    /// The name in its requests, which its certificate carries.
    claimed: Option<Arc<str>>,
    begun: Instant,
}

impl PeerIdentity {
    /// Whether it may use this name.
    fn carries(&self, node: &str) -> bool {
        self.certificate.as_ref().is_none_or(|certificate| carries(certificate, node))
    }

    /// Looks for it among nodes; returns whether it is one.
    fn find(&mut self, members: &Members) -> bool {
        let is_own = |node: &str| match (&self.certificate, &self.claimed) {
            (Some(certificate), _) => carries(certificate, node),
            (None, claimed) => claimed.as_deref() == Some(node),
        };
        let found = members.iter().map(|(node, _)| node).find(|node| is_own(node));
        if let Some(node) = found {
            self.slot.prove(&node.into());
        }
        found.is_some()
    }

    /// Checks that it is a node's, or may be one's: a node may have begun that is not in the directory that was read, and
    /// the directory may not answer.
    async fn check(&mut self, served: &PeerServerSettings) -> io::Result<()> {
        if self.find(&(served.nodes)(None).await.members) {
            return Ok(());
        }
        let since = Instant::now();
        sleep(READING_PAUSE).await;
        let KnownNodes { members, is_all } = (served.nodes)(Some(since)).await;
        match self.find(&members) || !is_all {
            true => Ok(()),
            false => Err(io::Error::other("its certificate carries the name of no node in the directory")),
        }
    }
}

async fn answer_connection(
    stream: TcpStream,
    is_local: bool,
    served: (&PeerServerSettings, watch::Receiver<()>),
    identity: &mut PeerIdentity,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let Some(tls) = &served.0.tls else {
        if !is_local {
            return Err(io::Error::other("without TLS peers must be on this machine"));
        }
        return answer_requests(stream, served, identity).await;
    };
    let deadline = identity.begun + PROOF_TIMEOUT;
    let stream = timeout_at(deadline.into(), TlsAcceptor::from(tls.server.clone()).accept(stream)).await??;
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let Some(certificate) = certificates.first().map(|certificate| certificate.clone().into_owned()) else {
        return Err(io::Error::other("no certificate"));
    };
    identity.certificate = Some(certificate);
    identity.check(served.0).await?;
    answer_requests(stream, served, identity).await
}

async fn answer_requests(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    (served, mut until): (&PeerServerSettings, watch::Receiver<()>),
    identity: &mut PeerIdentity,
) -> io::Result<()> {
    let mut builder = h2::server::Builder::new();
    builder.initial_window_size(STREAM_WINDOW_BYTES).initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    builder.max_concurrent_streams(REQUESTS_MAX);
    let mut check_at = identity.begun + PROOF_TIMEOUT;
    let handshake = timeout_at(check_at.into(), builder.handshake(stream)).await?;
    let mut connection = handshake.map_err(io::Error::other)?;
    let mut requests = JoinSet::new();
    let mut is_leaving = false;
    loop {
        let accepted = tokio::select! {
            accepted = connection.accept() => accepted,
            Some(_) = requests.join_next() => continue,
            // New requests of the peer must go to the other process.
            Err(_) = until.changed(), if !is_leaving => {
                is_leaving = true;
                connection.graceful_shutdown();
                continue;
            }
            () = sleep_until(check_at.into()), if !identity.slot.is_node() => {
                if identity.claimed.is_none() {
                    return Err(io::Error::other("it has not requested anything as a node"));
                }
                identity.check(served).await?;
                check_at = Instant::now() + PROOF_TIMEOUT;
                continue;
            }
        };
        let Some(accepted) = accepted else { return Ok(()) };
        let (request, answer) = accepted.map_err(io::Error::other)?;
        let name = request.headers().get(NODE_FIELD).and_then(|name| name.to_str().ok()).unwrap_or_default();
        let node = match &identity.claimed {
            Some(known) if **known == *name => known.clone(),
            _ if identity.carries(name) => identity.claimed.insert(name.into()).clone(),
            _ => {
                requests.spawn(refuse(request, answer, served.body_bytes_max));
                continue;
            }
        };
        if !identity.slot.is_node() {
            identity.find(&(served.nodes)(None).await.members);
        }
        requests.spawn(answer_request(request, answer, node, served.clone()));
    }
}

/// Reads the request first: a stream that ends before its request was read may lose its answer.
async fn refuse(request: Request<RecvStream>, mut answer: SendResponse<Bytes>, bytes_max: usize) {
    let _unread = read(request.into_body(), bytes_max).await;
    respond(&mut answer, StatusCode::FORBIDDEN, "the certificate does not carry this node's name".into());
}

async fn answer_request(
    request: Request<RecvStream>,
    mut answer: SendResponse<Bytes>,
    from: Arc<str>,
    served: PeerServerSettings,
) {
    let (head, body) = request.into_parts();
    let kind = head.uri.path().trim_start_matches('/').into();
    let Some(body) = read(body, served.body_bytes_max).await else {
        return respond(&mut answer, StatusCode::PAYLOAD_TOO_LARGE, "longer than this node accepts".into());
    };
    match (served.handler)(Call { from, kind, body }).await {
        PeerReply::Taken(body) => respond(&mut answer, StatusCode::OK, body),
        PeerReply::Moved => respond(&mut answer, StatusCode::MISDIRECTED_REQUEST, Bytes::new()),
        PeerReply::Leaving => respond(&mut answer, StatusCode::SERVICE_UNAVAILABLE, Bytes::new()),
    }
}

async fn read(mut body: RecvStream, bytes_max: usize) -> Option<Bytes> {
    let mut whole = BytesMut::new();
    while let Some(part) = body.data().await {
        let part = part.ok()?;
        body.flow_control().release_capacity(part.len()).ok()?;
        whole.extend_from_slice(&part);
        if whole.len() > bytes_max {
            return None;
        }
    }
    Some(whole.freeze())
}

fn respond(answer: &mut SendResponse<Bytes>, status: StatusCode, body: Bytes) {
    let mut response = Response::new(());
    *response.status_mut() = status;
    // If the connection has ended, the request has ended, too.
    let _ended = answer.send_response(response, body.is_empty()).and_then(|mut stream| match body.is_empty() {
        true => Ok(()),
        false => stream.send_data(body, true),
    });
}
