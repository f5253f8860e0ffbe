//! The state of a connection besides its sockets, as it is serialised for another process.
//!
//! A parcel is one datagram: a line of JSON, then the bytes that the connection holds, with its descriptors as ancillary data.
//! Bytes are not part of the JSON, so that a parcel stays below the maximum size of a datagram. Unknown keys are ignored; missing
//! keys, and lengths that do not fit, make a parcel damaged.

use crate::basics::buffer::BUFFER_BYTES;
use crate::plan::TunnelBounds;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use stillgate_plugin_api::record::NodeTry;
use stillgate_wire::HEAD_BYTES_MAX;

/// Maximum size of a parcel: a head, two full buffers, and the state that describes them.
pub const PARCEL_BYTES_MAX: usize = HEAD_BYTES_MAX + 2 * BUFFER_BYTES + STATE_BYTES_MAX;
/// Maximum size of its line of JSON. If a route's key is longer than fits, its tunnels cannot be handed over.
const STATE_BYTES_MAX: usize = 32 * 1024;

/// Maximum size of the messages that a device has not acknowledged. With more its connection is not handed over.
pub(crate) const DEVICE_MESSAGES_BYTES_MAX: usize = 2 * BUFFER_BYTES;
/// Maximum number of these messages, so that their names fit.
pub(crate) const DEVICE_MESSAGES_MAX: usize = 128;

/// Maximum size of what is known of a broadcast.
pub const BROADCAST_BYTES_MAX: usize = 2 * BUFFER_BYTES;

/// Maximum of a count, in bytes or units of time, that another process reports: added up it does not overflow.
pub(crate) const COUNT_MAX: u64 = u64::MAX / 4;

/// A connection on its way to another process.
#[derive(Debug)]
pub struct Parcel {
    /// Its state.
    pub state: HandedState,
    /// Bytes that it holds: for a tunnel the head of its request, then what is on its way to the node and to the client.
    pub bytes: Vec<u8>,
    /// The client's socket, and for a tunnel the node's.
    pub sockets: Vec<OwnedFd>,
}

/// State of a connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandedState {
    /// It waits for a request.
    Connection(ConnectionState),
    /// It is tied to a node's.
    Tunnel(Box<TunnelState>),
    /// It is a device's connection.
    Device(Box<DeviceState>),
    /// It is not a connection, but the state of a broadcast to devices, in so many bytes.
    Broadcast {
        /// Length of the payload that follows.
        bytes: usize,
    },
}

/// State of every connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConnectionState {
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    /// Address of the listener that has accepted it.
    pub(crate) listener: SocketAddr,
    /// A balancer in front of us terminated the client's TLS.
    #[serde(default)]
    pub(crate) is_https: bool,
    /// Nothing has been served on it.
    pub(crate) is_new: bool,
    /// How long it has been waiting.
    pub(crate) quiet_ms: u64,
}

/// State of a tunnel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TunnelState {
    pub(crate) connection: ConnectionState,
    /// Address of the client.
    pub(crate) address: IpAddr,
    pub(crate) origin: OriginState,
    /// Key of its route, as in a [`super::RouteDigest`].
    pub(crate) route: String,
    /// The upstream that a plugin has chosen; `None`: it is the route's own.
    #[serde(default)]
    pub(crate) upstream: Option<String>,
    pub(crate) node: SocketAddr,
    /// The node as it is configured.
    pub(crate) node_host: String,
    /// What becomes of it when its route is changed; `None`: it continues.
    pub(crate) policy: Option<PolicyState>,
    /// Milliseconds since the lease was revoked.
    pub(crate) revoked_ms: Option<u64>,
    pub(crate) bounds: TunnelBounds,
    pub(crate) age_ms: u64,
    /// Client to node.
    pub(crate) up: DirectionState,
    /// Node to client.
    pub(crate) down: DirectionState,
}

/// State of a device's connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceState {
    pub(crate) connection: ConnectionState,
    /// Address of the client.
    pub(crate) address: IpAddr,
    pub(crate) request: RequestState,
    /// Key of its route, as in a [`super::RouteDigest`].
    pub(crate) route: String,
    pub(crate) device: String,
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) protocol: ProtocolState,
    /// Generation of the connection.
    pub(crate) generation: u64,
    /// When the connection began, in milliseconds since 1970.
    pub(crate) since_ms: u64,
    /// Its session, in hexadecimal digits, and the number of the last message in it.
    pub(crate) session: String,
    pub(crate) sent: u64,
    /// Messages that the device has not acknowledged; their bytes follow those of the head.
    pub(crate) messages: Vec<MessageState>,
    /// Whether it is known if the device resumes an earlier session.
    pub(crate) is_settled: bool,
    pub(crate) credential: Option<CredentialState>,
    pub(crate) received: u64,
    pub(crate) written: u64,
    /// The number of its last event.
    pub(crate) events: u64,
}

/// The protocol that a device speaks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ProtocolState {
    Json,
    Cbor,
    Raw,
}

/// A message that a device has not acknowledged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct MessageState {
    /// The id in hexadecimal digits.
    pub(crate) id: String,
    pub(crate) seq: u64,
    pub(crate) bytes: usize,
    pub(crate) is_text: bool,
}

/// What a device was admitted with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CredentialState {
    pub(crate) consumer: String,
    pub(crate) credential: Option<String>,
    pub(crate) mark: u64,
    pub(crate) until_ms: Option<u64>,
}

/// What the access log and the metrics will record of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OriginState {
    Request(RequestState),
    Session(SessionState),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SessionState {
    pub(crate) status: u16,
    pub(crate) server_name: Option<String>,
    /// The nodes that were tried, as for a request.
    #[serde(default)]
    pub(crate) tries: Vec<NodeTry>,
    pub(crate) connect_us: Option<u64>,
    pub(crate) started_us: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RequestState {
    /// Bytes of the request's head.
    pub(crate) head: usize,
    /// Which of the route's paths matched; `None`: the route has changed since.
    pub(crate) path: Option<usize>,
    pub(crate) status: u16,
    /// Bytes of the response's head.
    pub(crate) head_bytes: u64,
    pub(crate) upstream_us: Option<u64>,
    /// The nodes that were tried; empty if the other process does not report them.
    #[serde(default)]
    pub(crate) tries: Vec<NodeTry>,
    /// When its first bytes came, and when its node was chosen; `None`: these times were not needed.
    pub(crate) started_us: Option<u64>,
    pub(crate) node_since_us: Option<u64>,
}

/// `on_change` of its route.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PolicyState {
    Drain,
    Close,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct DirectionState {
    /// Bytes read and not yet written.
    pub(crate) held: usize,
    pub(crate) ends: Ends,
    pub(crate) read: u64,
    pub(crate) written: u64,
    /// How long nothing has moved.
    pub(crate) quiet_ms: u64,
}

/// State of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ends {
    Open,
    /// The sender has ended; the receiver has not been notified.
    Untold,
    Told,
}

/// Why the data received is not a valid parcel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParcelError(pub(crate) String);

impl fmt::Display for ParcelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ParcelError {}

impl Parcel {
    /// Whether it is a connection. Otherwise it is a message.
    pub fn is_connection(&self) -> bool {
        !matches!(self.state, HandedState::Broadcast { .. })
    }

    /// The datagram; the sockets are sent along with it.
    pub fn encode(&self) -> Vec<u8> {
        let mut datagram = serde_json::to_vec(&self.state).expect("plain values have a JSON form");
        datagram.push(b'\n');
        datagram.extend_from_slice(&self.bytes);
        datagram
    }

    /// Decodes a datagram and what came with it. Numbers beyond [`COUNT_MAX`] are taken for it.
    pub fn decode(datagram: &[u8], sockets: Vec<OwnedFd>) -> Result<Parcel, ParcelError> {
        let end =
            datagram.iter().position(|byte| *byte == b'\n').ok_or_else(|| ParcelError("it has no end".to_owned()))?;
        let mut state: HandedState =
            serde_json::from_slice(&datagram[..end]).map_err(|error| ParcelError(error.to_string()))?;
        let bytes = datagram[end + 1..].to_vec();
        if sockets.len() != state.sockets() {
            return Err(ParcelError(format!("it came with {} sockets", sockets.len())));
        }
        if state.bytes() != Some(bytes.len()) {
            return Err(ParcelError(format!("it came with {} bytes", bytes.len())));
        }
        state.clamp();
        Ok(Parcel { state, bytes, sockets })
    }
}

impl HandedState {
    fn sockets(&self) -> usize {
        match self {
            HandedState::Connection(_) | HandedState::Device(_) => 1,
            HandedState::Tunnel(_) => 2,
            HandedState::Broadcast { .. } => 0,
        }
    }

    fn clamp(&mut self) {
        let clamp = |count: &mut u64| *count = COUNT_MAX.min(*count);
        let tunnel = match self {
            HandedState::Connection(_) | HandedState::Broadcast { .. } => return,
            HandedState::Tunnel(tunnel) => tunnel,
            HandedState::Device(device) => {
                let DeviceState { received, written, sent, events, generation, request, .. } = &mut **device;
                let RequestState { head_bytes, upstream_us, .. } = request;
                [received, written, sent, events, generation, head_bytes].into_iter().for_each(clamp);
                return upstream_us.iter_mut().for_each(clamp);
            }
        };
        let TunnelBounds { idle_ms, total_ms, node_send_ms, client_send_ms, drain_ms } = &mut tunnel.bounds;
        [idle_ms, total_ms, node_send_ms, client_send_ms, drain_ms].into_iter().for_each(clamp);
        [&mut tunnel.up.read, &mut tunnel.up.written, &mut tunnel.down.read, &mut tunnel.down.written]
            .into_iter()
            .for_each(clamp);
        match &mut tunnel.origin {
            OriginState::Request(RequestState { head_bytes, upstream_us, tries, .. }) => {
                clamp(head_bytes);
                upstream_us.iter_mut().for_each(clamp);
                tries.iter_mut().flat_map(|tried| &mut tried.connect_us).for_each(clamp);
            }
            OriginState::Session(SessionState { connect_us, tries, .. }) => {
                connect_us.iter_mut().for_each(clamp);
                tries.iter_mut().flat_map(|tried| &mut tried.connect_us).for_each(clamp);
            }
        }
    }

    /// How many bytes it must come with; `None`: more than it may.
    fn bytes(&self) -> Option<usize> {
        let tunnel = match self {
            HandedState::Connection(_) => return Some(0),
            HandedState::Broadcast { bytes } => return Some(*bytes).filter(|bytes| *bytes <= BROADCAST_BYTES_MAX),
            HandedState::Tunnel(tunnel) => tunnel,
            HandedState::Device(device) => {
                let messages =
                    device.messages.iter().try_fold(0, |sum: usize, message| sum.checked_add(message.bytes))?;
                let may_be = device.request.head <= HEAD_BYTES_MAX && messages <= DEVICE_MESSAGES_BYTES_MAX;
                return may_be.then_some(device.request.head + messages);
            }
        };
        let head = match tunnel.origin {
            OriginState::Request(RequestState { head, .. }) => head,
            OriginState::Session(_) => 0,
        };
        let may_be = head <= HEAD_BYTES_MAX && tunnel.up.held <= BUFFER_BYTES && tunnel.down.held <= BUFFER_BYTES;
        may_be.then(|| head + tunnel.up.held + tunnel.down.held)
    }
}
