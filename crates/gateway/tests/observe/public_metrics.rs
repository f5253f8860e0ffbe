//! The metrics on a configured route: `public-api` leads to the thread that makes them, and no worker waits for it.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::shared::STILLGATE;
use crate::shared::measured::MeasuredGateway;
use std::time::Duration;
use stillgate_testkit::{
    ACCEPT_OPENMETRICS, ACCEPT_TEXT, Gateway, Scrape, Setup, SlowScrape, Upstream, eventually, eventually_within,
    scrape,
};

const PATH: &str = "/apisix/prometheus/metrics";

/// Requests with targets of their own, and what each adds to its target; the exposition of all of them fits into no buffers.
const TARGETS: usize = 2_000;
const PADDING: usize = 700;

/// The metrics under APISIX's path, under another, and where a client has to be let in; all else goes to a node.
fn setup(node: &Upstream) -> Setup {
    let addr = node.addr();
    Setup::resources(format!(
        "upstreams: [{{id: node, nodes: {{\"{addr}\": 1}}}}]\n\
         routes:\n\
         - {{id: metrics, uri: {PATH}, plugins: {{public-api: {{}}, response-rewrite: {{headers: {{set: {{X-A: b}}}}}}}}, upstream_id: node}}\n\
         - {{id: mine, uri: /mine, plugins: {{public-api: {{uri: {PATH}}}, brotli: {{types: \"*\"}}}}, upstream_id: node}}\n\
         - {{id: nobody, uri: /nobody, plugins: {{public-api: {{uri: {PATH}}}, ip-restriction: {{whitelist: [192.0.2.1]}}}}, upstream_id: node}}\n\
         - {{id: all, uri: /*, upstream_id: node}}\n"
    ))
}

fn ask(measured: &MeasuredGateway, path: &str, accept: &str, gzip: bool) -> Scrape {
    scrape(measured.gateway.addr(), path, accept, gzip)
}

#[test]
fn a_route_serves_what_the_exporter_does() {
    let node = Upstream::echo();
    let measured = MeasuredGateway::start(setup(&node), "");
    let mut client = measured.gateway.client();
    assert_eq!(client.get("/x").head.status(), 200);
    let of_node = "stillgate_http_requests_total{route=\"all\",";
    eventually("the request to be counted", || ask(&measured, PATH, ACCEPT_TEXT, false).text().contains(of_node));
    let text = ask(&measured, PATH, ACCEPT_TEXT, false);
    assert_eq!(text.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    assert_eq!((text.header("x-a"), text.header("transfer-encoding")), ("b", "chunked"));
    assert!(!text.text().contains("# EOF"));
    // The form is chosen by what the scraper can read, and its families by name.
    let open = ask(&measured, PATH, ACCEPT_OPENMETRICS, true);
    assert!(open.header("content-type").starts_with("application/openmetrics-text; version=1.0.0"));
    assert!(open.header("content-encoding") == "gzip" && open.text().ends_with("# EOF\n"));
    let some = ask(&measured, &format!("{PATH}?name[]=process_open_fds"), ACCEPT_TEXT, false);
    assert!(some.text().lines().all(|line| line.contains("process_open_fds")), "{}", some.text());
    // It is a request like others: kept alive, with filters of its body, refused, counted.
    for _ in 0..2 {
        assert!(String::from_utf8(client.get(PATH).body).unwrap().contains(of_node));
    }
    client.send("GET /mine HTTP/1.1\r\nHost: h\r\nAccept-Encoding: br\r\n\r\n");
    assert_eq!(client.expect_response("GET").head.get("content-encoding"), Some("br"));
    assert_eq!(client.get("/nobody").head.status(), 403);
    let scraped = [("route", "metrics"), ("node", ""), ("code", "200")];
    eventually("the scrapes to be counted", || measured.scrape().one("stillgate_http_requests_total", &scraped) >= 6.0);
    // As in APISIX, other methods are refused; and an unexpected body does no harm.
    for method in ["POST", "HEAD"] {
        assert_eq!(client.request(method, PATH, b"").head.status(), 404, "{method}");
    }
    client.send(format!("GET {PATH} HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody"));
    assert_eq!(client.expect_response("GET").head.status(), 200);
    assert_eq!(client.get("/x").head.status(), 200);
    let mut old = measured.gateway.client();
    old.send(format!("GET {PATH} HTTP/1.0\r\n\r\n"));
    let response = old.expect_response("GET");
    assert_eq!((response.head.status(), response.head.get("transfer-encoding")), (200, None));
    assert!(String::from_utf8(response.body).unwrap().contains(of_node));
}

#[test]
fn without_metrics_there_is_no_page() {
    let node = Upstream::echo();
    let mut gateway = Gateway::start(STILLGATE, &setup(&node).gateway("metrics: {enabled: false}"));
    let page = gateway.get(PATH);
    assert_eq!((page.head.status(), page.head.get("x-a")), (404, Some("b")));
    assert!(String::from_utf8(page.body).unwrap().contains("<title>404 Not Found</title>"));
    gateway.assert_healthy();
}

/// One worker serves a scraper that does not read, and all other clients.
#[test]
fn a_worker_serves_others_while_a_large_exposition_is_read() {
    let node = Upstream::echo();
    let setup = setup(&node).gateway("workers: 1");
    let measured = MeasuredGateway::start(setup, "labels: {http_requests_total: {uri: $request_uri}}");
    let mut client = measured.gateway.client();
    for number in 0..TARGETS {
        assert_eq!(client.get(&format!("/{number:0>PADDING$}")).head.status(), 200);
    }
    let lines = |scrape: &Scrape| scrape.text().lines().filter(|line| line.contains("uri=\"/0")).count();
    eventually_within(Duration::from_secs(600), "all to be counted", || {
        lines(&ask(&measured, PATH, ACCEPT_TEXT, false)) == TARGETS
    });
    let mut slow: Vec<SlowScrape> =
        (0..4).map(|_| SlowScrape::start(measured.gateway.addr(), PATH, ACCEPT_TEXT, false)).collect();
    assert!(slow.iter_mut().all(SlowScrape::take_byte));
    for _ in 0..100 {
        assert_eq!(client.get("/x").head.status(), 200);
    }
    assert_eq!(lines(&ask(&measured, PATH, ACCEPT_TEXT, true)), TARGETS);
    slow.pop().unwrap().hang_up();
    for scrape in slow {
        assert_eq!(lines(&scrape.finish()), TARGETS);
    }
    assert_eq!(client.get("/x").head.status(), 200);
}
