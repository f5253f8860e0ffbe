//! Health of nodes: the findings of active and passive checks, which nodes get no requests then, how they come back, and what the
//! admin API and the metrics report.

use crate::shared::STILLGATE;
use crate::shared::authority::Authority;
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use stillgate_testkit::{
    ACCEPT_TEXT, BufferedSocket, Client, Gateway, Nginx, ReservedPort, Rounds, Setup, Upstream, eventually, scrape,
    with_longer_times,
};

/// The timeout of the first try of a node.
const PER_TRY: Duration = Duration::from_secs(2);

/// A node whose status a test changes; checks request `/healthz`.
struct Node {
    upstream: Upstream,
    is_well: Arc<AtomicBool>,
    checks: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

impl Node {
    fn new() -> Node {
        let is_well = Arc::new(AtomicBool::new(true));
        let (checks, requests) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (well, checked, requested) = (is_well.clone(), checks.clone(), requests.clone());
        let upstream = Upstream::serve(move |connection| {
            loop {
                let Ok(head) = connection.read_head() else { return };
                let is_check = head.method_and_target().1 == "/healthz";
                if is_check { &checked } else { &requested }.fetch_add(1, Ordering::SeqCst);
                let status = if well.load(Ordering::SeqCst) { "200 OK" } else { "500 No" };
                if connection.try_send(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n")).is_err() {
                    return;
                }
            }
        });
        Node { upstream, is_well, checks, requests }
    }

    fn addr(&self) -> SocketAddr {
        self.upstream.addr()
    }

    fn set_well(&self, is_well: bool) {
        self.is_well.store(is_well, Ordering::SeqCst);
    }

    fn checks(&self) -> usize {
        self.checks.load(Ordering::SeqCst)
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// One upstream over nodes of equal weight, with further keys.
fn setup(nodes: &[SocketAddr], keys: &str) -> Setup {
    let nodes: Vec<String> = nodes.iter().map(|node| format!("\"{node}\": 1")).collect();
    Setup::resources(format!(
        "upstreams: [{{id: u, nodes: {{{}}}, {keys}}}]\nroutes: [{{id: r, uri: /*, upstream_id: u}}]\n",
        nodes.join(", ")
    ))
}

/// Checks must not fail only because the machine is busy.
const ACTIVE: &str = "checks: {active: {http_path: /healthz, timeout: 60, \
    healthy: {interval: 0.1, successes: 2}, unhealthy: {interval: 0.1, http_failures: 2}}}";

/// The entry of `GET /v1/upstreams` for the node of the one upstream.
#[track_caller]
fn shown(gateway: &Gateway, node: SocketAddr) -> Value {
    let mut shown = Value::Null;
    eventually("all workers to answer in time", || {
        let response = Client::connect(gateway.admin_addr()).get("/v1/upstreams");
        assert_eq!(response.head.status(), 200, "{response:?}");
        shown = serde_json::from_slice(&response.body).expect("JSON");
        shown["silent_workers"] == serde_json::json!([])
    });
    assert_eq!(shown["upstreams"][0]["id"], "u");
    let endpoints = shown["upstreams"][0]["endpoints"].as_array().expect("a list").clone();
    let found = endpoints.into_iter().find(|endpoint| endpoint["address"] == node.to_string());
    found.unwrap_or_else(|| panic!("{node} is not in {shown}"))
}

/// Checks the shares of twenty requests. The turn before them may cost one.
fn assert_evenly(requests: [usize; 2]) {
    assert!(requests.iter().sum::<usize>() == 20 && requests.iter().all(|count| *count >= 8), "{requests:?}");
}

fn await_state(gateway: &Gateway, node: SocketAddr, state: &str) {
    eventually(&format!("{node} to be {state}"), || shown(gateway, node)["state"] == state);
}

#[test]
fn a_node_that_fails_active_checks_gets_no_requests_until_it_recovers() {
    let nodes = [Node::new(), Node::new()];
    let metrics = ReservedPort::new();
    let setup = setup(&[nodes[0].addr(), nodes[1].addr()], ACTIVE)
        .gateway(&format!("metrics: {{address: \"{}\", dialect: apisix}}", metrics.addr()));
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    let status = |node: SocketAddr| {
        let text = scrape(metrics.addr(), "/metrics", ACCEPT_TEXT, false).text().to_owned();
        let port = format!("port=\"{}\"", node.port());
        let of_node = |line: &&str| line.starts_with("apisix_upstream_status{") && line.contains(&port);
        text.lines().find(of_node).and_then(|line| line.split_whitespace().last()).map(str::to_owned)
    };
    assert_eq!(shown(&gateway, nodes[0].addr())["state"], "healthy");
    eventually("both to be checked", || {
        nodes.iter().all(|node| shown(&gateway, node.addr())["active_checks"]["checks"].as_u64() > Some(0))
    });
    eventually("the new state in the metrics", || status(nodes[0].addr()).as_deref() == Some("1"));

    nodes[0].set_well(false);
    await_state(&gateway, nodes[0].addr(), "unhealthy");
    let node = shown(&gateway, nodes[0].addr());
    let checks = &node["active_checks"];
    assert_eq!(checks["healthy"], false);
    assert_eq!(checks["reason"], "2 HTTP failures: status 500");
    assert_eq!((&checks["last"]["status"], &checks["last"]["error"]), (&Value::from(500), &Value::Null));
    assert!(checks["since"].as_str().is_some_and(|since| since.ends_with('Z')), "{checks}");
    assert!(checks["failures"].as_u64() >= Some(2) && checks["checks"].as_u64() > checks["failures"].as_u64());
    assert!(checks["last"]["latency_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{checks}");
    let before = nodes[0].requests();
    for _ in 0..20 {
        assert_eq!(client.get("/").head.status(), 200);
    }
    assert_eq!(nodes[0].requests(), before);
    eventually("the new state in the metrics", || status(nodes[0].addr()).as_deref() == Some("0"));
    assert_eq!(status(nodes[1].addr()).as_deref(), Some("1"));

    nodes[0].set_well(true);
    await_state(&gateway, nodes[0].addr(), "healthy");
    let (before, other) = (nodes[0].requests(), nodes[1].requests());
    for _ in 0..20 {
        assert_eq!(client.get("/").head.status(), 200);
    }
    assert_evenly([nodes[0].requests() - before, nodes[1].requests() - other]);
    eventually("the new state in the metrics", || status(nodes[0].addr()).as_deref() == Some("1"));
}

#[test]
fn checks_are_made_once_for_all_workers() {
    let node = Node::new();
    let setup = setup(&[node.addr()], ACTIVE).gateway("workers: 4");
    let gateway = Gateway::start(STILLGATE, &setup);
    eventually("a check", || node.checks() > 0);
    let (began, before) = (Instant::now(), node.checks());
    eventually("ten more", || node.checks() >= before + 10);
    // One checker for each worker would take a quarter of this.
    assert!(began.elapsed() > Duration::from_millis(700), "{:?}", began.elapsed());
    assert_eq!(shown(&gateway, node.addr())["state"], "healthy");
}

#[test]
fn what_checks_have_found_survives_a_reload() {
    let nodes = [Node::new(), Node::new()];
    let addresses = [nodes[0].addr(), nodes[1].addr()];
    nodes[0].set_well(false);
    let gateway = Gateway::start(STILLGATE, &setup(&addresses, ACTIVE));
    await_state(&gateway, addresses[0], "unhealthy");
    let since = shown(&gateway, addresses[0])["active_checks"]["since"].clone();
    // The upstream is another one now, its nodes and checks are the same.
    gateway.reload(&setup(&addresses, &format!("retries: 0, {ACTIVE}")));
    let node = shown(&gateway, addresses[0]);
    assert_eq!((&node["state"], &node["active_checks"]["since"]), (&Value::from("unhealthy"), &since));
    let before = nodes[0].requests();
    let mut client = gateway.client();
    for _ in 0..10 {
        assert_eq!(client.get("/").head.status(), 200);
    }
    assert_eq!(nodes[0].requests(), before);
    // After other checks are configured, the earlier state holds until they have found another.
    gateway.reload(&setup(&addresses, &ACTIVE.replace("successes: 2", "successes: 1")));
    assert_eq!(shown(&gateway, addresses[0])["state"], "unhealthy");
    nodes[0].set_well(true);
    await_state(&gateway, addresses[0], "healthy");
    // Without checks nothing counts against it.
    nodes[0].set_well(false);
    await_state(&gateway, addresses[0], "unhealthy");
    gateway.reload(&setup(&addresses, "retries: 0"));
    let node = shown(&gateway, addresses[0]);
    assert_eq!((&node["state"], &node["active_checks"]), (&Value::from("healthy"), &Value::Null));
    let checks = nodes[0].checks();
    for _ in 0..10 {
        client.get("/");
    }
    assert!(nodes[0].requests() > before);
    assert!(nodes[0].checks() <= checks + 1, "no more checks");
}

#[test]
fn when_all_nodes_are_unhealthy_requests_are_tried_all_the_same() {
    let nodes = [Node::new(), Node::new()];
    let gateway = Gateway::start(STILLGATE, &setup(&[nodes[0].addr(), nodes[1].addr()], ACTIVE));
    nodes.iter().for_each(|node| node.set_well(false));
    nodes.iter().for_each(|node| await_state(&gateway, node.addr(), "unhealthy"));
    let mut client = gateway.client();
    for _ in 0..10 {
        assert_eq!(client.get("/").head.status(), 500);
    }
    assert_eq!(nodes.map(|node| node.requests()), [5, 5]);
}

#[test]
fn tcp_checks_find_who_does_not_listen() {
    let (mut down, up) = (Upstream::refusing(), Upstream::echo());
    let keys = "checks: {active: {type: tcp, timeout: 60, healthy: {interval: 0.1}, unhealthy: {interval: 0.1}}}";
    let gateway = Gateway::start(STILLGATE, &setup(&[down.addr(), up.addr()], keys));
    await_state(&gateway, down.addr(), "unhealthy");
    let node = shown(&gateway, down.addr());
    let reason = node["active_checks"]["reason"].as_str().unwrap_or_default().to_owned();
    assert!(reason.starts_with("2 TCP failures: Connection refused"), "{reason}");
    assert!(node["active_checks"]["last"]["error"].as_str().is_some_and(|error| error.contains("refused")));
    down.start_echo();
    await_state(&gateway, down.addr(), "healthy");
}

#[test]
fn https_checks_use_the_upstreams_tls() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    authority.issue("node", &["node.test"]);
    stranger.issue("node", &["node.test"]);
    let node = |of: &Authority| {
        Nginx::start(&format!(
            "server {{ listen 127.0.0.1:{{port}} ssl; ssl_certificate {}; ssl_certificate_key {};\n\
             location /healthz {{ return 200; }} location / {{ return 404; }} }}",
            of.path("node.pem"),
            of.path("node.key"),
        ))
    };
    let (good, bad) = (node(&authority), node(&stranger));
    let keys = format!(
        "scheme: https, tls: {{ca: \"{}\"}}, checks: {{active: {{type: https, host: node.test, http_path: /healthz, \
         timeout: 60, healthy: {{interval: 0.1}}, unhealthy: {{interval: 0.1}}}}}}",
        authority.path("ca.pem")
    );
    let gateway = Gateway::start(STILLGATE, &setup(&[good.addr(), bad.addr()], &keys));
    await_state(&gateway, bad.addr(), "unhealthy");
    let reason = shown(&gateway, bad.addr())["active_checks"]["reason"].as_str().unwrap_or_default().to_owned();
    assert!(
        reason.starts_with("2 TCP failures: TLS: its certificate ")
            && reason.contains("name the roots of its certificate"),
        "{reason}"
    );
    eventually("checks of the other", || shown(&gateway, good.addr())["active_checks"]["checks"].as_u64() > Some(3));
    let checks = &shown(&gateway, good.addr())["active_checks"];
    assert_eq!((&checks["failures"], &checks["last"]["status"]), (&Value::from(0), &Value::from(200)));
}

const PASSIVE: &str = "checks: {passive: {healthy: {successes: 2}, unhealthy: {http_failures: 3}}}";

#[test]
fn a_node_that_answers_500_is_ejected_and_comes_back() {
    let nodes = [Node::new(), Node::new()];
    let gateway = Gateway::start(STILLGATE, &setup(&[nodes[0].addr(), nodes[1].addr()], PASSIVE));
    let mut client = gateway.client();
    nodes[0].set_well(false);
    let began = Instant::now();
    let mut failed = |requests: usize| (0..requests).filter(|_| client.get("/").head.status() == 500).count();
    assert_eq!(failed(6), 3, "they take turns");
    // Three failures in a row open the circuit. Where a second has passed, one request is let through and opens it again.
    let probes = failed(14);
    assert!(probes as u64 <= began.elapsed().as_secs(), "{probes} more within {:?}", began.elapsed());
    assert_eq!(nodes[0].requests(), 3 + probes);
    let mut node = Value::Null;
    eventually("the circuit to be shown open", || {
        client.get("/");
        node = shown(&gateway, nodes[0].addr());
        node["set_aside"][0]["circuit"] == "open"
    });
    assert_eq!((&node["state"], &node["active_checks"]), (&Value::from("set_aside"), &Value::Null));
    let set_aside = &node["set_aside"][0];
    assert_eq!(set_aside["worker"], 0, "{node}");
    let longest_ms = 1_000 << (set_aside["periods"].as_u64().expect("a number") - 1);
    assert!(set_aside["for_ms"].as_u64().is_some_and(|ms| (1..=longest_ms).contains(&ms)), "{node}");
    nodes[0].set_well(true);
    eventually("it to be asked again", || {
        assert_eq!(client.get("/").head.status(), 200);
        shown(&gateway, nodes[0].addr())["state"] == "healthy"
    });
    let before = nodes.each_ref().map(Node::requests);
    (0..20).for_each(|_| drop(client.get("/")));
    assert_evenly([nodes[0].requests() - before[0], nodes[1].requests() - before[1]]);
}

#[test]
fn no_more_nodes_are_ejected_than_allowed() {
    let nodes = [Node::new(), Node::new(), Node::new(), Node::new()];
    let addresses = nodes.each_ref().map(Node::addr);
    let gateway = Gateway::start(STILLGATE, &setup(&addresses, PASSIVE));
    nodes.iter().for_each(|node| node.set_well(false));
    let mut client = gateway.client();
    for _ in 0..40 {
        assert_eq!(client.get("/").head.status(), 500);
    }
    // If the test stood still for the whole time of an ejection, the node is tried again, and fails again.
    eventually("half of them to be set aside", || {
        (0..12).for_each(|_| assert_eq!(client.get("/").head.status(), 500));
        let set_aside = addresses.iter().filter(|node| shown(&gateway, **node)["state"] == "set_aside").count();
        assert!(set_aside <= 2, "no more than half of them");
        set_aside == 2
    });
}

#[test]
fn one_of_three_nodes_killed_under_load_fails_no_request() {
    // Each response is sent in one piece: once a head is passed on, the rest may be cut.
    let serve = |connection: &mut BufferedSocket| {
        let response = [b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", &[b'x'; 100][..]].concat();
        while connection.read_request().is_ok() && connection.try_send(&response).is_ok() {}
    };
    let mut nodes = [Upstream::serve(serve), Upstream::serve(serve), Upstream::serve(serve)];
    let addresses = nodes.each_ref().map(Upstream::addr);
    let keys =
        "checks: {active: {type: tcp, timeout: 60, unhealthy: {interval: 0.1}, healthy: {interval: 0.1}}, passive: {}}";
    let gateway = Gateway::start(STILLGATE, &setup(&addresses, keys).gateway("workers: 2"));
    let (rounds, addr) = (Rounds::default(), gateway.addr());
    std::thread::scope(|scope| {
        let _end = rounds.until_dropped();
        for _ in 0..4 {
            scope.spawn(|| {
                rounds.of_requests(addr, false, |client| assert_eq!(client.get("/").head.status(), 200));
            });
        }
        rounds.await_more(200);
        nodes[1].stop();
        rounds.await_more(400);
        await_state(&gateway, addresses[1], "unhealthy");
        rounds.await_more(200);
        nodes[1].start(serve);
        await_state(&gateway, addresses[1], "healthy");
        rounds.await_more(200);
    });
}

#[test]
fn the_retry_budget_bounds_retries() {
    let (closing, alive) = (Upstream::serve(|connection| drop(connection.read_head())), Upstream::echo());
    let nodes = [closing.addr(), alive.addr()];
    let metrics = ReservedPort::new();
    let setup = Setup::to_tiers(&nodes)
        .upstream("retry_budget: {percent: 0, min_concurrency: 0}")
        .gateway(&format!("metrics: {{address: \"{}\"}}", metrics.addr()));
    let gateway = Gateway::start(STILLGATE, &setup);
    assert_eq!(gateway.get("/").head.status(), 502);
    assert_eq!(alive.requests(), 0);
    eventually("the new state in the metrics", || {
        let text = scrape(metrics.addr(), "/metrics", ACCEPT_TEXT, false).text().to_owned();
        text.contains("\nstillgate_upstream_retries_over_budget_total{upstream=\"main\"} 1\n")
    });
    // With a budget for one retry, one is made.
    let setup = Setup::to_tiers(&nodes).upstream("retry_budget: {percent: 0, min_concurrency: 1}");
    let gateway = Gateway::start(STILLGATE, &setup);
    assert_eq!(gateway.get("/").head.status(), 200);
}

#[test]
fn more_requests_than_an_upstream_may_have_are_answered_503_at_once() {
    let upstream = Upstream::bind();
    let metrics = ReservedPort::new();
    let setup = Setup::to(upstream.addr())
        .upstream("limits: {requests: 1}")
        .gateway(&format!("metrics: {{address: \"{}\"}}", metrics.addr()));
    let gateway = Gateway::start(STILLGATE, &setup);
    let (mut first, mut second) = (gateway.client(), gateway.client());
    first.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut node = upstream.accept();
    node.expect_request();
    let refused = second.get("/2");
    assert_eq!((refused.head.status(), refused.head.get("retry-after")), (503, Some("1")));
    node.send("HTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(first.expect_response("GET").head.status(), 204);
    // There is room again, also on the connection that was refused.
    second.send("GET /3 HTTP/1.1\r\nHost: a\r\n\r\n");
    node.expect_request();
    node.send("HTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(second.expect_response("GET").head.status(), 204);
    eventually("the new state in the metrics", || {
        let text = scrape(metrics.addr(), "/metrics", ACCEPT_TEXT, false).text().to_owned();
        text.contains("\nstillgate_upstream_requests_shed_total{upstream=\"main\"} 1\n")
    });
}

#[test]
fn a_try_ends_after_per_try_and_the_next_node_is_asked() {
    let hanging = Upstream::bind();
    let alive = Upstream::echo();
    with_longer_times(PER_TRY, "a node that answers in time", |per_try| {
        let timeout = format!("timeout: {{per_try: {}}}", per_try.as_secs());
        let setup = Setup::to_tiers(&[hanging.addr(), alive.addr()]).upstream(&timeout);
        let gateway = Gateway::start(STILLGATE, &setup);
        let began = Instant::now();
        let answer = gateway.get("/?size=4&piece=1");
        // The timeout may come early by a tick of the gateway's clock.
        assert!(began.elapsed() > per_try - Duration::from_millis(100), "too early");
        assert!(answer.body.len() == 4 || answer.head.status() == 504, "{answer:?}");
        answer.body.len() == 4
    });
    let alone = Gateway::start(STILLGATE, &Setup::to(hanging.addr()).upstream("timeout: {per_try: 0.2}\nretries: 0"));
    assert_eq!(alone.get("/").head.status(), 504);
}

#[test]
fn a_client_that_sends_its_request_slowly_may_take_longer_than_per_try() {
    let alive = Upstream::echo();
    with_longer_times(PER_TRY, "a node that answers in time", |per_try| {
        let setup = Setup::to(alive.addr()).upstream(&format!("timeout: {{per_try: {}}}", per_try.as_secs()));
        let gateway = Gateway::start(STILLGATE, &setup);
        let mut client = gateway.client();
        client.send("POST /?echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na");
        let until = Instant::now() + per_try + Duration::from_secs(1);
        while Instant::now() < until {
            std::thread::park_timeout(Duration::from_millis(50));
        }
        // From here on the gateway waits for the node.
        let since = Instant::now();
        // It may have been answered by then, which the response shows.
        let _ = client.try_send("b");
        let answer = client.expect_response("POST");
        if answer.head.status() == 504 {
            assert!(since.elapsed() > per_try - Duration::from_millis(100), "{:?}", since.elapsed());
            return false;
        }
        assert_eq!(answer.body, b"ab");
        true
    });
}
