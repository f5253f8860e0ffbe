//! Accepts a worker's connections: from the listener to a task of its own, or to a graceful refusal. Connections that another
//! process hands over continue where they were.
//!
//! `client` handles what a connection then sends.

use crate::basics::clock::Timer;
use crate::connection::client::{ClientConnection, scheme};
use crate::connection::stream::Stream;
use crate::exchange::answer;
use crate::exchange::forwarding::untrusted_lines;
use crate::handover::{ConnectionState, HandedState, OriginState, Parcel, ParcelError, ReceivedParcel};
use crate::listen::{handshake, proxy_protocol};
use crate::sockets::listener::{ConnectionEvent, Listener};
use crate::tunnel::Tunnel;
use crate::worker::{FreshConnection, Open, Worker};
use crate::{client, devices, stream_proxy};
use socket2::{Socket, Type};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use stillgate_config::{ListenPlace, ListenerKind};
use stillgate_tls::Offer;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

/// How long accepting pauses after it failed, so that a lack of descriptors does not become a lack of CPU.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// Refused connections that are closed gracefully at the same time; further ones are just closed.
const REFUSALS_MAX: usize = 64;
/// How long a refused client has to send its method, on which the answer depends.
const METHOD_TIME: Duration = Duration::from_millis(100);
/// How long a refused client has to read the reason.
const REFUSAL_TIME: Duration = Duration::from_secs(1);

/// Accepts connections from one listener until the task is aborted.
pub(crate) async fn accept(worker: Rc<Worker>, socket: Rc<TcpListener>, listener: Rc<Listener>) {
    loop {
        match socket.accept().await {
            Ok((stream, peer)) => worker.admit(stream, peer, &listener),
            // The client gave up while it was queued: nothing is wrong here.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                if worker.counters.accept_errors.get().is_multiple_of(100) {
                    tracing::warn!(
                        %error,
                        "cannot accept connections; new ones wait (raise the limit of open files: ulimit -n, LimitNOFILE)"
                    );
                }
                worker.counters.accept_errors.add(1);
                tokio::time::sleep(ACCEPT_REST).await;
            }
        }
    }
}

impl Worker {
    /// Serves a connection just accepted, as its listener is currently configured, or refuses it.
    pub(crate) fn admit(self: &Rc<Self>, stream: TcpStream, peer: SocketAddr, listener: &Rc<Listener>) {
        // Reading shows if a connection is already gone.
        let _ = stream.set_nodelay(true);
        let Ok(local) = stream.local_addr() else {
            // Lost connections are reported together with those that could not be accepted at all.
            self.counters.accept_errors.add(1);
            return;
        };
        self.note_connection_event(ConnectionEvent::Accepted, listener);
        let accepted = FreshConnection { stream, peer, local, listener: listener.clone() };
        match listener.kind() {
            ListenerKind::Http { tls, proxy_protocol, http2 } => self.admit_http(accepted, tls, proxy_protocol, http2),
            ListenerKind::Tcp { tls, tls_passthrough, proxy_protocol } => {
                stream_proxy::admit(self, accepted, tls, tls_passthrough, proxy_protocol);
            }
            ListenerKind::Udp => unreachable!("UDP has no connections to accept"),
        }
    }

    fn admit_http(self: &Rc<Self>, accepted: FreshConnection, tls: bool, proxy_protocol: bool, http2: bool) {
        let FreshConnection { stream, peer, local, listener } = accepted;
        if !self.has_room() {
            self.note_connection_event(ConnectionEvent::Refused, &listener);
            if self.refusals.get() < REFUSALS_MAX {
                self.refusals.set(self.refusals.get() + 1);
                spawn_local(refuse(self.clone(), stream));
            }
            return;
        }
        let open = Open::new(self, &listener);
        let accepted = FreshConnection { stream, peer, local, listener };
        spawn_local(async move {
            let worker = &open.worker;
            let mut client = match tls || proxy_protocol {
                false => {
                    let FreshConnection { stream, listener, .. } = accepted;
                    client_of(Stream::Plain(stream), peer, local, listener, false, worker.clock.now_ms())
                }
                // On the heap, as it ends soon: otherwise every idle connection's task would have room for it.
                true => match Box::pin(accepted.begin(worker, tls, proxy_protocol, http2)).await {
                    Some(client) => client,
                    None => return,
                },
            };
            // A task of its own, as this one is as large as an exchange.
            if let Some(upgraded) = client::serve(worker, &mut client).await {
                devices::go_on(open, client, upgraded);
            }
        });
    }
}

/// The client of an HTTP connection; `https` by TLS or because a proxy says so.
pub(super) fn client_of(
    stream: Stream,
    peer: SocketAddr,
    local: SocketAddr,
    listener: Rc<Listener>,
    is_https: bool,
    now_ms: u64,
) -> ClientConnection {
    let forwarded = untrusted_lines(peer, scheme(is_https)).into();
    let mut client = ClientConnection::with_facts(stream, peer, local, listener, forwarded, None, now_ms);
    client.is_https = is_https;
    client
}

impl FreshConnection {
    /// Handles what comes before HTTP: the PROXY protocol header, the TLS handshake. `None` if the connection is to be closed
    /// instead.
    async fn begin(
        mut self,
        worker: &Worker,
        tls: bool,
        proxy_protocol: bool,
        http2: bool,
    ) -> Option<ClientConnection> {
        let timer = Timer::new();
        let mut is_https = tls;
        if proxy_protocol {
            let forwarded = proxy_protocol::begin(worker, &self.stream, &timer, self.peer, &self.listener).await?;
            (self.peer, self.local) = forwarded.endpoints.unwrap_or((self.peer, self.local));
            is_https |= forwarded.is_tls;
        }
        let FreshConnection { stream, peer, local, listener } = self;
        let (stream, tls) = match tls {
            false => (Stream::Plain(stream), None),
            true => {
                let offer = if http2 { Offer::Http2 } else { Offer::Http1 };
                let secured = handshake::accept(worker, offer, stream, &timer, peer).await?;
                (secured.stream, Some(secured.facts))
            }
        };
        let mut client = client_of(stream, peer, local, listener, is_https, worker.clock.now_ms());
        client.tls = tls.map(Rc::from);
        Some(client)
    }
}

/// Answers 503 to a client that does not fit, and gives it the time to read that.
async fn refuse(worker: Rc<Worker>, mut stream: TcpStream) {
    let polite = async {
        let is_head = tokio::time::timeout(METHOD_TIME, answer::asks_for_head(&stream)).await.unwrap_or(false);
        stream.write_all(&answer::overloaded(is_head)).await?;
        stream.shutdown().await?;
        let mut space = [0; 1024];
        poll_fn(|cx| {
            loop {
                let mut space = ReadBuf::new(&mut space);
                match Pin::new(&mut stream).poll_read(cx, &mut space) {
                    Poll::Ready(Ok(())) if !space.filled().is_empty() => {}
                    Poll::Ready(result) => return Poll::Ready(result),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    };
    // However it ends, the client got the answer or did not listen.
    let _ = tokio::time::timeout(REFUSAL_TIME, polite).await;
    worker.refusals.set(worker.refusals.get() - 1);
}

/// Continues a connection.
pub(crate) fn take_over(worker: &Rc<Worker>, arrival: ReceivedParcel) {
    if let Err(error) = try_take_over(worker, arrival) {
        tracing::warn!(%error, "a connection that the former process handed over is lost");
    }
}

fn try_take_over(worker: &Rc<Worker>, arrival: ReceivedParcel) -> Result<(), ParcelError> {
    let ReceivedParcel { parcel: Parcel { state, bytes, sockets }, is_changed } = arrival;
    let mut streams = sockets.into_iter().map(|socket| stream(socket).map_err(|error| ParcelError(error.to_string())));
    let mut next = || streams.next().unwrap_or_else(|| Err(ParcelError("a socket is missing".to_owned())));
    match state {
        HandedState::Connection(state) => {
            let (open, mut client) = begin(&state, worker, next()?, true)?;
            spawn_local(async move {
                if let Some(upgraded) = client::serve(&open.worker, &mut client).await {
                    devices::go_on(open, client, upgraded);
                }
            });
        }
        HandedState::Device(state) => {
            let (open, client) = begin(&state.connection, worker, next()?, true)?;
            devices::take(open, client, &state, &bytes, is_changed)?;
        }
        HandedState::Tunnel(state) => {
            let (client, node) = (next()?, next()?);
            let is_http = matches!(state.origin, OriginState::Request(_));
            let (open, client) = begin(&state.connection, worker, client, is_http)?;
            spawn_local(Tunnel::resume(open, client, node, &state, &bytes, is_changed)?);
        }
        HandedState::Broadcast { .. } => return Err(ParcelError("a broadcast is not a connection".to_owned())),
    }
    Ok(())
}

/// Restores the connection as it was. It counts as open here, and was accepted elsewhere.
fn begin(
    state: &ConnectionState,
    worker: &Rc<Worker>,
    stream: Stream,
    is_http: bool,
) -> Result<(Open, ClientConnection), ParcelError> {
    let listener = worker.listeners.find_bound(ListenPlace::tcp(state.listener));
    let listener =
        listener.ok_or_else(|| ParcelError(format!("this process does not listen on {}", state.listener)))?;
    if is_http != listener.is_http() {
        return Err(ParcelError(format!("the listener {} does something else here", state.listener)));
    }
    let quiet_since_ms = worker.clock.now_ms().saturating_sub(state.quiet_ms);
    let open = if is_http { Open::new(worker, &listener) } else { Open::of_stream(worker) };
    let mut client = match is_http {
        true => client_of(stream, state.peer, state.local, listener, state.is_https, quiet_since_ms),
        // No header lines describe it to a node.
        false => {
            ClientConnection::with_facts(stream, state.peer, state.local, listener, [].into(), None, quiet_since_ms)
        }
    };
    client.is_new = state.is_new;
    Ok((open, client))
}

fn stream(socket: OwnedFd) -> io::Result<Stream> {
    let socket = Socket::from(socket);
    if socket.r#type()? != Type::STREAM {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a socket of another kind"));
    }
    socket.set_nonblocking(true)?;
    TcpStream::from_std(socket.into()).map(Stream::Plain)
}
