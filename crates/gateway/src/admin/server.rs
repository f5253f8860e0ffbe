//! The server of the admin address, on the control thread; what takes long is done on another. What there is to ask is in the
//! crate `admin`, and in `pages`.
//!
//! Everything is bounded, since this address may be reachable for others: connections, a connection's age, the time for a head.

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
use stillgate_admin::Peer;
use stillgate_exporter::{ConnectionSlots, accept};
use stillgate_tls::rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower::Service;
use tracing::{debug, warn};

/// Within this a TLS handshake has to be done.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);

/// What a connection without a request gets to send one in, once the server ends.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// What a kept connection gets to send another request in, once another process accepts the new ones: a request that is on its way
/// when its connection is closed would be lost. Its answer says that the connection ends.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// What all connections get to end in, once the server ends.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Answers requests, each with a [`Peer`] in its extensions.
pub(crate) trait Answers: Clone + Send + Sync + 'static {
    fn answer(&self, request: Request<Body>) -> impl Future<Output = Response<Body>> + Send;
}

impl Answers for Router {
    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        // A router is always ready.
        let Ok(answer) = self.clone().call(request).await;
        answer
    }
}

/// What every connection needs.
#[derive(Clone)]
pub(crate) struct Server<A> {
    pub(crate) answers: A,
    /// `None`: HTTP is spoken.
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) bounds: Bounds,
}

/// How much of it anybody may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// What it is called in the log.
    pub(crate) name: &'static str,
    /// Within this a request's head has to be there, on a new connection as on one that is kept.
    pub(crate) head: Duration,
    /// After this a connection gets no further request, so that nobody holds a place for good.
    pub(crate) age: Duration,
    /// What a connection has to finish in, once it is too old or the server ends.
    pub(crate) end: Duration,
    /// It is there for traffic.
    pub(crate) is_wide: bool,
}

impl Bounds {
    /// Of the admin API.
    pub(crate) const ADMIN: Bounds = Bounds {
        name: "admin API",
        head: Duration::from_secs(3),
        age: Duration::from_secs(300),
        end: Duration::from_secs(5),
        is_wide: false,
    };
}

/// A server that runs.
#[derive(Debug)]
pub(crate) struct Serving {
    accepting: AbortHandle,
    /// Whether connections are to end.
    ending: watch::Sender<Ending>,
    /// Closed when no connection is left.
    open: mpsc::Receiver<Infallible>,
    name: &'static str,
}

/// How far a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Serving,
    /// Another process accepts, and clients go on with their requests there.
    Leaving,
    /// The server stops, and no other process takes over.
    Over,
}

/// Serves until it is ended, or with the runtime.
pub(crate) fn serve(listener: TcpListener, server: Server<impl Answers>) -> Serving {
    let (ending, is_ending) = watch::channel(Ending::Serving);
    let (is_open, open) = mpsc::channel(1);
    let name = server.bounds.name;
    let accepting = async move {
        let slots = if server.bounds.is_wide { ConnectionSlots::wide() } else { ConnectionSlots::default() };
        accept(&listener, &slots, server.bounds.name, |stream, peer, place| {
            let (server, is_ending, is_open) = (server.clone(), is_ending.clone(), is_open.clone());
            tokio::spawn(async move {
                serve_stream(stream, peer, server, is_ending).await;
                drop((place, is_open));
            });
        })
        .await;
    };
    Serving { accepting: tokio::spawn(accepting).abort_handle(), ending, open, name }
}

impl Serving {
    /// Ends accepting, when another process does that.
    pub(crate) fn accepting(&self) -> AbortHandle {
        self.accepting.clone()
    }

    /// Accepts no more, and has each connection end with the answer that it waits for, or with the next one.
    pub(crate) fn leave(&self) {
        self.accepting.abort();
        self.ending.send_replace(Ending::Leaving);
    }

    /// Answers what has been asked or is about to be, on connections that are there.
    pub(crate) async fn end(mut self) {
        self.accepting.abort();
        self.ending.send_if_modified(|ending| {
            // One that is leaving stays so.
            let is_serving = *ending == Ending::Serving;
            if is_serving {
                *ending = Ending::Over;
            }
            is_serving
        });
        if timeout(END_TIMEOUT, self.open.recv()).await.is_err() {
            warn!("{}: requests were cut off because they took too long", self.name);
        }
    }
}

async fn serve_stream(
    stream: TcpStream,
    peer: SocketAddr,
    server: Server<impl Answers>,
    is_ending: watch::Receiver<Ending>,
) {
    let Server { answers, tls, bounds } = server;
    let Some(tls) = tls else { return serve_connection(stream, peer, answers, bounds, is_ending).await };
    match timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(tls).accept(stream)).await {
        Ok(Ok(stream)) => serve_connection(stream, peer, answers, bounds, is_ending).await,
        Ok(Err(error)) => debug!(%peer, %error, "{}: TLS handshake failed", bounds.name),
        Err(_) => debug!(%peer, "{}: TLS handshake took too long", bounds.name),
    }
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    peer: SocketAddr,
    answers: impl Answers,
    bounds: Bounds,
    is_ending: watch::Receiver<Ending>,
) {
    let (asked, is_asked) = watch::channel(false);
    let (answers, server) = (&answers, &is_ending.clone());
    let service = service_fn(|request: Request<Incoming>| {
        asked.send_replace(true);
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(Peer(peer.ip()));
        let answer = answers.answer(request);
        async move {
            let mut answer = answer.await;
            if *server.borrow() == Ending::Leaving {
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
        () = until_over(bounds.age, is_ending, is_asked) => {
            connection.as_mut().graceful_shutdown();
            // A connection that does not even end in this time is dropped, which closes it.
            timeout(bounds.end, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        debug!(%peer, %error, "{}: connection failed", bounds.name);
    }
}

/// Until a connection is too old, or the server ends and the connection has had a request: its client may have sent the first one
/// already, and would get no answer. Where the server leaves, each client has some time: the next answer tells it.
async fn until_over(age: Duration, mut is_ending: watch::Receiver<Ending>, mut is_asked: watch::Receiver<bool>) {
    let ends = async {
        // A server that is gone has ended.
        let ending = is_ending.wait_for(|ending| *ending != Ending::Serving).await;
        if ending.is_ok_and(|ending| *ending == Ending::Leaving) {
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
        let (_ending, is_ending) = watch::channel(Ending::Serving);
        let serving = tokio::spawn(serve_connection(stream, peer, router, Bounds::ADMIN, is_ending));
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

    /// Whoever has connected may have sent something already, and whoever has asked waits for an answer.
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
