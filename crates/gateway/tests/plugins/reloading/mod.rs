//! Reloads while requests are in their chains of plugins.

use crate::plugins::{CONSUMERS, routes};
use crate::shared::STILLGATE;
use crate::shared::reflect::{self, ask, asked, reflecting, try_ask};
use std::sync::{Arc, Condvar, Mutex};
use stillgate_testkit::{ACCEPT_TEXT, Gateway, ReservedPort, Setup, Upstream, eventually, http2, scrape};

/// A reload while requests are in the chain fails none of them, and counts go on.
#[test]
fn a_reload_fails_no_request_in_a_chain() {
    const REQUESTS: usize = 10_000;
    const CLIENTS: usize = 8;
    let resources = |header: usize| {
        let plugins = format!(
            r#"{{"key-auth": {{}}, "limit-count": {{"count": 1000000, "time_window": 600}}, "cors": {{}}, "proxy-rewrite": {{"uri": "/b", "headers": {{"set": {{"X-Number": "{header}"}}}}}}, "response-rewrite": {{"headers": {{"set": {{"X-Number": "{header}"}}}}, "filters": [{{"regex": "nothing like it", "replace": "-"}}]}}}}"#
        );
        format!("{CONSUMERS}{}", routes(&[("/a", &plugins)]))
    };
    let node = reflecting();
    let setup = |header: usize| reflect::setup(node.addr(), &resources(header)).gateway("workers: 2");
    let mut gateway = Gateway::start(STILLGATE, &setup(0));
    let failed: Vec<String> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = gateway.client();
                    let mut failed = Vec::new();
                    for _ in 0..REQUESTS / CLIENTS {
                        match try_ask(&mut client, "GET /a", &["apikey: auth-one"]) {
                            // One request has one configuration, from its head to its response's.
                            Ok(response)
                                if response.head.status() == 200
                                    && asked(&response).get("x-number") == response.head.get("x-number") => {}
                            other => failed.push(format!("{other:?}")),
                        }
                    }
                    failed
                })
            })
            .collect();
        let mut number = 0;
        while clients.iter().any(|client| !client.is_finished()) {
            number += 1;
            gateway.reload(&setup(number));
        }
        assert!(number > 1, "no reload while requests were on their way");
        clients.into_iter().flat_map(|client| client.join().expect("a client")).collect()
    });
    assert!(failed.is_empty(), "{} failed, such as {:?}", failed.len(), failed.first());
    let response = ask(&mut gateway.client(), "GET /a", &["apikey: auth-one"]);
    let remaining = response.head.get("x-ratelimit-remaining").expect("the header");
    assert_eq!(remaining.parse(), Ok(1_000_000 - REQUESTS - 1), "counts survive reloads");
    gateway.assert_healthy();
}

/// Answers nothing until it is allowed to, and then everything.
fn holding(may_go: Arc<(Mutex<bool>, Condvar)>) -> Upstream {
    Upstream::serve(move |connection| {
        while connection.read_request().is_ok() {
            let (may, changed) = &*may_go;
            drop(changed.wait_while(may.lock().expect("no test panics with it"), |may| !*may));
            if connection.try_send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err() {
                return;
            }
        }
    })
}

/// Ten thousand requests wait between `access` and `before_proxy` while the configuration changes: each ends under the one that
/// it began with.
#[test]
fn a_reload_leaves_ten_thousand_requests_in_their_chains() {
    const CONNECTIONS: u32 = 100;
    const STREAMS: u32 = 100;
    let may_go = Arc::new((Mutex::new(false), Condvar::new()));
    let (node, metrics) = (holding(may_go.clone()), ReservedPort::new());
    let setup = |status: u16| {
        let plugins = format!(
            r#"{{"key-auth": {{}}, "cors": {{}}, "proxy-rewrite": {{"uri": "/b"}}, "response-rewrite": {{"status_code": {status}}}}}"#
        );
        let upstream = format!(
            "upstreams:\n  - {{\"id\": \"node\", \"type\": \"roundrobin\", \"nodes\": {{\"{}\": 1}}, \
             \"limits\": {{\"requests\": 1, \"queue\": 10000, \"queue_timeout\": \"10m\"}}}}\n",
            node.addr()
        );
        let gateway = format!("workers: 2\nmetrics: {{address: \"{}\"}}", metrics.addr());
        Setup::resources(format!("{upstream}{CONSUMERS}{}", routes(&[("/a", &plugins)]))).gateway(&gateway)
    };
    let mut gateway = Gateway::start(STILLGATE, &setup(404));
    let mut fields = http2::get_fields("/a").to_vec();
    fields.push(("apikey", "auth-one"));
    let begin = |streams: u32| {
        let mut client = http2::Http2::connect_with(gateway.addr(), &[http2::NO_DYNAMIC_TABLE]);
        (0..streams).for_each(|number| client.send_head(2 * number + 1, &fields, http2::END_STREAM));
        client
    };
    let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| begin(STREAMS)).collect();
    let waiting = || {
        let told = scrape(metrics.addr(), "/metrics", ACCEPT_TEXT, false).text().to_owned();
        let line =
            told.lines().find_map(|line| line.strip_prefix("stillgate_upstream_requests_waiting{upstream=\"node\"} "));
        line.and_then(|count| count.parse().ok()).unwrap_or(0) + node.connections()
    };
    eventually("all to wait", || waiting() == (CONNECTIONS * STREAMS) as usize);
    gateway.reload(&setup(500));
    *may_go.0.lock().expect("no node panics") = true;
    may_go.1.notify_all();
    for client in &mut clients {
        for _ in 0..STREAMS {
            assert_eq!(client.until(|frame| frame.kind == http2::kind::HEADERS).status(), 404);
        }
    }
    assert_eq!(begin(1).finish(1).0[0].status(), 500);
    gateway.assert_healthy();
}
