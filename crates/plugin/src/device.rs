//! A device whose connection is to end in the gateway, as the plugin says it that has let it in.
//!
//! The plugin answers a handshake of WebSocket with [`crate::Answer::device`]; the proxy opens the connection, or refuses it
//! where there is no room, and serves it from then on.

use crate::definition::Identity;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use stillgate_devices::directory::Duplicate;
use stillgate_devices::protocol::Protocol;
use stillgate_devices::session::{Policy, PulseLimits};
use stillgate_route::Variable;

/// The longest id of a device, in bytes.
pub const DEVICE_ID_BYTES_MAX: usize = 256;
/// The longest value of a label; what is longer is cut.
pub const DEVICE_LABEL_BYTES_MAX: usize = 128;
/// Bytes of `Sec-WebSocket-Accept`: base64 of 20 bytes.
pub const WEBSOCKET_ACCEPT_BYTES: usize = 28;

/// How a route serves its devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSettings {
    /// Of the plugin's configuration.
    pub identity: Identity,
    /// What ids are made of. A label of a metric with one of these has a series for each device.
    pub id_variables: Box<[Variable]>,
    /// What becomes of a second connection of one device.
    pub duplicate: Duplicate,
    /// What becomes of messages that do not fit into a device's queue.
    pub policy: Policy,
    /// How long a session outlives its connection.
    pub resume_ms: u64,
    /// When quiet connections are pinged.
    pub pulse: PulseLimits,
    /// Connections that may begin in a second, over all workers.
    pub connects_per_second: Option<NonZeroU32>,
    /// Where events go; `None`: what devices say beside acknowledgements and replies is dropped.
    pub events: Option<EventSettings>,
}

/// Where the events of devices go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventSettings {
    /// The key of the upstream.
    pub upstream: Arc<str>,
    /// Path and query of the requests.
    pub uri: Box<str>,
    /// Whether the upstream's 2xx is waited for before the device's next message is read.
    pub is_acknowledged: bool,
    /// Bytes of one device's events that wait, each with 64 more; further ones are dropped.
    pub queue_bytes_max: usize,
    /// For one try.
    pub timeout: Duration,
    /// How long an event is tried, from its first try on; then it is dropped.
    pub retry: Duration,
}

/// A device that was let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// At most [`DEVICE_ID_BYTES_MAX`] bytes, without control characters, not empty.
    pub id: Box<str>,
    /// Names and texts of its connection, for back-ends.
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// How it speaks.
    pub protocol: Protocol,
    /// What the handshake names.
    pub subprotocol: Option<Box<str>>,
    /// `Sec-WebSocket-Accept` of the handshake.
    pub accept: [u8; WEBSOCKET_ACCEPT_BYTES],
    /// Those of its route.
    pub settings: Arc<DeviceSettings>,
}
