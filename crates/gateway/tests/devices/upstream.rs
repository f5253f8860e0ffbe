//! Devices and related features: the upstream that gets their events, credentials, metrics, the access log, an upgrade.

use crate::shared::STILLGATE;
use crate::shared::authority::Authority;
use crate::shared::devices::{Node, finish, route, setup};
use crate::shared::upgrade::UpgradedGateway;
use rcgen::date_time_ymd;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use stillgate_testkit::{Client, Gateway, Python, ReservedPort, Upstream, eventually};

/// A request to an upstream: device, kind, number, body.
type Seen = (String, String, String, String);

/// An upstream that answers `statuses` in turn, the last one from then on.
fn upstream(statuses: &'static [u16]) -> (Upstream, std::sync::mpsc::Receiver<Seen>) {
    let (tell, told) = std::sync::mpsc::sync_channel(1000);
    let answered = std::sync::atomic::AtomicUsize::new(0);
    let upstream = Upstream::serve(move |connection| {
        while let Ok(request) = connection.read_request() {
            let get = |name: &str| request.head.get(name).unwrap_or_default().to_owned();
            let body = String::from_utf8_lossy(&request.body).into_owned();
            let at = answered.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let status = statuses[at.min(statuses.len() - 1)];
            let seen = (get("x-device-id"), get("x-device-event"), get("x-device-seq"), body);
            if status < 300 {
                tell.send(seen).expect("the test listens");
            }
            if connection.try_send(format!("HTTP/1.1 {status} A\r\nContent-Length: 0\r\n\r\n")).is_err() {
                return;
            }
        }
    });
    (upstream, told)
}

fn with_upstream(node: &Upstream, further: &str) -> String {
    let upstream = format!("upstreams: [{{id: backend, nodes: {{\"{}\": 1}}}}]\n", node.addr());
    upstream + &route(&format!(", on_event: {{upstream_id: backend, uri: \"/events?a=b\"{further}}}"))
}

#[test]
fn events_go_to_the_upstream_in_order() {
    let (node, told) = upstream(&[200, 503, 503, 200]);
    let gateway = Node::start("", "", &with_upstream(&node, ""));
    gateway.play("events", &[]);
    let seen: Vec<Seen> = (0..7).map(|_| told.recv().expect("an event")).collect();
    let kinds: Vec<_> = seen.iter().map(|(device, kind, seq, _)| format!("{device} {kind} {seq}")).collect();
    let expected: Vec<_> = std::iter::once("lamp connect 1".to_owned())
        .chain((2..=6).map(|seq| format!("lamp message {seq}")))
        .chain(std::iter::once("lamp disconnect 7".to_owned()))
        .collect();
    assert_eq!(kinds, expected);
    let bodies: Vec<&str> = seen[1..6].iter().map(|(.., body)| body.as_str()).collect();
    assert_eq!(bodies, ["{\"n\": 0}", "{\"n\": 1}", "{\"n\": 2}", "{\"n\": 3}", "{\"n\": 4}"]);
    assert_eq!(seen[6].3, "{\"reason\":\"closed\"}");
}

#[test]
fn an_acknowledgement_behind_an_event_waits_for_the_upstream() {
    let (node, _told) = upstream(&[200, 503, 503, 503, 503, 200]);
    let gateway = Node::start("", "", &with_upstream(&node, ", ack: true"));
    gateway.play("held", &[]);
}

#[test]
fn events_that_nobody_takes_are_dropped_and_counted() {
    let (node, told) = upstream(&[503]);
    let metrics = ReservedPort::new();
    let gateway = format!("metrics: {{address: \"{}\"}}", metrics.addr());
    let node = Node::start("", &gateway, &with_upstream(&node, ", retry: 200ms, queue_bytes: 1KiB"));
    node.play("events", &[]);
    eventually("all to be dropped", || {
        let text = String::from_utf8(Client::connect(metrics.addr()).get("/metrics").body).expect("text");
        text.contains("stillgate_device_events_dropped_total{route=\"devices\"} 7")
    });
    assert!(told.try_recv().is_err());
}

/// The number of dropped events.
fn dropped(metrics: &ReservedPort) -> u64 {
    let text = String::from_utf8(Client::connect(metrics.addr()).get("/metrics").body).expect("text");
    let family = "stillgate_device_events_dropped_total{route=\"devices\"} ";
    text.lines().find_map(|line| line.strip_prefix(family)).map_or(0, |count| count.parse().expect("a number"))
}

#[test]
fn a_device_that_reconnects_has_one_queue() {
    let (upstream, _told) = upstream(&[503]);
    let metrics = ReservedPort::new();
    let gateway = format!("workers: 1\nmetrics: {{address: \"{}\"}}", metrics.addr());
    let node = Node::start("", &gateway, &with_upstream(&upstream, ", retry: 1h, queue_bytes: 1KiB"));
    node.play("comes_back", &[]);
    // 20 connections with 50 events each, of which few fit into 1 KiB.
    eventually("the others to be dropped", || dropped(&metrics) >= 20 * 50 - 10);
}

#[test]
fn events_that_wait_behind_another_grow_old_too() {
    let (upstream, _told) = upstream(&[503]);
    let metrics = ReservedPort::new();
    let gateway = format!("workers: 1\nmetrics: {{address: \"{}\"}}", metrics.addr());
    let node = Node::start("", &gateway, &with_upstream(&upstream, ", retry: 3s"));
    let begun = Instant::now();
    node.play("sends_many", &["200"]);
    eventually("all to be dropped", || dropped(&metrics) == 202);
    assert!(begun.elapsed() < Duration::from_secs(300), "not 3 s for each of them: {:?}", begun.elapsed());
}

#[test]
fn an_upstream_that_hangs_gets_a_bounded_number_of_requests() {
    let (open, ends) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (counted, ended) = (open.clone(), ends.clone());
    let upstream = Upstream::serve(move |connection| {
        if connection.read_request().is_ok() {
            counted.fetch_add(1, Ordering::SeqCst);
            while !ended.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    });
    let node = Node::start("", "workers: 1", &with_upstream(&upstream, ", timeout: 300s"));
    let go_on = node.gateway.dir().join("go_on");
    let mut script = node.begin("hangs", &[&go_on.display().to_string()]);
    script.announced("connected");
    eventually("requests", || open.load(Ordering::SeqCst) >= 64);
    std::fs::write(go_on, "").expect("a file");
    finish(&mut script, "hangs");
    assert_eq!(open.load(Ordering::SeqCst), 64, "one for each of 201 devices is too many");
    ends.store(true, Ordering::SeqCst);
}

#[test]
fn a_dead_device_is_noticed_while_its_events_wait() {
    let (upstream, _told) = upstream(&[200, 200, 200, 503]);
    let resources = with_upstream(&upstream, ", ack: true, retry: 1h");
    let resources = resources.replace("on_event", "ping_interval: 1s, ping_timeout: 2s, on_event");
    Node::start("", "", &resources).play("waits_for_the_upstream", &[]);
}

#[test]
fn a_device_is_disconnected_when_its_certificate_is_no_longer_valid() {
    let (authority, other) = (Authority::new(), Authority::new());
    authority.issue("server", &["shop.example.com"]);
    authority.issue("long", &["long"]);
    let unix = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    // Certificates have whole seconds.
    let ends = Duration::from_secs(unix().as_secs() + 15);
    authority.issue_with("short", &["short"], |params| params.not_after = date_time_ymd(1970, 1, 1) + ends);
    let ca = [authority.path("ca.pem"), other.path("ca.pem")];
    let resources = |client: &str| {
        let [cert, key] = ["server.pem", "server.key"].map(|file| authority.path(file));
        format!(
            "ssls:\n  - {{id: s, cert: \"{cert}\", key: \"{key}\", snis: [shop.example.com]{client}}}\n\
             routes:\n  - {{id: devices, uri: /connect, plugins: {{device-gateway: {{id: $ssl_client_s_dn}}}}}}\n"
        )
    };
    let asking = |ca: &str| resources(&format!(", client: {{ca: \"{ca}\"}}"));
    let api = ReservedPort::new();
    let set_up = |resources: &str| setup(&api, "", "", resources).listener("tls: true");
    let gateway = Gateway::start(STILLGATE, &set_up(&asking(&ca[0])));
    let connect = |gateway: &Gateway, name: &str| {
        let mut device = authority.connect_as(gateway.addr(), "shop.example.com", &[], (&authority, name));
        let handshake = "GET /connect HTTP/1.1\r\nHost: shop.example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
        device.write_all(handshake.as_bytes()).expect("sent");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            device.read_exact(&mut byte).expect("an answer");
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
        device
    };
    let mut short = connect(&gateway, "short");
    assert!(unix() < ends, "this machine is too slow");
    assert_eq!(close_code(&mut short), 1008);
    assert!(unix() >= ends, "not before");
    for replaced in [asking(&ca[1]), resources("")] {
        let mut long = connect(&gateway, "long");
        gateway.reload(&set_up(&replaced));
        assert_eq!(close_code(&mut long), 1008);
        gateway.reload(&set_up(&asking(&ca[0])));
    }
}

/// Reads the frames of a server to its close frame.
fn close_code(device: &mut impl Read) -> u16 {
    loop {
        let mut head = [0; 2];
        device.read_exact(&mut head).expect("a frame");
        let mut payload = vec![0; usize::from(head[1])];
        assert!(payload.len() < 126, "a short frame");
        device.read_exact(&mut payload).expect("its payload");
        if head[0] == 0x88 {
            return u16::from_be_bytes([payload[0], payload[1]]);
        }
    }
}

#[test]
fn a_device_whose_credential_goes_is_disconnected() {
    let key =
        "routes:\n  - {id: devices, uri: /connect, plugins: {key-auth: {}, device-gateway: {id: $consumer_name}}}\n";
    let consumers = |key: &str| {
        format!(
            "consumers:\n  - {{username: lamp, plugins: {{key-auth: {{key: {key}}}}}}}\n  \
             - {{username: door, plugins: {{key-auth: {{key: of-door}}}}}}\n"
        )
    };
    let node = Node::start("", "", &(key.to_owned() + &consumers("of-lamp")));
    let mut script = node.begin("revoked", &[]);
    script.announced("connected");
    node.gateway.reload(&setup(&node.api, "", "", &(key.to_owned() + &consumers("another"))));
    finish(&mut script, "revoked");
}

#[test]
fn a_device_is_disconnected_when_its_token_ends() {
    let resources = "routes:\n  - {id: devices, uri: /connect, plugins: {jwt-auth: {}, device-gateway: {id: $consumer_name}}}\n\
        consumers:\n  - {username: lamp, plugins: {jwt-auth: {key: lamp, secret: a-secret-of-some-length}}}\n";
    Node::start("", "", resources).play("token_ends", &[]);
}

#[test]
fn metrics_and_the_access_log_tell_of_connections() {
    let metrics = ReservedPort::new();
    let gateway = format!(
        "metrics: {{address: \"{}\"}}\naccess_log: {{path: \"{{dir}}/access.log\", format: json, \
         fields: [status, uri, bytes_received, bytes_sent, request_time, route_id]}}",
        metrics.addr()
    );
    let node = Node::start("", &gateway, &route(""));
    node.play("told", &[]);
    let mut text = String::new();
    eventually("the end to be counted", || {
        text = String::from_utf8(Client::connect(metrics.addr()).get("/metrics").body).expect("text");
        text.contains("reason=\"closed\"")
    });
    for line in [
        "stillgate_devices_connected 0",
        "stillgate_device_connections_total{route=\"devices\",protocol=\"json\"} 1",
        "stillgate_device_disconnections_total{route=\"devices\",protocol=\"json\",reason=\"closed\"} 1",
        "stillgate_device_messages_total{route=\"devices\",protocol=\"json\",direction=\"egress\"} 3",
        "stillgate_device_messages_total{route=\"devices\",protocol=\"json\",direction=\"ingress\"} 1",
    ] {
        eventually(line, || {
            text = String::from_utf8(Client::connect(metrics.addr()).get("/metrics").body).expect("text");
            text.contains(line)
        });
    }
    assert!(!text.contains("a-device-that-is-no-label"), "{text}");
    let mut log = String::new();
    eventually("a line of the log", || {
        log = std::fs::read_to_string(node.gateway.dir().join("access.log")).expect("a log");
        log.ends_with('\n')
    });
    let line: serde_json::Value = serde_json::from_str(log.lines().next().expect("a line")).expect("JSON");
    assert_eq!((&line["status"], &line["route_id"]), (&101.into(), &"devices".into()), "{log}");
    let number = |key: &str| line[key].as_f64().or_else(|| line[key].as_str()?.parse().ok()).expect("a number");
    assert!(number("bytes_sent") > 500.0 && number("bytes_received") > 200.0, "{log}");
    assert!(number("request_time") >= 0.5, "{log}");
}

#[test]
fn an_upgrade_hands_devices_over() {
    let api = ReservedPort::new();
    let setup = setup(&api, "", "workers: 2", &route(""));
    let mut upgraded = UpgradedGateway::start(&setup);
    let (gateway, port) = (upgraded.gateway.addr().port().to_string(), api.addr().port().to_string());
    let script = include_str!("../data/python/devices.py");
    let mut script = Python::start(script, &["upgraded", &gateway, &port, "alone"]);
    for round in 0..3 {
        script.announced(&format!("round {round}"));
        upgraded.upgrade();
        upgraded.await_old();
    }
    std::fs::write(upgraded.gateway.dir().join("enough"), "").expect("a file");
    script.announced("asks");
    finish(&mut script, "upgraded");
}
