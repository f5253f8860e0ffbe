//! `_meta.filter` and `_meta.error_response` hold for every plugin, whatever its phases. A new one fails until it has a row.

use crate::shared::STILLGATE;
use crate::shared::reflect::{asked, reflecting, route, setup};
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use stillgate_testkit::{Gateway, Message, Upstream, eventually};

/// How the effect of a plugin is visible.
#[derive(Debug, Clone, Copy)]
enum VisibleEffect {
    /// The status, and the body that `error_response` gives it from 400 on.
    Status(u16),
    /// A field of the response.
    Field(&'static str),
    /// A field of the request to the node, and its value.
    ToNode(&'static str, &'static str),
    /// The body holds this.
    Body(&'static str),
    /// It sends the request's target somewhere else, at some time.
    Elsewhere,
    /// It is not visible: it has no phase.
    Nowhere,
}

use VisibleEffect::{Body, Elsewhere, Field, Nowhere, Status, ToNode};

/// A plugin's name, other plugins of its route, its own keys, what follows `GET` or `POST` and the path, and what it does.
type Row = (&'static str, &'static str, &'static str, &'static str, VisibleEffect);

const KEY_AUTH: &str = r#""key-auth": {}, "#;
const FAULT: &str = r#""fault-injection": {"abort": {"http_status": 503}}, "#;

const ROWS: &[Row] = &[
    ("acl", KEY_AUTH, r#""deny_labels": {"team": ["sales"]}"#, "", Status(403)),
    ("attach-consumer-label", KEY_AUTH, r#""headers": {"X-Team": "$team"}"#, "", ToNode("x-team", "sales")),
    ("hmac-auth", "", "", "", Status(401)),
    ("basic-auth", "", "", "", Status(401)),
    ("consumer-restriction", KEY_AUTH, r#""blacklist": ["jack"]"#, "", Status(403)),
    ("jwt-auth", "", "", "", Status(401)),
    ("multi-auth", "", r#""auth_plugins": [{"jwt-auth": {}}, {"basic-auth": {}}]"#, "", Status(401)),
    ("key-auth", "", r#""header": "X-Other""#, "", Status(401)),
    ("limit-count", "", r#""count": 1, "time_window": 600, "rejected_msg": "own""#, "", Status(503)),
    ("limit-req", "", r#""rate": 0.001, "burst": 0, "key": "remote_addr", "rejected_msg": "own""#, "", Status(503)),
    ("ip-restriction", "", r#""blacklist": ["127.0.0.1"]"#, "", Status(403)),
    ("client-control", "", r#""max_body_size": 1"#, "POST", Status(413)),
    ("csrf", "", r#""key": "k""#, "POST", Status(401)),
    ("fault-injection", "", r#""abort": {"http_status": 418, "body": "own"}"#, "", Status(418)),
    ("ua-restriction", "", r#""denylist": ["suite"]"#, "", Status(403)),
    ("uri-blocker", "", r#""block_rules": ["run"]"#, "", Status(403)),
    ("referer-restriction", "", r#""whitelist": ["a.example"]"#, "", Status(403)),
    ("real-ip", "", r#""source": "arg_ip""#, "&ip=192.0.2.9", ToNode("x-real-ip", "192.0.2.9")),
    ("forward-auth", "", r#""uri": "http://PEER/auth""#, "", Status(401)),
    ("opa", "", r#""host": "http://PEER", "policy": "p""#, "", Status(403)),
    (
        "api-breaker",
        "",
        r#""break_response_code": 599, "unhealthy": {"http_statuses": [503], "failures": 1}"#,
        "&status=503",
        Status(599),
    ),
    ("limit-conn", "", r#""conn": 1, "burst": 0, "default_conn_delay": 1, "key": "remote_addr""#, "", Status(503)),
    ("proxy-mirror", "", r#""host": "http://PEER""#, "", Elsewhere),
    ("cors", "", "", "", Field("access-control-allow-origin")),
    ("proxy-rewrite", "", r#""headers": {"set": {"X-A": "set"}}"#, "", ToNode("x-a", "set")),
    ("response-rewrite", "", r#""filters": [{"regex": "h.example", "replace": "filtered"}]"#, "", Body("filtered")),
    ("request-id", "", "", "", Field("x-request-id")),
    ("request-validation", "", r#""header_schema": {"type": "object", "required": ["X-None"]}"#, "", Status(400)),
    ("redirect", "", r#""uri": "/elsewhere""#, "", Status(302)),
    ("mocking", "", r#""response_status": 418, "response_example": "own""#, "", Status(418)),
    ("echo", "", r#""before_body": "echoed""#, "", Body("echoed")),
    ("error-page", FAULT, "", "", Body("the page")),
    ("traffic-label", "", r#""rules": [{"actions": [{"set_headers": {"X-A": "set"}}]}]"#, "", ToNode("x-a", "set")),
    (
        "traffic-split",
        "",
        r#""rules": [{"weighted_upstreams": [{"upstream": {"nodes": {"PEER": 1}}}]}]"#,
        "",
        Elsewhere,
    ),
    ("workflow", "", r#""rules": [{"actions": [["return", {"code": 418}]]}]"#, "", Status(418)),
    ("proxy-control", "", "", "", Nowhere),
    ("public-api", "", "", "", Status(404)),
    ("device-gateway", "", r#""id": "$arg_id""#, "", Status(400)),
    ("node-status", "", "", "", Nowhere),
    ("server-info", "", "", "", Nowhere),
    ("prometheus", "", "", "", Nowhere),
    ("grpc-web", "", "", "", Status(405)),
    (
        "body-transformer",
        "",
        r#""response": {"input_format": "plain", "template": "made {{_body}}"}"#,
        "",
        Body("made "),
    ),
    ("gzip", "", r#""types": "*""#, "", Field("content-encoding")),
    ("brotli", "", r#""types": "*""#, "", Field("content-encoding")),
    ("zstd", "", r#""types": "*""#, "", Field("content-encoding")),
    ("proxy-buffering", "", "", "", Nowhere),
    ("serverless-pre-function", "", r#""functions": ["return function() ngx.exit(418) end"]"#, "", Status(418)),
    ("serverless-post-function", "", r#""functions": ["return function() return 418, 'own' end"]"#, "", Status(418)),
    ("zipkin", "", r#""endpoint": "http://PEER/spans", "sample_ratio": 1"#, "", ToNode("x-b3-sampled", "1")),
    ("opentelemetry", "", r#""sampler": {"name": "always_on"}"#, "", ToNode("traceparent", "")),
    ("loki-logger", "", r#""endpoint_addrs": ["http://PEER"], "batch_max_size": 1"#, "", Elsewhere),
    (
        "elasticsearch-logger",
        "",
        r#""endpoint_addrs": ["http://PEER"], "field": {"index": "i"}, "batch_max_size": 1"#,
        "",
        Elsewhere,
    ),
    ("http-logger", "", r#""uri": "http://PEER/log", "batch_max_size": 1"#, "", Elsewhere),
    ("tcp-logger", "", r#""host": "127.0.0.1", "port": TCP, "batch_max_size": 1"#, "", Elsewhere),
    ("syslog", "", r#""host": "127.0.0.1", "port": TCP, "batch_max_size": 1"#, "", Elsewhere),
    ("udp-logger", "", r#""host": "127.0.0.1", "port": UDP, "batch_max_size": 1"#, "", Elsewhere),
    ("file-logger", "", r#""path": "FILE""#, "", Elsewhere),
];

const RESOURCES: &str = r#"plugin_metadata:
  - {"id": "error-page", "enable": true, "error_503": {"body": "the page"}}
  - {"id": "opentelemetry", "collector": {"address": "PEER"}}
consumers: [{"username": "jack", "labels": {"team": "sales"}, "plugins": {"key-auth": {"key": "k"}}}]
routes:
"#;

#[test]
fn every_plugin_has_a_row() {
    let mut names: Vec<&str> = stillgate_plugins::TABLE.names().collect();
    let mut rows: Vec<&str> = ROWS.iter().map(|row| row.0).collect();
    names.sort_unstable();
    rows.sort_unstable();
    assert_eq!(rows, names, "say in ROWS how one sees what it does");
}

/// Everything that was sent to places other than the node, as raw bytes.
#[derive(Clone, Default)]
struct SentElsewhere(Arc<Mutex<Vec<u8>>>);

impl SentElsewhere {
    fn keep(&self, bytes: &[u8]) {
        self.0.lock().expect("no test panics with it").extend_from_slice(bytes);
    }

    fn has(&self, what: &str) -> bool {
        let told = self.0.lock().expect("no test panics with it");
        told.windows(what.len()).any(|window| window == what.as_bytes())
    }
}

/// The receivers of what plugins send: an HTTP server that refuses every request, one of TCP, one of UDP, and a file.
struct Places {
    told: SentElsewhere,
    peer: Upstream,
    tcp: SocketAddr,
    udp: SocketAddr,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Places {
    fn new() -> Places {
        let told = SentElsewhere::default();
        let kept = told.clone();
        let peer = Upstream::serve(move |connection| {
            while let Ok(request) = connection.read_request() {
                kept.keep(request.head.start.as_bytes());
                kept.keep(&request.body);
                let (status, body) = match request.head.method_and_target().1 {
                    target if target.starts_with("/auth") => ("401 No", ""),
                    target if target.starts_with("/v1/data") => ("200 OK", r#"{"result": {"allow": false}}"#),
                    _ => ("200 OK", r#"{"version": {"number": "8.1.0"}}"#),
                };
                let length = body.len();
                let _ = connection.try_send(format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}"));
            }
        });
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let (tcp, kept) = (listener.local_addr().expect("bound"), told.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut reader, kept) = (BufReader::new(stream.expect("a client")), kept.clone());
                std::thread::spawn(move || {
                    while let Ok(bytes @ 1..) = reader.fill_buf().map(|bytes| {
                        kept.keep(bytes);
                        bytes.len()
                    }) {
                        reader.consume(bytes);
                    }
                });
            }
        });
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let (udp, kept) = (socket.local_addr().expect("bound"), told.clone());
        std::thread::spawn(move || {
            let mut datagram = vec![0; 65_536];
            while let Ok(length) = socket.recv(&mut datagram) {
                kept.keep(&datagram[..length]);
            }
        });
        let folder = tempfile::tempdir().expect("a folder");
        Places { told, peer, tcp, udp, file: folder.path().join("requests.log"), _folder: folder }
    }

    fn filled(&self, text: &str) -> String {
        let text = text.replace("PEER", &self.peer.addr().to_string()).replace("TCP", &self.tcp.port().to_string());
        text.replace("UDP", &self.udp.port().to_string()).replace("FILE", &self.file.display().to_string())
    }

    fn have(&self, what: &str) -> bool {
        let mut of_file = String::new();
        // The file exists after the first write.
        let _ = std::fs::File::open(&self.file).and_then(|mut file| file.read_to_string(&mut of_file));
        self.told.has(what) || of_file.contains(what)
    }
}

/// The routes of a row: with a filter, with one that reads the body, with an error response, and with none nor the plugin itself.
fn routes_of(number: usize, (name, beside, keys, ..): &Row) -> String {
    let comma = if keys.is_empty() { "" } else { ", " };
    let with = |meta: &str| format!(r#"{{{beside}"{name}": {{{keys}{comma}"_meta": {meta}}}}}"#);
    let bare = format!("{{{}}}", beside.trim_end_matches(", "));
    [
        route(&format!("/{number}/filter"), &with(r#"{"filter": [["arg_run", "==", "1"]]}"#)),
        route(&format!("/{number}/body"), &with(r#"{"filter": [["post_arg.runs[*].is", "has", "1"]]}"#)),
        route(&format!("/{number}/error"), &with(r#"{"error_response": {"error": "own words"}}"#)),
        route(&format!("/{number}/bare"), &bare),
    ]
    .concat()
}

/// Sends two requests, for the plugins that count, and returns the second response.
fn twice(gateway: &Gateway, row: &Row, target: &str) -> Message {
    let (name, .., rest, _) = row;
    let is_post = *rest == "POST";
    let (method, rest) = if is_post { ("POST", "") } else { ("GET", *rest) };
    let fields = "Host: h.example\r\napikey: k\r\nUser-Agent: suite\r\nAccept-Encoding: gzip, br, zstd\r\n";
    let mut first = gateway.client();
    if *name == "limit-conn" {
        // A request that is in flight.
        let in_flight = || gateway.status()["requests"]["in_flight"].as_u64();
        eventually("those before to be over", || in_flight() == Some(0));
        first.send(format!("POST {target}{rest} HTTP/1.1\r\n{fields}Content-Length: 2\r\n\r\n"));
        eventually("it to be under way", || in_flight() == Some(1));
    }
    let ask = || {
        let mut client = gateway.client();
        let body = if is_post { "Content-Length: 2\r\n\r\nab" } else { "\r\n" };
        client.send(format!("{method} {target}{rest} HTTP/1.1\r\n{fields}{body}"));
        client.read_response(method).unwrap_or_else(|broken| panic!("{name}, {target}: {broken:?}"))
    };
    if *name != "limit-conn" {
        ask();
    }
    ask()
}

/// The parts of a response that do not depend on the time and the route of its request.
fn compared(response: &Message, path: &str) -> (u16, Vec<(String, String)>, String) {
    let is_kept = |name: &str| !["date", "content-length"].iter().any(|other| name.eq_ignore_ascii_case(other));
    let fields = response.head.fields.iter().filter(|(name, _)| is_kept(name));
    let fields = fields.map(|(name, value)| (name.to_string(), value.to_string())).collect();
    (response.head.status(), fields, String::from_utf8_lossy(&response.body).replace(path, ""))
}

/// Whether a response shows what the plugin does.
fn shows(response: &Message, seen: VisibleEffect) -> bool {
    let text = String::from_utf8_lossy(&response.body);
    match seen {
        Status(status) => response.head.status() == status,
        Field(name) => response.head.get(name).is_some(),
        ToNode(name, value) => asked(response).get(name).is_some_and(|got| got == value || value.is_empty()),
        Body(part) => text.contains(part),
        Elsewhere | Nowhere => response.head.status() == 200,
    }
}

#[test]
fn meta_holds_for_every_plugin() {
    let (node, places) = (reflecting(), Places::new());
    let routes: String = ROWS.iter().enumerate().map(|(number, row)| routes_of(number, row)).collect();
    let mut gateway = Gateway::start(STILLGATE, &setup(node.addr(), &places.filled(&format!("{RESOURCES}{routes}"))));
    let mut wrong = Vec::new();
    for (number, row) in ROWS.iter().enumerate() {
        let (name, .., seen) = row;
        // The filter that excludes the plugin comes first: its messages would arrive first.
        let filter = format!("/{number}/filter");
        let passed = compared(&twice(&gateway, row, &format!("{filter}?run=0")), &filter);
        let bare = format!("/{number}/bare");
        let without = compared(&twice(&gateway, row, &format!("{bare}?run=0")), &bare);
        if passed != without {
            wrong.push(format!("{name}: the filter does not hold, and yet:\n{passed:?}\nis not\n{without:?}"));
        }
        let run = twice(&gateway, row, &format!("{filter}?run=1"));
        if !shows(&run, *seen) {
            wrong.push(format!("{name}: the filter holds, and yet: {run:?}"));
        }
        let response = twice(&gateway, row, &format!("/{number}/error?run=1"));
        let is_replaced = response.body == b"{\"error\":\"own words\"}\n";
        let is_error = matches!(seen, Status(400..));
        if is_replaced != is_error || !shows(&response, *seen) {
            wrong.push(format!("{name}: with an error response: {response:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    for (number, (name, ..)) in ROWS.iter().enumerate().filter(|(_, row)| matches!(row.4, Elsewhere)) {
        eventually(&format!("what {name} sends"), || places.have(&format!("/{number}/filter?run=1")));
        assert!(!places.have(&format!("/{number}/filter?run=0")), "{name} sent what its filter excludes");
    }
    gateway.assert_healthy();
}

/// Plugins that a `POST` with a body would make behave differently here, and one whose page is for the answer of another plugin,
/// which is given before the body is read.
const NOT_OF_BODIES: [&str; 3] = ["limit-conn", "grpc-web", "error-page"];

/// This includes plugins that have no phase before the node is contacted: their filter is evaluated there, too.
#[test]
fn filters_of_every_plugin_read_the_body() {
    let (node, places) = (reflecting(), Places::new());
    let routes: String = ROWS.iter().enumerate().map(|(number, row)| routes_of(number, row)).collect();
    let mut gateway = Gateway::start(STILLGATE, &setup(node.addr(), &places.filled(&format!("{RESOURCES}{routes}"))));
    let ask = |row: &Row, path: &str, run: u8| {
        let rest = Some(row.3).filter(|rest| *rest != "POST").unwrap_or_default();
        let body = format!("{{\"runs\":[{{\"is\":2}},{{\"is\":{run}}}]}}");
        let ask = || {
            let mut client = gateway.client();
            client.send(format!(
                "POST {path}?run={run}{rest} HTTP/1.1\r\nHost: h.example\r\napikey: k\r\nUser-Agent: suite\r\n\
                 Accept-Encoding: gzip, br, zstd\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n\
                 {:x}\r\n{body}\r\n0\r\n\r\n",
                body.len()
            ));
            client.read_response("POST").unwrap_or_else(|broken| panic!("{}, {path}: {broken:?}", row.0))
        };
        ask();
        ask()
    };
    let mut wrong = Vec::new();
    for (number, row) in ROWS.iter().enumerate().filter(|(_, row)| !NOT_OF_BODIES.contains(&row.0)) {
        let (name, .., seen) = row;
        let (path, bare) = (format!("/{number}/body"), format!("/{number}/bare"));
        let passed = ask(row, &path, 0);
        if shows(&passed, *seen) && !matches!(seen, Elsewhere | Nowhere) {
            wrong.push(format!("{name}: the filter does not hold, and yet: {passed:?}"));
        }
        if passed.head.status() != ask(row, &bare, 0).head.status() {
            wrong.push(format!("{name}: the filter does not hold, and yet it is not a plain response: {passed:?}"));
        }
        let run = ask(row, &path, 1);
        if !shows(&run, *seen) {
            wrong.push(format!("{name}: the filter holds, and yet: {run:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    for (number, (name, ..)) in ROWS.iter().enumerate().filter(|(_, row)| matches!(row.4, Elsewhere)) {
        eventually(&format!("what {name} sends"), || places.have(&format!("/{number}/body?run=1")));
        assert!(!places.have(&format!("/{number}/body?run=0")), "{name} sent what its filter excludes");
    }
    gateway.assert_healthy();
}

/// Each before the phases of its plugin, which does what it does without one.
#[test]
fn pre_functions_of_every_plugin_run() {
    const COUNT: &str = r#"{"pre_function": "return function(conf, ctx) ngx.shared.ran:incr(ctx.var.uri, 1, 0) end"}"#;
    const TELL: &str = r#"{"serverless-pre-function": {"functions": ["return function() ngx.print(ngx.shared.ran:get(ngx.var.arg_of) or 0) end"]}}"#;
    let (node, places) = (reflecting(), Places::new());
    let with = |(number, (name, beside, keys, ..)): (usize, &Row)| {
        let comma = if keys.is_empty() { "" } else { ", " };
        route(&format!("/{number}/pre"), &format!(r#"{{{beside}"{name}": {{{keys}{comma}"_meta": {COUNT}}}}}"#))
    };
    let routes: String = ROWS.iter().enumerate().map(with).collect();
    let routes = places.filled(&format!("{RESOURCES}{routes}{}", route("/ran", TELL)));
    let mut gateway = Gateway::start(STILLGATE, &setup(node.addr(), &routes));
    let mut wrong = Vec::new();
    for (number, row) in ROWS.iter().enumerate() {
        let (name, .., seen) = row;
        let path = format!("/{number}/pre");
        let response = twice(&gateway, row, &format!("{path}?run=1"));
        if !shows(&response, *seen) {
            wrong.push(format!("{name}: {response:?}"));
        }
        if matches!(seen, Nowhere) {
            continue;
        }
        let mut client = gateway.client();
        // In the phase log the client already has its response.
        eventually(&format!("the function before {name}"), || {
            client.send(format!("GET /ran?of={path} HTTP/1.1\r\nHost: h\r\n\r\n"));
            client.read_response("GET").expect("a count").body != b"0"
        });
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    gateway.assert_healthy();
}
