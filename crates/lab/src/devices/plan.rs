//! The plan of a run of mock devices, from the arguments: impossible ones are refused here, with what to write instead.

use super::device;
use crate::command_line::Header;
use crate::error::{Error, Result};
use crate::websocket;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use stillgate_load::{Target, Tls, TlsError, Trust};
use stillgate_rig::descriptors;

/// The placeholder of the device's id in the URL and in header fields.
pub(crate) const ID: &str = "{id}";

/// Replaces it while a URL is parsed; unlikely to occur in one.
const PLACEHOLDER: &str = "stillgate0lab0device0id";

/// The event that a message's answer waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Ack {
    /// The kernel has it
    Written,
    /// The device has acknowledged it
    Device,
    /// The device has replied
    Reply,
}

impl Ack {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Ack::Written => "written",
            Ack::Device => "device",
            Ack::Reply => "reply",
        }
    }
}

/// The node that a message is sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Via {
    /// A random one
    Any,
    /// The one that the device is connected to
    Own,
    /// A node that the device is not connected to
    Other,
}

impl Via {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Via::Any => "any",
            Via::Own => "own",
            Via::Other => "other",
        }
    }
}

/// The URL at which devices connect.
#[derive(Debug, Clone)]
pub(crate) struct Door {
    pub(crate) address: SocketAddr,
    /// `None`: without TLS.
    pub(super) tls: Option<Tls>,
    /// The handshake, split around the id; one part more than it has ids.
    request: Vec<String>,
    pub(super) sources: Vec<IpAddr>,
}

impl Door {
    /// From a `ws://` or `wss://` URL, or `http://` or `https://`, with `{id}` in it or in a header field. `trust` is
    /// called with TLS only.
    pub(crate) fn read(url: &str, headers: &[Header], devices: usize, trust: &Trust) -> Result<Door> {
        let at = |why: &dyn std::fmt::Display| Error::new(format!("{url:?}: {why}"));
        let web_socket = url.split_once("ws").filter(|(before, rest)| before.is_empty() && is_rest_of_scheme(rest));
        let plain = web_socket.map(|(_, rest)| format!("http{rest}"));
        let plain = plain.unwrap_or_else(|| url.to_owned()).replace(ID, PLACEHOLDER);
        let wrong = |error: &dyn std::fmt::Display| at(&error.to_string().replace(PLACEHOLDER, ID));
        if Target::parse(&plain).map_err(|error| wrong(&error))?.name.contains(PLACEHOLDER) {
            return Err(at(&"{id} belongs in the path or the query, not in the host"));
        }
        let target = Target::resolve(&plain).map_err(|error| wrong(&error))?;
        let mut fields = "Sec-WebSocket-Protocol: stillgate.v1\r\n".to_owned();
        for Header(name, value) in headers {
            // Writing to a `String` does not fail.
            let _ = write!(fields, "{name}: {value}\r\n");
        }
        let path = target.path_and_query.replace(PLACEHOLDER, ID);
        let request = websocket::request(&target.host, &path, &fields);
        let request: Vec<String> = request.split(ID).map(str::to_owned).collect();
        if request.len() == 1 {
            return Err(at(&"the devices have no ids; put {id} where the gateway reads the id, as in \
                             ws://127.0.0.1:9080/connect?device={id}, or in a header field: -H 'X-Device: {id}'"));
        }
        let address = *target.addresses.first().ok_or_else(|| at(&"it has no address"))?;
        let sources = device::sources(address, devices).map_err(|why| at(&why))?;
        let tls = target.is_secure.then(|| Tls::new(trust, &target.name, false)).transpose().map_err(untrusted)?;
        Ok(Door { address, tls, request, sources })
    }

    /// Whether the URL uses TLS.
    pub(crate) fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// The first bytes that a device sends.
    pub(super) fn handshake(&self, id: &str) -> Vec<u8> {
        self.request.join(id).into_bytes()
    }
}

/// The rest of a WebSocket URL's scheme, after `ws`.
fn is_rest_of_scheme(rest: &str) -> bool {
    rest.starts_with("://") || rest.starts_with("s://")
}

fn untrusted(error: TlsError) -> Error {
    match error {
        TlsError::File { .. } => Error::new(format!("--cacert {error}")),
        TlsError::NoAuthorities { .. } => Error::new(format!("{error} (--cacert FILE)")),
        other => Error::new(other.to_string()),
    }
}

/// The device API that the back-end sends to.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    pub(super) address: SocketAddr,
    host: String,
    base: String,
    key: Option<String>,
}

impl Api {
    /// From the device API's URL.
    pub(crate) fn read(url: &str, key: Option<&str>) -> Result<Api> {
        let at = |why: &dyn std::fmt::Display| Error::new(format!("--api {url:?}: {why}"));
        let target = Target::resolve(url).map_err(|error| at(&error))?;
        if target.is_secure {
            return Err(at(&"TLS is not supported; give the http:// URL of a device API without TLS"));
        }
        if key.is_some_and(|key| key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err("--key: a key is printable ASCII without spaces".into());
        }
        let address = *target.addresses.first().ok_or_else(|| at(&"it has no address"))?;
        let base = target.path_and_query.trim_end_matches('/').to_owned();
        if base.contains('?') {
            return Err(at(&"give it without a query, as http://127.0.0.1:9190"));
        }
        Ok(Api { address, host: target.host, base, key: key.map(str::to_owned) })
    }

    /// Writes a POST request.
    pub(super) fn post(&self, out: &mut Vec<u8>, path: std::fmt::Arguments<'_>, body: &str) {
        let key = self.key.as_ref().map(|key| format!("X-API-KEY: {key}\r\n")).unwrap_or_default();
        let text = format!(
            "POST {}{path} HTTP/1.1\r\nHost: {}\r\n{key}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.base,
            self.host,
            body.len()
        );
        out.extend_from_slice(text.as_bytes());
    }
}

/// One gateway, or one node of several.
#[derive(Debug, Clone)]
pub(crate) struct GatewayNode {
    pub(crate) door: Door,
    /// `None`: no messages are sent.
    pub(crate) api: Option<Api>,
    pub(crate) pid: Option<u32>,
}

/// The workload.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) devices: usize,
    /// Handshakes begun per second.
    pub(crate) connect_rate: f64,
    /// Messages per second; `None`: no messages.
    pub(crate) message_rate: Option<f64>,
    /// Bytes added to each body.
    pub(crate) padding: usize,
    pub(crate) ack: Ack,
    /// How long the gateway may wait for an acknowledgement.
    pub(crate) timeout: Duration,
    pub(crate) duration: Duration,
    /// Time with nothing but pings before the messages.
    pub(crate) idle: Duration,
    /// Share of devices that drop each second.
    pub(crate) churn: f64,
    /// Whether reconnecting devices send their token.
    pub(crate) resume: bool,
    pub(crate) storm: bool,
    /// Number of broadcasts, one after the other.
    pub(crate) broadcasts: usize,
    /// Number of nodes; devices are assigned to them in turn.
    pub(crate) nodes: usize,
    pub(crate) via: Via,
    /// Connections of the back-end to each node.
    pub(crate) back_ends: usize,
    /// Prefix of the ids.
    pub(crate) prefix: String,
    pub(crate) seed: u64,
}

/// Messages of one run: the ledger keeps 24 bytes for each.
const MESSAGES_MAX: f64 = 20e6;

/// Leaves room for a number after it within a gateway's limit on ids.
const PREFIX_BYTES_MAX: usize = 64;

impl Plan {
    /// Refuses inconsistent plans.
    pub(crate) fn check(&self) -> Result {
        if self.message_rate.unwrap_or(0.0) * (self.duration.as_secs_f64() + 1.0) > MESSAGES_MAX {
            return Err(Error::new(format!(
                "--message-rate for --duration is more than {MESSAGES_MAX} messages; send fewer, or for less time"
            )));
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if self.prefix.len() > PREFIX_BYTES_MAX || !self.prefix.bytes().all(plain) {
            return Err(Error::new(format!(
                "--prefix {:?}: at most {PREFIX_BYTES_MAX} letters, digits, '-', '_' and '.'",
                self.prefix
            )));
        }
        make_room(self.devices, self.back_ends * self.nodes)
    }

    /// The id of a device.
    pub(super) fn id(&self, device: usize) -> String {
        format!("{}{device:06}", self.prefix)
    }
}

// Room for one descriptor per device.

/// Descriptors that no device uses: standard streams, epoll, connections of the back-end, signals, and some to spare.
const OTHERS: u64 = 64;

/// Raises the limit as far as this process may.
pub(super) fn make_room(devices: usize, back_ends: usize) -> Result {
    let needed = (devices + back_ends) as u64 + OTHERS;
    match descriptors::raise_to(needed) {
        true => Ok(()),
        false => Err(Error::new(format!(
            "--count {devices} needs {needed} file descriptors, and this process may have {}; \
             raise the limit with `ulimit -n {needed}`, or ask for fewer devices",
            descriptors::limit().current
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn door(url: &str, headers: &[Header], expected: Result<&str, &str>) {
        match (Door::read(url, headers, 10, &Trust::Anyone), expected) {
            (Ok(door), Ok(begin)) => {
                let text = String::from_utf8(door.handshake("d7")).unwrap();
                assert!(text.starts_with(begin), "{text}");
                assert!(text.ends_with("\r\n\r\n") && !text.contains(ID), "{text}");
            }
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (door, expected) => panic!("{url}: {door:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn a_url_says_where_the_id_goes() {
        door(
            "ws://127.0.0.1:9080/connect?device={id}",
            &[],
            Ok("GET /connect?device=d7 HTTP/1.1\r\nHost: 127.0.0.1:9080\r\n"),
        );
        door("http://127.0.0.1/{id}", &[], Ok("GET /d7 HTTP/1.1\r\nHost: 127.0.0.1\r\n"));
        let header = [Header("X-Device".to_owned(), "{id}".to_owned())];
        door("ws://127.0.0.1/connect", &header, Ok("GET /connect HTTP/1.1\r\n"));
        door("ws://127.0.0.1/connect", &[], Err("the devices have no ids"));
        door("wss://127.0.0.1/{id}", &[], Ok("GET /d7 HTTP/1.1\r\nHost: 127.0.0.1\r\n"));
        door("wsx://127.0.0.1/{id}", &[], Err("wsx://127.0.0.1/{id}"));
        door("ws://{id}.example/", &[], Err("not in the host"));
        door("ws://127.0.0.1:99999/{id}", &[], Err("ws://127.0.0.1:99999/{id}"));
        door("ws://127.0.0.1/a b{id}", &[], Err("ws://127.0.0.1/a b{id}"));
        door("", &[], Err("\"\""));
    }

    #[test]
    fn an_api_is_a_plain_url() {
        let check = |url: &str, key: Option<&str>, expected: &str| {
            let error = Api::read(url, key).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("https://127.0.0.1:9190", None, "without TLS");
        check("http://127.0.0.1:9190/?a=b", None, "without a query");
        check("http://127.0.0.1:9190", Some("a\r\nX: b"), "--key");
        let mut out = Vec::new();
        let api = Api::read("http://127.0.0.1:9190/", Some("k")).unwrap();
        api.post(&mut out, format_args!("/v1/devices/{}/messages", "d7"), "{}");
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.starts_with("POST /v1/devices/d7/messages HTTP/1.1\r\nHost: 127.0.0.1:9190\r\nX-API-KEY: k\r\n"),
            "{text}"
        );
    }
}
