//! Messages between the workers and the thread of devices.
//!
//! ```text
//!   worker ── Report ──▶ one bounded queue ──▶ thread of devices ── Command ──▶ a bounded queue for each worker
//! ```
//!
//! A device's connection belongs to one worker; the thread of devices knows the device's identity and the back-ends that wait for
//! it. Neither waits for the other: a command that finds no room is refused, and reports wait in their worker until there is room.
//! Both sides take everything that has arrived at once.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Instant;
use stillgate_devices::Generation;
use stillgate_devices::protocol::{DeviceProtocol, EncodedBody, MessageId};
use stillgate_devices::session::{Message, MessageRefusal, Notice, ResumeToken, Session, SessionId, SessionLimits};
use stillgate_plugin_api::DeviceSettings;
use tokio::sync::{mpsc, oneshot};

/// Commands that may wait for one worker.
pub const COMMANDS_MAX: usize = 8 * 1024;
/// Reports that may wait for the thread of devices, of all workers.
pub const REPORTS_MAX: usize = 8 * 1024;
/// What the session clock shows at first: anything from another process began before that.
const BEGIN_MS: u64 = 1 << 40;
/// The bits of a connection's number above this identify its worker.
const WORKER_SHIFT: u32 = 44;

/// Milliseconds of the session clock, which all threads of the process share.
pub fn process_ms() -> u64 {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGIN_MS + BEGAN.elapsed().as_millis() as u64
}

/// The worker that has a connection, by the connection's number.
pub fn worker_of(connection: u64) -> usize {
    (connection >> WORKER_SHIFT) as usize
}

/// The number of a worker's connection that is preceded by `count` others.
pub(crate) fn connection_number(worker: usize, count: u64) -> u64 {
    (worker as u64) << WORKER_SHIFT | (count & ((1 << WORKER_SHIFT) - 1))
}

/// The queue ends that belong to the thread of devices.
#[derive(Debug)]
pub struct DeviceQueues {
    /// One for each worker.
    pub commands: Vec<mpsc::Sender<DeviceCommand>>,
    /// From all of them.
    pub reports: mpsc::Receiver<DeviceReport>,
    /// Connections may go to another process once this and all its copies were dropped.
    pub hold: HandoverHold,
}

/// While one exists, no connection goes to another process: a broadcast that runs here has not reached all of them.
#[derive(Debug, Clone, Default)]
pub struct HandoverHold(Arc<()>);

/// Whether there is a [`HandoverHold`].
#[derive(Debug, Clone)]
pub(crate) struct HandoverHoldWitness(Weak<()>);

impl HandoverHold {
    pub(crate) fn seen(&self) -> HandoverHoldWitness {
        HandoverHoldWitness(Arc::downgrade(&self.0))
    }
}

impl HandoverHoldWitness {
    /// Once this is false it stays false: a copy is made of another. A worker's commands hold it until they are done, so the worker
    /// never sees this too early.
    pub(crate) fn is_held(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// What a connection is, for callers that inspect it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFacts {
    /// The device.
    pub device: Arc<str>,
    /// Names and texts of the labels of the connection.
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// The protocol that it speaks.
    pub protocol: DeviceProtocol,
    /// Its address.
    pub peer: SocketAddr,
    /// The id of its route.
    pub route: Arc<str>,
    /// Settings of its route.
    pub settings: Arc<DeviceSettings>,
}

/// A connection that another process had, and its state there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormerConnection {
    /// Generation of the connection.
    pub generation: Generation,
    /// When it began, in milliseconds since 1970.
    pub since_ms: u64,
}

/// What a worker reports.
#[derive(Debug)]
pub enum DeviceReport {
    /// A device requests admission. It waits for the answer; without one it is refused.
    Arrived {
        /// Id of the connection.
        connection: u64,
        /// Facts of the device.
        facts: Box<DeviceFacts>,
        /// Whether it comes from another process, and is connected already.
        former: Option<FormerConnection>,
        /// Where the connection waits for the answer.
        answer: oneshot::Sender<Admission>,
    },
    /// A connection has ended, or did not begin.
    Left {
        /// Id of the connection.
        connection: u64,
        /// The session that the device may resume; `None`: there is none.
        session: Option<Box<Session>>,
        /// Why, as a label of metrics.
        reason: &'static str,
        /// Whether another process continues it.
        is_given: bool,
    },
    /// Messages whose senders can be answered.
    Notices(Vec<Notice>),
    /// A message that was not accepted.
    Refused {
        /// The id of the message.
        id: MessageId,
        /// Why.
        why: MessageRefusal,
    },
    /// The device wants to resume an earlier session.
    Resume {
        /// Id of the connection.
        connection: u64,
        /// Token of the session.
        token: ResumeToken,
    },
    /// The device left before it could resume its session.
    Returned(Box<SessionToResume>),
    /// The device does not resume an earlier session.
    Fresh {
        /// Id of the connection.
        connection: u64,
    },
}

/// A session that a device resumes.
#[derive(Debug)]
pub struct SessionToResume {
    /// The device that owns it.
    pub device: Arc<str>,
    /// The session.
    pub session: Session,
    /// Limits for the session while its device is away.
    pub limits: SessionLimits,
}

/// Whether a device is admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The device is connected from now on.
    Admitted {
        /// Generation of the connection.
        generation: Generation,
        /// The session that the connection begins.
        session: SessionId,
    },
    /// The device is already connected, and its route says `duplicate: refuse`.
    Occupied,
    /// The maximum number of devices is connected.
    Full,
}

/// Why the thread of devices closes a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseWhy {
    /// Another connection has taken its place.
    Replaced,
    /// A back-end has requested it.
    Asked,
}

/// What a worker is instructed to do.
#[derive(Debug)]
pub enum DeviceCommand {
    /// Send this message. Its deadline counts from now.
    Deliver {
        /// Id of the connection.
        connection: u64,
        /// What to send.
        message: Box<Message>,
    },
    /// Send this to several devices, without waiting for acknowledgements.
    Broadcast {
        /// Ids of the connections, all of one protocol.
        connections: Arc<[u64]>,
        /// Id of the message, the same for all.
        id: MessageId,
        /// What to send.
        encoded: EncodedBody,
        /// How long it may wait for a device, in milliseconds.
        timeout_ms: u64,
        /// Held until all devices have it.
        hold: HandoverHold,
    },
    /// Close a connection.
    Close {
        /// Id of the connection.
        connection: u64,
        /// Why.
        why: CloseWhy,
    },
    /// The answer to [`DeviceReport::Resume`].
    Resume {
        /// Id of the connection.
        connection: u64,
        /// The session to resume; `None`: it does not exist.
        session: Option<Box<SessionToResume>>,
    },
    /// Report the state of a connection.
    Inspect {
        /// Id of the connection.
        connection: u64,
        /// Where the answer goes; none: the connection has ended.
        answer: oneshot::Sender<DeviceState>,
    },
    /// Report which devices of the worker have moved most bytes.
    Top {
        /// Where the answer goes: ids and bytes, the most first.
        answer: oneshot::Sender<Vec<(Arc<str>, u64)>>,
    },
}

/// State of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceState {
    /// Milliseconds since anything was received.
    pub quiet_ms: u64,
    /// Bytes of messages that are not done.
    pub queued_bytes: usize,
    /// Bytes from the device.
    pub bytes_received: u64,
    /// Bytes to the device.
    pub bytes_sent: u64,
}

impl DeviceCommand {
    /// The connection that the command is for; `None`: it is for several.
    pub(crate) fn connection(&self) -> Option<u64> {
        match self {
            DeviceCommand::Deliver { connection, .. }
            | DeviceCommand::Close { connection, .. }
            | DeviceCommand::Resume { connection, .. }
            | DeviceCommand::Inspect { connection, .. } => Some(*connection),
            DeviceCommand::Broadcast { .. } | DeviceCommand::Top { .. } => None,
        }
    }
}
