//! Delivers over TCP and UDP.
//!
//! TLS towards receivers has one configuration that verifies certificates with the system's roots, and one that accepts any.

use super::DeliveryReport;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use stillgate_plugin_api::outbox::{Encode, Entries, SocketReceiver};
use stillgate_tls::rustls::ClientConfig;
use stillgate_tls::rustls::pki_types::ServerName;
use stillgate_tls::{Peer, ServiceRoots, handshake_failure, towards_service};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket, lookup_host};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The largest payload of a datagram over IPv4.
const DATAGRAM_BYTES_MAX: usize = 65_507;

/// For connecting to one address of several; less if there is less time, so that one that does not answer leaves time for the next.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A TCP connection, kept if the protocol does not end it after each batch.
#[derive(Default)]
pub(crate) struct OutletSocket(Mutex<Option<Box<dyn LogSocket>>>);

/// A connection with TLS or without.
trait LogSocket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> LogSocket for T {}

impl OutletSocket {
    /// Writes a batch.
    pub(crate) async fn write(&self, to: &SocketReceiver, bytes: &[u8]) -> Result<u64, String> {
        let mut kept = self.0.lock().await;
        let mut open = kept.take();
        if let Some(stream) = &mut open
            && !is_open(stream).await
        {
            open = None;
        }
        let mut stream = match open {
            Some(stream) => stream,
            None => in_time(to.timeout, "connecting", connect(to)).await?,
        };
        in_time(to.timeout, "writing", async {
            stream.write_all(bytes).await.map_err(|error| format!("cannot write: {error}"))?;
            stream.flush().await.map_err(|error| format!("cannot write: {error}"))
        })
        .await?;
        if to.is_syslog {
            *kept = Some(stream);
        } else {
            in_time(to.timeout, "closing", async {
                stream.shutdown().await.map_err(|error| format!("cannot close: {error}"))
            })
            .await?;
        }
        Ok(bytes.len() as u64)
    }
}

/// Whether the peer has neither closed the connection nor sent anything, which it should not.
async fn is_open(stream: &mut Box<dyn LogSocket>) -> bool {
    timeout(Duration::ZERO, stream.read(&mut [0])).await.is_err()
}

async fn in_time<T>(time: Duration, what: &str, then: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let failed = |_| Err(format!("{what} took longer than {} ms", time.as_millis()));
    timeout(time, then).await.unwrap_or_else(failed)
}

async fn connect(to: &SocketReceiver) -> Result<Box<dyn LogSocket>, String> {
    let stream = tcp(&to.host, to.port, to.timeout).await?;
    match &to.tls_name {
        None => Ok(Box::new(stream)),
        Some(name) => Ok(Box::new(begin_tls(stream, name, false).await?)),
    }
}

/// Connects to the first address that answers. The caller limits the time to `time`.
pub(crate) async fn tcp(host: &str, port: u16, time: Duration) -> Result<TcpStream, String> {
    let start = Instant::now();
    let addresses = lookup_host((host, port)).await.map_err(|error| format!("cannot find {host}: {error}"))?;
    let left = time.saturating_sub(start.elapsed());
    connect_one(addresses.collect(), left).await.map_err(|error| format!("cannot connect to {host}:{port}: {error}"))
}

async fn connect_one(addresses: Vec<SocketAddr>, time: Duration) -> io::Result<TcpStream> {
    let start = Instant::now();
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for (place, address) in addresses.iter().enumerate() {
        let shares = u32::try_from(addresses.len() - place).unwrap_or(u32::MAX);
        let share = time.saturating_sub(start.elapsed()) / shares;
        // The last address may have all the time that is left.
        let share = if shares == 1 { share } else { share.min(CONNECT_TIMEOUT) };
        match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Send at once; otherwise a batch may wait for the previous one.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => failed = error,
            Err(_) => failed = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(failed)
}

/// Sends datagrams.
pub(crate) struct Datagrams;

impl Datagrams {
    /// Sends a batch in one datagram, or in as many as it takes.
    pub(crate) async fn send(
        &self,
        to: &SocketReceiver,
        entries: &Entries,
        encode: &dyn Encode,
    ) -> Result<DeliveryReport, String> {
        let mut addresses =
            lookup_host((&*to.host, to.port)).await.map_err(|error| format!("cannot find {}: {error}", to.host))?;
        let address = addresses.next().ok_or_else(|| format!("{} has no address", to.host))?;
        let own: SocketAddr = if address.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
        let failed = |error: io::Error| format!("cannot send to {}:{}: {error}", to.host, to.port);
        let socket = UdpSocket::bind(own).await.map_err(failed)?;
        socket.connect(address).await.map_err(failed)?;
        let all: Vec<&[u8]> = entries.iter().collect();
        let (mut sent, mut too_large) = (0, 0);
        // The parts of the batch, the next on top.
        let mut parts: Vec<&[&[u8]]> = if to.is_syslog { all.chunks(1).rev().collect() } else { vec![&all] };
        while let Some(part) = parts.pop() {
            let (mut chosen, mut datagram) = (Entries::default(), Vec::new());
            part.iter().for_each(|entry| chosen.push(entry));
            encode.encode(&chosen, &mut datagram);
            if datagram.len() <= DATAGRAM_BYTES_MAX {
                in_time(to.timeout, "sending", async { socket.send(&datagram).await.map_err(failed) }).await?;
                sent += datagram.len() as u64;
            } else if part.len() == 1 {
                too_large += 1;
            } else {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
            }
        }
        Ok(DeliveryReport { bytes: sent, too_large, refused: 0 })
    }
}

/// Begins TLS on a connection.
pub(crate) async fn begin_tls(stream: TcpStream, name: &str, verifies: bool) -> Result<TlsStream<TcpStream>, String> {
    let connector = TlsConnector::from(tls_config(verifies)?);
    let name = ServerName::try_from(name.to_owned()).map_err(|_| format!("{name:?} is not a server name"))?;
    let begun = connector.connect(name, stream).await;
    begun.map_err(|error| format!("TLS: {}", handshake_failure(&error, Peer::Service)))
}

fn tls_config(verifies: bool) -> Result<Arc<ClientConfig>, String> {
    static CONFIGS: [OnceLock<Result<Arc<ClientConfig>, String>>; 2] = [const { OnceLock::new() }; 2];
    CONFIGS[usize::from(verifies)].get_or_init(|| new_tls_config(verifies)).clone()
}

fn new_tls_config(verifies: bool) -> Result<Arc<ClientConfig>, String> {
    if !verifies {
        return towards_service(ServiceRoots::Anyone);
    }
    let found = rustls_native_certs::load_native_certs().certs;
    let roots: Vec<Vec<u8>> = found.into_iter().map(|certificate| certificate.to_vec()).collect();
    towards_service(ServiceRoots::Der(&roots))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpSocket};

    #[tokio::test]
    async fn a_silent_address_leaves_time_for_the_next() {
        let good = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let silent = socket.listen(0).unwrap();
        let [good_at, silent_at] = [&good, &silent].map(|listener| listener.local_addr().unwrap());
        let mut waiting = Vec::new();
        while let Ok(connected) = timeout(Duration::from_millis(300), TcpStream::connect(silent_at)).await {
            waiting.push(connected.unwrap());
        }
        let time = Duration::from_millis(500);
        let stream = timeout(time, connect_one(vec![silent_at, good_at], time)).await.unwrap().unwrap();
        assert_eq!(stream.peer_addr().unwrap(), good_at);
        let failed = connect_one(vec![silent_at], Duration::from_millis(20)).await;
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
