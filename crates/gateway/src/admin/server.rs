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
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use stillgate_admin::Peer;
use stillgate_exporter::{Places, accept};
use stillgate_tls::rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tower::Service;
use tracing::debug;

/// Within this a request's head has to be there, on a new connection as on one that is kept. So has a TLS handshake.
const HEAD_TIMEOUT: Duration = Duration::from_secs(3);

/// After this a connection gets no further request, so that nobody holds a place for good.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(300);

/// What a connection has to finish in, once it is too old.
const CONNECTION_END_TIMEOUT: Duration = Duration::from_secs(5);

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

/// Serves until the task is dropped with its runtime.
pub(crate) async fn serve(listener: TcpListener, server: Server) {
    accept(&listener, &Places::default(), "admin API", |stream, peer, place| {
        let server = server.clone();
        tokio::spawn(async move {
            serve_stream(stream, peer, server).await;
            drop(place);
        });
    })
    .await;
}

async fn serve_stream(stream: TcpStream, peer: SocketAddr, server: Server) {
    let Some(tls) = server.tls else { return serve_connection(stream, peer, server.router).await };
    match timeout(HEAD_TIMEOUT, TlsAcceptor::from(tls).accept(stream)).await {
        Ok(Ok(stream)) => serve_connection(stream, peer, server.router).await,
        Ok(Err(error)) => debug!(%peer, %error, "admin API: TLS handshake failed"),
        Err(_) => debug!(%peer, "admin API: TLS handshake took too long"),
    }
}

async fn serve_connection(stream: impl AsyncRead + AsyncWrite + Unpin, peer: SocketAddr, router: Router) {
    let service = service_fn(|request: Request<Incoming>| {
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
    let ended = match timeout(CONNECTION_AGE_MAX, connection.as_mut()).await {
        Ok(ended) => ended,
        Err(_) => {
            connection.as_mut().graceful_shutdown();
            // A connection that does not even end in this time is dropped, which closes it.
            timeout(CONNECTION_END_TIMEOUT, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        debug!(%peer, %error, "admin API: connection failed");
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
        let serving = tokio::spawn(serve_connection(stream, peer, router));
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
}
