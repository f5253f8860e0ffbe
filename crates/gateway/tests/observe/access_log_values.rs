//! The values in a line of the access log: tries, ids, header fields of responses, bytes.

use crate::shared::STILLGATE;
use crate::shared::tunnel;
use crate::shared::tunnel::{AGREE, ASK};
use serde_json::Value;
use std::collections::HashSet;
use stillgate_testkit::{Gateway, ReservedPort, Setup, Upstream, eventually, scrape};

const OF_TRIES: &str = "status, upstream_addr, upstream_status, upstream_tries, upstream_connect_time";

fn logging(setup: Setup, fields: &str) -> Setup {
    setup.gateway(&format!("access_log: {{path: \"{{dir}}/access.log\", format: json, fields: [{fields}]}}"))
}

/// The first so many lines, once they are written.
#[track_caller]
fn lines(gateway: &Gateway, count: usize) -> Vec<Value> {
    let text = || std::fs::read_to_string(gateway.dir().join("access.log")).unwrap_or_default();
    eventually("all lines", || text().ends_with('\n') && text().lines().count() == count);
    text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn a_node_that_refuses_the_connection_is_named() {
    let dead = Upstream::refusing();
    let gateway = Gateway::start(STILLGATE, &logging(Setup::to(dead.addr()), OF_TRIES));
    assert_eq!(gateway.get("/").head.status(), 502);
    let expected = serde_json::json!({
        "status": 502, "upstream_addr": dead.addr().to_string(), "upstream_status": "502", "upstream_tries": 1,
        "upstream_connect_time": null,
    });
    assert_eq!(lines(&gateway, 1), [expected]);
    let warning = || {
        let log = gateway.log();
        log.lines().find(|line| line.contains("were not served by their upstream")).map(str::to_owned)
    };
    eventually("a warning", || warning().is_some());
    let warning = warning().expect("it was there");
    assert!(warning.contains(&format!("\"node\":\"{}\"", dead.addr())), "{warning}");
    assert!(warning.contains("were not served by their upstream: "), "{warning}");
}

#[test]
fn every_try_is_shown_in_its_order() {
    let (dead, closing, alive) =
        (Upstream::refusing(), Upstream::serve(|connection| drop(connection.read_head())), Upstream::echo());
    let setup = Setup::to_tiers(&[dead.addr(), closing.addr(), alive.addr()]).upstream("retries: 2");
    let gateway = Gateway::start(STILLGATE, &logging(setup, OF_TRIES));
    let mut client = gateway.client();
    assert_eq!(client.get("/").head.status(), 200);
    let line = lines(&gateway, 1).remove(0);
    assert_eq!(line["upstream_addr"], format!("{}, {}, {}", dead.addr(), closing.addr(), alive.addr()));
    assert_eq!((&line["upstream_status"], &line["upstream_tries"]), (&"502, 502, 200".into(), &3.into()), "{line}");
    assert!(line["upstream_connect_time"].as_f64() > Some(0.0), "{line}");
    // A line describes its own request only, and a kept connection takes no time to establish.
    assert_eq!(client.get("/").head.status(), 200);
    let line = lines(&gateway, 2).remove(1);
    assert!(line["upstream_addr"].as_str().expect("text").ends_with(&alive.addr().to_string()), "{line}");
    assert_eq!(line["upstream_connect_time"], 0.0, "{line}");
}

/// As nginx logs them: names in any case, values as they came. What plugins log is APISIX's.
#[test]
fn arguments_and_cookies_are_nginxs() {
    let upstream = Upstream::echo();
    let plugins = "plugins: {file-logger: {path: \"DIR/plugin.log\", log_format: {f: $arg_f, page: $arg_page}}}";
    let folder = tempfile::tempdir().expect("a folder");
    let plugins = plugins.replace("DIR", folder.path().to_str().expect("text"));
    let setup = logging(Setup::to(upstream.addr()).route(&plugins), "arg_f, arg_Page, arg_none, {sid: cookie_sid}");
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    client.send("GET /?none&F=%2e+x&page=%31 HTTP/1.1\r\nHost: h\r\nCookie: a=b; SID=%32\r\nCookie: sid=3\r\n\r\n");
    assert_eq!(client.expect_response("GET").head.status(), 200);
    let expected = serde_json::json!({"arg_f": "%2e+x", "arg_Page": "%31", "arg_none": null, "sid": "%32"});
    assert_eq!(lines(&gateway, 1), [expected]);
    let text = || std::fs::read_to_string(folder.path().join("plugin.log")).unwrap_or_default();
    eventually("the line of the plugin", || text().ends_with('\n'));
    let line: Value = serde_json::from_str(&text()).expect("JSON");
    assert_eq!((&line["f"], &line["page"]), (&Value::Null, &"1".into()), "{line}");
}

#[test]
fn a_request_that_no_node_was_asked_for_has_no_tries() {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &logging(Setup::to(upstream.addr()).route("uri: /known"), OF_TRIES));
    assert_eq!(gateway.get("/unknown").head.status(), 404);
    let expected = serde_json::json!({
        "status": 404, "upstream_addr": null, "upstream_status": null, "upstream_tries": 0, "upstream_connect_time": null,
    });
    assert_eq!(lines(&gateway, 1), [expected]);
}

/// A client that closes is probed for whether it is still there; the probe is not a response.
#[test]
fn a_client_that_did_not_wait_was_sent_nothing() {
    let (upstream, metrics) = (Upstream::bind(), ReservedPort::new());
    let setup = Setup::to(upstream.addr()).gateway(&format!("metrics: {{address: \"{}\"}}", metrics.addr()));
    let gateway = Gateway::start(STILLGATE, &logging(setup, "status, bytes_sent, body_bytes_sent, upstream_status"));
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut node = upstream.accept();
    node.expect_request();
    drop(client);
    let expected = serde_json::json!({"status": 499, "bytes_sent": 0, "body_bytes_sent": 0, "upstream_status": "-"});
    assert_eq!(lines(&gateway, 1), [expected]);
    let sent = "stillgate_http_bytes_total{route=\"all\",service=\"\",direction=\"egress\"} 0";
    eventually("the metrics to say the same", || {
        let text = scrape(metrics.addr(), "/metrics", stillgate_testkit::ACCEPT_TEXT, false).text().to_owned();
        text.lines().any(|line| line == sent)
    });
    // Nor is it a part of the response to one that was only half closed.
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut node = upstream.accept();
    node.expect_request();
    client.half_close();
    assert_eq!(client.read_head().expect("the question").status(), 100);
    node.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    let response = client.read_to_end().expect("a response");
    let line = lines(&gateway, 2).remove(1);
    assert_eq!((&line["bytes_sent"], &line["body_bytes_sent"]), (&response.len().into(), &5.into()), "{line}");
}

#[test]
fn a_request_has_an_id_and_that_of_its_trace() {
    let upstream = Upstream::echo();
    let setup = Setup::resources(format!(
        "services: [{{id: shop, upstream: {{nodes: {{\"{}\": 1}}}}}}]\nroutes: [{{id: all, uri: /*, service_id: shop}}]\n",
        upstream.addr()
    ));
    let gateway = Gateway::start(STILLGATE, &logging(setup, "request_id, {again: request_id}, trace_id, service_id"));
    let mut client = gateway.client();
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let traceparents =
        [format!("Traceparent: 00-{trace}-00f067aa0ba902b7-01\r\n"), String::new(), "traceparent: x\r\n".into()];
    for traceparent in &traceparents {
        client.send(format!("GET / HTTP/1.1\r\nHost: h\r\n{traceparent}X-Request-ID: mine\r\n\r\n"));
        assert_eq!(client.expect_response("GET").head.status(), 200);
    }
    let lines = lines(&gateway, 3);
    let traces: Vec<_> = lines.iter().map(|line| line["trace_id"].as_str()).collect();
    assert_eq!(traces, [Some(trace), None, None]);
    let ids: HashSet<&str> = lines.iter().map(|line| line["request_id"].as_str().expect("text")).collect();
    assert!(ids.len() == 3 && ids.iter().all(|id| id.len() == 32), "{ids:?}");
    assert!(lines.iter().all(|line| line["again"] == line["request_id"] && line["service_id"] == "shop"), "{lines:?}");
}

const OF_RESPONSES: &str = "status, sent_http_x_cache, upstream_http_x_cache, sent_http_connection, upstream_http_server, \
                            sent_http_content_type, upstream_http_set_cookie";

#[test]
fn header_fields_of_the_response_on_both_sides() {
    let upstream = Upstream::serve(|connection| {
        while connection.read_request().is_ok() {
            let head = "HTTP/1.1 200 OK\r\nX-Cache: hit\r\nServer: \"node\"\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\n";
            connection.send(format!("{head}Connection: keep-alive\r\nContent-Length: 0\r\n\r\n"));
        }
    });
    let setup = Setup::to(upstream.addr()).route("uri: /known");
    let gateway = Gateway::start(STILLGATE, &logging(setup, OF_RESPONSES));
    let mut client = gateway.client();
    client.send("GET /known HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    assert_eq!(client.expect_response("GET").head.status(), 200);
    assert_eq!(gateway.get("/unknown").head.status(), 404);
    let lines = lines(&gateway, 2);
    let expected = serde_json::json!({
        "status": 200, "sent_http_x_cache": "hit", "upstream_http_x_cache": "hit", "sent_http_connection": "close",
        "upstream_http_server": "\"node\"", "sent_http_content_type": null, "upstream_http_set_cookie": "a=1, b=2",
    });
    assert_eq!(lines[0], expected);
    // Local replies have one side only, and nothing is left of the response before.
    let expected = serde_json::json!({
        "status": 404, "sent_http_x_cache": null, "upstream_http_x_cache": null, "sent_http_connection": null,
        "upstream_http_server": null, "sent_http_content_type": "text/plain; charset=utf-8",
        "upstream_http_set_cookie": null,
    });
    assert_eq!(lines[1], expected);
}

#[test]
fn a_tunnel_tells_of_its_101_at_its_end() {
    let upstream = Upstream::bind();
    let fields = format!("{OF_TRIES}, sent_http_x_yours, upstream_http_upgrade");
    let gateway = Gateway::start(STILLGATE, &logging(tunnel::setup(&upstream), &fields));
    let mut client = gateway.client();
    client.send(ASK);
    let mut node = upstream.accept();
    node.expect_request();
    node.send(AGREE);
    assert_eq!(client.read_head().expect("an answer").status(), 101);
    // The memory of its exchange serves others meanwhile.
    gateway.client().send("GET / HTTP/1.1\r\nHost : h\r\n\r\n");
    lines(&gateway, 1);
    drop((client, node));
    let line = lines(&gateway, 2).remove(1);
    assert_eq!(
        (&line["upstream_addr"], &line["upstream_status"]),
        (&upstream.addr().to_string().into(), &"101".into())
    );
    assert_eq!((&line["sent_http_x_yours"], &line["upstream_http_upgrade"]), (&"2".into(), &"websocket".into()));
}
