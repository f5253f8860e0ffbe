//! The entries that plugins for logs and traces send, to receivers of all kinds, and that a receiver never delays a request.

use crate::shared::STILLGATE;
use crate::shared::logs;
use crate::shared::logs::{TcpBytes, dropped, entries_of, http_logger, receiver, sent, stalled};
use crate::shared::measured::MeasuredGateway;
use serde_json::Value;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stillgate_testkit::{Gateway, Setup, Upstream, eventually};

const MIB: usize = 1024 * 1024;
/// The bound of what waits for one receiver, with what is being written to it.
const HELD_BYTES_MAX: f64 = 17.0 * 1024.0 * 1024.0;

#[test]
fn an_entry_has_what_apisix_writes() {
    let (node, (receiver, seen)) = (Upstream::echo(), receiver(|_| 200));
    let setup = http_logger(&node, &receiver, "batch_max_size: 1, include_req_body: true, include_resp_body: true");
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    client.send(
        "POST /a?echo&b=1&b=%20&c HTTP/1.1\r\nHost: H.Example\r\nX-Two: 1\r\nX-Two: 2\r\nContent-Length: 5\r\n\r\nhello",
    );
    client.expect_response("POST");
    eventually("an entry", || seen.requests() == 1);
    let (head, body) = seen.last();
    assert_eq!(head.method_and_target(), ("POST", "/logs?x=1"));
    assert_eq!(
        (head.get("content-type"), head.get("authorization")),
        (Some("application/json"), Some("Basic c2VjcmV0"))
    );
    let entry: Value = serde_json::from_slice(&body).expect("JSON");
    let request = &entry["request"];
    let port = gateway.addr().port();
    assert_eq!(request["url"], format!("http://h.example:{port}/a?echo&b=1&b=%20&c"));
    assert_eq!((&request["uri"], &request["method"]), (&"/a?echo&b=1&b=%20&c".into(), &"POST".into()));
    assert_eq!(request["headers"]["x-two"], serde_json::json!(["1", "2"]));
    assert_eq!(request["querystring"], serde_json::json!({"echo": true, "b": ["1", " "], "c": true}));
    assert_eq!(request["body"], "hello");
    assert_eq!((&entry["response"]["status"], &entry["response"]["body"]), (&200.into(), &"hello".into()));
    assert_eq!(entry["response"]["headers"]["x-body-length"], "5");
    assert!(entry["response"]["headers"]["date"].is_string(), "{entry}");
    assert_eq!(entry["upstream"], node.addr().to_string());
    assert_eq!(
        (&entry["route_id"], &entry["service_id"], &entry["client_ip"]),
        (&"r".into(), &"".into(), &"127.0.0.1".into())
    );
    let number = |name: &str| entry[name].as_f64().unwrap_or_else(|| panic!("{name} in {entry}"));
    assert!(number("latency") + 0.001 >= number("upstream_latency") + number("apisix_latency"), "{entry}");
    assert!(number("start_time") > 1e12 && entry["server"]["hostname"].is_string(), "{entry}");
    let (sent, received) = (entry["response"]["size"].as_u64(), request["size"].as_u64());
    assert!(sent > Some(5) && received > Some(90), "{entry}");
}

#[test]
fn bodies_are_cut_and_conditions_hold() {
    let (node, (receiver, seen)) = (Upstream::echo(), receiver(|_| 200));
    let keys = "batch_max_size: 1, include_req_body: true, include_resp_body: true, max_req_body_bytes: 3, \
                max_resp_body_bytes: 70000, include_req_body_expr: [[arg_log, \"==\", \"1\"]]";
    let gateway = Gateway::start(STILLGATE, &http_logger(&node, &receiver, keys));
    let mut client = gateway.client();
    client.request("POST", "/a?size=200000&log=1", b"abcdef");
    client.request("POST", "/a?size=10&log=0&chunked", b"abcdef");
    eventually("two entries", || seen.entries().len() == 2);
    let entries = seen.entries();
    assert_eq!(entries[0]["request"]["body"], "abc");
    let text = entries[0]["response"]["body"].as_str().expect("a text");
    assert!(text.chars().count() <= 70_000 && text.len() > 60_000, "{}", text.len());
    assert_eq!(entries[1]["request"].get("body"), None);
    assert!(entries[1]["response"]["body"].is_string());
}

#[test]
fn entries_go_in_batches_and_format_and_metadata_hold() {
    let (node, (receiver, seen)) = (Upstream::echo(), receiver(|_| 200));
    let keys = "batch_max_size: 3, concat_method: new_line, \
                log_format: {at: $time_iso8601, who: {ip: $remote_addr, none: $arg_none}, size: $bytes_sent, k: constant, n: 7}";
    let gateway = Gateway::start(STILLGATE, &http_logger(&node, &receiver, keys));
    for _ in 0..6 {
        gateway.get("/a");
    }
    eventually("two batches", || seen.requests() == 2);
    let (head, body) = seen.last();
    assert_eq!(head.get("content-type"), Some("text/plain"));
    let lines: Vec<Value> =
        body.split(|byte| *byte == b'\n').map(|line| serde_json::from_slice(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[0]["who"], serde_json::json!({"ip": "127.0.0.1"}));
    assert!(lines[0]["size"].is_number() && lines[0]["n"] == 7 && lines[0]["k"] == "constant");
    assert_eq!(lines[0]["route_id"], "r");
    assert!(lines[0]["at"].as_str().is_some_and(|at| at.ends_with("+00:00")));
}

#[test]
fn compressed_bodies_are_logged_as_text() {
    let body = "hello ".repeat(100);
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let node = Upstream::serve(move |connection| {
        while connection.read_request().is_ok() {
            connection.send(&answer);
        }
    });
    let (receiver, seen) = receiver(|_| 200);
    let plugins = format!(
        "gzip: {{min_length: 1}}\n      \
         http-logger: {{uri: \"http://{}/\", batch_max_size: 1, include_resp_body: true, max_resp_body_bytes: 400}}",
        receiver.addr()
    );
    let gateway = Gateway::start(STILLGATE, &logs::route(&node, &plugins, ""));
    let mut client = gateway.client();
    client.send("GET /a HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip\r\n\r\n");
    assert_eq!(client.expect_response("GET").head.get("content-encoding"), Some("gzip"));
    assert_eq!(entries_of(&seen)[0]["response"]["body"], body[..400]);
}

#[test]
fn entries_have_what_became_of_the_request() {
    let (node, (receiver, seen)) = (Upstream::echo(), receiver(|_| 200));
    let keys = "batch_max_size: 1, include_resp_body: true, log_format: {route: $route_name, service: $service_name, \
                method: $method, user: $remote_user, ip: $balancer_ip, host: $upstream_host, uri: $upstream_uri, \
                scheme: $upstream_scheme, node: $upstream_unresolved_host, id: $apisix_request_id, field: $http_x_request_id, in: $request_body, \
                out: $resp_body, typo: $remote_adr, a: {b: {c: {d: {e: {f: {g: $host}, h: 1}}}}}}";
    let setup = Setup::resources(format!(
        "services: [{{id: s, name: The shop}}]\n\
         routes:\n  - id: r\n    name: orders\n    uri: /*\n    service_id: s\n    plugins:\n      \
         http-logger: {{uri: \"http://{}/logs\", {keys}}}\n      proxy-rewrite: {{uri: /b}}\n      request-id: {{}}\n    \
         upstream: {{nodes: {{\"localhost:{}\": 1}}}}\n",
        receiver.addr(),
        node.addr().port()
    ));
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    client.send(
        "POST /a?echo HTTP/1.1\r\nHost: h\r\nAuthorization: Basic amFjazpzZWNyZXQ=\r\nContent-Length: 5\r\n\r\nhello",
    );
    client.expect_response("POST");
    eventually("an entry", || seen.requests() == 1);
    let (_, body) = seen.last();
    let entry: Value = serde_json::from_slice(&body).expect("JSON");
    for (name, expected) in [
        ("route", "orders"),
        ("service", "The shop"),
        ("method", "POST"),
        ("user", "jack"),
        ("host", "h"),
        ("uri", "/b?echo"),
        ("scheme", "http"),
        ("node", "localhost"),
        ("in", "hello"),
        ("out", "hello"),
    ] {
        assert_eq!(entry[name], expected, "{name} {entry}");
    }
    assert_eq!(entry["id"].as_str().map(str::len), Some(36), "{entry}");
    assert_eq!(entry["id"], entry["field"], "{entry}");
    assert!(entry["ip"].is_string() && entry.get("typo").is_none(), "{entry}");
    assert_eq!(entry["a"]["b"]["c"]["d"], serde_json::json!({"e": {"h": 1}}), "as deep as APISIX");
}

#[test]
fn one_of_several_lists_of_conditions_has_to_hold() {
    let node = Upstream::echo();
    let plugin = "file-logger: {path: \"{dir}/entries\", log_format: {uri: $uri}, \
                  match: [[[arg_name, \"==\", jack], [status, \"==\", 200]], [[upstream_status, \"==\", \"404\"]]]}";
    let gateway = Gateway::start(STILLGATE, &logs::route(&node, plugin, ""));
    for target in
        ["/one?name=jack", "/two?name=rose", "/three?status=404", "/four?name=jack&status=500", "/five?name=jack"]
    {
        gateway.get(target);
    }
    let path = gateway.dir().join("entries");
    let text = || std::fs::read_to_string(&path).unwrap_or_default();
    eventually("the last entry", || text().contains("/five"));
    let uris: Vec<Value> =
        text().lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")["uri"].take()).collect();
    assert_eq!(uris, ["/one", "/three", "/five"]);
}

#[test]
fn every_entry_is_sent_or_counted() {
    // The receiver refuses one batch of three, and closes the connection of another.
    let (node, (receiver, seen)) = (Upstream::echo(), receiver(|count| [200, 500, 0][count % 3]));
    let setup = http_logger(&node, &receiver, "batch_max_size: 7, inactive_timeout: 1");
    let measured = MeasuredGateway::start(setup, "");
    let gateway = &measured.gateway;
    let mut client = gateway.client();
    for _ in 0..500 {
        client.get("/a");
    }
    let mut counted = (0, 0);
    eventually("all to be counted", || {
        counted = (sent(&measured, "http-logger"), dropped(&measured, "http-logger"));
        counted.0 + counted.1 == 500
    });
    assert!(counted.0 > 0 && counted.1 > 0, "{counted:?}");
    assert_eq!(seen.accepted(), counted.0);
}

#[test]
fn what_failed_is_tried_again() {
    let (node, (receiver, seen)) = (Upstream::echo(), receiver(|count| if count < 2 { 503 } else { 200 }));
    let setup = http_logger(&node, &receiver, "batch_max_size: 1, max_retry_count: 2, retry_delay: 0");
    let measured = MeasuredGateway::start(setup, "");
    let gateway = &measured.gateway;
    gateway.get("/a");
    eventually("the third try", || sent(&measured, "http-logger") == 1);
    assert_eq!((seen.requests(), dropped(&measured, "http-logger")), (3, 0));
}

#[test]
fn a_receiver_that_stalls_costs_memory_up_to_its_bound() {
    let (node, receiver) = (Upstream::echo(), stalled());
    let setup = http_logger(&node, &receiver, "batch_max_size: 10, include_resp_body: true, timeout: 3600");
    let mut measured = MeasuredGateway::start(setup, "");
    let gateway = &measured.gateway;
    let mut client = gateway.client();
    for _ in 0..400 {
        assert_eq!(client.get("/a?size=100000").head.status(), 200);
    }
    eventually("what has no room to be counted", || dropped(&measured, "http-logger") > 0);
    let held = measured.scrape().one("stillgate_logger_bytes", &[("plugin", "http-logger")]);
    assert!(held > 1e6 && held <= HELD_BYTES_MAX, "{held}");
    measured.gateway.assert_healthy();
}

/// A short body that was compressed counts as what it is without its coding: a thousand of them took 2 GiB, and went in one request
/// of 500 MiB.
#[test]
fn decoded_bodies_count_as_what_they_become() {
    const REQUESTS: u64 = 200;
    const PAGE_BYTES: usize = 256 * 1024;
    let body = "<br>".repeat(PAGE_BYTES / 4);
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {PAGE_BYTES}\r\n\r\n{body}");
    let node = Upstream::serve(move |connection| {
        while connection.read_request().is_ok() {
            connection.send(&answer);
        }
    });
    let (receiver, seen) = receiver(|_| 200);
    let plugins = format!(
        "gzip: {{min_length: 1}}\n      http-logger: {{uri: \"http://{}/\", include_resp_body: true, inactive_timeout: 1}}",
        receiver.addr()
    );
    let measured = MeasuredGateway::start(logs::route(&node, &plugins, ""), "");
    let before = measured.gateway.rss_peak();
    let mut client = measured.gateway.client();
    for _ in 0..REQUESTS {
        client.send("GET /a HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip\r\n\r\n");
        let got = client.expect_response("GET");
        assert!(got.body.len() < PAGE_BYTES / 50, "{}", got.body.len());
    }
    let counted = || (sent(&measured, "http-logger"), dropped(&measured, "http-logger"));
    eventually("all to be counted", || counted().0 + counted().1 == REQUESTS);
    let largest = seen.longest();
    assert!(largest > PAGE_BYTES && largest < 6 * MIB, "{largest} bytes in one request");
    assert_eq!(seen.accepted(), counted().0);
    let grown = measured.gateway.rss_peak() - before;
    assert!(grown < 64 * MIB, "{grown} bytes more");
}

#[test]
fn after_a_stall_every_request_is_sent_or_dropped() {
    const REQUESTS: u64 = 400;
    let (node, answers) = (Upstream::echo(), Arc::new(AtomicBool::new(false)));
    let waits_for = answers.clone();
    let (receiver, seen) = receiver(move |_| {
        while !waits_for.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        200
    });
    let keys = "batch_max_size: 10, include_resp_body: true, timeout: 3600, inactive_timeout: 1";
    let measured = MeasuredGateway::start(http_logger(&node, &receiver, keys), "");
    let mut client = measured.gateway.client();
    for _ in 0..REQUESTS {
        assert_eq!(client.get("/a?size=100000").head.status(), 200);
    }
    eventually("what has no room to be counted", || dropped(&measured, "http-logger") > 0);
    assert_eq!(sent(&measured, "http-logger"), 0);
    answers.store(true, Ordering::Relaxed);
    let counted = || (sent(&measured, "http-logger"), dropped(&measured, "http-logger"));
    eventually("all to be counted", || counted().0 + counted().1 == REQUESTS);
    assert_eq!(seen.accepted(), counted().0);
    assert_eq!(measured.scrape().one("stillgate_logger_bytes", &[("plugin", "http-logger")]), 0.0);
}

#[test]
fn what_is_left_is_sent_at_the_end_and_at_an_upgrade() {
    for signal in ["TERM", "USR2"] {
        let (node, (receiver, seen)) = (Upstream::echo(), receiver(|_| 200));
        let gateway =
            Gateway::start(STILLGATE, &http_logger(&node, &receiver, "inactive_timeout: 3600, buffer_duration: 3600"));
        for _ in 0..10 {
            gateway.get("/a");
        }
        assert_eq!(seen.requests(), 0);
        gateway.signal(signal);
        eventually("the entries", || seen.entries().len() == 10);
    }
}

#[test]
fn a_file_is_appended_to_and_made_again() {
    let node = Upstream::echo();
    let plugin =
        "file-logger: {path: \"{dir}/a.log\", match: [[arg_log, \"==\", \"1\"]], log_format: {uri: $request_uri}}";
    let gateway = Gateway::start(STILLGATE, &logs::route(&node, plugin, ""));
    let text = |name: &str| std::fs::read_to_string(gateway.dir().join(name)).unwrap_or_default();
    gateway.get("/a?log=0");
    gateway.get("/b?log=1");
    eventually("a line", || text("a.log").ends_with('\n'));
    assert_eq!(text("a.log"), "{\"uri\":\"/b?log=1\",\"route_id\":\"r\"}\n");
    std::fs::rename(gateway.dir().join("a.log"), gateway.dir().join("a.log.1")).expect("rotate");
    gateway.get("/c?log=1");
    eventually("a new file", || text("a.log").contains("/c"));
    assert!(!text("a.log.1").contains("/c"));
}

#[test]
fn tcp_and_udp_get_arrays() {
    let node = Upstream::echo();
    let (tcp, seen) = TcpBytes::lines();
    let plugin = format!(
        "tcp-logger: {{host: 127.0.0.1, port: {}, batch_max_size: 2, log_format: {{uri: $uri}}}}",
        tcp.addr().port()
    );
    let gateway = Gateway::start(STILLGATE, &logs::route(&node, &plugin, ""));
    gateway.get("/a");
    gateway.get("/b");
    eventually("a batch", || seen.bytes().ends_with(b"]"));
    let entries: Value = serde_json::from_slice(&seen.bytes()).expect("JSON");
    assert_eq!(entries, serde_json::json!([{"uri": "/a", "route_id": "r"}, {"uri": "/b", "route_id": "r"}]));

    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_read_timeout(Some(stillgate_testkit::PATIENCE)).expect("a timeout");
    let port = socket.local_addr().expect("an address").port();
    let plugin = format!("udp-logger: {{host: 127.0.0.1, port: {port}, batch_max_size: 1, log_format: {{uri: $uri}}}}");
    let gateway = Gateway::start(STILLGATE, &logs::route(&node, &plugin, ""));
    gateway.get("/u");
    let mut datagram = [0; 1024];
    let length = socket.recv(&mut datagram).expect("a datagram");
    assert_eq!(&datagram[..length], br#"{"uri":"/u","route_id":"r"}"#);
}

#[test]
fn loki_gets_streams() {
    let (node, (receiver, seen)) = (Upstream::echo(), receiver(|_| 204));
    let plugin = format!(
        "loki-logger: {{endpoint_addrs: [\"http://{}\"], tenant_id: t, batch_max_size: 2, log_format: {{uri: $uri}}, \
         log_labels: {{job: apisix, method: $request_method}}, headers: {{X-More: planted}}}}",
        receiver.addr()
    );
    let gateway = Gateway::start(STILLGATE, &logs::route(&node, &plugin, ""));
    gateway.get("/a");
    gateway.client().request("POST", "/b", b"");
    eventually("a batch", || seen.requests() == 1);
    let (head, body) = seen.last();
    assert_eq!(head.method_and_target(), ("POST", "/loki/api/v1/push"));
    assert_eq!((head.get("x-scope-orgid"), head.get("x-more")), (Some("t"), Some("planted")));
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    let streams = body["streams"].as_array().expect("streams");
    assert_eq!(streams.len(), 2);
    for (stream, (method, uri)) in streams.iter().zip([("GET", "/a"), ("POST", "/b")]) {
        assert_eq!(stream["stream"], serde_json::json!({"job": "apisix", "method": method}));
        let [time, line] = &stream["values"][0].as_array().expect("a pair")[..] else { panic!("{stream}") };
        // Nanoseconds, as a text.
        assert_eq!(time.as_str().map(str::len), Some(19), "{time}");
        let line: Value = serde_json::from_str(line.as_str().expect("a text")).expect("JSON");
        assert_eq!(line["uri"], uri);
    }
}

/// A label is never empty: where none of its variables has a value when the request is logged, it has its text.
#[test]
fn a_label_without_a_value_keeps_its_text() {
    let (node, (receiver, seen)) = (Upstream::echo(), receiver(|_| 204));
    let plugin = format!(
        "loki-logger: {{endpoint_addrs: [\"http://{}\"], batch_max_size: 1, log_labels: {{tenant: $http_x_tenant, \
         node: $upstream_addr, who: $consumer_name, both: $request_method-$http_x_tenant, other: \"$${{http_x_tenant ?? none}}\", \
         typed: $no_such_variable}}}}\n      \
         fault-injection: {{abort: {{http_status: 403, vars: [[[uri, ==, /refused]]]}}}}",
        receiver.addr()
    );
    let gateway = Gateway::start(STILLGATE, &logs::route(&node, &plugin, ""));
    let mut client = gateway.client();
    let mut labels_of = |target: &str, field: &str| {
        let before = seen.requests();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\n{field}\r\n"));
        client.expect_response("GET");
        eventually("a batch", || seen.requests() == before + 1);
        let body: Value = serde_json::from_slice(&seen.last().1).expect("JSON");
        body["streams"][0]["stream"].clone()
    };
    let addr = node.addr().to_string();
    assert_eq!(
        labels_of("/a", "X-Tenant: t1\r\n"),
        serde_json::json!({"tenant": "t1", "node": addr, "who": "$consumer_name", "both": "GET-t1", "other": "t1",
            "typed": "$no_such_variable"})
    );
    assert_eq!(
        labels_of("/refused", ""),
        serde_json::json!({"tenant": "$http_x_tenant", "node": "$upstream_addr", "who": "$consumer_name", "both": "GET-",
            "other": "none", "typed": "$no_such_variable"})
    );
}

#[test]
fn elasticsearch_is_asked_for_its_version_and_gets_a_bulk() {
    let (node, (receiver, seen)) = (Upstream::echo(), logs::elasticsearch("8.15.1"));
    let plugin = format!(
        "elasticsearch-logger: {{endpoint_addrs: [\"http://{}\"], field: {{index: \"gw-$arg_a-{{%Y}}\"}}, batch_max_size: 2, \
         auth: {{username: elastic, password: planted}}, log_format: {{uri: $uri}}}}",
        receiver.addr()
    );
    let gateway = Gateway::start(STILLGATE, &logs::route(&node, &plugin, ""));
    gateway.get("/x?a=one");
    gateway.get("/y?a=two");
    eventually("a batch", || seen.requests() == 2);
    let (head, body) = seen.last();
    assert_eq!(head.method_and_target(), ("POST", "/_bulk"));
    assert_eq!(head.get("content-type"), Some("application/x-ndjson;compatible-with=7"));
    assert_eq!(head.get("authorization"), Some("Basic ZWxhc3RpYzpwbGFudGVk"));
    let text = String::from_utf8(body).expect("UTF-8");
    assert!(text.ends_with('\n'));
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let index = lines[0]["create"]["_index"].as_str().expect("an index");
    assert!(index.starts_with("gw-one-2") && index.len() == 11, "{index}");
    assert_eq!((&lines[1]["uri"], &lines[3]["uri"]), (&"/x".into(), &"/y".into()));
    assert!(!gateway.status().to_string().contains("planted"));
}

#[test]
fn rsyslog_reads_what_syslog_sends() {
    for sock_type in ["tcp", "udp"] {
        let rsyslog = logs::Rsyslog::start(sock_type);
        let node = Upstream::echo();
        let plugin = format!(
            "syslog: {{host: 127.0.0.1, port: {}, sock_type: {sock_type}, batch_max_size: 2, log_format: {{uri: $uri}}}}",
            rsyslog.port()
        );
        let gateway = Gateway::start(STILLGATE, &logs::route(&node, &plugin, ""));
        let mut client = gateway.client();
        for uri in ["/a", "/b"] {
            client.send(format!("GET {uri} HTTP/1.1\r\nHost: shop.example\r\n\r\n"));
            client.expect_response("GET");
        }
        eventually("two messages", || rsyslog.messages().len() == 2);
        let expected = |uri: &str| format!("shop.example|apisix|syslog|info|{{\"uri\":\"{uri}\",\"route_id\":\"r\"}}");
        assert_eq!(rsyslog.messages(), [expected("/a"), expected("/b")]);
    }
}

#[test]
fn zipkin_gets_spans_and_the_node_their_context() {
    let (node, (receiver, seen)) = (Upstream::bind(), receiver(|_| 202));
    let plugin =
        format!("zipkin: {{endpoint: \"http://{}/api/v2/spans\", sample_ratio: 1, service_name: gw}}", receiver.addr());
    let gateway = Gateway::start(STILLGATE, &logs::route(&node, &plugin, ""));
    let mut client = gateway.client();
    client.send("GET /a HTTP/1.1\r\nHost: h\r\nb3: 80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-1-05e3ac9a4f6e3b90\r\n\r\n");
    let mut asked = node.accept();
    let request = asked.expect_request().head;
    asked.send("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n");
    client.expect_response("GET");
    assert_eq!((request.get("b3"), request.get("x-b3-sampled")), (None, Some("1")));
    assert_eq!(request.get("x-b3-traceid"), Some("80f198ee56343ba864fe8b2a57d3eff7"));
    gateway.signal("TERM");
    let spans = entries_of(&seen);
    let names: Vec<&str> = spans.iter().filter_map(|span| span["name"].as_str()).collect();
    assert_eq!(names, ["apisix.request", "apisix.proxy", "apisix.response_span"]);
    let [root, proxy, response] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!((&root["parentId"], &root["kind"]), (&"e457b5a2e4d86bd1".into(), &"SERVER".into()));
    assert_eq!((&proxy["parentId"], &response["parentId"]), (&root["id"], &root["id"]));
    assert_eq!(Some(proxy["id"].as_str().expect("an id")), request.get("x-b3-spanid"));
    assert_eq!(Some(root["id"].as_str().expect("an id")), request.get("x-b3-parentspanid"));
    assert_eq!(
        (&root["tags"]["http.status_code"], &root["localEndpoint"]["serviceName"]),
        (&"503".into(), &"gw".into())
    );
    let end = |span: &Value| span["timestamp"].as_u64().zip(span["duration"].as_u64()).map(|(at, time)| at + time);
    assert!(end(root) >= end(proxy) && end(root).is_some(), "{spans:?}");
}

#[test]
fn a_collector_gets_spans_of_otlp_and_the_log_their_trace() {
    let ((node, asked), (receiver, seen)) = (receiver(|_| 500), receiver(|_| 200));
    let more = format!(
        "plugin_metadata:\n  - id: opentelemetry\n    set_ngx_var: true\n    resource: {{service.name: shop, weight: 1.5}}\n    \
         collector: {{address: \"{}\", request_headers: {{X-Token: planted}}}}\n    \
         batch_span_processor: {{inactive_timeout: 0.1}}\n",
        receiver.addr()
    );
    let plugin = "opentelemetry: {sampler: {name: parent_base, options: {root: {name: always_off}}}, \
                  additional_attributes: [remote_addr], additional_header_prefix_attributes: [\"X-My-*\"]}";
    let setup = logs::route(&node, plugin, &more)
        .gateway("access_log: {path: \"{dir}/access.log\", format: json, fields: [trace_id, opentelemetry_span_id]}");
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    for (traceparent, state) in [
        ("traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n", "tracestate: a=b\r\n"),
        ("", "tracestate: stray\r\n"),
    ] {
        client.send(format!("GET /a?q HTTP/1.1\r\nHost: h\r\nX-My-A: 1\r\n{traceparent}{state}\r\n"));
        client.expect_response("GET");
    }
    let heads = asked.heads();
    let first = &heads[0];
    let (own, second) = (first.get("traceparent").expect("a context"), &heads[1]);
    assert!(own.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && own.ends_with("-01"), "{own}");
    assert_eq!((first.get("tracestate"), second.get("tracestate")), (Some("a=b"), None));
    assert!(second.get("traceparent").is_some_and(|context| context.ends_with("-00")));
    eventually("a batch", || seen.requests() == 1);
    let (head, body) = seen.last();
    assert_eq!(head.method_and_target(), ("POST", "/v1/traces"));
    assert_eq!((head.get("content-type"), head.get("x-token")), (Some("application/x-protobuf"), Some("planted")));
    let export = logs::otlp::read(&body);
    assert_eq!(export.resource["service.name"], "shop");
    assert_eq!(export.resource["weight"], "1.5");
    assert_eq!(export.spans.len(), 1, "only the one that its caller records");
    let span = &export.spans[0];
    assert_eq!((span.name.as_str(), span.kind, span.status), ("GET /*", 2, 2));
    assert_eq!(span.trace_id, "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!((span.parent.as_str(), span.state.as_str()), ("00f067aa0ba902b7", "a=b"));
    assert_eq!(own.split('-').nth(2), Some(span.id.as_str()));
    assert!(span.end >= span.start && span.start > 1_000_000_000_000_000_000);
    for (name, value) in [
        ("net.host.name", "h"),
        ("http.method", "GET"),
        ("http.target", "/a?q"),
        ("apisix.route_id", "r"),
        ("http.route", "/*"),
        ("http.status_code", "500"),
        ("http.response.status_code", "500"),
        ("remote_addr", "127.0.0.1"),
        ("x-my-a", "1"),
    ] {
        assert_eq!(span.attributes.get(name).map(String::as_str), Some(value), "{name}");
    }
    let lines = || std::fs::read_to_string(gateway.dir().join("access.log")).unwrap_or_default();
    eventually("two lines", || lines().matches('\n').count() == 2);
    let line: Value = serde_json::from_str(lines().lines().next().expect("a line")).expect("JSON");
    assert_eq!(
        (&line["trace_id"], &line["opentelemetry_span_id"]),
        (&span.trace_id.as_str().into(), &span.id.as_str().into())
    );
}

#[test]
fn wrong_receivers_are_refused_by_name() {
    let setup = Setup::resources("routes: []\n");
    let gateway = Gateway::start(STILLGATE, &setup);
    for (plugin, expected) in [
        ("http-logger: {uri: \"ftp://a\"}", "write http://HOST:PORT/PATH"),
        ("http-logger: {uri: \"http://u:planted@a\"}", "use the keys for that"),
        (
            "http-logger: {uri: \"http://a\", auth_header: \"planted\\r\\nX: y\"}",
            "this is not a valid value of a header field",
        ),
        ("zipkin: {endpoint: \"http://a\", sample_ratio: 0}", "from 0.00001 to 1"),
        ("elasticsearch-logger: {field: {index: i}}", "endpoint_addrs"),
        ("file-logger: {}", "property \"path\" is not set in either the plugin conf or the metadata"),
    ] {
        let text = format!(
            "routes:\n  - {{id: r, uri: /a, plugins: {{{plugin}}}, upstream: {{nodes: {{\"127.0.0.1:1\": 1}}}}}}\n"
        );
        let output = logs::check(&gateway, &text);
        assert!(output.contains(expected) && !output.contains("planted"), "{plugin}: {output}");
    }
}

#[test]
fn a_variable_that_does_not_exist_is_warned_of() {
    let gateway = Gateway::start(STILLGATE, &Setup::resources("routes: []\n"));
    let file = gateway.dir().join("checked.yaml");
    let text = "routes:\n  - id: r\n    uri: /a\n    plugins:\n      \
                http-logger: {uri: \"http://a\", log_format: {a: $remote_adr}}\n      \
                redirect: {uri: \"$uri/$bad_var\"}\n    upstream: {nodes: {\"127.0.0.1:1\": 1}}\n";
    std::fs::write(&file, text).expect("write a file");
    let output = Command::new(STILLGATE).args(["check", "--offline"]).arg(&file).output().expect("run stillgate");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    assert!(said.contains("did you mean \"remote_addr\"") && said.contains("\"bad_var\": unknown variable"), "{said}");
}
