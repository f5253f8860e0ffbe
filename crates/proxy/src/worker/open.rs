//! A connection just accepted, whether there is room for it, and an open connection as it is counted.

use super::Worker;
use crate::sockets::listener::Listener;
use std::net::SocketAddr;
use std::rc::Rc;
use tokio::net::TcpStream;

/// A connection of which nothing has been read.
pub(crate) struct FreshConnection {
    pub(crate) stream: TcpStream,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) listener: Rc<Listener>,
}

impl Worker {
    /// Whether the worker's limit leaves room for one more connection or HTTP/2 stream: a stream takes what a connection takes,
    /// descriptors and buffers, and may become a tunnel that counts as one.
    pub(crate) fn has_room(&self) -> bool {
        let share = self.snapshot().plan.settings.connections_max as u64;
        self.counters.connections_open.get() + self.streams.get() < share
    }
}

/// Counts an open connection, and notices one whose task panicked.
pub(crate) struct Open {
    pub(crate) worker: Rc<Worker>,
    /// `None`: a connection of streams, whose connections are not reported by state.
    listener: Option<Rc<Listener>>,
}

impl Open {
    /// Counts one more connection.
    pub(crate) fn new(worker: &Rc<Worker>, listener: &Rc<Listener>) -> Open {
        worker.counters.connections_open.add(1);
        listener.open.add(1);
        worker.turns.note_news();
        Open { worker: worker.clone(), listener: Some(listener.clone()) }
    }

    /// Like `new`, for a connection that carries no HTTP.
    pub(crate) fn of_stream(worker: &Rc<Worker>) -> Open {
        worker.counters.connections_open.add(1);
        Open { worker: worker.clone(), listener: None }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.worker.counters.connections_open.sub(1);
        if let Some(listener) = &self.listener {
            listener.open.sub(1);
            self.worker.turns.note_news();
        }
        if std::thread::panicking() {
            self.worker.counters.panics.add(1);
        }
    }
}
