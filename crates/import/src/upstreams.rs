//! Services and upstreams of Kong as upstreams here.
//!
//! In Kong a service has the protocol, the timeouts and TLS, and an upstream the nodes; here an upstream has all of
//! it. So each service gets an upstream, and services that differ in none of it share one.

use crate::certificates::Certificates;
use crate::health_checks::checks;
use crate::kong_file::{Entity, KongFile, KongUpstream};
use crate::names::Ids;
use crate::object::Object;
use serde_json::{Map, Value as Json, json};
use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// Most further nodes that are tried here.
const RETRIES_MAX: i64 = 100;
/// Longest timeout here: a day.
const TIMEOUT_MS_MAX: i64 = 86_400_000;
const TIMEOUT_MS: i64 = 60_000;
const PORTS: RangeInclusive<i64> = 1..=65_535;
/// Kong's default weight of a target.
const WEIGHT: i64 = 100;
const WEIGHT_MAX: i64 = 1_000_000;

/// How a service speaks to its nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Https,
    Grpc,
    Grpcs,
    Tcp,
    Tls,
    Udp,
}

impl Protocol {
    fn read(service: &Object, written: Option<&str>) -> Protocol {
        match written {
            None | Some("http") => Protocol::Http,
            Some("https") => Protocol::Https,
            Some("grpc") => Protocol::Grpc,
            Some("grpcs") => Protocol::Grpcs,
            // TLS is the client's and the node's.
            Some("tcp" | "tls_passthrough") => Protocol::Tcp,
            Some("tls") => Protocol::Tls,
            Some("udp") => Protocol::Udp,
            Some("ws") => Protocol::Http,
            Some("wss") => Protocol::Https,
            Some(_) => {
                service.changed("`protocol` is none that the importer knows; it is read as http");
                Protocol::Http
            }
        }
    }

    fn scheme(self) -> &'static str {
        match self {
            Protocol::Http => "http",
            Protocol::Https => "https",
            Protocol::Grpc => "grpc",
            Protocol::Grpcs => "grpcs",
            Protocol::Tcp => "tcp",
            Protocol::Tls => "tls",
            Protocol::Udp => "udp",
        }
    }

    pub(crate) fn is_stream(self) -> bool {
        matches!(self, Protocol::Tcp | Protocol::Tls | Protocol::Udp)
    }

    fn has_tls(self) -> bool {
        matches!(self, Protocol::Https | Protocol::Grpcs | Protocol::Tls)
    }
}

/// A service of the result, before plugins.
#[derive(Debug)]
pub(crate) struct Service {
    /// The id of the service here, and the prefix of its counters.
    pub(crate) id: String,
    pub(crate) is_enabled: bool,
    pub(crate) is_stream: bool,
    /// Whether its requests have to be refused.
    pub(crate) is_closed: bool,
    /// What goes in front of the paths of requests.
    pub(crate) path: Option<String>,
    /// The keys of the service here, without plugins.
    pub(crate) document: Map<String, Json>,
    /// An upstream that stream routes can have inline.
    pub(crate) upstream: Map<String, Json>,
}

/// Reads all services and upstreams; returns the services, and the upstreams that several share or that have names.
pub(crate) fn services(file: &KongFile, certificates: &Certificates) -> (Vec<Service>, Vec<Json>) {
    let upstreams: HashMap<&str, usize> = file
        .upstreams
        .iter()
        .enumerate()
        .filter_map(|(index, upstream)| Some((upstream.entity.name.as_deref()?, index)))
        .collect();
    let bodies: Vec<Body> = file.upstreams.iter().map(|upstream| Body::read(upstream, certificates)).collect();
    let mut writer =
        Writer { bodies, ids: Ids::default(), shared: Vec::new(), used: vec![false; file.upstreams.len()] };
    let mut ids = Ids::default();
    let services = file
        .services
        .iter()
        .enumerate()
        .map(|(index, entity)| {
            let label = entity.label().map_or_else(|| format!("service-{}", index + 1), str::to_owned);
            service(entity, ids.id(&label), &upstreams, certificates, &mut writer)
        })
        .collect();
    for (upstream, _) in file.upstreams.iter().zip(&writer.used).filter(|(_, used)| !**used) {
        upstream.entity.object.changed("no service uses this upstream; it is left out");
    }
    for upstream in &file.upstreams {
        upstream.entity.object.finish();
    }
    (services, writer.shared.into_iter().map(|(_, json)| json.into()).collect())
}

struct Writer {
    bodies: Vec<Body>,
    ids: Ids,
    /// Upstreams with the key that makes them equal: which of Kong's, and what the service adds.
    shared: Vec<((usize, String), Map<String, Json>)>,
    used: Vec<bool>,
}

impl Writer {
    /// The id of an upstream with these keys.
    fn share(&mut self, index: usize, name: &str, keys: Map<String, Json>) -> String {
        let key = (index, Json::from(keys.clone()).to_string());
        if let Some((_, shared)) = self.shared.iter().find(|(known, _)| *known == key) {
            return shared["id"].as_str().unwrap_or_default().to_owned();
        }
        let id = self.ids.id(name);
        let mut document = Map::new();
        document.insert("id".to_owned(), id.clone().into());
        document.extend(keys);
        self.shared.push((key, document));
        id
    }
}

fn service(
    entity: &Entity,
    id: String,
    upstreams: &HashMap<&str, usize>,
    certificates: &Certificates,
    writer: &mut Writer,
) -> Service {
    let object = &entity.object;
    let address = ServiceAddress::read(object);
    let protocol = Protocol::read(object, address.protocol.as_deref());
    let mut keys = common_keys(object, protocol, certificates);
    let mut document = json_map(json!({"id": id}));
    if let Some(name) = &entity.name {
        document.insert("name".to_owned(), name.clone().into());
    }
    object.stamp(&mut document);
    let host =
        address.host.clone().filter(|host| upstreams.contains_key(&**host) || is_host(host)).unwrap_or_else(|| {
            object.changed("the service has no host that can be used; its requests are answered 502");
            "host.invalid".to_owned()
        });
    if !PORTS.contains(&address.port) {
        object.changed("the service has no port that can be used; its requests are answered 502");
    }
    let upstream = match upstreams.get(&*host) {
        Some(&index) => {
            writer.used[index] = true;
            writer.bodies[index].put_into(&mut keys, protocol);
            keys
        }
        None => {
            let mut all = Map::new();
            scheme_into(&mut all, protocol);
            if !protocol.is_stream() {
                all.insert("pass_host".to_owned(), "node".into());
            }
            let weight = 1;
            all.insert(
                "nodes".to_owned(),
                json!([{"host": host, "port": address.port.clamp(*PORTS.start(), *PORTS.end()), "weight": weight}]),
            );
            all.extend(keys);
            all
        }
    };
    match upstreams.get(&*host).filter(|_| !protocol.is_stream()) {
        Some(&index) => {
            let id = writer.share(index, &host, upstream.clone());
            document.insert("upstream_id".to_owned(), id.into());
        }
        None => {
            document.insert("upstream".to_owned(), upstream.clone().into());
        }
    }
    if matches!(protocol, Protocol::Http | Protocol::Https) {
        // Kong forwards `Upgrade: websocket` on every route.
        document.insert("enable_websocket".to_owned(), true.into());
    }
    // A service that may be disabled is.
    let written = object.field("enabled");
    let is_enabled = written.as_ref().is_none_or(|field| field.flag() == Some(true));
    if let Some(field) = written.filter(|field| field.flag().is_none()) {
        object.losses().closed(
            field.path,
            field.at,
            "this cannot be read, so the service counts as disabled; remove `status: 0` of its routes if it is not",
        );
    }
    let is_closed = protocol.has_tls() && lacks_ca(object, certificates);
    if is_closed {
        object.losses().closed(
            object.path(),
            object.at(),
            "no CA certificate of the service can be read, so nodes with any certificate of a public CA would be accepted: its routes answer 503 until you write `tls.ca` and remove their plugin `fault-injection`",
        );
    }
    object.finish();
    Service { id, is_enabled, is_stream: protocol.is_stream(), is_closed, path: address.path, document, upstream }
}

/// The address of a service: `url`, or its parts.
struct ServiceAddress {
    protocol: Option<String>,
    host: Option<String>,
    port: i64,
    path: Option<String>,
}

impl ServiceAddress {
    fn read(object: &Object) -> ServiceAddress {
        const HTTP: i64 = 80;
        const HTTPS: i64 = 443;
        let path = object.text("path");
        let (protocol, host, port) = (object.text("protocol"), object.text("host"), object.whole("port"));
        let Some(url) = object.text("url") else {
            // Kong's port is 80 whatever the protocol is.
            return ServiceAddress { protocol, host, port: port.unwrap_or(HTTP), path };
        };
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", &url));
        let (authority, url_path) =
            rest.find('/').map_or((rest, None), |at| (&rest[..at], Some(rest[at..].to_owned())));
        let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let port_at = authority.rfind(':').filter(|at| !authority[*at..].contains(']'));
        let (name, url_port) =
            port_at.map_or((authority, None), |at| (&authority[..at], authority[at + 1..].parse().ok()));
        let default = if matches!(scheme, "https" | "grpcs" | "wss" | "tls") { HTTPS } else { HTTP };
        let without_query = |path: String| path.split(['?', '#']).next().unwrap_or_default().to_owned();
        ServiceAddress {
            protocol: Some(scheme.to_owned()),
            host: Some(name.trim_matches(['[', ']']).to_owned()),
            port: url_port.unwrap_or(default),
            path: url_path.map(without_query).or(path),
        }
    }
}

fn scheme_into(keys: &mut Map<String, Json>, protocol: Protocol) {
    if protocol != Protocol::Http {
        keys.insert("scheme".to_owned(), protocol.scheme().into());
    }
}

/// The keys that come from the service, for its node and for nodes of an upstream alike.
fn common_keys(object: &Object, protocol: Protocol, certificates: &Certificates) -> Map<String, Json> {
    const RETRIES: i64 = 5;
    let mut keys = Map::new();
    let retries = object.whole("retries").unwrap_or(RETRIES);
    if retries > RETRIES_MAX {
        object.lost("retries", "at most 100 further nodes are tried here");
    }
    keys.insert("retries".to_owned(), retries.clamp(0, RETRIES_MAX).into());
    let timeout = |key: &str| {
        let milliseconds = object.whole(key).unwrap_or(TIMEOUT_MS);
        if milliseconds > TIMEOUT_MS_MAX {
            object.lost(key, "the timeout is a day here, the longest that is possible");
        }
        duration(milliseconds.clamp(1, TIMEOUT_MS_MAX))
    };
    let (connect, send, read) = (timeout("connect_timeout"), timeout("write_timeout"), timeout("read_timeout"));
    keys.insert("timeout".to_owned(), json!({"connect": connect, "send": send, "read": read}));
    object.lost("tls_sans", "the names are not checked here; the certificate must have the name of the node");
    object.lost("tls_verify_depth", "chains of any length are accepted here");
    let verify = object.field("tls_verify").map(|field| field.switch().unwrap_or(true.into()));
    let ca: Vec<String> = object.items("ca_certificates").iter().filter_map(|field| certificates.ca(field)).collect();
    let client = object.field("client_certificate").and_then(|field| certificates.client(&field));
    if protocol.has_tls() {
        let mut tls = Map::new();
        if verify != Some(true.into()) {
            // Kong's default, unless kong.conf says otherwise.
            tls.insert("verify".to_owned(), verify.clone().unwrap_or(false.into()));
            if verify.is_none() {
                object.changed("Kong does not verify the certificates of nodes unless `tls_verify` is true, so neither does the result; remove `tls.verify: false` if you can");
            }
        }
        if !ca.is_empty() {
            tls.insert("ca".to_owned(), ca.concat().into());
        }
        if let Some(id) = client {
            tls.insert("client_cert_id".to_owned(), id.into());
        }
        if !tls.is_empty() {
            keys.insert("tls".to_owned(), tls.into());
        }
    }
    keys
}

/// Whether a service names CA certificates, and none of them is in the file.
fn lacks_ca(object: &Object, certificates: &Certificates) -> bool {
    let verifies = object.field("tls_verify").is_some_and(|field| field.switch() != Some(false.into()));
    let fields = object.items("ca_certificates");
    verifies && !fields.is_empty() && fields.iter().all(|field| certificates.ca(field).is_none())
}

/// Milliseconds in the form of the result: whole seconds as a number.
pub(crate) fn duration(milliseconds: i64) -> Json {
    match milliseconds % 1000 {
        0 => (milliseconds / 1000).into(),
        _ => format!("{milliseconds}ms").into(),
    }
}

/// What an upstream of Kong has.
struct Body {
    algorithm: Map<String, Json>,
    nodes: Vec<(String, Option<i64>, i64)>,
    host_header: Option<String>,
    upstream: Object,
    client: Option<String>,
}

impl Body {
    fn read(upstream: &KongUpstream, certificates: &Certificates) -> Body {
        let object = upstream.entity.object.clone();
        object.skip(&["slots", "hash_on_cookie_path", "healthchecks"]);
        object.lost_if_set("use_srv_name", "names of SRV records are not used here");
        object.lost("sticky_sessions_cookie", "sticky sessions do not exist here; use `hash_on: cookie`");
        object.lost("sticky_sessions_cookie_path", "sticky sessions do not exist here");
        let mut nodes = Vec::new();
        for target in &upstream.targets {
            target.skip(&["id", "created_at", "updated_at", "tags", "upstream"]);
            target.lost("failover", "targets for failover do not exist here; give them a lower `priority` in `nodes`");
            let address = target.text("target").map(|address| host_and_port(&address));
            if let Some((host, port)) =
                address.filter(|(host, port)| is_host(host) && port.is_none_or(|port| PORTS.contains(&port)))
            {
                nodes.push((host, port, target.whole("weight").unwrap_or(WEIGHT).clamp(0, WEIGHT_MAX)));
            } else {
                target.changed("the target has no address that can be used; it is left out");
            }
            target.finish();
        }
        let mut label = Map::new();
        object.stamp(&mut label);
        let mut algorithm = algorithm(&object);
        algorithm.extend(label);
        Body {
            algorithm,
            nodes,
            host_header: object.text("host_header").filter(|host| !host.is_empty()),
            client: object.field("client_certificate").and_then(|field| certificates.client(&field)),
            upstream: object,
        }
    }

    /// Adds nodes, balancing and checks to what a service has.
    fn put_into(&self, keys: &mut Map<String, Json>, protocol: Protocol) {
        let from_service = std::mem::take(keys);
        keys.extend(self.algorithm.clone());
        scheme_into(keys, protocol);
        match &self.host_header {
            _ if protocol.is_stream() => {}
            Some(host) => {
                keys.insert("pass_host".to_owned(), "rewrite".into());
                keys.insert("upstream_host".to_owned(), host.clone().into());
            }
            None => {
                keys.insert("pass_host".to_owned(), "node".into());
            }
        }
        // A target without a port has 8000 in Kong, whatever the service says.
        const TARGET_PORT: i64 = 8000;
        let node = |(host, port, weight): &(String, Option<i64>, i64)| json!({"host": host, "port": port.unwrap_or(TARGET_PORT), "weight": weight});
        let mut nodes: Vec<Json> = self.nodes.iter().map(node).collect();
        if nodes.is_empty() {
            self.upstream.changed("the upstream has no targets; its requests are answered 502, and 503 in Kong");
            nodes.push(json!({"host": "no-target.invalid", "port": 80, "weight": 1}));
        }
        keys.insert("nodes".to_owned(), nodes.into());
        keys.extend(from_service);
        if let Some(id) = self.client.as_ref().filter(|_| protocol.has_tls()) {
            let tls = keys.entry("tls").or_insert_with(|| json!({}));
            if let Some(tls) = tls.as_object_mut() {
                tls.entry("client_cert_id").or_insert_with(|| id.clone().into());
            }
        }
        let is_https = protocol == Protocol::Https;
        let is_http1 = matches!(protocol, Protocol::Http | Protocol::Https);
        if let Some(checks) =
            self.upstream.object("healthchecks").and_then(|object| checks(&object, is_https, is_http1))
        {
            keys.insert("checks".to_owned(), checks);
        }
    }
}

/// Whether a text can be the address or the name of a node.
fn is_host(text: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_name = text.len() <= 253 && text.split('.').all(|label| !label.is_empty() && label.len() <= 63);
    // What is all digits would be an address.
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.' || byte == b'-');
    text.parse::<IpAddr>().is_ok() || (is_name && !is_number && text.bytes().all(is_of_name))
}

fn host_and_port(address: &str) -> (String, Option<i64>) {
    if let Some((host, rest)) = address.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return (host.to_owned(), rest.strip_prefix(':').and_then(|port| port.parse().ok()));
    }
    match address.rsplit_once(':').filter(|(host, _)| !host.contains(':')) {
        Some((host, port)) => (host.to_owned(), port.parse().ok()),
        None => (address.to_owned(), None),
    }
}

/// `algorithm` and `hash_on` as `type`, `hash_on` and `key`.
fn algorithm(object: &Object) -> Map<String, Json> {
    let hash_on = object.text("hash_on").unwrap_or_else(|| "none".to_owned());
    let written = object.text("algorithm");
    let name = match (written.as_deref(), &*hash_on) {
        (Some(name), _) => name,
        (None, "none") => "round-robin",
        (None, _) => "consistent-hashing",
    };
    let names = ["hash_on_header", "hash_on_cookie", "hash_on_query_arg", "hash_on_uri_capture"];
    let [header, cookie, argument, capture] = names.map(|name| object.text(name));
    let fallback = object.text("hash_fallback").filter(|fallback| fallback != "none");
    object.skip(&["hash_fallback_header", "hash_fallback_query_arg", "hash_fallback_uri_capture"]);
    let keys = match name {
        "round-robin" => return Map::new(),
        "least-connections" => return json_map(json!({"type": "least_conn"})),
        "latency" => return json_map(json!({"type": "ewma"})),
        "consistent-hashing" => match &*hash_on {
            "consumer" => json!({"type": "chash", "hash_on": "consumer"}),
            "ip" => json!({"type": "chash", "key": "remote_addr"}),
            "header" => json!({"type": "chash", "hash_on": "header", "key": header.unwrap_or_default().to_lowercase()}),
            "cookie" => {
                object.changed("Kong sets the cookie if a request has none; here, requests without it are hashed by the client's address");
                json!({"type": "chash", "hash_on": "cookie", "key": cookie.unwrap_or_default()})
            }
            "path" => json!({"type": "chash", "key": "uri"}),
            "query_arg" => json!({"type": "chash", "key": format!("arg_{}", argument.unwrap_or_default())}),
            "uri_capture" => json!({"type": "chash", "key": format!("uri_param_{}", capture.unwrap_or_default())}),
            _ => return Map::new(),
        },
        _ => {
            object.lost("algorithm", "the importer does not know this algorithm; nodes are used in turn");
            return Map::new();
        }
    };
    match fallback.as_deref() {
        None if hash_on != "ip" && hash_on != "cookie" && hash_on != "path" => {
            object.changed("requests without the hashed value are hashed by the client's address here, and go to any target in Kong");
        }
        None | Some("ip") => {}
        Some(_) => object.lost("hash_fallback", "requests without the hashed value are hashed by the client's address"),
    }
    json_map(keys)
}

pub(crate) fn json_map(value: Json) -> Map<String, Json> {
    match value {
        Json::Object(map) => map,
        _ => Map::new(),
    }
}
