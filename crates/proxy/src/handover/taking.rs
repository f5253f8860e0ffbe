//! The new process's side: connections come in from the thread that receives them and go on where they were.

use super::state::{ConnectionState, Damaged, OriginState, Parcel, State};
use crate::client::{self, Client};
use crate::connection::stream::Stream;
use crate::listen::accept::Open;
use crate::listen::sockets::ListenPlace;
use crate::tunnel::Tunnel;
use crate::worker::Worker;
use socket2::{Socket, Type};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use stillgate_config::Route;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::spawn_local;

/// Connections that may wait for a worker. A tunnel stands still while it waits.
pub const INBOX: usize = 8;

/// A parcel for a worker, with what the new configuration says of it.
pub(crate) struct Arrival {
    pub(crate) parcel: Parcel,
    /// Its route is not what it was in the other process.
    pub(crate) is_changed: bool,
}

/// Where connections from another process go, worker by worker.
pub struct Inbox {
    workers: Vec<mpsc::Sender<Arrival>>,
    next: Cell<usize>,
    /// Keys of routes that are not as they were.
    changed: HashSet<String>,
}

/// What a worker keeps while connections come in, or go.
#[derive(Default)]
pub(crate) struct RoutePlaces {
    /// Places of the routes of HTTP in the Plan of this version, by their ids.
    routes: RefCell<(u64, HashMap<Arc<str>, usize>)>,
}

impl Inbox {
    pub(crate) fn new(workers: Vec<mpsc::Sender<Arrival>>, changed: HashSet<String>) -> Inbox {
        Inbox { workers, next: Cell::new(0), changed }
    }

    /// Gives a connection to a worker, and waits where that has many to begin with. False: there are no workers any more.
    pub fn put(&self, parcel: Parcel) -> bool {
        let is_changed = match &parcel.state {
            State::Connection(_) => false,
            State::Tunnel(tunnel) => self.changed.contains(&tunnel.route),
        };
        let at = self.next.get();
        self.next.set((at + 1) % self.workers.len());
        self.workers[at].blocking_send(Arrival { parcel, is_changed }).is_ok()
    }
}

impl RoutePlaces {
    /// Where a route is in the present Plan.
    pub(crate) fn route(&self, worker: &Worker, id: &str) -> Option<usize> {
        let snapshot = worker.snapshot();
        let (version, places) = &mut *self.routes.borrow_mut();
        if *version != snapshot.version {
            *version = snapshot.version;
            let routes = snapshot.plan.routes.iter().enumerate().filter(|(_, route)| route.route.upgrades);
            *places = routes.map(|(at, route)| (route.route.spec.id.as_str().into(), at)).collect();
        }
        places.get(id).copied()
    }

    /// Whether a route is in the present Plan as it is.
    pub(crate) fn is_present(&self, worker: &Worker, route: &Route) -> bool {
        let found = self.route(worker, &route.spec.id);
        found.is_some_and(|at| worker.snapshot().plan.routes[at].route.spec == route.spec)
    }
}

/// Goes on with a connection.
pub(crate) fn take(worker: &Rc<Worker>, arrival: Arrival) {
    if let Err(error) = try_take(worker, arrival) {
        tracing::warn!(%error, "a connection that the former process handed over is lost");
    }
}

fn try_take(worker: &Rc<Worker>, arrival: Arrival) -> Result<(), Damaged> {
    let Arrival { parcel: Parcel { state, bytes, sockets }, is_changed } = arrival;
    let mut streams = sockets.into_iter().map(|socket| stream(socket).map_err(|error| Damaged(error.to_string())));
    let mut next = || streams.next().unwrap_or_else(|| Err(Damaged("a socket is missing".to_owned())));
    match state {
        State::Connection(state) => {
            let (open, mut client) = state.begin(worker, next()?, true)?;
            spawn_local(async move {
                client::serve(&open.worker, &mut client).await;
                if let Some(switched) = client.switched.take() {
                    spawn_local(Tunnel::new(open, client, *switched));
                }
            });
        }
        State::Tunnel(state) => {
            let (client, node) = (next()?, next()?);
            let is_http = matches!(state.origin, OriginState::Request(_));
            let (open, client) = state.connection.begin(worker, client, is_http)?;
            spawn_local(Tunnel::resume(open, client, node, &state, &bytes, is_changed)?);
        }
    }
    Ok(())
}

impl ConnectionState {
    /// The connection as it was. It counts as open here, and was accepted elsewhere.
    fn begin(&self, worker: &Rc<Worker>, stream: Stream, is_http: bool) -> Result<(Open, Client), Damaged> {
        let place = ListenPlace::tcp(self.listener);
        let listener = (0..worker.addresses.len()).find(|listener| worker.place(*listener) == place);
        let listener = listener.ok_or_else(|| Damaged(format!("nobody listens on {}", self.listener)))?;
        if is_http != (listener < worker.listeners.len()) {
            return Err(Damaged(format!("the listener {} does something else here", self.listener)));
        }
        let quiet_since_ms = worker.clock.now_ms().saturating_sub(self.quiet_ms);
        let mut client = match is_http {
            true => Client::new(stream, self.peer, self.local, listener, self.is_https, quiet_since_ms),
            // Nothing of it is forwarded in lines.
            false => Client::with_facts(stream, self.peer, self.local, listener, [].into(), None, quiet_since_ms),
        };
        client.is_new = self.is_new;
        let open = if is_http { Open::new(worker, listener) } else { Open::of_stream(worker) };
        Ok((open, client))
    }
}

fn stream(socket: OwnedFd) -> io::Result<Stream> {
    let socket = Socket::from(socket);
    if socket.r#type()? != Type::STREAM {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a socket of another kind"));
    }
    socket.set_nonblocking(true)?;
    TcpStream::from_std(socket.into()).map(Stream::Plain)
}
