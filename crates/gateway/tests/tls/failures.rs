//! Handshakes that fail: counted by reason, and logged now and then.

use crate::shared::STILLGATE;
use crate::shared::authority;
use crate::shared::authority::Authority;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Instant;
use stillgate_testkit::{
    ACCEPT_TEXT, Gateway, Nginx, PATIENCE, ReservedPort, Setup, Upstream, eventually, run_tool, scrape,
};

const REASONS: [&str; 9] = [
    "not_tls",
    "unknown_name",
    "incompatible",
    "no_certificate",
    "bad_certificate",
    "alert",
    "closed",
    "timeout",
    "other",
];

struct World {
    roots: Authority,
    strangers: Authority,
    metrics: ReservedPort,
    gateway: Gateway,
    _upstream: Upstream,
}

impl World {
    fn start(timeouts: &str) -> World {
        let (roots, strangers, metrics) = (Authority::new(), Authority::new(), ReservedPort::new());
        roots.issue("shop", &["shop.example"]);
        roots.issue("sec", &["sec.example"]);
        roots.issue("alice", &["alice"]);
        strangers.issue("mallory", &["mallory"]);
        let upstream = Upstream::echo();
        let dir = roots.dir().display();
        let setup = Setup::resources(format!(
            "ssls:\n- {{id: shop, cert: \"{dir}/shop.pem\", key: \"{dir}/shop.key\", snis: [shop.example], ssl_protocols: [TLSv1.3]}}\n\
             - {{id: sec, cert: \"{dir}/sec.pem\", key: \"{dir}/sec.key\", snis: [sec.example], client: {{ca: \"{dir}/ca.pem\"}}}}\n\
             upstreams: [{{id: u, nodes: {{\"{}\": 1}}}}]\nroutes: [{{id: all, uri: /*, upstream_id: u}}]\n",
            upstream.addr()
        ))
        .listener("tls: true")
        .gateway(&format!("{timeouts}\nmetrics: {{address: \"{}\"}}", metrics.addr()));
        let gateway = Gateway::start(STILLGATE, &setup);
        World { roots, strangers, metrics, gateway, _upstream: upstream }
    }

    fn value(&self, series: &str) -> Option<u64> {
        let scraped = scrape(self.metrics.addr(), "/metrics", ACCEPT_TEXT, false);
        let mut lines = scraped.text().lines();
        lines.find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
    }

    fn failed(&self, reason: &str) -> Option<u64> {
        self.value(&format!("stillgate_tls_handshakes_failed_total{{reason=\"{reason}\"}}"))
    }

    /// Causes a failure and waits until it, and no other, is counted.
    #[track_caller]
    fn check(&self, reason: &str, bring_about: impl FnOnce(TcpStream)) {
        let before = REASONS.map(|reason| self.failed(reason));
        bring_about(TcpStream::connect(self.gateway.addr()).expect("connect"));
        let expected: Vec<Option<u64>> = REASONS
            .into_iter()
            .zip(before)
            .map(|(one, count)| count.map(|count| count + u64::from(one == reason)))
            .collect();
        eventually(&format!("one more of {reason}"), || REASONS.map(|reason| self.failed(reason)).to_vec() == expected);
    }

    /// Goes through a handshake that fails on one side or the other.
    fn fail(&self, connect: impl FnOnce() -> authority::TlsClient) {
        let mut client = connect();
        // TLS decides where it fails, and how that is reported.
        let _ = client.write_all(b"GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n");
        assert!(!matches!(client.read(&mut [0; 99]), Ok(1..)));
    }
}

#[test]
fn each_is_counted_by_its_reason() {
    let world = World::start("");
    let (addr, roots, strangers) = (world.gateway.addr(), &world.roots, &world.strangers);
    eventually("the families", || REASONS.iter().all(|reason| world.failed(reason) == Some(0)));
    let to_end = |mut stream: TcpStream, bytes: &[u8]| {
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.write_all(bytes).expect("send");
        // A reset is an end as well.
        let _ = stream.read_to_end(&mut Vec::new());
    };
    world.check("not_tls", |stream| to_end(stream, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    world.check("not_tls", |stream| to_end(stream, b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09"));
    world.check("unknown_name", |_| world.fail(|| roots.connect(addr, "unknown.example", &[])));
    world.check("unknown_name", |_| world.fail(|| roots.connect_without_name(addr, "shop.example", &[])));
    world.check("incompatible", |_| {
        let at = format!("shop.example:{}:127.0.0.1", addr.port());
        let url = format!("https://shop.example:{}/", addr.port());
        let arguments = ["--silent", "--max-time", "300", "--insecure", "--tls-max", "1.2", "--resolve", &at, &url];
        assert_eq!(run_tool("curl", "curl", &arguments).status.code(), Some(35));
    });
    world.check("no_certificate", |_| world.fail(|| roots.connect(addr, "sec.example", &[])));
    world.check("bad_certificate", |_| {
        world.fail(|| roots.connect_as(addr, "sec.example", &[], (strangers, "mallory")));
    });
    world.check("alert", |_| world.fail(|| strangers.connect(addr, "shop.example", &[])));
    world.check("closed", |mut stream| {
        stream.write_all(&[22, 3, 1, 2, 0, 1]).expect("send");
        stream.shutdown(Shutdown::Write).expect("end");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    // A connection that is closed before its first byte is not a failed handshake.
    let before = REASONS.map(|reason| world.failed(reason));
    drop(TcpStream::connect(addr).expect("connect"));
    assert_eq!(world.value("stillgate_tls_handshakes_total"), Some(0));
    for _ in 0..2 {
        let mut client = roots.connect_as(addr, "sec.example", &[], (roots, "alice"));
        client.write_all(b"GET / HTTP/1.1\r\nHost: sec.example\r\n\r\n").expect("send");
        client.read_exact(&mut [0; 12]).expect("a response");
    }
    eventually("two that were done", || world.value("stillgate_tls_handshakes_total") == Some(2));
    assert_eq!(REASONS.map(|reason| world.failed(reason)), before);
    let errors = world.gateway.status()["connections"]["tls_handshake_errors"].as_u64();
    assert_eq!(errors, before.into_iter().sum());
}

/// The others have all the time that they may need on a busy machine; this one needs a short one.
#[test]
fn one_that_takes_too_long_is_counted() {
    let world = World::start("timeouts: {head: 1s}");
    // A connection that is closed before its first byte, since the test stood still, is not counted.
    eventually("a handshake that takes too long", || {
        let mut stream = TcpStream::connect(world.gateway.addr()).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let _ = stream.write_all(&[22, 3, 1, 2, 0, 1]);
        let _ = stream.read_to_end(&mut Vec::new());
        world.failed("timeout") > Some(0)
    });
    let is_other = |reason: &&str| *reason != "timeout" && world.failed(reason) != Some(0);
    let others: Vec<&str> = REASONS.into_iter().filter(is_other).collect();
    assert!(others.is_empty(), "{others:?}");
}

/// The first is logged at once, the others together after a while: clients must not be able to fill the log.
#[test]
fn one_of_many_is_reported_in_the_log() {
    let (world, began) = (World::start(""), Instant::now());
    let lines = || world.gateway.log().matches("TLS handshakes with clients failed").count();
    world.fail(|| world.roots.connect(world.gateway.addr(), "sec.example", &[]));
    eventually("a line", || lines() == 1);
    let log = world.gateway.log();
    let line = log.lines().find(|line| line.contains("TLS handshakes with clients failed")).expect("the line");
    let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
    assert_eq!((&line["server_name"], &line["handshakes"]), (&"sec.example".into(), &1.into()), "{line}");
    assert!(line["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{line}");
    let message = line["message"].as_str().unwrap_or_default();
    assert!(message.contains("it showed no certificate; it needs one that"), "{line}");
    for _ in 0..50 {
        world.fail(|| world.roots.connect(world.gateway.addr(), "unknown.example", &[]));
    }
    eventually("all of them to be counted", || world.failed("unknown_name") == Some(50));
    let most = 2 + began.elapsed().as_secs() as usize / 10;
    assert!(lines() <= most, "{}", world.gateway.log());
}

/// Refused before it is verified, which takes the longer the more certificates there are.
#[test]
fn a_chain_that_is_too_long_is_refused_whoever_sends_it() {
    let authority = Authority::new();
    let read = |name: &str| std::fs::read_to_string(authority.file(name)).expect("read");
    for name in ["sec", "alice", "node"] {
        authority.issue(name, &[&format!("{name}.example")]);
    }
    // The authority itself, again and again: nothing that takes long.
    for (name, count) in [("alice", 2), ("alice", 3), ("node", 7), ("node", 8)] {
        let chained = format!("{name}{count}");
        authority.write(&format!("{chained}.pem"), read(&format!("{name}.pem")) + &read("ca.pem").repeat(count));
        authority.write(&format!("{chained}.key"), read(&format!("{name}.key")));
    }
    let node = |name: &str| {
        let [certificate, key] = ["pem", "key"].map(|extension| authority.path(&format!("{name}.{extension}")));
        Nginx::start(&format!(
            "server {{ listen 127.0.0.1:{{port}} ssl; ssl_certificate {certificate}; ssl_certificate_key {key};\n\
             location / {{ return 200 ok; }} }}"
        ))
    };
    let (short, long) = (node("node7"), node("node8"));
    let upstream = |id: &str, node: &Nginx| {
        format!(
            "{{id: {id}, scheme: https, retries: 0, nodes: {{\"{}\": 1}}, tls: {{ca: \"{}\", sni: node.example}}}}",
            node.addr(),
            authority.path("ca.pem")
        )
    };
    let dir = authority.dir().display();
    let setup = Setup::resources(format!(
        "ssls: [{{id: sec, cert: \"{dir}/sec.pem\", key: \"{dir}/sec.key\", snis: [sec.example], client: {{ca: \"{dir}/ca.pem\"}}}}]\n\
         upstreams: [{}, {}]\nroutes: [{{id: short, uri: /short, upstream_id: short}}, {{id: long, uri: /long, upstream_id: long}}]\n",
        upstream("short", &short),
        upstream("long", &long)
    ))
    .listener("tls: true");
    let gateway = Gateway::start(STILLGATE, &setup);
    let status = |name: &str, path: &str| {
        let mut client = authority.connect_as(gateway.addr(), "sec.example", &[], (&authority, name));
        write!(client, "GET {path} HTTP/1.1\r\nHost: sec.example\r\nConnection: close\r\n\r\n").ok()?;
        let mut head = [0; 12];
        client.read_exact(&mut head).ok()?;
        Some(String::from_utf8_lossy(&head[9..]).into_owned())
    };
    assert_eq!(status("alice2", "/short").as_deref(), Some("200"));
    assert_eq!(status("alice2", "/long").as_deref(), Some("502"));
    eventually("the node's chain in the log", || {
        gateway.log().contains("it sent 8 certificates after its own, but at most 7 are looked at; have the node send")
    });
    assert_eq!(status("alice3", "/short"), None);
    eventually("the client's chain in the log", || {
        gateway.log().contains("it sent 3 certificates after its own, but at most 2 are looked at; it is to send")
    });
}
