//! Devices and related features: the upstream that gets their events, credentials, metrics, the access log, an upgrade.

use crate::shared::devices::{Node, finish, route, setup};
use crate::shared::upgrade::UpgradedGateway;
use stillgate_testkit::{Client, Python, ReservedPort, Upstream, eventually};

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
