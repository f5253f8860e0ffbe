//! `kill -9` of the gateway under load, again and again, with an exporter of its own process: no total steps back, and every
//! exposition is whole.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::shared::STILLGATE;
use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use stillgate_testkit::{
    ACCEPT_OPENMETRICS, ACCEPT_TEXT, BufferedSocket, Client, Process, ReservedPort, Rounds, Upstream, eventually,
    scrape,
};

/// Number of kills; `STILLGATE_KILLS` overrides it.
const KILLS: usize = 8;
/// Connections, each with one request at a time.
const CLIENTS: usize = 3;
/// The shortest time that the gateway serves between two kills.
const LIFE: Duration = Duration::from_millis(150);

fn start(words: &[&str], addr: SocketAddr, log: &Path) -> Process {
    let mut process = Process::spawn("stillgate", Command::new(STILLGATE).args(words), log);
    eventually("the process to listen", || {
        assert!(process.ended().is_none(), "it ended: {}", process.log());
        TcpStream::connect(addr).is_ok()
    });
    process
}

/// Values of all samples that only grow; panics where a line is not one of an exposition.
fn totals(text: &str) -> HashMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let samples = lines.map(|line| {
        let (key, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
        // OpenMetrics writes bounds with a point.
        (key.replace(".0\"}", "\"}"), value.parse::<f64>().unwrap_or_else(|_| panic!("no value: {line}")))
    });
    samples
        .filter(|(key, _)| {
            let name = key.split('{').next().unwrap();
            name.starts_with("stillgate_http_") && ["_total", "_bucket", "_count"].iter().any(|end| name.ends_with(end))
        })
        .collect()
}

fn sum_of(totals: &HashMap<String, f64>, name: &str) -> f64 {
    totals.iter().filter(|(key, _)| key.starts_with(name)).map(|(_, value)| value).sum()
}

#[test]
fn kill_9_loses_no_total() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (shared, logs) = (dir.path().join("metrics"), dir.path());
    let upstream = Upstream::echo();
    let (listen, expose) = (ReservedPort::new(), ReservedPort::new());
    let (listen, expose) = (listen.addr(), expose.addr());
    let config = dir.path().join("stillgate.yaml");
    let yaml = format!(
        "gateway:\n  workers: 2\n  listeners: [{{address: \"{listen}\"}}]\n  metrics: {{shared: \"{}\"}}\n\
         upstreams: [{{id: u, nodes: {{\"{}\": 1}}}}]\nroutes: [{{id: all, uri: /*, upstream_id: u}}]\n",
        shared.display(),
        upstream.addr()
    );
    std::fs::write(&config, yaml).unwrap();
    let gateway_words = ["run", "--config", config.to_str().unwrap()];
    let exporter_words = ["exporter", "--listen", &expose.to_string(), "--metrics-dir", shared.to_str().unwrap()];

    let mut gateway = start(&gateway_words, listen, &logs.join("gateway"));
    let exporter = start(&exporter_words, expose, &logs.join("exporter"));
    let kills = std::env::var("STILLGATE_KILLS").map_or(KILLS, |kills| kills.parse().expect("a number"));
    let rounds = Rounds::default();
    std::thread::scope(|scope| {
        let _end = rounds.until_dropped();
        for _ in 0..CLIENTS {
            scope.spawn(|| load(listen, &rounds));
        }
        let mut before: HashMap<String, f64> = HashMap::new();
        let mut look = |accept| {
            let scraped = scrape(expose, "/metrics", accept, true);
            assert_eq!(scraped.status, 200, "{}", scraped.text());
            assert!(accept == ACCEPT_TEXT || scraped.text().ends_with("# EOF\n"));
            let now = totals(scraped.text());
            for (key, value) in &before {
                let now = now.get(key).copied();
                assert!(now >= Some(*value), "{key} steps back from {value} to {now:?}; exporter: {}", exporter.log());
            }
            before = now;
            sum_of(&before, "stillgate_http_requests_total")
        };
        for kill in 0..kills {
            let begun = rounds.done();
            let until = Instant::now() + LIFE;
            eventually("requests to be answered", || {
                look(ACCEPT_TEXT);
                Instant::now() >= until && rounds.done() > begun + 20
            });
            gateway.signal("KILL");
            gateway.wait();
            look(ACCEPT_OPENMETRICS);
            gateway = start(&gateway_words, listen, &logs.join("gateway"));
            look(if kill % 2 == 0 { ACCEPT_TEXT } else { ACCEPT_OPENMETRICS });
        }
        rounds.end();
        let told = look(ACCEPT_TEXT);
        let answered = rounds.done() as f64;
        println!("{kills} kills, {answered} requests answered, {told} reported");
        // A request is recorded once its response is out: a kill may come in between, and so may the last look.
        let in_between = ((kills + 1) * CLIENTS) as f64;
        assert!(told + in_between >= answered, "{answered} requests were answered, {told} are reported");
    });
    // A thread with low priority folds them.
    eventually("segments of the dead to be folded", || std::fs::read_dir(&shared).unwrap().count() < 20);
}

/// Sends requests until the end; a broken connection is replaced by a new one.
fn load(addr: SocketAddr, rounds: &Rounds) {
    while rounds.go_on() {
        let Ok(stream) = TcpStream::connect(addr) else {
            std::thread::yield_now();
            continue;
        };
        let mut client = Client::from_connection(BufferedSocket::new(stream));
        while rounds.go_on() && client.try_request("GET", "/x", b"").is_ok_and(|answer| answer.head.status() == 200) {
            rounds.count();
        }
    }
}
