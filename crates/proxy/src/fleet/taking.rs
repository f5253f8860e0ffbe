//! Connections that another process hands over continue where they were.

use super::accept::client_of;
use crate::client;
use crate::connection::client::ClientConnection;
use crate::connection::stream::Stream;
use crate::devices;
use crate::handover::{Arrival, ConnectionState, HandedState, OriginState, Parcel, ParcelError};
use crate::tunnel::Tunnel;
use crate::worker::{Open, Worker};
use socket2::{Socket, Type};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use stillgate_config::ListenPlace;
use tokio::net::TcpStream;
use tokio::task::spawn_local;

/// Continues a connection.
pub(crate) fn take(worker: &Rc<Worker>, arrival: Arrival) {
    if let Err(error) = try_take(worker, arrival) {
        tracing::warn!(%error, "a connection that the former process handed over is lost");
    }
}

fn try_take(worker: &Rc<Worker>, arrival: Arrival) -> Result<(), ParcelError> {
    let Arrival { parcel: Parcel { state, bytes, sockets }, is_changed } = arrival;
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
    let listener = listener.ok_or_else(|| ParcelError(format!("nobody listens on {}", state.listener)))?;
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
