//! `limit-conn` over all workers: exactly as many requests are under way as the limit says, by itself and in a `workflow`.

use crate::shared::STILLGATE;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use stillgate_testkit::{Client, Gateway, Setup, Upstream, eventually};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
/// Number of concurrent clients, each with a connection of its own.
const CLIENTS: usize = 8;

/// A node that answers nothing until `count` of something have been counted.
fn patient(counted: &Arc<AtomicUsize>, count: usize, counts_requests: bool) -> Upstream {
    let counted = counted.clone();
    Upstream::serve(move |connection| {
        while connection.read_request().is_ok() {
            if counts_requests {
                counted.fetch_add(1, Ordering::SeqCst);
            }
            eventually("the others have come", || counted.load(Ordering::SeqCst) >= count);
            if connection.try_send(OK).is_err() {
                return;
            }
        }
    })
}

fn gateway(node: &Upstream, plugins: &str) -> Gateway {
    let setup = Setup::to(node.addr()).gateway("workers: 4");
    Gateway::start(STILLGATE, &setup.route(&format!("plugins: {{{plugins}}}")))
}

#[test]
fn exactly_as_many_as_may_be_are_under_way() {
    let limit = "{conn: 2, burst: 1, default_conn_delay: 0.001, only_use_default_delay: true, key: remote_addr}";
    let in_workflow = format!("workflow: {{rules: [{{actions: [[limit-conn, {limit}]]}}]}}");
    for plugins in [format!("limit-conn: {limit}"), in_workflow] {
        let rejected = Arc::new(AtomicUsize::new(0));
        let node = patient(&rejected, CLIENTS - 3, false);
        let mut gateway = gateway(&node, &plugins);
        let addr = gateway.addr();
        let one = || {
            let status = Client::connect(addr).get("/").head.status();
            if status == 503 {
                rejected.fetch_add(1, Ordering::SeqCst);
            }
            status
        };
        let mut statuses: Vec<u16> = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(one)).collect();
            clients.into_iter().map(|client| client.join().expect("a client")).collect()
        });
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 200, 200, 503, 503, 503, 503, 503], "{plugins}");
        gateway.assert_healthy();
    }
}

/// Each rule counts by its own key; the first that turns a request away answers, and what the rules before it counted ends with
/// the request.
#[test]
fn all_rules_must_hold() {
    let asked = Arc::new(AtomicUsize::new(0));
    let node = patient(&asked, 3, true);
    let rules = "[{conn: 2, burst: 0, key: \"$http_user\"}, {conn: \"$${http_x_conn ?? 1}\", burst: 0, key: \"$http_project\"}]";
    let mut gateway =
        gateway(&node, &format!("limit-conn: {{default_conn_delay: 0.001, rules: {rules}, rejected_code: 429}}"));
    let addr = gateway.addr();
    let ask = |fields: &str| {
        let mut client = Client::connect(addr).into_connection();
        client.send(format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n"));
        client
    };
    let status = |fields: &str| ask(fields).expect_response("GET").head.status();
    let mut under_way = vec![ask("User: jack\r\nProject: a\r\n")];
    eventually("the first is under way", || asked.load(Ordering::SeqCst) == 1);
    // The second rule turns it away each time, and the first one does not count it any more.
    for _ in 0..5 {
        assert_eq!(status("User: jack\r\nProject: a\r\n"), 429);
    }
    // A request counts until its end, which comes behind its answer.
    let settled = |count: usize| eventually("the others to end", || gateway.status()["requests"]["in_flight"] == count);
    settled(1);
    under_way.push(ask("User: jack\r\nProject: b\r\n"));
    eventually("the second is under way", || asked.load(Ordering::SeqCst) == 2);
    assert_eq!(status("User: jack\r\n"), 429);
    assert_eq!(status(""), 500);
    settled(2);
    under_way.push(ask("Project: a\r\nX-Conn: 2\r\n"));
    for mut client in under_way {
        assert_eq!(client.expect_response("GET").head.status(), 200);
    }
    gateway.assert_healthy();
}

#[test]
fn a_request_of_the_burst_waits_as_long_as_is_configured() {
    let asked = Arc::new(AtomicUsize::new(0));
    let node = patient(&asked, 2, true);
    let limit = "{conn: 1, burst: 1, default_conn_delay: 0.15, key: remote_addr}";
    let mut gateway = gateway(&node, &format!("limit-conn: {limit}"));
    let addr = gateway.addr();
    // The node answers neither before it has both, and the second one waits first.
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert_eq!(Client::connect(addr).get("/").head.status(), 200));
        }
    });
    assert!(began.elapsed() >= Duration::from_millis(150), "{:?}", began.elapsed());
    gateway.assert_healthy();
}
