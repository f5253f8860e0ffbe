//! Scrapes while an old process and its successor both serve: counters of both, and the successor's values for what describes one
//! process; and that nothing is lost with the old one, however it ends.

use crate::shared::tunnel;
use crate::shared::tunnel::Tunnel;
use crate::shared::upgrade::UpgradedGateway;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use stillgate_testkit::{
    ACCEPT_TEXT, BufferedSocket, Client, PATIENCE, ReservedPort, Setup, Upstream, eventually, scrape,
};

const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
/// Time in which a process reports on itself more than once, and folds what one that has ended has left.
const WHILE: Duration = Duration::from_millis(3_500);

/// The sum of the family with this name in an exposition, over all labels; `None`: it is missing.
fn sum(text: &str, name: &str) -> Option<f64> {
    let is_it = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    let value = |line: &str| line.rsplit_once(' ').and_then(|(_, value)| value.parse::<f64>().ok());
    text.lines().filter(is_it).filter_map(value).reduce(|sum, each| sum + each)
}

/// Whether a process has the socket that listens there.
fn listens(pid: u32, addr: SocketAddr) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the table of sockets");
    // A line is `number: address:port address:port state … inode …`; 0A: it listens.
    let inode = table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = fields[1].ends_with(&format!(":{:04X}", addr.port())) && fields[3] == "0A";
        is_it.then(|| format!("socket:[{}]", fields[9]))
    });
    let inode = inode.expect("somebody listens there");
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a live process");
    files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok()).any(|file| file.as_os_str() == inode.as_str())
}

/// A gateway whose first process has a request in flight, and its successor.
struct Both {
    upgraded: UpgradedGateway,
    metrics: SocketAddr,
    /// The request's two ends.
    held: Client,
    node: BufferedSocket,
    /// The two ends of requests to the successor.
    client: Client,
    other_node: BufferedSocket,
    /// The names of the family that counts requests, and of one that has other counts.
    counters: [&'static str; 2],
    last: [f64; 2],
    /// The new process's start.
    started: f64,
}

impl Both {
    fn start(keys: &str, counters: [&'static str; 2]) -> Both {
        let (upstream, metrics) = (Upstream::bind(), ReservedPort::new());
        let keys = format!("metrics: {{address: \"{}\"{keys}}}", metrics.addr());
        let setup = Setup::to(upstream.addr()).gateway(&keys);
        let upgraded = UpgradedGateway::start(&setup);
        let metrics = metrics.addr();
        let exposed = |name: &str| sum(scrape(metrics, "/metrics", ACCEPT_TEXT, false).text(), name);
        let mut client = upgraded.gateway.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut node = upstream.accept();
        node.expect_request();
        node.send(ANSWER);
        assert_eq!(client.read_head().expect("an answer").status(), 200);
        drop((client, node));
        eventually("the request to be counted", || exposed(counters[0]) == Some(1.0));
        // A reload makes the generations of the two processes differ.
        upgraded.configure(&setup.clone().gateway("server_header: false"));
        eventually("the reload", || exposed("stillgate_config_generation") == Some(2.0));
        let old_start = exposed("process_start_time_seconds").expect("a process");
        let mut held = upgraded.gateway.client();
        held.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut node = upstream.accept();
        node.expect_request();
        upgraded.upgrade();
        // It may be slow to, and is not waited for then.
        eventually("the old process to answer no more scrapes", || !listens(upgraded.gateway.pid(), metrics));
        let started = exposed("process_start_time_seconds").expect("a process");
        assert!(started > old_start, "{started} after {old_start}");
        let mut client = upgraded.gateway.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut other_node = upstream.accept();
        other_node.expect_request();
        other_node.send(ANSWER);
        assert_eq!(client.read_head().expect("an answer").status(), 200);
        Both { upgraded, metrics, held, node, client, other_node, counters, last: [0.0; 2], started }
    }

    /// Scrapes once: no counter decreases, and the figures of the process are the new one's.
    #[track_caller]
    fn look(&mut self) -> String {
        let text = scrape(self.metrics, "/metrics", ACCEPT_TEXT, false).text().to_owned();
        for (name, last) in self.counters.iter().zip(&mut self.last) {
            let now = sum(&text, name).expect("a family");
            assert!(now >= *last, "{name}: {now} after {last}\n{text}");
            *last = now;
        }
        assert_eq!(sum(&text, "process_start_time_seconds"), Some(self.started));
        assert_eq!(sum(&text, "stillgate_config_generation"), Some(1.0));
        text
    }

    /// Scrapes for a while, and on until so many requests are counted and, where it is known, so many connections.
    #[track_caller]
    fn watch(&mut self, requests: f64, connections: Option<f64>) {
        let connections = connections.filter(|_| self.counters == NATIVE);
        let since = Instant::now();
        loop {
            let text = self.look();
            let is_shown = sum(&text, self.counters[0]) == Some(requests)
                && connections.is_none_or(|count| sum(&text, "stillgate_connections") == Some(count));
            if is_shown && since.elapsed() > WHILE {
                return;
            }
            assert!(
                since.elapsed() < WHILE + PATIENCE,
                "not {requests} requests and {connections:?} connections:\n{text}"
            );
        }
    }

    /// One more request to the new process.
    fn ask(&mut self) {
        self.client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        self.other_node.expect_request();
        self.other_node.send(ANSWER);
        assert_eq!(self.client.read_head().expect("an answer").status(), 200);
    }
}

const NATIVE: [&str; 2] = ["stillgate_http_requests_total", "stillgate_http_bytes_total"];
const APISIX: [&str; 2] = ["apisix_http_status", "apisix_http_requests_total"];
const ALL: [(&str, [&str; 2]); 3] =
    [("", NATIVE), (", shared: \"{dir}/shared\"", NATIVE), (", dialect: apisix", APISIX)];

/// All run at once, for each takes seconds.
fn for_each(check: impl Fn(&str, [&'static str; 2]) + Sync) {
    let check = &check;
    std::thread::scope(|scope| {
        for (keys, counters) in ALL {
            scope.spawn(move || check(keys, counters));
        }
    });
}

#[test]
fn both_are_shown_until_the_old_process_has_finished() {
    for_each(|keys, counters| {
        let mut both = Both::start(keys, counters);
        both.ask();
        both.watch(3.0, Some(2.0));
        both.node.send(ANSWER);
        assert_eq!(both.held.read_head().expect("an answer").status(), 200);
        both.upgraded.await_old();
        both.watch(4.0, None);
        // Once more, with the totals of two earlier processes.
        both.upgraded.upgrade();
        let text = scrape(both.metrics, "/metrics", ACCEPT_TEXT, false).text().to_owned();
        assert_eq!(sum(&text, counters[0]), Some(4.0), "{keys}\n{text}");
    });
}

#[test]
fn an_old_process_that_is_killed_leaves_its_counts() {
    for_each(|keys, counters| {
        let mut both = Both::start(keys, counters);
        both.look();
        both.upgraded.gateway.signal("KILL");
        both.upgraded.gateway.wait();
        both.ask();
        both.watch(3.0, Some(1.0));
    });
}

#[test]
fn a_tunnel_that_moves_is_counted_once() {
    let (upstream, metrics) = (Upstream::bind(), ReservedPort::new());
    let setup = tunnel::setup(&upstream).gateway(&format!("metrics: {{address: \"{}\"}}", metrics.addr()));
    let mut upgraded = UpgradedGateway::start(&setup);
    let mut tunnel = Tunnel::open(&upgraded.gateway, &upstream);
    let shows = |open: f64, total: f64, ended: Option<f64>| {
        let text = scrape(metrics.addr(), "/metrics", ACCEPT_TEXT, false).text().to_owned();
        let found = (sum(&text, "stillgate_tunnels_open"), sum(&text, "stillgate_tunnels_total"));
        found == (Some(open), Some(total)) && sum(&text, NATIVE[0]) == ended
    };
    eventually("the tunnel to be counted", || shows(1.0, 1.0, None));
    upgraded.upgrade();
    upgraded.await_old();
    tunnel.check();
    eventually("the tunnel to be that of the next process", || shows(1.0, 1.0, None));
    upgraded.upgrade();
    tunnel.check();
    eventually("the tunnel to be that of the one after it", || shows(1.0, 1.0, None));
    drop(tunnel);
    eventually("the tunnel to end", || shows(0.0, 1.0, Some(1.0)));
}

/// Where only the admin address exposes them.
#[test]
fn totals_go_on_without_an_address_of_their_own() {
    let upstream = Upstream::echo();
    let mut upgraded = UpgradedGateway::start(&Setup::to(upstream.addr()));
    let admin = upgraded.gateway.admin_addr();
    let counted = || {
        let text = Client::connect(admin).get("/metrics").body;
        sum(std::str::from_utf8(&text).expect("UTF-8"), "stillgate_http_requests_total")
    };
    let ask = |upgraded: &UpgradedGateway| assert_eq!(upgraded.gateway.client().get("/x").head.status(), 200);
    ask(&upgraded);
    ask(&upgraded);
    eventually("both to be counted", || counted() == Some(2.0));
    upgraded.upgrade();
    upgraded.await_old();
    eventually("the totals of the former process", || counted() == Some(2.0));
    ask(&upgraded);
    eventually("one more", || counted() == Some(3.0));
}
