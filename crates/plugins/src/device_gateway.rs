//! `device-gateway`: ends the WebSocket connections of devices here, so that back-ends can send a message to one of them.
//!
//! It runs last in `access`, when all other plugins have admitted the request. It checks the handshake and determines
//! the device's id; the proxy opens and serves the connection. APISIX has no such plugin.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use stillgate_devices::directory::Duplicate;
use stillgate_devices::protocol::DeviceProtocol;
use stillgate_devices::session::{PulseLimits, QueuePolicy};
use stillgate_plugin_api::device::{DEVICE_ID_BYTES_MAX, DEVICE_LABEL_BYTES_MAX, WEBSOCKET_ACCEPT_BYTES};
use stillgate_plugin_api::{
    Answer, Compile, Define, Device, DeviceSettings, EventReceiverSettings, Flow, Phase, Phases, Plugin, Request,
    Template,
};
use stillgate_route::Variable;
use stillgate_schema::quantity::{DurationRange, Size, size, span};
use stillgate_schema::text::tree::{Node, Value};
use stillgate_schema::{
    At, Choice, Definitions, Fault, Flag, Json, Kind, LocatedKind, Path, Sink, TEXT, Text, int, map, object, read,
    report_expected, text,
};
use stillgate_wire::{FieldName, FieldValue};

/// Most labels of a connection.
const LABELS_MAX: usize = 16;

const PING_INTERVAL: DurationRange = span(Duration::from_millis(100), Duration::from_secs(3600));
const PING_TIMEOUT: DurationRange = span(Duration::from_millis(100), Duration::from_secs(300));
const RESUME: DurationRange = span(Duration::ZERO, Duration::from_secs(3600));
const TRY: DurationRange = span(Duration::from_millis(10), Duration::from_secs(300));
const RETRY: DurationRange = span(Duration::ZERO, Duration::from_secs(24 * 3600));
const EVENT_BYTES: Size = size(1024, 16 * 1024 * 1024);

object! {
    /// Ends the connections of devices in the gateway.
    pub(crate) struct DeviceGatewayKeys {
        /// The id of the device, with variables: `$consumer_name`, `$arg_device`, `$http_x_device`. At most 256 bytes; a request whose id is empty or longer is answered 400.
        id: At<String> = LocatedKind(TEXT.shown()) => required;
        /// The protocol: `json` or `cbor` of [the protocol](../devices-protocol.md), or the subprotocol that the device
        /// requests; `raw`: a message is one frame, nothing more.
        protocol: DeviceProtocol = PROTOCOL => default(DeviceProtocol::Json);
        /// Where events of devices are sent: their messages, that they connected and that they disconnected.
        on_event: OnEventKeys = map::<OnEventKeys>() => optional;
        /// Policy for a second connection of a device: `replace`: the first is closed; `refuse`: the second is answered
        /// 409.
        duplicate: Duplicate = DUPLICATE => default(Duplicate::Replace);
        /// How long a device may be silent before it is pinged.
        ping_interval: Duration = PING_INTERVAL => default(Duration::from_secs(60));
        /// How long a device has to answer a ping, or to send anything; then its connection is closed.
        ping_timeout: Duration = PING_TIMEOUT => default(Duration::from_secs(20));
        /// How long a device may be away and come back to the messages that it has not acknowledged.
        resume: Duration = RESUME => default(Duration::from_secs(120));
        /// Policy for a message that does not fit into the queue of its device: `refuse` it (429), `drop_oldest`, or
        /// `latest`: it replaces an earlier one with the same `key`.
        queue_policy: QueuePolicy = POLICY => default(QueuePolicy::Refuse);
        /// Most new connections in a second; further ones are answered 503 with `Retry-After`. Without the key the rate
        /// is unlimited.
        connects_per_second: u32 = int(1, 1_000_000) => optional;
        /// Names of labels and their values, with variables, at most 16: shown to back-ends, which can also broadcast
        /// by them.
        labels: Vec<(String, At<String>)> = Labels => default(Vec::new());
    }
}

object! {
    /// Where the events of devices are sent.
    pub(crate) struct OnEventKeys {
        /// The id of one of `upstreams`.
        upstream_id: At<String> = LocatedKind(TEXT.or_number()) => required;
        /// The path of the requests.
        uri: String = URI => default("/".to_owned());
        /// Whether a device's next message is read only after the upstream has answered 2xx. A device cannot flood the
        /// upstream then.
        ack: bool = Flag => default(false);
        /// Most bytes of events that wait for one device, each counted with 128 more, those of its earlier connections
        /// included; further ones are dropped and counted.
        queue_bytes: usize = EVENT_BYTES => default(64 * 1024);
        /// Timeout of one attempt.
        timeout: Duration = TRY => default(Duration::from_secs(5));
        /// How long an event is retried if the upstream fails or answers 5xx, from when the device sent it; then it is
        /// dropped and counted.
        retry: Duration = RETRY => default(Duration::from_secs(60));
    }
}

const PROTOCOL: Choice<DeviceProtocol> = Choice {
    words: &[("json", DeviceProtocol::Json), ("cbor", DeviceProtocol::Cbor), ("raw", DeviceProtocol::Raw)],
    unbuilt: &[],
};
const DUPLICATE: Choice<Duplicate> =
    Choice { words: &[("replace", Duplicate::Replace), ("refuse", Duplicate::Refuse)], unbuilt: &[] };
const POLICY: Choice<QueuePolicy> = Choice {
    words: &[
        ("refuse", QueuePolicy::Refuse),
        ("drop_oldest", QueuePolicy::DropOldest),
        ("latest", QueuePolicy::LatestPerKey),
    ],
    unbuilt: &[],
};

const URI: Text<String> = text("a path", |text| {
    let is_good = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
    match text.starts_with('/') && text.bytes().all(is_good) {
        true => Ok(text.to_owned()),
        false => Err(Fault::new(format!("{text:?} is not a path")).hint("begin with '/'")),
    }
})
.shown();

/// A map of names and texts with variables.
struct Labels;

impl Kind for Labels {
    type Out = Vec<(String, At<String>)>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Self::Out> {
        let Value::Map(entries) = &node.value else {
            report_expected("a map of names and texts", node, path, sink);
            return None;
        };
        if entries.len() > LABELS_MAX {
            let fault = Fault::new(format!("{} labels are too many; at most {LABELS_MAX} can be here", entries.len()));
            sink.error(node.at, path, fault);
            return None;
        }
        let label = |entry: &stillgate_schema::Entry, sink: &mut Sink| {
            let value = read(&LocatedKind(TEXT), &entry.value, &path.key(&entry.key), sink)?;
            Some((entry.key.to_string(), value))
        };
        entries.iter().map(|entry| label(entry, sink)).collect()
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        serde_json::json!({"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": LABELS_MAX})
    }
}

/// The plugin.
pub(crate) struct DeviceGateway {
    id: Template,
    labels: Box<[(Box<str>, Template)]>,
    protocol: DeviceProtocol,
    settings: Arc<DeviceSettings>,
}

impl Define for DeviceGateway {
    type Keys = DeviceGatewayKeys;
    const NAME: &'static str = "device-gateway";
    const PRIORITY: i32 = -3000;
    const PHASES: Phases = Phases::of(&[Phase::Access]);

    fn compile(keys: DeviceGatewayKeys, cx: &mut Compile<'_>) -> Option<DeviceGateway> {
        let id = template(&keys.id, &cx.path.key("id"), cx.sink)?;
        if id.constant().is_some() {
            let fault = Fault::new("without a variable all devices have one id, and only one of them is connected");
            cx.sink.warning(keys.id.at, &cx.path.key("id"), fault.hint("write one, such as $consumer_name"));
        }
        let path = cx.path.key("labels");
        let mut labels = Vec::with_capacity(keys.labels.len());
        for (name, value) in &keys.labels {
            labels.push((name.as_str().into(), template(value, &path.key(name), cx.sink)?));
        }
        let events = match keys.on_event {
            None => None,
            Some(on_event) => Some(events(on_event, cx)?),
        };
        let milliseconds = |time: Duration| time.as_millis() as u32;
        let settings = Arc::new(DeviceSettings {
            identity: cx.identity,
            id_variables: id.variables().cloned().collect(),
            duplicate: keys.duplicate,
            policy: keys.queue_policy,
            resume_ms: keys.resume.as_millis() as u64,
            pulse: PulseLimits {
                ping_interval_ms: milliseconds(keys.ping_interval),
                ping_timeout_ms: milliseconds(keys.ping_timeout),
            },
            connects_per_second: keys.connects_per_second.and_then(NonZeroU32::new),
            events,
        });
        Some(DeviceGateway { id, labels: labels.into(), protocol: keys.protocol, settings })
    }
}

fn template(text: &At<String>, path: &Path<'_>, sink: &mut Sink) -> Option<Template> {
    Template::parse(&text.value).map_err(|error| sink.error(text.at, path, Fault::new(error.to_string()))).ok()
}

fn events(keys: OnEventKeys, cx: &mut Compile<'_>) -> Option<EventReceiverSettings> {
    let path = cx.path.key("on_event");
    let upstream = cx.upstreams.shared_key(&keys.upstream_id, &path.key("upstream_id"), cx.sink)?;
    Some(EventReceiverSettings {
        upstream,
        uri: keys.uri.into(),
        is_acknowledged: keys.ack,
        queue_bytes_max: keys.queue_bytes,
        timeout: keys.timeout,
        retry: keys.retry,
    })
}

const VERSION: FieldName<'static> = FieldName::constant("Sec-WebSocket-Version");
const KEY: FieldName<'static> = FieldName::constant("Sec-WebSocket-Key");
const PROTOCOLS: FieldName<'static> = FieldName::constant("Sec-WebSocket-Protocol");
/// The only version (RFC 6455 section 4.1).
const VERSION_SPOKEN: &str = "13";
/// The suffix of the key (RFC 6455 section 1.3).
const ACCEPT_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Bytes of a decoded key.
const KEY_BYTES: usize = 16;

impl Plugin for DeviceGateway {
    fn access(&self, request: &mut Request<'_>) -> Flow {
        Flow::Answer(match self.device(request) {
            Ok(device) => Answer::device(device),
            Err(answer) => answer,
        })
    }

    fn each_variable(&self, visit: &mut dyn FnMut(&Variable)) {
        self.id.variables().for_each(&mut *visit);
        self.labels.iter().flat_map(|(_, label)| label.variables()).for_each(visit);
    }

    fn devices(&self) -> Option<&Arc<DeviceSettings>> {
        Some(&self.settings)
    }

    fn reads_consumer(&self) -> bool {
        let mut reads = false;
        self.each_variable(&mut |variable| {
            reads |= matches!(variable, Variable::ConsumerName | Variable::ConsumerGroupId);
        });
        reads
    }
}

impl DeviceGateway {
    /// The device of a request, or the answer that refuses it.
    fn device(&self, request: &mut Request<'_>) -> Result<Device, Answer> {
        let accept = accept(request)?;
        let (protocol, subprotocol) = self.spoken(request)?;
        let (id, labels) = request.worker.with_buffers(|value, buffer| {
            let mut text = |template: &Template| {
                value.clear();
                template.write(request, value, buffer);
                std::str::from_utf8(value).ok().map(Box::<str>::from)
            };
            let id = text(&self.id);
            let labels = self.labels.iter().map(|(name, label)| (name.clone(), text(label).unwrap_or_default()));
            (id, labels.map(|(name, value)| (name, cut(value))).collect())
        });
        let is_good =
            |id: &str| (1..=DEVICE_ID_BYTES_MAX).contains(&id.len()) && !id.chars().any(|char| char.is_control());
        let id = id.filter(|id| is_good(id)).ok_or_else(|| {
            refusal(400, "the request gives no id of a device: 1 to 256 bytes of UTF-8 without control characters")
        })?;
        Ok(Device { id, labels, protocol, subprotocol, accept, settings: self.settings.clone() })
    }

    /// The protocol that the device chooses, and the subprotocol for the response.
    fn spoken(&self, request: &Request<'_>) -> Result<(DeviceProtocol, Option<Box<str>>), Answer> {
        let mut buffer = Vec::new();
        let Some(offered) = request.header(PROTOCOLS, &mut buffer) else { return Ok((self.protocol, None)) };
        let mut offered = offered.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        let mut offered = offered.by_ref().filter_map(|name| std::str::from_utf8(name).ok());
        if self.protocol == DeviceProtocol::Raw {
            // A token, as any subprotocol (RFC 6455 section 4.1), as it is copied to the answer.
            let name = offered.find(|name| FieldName::new(name.as_bytes()).is_ok());
            return Ok((DeviceProtocol::Raw, name.map(Box::from)));
        }
        let chosen = offered.find_map(|name| Some((DeviceProtocol::of_subprotocol(name)?, Some(Box::from(name)))));
        chosen.ok_or_else(|| refusal(400, "offer the subprotocol stillgate.v1 or stillgate.v1+cbor, or none"))
    }
}

fn cut(mut text: Box<str>) -> Box<str> {
    if text.len() > DEVICE_LABEL_BYTES_MAX {
        let mut longer = String::from(text);
        longer.truncate(longer.floor_char_boundary(DEVICE_LABEL_BYTES_MAX));
        text = longer.into();
    }
    text
}

/// Checks the handshake (RFC 6455 section 4.2.1); returns the proof that it was read.
fn accept(request: &mut Request<'_>) -> Result<[u8; WEBSOCKET_ACCEPT_BYTES], Answer> {
    let mut buffer = Vec::new();
    let facts = &request.facts;
    let mut asks = stillgate_wire::upgrade_protocols(&facts.request.fields, facts.head);
    let is_asked = facts.request.asks_upgrade && asks.any(|name| name.eq_ignore_ascii_case(b"websocket"));
    if facts.method() != b"GET" || !is_asked {
        return Err(refusal(400, "only devices come here, by a handshake of WebSocket"));
    }
    if request.header(VERSION, &mut buffer) != Some(VERSION_SPOKEN.as_bytes()) {
        request.response.add(VERSION, FieldValue::constant(VERSION_SPOKEN));
        return Err(refusal(426, "the version of WebSocket is 13"));
    }
    let key = request.header(KEY, &mut buffer).unwrap_or_default();
    if !STANDARD.decode(key).is_ok_and(|key| key.len() == KEY_BYTES) {
        return Err(refusal(400, "Sec-WebSocket-Key must be base64 of 16 bytes"));
    }
    let digest = digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, ACCEPT_SUFFIX].concat());
    let mut accept = [0; WEBSOCKET_ACCEPT_BYTES];
    STANDARD.encode_slice(digest.as_ref(), &mut accept).expect("base64 of 20 bytes has 28");
    Ok(accept)
}

fn refusal(status: u16, why: &str) -> Answer {
    Answer::rejection(status, Some(why))
}
