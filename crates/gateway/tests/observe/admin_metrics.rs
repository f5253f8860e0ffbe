//! The metrics without any key for them: they are exposed at the admin address, and shown by the dashboard.

use crate::shared::STILLGATE;
use crate::shared::measured::{Exposition, MeasuredGateway};
use serde_json::Value as Json;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Instant;
use stillgate_testkit::{
    ACCEPT_OPENMETRICS, ACCEPT_TEXT, Client, Gateway, PATIENCE, Setup, Upstream, eventually, promtool_check_metrics,
    scrape,
};

#[test]
fn where_metrics_are_off_there_is_nothing() {
    let upstream = Upstream::echo();
    let off = |more: &str| Setup::to(upstream.addr()).gateway(&format!("metrics: {{enabled: false{more}}}"));
    // What else the section has is not opened.
    let gateway = Gateway::start(STILLGATE, &off(", address: \"127.0.0.1:1\""));
    for path in ["/v1/metrics/cardinality", "/metrics"] {
        let response = Client::connect(gateway.admin_addr()).get(path);
        assert_eq!(response.head.status(), 404, "{path}");
        let answer = String::from_utf8_lossy(&response.body).into_owned();
        assert!(answer.contains("gateway.metrics.enabled"), "{path}: {answer}");
    }
    gateway.reload(&Setup::to(upstream.addr()));
    eventually("the log to say so", || gateway.log().contains("gateway.metrics.enabled differs"));
}

/// Without any key for metrics they are counted, and exposed at the admin address.
#[test]
fn metrics_are_on_and_at_the_admin_address() {
    let upstream = Upstream::echo();
    let keys = "  keys: [{name: scraper, key: a-key-of-the-scraper, role: viewer}]";
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()).gateway(keys));
    assert_eq!(gateway.client().get("/x").head.status(), 200);
    let ask = |method: &str, target: &str, fields: &str| {
        let mut client = Client::connect(gateway.admin_addr());
        client.send(format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"));
        client.expect_response(method)
    };
    let key = "X-API-KEY: a-key-of-the-scraper\r\n";
    let text = |target: &str| String::from_utf8(ask("GET", target, key).body).expect("UTF-8");
    let counted = Exposition(text("/metrics"));
    eventually("the request", || Exposition(text("/metrics")).sum("stillgate_http_requests_total", &[]) == 1.0);
    promtool_check_metrics(&counted.0).expect("promtool is content");
    assert_eq!(ask("GET", "/metrics", "").head.status(), 401, "it is data");
    assert_eq!(ask("GET", "/metrics", "X-API-KEY: another\r\n").head.status(), 401);
    let other_name = format!("{key}X: y\r\n");
    assert_eq!(ask("GET", "/metrics?name[]=a", &other_name).body, b"", "no family of that name");
    let one = text("/metrics?name[]=stillgate_http_requests_total");
    assert!(one.contains("stillgate_http_requests_total{") && !one.contains("stillgate_connections"), "{one}");

    let accept = format!("{key}Accept: {ACCEPT_OPENMETRICS}\r\nAccept-Encoding: gzip\r\n");
    let head = ask("HEAD", "/metrics", &accept).head;
    let full = ask("GET", "/metrics", &accept);
    for head in [&head, &full.head] {
        let field = |name: &str| head.get(name).unwrap_or_default().to_owned();
        let is_openmetrics = field("content-type").starts_with("application/openmetrics-text; version=1.0.0");
        assert!(is_openmetrics && field("content-encoding") == "gzip", "{head:?}");
        assert_eq!((head.status(), field("vary").as_str()), (200, "Accept, Accept-Encoding"));
    }
    assert!(full.body.starts_with(&[0x1f, 0x8b]), "it is gzip");
    assert!(!counted.0.contains("__live"), "what is internal stays so");
}

/// Both addresses expose the same, and a reload changes what.
#[test]
fn both_addresses_expose_the_same() {
    let upstream = Upstream::echo();
    let measured = MeasuredGateway::start(Setup::to(upstream.addr()), "");
    let families = |addr| {
        let text = scrape(addr, "/metrics", ACCEPT_TEXT, false).text().to_owned();
        text.lines().filter(|line| line.starts_with("# ")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(measured.gateway.client().get("/x").head.status(), 200);
    measured.scrape_with(1.0);
    let (admin, own) = (measured.gateway.admin_addr(), measured.metrics.addr());
    eventually("all families to be there", || families(admin) == families(own));
    measured.reload(Setup::to(upstream.addr()), "dialect: apisix");
    assert_eq!(measured.gateway.client().get("/x").head.status(), 200);
    eventually("the other dialect", || families(admin).iter().any(|line| line.contains("apisix_http_status")));
}

/// The seconds that the dashboard is sent first.
fn history(gateway: &Gateway) -> Vec<Json> {
    let mut stream = TcpStream::connect(gateway.admin_addr()).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(b"GET /v1/live HTTP/1.0\r\n\r\n").expect("ask");
    let mut lines = BufReader::new(stream).lines().map(|line| line.expect("a line"));
    let event = lines.find_map(|line| Some(line.strip_prefix("data: ")?.to_owned())).expect("an event");
    let event: Json = serde_json::from_str(&event).expect("JSON");
    event["history"].as_array().expect("a list").clone()
}

/// The classic buckets around 300 ms are from 250 ms to 500 ms.
#[test]
fn live_percentiles_are_those_of_the_requests() {
    const REQUESTS: u64 = 8;
    let upstream = Upstream::echo();
    let route = format!("routes: [{{id: slow, uri: /x, upstream: {{nodes: {{\"{}\": 1}}}}}}]\n", upstream.addr());
    let gateway = Gateway::start(STILLGATE, &Setup::resources(route));
    eventually("the first second", || !history(&gateway).is_empty());
    let mut client = gateway.client();
    let took_s = (0..REQUESTS).map(|_| {
        let began = Instant::now();
        assert_eq!(client.get("/x?delay=300").head.status(), 200);
        began.elapsed().as_secs_f64()
    });
    let slowest_s = took_s.fold(0.0, f64::max);
    let mut seconds = Vec::new();
    eventually("all of them", || {
        seconds = history(&gateway);
        seconds.iter().map(|second| second["timed"].as_u64().expect("a number")).sum::<u64>() == REQUESTS
    });
    let routes = seconds.iter().flat_map(|second| second["routes"].as_array().expect("a list"));
    let timed: Vec<&Json> = seconds.iter().chain(routes).filter(|figures| figures["timed"] != 0).collect();
    assert!(timed.iter().any(|figures| figures["id"] == "slow"), "{timed:?}");
    for figures in timed {
        for key in ["p50", "p99", "max"] {
            let found = figures[key].as_f64().expect("a number");
            assert!((0.3 * 0.95..=slowest_s * 1.05).contains(&found), "{key} of at most {slowest_s} s: {figures}");
        }
    }
}
