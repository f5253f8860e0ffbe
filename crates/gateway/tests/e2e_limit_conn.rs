//! `limit-conn` over all workers: exactly as many requests are under way as the limit says, by itself and in a `workflow`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use stillgate_testkit::{Client, Gateway, Setup, Upstream, eventually};

const STILLGATE: &str = env!("CARGO_BIN_EXE_stillgate");
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
/// Clients at once, each with a connection of its own.
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

#[test]
fn a_request_of_the_burst_waits_as_long_as_is_configured() {
    let asked = Arc::new(AtomicUsize::new(0));
    let node = patient(&asked, 2, true);
    let limit = "{conn: 1, burst: 1, default_conn_delay: 0.15, only_use_default_delay: true, key: remote_addr}";
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
