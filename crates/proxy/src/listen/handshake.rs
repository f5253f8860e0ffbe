//! The TLS handshake with a client.
//!
//! The ClientHello is read first, as its server name decides which certificate, versions and client requirements apply.

use crate::basics::clock::Timer;
use crate::connection::client::{TlsFacts, lower_name};
use crate::connection::stream::{Stream, Tls};
use crate::exchange::answer;
use crate::worker::Worker;
use std::cell::OnceCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use stillgate_tls::rustls::ServerConfig;
use stillgate_tls::rustls::server::Acceptor;
use stillgate_tls::{ClientCa, FailureReason, Offer, Peer, UNRECOGNIZED_NAME, handshake_failure};
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake, server};

/// A connection whose handshake is done.
pub(crate) struct SecuredConnection {
    pub(crate) stream: Stream,
    pub(crate) facts: Box<TlsFacts>,
}

/// Why the handshake has no result.
enum NoTls {
    /// It came from an ACME server, which has got its response: nothing is wrong.
    Challenge,
    /// The connection was closed before its first byte: nothing is wrong.
    Unused,
    /// The client speaks HTTP without TLS.
    Plain(TcpStream),
    /// No certificate matches the requested name.
    UnknownName,
    /// The handshake was not complete within `gateway.timeouts.head`.
    Late,
    /// TLS or the socket failed.
    Failed(io::Error),
}

/// The server name that a client requests, as soon as it is known.
type AskedName = OnceCell<Box<str>>;

/// Does the handshake, or closes the connection after reporting the reason in a form that the client understands.
pub(crate) async fn accept(
    worker: &Worker,
    offer: Offer,
    stream: TcpStream,
    timer: &Timer,
    peer: SocketAddr,
) -> Option<SecuredConnection> {
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
            let answer = answer::plain_to_tls(answer::asks_for_head(&stream).await);
            // A client that does not take a few bytes does not get the answer.
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

/// Counts a handshake that failed, and reports it.
fn failed(worker: &Worker, peer: SocketAddr, name: &AskedName, reason: FailureReason, what: String) {
    worker.counters.tls_handshakes_failed[reason as usize].add(1);
    tracing::debug!(%peer, reason = what, "no TLS handshake");
    worker.troubles.note_handshake(peer, name.get().cloned(), what);
}

async fn shake(worker: &Worker, offer: Offer, stream: TcpStream, name: &AskedName) -> Result<SecuredConnection, NoTls> {
    match first_byte(&stream).await.map_err(NoTls::Failed)? {
        None => return Err(NoTls::Unused),
        Some(byte) if byte.is_ascii_uppercase() && offer != Offer::Nothing => return Err(NoTls::Plain(stream)),
        // Anything else that is not TLS is refused as such.
        Some(_) => {}
    }
    let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await.map_err(NoTls::Failed)?;
    if let Some(asked) = hello.client_hello().server_name() {
        name.get_or_init(|| lower_name(asked));
    }
    let challenge = worker.challenges().tls(&hello.client_hello());
    if let Some(config) = challenge {
        let mut stream = hello.into_stream(config).await.map_err(NoTls::Failed)?;
        // The client sends nothing more (RFC 8737 section 3), and may have gone already.
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
            // A client that does not take a few bytes does not get the alert.
            let _ = poll_fn(|cx| Pin::new(&mut stream).poll_write(cx, &UNRECOGNIZED_NAME)).await;
            Err(NoTls::UnknownName)
        }
    }
}

/// The first byte, left in the socket; `None` if the connection is at its end.
async fn first_byte(stream: &TcpStream) -> io::Result<Option<u8>> {
    let mut byte = [0];
    let n = stream.peek(&mut byte).await?;
    Ok((n > 0).then_some(byte[0]))
}

/// The configuration for the name that the client requests, and the CA that its certificate is verified against.
fn config_for(
    worker: &Worker,
    offer: Offer,
    hello: &StartHandshake<TcpStream>,
) -> Option<(Arc<ServerConfig>, Option<Arc<ClientCa>>)> {
    let snapshot = worker.snapshot();
    let chosen = snapshot.plan.tls.as_ref()?.find(hello.client_hello().server_name(), offer)?;
    Some((chosen.config.clone(), chosen.client_ca.cloned()))
}

fn secured(stream: server::TlsStream<TcpStream>, client_ca: Option<Arc<ClientCa>>) -> SecuredConnection {
    let (_, session) = stream.get_ref();
    let facts = Box::new(TlsFacts::of(session, client_ca));
    let tls = Tls { stream: stream.into(), server_name: None };
    SecuredConnection { stream: Stream::Tls(Box::new(tls)), facts }
}
