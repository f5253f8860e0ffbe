//! A new connection to a server: its name's addresses one after the other, TLS, and HTTP/2 if the server speaks that.

use super::BeginHttp2;
use super::breaker::Pool;
use crate::connection::stream::{Stream, Tls};
use std::sync::{Arc, OnceLock};
use stillgate_plugin_api::{CallError, CallOrigin};
use stillgate_tls::rustls::ClientConfig;
use stillgate_tls::rustls::pki_types::ServerName;
use stillgate_tls::{ServiceRoots, towards_service};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// TLS configurations for servers whose certificate is verified and for the others; `None`: it cannot be made.
type Configs = [Option<Arc<ClientConfig>>; 2];

/// Connects; the caller limits the time.
pub(super) async fn connect(pool: &Pool, begin_http2: &BeginHttp2) -> Result<Stream, CallError> {
    let mut stream = Err(CallError::Connect);
    for address in pool.addresses().await? {
        if let Ok(connected) = TcpStream::connect(address).await {
            stream = Ok((connected, address));
            break;
        }
    }
    let (stream, address) = stream?;
    // Without it only latency suffers.
    let _ = stream.set_nodelay(true);
    let stream = match pool.origin.is_https {
        true => tls(&pool.origin, stream).await?,
        false => Stream::Plain(stream),
    };
    if !pool.origin.is_grpc {
        return Ok(stream);
    }
    let connection = begin_http2(stream, address).await.map_err(|_| CallError::Connect)?;
    Ok(Stream::Http2Pooled(Box::new(connection)))
}

async fn tls(origin: &CallOrigin, stream: TcpStream) -> Result<Stream, CallError> {
    let name = ServerName::try_from(origin.host.to_string()).map_err(|_| CallError::Tls)?;
    let config = config(origin.verifies).await.ok_or(CallError::Tls)?;
    let connector = TlsConnector::from(config);
    let connected = match origin.is_grpc {
        true => connector.with_alpn(vec![b"h2".to_vec()]).connect(name.clone(), stream).await,
        false => connector.connect(name.clone(), stream).await,
    };
    let stream = connected.map_err(|error| {
        tracing::warn!(host = &*origin.host, port = origin.port, %error, "TLS with a server that plugins ask failed");
        CallError::Tls
    })?;
    if origin.is_grpc && stream.get_ref().1.alpn_protocol() != Some(b"h2") {
        return Err(CallError::Tls);
    }
    Ok(Stream::Tls(Box::new(Tls { stream: stream.into(), server_name: Some(name) })))
}

/// Built once per process, off the worker: the system's certificates are in files.
async fn config(verifies: bool) -> Option<Arc<ClientConfig>> {
    static CONFIGS: OnceLock<Configs> = OnceLock::new();
    let configs = match CONFIGS.get() {
        Some(configs) => configs,
        None => {
            let made = tokio::task::spawn_blocking(make).await.ok()?;
            CONFIGS.get_or_init(|| made)
        }
    };
    configs[usize::from(verifies)].clone()
}

fn make() -> Configs {
    let found = rustls_native_certs::load_native_certs();
    let roots: Vec<Vec<u8>> = found.certs.iter().map(|certificate| certificate.to_vec()).collect();
    [ServiceRoots::Anyone, ServiceRoots::Der(&roots)].map(|roots| {
        towards_service(roots).inspect_err(|error| tracing::error!("plugins cannot speak TLS: {error}")).ok()
    })
}
