//! The metrics of a running gateway: the numbers match the requests, and they follow the configuration.

use crate::shared::STILLGATE;
use crate::shared::measured::{Exposition, MeasuredGateway};
use std::process::Command;
use stillgate_testkit::{
    ACCEPT_OPENMETRICS, END_PATIENCE, Gateway, ReservedPort, Setup, Upstream, eventually, promtool_check_metrics,
    python_families, scrape,
};

/// A route with a service, one without, and one whose node is dead.
fn resources(node: &Upstream, dead: &Upstream) -> Setup {
    Setup::resources(format!(
        "upstreams:\n  - {{id: main, type: roundrobin, nodes: {{\"{}\": 1}}}}\n  - {{id: dead, type: roundrobin, nodes: {{\"{}\": 1}}}}\n\
         services:\n  - {{id: shop, upstream_id: main}}\n\
         routes:\n  - {{id: orders, uri: /orders/*, service_id: shop}}\n  - {{id: plain, uris: [/plain, /also], hosts: [a.test, \"*.b.test\"], upstream_id: main}}\n  - {{id: down, uri: /down, upstream_id: dead}}\n",
        node.addr(),
        dead.addr()
    ))
}

const ACCESS_LOG: &str =
    "access_log: {path: \"{dir}/access.log\", format: json, fields: [status, bytes_sent, bytes_received]}";

/// What the access log says was received and sent in all, once it has this many lines.
fn logged(gateway: &Gateway, lines: usize) -> (f64, f64) {
    let path = gateway.dir().join("access.log");
    let text = || std::fs::read_to_string(&path).unwrap_or_default();
    eventually("all lines", || text().lines().count() == lines);
    let text = text();
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    lines.fold((0.0, 0.0), |(received, sent), line| {
        let bytes = |key: &str| line[key].as_f64().expect("a number");
        (received + bytes("bytes_received"), sent + bytes("bytes_sent"))
    })
}

fn send(measured: &MeasuredGateway) -> usize {
    let mut client = measured.gateway.client();
    for number in 0..5 {
        assert_eq!(client.request("POST", &format!("/orders/{number}"), &[b'x'; 1000]).head.status(), 200);
    }
    client.send("GET /plain HTTP/1.1\r\nHost: x.b.test\r\n\r\nGET /also HTTP/1.1\r\nHost: A.test:80\r\n\r\n");
    assert_eq!([client.expect_response("GET").head.status(), client.expect_response("GET").head.status()], [200, 200]);
    for _ in 0..3 {
        assert_eq!(client.get("/nowhere").head.status(), 404);
    }
    assert_eq!(client.get("/down").head.status(), 502);
    client.send("GET / HTTP/1.1\r\nHost : h\r\n\r\n");
    assert_eq!(client.expect_response("GET").head.status(), 400);
    12
}

/// Routes with and without names; some plugins on them count by name.
fn named(node: &Upstream, of_all: &str) -> Setup {
    let addr = node.addr();
    Setup::resources(format!(
        "upstreams:\n  - {{id: main, type: roundrobin, nodes: {{\"{addr}\": 1}}}}\n\
         services:\n  - {{id: s1, name: The shop, upstream_id: main}}\n\
         global_rules:\n  - {{id: g1, plugins: {{prometheus: {{{of_all}}}}}}}\n\
         routes:\n  - {{id: r1, name: orders, uri: /orders, service_id: s1, plugins: {{prometheus: {{prefer_name: true}}}}}}\n  \
         - {{id: r2, name: plain, uri: /plain, service_id: s1}}\n  \
         - {{id: r3, uri: /nameless, upstream_id: main, plugins: {{prometheus: {{prefer_name: true}}}}}}\n",
    ))
}

#[test]
fn routes_are_counted_by_name_where_a_plugin_prefers_that() {
    const REQUESTS: &str = "stillgate_http_requests_total";
    let node = Upstream::echo();
    let measured = MeasuredGateway::start(named(&node, ""), "");
    let get = |paths: &[&str]| paths.iter().for_each(|path| assert_eq!(measured.gateway.get(path).head.status(), 200));
    get(&["/orders", "/plain", "/nameless"]);
    let found = measured.scrape_with(3.0);
    for (route, service) in [("orders", "The shop"), ("r2", "s1"), ("r3", "")] {
        assert_eq!(found.one(REQUESTS, &[("route", route), ("service", service)]), 1.0, "{route}");
    }
    measured.reload(named(&node, "prefer_name: true"), "");
    get(&["/orders", "/plain", "/plain"]);
    let now = |route: &str| measured.scrape().sum(REQUESTS, &[("route", route), ("service", "The shop")]);
    eventually("all routes by their names", || (now("orders"), now("plain")) == (2.0, 2.0));
    measured.reload(named(&node, ""), "");
    get(&["/plain"]);
    let by_id = || measured.scrape().sum(REQUESTS, &[("route", "r2"), ("service", "s1")]);
    eventually("the route by its id again", || by_id() >= 1.0);
}

/// The families match APISIX's, but regardless of whether a route has the plugin.
#[test]
fn labels_that_metadata_disables_stay_empty() {
    let upstream = Upstream::echo();
    let with = |metadata: &str| {
        let addr = upstream.addr();
        Setup::resources(format!(
            "plugin_metadata:\n  - {{id: prometheus{metadata}}}\n\
             routes:\n  - {{id: all, uri: /*, upstream: {{nodes: {{\"{addr}\": 1}}}}}}\n"
        ))
    };
    let measured = MeasuredGateway::start(
        with(", disabled_labels: {http_status: [route, node], bandwidth: [node]}"),
        "dialect: apisix",
    );
    let get = || assert_eq!(measured.gateway.get("/x").head.status(), 200);
    (0..3).for_each(|_| get());
    let found = measured.scrape_with(3.0);
    let status = [("code", "200"), ("route", ""), ("matched_uri", "/*"), ("node", "")];
    assert_eq!(found.one("apisix_http_status", &status), 3.0);
    let node = upstream.addr().ip().to_string();
    for (family, node) in [("apisix_http_latency_count", &*node), ("apisix_bandwidth", "")] {
        let kind = if node.is_empty() { "egress" } else { "request" };
        assert!(found.one(family, &[("type", kind), ("route", "all"), ("node", node)]) >= 3.0, "{family}");
    }
    // Earlier counts stay unchanged.
    measured.reload(with(""), "dialect: apisix");
    get();
    let of_node = [("code", "200"), ("route", "all"), ("node", &*node)];
    eventually("the labels again", || measured.scrape().values("apisix_http_status", &of_node) == [1.0]);
    assert_eq!(measured.scrape().one("apisix_http_status", &status), 3.0);
}

#[test]
fn every_request_is_counted_once_and_exactly() {
    let (upstream, dead) = (Upstream::echo(), Upstream::refusing());
    let measured = MeasuredGateway::start(resources(&upstream, &dead).gateway(ACCESS_LOG), "");
    let sent = send(&measured);
    let found = measured.scrape_with(sent as f64);
    let node = upstream.addr().to_string();
    let requests = |labels: &[(&str, &str)]| found.one("stillgate_http_requests_total", labels);
    let dead_node = dead.addr().to_string();
    assert_eq!(
        requests(&[("route", "orders"), ("service", "shop"), ("node", &node), ("consumer", ""), ("code", "200")]),
        5.0
    );
    assert_eq!(requests(&[("route", "plain"), ("service", ""), ("node", &node), ("code", "200")]), 2.0);
    assert_eq!(requests(&[("route", "down"), ("service", ""), ("node", &dead_node), ("code", "502")]), 1.0);
    assert_eq!(requests(&[("route", ""), ("service", ""), ("node", ""), ("code", "404")]), 3.0);
    assert_eq!(requests(&[("route", ""), ("code", "400")]), 1.0);
    for (route, all, at_node) in [("orders", 5.0, 5.0), ("plain", 2.0, 2.0), ("down", 1.0, 1.0), ("", 4.0, 0.0)] {
        let count =
            |family: &str| found.sum(&format!("stillgate_http_{family}_duration_seconds_count"), &[("route", route)]);
        assert_eq!([count("request"), count("upstream"), count("gateway")], [all, at_node, all], "{route}");
        let sum =
            |family: &str| found.sum(&format!("stillgate_http_{family}_duration_seconds_sum"), &[("route", route)]);
        let [request, upstream, gateway] = [sum("request"), sum("upstream"), sum("gateway")];
        assert!(
            request > 0.0 && (upstream + gateway - request).abs() < 1e-9,
            "{route}: {request} {upstream} {gateway}"
        );
    }
    measured.await_bytes("stillgate_http_bytes_total", "direction", logged(&measured.gateway, sent));
    let found = measured.scrape();
    assert_eq!(found.values("stillgate_http_bytes_total", &[("route", "orders")]).len(), 2);
    promtool_check_metrics(&found.0).expect("promtool is content");
}

const KEYS: &str = r#"
consumers:
  - {username: ann, group_id: staff, plugins: {key-auth: {key: a}}}
  - {username: bob, plugins: {key-auth: {key: b}}}
  - {username: guest}
consumer_groups:
  - {id: staff, plugins: {}}
"#;

/// The consumer as a label, as labels by variables, and in the log; refused requests have none to report.
#[test]
fn the_consumer_of_a_request_is_recorded() {
    for (dialect, family) in [("native", "stillgate_http_requests_total"), ("apisix", "apisix_http_status")] {
        let upstream = Upstream::echo();
        let log = "access_log: {path: \"{dir}/access.log\", format: json, \
                   fields: [status, consumer, consumer_name, {group: $consumer_group_id}]}";
        let resources = format!(
            "{KEYS}upstreams:\n  - {{id: main, type: roundrobin, nodes: {{\"{}\": 1}}}}\nroutes:\n  \
             - {{id: keys, uri: /keys, upstream_id: main, plugins: {{key-auth: {{}}}}}}\n  \
             - {{id: guests, uri: /guests, upstream_id: main, plugins: {{key-auth: {{anonymous_consumer: guest}}}}}}\n",
            upstream.addr()
        );
        let keys = format!("dialect: {dialect}\nlabels: {{{family}: {{group: $consumer_group_id}}}}");
        let measured = MeasuredGateway::start(Setup::resources(resources).gateway(log), &keys);
        let mut client = measured.gateway.client();
        let mut statuses = Vec::new();
        for (path, key) in
            [("/keys", "a"), ("/keys", "b"), ("/keys", "b"), ("/keys", "c"), ("/guests", "c"), ("/none", "a")]
        {
            client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\napikey: {key}\r\n\r\n"));
            statuses.push(client.expect_response("GET").head.status());
        }
        assert_eq!(statuses, [200, 200, 200, 401, 200, 404]);
        let found = measured.scrape_with(6.0);
        let count = |labels: &[(&str, &str)]| found.one(family, labels);
        assert_eq!(count(&[("route", "keys"), ("code", "200"), ("consumer", "ann"), ("group", "staff")]), 1.0);
        assert_eq!(count(&[("route", "keys"), ("code", "200"), ("consumer", "bob"), ("group", "")]), 2.0);
        assert_eq!(count(&[("route", "keys"), ("code", "401"), ("consumer", "")]), 1.0);
        assert_eq!(count(&[("route", "guests"), ("code", "200"), ("consumer", "guest")]), 1.0);
        assert_eq!(count(&[("route", ""), ("code", "404"), ("consumer", "")]), 1.0);
        if dialect == "apisix" {
            for (family, kind) in [("apisix_bandwidth", "egress"), ("apisix_http_latency_count", "upstream")] {
                let of_bob = [("type", kind), ("route", "keys"), ("service", ""), ("consumer", "bob")];
                assert!(found.one(family, &of_bob) >= 2.0, "{family}");
            }
        }
        let path = measured.gateway.dir().join("access.log");
        let text = || std::fs::read_to_string(&path).unwrap_or_default();
        eventually("all lines", || text().lines().count() == 6);
        let told: Vec<serde_json::Value> =
            text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let line = |status: u16, consumer: Option<&str>, group: Option<&str>| serde_json::json!({"status": status, "consumer": consumer, "consumer_name": consumer, "group": group});
        let (ann, bob) = (line(200, Some("ann"), Some("staff")), line(200, Some("bob"), None));
        let guest = line(200, Some("guest"), None);
        assert_eq!(told, [ann, bob.clone(), bob, line(401, None, None), guest, line(404, None, None)]);
    }
}

#[test]
fn apisix_names_labels_and_units() {
    let (upstream, dead) = (Upstream::echo(), Upstream::refusing());
    let measured = MeasuredGateway::start(resources(&upstream, &dead).gateway(ACCESS_LOG), "dialect: apisix");
    let sent = send(&measured);
    let found = measured.scrape_with(sent as f64);
    let status = |labels: &[(&str, &str)]| found.one("apisix_http_status", labels);
    let orders = [("code", "200"), ("route", "orders"), ("matched_uri", "/orders/*"), ("matched_host", "")];
    assert_eq!(status(&orders), 5.0);
    assert_eq!(status(&[("route", "orders"), ("service", "shop"), ("node", "127.0.0.1")]), 5.0);
    assert_eq!(status(&[("route", "plain"), ("matched_uri", "/plain"), ("matched_host", "*.b.test")]), 1.0);
    assert_eq!(status(&[("route", "plain"), ("matched_uri", "/also"), ("matched_host", "a.test")]), 1.0);
    assert_eq!(status(&[("code", "404"), ("route", ""), ("matched_uri", ""), ("node", "")]), 3.0);
    let latency = |kind: &str, of: &str| found.sum(&format!("apisix_http_latency_{of}"), &[("type", kind)]);
    assert_eq!(
        [latency("request", "count"), latency("apisix", "count"), latency("upstream", "count")],
        [12.0, 12.0, 8.0]
    );
    let spent = latency("upstream", "sum") + latency("apisix", "sum");
    assert!((latency("request", "sum") - spent).abs() < 1e-6, "milliseconds add up");
    assert!(latency("request", "sum") > 0.05, "of {sent} requests, in milliseconds");
    measured.await_bytes("apisix_bandwidth", "type", logged(&measured.gateway, sent));
    eventually("the total", || measured.scrape().one("apisix_http_requests_total", &[]) == sent as f64);
    let found = measured.scrape();
    // No upstream has health checks.
    assert!(!found.has("apisix_upstream_status{"), "{found:?}");
    assert_eq!(found.one("apisix_node_info", &[("version", env!("CARGO_PKG_VERSION"))]), 1.0);
    for state in ["active", "reading", "writing", "waiting", "accepted", "handled"] {
        found.one("apisix_nginx_http_current_connections", &[("state", state)]);
    }
    assert_eq!(found.one("apisix_nginx_metric_errors_total", &[]), 0.0);
    assert!(!found.has("stillgate_http_"), "{found:?}");
    // No etcd is used, so nothing is said about it.
    assert!(!found.has("apisix_etcd_"), "{found:?}");
}

#[test]
fn labels_from_the_request_however_hostile() {
    let upstream = Upstream::echo();
    let labels = "labels:\n  http_requests_total: {tenant: $http_x_tenant, a: $arg_a, host: $host, ip: $remote_addr}";
    let measured = MeasuredGateway::start(Setup::to(upstream.addr()), labels);
    let mut client = measured.gateway.client();
    let mut ask = |query: &str, tenant: &[u8]| {
        let mut request = format!("GET /x?{query} HTTP/1.1\r\nHost: Shop.test\r\nX-Tenant: ").into_bytes();
        request.extend_from_slice(tenant);
        request.extend_from_slice(b"\r\n\r\n");
        client.send(request);
        assert_eq!(client.expect_response("GET").head.status(), 200);
    };
    ask("a=1&b=2", b"blue");
    ask("a=1", b"blue");
    ask("", b"q\"uote\\back");
    ask("", b"\xff\xfe\xc3\xa9");
    ask("a=\"},evil=\"", &[b'y'; 8000]);
    let found = measured.scrape_with(5.0);
    let requests = |labels: &[(&str, &str)]| found.one("stillgate_http_requests_total", labels);
    let blue = [("tenant", "blue"), ("a", "1"), ("host", "shop.test"), ("ip", "127.0.0.1"), ("code", "200")];
    assert_eq!(requests(&blue), 2.0);
    assert_eq!(requests(&[("tenant", "q\\\"uote\\\\back"), ("a", "")]), 1.0);
    assert_eq!(requests(&[("tenant", "\u{fffd}\u{fffd}é")]), 1.0);
    promtool_check_metrics(&found.0).expect("promtool is content");
    assert!(!found.has("le=\"+Inf\",tenant"), "only the family that asks for them has them");
}

#[test]
fn what_is_disabled_is_not_there() {
    let upstream = Upstream::echo();
    let keys = "disable: {families: [http_gateway_duration_seconds, stillgate_connections], labels: [node, consumer]}";
    let measured = MeasuredGateway::start(Setup::to(upstream.addr()), keys);
    assert_eq!(measured.gateway.get("/").head.status(), 200);
    let found = measured.scrape_with(1.0);
    assert!(found.has("stillgate_http_requests_total{route=\"all\",service=\"\",code=\"200\"} 1\n"), "{found:?}");
    assert!(!found.has("gateway_duration") && !found.has("stillgate_connections{"), "{found:?}");
    assert_eq!(found.one("stillgate_http_upstream_duration_seconds_count", &[]), 1.0);
}

#[test]
fn a_reload_changes_what_is_recorded() {
    let upstream = Upstream::echo();
    let setup = || Setup::to(upstream.addr());
    let measured = MeasuredGateway::start(setup(), "");
    let get = || assert_eq!(measured.gateway.get("/x").head.status(), 200);
    get();
    measured.scrape_with(1.0);

    measured.reload(setup(), "disable: {labels: [node]}\nlabels: {http_requests_total: {uri: $request_uri}}");
    get();
    let other = "stillgate_http_requests_total{route=\"all\",service=\"\",consumer=\"\",code=\"200\",uri=\"/x\"} 1\n";
    eventually("other labels", || measured.scrape().has(other));
    // What has the labels from before is shown once more and goes, some time later: until then totals are of both.
    let node = upstream.addr().to_string();
    let before = [("node", node.as_str()), ("code", "200")];
    let count = |found: &Exposition| found.values("stillgate_http_requests_total", &before);
    eventually("those before to go", || count(&measured.scrape()).is_empty());

    measured.reload(setup(), "path: /m\ncreated: false\ndisable: {families: [http_bytes_total]}");
    get();
    let text = |path: &str| scrape(measured.metrics.addr(), path, ACCEPT_OPENMETRICS, false);
    eventually("the new path", || text("/m").status == 200);
    assert_eq!(text("/metrics").status, 404);
    eventually("no creation times", || !text("/m").text().contains("_created"));
    get();
    let exposed = || Exposition(text("/m").text().to_owned());
    eventually("the labels from before, for two requests", || count(&exposed()) == [2.0]);
    eventually("the others to go", || !exposed().has("uri=\"/x\""));
    let bytes = || exposed().values("stillgate_http_bytes_total", &[]);
    eventually("the family that is disabled to go", || bytes().is_empty());
    get();
    eventually("three requests", || count(&exposed()) == [3.0]);
    assert!(bytes().is_empty(), "nothing is recorded in it");

    measured.reload(setup(), "path: /m\ndialect: apisix");
    get();
    eventually("the other names", || exposed().sum("apisix_http_status", &[]) == 1.0);
}

/// Requests of callers that are recorded, and others, with these keys of `gateway.metrics`; returns the exposition.
fn traced(keys: &str) -> (MeasuredGateway, String) {
    const SAMPLED: &str = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const OTHER: &str = "5bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
    let (node, dead) = (Upstream::echo(), Upstream::refusing());
    let setup = Setup::resources(format!(
        "plugin_metadata:\n  - {{id: opentelemetry, collector: {{address: \"{}\"}}}}\n\
         routes:\n  - id: a\n    uri: /*\n    plugins: {{opentelemetry: {{sampler: {{name: parent_base}}}}}}\n    \
         upstream: {{nodes: {{\"{}\": 1}}}}\n",
        dead.addr(),
        node.addr()
    ));
    let measured = MeasuredGateway::start(setup, keys);
    let mut client = measured.gateway.client();
    // The last one is known by its series, and no exemplar takes the place of that of the first two.
    for trace in [SAMPLED, SAMPLED, OTHER] {
        client.send(format!("GET /a HTTP/1.1\r\nHost: h\r\ntraceparent: 00-{trace}\r\n\r\n"));
        assert_eq!(client.expect_response("GET").head.status(), 200);
    }
    measured.scrape_with(3.0);
    let text = scrape(measured.metrics.addr(), "/metrics", ACCEPT_OPENMETRICS, false).text().to_owned();
    (measured, text)
}

#[test]
fn sampled_requests_are_exemplars_of_the_time_they_took() {
    let (_measured, text) = traced("exemplars: true");
    let families = python_families(&text, true).unwrap();
    for name in ["request", "upstream", "gateway"].map(|of| format!("stillgate_http_{of}_duration_seconds")) {
        let family = families.iter().find(|family| family.name == name).unwrap();
        let exemplars: Vec<_> = family.samples.iter().filter_map(|sample| sample.exemplar.as_ref()).collect();
        assert!(!exemplars.is_empty() && exemplars.len() <= 2, "{name}\n{text}");
        for exemplar in exemplars {
            assert_eq!(exemplar.labels["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736", "{text}");
            assert_eq!(exemplar.labels["span_id"].len(), 16, "{text}");
            assert!(exemplar.value > 0.0 && exemplar.value < END_PATIENCE.as_secs_f64(), "{text}");
        }
    }
    for keys in ["", "dialect: apisix\nexemplars: true"] {
        let (_measured, text) = traced(keys);
        let expected = !keys.is_empty();
        assert_eq!(text.contains("trace_id=\"4bf92f3577b34da6a3ce929d0e0e4736\""), expected, "{keys}\n{text}");
    }
}

#[test]
fn a_removed_route_is_exposed_once_more_and_goes() {
    let (upstream, dead) = (Upstream::echo(), Upstream::refusing());
    let measured = MeasuredGateway::start(resources(&upstream, &dead), "");
    let sent = send(&measured);
    let found = measured.scrape_with(sent as f64);
    assert!(found.sum("stillgate_http_requests_total", &[("route", "down")]) == 1.0);
    measured.reload(Setup::to(upstream.addr()), "");
    eventually("the routes to go", || {
        let found = measured.scrape();
        !found.has("route=\"down\"") && !found.has("route=\"orders\"") && !found.has(&dead.addr().to_string())
    });
    let found = measured.scrape();
    assert_eq!(found.sum("stillgate_http_requests_total", &[("route", "")]), 4.0, "{found:?}");
    // Series that stay go on, and one that comes back starts from zero.
    measured.gateway.client().get("/?x");
    measured.gateway.client().send("GET / HTTP/1.1\r\nHost : h\r\n\r\n");
    eventually("the next 400", || measured.scrape().sum("stillgate_http_requests_total", &[("route", "")]) == 5.0);
    measured.reload(resources(&upstream, &dead), "");
    measured.gateway.client().get("/orders/1");
    eventually("a new life", || measured.scrape().sum("stillgate_http_requests_total", &[("route", "orders")]) == 1.0);
    eventually("its node", || measured.scrape().has(&dead.addr().to_string()));
}

#[test]
fn an_exploding_label_is_named_and_sums_stay_exact() {
    let upstream = Upstream::echo();
    let keys = "series_per_family: 200\nlabels: {http_requests_total: {uri: $request_uri}}";
    let measured = MeasuredGateway::start(Setup::to(upstream.addr()), keys);
    let mut client = measured.gateway.client();
    for number in 0..1000 {
        assert_eq!(client.get(&format!("/{number}")).head.status(), 200);
    }
    let found = measured.scrape_with(1000.0);
    assert!(
        found.one("stillgate_http_requests_total", &[("uri", "__other__"), ("route", "all"), ("code", "200")]) > 800.0
    );
    let response = stillgate_testkit::Client::connect(measured.gateway.admin_addr()).get("/v1/metrics/cardinality");
    assert_eq!(response.head.get("content-type"), Some("application/json"));
    let answer: serde_json::Value = serde_json::from_slice(&response.body).expect("JSON");
    let families = answer["families"].as_array().expect("a list");
    assert_eq!(families[0]["name"], "stillgate_http_requests_total", "the largest first");
    assert!(families[0]["series"].as_u64() <= Some(200) && families[0]["bytes"].as_u64() > Some(10_000));
    let label =
        |name: &str| families[0]["labels"].as_array().expect("a list").iter().find(|label| label["name"] == name);
    let uri = label("uri").expect("the label");
    assert_eq!(uri["collapsed"], true);
    assert!(uri["distinct"].as_u64() > Some(700) && !uri["samples"].as_array().expect("a list").is_empty());
    assert_eq!(label("route").expect("the label")["collapsed"], false);
    eventually("a line in the log", || {
        measured.gateway.log().contains("the label uri of stillgate_http_requests_total")
    });
}

#[test]
fn connections_and_nodes() {
    let (mut upstream, silent) = (Upstream::refusing(), Upstream::bind());
    let setup = Setup::resources(format!(
        "upstreams:\n  - {{id: main, type: roundrobin, nodes: {{\"{}\": 1}}}}\n  - {{id: silent, type: roundrobin, nodes: {{\"{}\": 1}}}}\n\
         routes:\n  - {{id: a, uri: /a, upstream_id: main}}\n  - {{id: b, uri: /b, upstream_id: silent}}\n",
        upstream.addr(),
        silent.addr()
    ));
    let measured = MeasuredGateway::start(setup, "");
    let listener = measured.gateway.addr().to_string();
    // They appear when a worker first reports.
    let connections =
        |state: &str| measured.scrape().sum("stillgate_connections", &[("listener", &listener), ("state", state)]);
    let node = upstream.addr().to_string();
    let healthy = || measured.scrape().one("stillgate_upstream_healthy", &[("upstream", "main"), ("node", &node)]);
    eventually("the node to be taken for healthy", || measured.scrape().has("stillgate_upstream_healthy{"));
    assert_eq!(healthy(), 1.0);
    let (mut one, mut two) = (measured.gateway.client(), measured.gateway.client());
    assert_eq!(one.get("/a").head.status(), 502);
    eventually("the node to be set aside", || healthy() == 0.0);
    eventually("two idle ones", || (connections("idle"), connections("active")) == (2.0, 0.0));
    two.send("GET /b HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut node = silent.accept();
    node.expect_request();
    eventually("an active one", || (connections("idle"), connections("active")) == (1.0, 1.0));
    drop(two);
    eventually("a client that has left", || {
        measured.scrape().sum("stillgate_http_requests_total", &[("route", "b"), ("code", "499")]) == 1.0
    });
    eventually("one left", || (connections("idle"), connections("active")) == (1.0, 0.0));
    upstream.start_echo();
    eventually("the node to be used again", || one.get("/a").head.status() == 200);
    eventually("it to be told", || healthy() == 1.0);
}

#[test]
fn the_process_and_its_configuration() {
    const OF_THE_PROCESS: [&str; 6] = [
        "cpu_seconds_total",
        "resident_memory_bytes",
        "virtual_memory_bytes",
        "open_fds",
        "max_fds",
        "start_time_seconds",
    ];
    let upstream = Upstream::echo();
    let measured = MeasuredGateway::start(Setup::to(upstream.addr()).gateway(ACCESS_LOG), "");
    // CPU and memory are reported once a second, and a clock's first tick may not have been reached at its start.
    let told = |name: &&str| measured.scrape().sum(&format!("process_{name}"), &[]) > 0.0;
    eventually("the gateway's own", || {
        OF_THE_PROCESS.iter().all(told) && measured.scrape().has("stillgate_build_info")
    });
    let found = measured.scrape();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(found.one("stillgate_build_info", &[("version", version)]), 1.0);
    assert_eq!(found.one("stillgate_config_generation", &[]), 1.0);
    assert_eq!(found.one("stillgate_access_log_dropped_lines_total", &[]), 0.0);
    for name in OF_THE_PROCESS {
        assert!(found.one(&format!("process_{name}"), &[]) > 0.0, "{name}");
    }
    let reloaded = || measured.scrape().one("stillgate_config_last_reload_successful", &[]);
    assert_eq!(reloaded(), 1.0);
    measured.gateway.write_config_text("nonsense");
    eventually("the refusal", || reloaded() == 0.0);
    measured.reload(Setup::to(upstream.addr()).upstream("retries: 0"), "");
    eventually("the next", || reloaded() == 1.0 && measured.scrape().one("stillgate_config_generation", &[]) == 2.0);
    promtool_check_metrics(&measured.scrape().0).expect("promtool is content");
}

#[test]
fn the_exposition_is_there_while_requests_are_finished() {
    let upstream = Upstream::bind();
    let mut measured = MeasuredGateway::start(Setup::to(upstream.addr()), "");
    let mut client = measured.gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut node = upstream.accept();
    node.expect_request();
    measured.gateway.signal("TERM");
    eventually("it to drain", || measured.gateway.status()["draining"] == true);
    let listener = measured.gateway.addr().to_string();
    let active = [("listener", listener.as_str()), ("state", "active")];
    eventually("the request to be told", || measured.scrape().sum("stillgate_connections", &active) == 1.0);
    node.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(client.expect_response("GET").head.status(), 200);
    assert!(measured.gateway.wait_within(END_PATIENCE).success());
}

#[test]
fn clients_that_take_all_descriptors_do_not_end_it() {
    let upstream = Upstream::echo();
    let mut setup = Setup::to(upstream.addr());
    setup.open_files = Some(64);
    let mut measured = MeasuredGateway::start(setup, "");
    let clients: Vec<_> = (0..100).map(|_| measured.gateway.client()).collect();
    eventually("all descriptors to be in use", || measured.gateway.log().contains("cannot accept connections"));
    measured.gateway.assert_healthy();
    drop(clients);
    assert!(measured.scrape().sum("stillgate_connections", &[]) <= 64.0);
}

#[test]
fn an_address_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address");
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("stillgate.yaml");
    let (listen, metrics) = (ReservedPort::new(), format!("gateway:\n  metrics: {{address: \"{address}\"}}"));
    let text = format!("{metrics}\n  listeners: [{{address: \"{}\"}}]\nroutes: []\n", listen.addr());
    std::fs::write(&config, text).expect("write the config");
    let ended = Command::new(STILLGATE).arg("run").arg("--config").arg(&config).output().expect("run it");
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{told}");
    assert!(told.contains(&format!("gateway.metrics.address: cannot listen on {address}: ")), "{told}");
}
