//! Regressions: bugs that occurred in a running gateway.

use crate::shared::STILLGATE;
use std::fs;
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};
use stillgate_testkit::{Gateway, MessageError, Setup, Upstream, eventually, with_longer_times};

/// The upstream's next request is answered in pieces by the test.
fn by_hand(setup: impl FnOnce(Setup) -> Setup) -> (Upstream, Gateway) {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &setup(Setup::to(upstream.addr())));
    (upstream, gateway)
}

/// A response to HTTP/1.0 ends with the connection: cut by our own send timeout, it must not look complete.
#[test]
fn a_response_a_slow_client_did_not_take_ends_in_a_reset() {
    let (upstream, gateway) = by_hand(|setup| setup.gateway("timeouts: {send: 300ms}"));
    let mut client = gateway.client();
    client.send("GET / HTTP/1.0\r\n\r\n");
    let mut node = upstream.accept();
    node.expect_request();
    node.send("HTTP/1.1 200 OK\r\n\r\n");
    let piece = vec![b'x'; 1 << 20];
    // It sends until the gateway gives up on the client that does not read.
    eventually("the gateway to give up", || node.try_send(&piece).is_err());
    assert!(matches!(client.read_to_end(), Err(MessageError::Reset(_))), "cut, but not said so");
}

/// A node that answers early and leaves the request's body unread is not slow: its response is what counts.
#[test]
fn an_early_response_outlives_the_request_it_did_not_wait_for() {
    with_longer_times(Duration::from_millis(200), "a node that answers in time", |send| {
        let timeout = format!("timeout: {{connect: 600, send: {}, read: 600}}", send.as_secs_f64());
        let (upstream, gateway) = by_hand(|setup| setup.upstream(&timeout));
        let mut client = gateway.client();
        let begin = Instant::now();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n");
        let body = vec![b'x'; 1 << 16];
        let mut node = upstream.accept();
        node.read_head().expect("the request's head");
        // The request may have been given up by now.
        let mut is_wanted = node.try_send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n").is_ok();
        let held_up = begin.elapsed();
        for byte in b"0123456789" {
            // Three times as long as sending to the node may stall, in all; more of the body than all buffers hold is on its way
            // meanwhile.
            let next = begin.elapsed() + send * 3 / 10;
            while begin.elapsed() < next {
                client.stream().set_nonblocking(true).expect("a socket");
                let _ = (&mut client.stream()).write(&body);
                client.stream().set_nonblocking(false).expect("a socket");
            }
            is_wanted = is_wanted && node.try_send([*byte]).is_ok();
        }
        let answer = client.read_response("POST");
        if held_up >= send / 2 && !answer.as_ref().is_ok_and(|answer| answer.body == b"0123456789") {
            return false;
        }
        assert!(is_wanted, "{answer:?}");
        assert_eq!(answer.expect("a response").body, b"0123456789");
        true
    });
}

/// A client that first sends all of its body finds the answer that it did not wait for, however long the body is; one that never
/// ends does not keep its connection for ever.
#[test]
fn an_early_answer_outlives_a_long_body() {
    const BODY_BYTES: usize = 30 << 20;
    let gateway = Gateway::start(STILLGATE, &Setup::resources("routes: []\n"));
    let piece = vec![b'x'; 1 << 16];
    for head in [
        format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {BODY_BYTES}\r\n\r\n"),
        format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{BODY_BYTES:x}\r\n"),
    ] {
        let mut client = gateway.client();
        client.send(head);
        for _ in 0..BODY_BYTES / piece.len() {
            (&mut client.stream()).write_all(&piece).expect("the gateway reads on");
        }
        assert_eq!(client.read_response("POST").expect("a response").head.status(), 404);
    }
    let mut silent = gateway.client();
    silent.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n");
    silent.read_response("POST").expect("a response");
    assert!(silent.read_to_end().expect("the end of the connection").is_empty());
}

/// The counts of the access log are a request's own, not the connection's.
#[test]
fn logged_bytes_are_those_of_one_request() {
    let upstream = Upstream::echo();
    let fields = "access_log: {path: \"{dir}/access.log\", format: json, fields: [bytes_sent, bytes_received]}";
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()).gateway(fields));
    let request = "GET /?size=5 HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut client = gateway.client();
    client.send(request.repeat(3));
    for _ in 0..3 {
        client.expect_response("GET");
    }
    let log = || fs::read_to_string(gateway.dir().join("access.log")).unwrap_or_default();
    eventually("three lines", || log().lines().count() == 3);
    let log = log();
    let lines: Vec<&str> = log.lines().collect();
    assert!(lines[0].contains(&format!("\"bytes_received\":{}", request.len())), "{log}");
    assert_eq!((lines[0], lines[1]), (lines[1], lines[2]));
}

/// Empty lines are skipped, but they are not requests that would keep a connection.
#[test]
fn empty_lines_do_not_keep_a_connection() {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()).gateway("timeouts: {keepalive: 500ms}"));
    let mut client = gateway.client();
    eventually("the connection to be closed", || client.try_send("\r\n").is_err() || client.is_closed());
}

/// A node that was set aside is used again as soon as it answers, over whatever connection.
#[test]
fn a_node_with_a_pooled_connection_recovers() {
    let (mut flapping, steady) = (Upstream::echo(), Upstream::echo());
    let gateway = Gateway::start(STILLGATE, &Setup::to_tiers(&[flapping.addr(), steady.addr()]));
    let mut client = gateway.client();
    client.get("/");
    flapping.stop();
    eventually("the second tier to serve", || {
        client.get("/");
        steady.requests() > 0
    });
    flapping.start_echo();
    eventually("the first tier to serve all again", || {
        let before = steady.requests();
        for _ in 0..20 {
            client.get("/");
        }
        steady.requests() == before
    });
}

/// Half a list of routes is valid YAML: a file is read when its writer closes it.
#[test]
fn a_file_being_written_is_not_read() {
    let upstream = Upstream::echo();
    let setup = Setup::to(upstream.addr());
    let gateway = Gateway::start(STILLGATE, &setup);
    let text = fs::read_to_string(gateway.config_path()).expect("the config");
    let at = text.find("routes:").expect("routes");
    let mut file = fs::File::create(gateway.config_path()).expect("the config");
    file.write_all(&text.as_bytes()[..at]).expect("write");
    // Longer than a change takes to be noticed and read.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(500) {
        assert_eq!(gateway.get("/").head.status(), 200, "half a file is served");
    }
    assert_eq!(gateway.status()["config"]["generation"], 1);
    file.write_all(&text.as_bytes()[at..]).expect("write");
    file.write_all(b"# changed\n").expect("write");
    drop(file);
    eventually("the whole file to be read", || gateway.status()["config"]["generation"] == 2);
}

/// Opening a FIFO waits for its other end; a reload that waited would be the last one.
#[test]
fn a_config_that_became_a_fifo_is_an_error() {
    let upstream = Upstream::echo();
    let setup = Setup::to(upstream.addr());
    let gateway = Gateway::start(STILLGATE, &setup);
    let fifo = gateway.dir().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo of coreutils").success());
    fs::rename(&fifo, gateway.config_path()).expect("rename");
    eventually("the error to be told", || !gateway.status()["config"]["last_error"].is_null());
    gateway.reload(&setup.gateway("server_header: false"));
    assert!(gateway.status()["config"]["last_error"].is_null());
}

/// If the target has a host of its own, the `Host` line is ignored (RFC 9112 section 3.2.2): a route that read it would be
/// accessible without the client certificate that its host requires.
#[test]
fn a_host_line_beside_a_target_with_a_host_chooses_no_route() {
    let upstream = Upstream::echo();
    let node = upstream.addr();
    let gateway = Gateway::start(
        STILLGATE,
        &Setup::resources(format!(
            "upstreams: [{{id: u, nodes: {{\"{node}\": 1}}}}]\nroutes:\n  \
             - {{id: vars, uri: /v, upstream_id: u, vars: [[http_host, \"==\", sec.test]]}}\n  \
             - {{id: expression, expression: 'http.path == \"/e\" && http.headers.host == \"sec.test\"', upstream_id: u}}\n"
        )),
    );
    for path in ["/v", "/e"] {
        for (target, host, status) in [
            (path.to_owned(), "sec.test", 200),
            (format!("http://sec.test{path}"), "open.test", 200),
            (format!("http://open.test{path}"), "sec.test", 404),
        ] {
            let mut client = gateway.client();
            client.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            assert_eq!(client.expect_response("GET").head.status(), status, "{target} beside {host}");
        }
    }
}
