//! Why a connection of a device ends, and what its device is told.

use stillgate_devices::frame::CloseCode;

/// Why a connection has ended, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// The device has closed it, with a close frame.
    Closed,
    /// The device has gone without one: an end or a reset of its connection.
    Gone,
    /// Nothing came within `ping_interval` and `ping_timeout`.
    Silent,
    /// It did not take what it was sent.
    Slow,
    /// It sent what are no frames.
    Frames,
    /// It sent what is no message, or none that is taken.
    Messages,
    /// It sent too long a message.
    TooBig,
    /// Another connection of the device has taken its place.
    Replaced,
    /// A back-end has closed it.
    Asked,
    /// What it was let in by is gone, or its time is over.
    Revoked,
    /// Its route or listener was changed or removed.
    Route,
    /// The process ends.
    Drained,
    /// A bug.
    Failed,
}

impl Reason {
    /// As the label says it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Reason::Closed => "closed",
            Reason::Gone => "gone",
            Reason::Silent => "silent",
            Reason::Slow => "slow",
            Reason::Frames => "bad_frames",
            Reason::Messages => "bad_messages",
            Reason::TooBig => "too_big",
            Reason::Replaced => "replaced",
            Reason::Asked => "asked",
            Reason::Revoked => "revoked",
            Reason::Route => "route",
            Reason::Drained => "drained",
            Reason::Failed => "failed",
        }
    }

    /// Whether bytes may be lost, so that the end must not look orderly.
    pub(super) fn is_cut(self) -> bool {
        matches!(self, Reason::Silent | Reason::Slow | Reason::Failed)
    }

    /// What the device is told; `None`: nothing, or it is not there.
    pub(super) fn close(self) -> Option<(CloseCode, &'static str)> {
        match self {
            Reason::Replaced => Some((CloseCode::POLICY, "replaced by another connection of this device")),
            Reason::Asked => Some((CloseCode::NORMAL, "closed by a back-end")),
            Reason::Revoked => Some((CloseCode::POLICY, "the credential is no longer valid; authenticate again")),
            Reason::Route => Some((CloseCode::SERVICE_RESTART, "the route has changed; connect again")),
            Reason::Drained => Some((CloseCode::SERVICE_RESTART, "the gateway restarts; connect again")),
            _ => None,
        }
    }
}
