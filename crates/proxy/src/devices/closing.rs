//! Why a connection of a device ends, and the close frame that its device gets.

use stillgate_devices::frame::CloseCode;

/// Why a connection has ended, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CloseReason {
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

impl CloseReason {
    /// Name of the reason as a label.
    pub(super) fn name(self) -> &'static str {
        match self {
            CloseReason::Closed => "closed",
            CloseReason::Gone => "gone",
            CloseReason::Silent => "silent",
            CloseReason::Slow => "slow",
            CloseReason::Frames => "bad_frames",
            CloseReason::Messages => "bad_messages",
            CloseReason::TooBig => "too_big",
            CloseReason::Replaced => "replaced",
            CloseReason::Asked => "asked",
            CloseReason::Revoked => "revoked",
            CloseReason::Route => "route",
            CloseReason::Drained => "drained",
            CloseReason::Failed => "failed",
        }
    }

    /// Whether bytes may be lost, so that the end must not look orderly.
    pub(super) fn is_cut(self) -> bool {
        matches!(self, CloseReason::Silent | CloseReason::Slow | CloseReason::Failed)
    }

    /// The close code and reason sent to the device; `None`: nothing is sent, or it is gone.
    pub(super) fn close(self) -> Option<(CloseCode, &'static str)> {
        match self {
            CloseReason::Replaced => Some((CloseCode::POLICY, "replaced by another connection of this device")),
            CloseReason::Asked => Some((CloseCode::NORMAL, "closed by a back-end")),
            CloseReason::Revoked => Some((CloseCode::POLICY, "the credential is no longer valid; authenticate again")),
            CloseReason::Route => Some((CloseCode::SERVICE_RESTART, "the route has changed; connect again")),
            CloseReason::Drained => Some((CloseCode::SERVICE_RESTART, "the gateway restarts; connect again")),
            _ => None,
        }
    }
}
