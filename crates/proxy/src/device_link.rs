//! What the workers and the thread of devices say to each other.
//!
//! ```text
//!   worker ── Report ──▶ one bounded queue ──▶ thread of devices ── Command ──▶ a bounded queue for each worker
//! ```
//!
//! A device's connection belongs to one worker; who it is, and what back-ends wait for, is known to the thread of devices. Neither
//! waits for the other: a command that finds no room is refused, and reports wait in their worker until there is room. Both sides take
//! all that has come at once.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Instant;
use stillgate_devices::Generation;
use stillgate_devices::protocol::{Encoded, MessageId, Protocol};
use stillgate_devices::session::{Message, Notice, Refused, ResumeToken, Session, SessionId, SessionLimits};
use stillgate_plugin::DeviceSettings;
use tokio::sync::{mpsc, oneshot};

/// Commands that may wait for one worker.
pub const COMMANDS_MAX: usize = 8 * 1024;
/// Reports that may wait for the thread of devices, of all workers.
pub const REPORTS_MAX: usize = 8 * 1024;
/// What the clock of sessions shows at first: what came from another process has begun before that.
const BEGIN_MS: u64 = 1 << 40;
/// Above this are the bits of a connection's number that are its worker's.
const WORKER_SHIFT: u32 = 44;

/// Milliseconds of the clock that sessions are timed by, which all threads of the process share.
pub fn process_ms() -> u64 {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGIN_MS + BEGAN.elapsed().as_millis() as u64
}

/// The worker that has a connection, by the connection's number.
pub fn worker_of(connection: u64) -> usize {
    (connection >> WORKER_SHIFT) as usize
}

/// The number of a worker's connection, of which it has had `count` before.
pub(crate) fn connection_number(worker: usize, count: u64) -> u64 {
    (worker as u64) << WORKER_SHIFT | (count & ((1 << WORKER_SHIFT) - 1))
}

/// The ends of the queues that are the thread's of devices.
#[derive(Debug)]
pub struct DeviceQueues {
    /// One for each worker.
    pub commands: Vec<mpsc::Sender<Command>>,
    /// From all of them.
    pub reports: mpsc::Receiver<Report>,
    /// Dropped with all its copies, connections may go to another process.
    pub hold: Hold,
}

/// While there is one, no connection goes to another process: a broadcast that runs here has not come to all of them.
#[derive(Debug, Clone, Default)]
pub struct Hold(Arc<()>);

/// Whether there is a [`Hold`].
#[derive(Debug, Clone)]
pub(crate) struct Held(Weak<()>);

impl Hold {
    pub(crate) fn seen(&self) -> Held {
        Held(Arc::downgrade(&self.0))
    }
}

impl Held {
    /// Once this is false it stays so: a copy is made of another. What a worker has been sent holds until it has done it, so
    /// that it never sees this too early.
    pub(crate) fn is_held(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// What a connection is, for those who ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Who it is.
    pub device: Arc<str>,
    /// Names and texts of the connection.
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// How it speaks.
    pub protocol: Protocol,
    /// Its address.
    pub peer: SocketAddr,
    /// The id of its route.
    pub route: Arc<str>,
    /// Those of its route.
    pub settings: Arc<DeviceSettings>,
}

/// A connection that another process has had, and what it was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Former {
    /// Of the connection.
    pub generation: Generation,
    /// When it began, in milliseconds since 1970.
    pub since_ms: u64,
}

/// What a worker tells.
#[derive(Debug)]
pub enum Report {
    /// A device wants to come in. It waits for the answer; one that gets none is refused.
    Arrived {
        /// Of the connection.
        connection: u64,
        /// What it is.
        facts: Box<DeviceFacts>,
        /// Whether it comes from another process, and is connected already.
        former: Option<Former>,
        /// Where it waits.
        answer: oneshot::Sender<Admission>,
    },
    /// A connection has ended, or was not begun.
    Left {
        /// Of the connection.
        connection: u64,
        /// What the device may come back to; `None`: nothing.
        session: Option<Box<Session>>,
        /// Why, as metrics have it.
        reason: &'static str,
        /// Whether another process goes on with it.
        is_given: bool,
    },
    /// Messages whose senders can be answered.
    Notices(Vec<Notice>),
    /// A message that was not taken.
    Refused {
        /// The message's.
        id: MessageId,
        /// Why.
        why: Refused,
    },
    /// The device wants to go on with a session of before.
    Resume {
        /// Of the connection.
        connection: u64,
        /// Which one.
        token: ResumeToken,
    },
    /// The device is gone again before it could go on with its session.
    Returned(Box<Before>),
    /// The device does not go on with a session of before.
    Fresh {
        /// Of the connection.
        connection: u64,
    },
}

/// A session that a device comes back to.
#[derive(Debug)]
pub struct Before {
    /// Whose it is.
    pub device: Arc<str>,
    /// The session.
    pub session: Session,
    /// How it is kept while its device is away.
    pub limits: SessionLimits,
}

/// Whether a device may come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It is connected from now on.
    Admitted {
        /// Of the connection.
        generation: Generation,
        /// Of the session that it begins.
        session: SessionId,
    },
    /// It is connected already, and its route says `duplicate: refuse`.
    Occupied,
    /// As many devices are connected as may be.
    Full,
}

/// Why the thread of devices closes a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseWhy {
    /// Another connection has taken its place.
    Replaced,
    /// A back-end wants it.
    Asked,
}

/// What a worker is told.
#[derive(Debug)]
pub enum Command {
    /// Send this message. Its deadline is the time from now.
    Deliver {
        /// Of the connection.
        connection: u64,
        /// What to send.
        message: Box<Message>,
    },
    /// Send this to several devices, without waiting for acknowledgements.
    Broadcast {
        /// Of the connections, all of one protocol.
        connections: Arc<[u64]>,
        /// The same for all.
        id: MessageId,
        /// What to send.
        encoded: Encoded,
        /// How long it may wait for a device, in milliseconds.
        timeout_ms: u64,
        /// Until all have it.
        hold: Hold,
    },
    /// Close a connection.
    Close {
        /// Of the connection.
        connection: u64,
        /// Why.
        why: CloseWhy,
    },
    /// The answer to [`Report::Resume`].
    Resume {
        /// Of the connection.
        connection: u64,
        /// The session to go on with; `None`: it is not there.
        session: Option<Box<Before>>,
    },
    /// Tell how a connection is.
    Inspect {
        /// Of the connection.
        connection: u64,
        /// Where the answer goes; none: the connection has ended.
        answer: oneshot::Sender<DeviceState>,
    },
    /// Tell which devices of the worker have moved most bytes.
    Top {
        /// Where the answer goes: ids and bytes, the most first.
        answer: oneshot::Sender<Vec<(Arc<str>, u64)>>,
    },
}

/// How a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceState {
    /// Milliseconds since something was heard.
    pub quiet_ms: u64,
    /// Bytes of messages that are not done.
    pub queued_bytes: usize,
    /// Bytes from the device.
    pub bytes_received: u64,
    /// Bytes to it.
    pub bytes_sent: u64,
}

impl Command {
    /// The connection that it is for; `None`: it is for several.
    pub(crate) fn connection(&self) -> Option<u64> {
        match self {
            Command::Deliver { connection, .. }
            | Command::Close { connection, .. }
            | Command::Resume { connection, .. }
            | Command::Inspect { connection, .. } => Some(*connection),
            Command::Broadcast { .. } | Command::Top { .. } => None,
        }
    }
}
