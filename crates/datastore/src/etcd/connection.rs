//! One connection to an endpoint: TCP with keep-alive, TLS if the endpoint has it, HTTP/1.1.

use super::endpoint::EtcdEndpoint;
use super::options::EtcdTls;
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use std::error::Error as _;
use std::io;
use std::time::Duration;
use stillgate_tls::{Peer, ServiceRoots, handshake_failure, rustls, towards_service, towards_service_as};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Timeout of connecting to one address, so that an unresponsive one leaves time for the next.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A watch only receives. Without keep-alive, a connection that a middlebox has dropped would seem quiet for ever.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// An open connection. It is closed on drop, even in the middle of a response.
#[derive(Debug)]
pub(crate) struct EtcdConnection {
    pub(crate) sender: SendRequest<Full<Bytes>>,
    /// The only task that moves its bytes; it ends with the set.
    _driver: JoinSet<()>,
}

impl EtcdConnection {
    /// Opens a connection. The error is one line without the endpoint.
    pub(crate) async fn open(endpoint: &EtcdEndpoint, tls: &TlsConnector) -> Result<EtcdConnection, String> {
        let stream = tcp(endpoint)
            .await
            .map_err(|error| format!("cannot connect: {error}; is it up, and can the gateway reach it?"))?;
        let Some(name) = endpoint.tls_name.clone() else {
            return EtcdConnection::over(stream).await;
        };
        let stream = tls.connect(name, stream).await;
        EtcdConnection::over(stream.map_err(|error| format!("TLS: {}", handshake_failure(&error, Peer::Etcd)))?).await
    }

    async fn over<S>(stream: S) -> Result<EtcdConnection, String>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        let mut driver = JoinSet::new();
        // Its failure is reported by the request on it.
        driver.spawn(async move { drop(connection.await) });
        Ok(EtcdConnection { sender, _driver: driver })
    }
}

/// The TLS settings. If TLS is not used (`!is_needed`), the system's roots need not exist.
pub(crate) fn connector(options: Option<&EtcdTls>, is_needed: bool) -> Result<TlsConnector, String> {
    let verify = is_needed && options.is_none_or(|options| options.verify);
    let ca = options.and_then(|options| options.ca.as_deref());
    let system: Vec<Vec<u8>> = match (verify, ca) {
        (true, None) => rustls_native_certs::load_native_certs().certs.into_iter().map(|der| der.to_vec()).collect(),
        _ => Vec::new(),
    };
    let roots = match (verify, ca) {
        (false, _) => ServiceRoots::Anyone,
        (true, Some(pem)) => ServiceRoots::Pem(pem),
        (true, None) => ServiceRoots::Der(&system),
    };
    let config = match options.and_then(|options| options.client.as_ref()) {
        Some((cert, key)) => towards_service_as(roots, (cert, key)),
        None => towards_service(roots),
    };
    config.map(TlsConnector::from)
}

/// Why an open connection has failed, on one line.
pub(crate) fn why_broken(error: &hyper::Error) -> String {
    let Some(source) = error.source() else { return error.to_string() };
    match source.downcast_ref::<io::Error>() {
        // In TLS 1.3 a server rejects our certificate, or its absence, after our side of the handshake.
        Some(io) if io.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) => {
            format!("TLS: {}", handshake_failure(io, Peer::Etcd))
        }
        _ => format!("{error}: {source}"),
    }
}

/// Connects to the first address that answers.
async fn tcp(endpoint: &EtcdEndpoint) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host((&*endpoint.host, endpoint.port)).await? {
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
                SockRef::from(&stream).set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_PROBES))?;
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Ok(Err(error)) => failed = error,
            Err(_) => failed = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(failed)
}
