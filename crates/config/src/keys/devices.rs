//! The keys of `gateway.devices`: the node of devices that this process is, and its API for back-ends.

use crate::keys::admin::{ADMIN_KEY, AdminKey, AdminTls, check_keys};
use crate::keys::files::PEM;
use crate::values::{DeviceRegistry, Pem};
use ipnet::IpNet;
use serde_json::{Value as Json, json};
use std::net::SocketAddr;
use stillgate_plugin_api::Secret;
use stillgate_plugin_api::secrets::SECRET;
use stillgate_schema::description::Definitions;
use stillgate_schema::kind::{ADDRESS, Flag, Kind, SecretHolder, Text, int, list, read, report_expected, text};
use stillgate_schema::matching::{NETWORK, OWN_NAME};
use stillgate_schema::object;
use stillgate_schema::object::map;
use stillgate_schema::quantity::{Size, size};
use stillgate_schema::text::diagnostic::{Fault, Path, Sink, shortened};
use stillgate_schema::text::tree::within;
use stillgate_schema::text::tree::{Node, Value};

/// The largest `gateway.devices.limits.devices`.
pub const DEVICES_MAX: usize = 10_000_000;
/// The largest `gateway.devices.limits.message_bytes`, and what a queue may hold at least.
pub const MESSAGE_BYTES_MAX: usize = 1024 * 1024;

const MESSAGE_BYTES: Size = size(64, MESSAGE_BYTES_MAX);
const QUEUE_BYTES: Size = size(1024, 16 * 1024 * 1024);
const NODE_BYTES: Size = size(1024 * 1024, 64 << 30);

object! {
    /// Long-lived device connections, and the API that sends messages to them: see [devices.md](devices.md). Routes
    /// with the plugin `device-gateway` accept the connections.
    pub struct Devices {
        /// Unique name of this node. Default: the host name.
        node: String = NODE_NAME => optional;
        /// Device API listen address: `IP:PORT`.
        address: SocketAddr = ADDRESS => required;
        /// An `admin` key, sent as `X-API-KEY`; shorthand for one entry of `keys`. Without `key` and `keys`, only
        /// loopback may use the API.
        key: Secret = ADMIN_KEY => optional;
        /// Keys with their roles: `viewer` may read, `admin` may also send and disconnect.
        keys: Vec<AdminKey> = SecretHolder(list(map::<AdminKey>())) => default(Vec::new());
        /// Networks that may connect; all others get 403. Default: all networks if there is a key, otherwise loopback
        /// only.
        allow: Vec<IpNet> = list(NETWORK) => optional;
        /// Host names accepted over loopback without a key, besides `localhost`, IP addresses and the machine's own
        /// name. Any other `Host` gets 403, so that web pages cannot reach the API through a browser (DNS rebinding).
        hosts: Vec<String> = list(OWN_NAME) => default(Vec::new());
        /// TLS for this address; plain HTTP if absent.
        tls: AdminTls = map::<AdminTls>() => optional;
        /// How other nodes reach this one; needed with `registry: {redis: …}`.
        peer: DevicePeer = map::<DevicePeer>() => optional;
        /// Where to record each device's node: `memory` for one node, `{redis: …}` for several.
        registry: DeviceRegistry = Registry => default(DeviceRegistry::Memory);
        /// Size and count limits.
        limits: DeviceLimits = map::<DeviceLimits>() => nested;
    }
}

object! {
    /// How other nodes reach this one: HTTP/2 over mutual TLS.
    pub struct DevicePeer {
        /// Listen address for other nodes: `IP:PORT`.
        address: SocketAddr = ADDRESS => required;
        /// Address given to other nodes, if not `address`: `HOST:PORT`.
        advertise: String = HOST_AND_PORT => optional;
        /// TLS between nodes. `client_ca` is required and must have signed the certificates of all nodes. Each must
        /// have its node's name as a SAN: of type DNS, unless the name is an IP address. Without TLS, only loopback
        /// addresses are allowed.
        tls: AdminTls = map::<AdminTls>() => optional;
    }
}

object! {
    /// Limits on sizes and counts for devices.
    pub struct DeviceLimits: Copy, Eq {
        /// Maximum devices connected to this node; further ones get 503.
        devices: usize = int(1, DEVICES_MAX as i64) => default(1_000_000);
        /// Bytes of messages queued for one device or awaiting its acknowledgement, plus 64 bytes per message. When the
        /// queue is full, the route's `queue_policy` applies.
        queue_bytes: usize = QUEUE_BYTES => default(128 * 1024);
        /// Maximum message size in either direction. A larger one to a device gets 413; a device that sends one is
        /// disconnected (1009).
        message_bytes: usize = MESSAGE_BYTES => default(64 * 1024);
        /// Bytes of messages queued for all devices of this node; beyond that, messages get 429. The events of devices, and
        /// messages of devices that are not complete yet, may each take as much again.
        node_bytes: usize = NODE_BYTES => default(256 * 1024 * 1024);
    }
}

object! {
    /// A registry in Redis or Valkey.
    pub struct RedisKeys {
        /// Its address: `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]`, or `rediss://…` for TLS. For a cluster, the address of one of its servers.
        url: Secret = SECRET => required;
        /// Whether it is a Redis Cluster.
        cluster: bool = Flag => default(false);
        /// With `rediss://`, the CA certificates to trust: PEM, or a PEM file. Default: the system's.
        ca: Pem = PEM => optional;
    }
}

/// `gateway.devices`, whose keys do not repeat each other.
pub(crate) struct DevicesSection;

impl Kind for DevicesSection {
    type Out = Devices;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Devices> {
        let devices = map::<Devices>().read(node, path, sink)?;
        check_keys(devices.key.as_ref(), &devices.keys, node, path, sink);
        check_sharing(&devices, node, path, sink);
        let least = devices.limits.message_bytes + QUEUED_MESSAGE_BYTES;
        if devices.limits.queue_bytes < least {
            let fault = Fault::new(format!("a message of limits.message_bytes would not fit: it needs {least} bytes"));
            let at = within(node, "limits.queue_bytes");
            sink.warning(at, &path.key("limits").key("queue_bytes"), fault.hint("write a larger queue_bytes"));
        }
        Some(devices)
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        map::<Devices>().schema(definitions)
    }
}

/// Reports what keeps nodes from reaching each other.
fn check_sharing(devices: &Devices, node: &Node, path: &Path<'_>, sink: &mut Sink) {
    let mut report = |key: &str, fault: Fault| sink.error(within(node, key), &path.key(key), fault);
    match (&devices.registry, &devices.peer) {
        (DeviceRegistry::Memory, None) => {}
        (DeviceRegistry::Memory, Some(_)) => {
            let fault = Fault::new("a node with its own registry has no peers");
            report("peer", fault.hint("remove it, or write `registry: {redis: {url: \"redis://HOST\"}}`"));
        }
        (DeviceRegistry::Redis { .. }, None) => {
            let fault = Fault::new("other nodes could not reach the devices of this one");
            report("registry", fault.hint("write `peer: {address: \"IP:PORT\", tls: …}`, too"));
        }
        (DeviceRegistry::Redis { url, .. }, Some(peer)) => {
            let url = url.reveal();
            if !["redis://", "rediss://"].iter().any(|scheme| url.len() > scheme.len() && url.starts_with(scheme)) {
                let fault = Fault::new("registry.redis.url is not the address of a Redis server");
                report("registry", fault.hint("write redis://HOST:PORT or rediss://USER:PASSWORD@HOST:PORT"));
            }
            check_peer(peer, &mut report);
        }
    }
}

fn check_peer(peer: &DevicePeer, report: &mut impl FnMut(&str, Fault)) {
    let reached = peer.advertise.as_ref().map(|advertise| advertise.parse::<SocketAddr>());
    if reached.is_none() && peer.address.ip().is_unspecified() {
        let fault = Fault::new("other nodes cannot connect to \"all addresses\"");
        report("peer", fault.hint("write peer.advertise: where they reach this node"));
    }
    let is_local = peer.address.ip().is_loopback() && reached.is_none_or(|at| at.is_ok_and(|at| at.ip().is_loopback()));
    match &peer.tls {
        None if !is_local => {
            let fault = Fault::new("without TLS, anyone could send messages to devices");
            report("peer", fault.hint("write peer.tls, or an address on loopback"));
        }
        Some(tls) if tls.client_ca.is_none() => {
            let fault = Fault::new("peer.tls without client_ca would trust no node");
            report("peer", fault.hint("write peer.tls.client_ca: the CA of all nodes' certificates"));
        }
        _ => {}
    }
}

/// What a message takes of a queue beside its bytes: 64 for its entry, the rest for the words around its body.
const QUEUED_MESSAGE_BYTES: usize = 160;

/// `memory`, or an object with one key.
struct Registry;

impl Kind for Registry {
    type Out = DeviceRegistry;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<DeviceRegistry> {
        match &node.value {
            Value::Scalar(scalar) if &*scalar.text == "memory" => return Some(DeviceRegistry::Memory),
            Value::Map(entries) => {
                if let [entry] = &entries[..]
                    && &*entry.key == "redis"
                {
                    let keys = read(&map::<RedisKeys>(), &entry.value, &path.key("redis"), sink)?;
                    return Some(DeviceRegistry::Redis { url: keys.url, is_cluster: keys.cluster, ca: keys.ca });
                }
            }
            _ => {}
        }
        report_expected("memory or {redis: {url: \"redis://HOST\"}}", node, path, sink);
        None
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        json!({"anyOf": [
            {"enum": ["memory"]},
            {
                "type": "object",
                "properties": {"redis": map::<RedisKeys>().schema(definitions)},
                "required": ["redis"],
                "additionalProperties": false,
            },
        ]})
    }

    fn show(&self, value: &DeviceRegistry) -> Json {
        match value {
            DeviceRegistry::Memory => json!("memory"),
            DeviceRegistry::Redis { .. } => Json::Null,
        }
    }
}

const HOST_AND_PORT: Text<String> = text("HOST:PORT", |text| {
    let is_good = |(host, port): (&str, &str)| {
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        !host.is_empty()
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':'))
            && port.parse::<u16>().is_ok_and(|port| port > 0)
    };
    match text.rsplit_once(':').is_some_and(is_good) {
        true => Ok(text.to_owned()),
        false => {
            let fault = Fault::new(format!("{:?} is not HOST:PORT", shortened(text)));
            Err(fault.hint("write a name or IP address, and a port"))
        }
    }
});

const NODE_NAME: Text<String> = text("a name", |text| {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    match (1..=64).contains(&text.len()) && text.bytes().all(is_good) {
        true => Ok(text.to_owned()),
        false => Err(Fault::new(format!("{:?} is not a valid node name", shortened(text)))
            .hint("write 1 to 64 letters, digits, `-`, `_` or `.`")),
    }
});
