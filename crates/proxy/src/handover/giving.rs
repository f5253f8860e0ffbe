//! The old process's side: connections are woken a few at a time, and each gives itself up.

use super::state::Parcel;
use crate::basics::clock::{Clock, Cursor};
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

/// Connections that may wait for the thread that sends them, of all workers. A tunnel stands still while it waits.
pub const OUTBOX: usize = 16;
/// Connections that a worker gives away together, and the time from one such few to the next: giving takes CPU in both processes
/// which those who are served meanwhile need.
const GIVEN_AT_ONCE: usize = 8;
const GIVE_EVERY: Duration = Duration::from_millis(1);
/// A worker that is to end gets this long to give away what it can.
pub(crate) const GIVING_MS: u64 = 10_000;
/// How long a worker waits for room in the outbox, and between two passes over its connections.
const ROOM_WAIT: Duration = Duration::from_millis(1);
const PASS_WAIT: Duration = Duration::from_millis(20);

/// Who takes over, and what.
#[derive(Debug)]
pub struct Successor {
    /// Where connections and tunnels go.
    pub outbox: mpsc::Sender<Parcel>,
    /// Where it listens, with the very sockets that we do.
    pub listening: HashSet<ListenPlace>,
    /// Those of them whose connections it serves as we do.
    pub alike: HashSet<ListenPlace>,
    /// Keys of the routes whose tunnels it can go on with.
    pub routes: HashSet<String>,
}

/// A worker that is giving away what it has.
pub(crate) struct Giving {
    successor: Arc<Successor>,
    /// This process is to end soon: who is told something is told that its connection ends.
    pub(crate) is_hurried: bool,
    /// When this process may end, whatever it has still.
    deadline_ms: u64,
    /// Where the present pass over the timers is; `None`: between two.
    cursor: Cell<Option<Cursor>>,
    /// When the next may be given, and how many of those before may be still.
    due: Cell<Instant>,
    allowance: Cell<usize>,
    /// Whether another pass may find something: one was given in this pass, or found no room.
    is_worth_a_pass: Cell<bool>,
    /// The last pass was not worth another, and those whom it has woken have had time to run.
    is_settled: Cell<bool>,
}

impl Giving {
    pub(crate) fn new(successor: Arc<Successor>, is_hurried: bool, deadline_ms: u64) -> Giving {
        Giving {
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

    /// Whether connections like this one, which was accepted there, are given away.
    pub(crate) fn takes(&self, stream: &Stream, place: ListenPlace) -> bool {
        matches!(stream, Stream::Plain(_))
            && self.successor.alike.contains(&place)
            && !self.successor.outbox.is_closed()
    }

    /// Whether tunnels of this route are.
    pub(crate) fn takes_route(&self, key: &str) -> bool {
        self.successor.routes.contains(key)
    }

    /// Whether everything that can be given has been, as far as we know, or nobody takes it.
    pub(crate) fn is_over(&self) -> bool {
        self.is_settled.get() && !self.is_worth_a_pass.get() || self.successor.outbox.is_closed()
    }

    /// There is something that cannot be given yet.
    pub(crate) fn come_again(&self) {
        self.is_worth_a_pass.set(true);
    }

    /// Whether one more may be given now; else another pass comes back to it.
    fn has_room(&self) -> bool {
        let has_room = self.allowance.get() > 0 && self.successor.outbox.capacity() > 0;
        if !has_room {
            self.is_worth_a_pass.set(true);
        }
        has_room
    }

    /// Sends what `pack` makes, if there is room for it.
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

    /// Wakes the next few, as soon as there is room for them. Can be dropped at any time.
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
            self.cursor.set(Some(Cursor::default()));
            return;
        };
        match self.is_hurried || clock.now_ms() >= self.deadline_ms {
            // Those who were woken before give themselves up now.
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
