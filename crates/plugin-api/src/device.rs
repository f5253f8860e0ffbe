//! A device whose connection ends in the gateway, as described by the plugin that has admitted it.
//!
//! The plugin answers a WebSocket handshake with [`crate::Answer::device`]; the proxy opens the connection, or refuses
//! it if there is no room, and serves it from then on.

use crate::identity::Identity;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use stillgate_devices::directory::Duplicate;
use stillgate_devices::protocol::DeviceProtocol;
use stillgate_devices::session::{PulseLimits, QueuePolicy};
use stillgate_route::Variable;

/// Longest id of a device, in bytes.
pub const DEVICE_ID_BYTES_MAX: usize = 256;
/// Longest value of a label; longer ones are cut.
pub const DEVICE_LABEL_BYTES_MAX: usize = 128;
/// Bytes of `Sec-WebSocket-Accept`: base64 of 20 bytes.
pub const WEBSOCKET_ACCEPT_BYTES: usize = 28;

/// A route's settings for its devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSettings {
    /// Identity of the plugin's configuration.
    pub identity: Identity,
    /// The variables in ids. A label of a metric with one of these has a series for each device.
    pub id_variables: Box<[Variable]>,
    /// Policy for a second connection of one device.
    pub duplicate: Duplicate,
    /// Policy for messages that do not fit into a device's queue.
    pub policy: QueuePolicy,
    /// How long a session outlives its connection.
    pub resume_ms: u64,
    /// When quiet connections are pinged.
    pub pulse: PulseLimits,
    /// Most new connections in a second, over all workers.
    pub connects_per_second: Option<NonZeroU32>,
    /// Receiver of events; `None`: messages of devices other than acknowledgements and replies are dropped.
    pub events: Option<EventReceiverSettings>,
}

/// Receiver of the events of devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventReceiverSettings {
    /// The key of the upstream.
    pub upstream: Arc<str>,
    /// Path and query of the requests.
    pub uri: Box<str>,
    /// Whether the device's next message is read only after the upstream's 2xx.
    pub is_acknowledged: bool,
    /// Most bytes of one device's waiting events, each counted with 128 more; further ones are dropped.
    pub queue_bytes_max: usize,
    /// Timeout of one attempt.
    pub timeout: Duration,
    /// How long an event is retried, counted from when it happened; then it is dropped.
    pub retry: Duration,
}

/// An admitted device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// At most [`DEVICE_ID_BYTES_MAX`] bytes, without control characters, not empty.
    pub id: Box<str>,
    /// Names and values of its connection's labels, for back-ends.
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// Its protocol.
    pub protocol: DeviceProtocol,
    /// The subprotocol in the response of the handshake.
    pub subprotocol: Option<Box<str>>,
    /// `Sec-WebSocket-Accept` of the response.
    pub accept: [u8; WEBSOCKET_ACCEPT_BYTES],
    /// Settings of its route.
    pub settings: Arc<DeviceSettings>,
}
