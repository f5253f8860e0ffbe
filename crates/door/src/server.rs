//! The server of the Admin API and of the device API: accepts connections, answers their requests, and ends them at a shutdown.
//!
//! Everything is bounded, since its address may be reachable for others: connections, a connection's age, the time for a head.

use crate::access::Peer;
use crate::connection_slots::{ConnectionSlots, accept};
use crate::large_answers::LargeAnswers;
use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use stillgate_tls::rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower::Service;
use tracing::{debug, warn};

/// Time for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);

/// Time for a connection without a request to send one, once the server ends.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Time for a kept connection to send another request, once another process accepts the new ones: a request in flight would be lost
/// if its connection were closed. Its answer says that the connection ends.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for all connections to end, once the server ends.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum size of a request's head, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Answers requests, each with a [`Peer`] in its extensions.
pub trait Answers: Clone + Send + Sync + 'static {
    /// The response to a request.
    fn answer(&self, request: Request<Body>) -> impl Future<Output = Response<Body>> + Send;
}

impl Answers for Router {
    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        // A router is always ready.
        let Ok(answer) = self.clone().call(request).await;
        answer
    }
}

/// The parts that every connection needs.
#[derive(Clone)]
pub struct Server<A> {
    /// The endpoints, behind their guard.
    pub answers: A,
    /// `None`: plain HTTP.
    pub tls: Option<Arc<ServerConfig>>,
    /// Bounds on connections.
    pub bounds: Bounds,
}

/// Bounds on the use of the address.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Its name in the log.
    pub name: &'static str,
    /// Time for a request's head to arrive, on a new connection as on one that is kept.
    pub head: Duration,
    /// Maximum age: after this a connection gets no further request, so that no client holds a place for good.
    pub age: Duration,
    /// Time for a connection to finish, once it is too old or the server ends.
    pub end: Duration,
    /// The address is meant for traffic.
    pub is_wide: bool,
}

impl Bounds {
    /// Bounds of the admin API.
    pub const ADMIN: Bounds = Bounds {
        name: "admin API",
        head: Duration::from_secs(3),
        age: Duration::from_secs(300),
        end: Duration::from_secs(5),
        is_wide: false,
    };
}

/// A running server.
#[derive(Debug)]
pub struct RunningServer {
    accepting: AbortHandle,
    /// Whether connections are to end.
    ending: watch::Sender<ServerState>,
    /// Closed when no connection is left.
    open: mpsc::Receiver<Infallible>,
    name: &'static str,
}

/// The state of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServerState {
    Serving,
    /// Another process accepts, and clients go on with their requests there.
    Leaving,
    /// The server stops, and no other process takes over.
    Over,
}

/// What the connections of a running server share.
#[derive(Clone)]
struct ServerParts {
    is_ending: watch::Receiver<ServerState>,
    large: LargeAnswers,
}

/// Serves until it is ended, or with the runtime.
pub fn serve(listener: TcpListener, server: Server<impl Answers>) -> RunningServer {
    let (ending, is_ending) = watch::channel(ServerState::Serving);
    let (is_open, open) = mpsc::channel(1);
    let name = server.bounds.name;
    let accepting = async move {
        let large = LargeAnswers::default();
        let slots = if server.bounds.is_wide { ConnectionSlots::wide() } else { ConnectionSlots::default() };
        accept(&listener, &slots, server.bounds.name, |stream, peer, place| {
            let (server, is_open) = (server.clone(), is_open.clone());
            let of_server = ServerParts { is_ending: is_ending.clone(), large: large.clone() };
            tokio::spawn(async move {
                serve_stream(stream, peer, server, of_server).await;
                drop((place, is_open));
            });
        })
        .await;
    };
    RunningServer { accepting: tokio::spawn(accepting).abort_handle(), ending, open, name }
}

impl RunningServer {
    /// Ends accepting, when another process does that.
    pub fn accept_handle(&self) -> AbortHandle {
        self.accepting.clone()
    }

    /// Accepts no more, and ends each connection with the answer that it waits for, or with the next one.
    pub fn leave(&self) {
        self.accepting.abort();
        self.ending.send_replace(ServerState::Leaving);
    }

    /// Answers requests that have arrived or are about to, on open connections.
    pub async fn end(mut self) {
        self.accepting.abort();
        self.ending.send_if_modified(|ending| {
            // A server that is already leaving stays so.
            let is_serving = *ending == ServerState::Serving;
            if is_serving {
                *ending = ServerState::Over;
            }
            is_serving
        });
        if timeout(END_TIMEOUT, self.open.recv()).await.is_err() {
            warn!("{}: requests were cut off because they took too long", self.name);
        }
    }
}

async fn serve_stream(stream: TcpStream, peer: SocketAddr, server: Server<impl Answers>, of_server: ServerParts) {
    let Server { answers, tls, bounds } = server;
    let Some(tls) = tls else { return serve_connection(stream, peer, answers, bounds, of_server).await };
    match timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(tls).accept(stream)).await {
        Ok(Ok(stream)) => serve_connection(stream, peer, answers, bounds, of_server).await,
        Ok(Err(error)) => debug!(%peer, %error, "{}: TLS handshake failed", bounds.name),
        Err(_) => debug!(%peer, "{}: TLS handshake took too long", bounds.name),
    }
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    peer: SocketAddr,
    answers: impl Answers,
    bounds: Bounds,
    of_server: ServerParts,
) {
    let ServerParts { is_ending, large } = of_server;
    let (asked, is_asked) = watch::channel(false);
    let (answers, server, large) = (&answers, &is_ending.clone(), &large);
    let service = service_fn(|request: Request<Incoming>| {
        asked.send_replace(true);
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(Peer(peer.ip()));
        let answer = answers.answer(request);
        async move {
            let mut answer = large.admit(answer.await);
            if *server.borrow() == ServerState::Leaving {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(bounds.head)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), service)
    );
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = wait_until_over(bounds.age, is_ending, is_asked) => {
            connection.as_mut().graceful_shutdown();
            // A connection that does not even end in this time is dropped, which closes it.
            timeout(bounds.end, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        debug!(%peer, %error, "{}: connection failed", bounds.name);
    }
}

/// Waits until a connection is too old, or until the server ends and the connection has had a request: its client may have sent the
/// first one already, and would get no answer. When the server leaves, each client gets some time: the next answer carries
/// `Connection: close`.
async fn wait_until_over(
    age: Duration,
    mut is_ending: watch::Receiver<ServerState>,
    mut is_asked: watch::Receiver<bool>,
) {
    let ends = async {
        // A server that is gone has ended.
        let ending = is_ending.wait_for(|ending| *ending != ServerState::Serving).await;
        if ending.is_ok_and(|ending| *ending == ServerState::Leaving) {
            return sleep(LINGER_TIMEOUT).await;
        }
        let _ = timeout(FIRST_REQUEST_TIMEOUT, is_asked.wait_for(|is_asked| *is_asked)).await;
    };
    tokio::select! {
        () = sleep(age) => {}
        () = ends => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use std::io::{Read, Write};
    use std::net::TcpStream as Client;
    use stillgate_testkit::PATIENCE;
    use tokio::task::spawn_blocking;

    #[tokio::test]
    async fn a_connection_may_ask_again_and_its_peer_is_known() {
        let who = |peer: axum::Extension<Peer>| async move { peer.0.0.to_string() };
        let router = Router::new().route("/", get(who));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = Client::connect(listener.local_addr().unwrap()).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let peer = "192.0.2.1:5000".parse().unwrap();
        let (_ending, is_ending) = watch::channel(ServerState::Serving);
        let serving = tokio::spawn(serve_connection(
            stream,
            peer,
            router,
            Bounds::ADMIN,
            ServerParts { is_ending, large: LargeAnswers::default() },
        ));
        for more in ["", "Connection: close\r\n"] {
            write!(client, "GET / HTTP/1.1\r\nHost: gateway\r\n{more}\r\n").unwrap();
        }
        let read = spawn_blocking(move || {
            let mut answer = String::new();
            client.read_to_string(&mut answer).map(|_| answer)
        });
        let answer = read.await.unwrap().unwrap();
        assert_eq!(
            (answer.matches("HTTP/1.1 200 OK").count(), answer.matches("192.0.2.1").count()),
            (2, 2),
            "{answer}"
        );
        serving.await.unwrap();
    }

    /// A client that has connected may have sent something already, and one that has sent a request waits for an answer.
    #[tokio::test]
    async fn at_the_end_nobody_is_left_without_an_answer() {
        let (begun, mut has_begun) = watch::channel(false);
        let (release, is_released) = watch::channel(false);
        let slow = move || {
            let (begun, mut is_released) = (begun.clone(), is_released.clone());
            async move {
                begun.send_replace(true);
                is_released.wait_for(|is_released| *is_released).await.unwrap();
                "done"
            }
        };
        let server = Server { answers: Router::new().route("/", get(slow)), tls: None, bounds: Bounds::ADMIN };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = serve(listener, server);
        let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(address).unwrap()).collect();
        let ask = |client: &mut Client| write!(client, "GET / HTTP/1.1\r\nHost: gateway\r\n\r\n").unwrap();
        // The last one is served when all are accepted.
        ask(&mut clients[2]);
        has_begun.wait_for(|has_begun| *has_begun).await.unwrap();
        let ending = tokio::spawn(serving.end());
        tokio::task::yield_now().await;
        ask(&mut clients[1]);
        release.send_replace(true);
        let read = |mut client: Client| {
            spawn_blocking(move || {
                client.set_read_timeout(Some(PATIENCE)).unwrap();
                let mut answer = String::new();
                client.read_to_string(&mut answer).map(|_| answer).unwrap()
            })
        };
        let mut answers = Vec::new();
        for client in clients {
            answers.push(read(client).await.unwrap());
        }
        assert!(answers[0].is_empty() && answers[1].ends_with("done") && answers[2].ends_with("done"), "{answers:?}");
        ending.await.unwrap();
    }

    /// A client that has kept its connection may be sending on it while its server leaves.
    #[tokio::test]
    async fn who_is_left_learns_it_with_the_next_answer() {
        let router = Router::new().route("/", get(|| async { "done" }));
        let server = Server { answers: router, tls: None, bounds: Bounds::ADMIN };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = Client::connect(listener.local_addr().unwrap()).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let serving = serve(listener, server);
        let ask = async || {
            let mut client = client.try_clone().unwrap();
            write!(client, "GET / HTTP/1.1\r\nHost: gateway\r\n\r\n").unwrap();
            let read = move || {
                let mut answer = vec![0; 1024];
                let mut len = 0;
                while !answer[..len].ends_with(b"done") {
                    len += client.read(&mut answer[len..]).unwrap();
                }
                String::from_utf8(answer[..len].to_vec()).unwrap().to_lowercase()
            };
            spawn_blocking(read).await.unwrap()
        };
        assert!(!ask().await.contains("connection: close"));
        serving.leave();
        // The workers may have ended; the connection is still open.
        let ending = tokio::spawn(serving.end());
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(ask().await.contains("connection: close"));
        assert_eq!(spawn_blocking(move || client.read(&mut [0; 1]).unwrap()).await.unwrap(), 0);
        ending.await.unwrap();
    }
}
