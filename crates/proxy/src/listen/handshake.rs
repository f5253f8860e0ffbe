//! The TLS handshake with a client, and what requests may ask about it afterwards.
//!
//! The hello is read first, as its server name decides which certificate, versions and demands on the client hold.

use crate::connection::stream::{Stream, Tls};
use crate::exchange::reply;
use crate::worker::Worker;
use crate::worker::clock::Timer;
use std::cell::OnceCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use stillgate_route::SslVariable;
use stillgate_tls::rustls::server::Acceptor;
use stillgate_tls::rustls::{CipherSuite, ProtocolVersion, ServerConfig, ServerConnection};
use stillgate_tls::{
    ClientCa, ClientCertificate, FailureReason, Offer, Peer, ServerTls, UNRECOGNIZED_NAME, client_certificate,
    handshake_failure,
};
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake, server};

/// What TLS has agreed on, for variables.
#[derive(Debug)]
pub(crate) struct TlsFacts {
    /// In lower case, without a dot at its end.
    pub(crate) server_name: Option<Box<str>>,
    protocol: &'static str,
    cipher: &'static str,
    /// What the certificate that it has shown was verified against; `None`: it has shown none.
    verified_by: Option<Arc<ClientCa>>,
    client: Option<ClientCertificate>,
}

impl TlsFacts {
    /// Whether the client may ask for `host` (as [`canonical_host`](stillgate_route::canonical_host) has it): its own entry, and that
    /// of the name it came by, take the certificate that it has shown, or want none.
    #[inline]
    pub(crate) fn may_ask_for(&self, tls: &ServerTls, host: &[u8]) -> bool {
        let allows = |name: &[u8]| tls.allows(name, self.verified_by.as_deref());
        let came = self.server_name.as_deref().map(str::as_bytes).filter(|name| *name != host);
        allows(host) && came.is_none_or(allows)
    }

    /// The value of a variable, where there is one.
    pub(crate) fn value(&self, variable: SslVariable) -> Option<&str> {
        let client = self.client.as_ref();
        match variable {
            SslVariable::Protocol => Some(self.protocol),
            SslVariable::Cipher => Some(self.cipher),
            SslVariable::ClientVerify => Some(if self.verified_by.is_some() { "SUCCESS" } else { "NONE" }),
            SslVariable::ClientSubject => client.map(|client| &*client.subject),
            SslVariable::ClientSerial => client.map(|client| &*client.serial),
            SslVariable::ClientFingerprint => client.map(|client| &*client.fingerprint),
        }
    }
}

/// A connection whose handshake is done.
pub(crate) struct Secured {
    pub(crate) stream: Stream,
    pub(crate) facts: Box<TlsFacts>,
}

/// Why there is no connection.
enum NoTls {
    /// It was an ACME server's, which has been shown what it asked for: nothing is wrong.
    Challenge,
    /// It was closed before its first byte: nothing is wrong.
    Unused,
    /// It is HTTP without TLS.
    Plain(TcpStream),
    /// There is no certificate for the name the client asked for.
    UnknownName,
    /// It was not complete within `gateway.timeouts.head`.
    Late,
    /// TLS or the socket failed.
    Failed(io::Error),
}

/// The name that a client asks for, as soon as it is known.
type AskedName = OnceCell<Box<str>>;

/// Does the handshake, or closes the connection, having said why where the client can understand it.
pub(crate) async fn accept(
    worker: &Worker,
    offer: Offer,
    stream: TcpStream,
    timer: &Timer,
    peer: SocketAddr,
) -> Option<Secured> {
    let deadline_ms = worker.clock.now_ms() + worker.snapshot().plan.settings.head_ms;
    if !worker.hears(&stream, timer).await && worker.is_ending() {
        return None;
    }
    let name = AskedName::new();
    let handshake = Box::pin(shake(worker, offer, stream, &name));
    let result = worker.clock.within(timer, deadline_ms, handshake).await.unwrap_or(Err(NoTls::Late));
    match result {
        Ok(secured) => {
            worker.counters.tls_handshakes.add(1);
            return Some(secured);
        }
        Err(NoTls::Unused) => {}
        Err(NoTls::Challenge) => worker.counters.tls_handshakes.add(1),
        Err(NoTls::Plain(mut stream)) => {
            let answer = reply::plain_to_tls(reply::asks_for_head(&stream).await);
            // Who does not take a few bytes is not told.
            let _ = poll_fn(|cx| Pin::new(&mut stream).poll_write(cx, &answer)).await;
            failed(worker, peer, &name, FailureReason::NotTls, "HTTP without TLS".to_owned());
        }
        Err(NoTls::UnknownName) => {
            let what = match name.get() {
                Some(name) => format!("there is no certificate for {name:?}"),
                None => "the client names no host, and no certificate is the default".to_owned(),
            };
            failed(worker, peer, &name, FailureReason::UnknownName, what);
        }
        Err(NoTls::Late) => {
            let what = "it was not complete within gateway.timeouts.head".to_owned();
            failed(worker, peer, &name, FailureReason::Timeout, what);
        }
        Err(NoTls::Failed(error)) => {
            failed(worker, peer, &name, FailureReason::of(&error), handshake_failure(&error, Peer::Client));
        }
    }
    None
}

/// Counts a handshake that failed, and tells of it.
fn failed(worker: &Worker, peer: SocketAddr, name: &AskedName, reason: FailureReason, what: String) {
    worker.counters.tls_handshakes_failed[reason as usize].add(1);
    tracing::debug!(%peer, reason = what, "no TLS handshake");
    worker.troubles.note_handshake(peer, name.get().cloned(), what);
}

async fn shake(worker: &Worker, offer: Offer, stream: TcpStream, name: &AskedName) -> Result<Secured, NoTls> {
    match first_byte(&stream).await.map_err(NoTls::Failed)? {
        None => return Err(NoTls::Unused),
        Some(byte) if byte.is_ascii_uppercase() && offer != Offer::Nothing => return Err(NoTls::Plain(stream)),
        // Whatever else is no TLS is refused as such.
        Some(_) => {}
    }
    let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await.map_err(NoTls::Failed)?;
    if let Some(asked) = hello.client_hello().server_name() {
        name.get_or_init(|| lower_name(asked));
    }
    let challenge = worker.challenges().tls(&hello.client_hello());
    if let Some(config) = challenge {
        let mut stream = hello.into_stream(config).await.map_err(NoTls::Failed)?;
        // It says nothing more (RFC 8737 section 3), and may have gone already.
        let _ = poll_fn(|cx| Pin::new(&mut stream).poll_shutdown(cx)).await;
        return Err(NoTls::Challenge);
    }
    match config_for(worker, offer, &hello) {
        Some((config, client_ca)) => {
            let stream = hello.into_stream(config).await.map_err(NoTls::Failed)?;
            Ok(secured(stream, client_ca))
        }
        None => {
            let mut stream = hello.io;
            // Who does not take a few bytes is not told.
            let _ = poll_fn(|cx| Pin::new(&mut stream).poll_write(cx, &UNRECOGNIZED_NAME)).await;
            Err(NoTls::UnknownName)
        }
    }
}

/// The first byte, left where it is; none where the connection is at its end.
async fn first_byte(stream: &TcpStream) -> io::Result<Option<u8>> {
    let mut byte = [0];
    let n = stream.peek(&mut byte).await?;
    Ok((n > 0).then_some(byte[0]))
}

/// What holds for the name that the client asks for, and what its certificate is verified against.
fn config_for(
    worker: &Worker,
    offer: Offer,
    hello: &StartHandshake<TcpStream>,
) -> Option<(Arc<ServerConfig>, Option<Arc<ClientCa>>)> {
    let snapshot = worker.snapshot();
    let chosen = snapshot.plan.tls.as_ref()?.find(hello.client_hello().server_name(), offer)?;
    Some((chosen.config.clone(), chosen.client_ca.cloned()))
}

fn secured(stream: server::TlsStream<TcpStream>, client_ca: Option<Arc<ClientCa>>) -> Secured {
    let (_, session) = stream.get_ref();
    let facts = Box::new(facts(session, client_ca));
    let tls = Tls { stream: stream.into(), server_name: None };
    Secured { stream: Stream::Tls(Box::new(tls)), facts }
}

fn facts(session: &ServerConnection, client_ca: Option<Arc<ClientCa>>) -> TlsFacts {
    TlsFacts {
        server_name: session.server_name().map(lower_name),
        protocol: match session.protocol_version() {
            Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
            _ => "TLSv1.3",
        },
        cipher: session.negotiated_cipher_suite().map_or("", |suite| openssl_name(suite.suite())),
        verified_by: client_ca.filter(|_| session.peer_certificates().is_some()),
        // One that cannot be described was verified all the same.
        client: session.peer_certificates().and_then(client_certificate),
    }
}

fn lower_name(name: &str) -> Box<str> {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase().into()
}

/// A cipher suite as OpenSSL calls it, and so do nginx's logs.
fn openssl_name(suite: CipherSuite) -> &'static str {
    match suite {
        CipherSuite::TLS13_AES_256_GCM_SHA384 => "TLS_AES_256_GCM_SHA384",
        CipherSuite::TLS13_AES_128_GCM_SHA256 => "TLS_AES_128_GCM_SHA256",
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 => "ECDHE-ECDSA-AES256-GCM-SHA384",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 => "ECDHE-ECDSA-AES128-GCM-SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 => "ECDHE-ECDSA-CHACHA20-POLY1305",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => "ECDHE-RSA-AES256-GCM-SHA384",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => "ECDHE-RSA-AES128-GCM-SHA256",
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => "ECDHE-RSA-CHACHA20-POLY1305",
        other => other.as_str().unwrap_or(""),
    }
}
