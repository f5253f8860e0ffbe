//! The old process's side: connections are woken a few at a time, and each hands itself over.

use super::state::Parcel;
use crate::basics::clock::{Clock, WheelPlace};
use crate::connection::stream::Stream;
use crate::telemetry::troubles::Troubles;
use std::cell::Cell;
use std::collections::HashSet;
use std::future::pending;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use stillgate_config::ListenPlace;
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until};

/// Connections that may wait for the thread that sends them, of all workers. A tunnel pauses while it waits.
pub const OUTBOX: usize = 16;
/// Connections that a worker hands over together, and the pause between two such batches: handing over takes CPU in both processes
/// which served requests need meanwhile.
const GIVEN_AT_ONCE: usize = 8;
const GIVE_EVERY: Duration = Duration::from_millis(1);
/// How long a worker that is to end has to hand over what it can.
pub(crate) const GIVING_MS: u64 = 10_000;
/// How long a worker waits for room in the outbox, and between two passes over its connections.
const ROOM_WAIT: Duration = Duration::from_millis(1);
const PASS_WAIT: Duration = Duration::from_millis(20);

/// The process that takes over, and what it takes.
#[derive(Debug)]
pub struct Successor {
    /// Queue for connections and tunnels.
    pub outbox: mpsc::Sender<Parcel>,
    /// Where it listens, with the same sockets as we do.
    pub listening: HashSet<ListenPlace>,
    /// Places in `listening` whose connections it serves as we do.
    pub alike: HashSet<ListenPlace>,
    /// Keys of the routes whose tunnels it can continue.
    pub routes: HashSet<String>,
}

/// A worker that is handing over its connections.
pub(crate) struct LeavingWorker {
    successor: Arc<Successor>,
    /// This process is to end soon: a client that gets an answer is informed that its connection ends.
    pub(crate) is_hurried: bool,
    /// When this process may end, whatever it still has.
    deadline_ms: u64,
    /// Position of the current pass over the timers; `None`: between two passes.
    cursor: Cell<Option<WheelPlace>>,
    /// When the next batch may be given, and how many connections of the previous one may still be given.
    due: Cell<Instant>,
    allowance: Cell<usize>,
    /// Whether another pass may find something: one was given in this pass, or found no room.
    is_worth_a_pass: Cell<bool>,
    /// The last pass was not worth another, and the tasks that it has woken have had time to run.
    is_settled: Cell<bool>,
}

impl LeavingWorker {
    pub(crate) fn new(successor: Arc<Successor>, is_hurried: bool, deadline_ms: u64) -> LeavingWorker {
        LeavingWorker {
            successor,
            is_hurried,
            deadline_ms,
            cursor: Cell::new(None),
            due: Cell::new(Instant::now()),
            allowance: Cell::new(0),
            is_worth_a_pass: Cell::new(true),
            is_settled: Cell::new(false),
        }
    }

    /// Whether the successor has this listener's sockets.
    pub(crate) fn leaves_listener(&self, place: ListenPlace) -> bool {
        self.successor.listening.contains(&place)
    }

    /// Whether connections like this one, which was accepted there, are handed over.
    pub(crate) fn takes(&self, stream: &Stream, place: ListenPlace) -> bool {
        matches!(stream, Stream::Plain(_))
            && self.successor.alike.contains(&place)
            && !self.successor.outbox.is_closed()
    }

    /// Whether tunnels of this route are handed over.
    pub(crate) fn takes_route(&self, key: &str) -> bool {
        self.successor.routes.contains(key)
    }

    /// Whether everything that can be given has been, as far as we know, or the other process takes no more.
    pub(crate) fn is_over(&self) -> bool {
        self.is_settled.get() && !self.is_worth_a_pass.get() || self.successor.outbox.is_closed()
    }

    /// There is something that cannot be given yet.
    pub(crate) fn come_again(&self) {
        self.is_worth_a_pass.set(true);
    }

    /// Whether one more may be given now; otherwise another pass returns to it.
    fn has_room(&self) -> bool {
        let has_room = self.allowance.get() > 0 && self.successor.outbox.capacity() > 0;
        if !has_room {
            self.is_worth_a_pass.set(true);
        }
        has_room
    }

    /// Sends the parcel that `pack` makes, if there is room for it.
    pub(crate) fn send(&self, troubles: &Troubles, pack: impl FnOnce() -> io::Result<Parcel>) -> bool {
        if !self.has_room() {
            return false;
        }
        self.is_worth_a_pass.set(true);
        let Ok(room) = self.successor.outbox.try_reserve() else { return false };
        match pack() {
            Ok(parcel) => {
                room.send(parcel);
                self.allowance.set(self.allowance.get() - 1);
                true
            }
            // Without a descriptor for it, it stays until there is one.
            Err(error) => {
                troubles.note_kept(error);
                false
            }
        }
    }

    /// Wakes the next few, as soon as there is room for them. Cancel-safe.
    pub(crate) async fn turn(&self, clock: &Clock) {
        let Some(from) = self.cursor.get() else {
            if self.is_over() {
                return pending().await;
            }
            sleep(PASS_WAIT).await;
            if !self.is_worth_a_pass.get() {
                self.is_settled.set(true);
                return;
            }
            self.is_worth_a_pass.set(false);
            self.is_settled.set(false);
            self.cursor.set(Some(WheelPlace::default()));
            return;
        };
        match self.is_hurried || clock.now_ms() >= self.deadline_ms {
            // Connections that were woken before are handed over now.
            true => yield_now().await,
            false => sleep_until(self.due.get()).await,
        }
        while self.successor.outbox.capacity() < GIVEN_AT_ONCE && !self.successor.outbox.is_closed() {
            sleep(ROOM_WAIT).await;
        }
        self.allowance.set(GIVEN_AT_ONCE);
        self.cursor.set(clock.wake_some(from, GIVEN_AT_ONCE));
        self.due.set(Instant::now() + GIVE_EVERY);
    }
}

/// One more descriptor of a socket: closing ours leaves the connection as it is.
pub(crate) fn share(stream: &Stream) -> io::Result<OwnedFd> {
    stream.socket().ok_or(io::ErrorKind::Unsupported)?.as_fd().try_clone_to_owned()
}
