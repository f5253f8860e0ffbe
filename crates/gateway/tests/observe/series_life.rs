//! When series begin, become one with others, and end: labels that explode, nodes and upstreams that leave, created times.

use crate::shared::measured::MeasuredGateway;
use std::net::SocketAddr;
use stillgate_testkit::{ACCEPT_OPENMETRICS, Client, ReservedPort, Setup, Upstream, eventually, scrape};

const REQUESTS: &str = "stillgate_http_requests_total";
const ROUTES: usize = 300;

/// An upstream's entry with these nodes, which are checked.
fn upstream(id: &str, nodes: &[&Upstream]) -> String {
    let nodes: Vec<String> = nodes.iter().map(|node| format!("\"{}\": 1", node.addr())).collect();
    format!(
        "  - {{id: {id}, type: roundrobin, nodes: {{{}}}, checks: {{active: {{type: tcp, healthy: {{interval: 1, successes: 1}}, \
         unhealthy: {{interval: 1, tcp_failures: 1}}}}}}}}\n",
        nodes.join(", ")
    )
}

/// A route for each upstream.
fn upstreams(entries: &[(&str, &[&Upstream])]) -> Setup {
    let upstreams: String = entries.iter().map(|(id, nodes)| upstream(id, nodes)).collect();
    let route = |(id, _): &(&str, &[&Upstream])| format!("  - {{id: {id}, uri: /{id}, upstream_id: {id}}}\n");
    let routes: String = entries.iter().map(route).collect();
    Setup::resources(format!("upstreams:\n{upstreams}routes:\n{routes}"))
}

#[test]
fn an_exploding_label_leaves_a_fleet_exact() {
    let nodes = [Upstream::echo(), Upstream::echo(), Upstream::echo()];
    let of_node = |node: &Upstream| format!("\"{}\": 1", node.addr());
    let routes: String =
        (0..ROUTES).map(|number| format!("  - {{id: r{number}, uri: /r{number}, upstream_id: u}}\n")).collect();
    let setup = Setup::resources(format!(
        "upstreams:\n  - {{id: u, type: roundrobin, nodes: {{{}}}}}\nroutes:\n{routes}",
        nodes.each_ref().map(of_node).join(", ")
    ));
    let keys = "series_per_family: 4000\nlabels: {http_requests_total: {tenant: $http_x_tenant}}";
    let measured = MeasuredGateway::start(setup, keys);
    let mut client = measured.gateway.client();
    let mut sent = 0;
    for _ in 0..6 {
        for number in (sent..sent + 1_500).step_by(10) {
            let request = |number: usize| {
                format!("GET /r{} HTTP/1.1\r\nHost: h\r\nX-Tenant: tenant-{number}\r\n\r\n", number % ROUTES)
            };
            client.send((number..number + 10).map(request).collect::<String>());
            (0..10).for_each(|_| assert_eq!(client.expect_response("GET").head.status(), 200));
        }
        sent += 1_500;
        let found = measured.scrape_with(sent as f64);
        for label in ["route", "node", "code"] {
            assert_eq!(found.sum(REQUESTS, &[(label, "__other__")]), 0.0, "{label} stays exact after {sent}");
        }
        for number in [0, 1, 299] {
            let of_route = found.sum(REQUESTS, &[("route", &format!("r{number}"))]);
            assert_eq!(of_route, (sent / ROUTES) as f64);
        }
    }
    let mut found = measured.scrape();
    eventually("one series for each route and node", || {
        found = measured.scrape();
        found.values(REQUESTS, &[]).len() == found.values(REQUESTS, &[("tenant", "__other__")]).len()
    });
    assert!((ROUTES..=ROUTES * nodes.len()).contains(&found.values(REQUESTS, &[]).len()));
    assert_eq!(found.sum(REQUESTS, &[]), sent as f64);
}

/// New series come faster than a busy machine prepares memory for them.
#[test]
fn every_route_of_thousands_has_its_first_request() {
    const MANY: usize = 3_000;
    let node = Upstream::echo();
    let routes: String =
        (0..MANY).map(|number| format!("  - {{id: r{number}, uri: /r{number}, upstream_id: u}}\n")).collect();
    let setup = Setup::resources(format!("upstreams:\n{}routes:\n{routes}", upstream("u", &[&node])));
    let measured = MeasuredGateway::start(setup, "");
    let mut client = measured.gateway.client();
    for number in (0..MANY).step_by(50) {
        let request = |number: usize| format!("GET /r{number} HTTP/1.1\r\nHost: h\r\n\r\n");
        client.send((number..number + 50).map(request).collect::<String>());
        (0..50).for_each(|_| assert_eq!(client.expect_response("GET").head.status(), 200));
    }
    let found = measured.scrape_with(MANY as f64);
    for family in [REQUESTS, "stillgate_http_request_duration_seconds_count"] {
        let of_one = found.values(family, &[]);
        assert_eq!((of_one.len(), of_one.iter().all(|value| *value == 1.0)), (MANY, true), "{family}");
        assert!(found.values(family, &[("route", "__other__")]).is_empty(), "{family}");
    }
    assert!(found.values("stillgate_metrics_collapsed_observations_total", &[]).is_empty());
}

#[test]
fn a_node_that_leaves_one_upstream_ends_there_alone() {
    let (one, two) = (Upstream::echo(), Upstream::echo());
    for (dialect, family) in [("native", "stillgate_upstream_healthy"), ("apisix", "apisix_upstream_status")] {
        let keys = format!("dialect: {dialect}");
        let measured = MeasuredGateway::start(upstreams(&[("u1", &[&one, &two]), ("u2", &[&two])]), &keys);
        let labels = |id: &str, node: &Upstream| match dialect {
            "native" => vec![("upstream", id.to_owned()), ("node", node.addr().to_string())],
            _ => vec![("name", format!("/apisix/upstreams/{id}")), ("port", node.addr().port().to_string())],
        };
        let shown = |id: &str, node: &Upstream| {
            let labels = labels(id, node);
            let labels: Vec<(&str, &str)> = labels.iter().map(|(label, value)| (*label, value.as_str())).collect();
            measured.scrape().values(family, &labels)
        };
        eventually("all nodes", || [shown("u1", &one), shown("u1", &two), shown("u2", &two)].concat() == [1.0; 3]);
        measured.reload(upstreams(&[("u1", &[&one]), ("u2", &[&two])]), &keys);
        eventually("the node to go", || shown("u1", &two).is_empty());
        assert_eq!([shown("u1", &one), shown("u2", &two)].concat(), [1.0; 2]);
        measured.reload(upstreams(&[("u1", &[&one, &two]), ("u2", &[&two])]), &keys);
        eventually("it to come back", || shown("u1", &two) == [1.0]);
        // Reported after a reload, by a writer that has nothing else to do.
        measured.reload(upstreams(&[("u1", &[&one]), ("u3", &[&two])]), &keys);
        eventually("another upstream", || shown("u3", &two) == [1.0]);
        measured.reload(upstreams(&[("u1", &[&one])]), &keys);
        eventually("all others to go, without a reload", || {
            [shown("u1", &two), shown("u2", &two), shown("u3", &two)].concat().is_empty()
        });
        assert_eq!(shown("u1", &one), [1.0]);
    }
}

#[test]
fn apisix_upstream_status_is_there_for_upstreams_with_checks() {
    let (node, keys) = (Upstream::echo(), "dialect: apisix");
    let setup = |checks: &str| {
        let entry = format!("{{id: u, type: roundrobin, nodes: {{\"{}\": 1}}{checks}}}", node.addr());
        Setup::resources(format!("upstreams:\n  - {entry}\nroutes:\n  - {{id: r, uri: /, upstream_id: u}}\n"))
    };
    let measured = MeasuredGateway::start(setup(""), keys);
    let (ip, port) = (node.addr().ip().to_string(), node.addr().port().to_string());
    let labels = [("name", "/apisix/upstreams/u"), ("ip", ip.as_str()), ("port", port.as_str())];
    let status = || measured.scrape().values("apisix_upstream_status", &labels);
    assert_eq!(measured.gateway.get("/").head.status(), 200);
    measured.scrape_with(1.0);
    assert!(status().is_empty());
    measured.reload(setup(", checks: {active: {type: tcp}}"), keys);
    eventually("the status of a node with checks", || status() == [1.0]);
    measured.reload(setup(""), keys);
    eventually("it to go with the checks", || status().is_empty());
}

#[test]
fn what_was_counted_of_a_consumer_and_a_listener_that_left_ends() {
    let (node, second) = (Upstream::echo(), ReservedPort::new());
    let setup = |names: &[&str]| {
        let consumer =
            |name: &&str| format!("  - {{username: {name}, plugins: {{key-auth: {{key: key-of-{name}}}}}}}\n");
        let consumers: String = names.iter().map(consumer).collect();
        Setup::resources(format!(
            "upstreams:\n{}routes:\n  - {{id: r, uri: /*, upstream_id: u, plugins: {{key-auth: {{}}}}}}\nconsumers:\n{consumers}",
            upstream("u", &[&node])
        ))
    };
    let measured = MeasuredGateway::start(setup(&["jack", "jill"]).with_listener(second.addr()), "");
    let ask = |addr: SocketAddr, name: &str| {
        let mut client = Client::connect(addr);
        client.send(format!("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\napikey: key-of-{name}\r\n\r\n"));
        client.expect_response("GET").head.status()
    };
    let first = measured.gateway.addr();
    assert_eq!([ask(first, "jack"), ask(first, "jill"), ask(second.addr(), "jack")], [200; 3]);
    let of_consumer = |name: &str| measured.scrape().values(REQUESTS, &[("consumer", name)]);
    const ACCEPTED: &str = "stillgate_connections_accepted_total";
    let of_listener = |addr: SocketAddr| {
        let found = measured.scrape();
        let label = [("listener", &*addr.to_string())];
        [found.values(ACCEPTED, &label), found.values("stillgate_connections", &label)].concat()
    };
    eventually("all series", || {
        of_consumer("jack") == [2.0] && of_consumer("jill") == [1.0] && !of_listener(second.addr()).is_empty()
    });
    measured.reload(setup(&["jack"]), "");
    eventually("those that left to end", || of_consumer("jill").is_empty() && of_listener(second.addr()).is_empty());
    assert!(of_consumer("jack") == [2.0] && !of_listener(first).is_empty());
    measured.reload(setup(&["jack", "jill"]).with_listener(second.addr()), "");
    assert_eq!([ask(second.addr(), "jill"), ask(first, "jill")], [200; 2]);
    eventually("them to come back", || !of_consumer("jill").is_empty() && !of_listener(second.addr()).is_empty());
}

#[test]
fn what_counts_from_the_start_has_begun_then() {
    let node = Upstream::echo();
    let measured = MeasuredGateway::start(upstreams(&[("u1", &[&node])]), "");
    assert_eq!(measured.gateway.client().get("/u1").head.status(), 200);
    let text = || scrape(measured.metrics.addr(), "/metrics", ACCEPT_OPENMETRICS, false).text().to_owned();
    let told = ["stillgate_worker_cpu_seconds_created{", "stillgate_connections_accepted_created{"];
    eventually("all families", || told.iter().all(|name| text().contains(name)));
    let text = text();
    let value = |line: &str| -> f64 { line.rsplit_once(' ').expect("a value").1.parse().expect("a number") };
    let of = |name: &str| text.lines().filter(|line| line.starts_with(name)).map(value).collect::<Vec<f64>>();
    let [start] = of("process_start_time_seconds ")[..] else { panic!("one start: {text}") };
    for name in
        ["process_cpu_seconds", "stillgate_tls_handshakes", "stillgate_tls_handshakes_failed", "stillgate_tunnels"]
    {
        let created = of(&format!("{name}_created"));
        assert!(
            !created.is_empty() && created.iter().all(|at| (at - start).abs() < 0.002),
            "{name}: {created:?}, {start}"
        );
    }
    // The workers begin a little later, all at once.
    let created = [of("stillgate_worker_cpu_seconds_created"), of("stillgate_connections_accepted_created")].concat();
    assert!(
        created.len() > 1 && created.iter().all(|at| *at == created[0] && *at >= start - 0.1),
        "{created:?}, {start}"
    );
}

#[test]
fn apisix_counters_are_counters_to_who_reads_text() {
    let node = Upstream::echo();
    let metrics = |dialect: &str| {
        let measured = MeasuredGateway::start(upstreams(&[("u1", &[&node])]), &format!("dialect: {dialect}"));
        let ask = |accept: &str| scrape(measured.metrics.addr(), "/metrics", accept, false);
        let (both, alone) = (ask(ACCEPT_OPENMETRICS), ask("application/openmetrics-text;version=1.0.0"));
        // The second time there are requests.
        assert_eq!(measured.gateway.client().get("/u1").head.status(), 200);
        let family = if dialect == "apisix" { "apisix_bandwidth{" } else { "stillgate_http_bytes_total{" };
        eventually("the request", || ask(ACCEPT_OPENMETRICS).text().contains(family));
        let again = ask(ACCEPT_OPENMETRICS);
        let types = [&both, &alone, &again].map(|scrape| scrape.header("content-type").to_owned());
        (types, again.text().to_owned())
    };
    let (types, text) = metrics("apisix");
    let is_open = |content_type: &String| content_type.starts_with("application/openmetrics-text");
    assert_eq!(types.each_ref().map(is_open), [false, true, false], "{types:?}");
    for family in ["apisix_http_status", "apisix_bandwidth"] {
        assert!(text.contains(&format!("# TYPE {family} counter\n")), "{text}");
    }
    let (types, text) = metrics("native");
    assert_eq!(types.each_ref().map(is_open), [true; 3], "{types:?}");
    assert!(!text.contains(" unknown\n"), "{text}");
}
