//! Why a connection of a device ends, and the close frame that its device gets.

use stillgate_devices::frame::CloseCode;

/// Why a connection has ended, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// The device has closed it, with a close frame.
    Closed,
    /// The device has gone without a close frame: its connection ended or was reset.
    Gone,
    /// Nothing came within `ping_interval` and `ping_timeout`.
    Silent,
    /// It did not read what it was sent.
    Slow,
    /// It sent something that is not a frame.
    Frames,
    /// It sent something that is not a message, or a message that is not accepted.
    Messages,
    /// It sent a message that is too long.
    TooBig,
    /// Another connection of the device has taken its place.
    Replaced,
    /// A back-end has closed it.
    Asked,
    /// The credential that it was admitted with is gone, or its time is over.
    Revoked,
    /// Its route or listener was changed or removed.
    Route,
    /// The process ends.
    Drained,
    /// A bug.
    Failed,
}

impl Reason {
    /// Name of the reason as a label.
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

    /// The close code and reason sent to the device; `None`: nothing is sent, or it is gone.
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
