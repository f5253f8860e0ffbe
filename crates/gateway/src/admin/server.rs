//! The server of the admin address, on the control thread; what takes long is done on another. What there is to ask is in the
//! crate `admin`, and in `pages`.
//!
//! Everything is bounded, since this address may be reachable for others: connections, a connection's age, the time for a head.

use axum::Router;
use axum::body::Body;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
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

/// Within this a request's head has to be there, on a new connection as on one that is kept. So has a TLS handshake.
const HEAD_TIMEOUT: Duration = Duration::from_secs(3);

/// After this a connection gets no further request, so that nobody holds a place for good.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(300);

/// What a connection has to finish in, once it is too old.
const CONNECTION_END_TIMEOUT: Duration = Duration::from_secs(5);

/// What a connection without a request gets to send one in, once the server ends.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// What all connections get to end in, once the server ends.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// What every connection needs.
#[derive(Clone)]
pub(crate) struct Server {
    /// What is answered.
    pub(crate) router: Router,
    /// `None`: HTTP is spoken.
    pub(crate) tls: Option<Arc<ServerConfig>>,
}

/// A server that runs.
#[derive(Debug)]
pub(crate) struct Serving {
    accepting: AbortHandle,
    /// Whether connections are to end.
    ending: watch::Sender<bool>,
    /// Closed when no connection is left.
    open: mpsc::Receiver<Infallible>,
}

/// Serves until it is ended, or with the runtime.
pub(crate) fn serve(listener: TcpListener, server: Server) -> Serving {
    let (ending, is_ending) = watch::channel(false);
    let (is_open, open) = mpsc::channel(1);
    let accepting = async move {
        accept(&listener, &ConnectionSlots::default(), "admin API", |stream, peer, place| {
            let (server, is_ending, is_open) = (server.clone(), is_ending.clone(), is_open.clone());
            tokio::spawn(async move {
                serve_stream(stream, peer, server, is_ending).await;
                drop((place, is_open));
            });
        })
        .await;
    };
    Serving { accepting: tokio::spawn(accepting).abort_handle(), ending, open }
}

impl Serving {
    /// Ends accepting, when another process does that.
    pub(crate) fn accepting(&self) -> AbortHandle {
        self.accepting.clone()
    }

    /// Answers what has been asked or is about to be, on connections that are there.
    pub(crate) async fn end(mut self) {
        self.accepting.abort();
        self.ending.send_replace(true);
        if timeout(END_TIMEOUT, self.open.recv()).await.is_err() {
            warn!("admin API: requests were cut off because they took too long");
        }
    }
}

async fn serve_stream(stream: TcpStream, peer: SocketAddr, server: Server, is_ending: watch::Receiver<bool>) {
    let Some(tls) = server.tls else { return serve_connection(stream, peer, server.router, is_ending).await };
    match timeout(HEAD_TIMEOUT, TlsAcceptor::from(tls).accept(stream)).await {
        Ok(Ok(stream)) => serve_connection(stream, peer, server.router, is_ending).await,
        Ok(Err(error)) => debug!(%peer, %error, "admin API: TLS handshake failed"),
        Err(_) => debug!(%peer, "admin API: TLS handshake took too long"),
    }
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    peer: SocketAddr,
    router: Router,
    is_ending: watch::Receiver<bool>,
) {
    let (asked, is_asked) = watch::channel(false);
    let service = service_fn(|request: Request<Incoming>| {
        asked.send_replace(true);
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(Peer(peer.ip()));
        // A router is always ready.
        router.clone().call(request)
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), service)
    );
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = until_over(is_ending, is_asked) => {
            connection.as_mut().graceful_shutdown();
            // A connection that does not even end in this time is dropped, which closes it.
            timeout(CONNECTION_END_TIMEOUT, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        debug!(%peer, %error, "admin API: connection failed");
    }
}

/// Until a connection is too old, or the server ends and the connection has had a request: its client may have sent the first one
/// already, and would get no answer.
async fn until_over(mut is_ending: watch::Receiver<bool>, mut is_asked: watch::Receiver<bool>) {
    let ends = async {
        // A server that is gone has ended.
        let _ = is_ending.wait_for(|is_ending| *is_ending).await;
        let _ = timeout(FIRST_REQUEST_TIMEOUT, is_asked.wait_for(|is_asked| *is_asked)).await;
    };
    tokio::select! {
        () = sleep(CONNECTION_AGE_MAX) => {}
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
        let (_ending, is_ending) = watch::channel(false);
        let serving = tokio::spawn(serve_connection(stream, peer, router, is_ending));
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
        let server = Server { router: Router::new().route("/", get(slow)), tls: None };
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
}
