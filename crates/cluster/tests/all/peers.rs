//! Requests from node to node: which certificates are accepted, and the caller's errors when the other side is absent,
//! hangs or ends.

use bytes::Bytes;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use stillgate_cluster::peers::{
    Call, CallError, KnownNodes, NodeLookup, PeerRefusals, PeerReply, PeerServerSettings, PeerTls, PeerTlsError, Peers,
    ReplyFuture, serve,
};
use stillgate_devices::directory::Members;
use stillgate_testkit::PATIENCE;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

/// Answers with the caller's name, the kind and the body.
async fn start(tls: Option<PeerTls>) -> (SocketAddr, JoinHandle<()>) {
    let (address, server, _) = start_among(tls, nodes(&[], false)).await;
    (address, server)
}

/// The nodes that a server knows.
fn nodes(names: &'static [&'static str], is_all: bool) -> NodeLookup {
    Arc::new(move |_| {
        let members = names.iter().map(|name| ((*name).into(), "".into()));
        let members = Arc::new(Members::from_predecessor(members));
        Box::pin(std::future::ready(KnownNodes { members, is_all }))
    })
}

/// Like [`start`], with these nodes.
async fn start_among(tls: Option<PeerTls>, nodes: NodeLookup) -> (SocketAddr, JoinHandle<()>, Arc<PeerRefusals>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let handler = |call: Call| -> ReplyFuture {
        Box::pin(async move {
            match &*call.kind {
                "moved" => PeerReply::Moved,
                "leaving" => {
                    // The body is the delay in milliseconds.
                    let after_ms = std::str::from_utf8(&call.body).unwrap().parse().unwrap();
                    tokio::time::sleep(Duration::from_millis(after_ms)).await;
                    PeerReply::Leaving
                }
                "never" => std::future::pending().await,
                kind => {
                    let head = format!("{} {kind} ", call.from);
                    PeerReply::Taken([head.as_bytes(), &call.body].concat().into())
                }
            }
        })
    };
    let refusals = Arc::new(PeerRefusals::default());
    let (handler, counted) = (Arc::new(handler), refusals.clone());
    let served = PeerServerSettings { tls, body_bytes_max: 1_000_000, handler, nodes, refusals };
    (address, tokio::spawn(serve(listener, served, std::future::pending())), counted)
}

struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap() }
    }

    fn tls(&self, node: &str, name: &str) -> Result<PeerTls, PeerTlsError> {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        PeerTls::new(node, vec![certificate.der().clone()], key, roots)
    }
}

async fn call(peers: &Peers, node: &str, address: SocketAddr, kind: &str) -> Result<PeerReply, CallError> {
    peers.call((node, &address.to_string()), kind, "x".into(), PATIENCE).await
}

fn taken(text: &str) -> Result<PeerReply, CallError> {
    Ok(PeerReply::Taken(Bytes::copy_from_slice(text.as_bytes())))
}

#[tokio::test]
async fn peers_on_one_machine_need_no_tls() {
    let (address, _server) = start(None).await;
    let peers = Peers::new("a", None);
    assert_eq!(call(&peers, "b", address, "message").await, taken("a message x"));
    assert_eq!(call(&peers, "b", address, "moved").await, Ok(PeerReply::Moved));
    let large = Bytes::from(vec![7; 900_000]);
    let Ok(PeerReply::Taken(answer)) = peers.call(("b", &address.to_string()), "m", large.clone(), PATIENCE).await
    else {
        panic!("more than a window");
    };
    assert_eq!(answer[4..], large);
    let too_large = Bytes::from(vec![7; 1_000_001]);
    let refused = peers.call(("b", &address.to_string()), "m", too_large, PATIENCE).await;
    assert_eq!(refused, Err(CallError::Unreachable));
}

#[tokio::test]
async fn a_thousand_requests_share_a_connection() {
    let (address, _server) = start(None).await;
    let peers = Peers::new("a", None);
    let calls: Vec<_> = (0..1_000)
        .map(|_| {
            let peers = peers.clone();
            tokio::spawn(async move { call(&peers, "b", address, "message").await })
        })
        .collect();
    for answer in calls {
        assert_eq!(answer.await.unwrap(), taken("a message x"));
    }
}

/// More than a server ever had places for.
const FLOOD: usize = 1_500;

#[tokio::test]
async fn connections_that_say_nothing_lock_no_node_out() {
    let authority = Authority::new();
    let b = authority.tls("b", "b").unwrap();
    let (address, _server, refusals) = start_among(Some(b), nodes(&["a", "c"], true)).await;
    let a = Peers::new("a", Some(authority.tls("a", "a").unwrap()));
    assert_eq!(call(&a, "b", address, "message").await, taken("a message x"));
    let mut flood = Vec::new();
    for _ in 0..FLOOD {
        flood.push(TcpStream::connect(address).await.unwrap());
    }
    // The first node was connected before; the second has just started.
    assert_eq!(call(&a, "b", address, "message").await, taken("a message x"));
    let c = Peers::new("c", Some(authority.tls("c", "c").unwrap()));
    assert_eq!(call(&c, "b", address, "message").await, taken("c message x"));
    // Their places are few, and their time is short.
    let begun = Instant::now();
    while refusals.count() < FLOOD as u64 {
        assert!(begun.elapsed() < PATIENCE, "only {} were closed", refusals.count());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(call(&c, "b", address, "message").await, taken("c message x"));
}

#[tokio::test]
async fn a_certificate_of_no_node_gets_no_connection() {
    let authority = Authority::new();
    let b = authority.tls("b", "b").unwrap();
    let (address, _server, refusals) = start_among(Some(b), nodes(&["a"], true)).await;
    let stranger = Peers::new("stranger", Some(authority.tls("stranger", "stranger").unwrap()));
    assert_eq!(call(&stranger, "b", address, "message").await, Err(CallError::Unreachable));
    assert_eq!(refusals.count(), 1);
    // While not all nodes are known, it may be one.
    let b = authority.tls("b", "b").unwrap();
    let (address, _server, _) = start_among(Some(b), nodes(&["a"], false)).await;
    assert_eq!(call(&stranger, "b", address, "message").await, taken("stranger message x"));
}

/// Concurrent requests that a peer accepts.
const REQUESTS_MAX: usize = 10_000;

#[tokio::test]
async fn more_requests_than_a_peer_takes_wait_or_are_refused() {
    let (address, _server) = start(None).await;
    let (peers, address) = (Peers::new("a", None), address.to_string());
    let call = |kind: &'static str, patience| {
        let (peers, address) = (peers.clone(), address.clone());
        tokio::spawn(async move { peers.call(("b", &address), kind, "x".into(), patience).await })
    };
    let never: Vec<_> = (0..REQUESTS_MAX).map(|_| call("never", 5 * PATIENCE)).collect();
    // It comes after all of them.
    let refused = call("message", Duration::from_millis(600));
    let waits = call("message", 5 * PATIENCE);
    assert_eq!(refused.await.unwrap(), Err(CallError::Busy), "nothing of it was sent, as reported");
    never.iter().take(10).for_each(JoinHandle::abort);
    assert_eq!(waits.await.unwrap(), taken("a message x"));
    never.iter().for_each(JoinHandle::abort);
}

#[tokio::test]
async fn a_connection_is_left_once() {
    let (server, _server) = start(None).await;
    let (address, connections) = counting(server).await;
    let peers = Peers::new("a", None);
    let leaving = |after_ms: &'static str| {
        let (peers, address) = (peers.clone(), address.to_string());
        tokio::spawn(async move { peers.call(("b", &address), "leaving", after_ms.into(), PATIENCE).await })
    };
    assert_eq!(call(&peers, "b", address, "message").await, taken("a message x"));
    let (soon, late) = (leaving("50"), leaving("500"));
    assert_eq!(soon.await.unwrap(), Ok(PeerReply::Leaving));
    assert_eq!(call(&peers, "b", address, "message").await, taken("a message x"));
    // It was sent over the first connection: the second stays.
    assert_eq!(late.await.unwrap(), Ok(PeerReply::Leaving));
    assert_eq!(call(&peers, "b", address, "message").await, taken("a message x"));
    assert_eq!(connections.load(Ordering::Relaxed), 2);
}

/// A relay to a server that counts its connections.
async fn counting(server: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = count.clone();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let mut server = TcpStream::connect(server).await.unwrap();
                // Either side may end first.
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    (address, count)
}

#[tokio::test]
async fn a_certificate_carries_its_node_s_name() {
    let (ours, other) = (Authority::new(), Authority::new());
    assert!(matches!(ours.tls("a", "b"), Err(PeerTlsError::OtherName { .. })));
    let (address, _server) = start(Some(ours.tls("b", "b").unwrap())).await;
    let a = Peers::new("a", Some(ours.tls("a", "a").unwrap()));
    assert_eq!(call(&a, "b", address, "message").await, taken("a message x"));
    // The right roots, but another node answers there.
    assert_eq!(call(&a, "c", address, "message").await, Err(CallError::Unreachable));
    // A node that uses another's name.
    let liar = Peers::new("c", Some(ours.tls("a", "a").unwrap()));
    assert_eq!(call(&liar, "b", address, "message").await, Err(CallError::Unreachable));
    let stranger = Peers::new("a", Some(other.tls("a", "a").unwrap()));
    assert_eq!(call(&stranger, "b", address, "message").await, Err(CallError::Unreachable));
    assert_eq!(call(&Peers::new("a", None), "b", address, "message").await, Err(CallError::Unreachable));
    let (plain, _server) = start(None).await;
    assert_eq!(call(&a, "b", plain, "message").await, Err(CallError::Unreachable));
}

#[tokio::test]
async fn what_is_in_flight_when_a_peer_ends_is_lost() {
    let (address, server) = start(None).await;
    let peers = Peers::new("a", None);
    let in_flight = {
        let peers = peers.clone();
        tokio::spawn(async move { call(&peers, "b", address, "never").await })
    };
    assert_eq!(call(&peers, "b", address, "message").await, taken("a message x"));
    let ended = Instant::now();
    server.abort();
    assert_eq!(in_flight.await.unwrap(), Err(CallError::Lost));
    assert!(ended.elapsed() < PATIENCE / 2, "not when time is over: {:?}", ended.elapsed());
    assert_eq!(call(&peers, "b", address, "message").await, Err(CallError::Unreachable));
    // It comes back at the same address.
    let listener = TcpListener::bind(address).await.unwrap();
    let handler = |_: Call| -> ReplyFuture { Box::pin(async { PeerReply::Taken("again".into()) }) };
    let _server = tokio::spawn(serve(
        listener,
        PeerServerSettings {
            tls: None,
            body_bytes_max: 1_000,
            handler: Arc::new(handler),
            nodes: nodes(&[], false),
            refusals: Arc::default(),
        },
        std::future::pending(),
    ));
    let mut answer = call(&peers, "b", address, "message").await;
    while answer == Err(CallError::Unreachable) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        answer = call(&peers, "b", address, "message").await;
    }
    assert_eq!(answer, taken("again"));
}

#[tokio::test]
async fn nothing_is_sent_to_a_peer_that_does_not_answer() {
    // Like a stopped process, whose kernel accepts.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let begun = Instant::now();
    let peers = Peers::new("a", None);
    const CALLS: u64 = 50;
    let calls: Vec<_> = (0..CALLS)
        .map(|_| {
            let peers = peers.clone();
            tokio::spawn(async move { call(&peers, "b", address, "message").await })
        })
        .collect();
    for answer in calls {
        assert_eq!(answer.await.unwrap(), Err(CallError::Unreachable));
    }
    // One after the other they would wait a second each.
    assert!(begun.elapsed() < Duration::from_secs(CALLS), "they wait together: {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_peer_that_hangs_is_given_up() {
    let (address, _server) = start(None).await;
    let (between, hang) = through(address).await;
    let peers = Peers::new("a", None);
    assert_eq!(call(&peers, "b", between, "message").await, taken("a message x"));
    hang.send(()).unwrap();
    let begun = Instant::now();
    assert_eq!(call(&peers, "b", between, "message").await, Err(CallError::Lost));
    assert!(begun.elapsed() < PATIENCE / 2, "not when time is over: {:?}", begun.elapsed());
}

/// A relay to a server that can be paused.
async fn through(server: SocketAddr) -> (SocketAddr, tokio::sync::oneshot::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (hang, hangs) = tokio::sync::oneshot::channel::<()>();
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut server = TcpStream::connect(server).await.unwrap();
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
            _ = hangs => {}
        }
        std::future::pending::<()>().await;
    });
    (address, hang)
}
