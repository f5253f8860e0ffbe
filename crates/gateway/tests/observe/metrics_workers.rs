//! The gateway's metrics about itself: its listeners, its workers, its reloads, its connections to nodes, and requests that it
//! counts separately.

use crate::shared::measured::{Exposition, MeasuredGateway};
use crate::shared::tunnel;
use crate::shared::tunnel::Tunnel;
use stillgate_testkit::{Client, ReservedPort, Setup, Upstream, eventually, promtool_check_metrics};

#[test]
fn connections_are_counted_by_listener() {
    let (upstream, other) = (Upstream::echo(), ReservedPort::new());
    let setup = Setup::to(upstream.addr())
        .listener("proxy_protocol: true")
        .with_listener(other.addr())
        .gateway("limits: {connections_per_worker: 2}");
    let measured = MeasuredGateway::start(setup, "");
    let listeners = [measured.gateway.addr().to_string(), other.addr().to_string()];
    let count = |family: &str, listener: &str| {
        measured.scrape().one(&format!("stillgate_{family}_total"), &[("listener", listener)])
    };
    let counts = || {
        listeners.each_ref().map(|listener| {
            ["connections_accepted", "connections_refused", "proxy_protocol_errors"]
                .map(|family| count(family, listener))
        })
    };
    eventually("all of them from the beginning", || measured.scrape().has("stillgate_proxy_protocol_errors_total{"));
    assert_eq!(counts(), [[0.0; 3]; 2]);
    let mut stranger = Client::connect(measured.gateway.addr());
    stranger.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    stranger.expect_close();
    eventually("the connection without a header", || counts() == [[1.0, 0.0, 1.0], [0.0; 3]]);
    let mut kept = [Client::connect(other.addr()), Client::connect(other.addr())];
    kept.iter_mut().for_each(|client| assert_eq!(client.get("/").head.status(), 200));
    assert_eq!(Client::connect(other.addr()).expect_response("GET").head.status(), 503);
    eventually("the connection that was refused", || counts() == [[1.0, 0.0, 1.0], [3.0, 1.0, 0.0]]);
    promtool_check_metrics(&measured.scrape().0).expect("promtool is content");
}

#[test]
fn a_reload_is_reported_by_its_time() {
    let upstream = Upstream::echo();
    let measured = MeasuredGateway::start(Setup::to(upstream.addr()), "");
    let time = |of: &str| {
        let family = format!("stillgate_config_last_{of}timestamp_seconds");
        measured.scrape().values(&family, &[]).first().copied().unwrap_or_default()
    };
    let times = || (time("reload_"), time("reload_success_"));
    eventually("that of the start", || times().0 > 1.7e9);
    let (began, success) = times();
    assert_eq!(began, success);
    measured.gateway.write_config_text("nonsense");
    eventually("a refusal", || times().0 > began);
    let (refused, success) = times();
    assert_eq!(success, began, "that was not a success");
    measured.reload(Setup::to(upstream.addr()).upstream("retries: 0"), "");
    eventually("a success", || times().1 > refused);
    let (last, success) = times();
    assert_eq!(last, success);
}

#[test]
fn new_connections_to_nodes_are_timed_by_upstream() {
    let (upstream, dead) = (Upstream::echo(), Upstream::refusing());
    let setup = Setup::resources(format!(
        "upstreams:\n  - {{id: main, type: roundrobin, nodes: {{\"{}\": 1}}}}\n  - {{id: dead, type: roundrobin, nodes: {{\"{}\": 1}}}}\n\
         routes:\n  - {{id: a, uri: /a, upstream_id: main}}\n  - {{id: b, uri: /b, upstream_id: dead}}\n",
        upstream.addr(),
        dead.addr()
    ));
    let measured = MeasuredGateway::start(setup.clone(), "");
    let mut client = measured.gateway.client();
    assert_eq!(client.get("/b").head.status(), 502);
    (0..5).for_each(|_| assert_eq!(client.get("/a").head.status(), 200));
    let found = measured.scrape_with(6.0);
    let of = |of: &str| found.values(&format!("stillgate_upstream_connect_duration_seconds_{of}"), &[]);
    assert_eq!(of("count"), [1.0], "five requests over one connection, and none that failed");
    assert_eq!(found.one("stillgate_upstream_connect_duration_seconds_count", &[("upstream", "main")]), 1.0);
    assert!(of("sum")[0] > 0.0);
    // The series of an upstream go with it.
    let without = setup.resources.expect("all resources").replace("/a, upstream_id: main", "/a, upstream_id: dead");
    let without = without.replace("id: main,", "id: next,");
    measured.reload(Setup::resources(without), "");
    eventually("the upstream to go", || !measured.scrape().has("upstream=\"main\""));
}

/// An alert on a rate must see the first of them.
#[test]
fn what_can_happen_at_an_upstream_is_counted_from_zero() {
    let upstream = Upstream::echo();
    let bounded = || Setup::to(upstream.addr()).upstream("limits: {requests: 1}\nretry_budget: {percent: 10}");
    let measured = MeasuredGateway::start(Setup::to(upstream.addr()), "dialect: apisix");
    let count = |of: &str| measured.scrape().values(&format!("stillgate_upstream_{of}_total"), &[("upstream", "main")]);
    eventually("retries", || count("retries") == [0.0]);
    let others = ["retries_over_budget", "requests_shed", "requests_queued"];
    assert!(others.iter().all(|of| count(of).is_empty()), "nothing bounds them");
    measured.reload(bounded(), "dialect: apisix");
    eventually("all", || others.iter().all(|of| count(of) == [0.0]));
}

#[test]
fn each_worker_tells_of_itself() {
    let upstream = Upstream::echo();
    let measured = MeasuredGateway::start(Setup::to(upstream.addr()).gateway("workers: 2"), "");
    let clients: Vec<Client> = (0..10).map(|_| measured.gateway.client()).collect();
    let open = |found: &Exposition| found.sum("stillgate_worker_connections", &[]);
    eventually("their connections", || open(&measured.scrape()) == 10.0);
    let turns = |found: &Exposition| {
        ["0", "1"].map(|worker| found.sum("stillgate_worker_turn_seconds_count", &[("worker", worker)]))
    };
    let cpu = |found: &Exposition| {
        ["0", "1"].map(|worker| found.sum("stillgate_worker_cpu_seconds_total", &[("worker", worker)]))
    };
    let before = turns(&measured.scrape());
    eventually("turns of both, though nothing happens", || {
        let now = turns(&measured.scrape());
        now[0] >= before[0] + 2.0 && now[1] >= before[1] + 2.0
    });
    drop(clients);
    eventually("none left", || open(&measured.scrape()) == 0.0);
    // One connection is one worker's, so that one alone is busy.
    let (mut client, before) = (measured.gateway.client(), measured.scrape());
    let mut grown = [0.0; 2];
    eventually("one to be busy", || {
        (0..200).for_each(|_| assert_eq!(client.get("/").head.status(), 200));
        let found = measured.scrape();
        let of = |now: [f64; 2], then: [f64; 2]| [now[0] - then[0], now[1] - then[1]];
        grown = of(cpu(&found), cpu(&before));
        let turned = of(turns(&found), turns(&before));
        grown[0].max(grown[1]) > 10.0 * grown[0].min(grown[1]) && turned[0].max(turned[1]) > 200.0
    });
    let found = measured.scrape();
    let all = found.sum("stillgate_worker_turn_seconds_bucket", &[("le", "+Inf")]);
    assert_eq!(all, found.sum("stillgate_worker_turn_seconds_count", &[]));
    promtool_check_metrics(&found.0).expect("promtool is content");
}

#[test]
fn what_workers_tell_can_be_switched_off() {
    let upstream = Upstream::echo();
    let keys = "disable: {families: [worker_turn_seconds, worker_cpu_seconds_total, connections_accepted_total]}";
    let measured = MeasuredGateway::start(Setup::to(upstream.addr()), keys);
    assert_eq!(measured.gateway.get("/").head.status(), 200);
    eventually("what is left", || measured.scrape().has("stillgate_worker_connections{worker=\"0\"}"));
    let found = measured.scrape_with(1.0);
    assert!(!found.has("_turn_") && !found.has("_worker_cpu_") && !found.has("_accepted_"), "{found:?}");
    measured.reload(Setup::to(upstream.addr()), "");
    eventually("all of it", || {
        let found = measured.scrape();
        found.has("stillgate_worker_turn_seconds_count{")
            && found.sum("stillgate_connections_accepted_total", &[]) == 1.0
    });
}

#[test]
fn short_times_are_distinguished() {
    let upstream = Upstream::echo();
    let measured = MeasuredGateway::start(Setup::to(upstream.addr()), "");
    assert_eq!(measured.gateway.get("/").head.status(), 200);
    let found = measured.scrape_with(1.0);
    for family in ["http_request", "http_upstream", "upstream_connect"] {
        let family = format!("stillgate_{family}_duration_seconds_bucket");
        let bounds = ["0.0001", "0.00025", "0.0005"].map(|le| found.values(&family, &[("le", le)]).len());
        assert_eq!(bounds, [1; 3], "{family}\n{found:?}");
    }
}

#[test]
fn how_long_a_tunnel_lasts_does_not_count_as_time_of_a_request() {
    let upstream = Upstream::bind();
    for (keys, tunnels, requests) in [
        ("", "stillgate_http_tunnel_duration_seconds_count", 0.0),
        ("disable: {families: [http_tunnel_duration_seconds]}", "", 0.0),
        ("dialect: apisix", "apisix_http_latency_count", 1.0),
    ] {
        let measured = MeasuredGateway::start(tunnel::setup(&upstream), keys);
        drop(Tunnel::open(&measured.gateway, &upstream));
        let found = measured.scrape_with(1.0);
        let sum = |name: &str, labels: &[(&str, &str)]| found.sum(name, labels);
        assert_eq!(sum("stillgate_http_requests_total", &[("code", "101")]) + sum("apisix_http_status", &[]), 1.0);
        if !tunnels.is_empty() {
            assert_eq!(sum(tunnels, &[("route", "all")]), if requests == 0.0 { 1.0 } else { 3.0 }, "{found:?}");
        }
        for family in ["request", "upstream", "gateway"] {
            assert_eq!(sum(&format!("stillgate_http_{family}_duration_seconds_count"), &[]), 0.0, "{family} {keys}");
        }
        assert_eq!(sum("apisix_http_latency_count", &[("type", "request")]), requests);
    }
}

#[test]
fn the_method_is_reported_on_demand() {
    let upstream = Upstream::echo();
    let setup = || Setup::to(upstream.addr());
    let measured = MeasuredGateway::start(setup(), "enable: {labels: [method]}\ndisable: {labels: [node]}");
    let mut client = measured.gateway.client();
    for method in ["GET", "POST", "GET", "PURGE", "BREW", "STEEP", "STEEP_MORE"] {
        client.send(format!("{method} / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"));
        assert_eq!(client.expect_response("GET").head.status(), 200);
    }
    client.send("GET / HTTP/1.1\r\nHost : h\r\n\r\n");
    assert_eq!(client.expect_response("GET").head.status(), 400);
    let found = measured.scrape_with(8.0);
    let count = |name: &str, method: &str| found.sum(name, &[("method", method)]);
    for name in ["stillgate_http_requests_total", "stillgate_http_request_duration_seconds_count"] {
        let counts = ["GET", "POST", "PURGE", "__other__", ""].map(|method| count(name, method));
        assert_eq!(counts, [2.0, 1.0, 1.0, 3.0, 1.0], "{name}\n{found:?}");
    }
    assert!(!found.has("BREW"), "a client could make up any number of them");
    promtool_check_metrics(&found.0).expect("promtool is content");
    measured.reload(setup(), "");
    measured.gateway.client().get("/");
    let node = upstream.addr().to_string();
    eventually("one without it", || measured.scrape().sum("stillgate_http_requests_total", &[("node", &node)]) == 1.0);
    eventually("the others to go", || !measured.scrape().has("method="));
}

#[test]
fn calls_and_answers_of_plugins_are_counted() {
    let upstream = Upstream::echo();
    let setup = Setup::resources(format!(
        "upstreams:\n  - {{id: main, type: roundrobin, nodes: {{\"{}\": 1}}}}\n\
         routes:\n  - {{id: plain, uri: /plain, upstream_id: main}}\n  \
         - {{id: limited, uri: /limited, upstream_id: main, plugins: {{limit-count: {{count: 2005, time_window: 600, \
         rejected_code: 429}}}}}}\n",
        upstream.addr()
    ));
    let measured = MeasuredGateway::start(setup, "");
    let mut client = measured.gateway.client();
    (0..5).for_each(|_| assert_eq!(client.get("/plain").head.status(), 200));
    assert!(!measured.scrape_with(5.0).has("stillgate_plugin_seconds_count"), "no request had a plugin");
    // One of 1000 is timed, of those that have plugins.
    let statuses: Vec<u16> = (0..2010).map(|_| client.get("/limited").head.status()).collect();
    let refused: Vec<u16> = statuses.into_iter().filter(|status| *status != 200).collect();
    assert!(!refused.is_empty(), "more than the limit");
    let found = measured.scrape_with(2015.0);
    let labels = [("plugin", "limit-count"), ("phase", "access")];
    assert_eq!(found.one("stillgate_plugin_seconds_count", &labels), 2.0);
    assert_eq!(found.one("stillgate_plugin_seconds_bucket", &[labels[0], labels[1], ("le", "+Inf")]), 2.0);
    let seconds = found.one("stillgate_plugin_seconds_sum", &labels);
    assert!(seconds > 0.0 && seconds < 1.0, "{seconds}");
    let code = refused[0].to_string();
    let answers = [("plugin", "limit-count"), ("code", code.as_str())];
    assert_eq!(found.one("stillgate_plugin_answers_total", &answers), refused.len() as f64);
    assert_eq!(found.sum("stillgate_plugin_answers_total", &[]), refused.len() as f64);
    promtool_check_metrics(&found.0).expect("promtool is content");
}
