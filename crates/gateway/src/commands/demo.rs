//! `stillgate demo`: a gateway, two small upstreams and a little traffic in one process, so that a first look needs nothing else.
//!
//! Its resources are in a store of its own, in a folder that is removed with the process: the dashboard can change them, and
//! nothing of them stays. They are a handful of routes, a service, a consumer and a rule, written into the store as documents. They
//! pass the same checks as resources put through the Admin API; tests/control/demo.rs checks that none is rejected.
//!
//! The traffic gives the dashboard something to show: a few requests a second of several kinds. It is one thread, which ends with the
//! process, and one connection a request. It is for looking at, not for measuring.

use super::cli::EXIT_ERRORS;
use super::demo_upstream;
use super::invitation::{Invitation, dashboard_link, free_or_any};
use super::run::exit_code;
use super::stdout::show_or;
use crate::configuration::source::ConfigSource;
use crate::control::start::{Up, serve};
use serde_json::{Value as Json, json};
use std::f64::consts::TAU;
use std::fs::DirBuilder;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use stillgate_datastore::embedded::{EmbeddedStore, HistoryBounds};
use stillgate_datastore::{Author, Key, Transaction, Write};

/// Port of the demo, if it is free.
const PORT: u16 = 9080;

/// Port of its admin API, if it is free.
const ADMIN_PORT: u16 = 9180;

/// Port of its metrics, if it is free.
const METRICS_PORT: u16 = 9091;

/// The device API's port, unless something else uses it.
const DEVICES_PORT: u16 = 9190;

/// Author of changes by the link, as the history shows it.
const NAME: &str = "demo";

/// Runs the command; returns the exit code. `with_devices`: with a page of appliances that hold connections.
pub(crate) fn run(with_devices: bool) -> u8 {
    let folder = match Folder::new() {
        Ok(folder) => folder,
        Err(error) => return fail(&format!("cannot create a folder for the demo: {error}")),
    };
    let upstreams = demo_upstream::start("apple").and_then(|apple| Ok((apple, demo_upstream::start("pear")?)));
    let (apple, pear) = match upstreams {
        Ok(upstreams) => upstreams,
        Err(error) => return fail(&format!("cannot start the demo's upstreams: {error}")),
    };
    let store = folder.0.join("config.redb");
    if let Err(error) = fill_store(&store, &Nodes { apple, pear }, with_devices) {
        return fail(&format!("cannot fill the demo's store: {error}"));
    }
    let own = [PORT, ADMIN_PORT, METRICS_PORT].map(free_or_any);
    let devices = with_devices.then(|| certain(DEVICES_PORT));
    let text = config(own, devices, &store);
    let created = folder.0.clone();
    exit_code(serve(ConfigSource::Text(text), |up| {
        if let Some(gateway) = up.listeners.first()
            && let Err(error) = start_traffic(*gateway)
        {
            eprintln!("stillgate: cannot start the demo's traffic: {error}");
        }
        show_or(invitation(up, devices), || drop(std::fs::remove_dir_all(&created)));
    }))
}

fn fail(message: &str) -> u8 {
    eprintln!("stillgate: {message}");
    EXIT_ERRORS
}

/// A folder for this process only, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> io::Result<Folder> {
        let name = format!("stillgate-demo-{}-{:08x}", std::process::id(), rand::random::<u32>());
        let folder = std::env::temp_dir().join(name);
        DirBuilder::new().mode(0o700).create(&folder)?;
        Ok(Folder(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("stillgate: cannot remove {}: {error}", self.0.display());
        }
    }
}

/// Like [`free_or_any`], with a port that is known before it is listened on.
fn certain(port: u16) -> SocketAddr {
    let address = free_or_any(port);
    let taken = TcpListener::bind(address).and_then(|listener| listener.local_addr());
    // If even that fails, the start reports the reason.
    taken.unwrap_or(address)
}

fn config([listen, admin, metrics]: [SocketAddr; 3], devices: Option<SocketAddr>, store: &Path) -> String {
    let store = store.display();
    let devices = devices.map(|address| format!("  devices: {{address: \"{address}\"}}\n")).unwrap_or_default();
    // The label `uri` is an intentional mistake: the dashboard shows its effect.
    format!(
        r#"gateway:
  config:
    source: store
    store: "{store}"
  listeners:
    - address: "{listen}"
  admin:
    address: "{admin}"
  metrics:
    address: "{metrics}"
    series_per_family: 200
    labels:
      http_requests_total: {{uri: $uri}}
  timeouts:
    drain: 5s
  log:
    level: error
{devices}"#
    )
}

fn invitation(up: &Up<'_>, devices: Option<SocketAddr>) -> String {
    let routes = ROUTES + usize::from(devices.is_some());
    let mut page = Invitation::new(format!(
        "A gateway with {routes} routes and two upstreams (apple, pear) is up, with a little traffic."
    ));
    if let Some(link) = dashboard_link(up, NAME) {
        page.paragraph(&format!(
            "Its dashboard:\n\n  {link}\n\nThe link works once, within an hour. What you change there takes effect at once."
        ));
    }
    if let (Some(gateway), true) = (up.listeners.first(), devices.is_some()) {
        page.paragraph(&format!(
            "Ten appliances, each a device, as long as this page is open:\n\n  http://{gateway}/appliances"
        ));
    }
    page.list("In another terminal:");
    if let Some(gateway) = up.listeners.first() {
        page.offer(&format!("curl http://{gateway}/"), "apple and pear in turn");
        page.offer(&format!("curl http://{gateway}/hello/world"), "apple, by a path with a parameter");
        page.offer(&format!("curl -H 'Host: pear.example.com' http://{gateway}/"), "pear, by its host");
        page.offer(&format!("curl -d 'some text' http://{gateway}/echo"), "apple, for POST only");
        page.offer(&format!("curl -H 'apikey: rose' http://{gateway}/orders/7"), "as the consumer rose, ten a second");
        page.offer(&format!("curl http://{gateway}/slow"), "an answer that takes two seconds");
        page.offer(&format!("curl -N http://{gateway}/stream"), "five lines, one every half second");
    }
    if let Some(admin) = up.admin {
        page.offer(&format!("curl http://{admin}/v1/status"), "the state of the gateway");
    }
    if let Some(metrics) = up.metrics {
        page.offer(&format!("curl http://{metrics}/metrics"), "its metrics");
    }
    if let Some(devices) = devices {
        page.list("With the page of appliances open:");
        let json = "-H 'Content-Type: application/json'";
        let lamp = format!("'http://{devices}/v1/devices/lamp-1/messages?ack=reply'");
        for line in [
            format!("curl {json} -d '{{\"on\": true}}' {lamp}"),
            format!("curl http://{devices}/v1/devices/lamp-1"),
            format!("curl 'http://{devices}/v1/devices?prefix=lamp-'"),
            format!("curl {json} -d '{{\"match\": {{}}, \"body\": {{\"on\": true}}}}' http://{devices}/v1/broadcast"),
        ] {
            page.offer(&line, "");
        }
    }
    page.end()
}

/// Routes of the demo.
pub(super) const ROUTES: usize = 7;

/// The demo ends before any history is too old.
const HISTORY_BOUNDS: HistoryBounds =
    HistoryBounds { history_changes_max: 1000, history_age_max: Duration::from_secs(86_400) };

/// Where its upstreams listen.
pub(super) struct Nodes {
    pub(super) apple: SocketAddr,
    pub(super) pear: SocketAddr,
}

/// Makes the store, with all documents by one change.
/// `with_devices`: also a route where they connect.
fn fill_store(store: &Path, nodes: &Nodes, with_devices: bool) -> Result<(), String> {
    let mut embedded = EmbeddedStore::open(store, HISTORY_BOUNDS).map_err(|error| error.to_string())?;
    let devices = with_devices.then(|| ("routes/devices", device_documents()));
    let writes = documents(nodes).into_iter().chain(devices).map(|(key, value)| {
        let key = Key::parse(key).map_err(|error| format!("{key}: {error}"))?;
        Ok(Write::Put { key, value: value.to_string(), ttl_seconds: None })
    });
    let writes = writes.collect::<Result<_, String>>()?;
    let author = Author { name: "demo".to_owned(), address: String::new(), action: "POST /v1/batch".to_owned() };
    let transaction = Transaction { conditions: Vec::new(), unreferenced: Vec::new(), writes, author };
    let made = embedded.commit(&transaction, SystemTime::now());
    made.map(drop).map_err(|error| error.to_string())
}

fn documents(nodes: &Nodes) -> Vec<(&'static str, Json)> {
    let (apple, pear) = (nodes.apple.to_string(), nodes.pear.to_string());
    let upstream = |nodes: Json| json!({ "type": "roundrobin", "nodes": nodes });
    let checked = json!({
        "type": "roundrobin", "nodes": { &*apple: 1, &*pear: 1 },
        "checks": { "active": { "http_path": "/", "healthy": { "interval": 5 }, "unhealthy": { "interval": 5 } } },
    });
    vec![
        ("upstreams/both", checked),
        ("upstreams/apple", upstream(json!({ &*apple: 1 }))),
        ("upstreams/pear", upstream(json!({ &*pear: 1 }))),
        (
            "services/shop",
            json!({ "name": "shop", "upstream_id": "both", "plugins": { "cors": {}, "response-rewrite": { "headers": { "set": { "X-Shop": "demo" } } } } }),
        ),
        ("global_rules/everywhere", json!({ "plugins": { "request-id": {} } })),
        (
            "consumers/rose",
            json!({ "username": "rose", "desc": "May send requests to /orders/; its key is rose.", "plugins": { "key-auth": { "key": "rose" } } }),
        ),
        ("routes/everything", json!({ "name": "everything else", "uri": "/*", "upstream_id": "both" })),
        ("routes/hello", json!({ "name": "hello", "uri": "/hello/:name", "upstream_id": "apple" })),
        ("routes/echo", json!({ "name": "echo", "uri": "/echo", "methods": ["POST"], "upstream_id": "apple" })),
        ("routes/pear-only", json!({ "name": "pear", "host": "pear.example.com", "uri": "/*", "upstream_id": "pear" })),
        (
            "routes/orders",
            json!({
                "name": "orders", "desc": "For consumers only, ten requests a second.", "uri": "/orders/*", "service_id": "shop",
                "plugins": { "key-auth": {}, "limit-count": { "count": 10, "time_window": 1, "rejected_code": 429 } },
            }),
        ),
        (
            "routes/search",
            json!({ "name": "search", "desc": "Every request has a different URI, and the URI is a label of the metrics.", "uri": "/search/*", "service_id": "shop" }),
        ),
        (
            "routes/payments",
            json!({ "name": "payments", "desc": "Its node declines one payment in twelve.", "uri": "/payments/*", "methods": ["POST"], "service_id": "shop" }),
        ),
    ]
}

/// A route for appliances, which name themselves: the demo listens on loopback only.
fn device_documents() -> Json {
    json!({
        "name": "devices", "desc": "Connections of appliances end here.", "uri": "/connect",
        "plugins": { "device-gateway": { "id": "$arg_device" } },
    })
}

/// Requests a second, on average.
const RATE: f64 = 5.0;

/// The rate swings around that by so much, in so long.
const SWING: f64 = 0.5;
const PERIOD: Duration = Duration::from_secs(120);

/// Timeout of a request.
const TRAFFIC_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause between two requests while the gateway does not answer, as at its end.
const TRAFFIC_PAUSE: Duration = Duration::from_secs(1);

/// One payment in so many is declined by its node, with an error.
const DECLINED: u64 = 12;

/// Starts sending requests.
fn start_traffic(gateway: SocketAddr) -> io::Result<()> {
    let thread = thread::Builder::new().name("demo-traffic".to_owned());
    thread.spawn(move || send_requests(gateway)).map(drop)
}

fn send_requests(gateway: SocketAddr) {
    let began = Instant::now();
    for turn in 0.. {
        if ask(gateway, &request_of_turn(turn)).is_err() {
            thread::sleep(TRAFFIC_PAUSE);
        }
        let swing = SWING * (TAU * began.elapsed().as_secs_f64() / PERIOD.as_secs_f64()).sin();
        thread::sleep(Duration::from_secs_f64(1.0 / (RATE * (1.0 + swing))));
    }
}

/// Sends it and reads the answer.
fn ask(gateway: SocketAddr, request: &str) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&gateway, TRAFFIC_TIMEOUT)?;
    stream.set_read_timeout(Some(TRAFFIC_TIMEOUT))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = [0; 4096];
    while stream.read(&mut answer)? > 0 {}
    Ok(())
}

/// The kinds take turns; every second request is a search, each for something else.
fn request_of_turn(turn: u64) -> String {
    let kinds = turn / 2;
    let get = |path: String, fields: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: demo.example.com\r\n{fields}Connection: close\r\n\r\n")
    };
    let post = |path: &str, body: &str| {
        let length = body.len();
        format!(
            "POST {path} HTTP/1.1\r\nHost: demo.example.com\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
    };
    if turn.is_multiple_of(2) {
        return get(format!("/search/{turn}"), "");
    }
    match kinds % 6 {
        0 => get("/orders/7".to_owned(), "apikey: rose\r\n"),
        1 => get("/hello/world".to_owned(), ""),
        2 if (kinds / 6) % DECLINED == 1 => post("/payments/declined", "{}"),
        2 => post("/payments/card", "{}"),
        3 => get("/".to_owned(), ""),
        4 => get("/orders/8".to_owned(), "apikey: rose\r\n"),
        _ => post("/echo", "hello"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn the_configuration_is_valid_without_a_warning() {
        let local = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        for devices in [None, Some(local(9190))] {
            let text = config([local(0), local(9180), local(9091)], devices, Path::new("/tmp/x/config.redb"));
            let loaded =
                ConfigSource::Text(text.clone()).parse(text.as_bytes()).unwrap_or_else(|errors| panic!("{errors}"));
            assert_eq!(loaded.warnings, []);
        }
    }

    #[test]
    fn the_folder_goes_with_its_owner() {
        let folder = Folder::new().unwrap();
        let path = folder.0.clone();
        std::fs::write(path.join("file"), "x").unwrap();
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn the_routes_are_counted() {
        let nodes = Nodes { apple: ([127, 0, 0, 1], 1).into(), pear: ([127, 0, 0, 1], 2).into() };
        let documents = documents(&nodes);
        assert_eq!(documents.iter().filter(|(key, _)| key.starts_with("routes/")).count(), ROUTES);
    }

    #[test]
    fn searches_differ_and_a_few_payments_fail() {
        let requests: Vec<String> = (0..288).map(request_of_turn).collect();
        let count = |what: &str| requests.iter().filter(|request| request.contains(what)).count();
        assert_eq!((count(" /search/"), count(" /payments/"), count("/declined")), (144, 24, 2));
        assert_eq!(requests.iter().filter(|request| request.starts_with("GET /search/12 ")).count(), 1);
    }
}
