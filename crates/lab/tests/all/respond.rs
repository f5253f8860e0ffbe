//! `stillgate-lab respond` as its clients see it.

use crate::processes::{RUN_PATIENCE, Responder, lab, run};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};
use stillgate_testkit::eventually_within;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Sends `pieces` one by one and returns all output until the responder ends the connection; the client ends its side.
fn exchange(responder: &Responder, pieces: &[&str]) -> String {
    let mut stream = responder.connect();
    stream.set_nodelay(true).unwrap();
    for piece in pieces {
        stream.write_all(piece.as_bytes()).unwrap();
    }
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn ok(body: &str, field: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n{field}\r\n{body}")
}

#[test]
fn each_request_gets_its_answer() {
    let responder = Responder::start(&["--body-bytes", "5"]);
    let check = |request: &str, answer: &str| {
        assert_eq!(exchange(&responder, &[request]), answer, "{request}");
        let bytes: Vec<&str> = request.split_inclusive(|_| true).collect();
        assert_eq!(exchange(&responder, &bytes), answer, "byte by byte: {request}");
        assert_eq!(exchange(&responder, &[&request.repeat(50)]), answer.repeat(50), "pipelined: {request}");
    };
    let kept = ok("still", "");
    check(GET, &kept);
    check("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", &ok("", ""));
    check("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\n\r\nGET / H", &kept);
    check(
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\nA: b\r\n\r\n",
        &kept,
    );
    check("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", &ok("still", "Connection: keep-alive\r\n"));
    let mixed = [GET, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx", GET].concat();
    check(&mixed, &kept.repeat(3));
}

#[test]
fn the_last_request_of_a_connection_closes_it() {
    let responder = Responder::start(&["--body-bytes", "5"]);
    let closed = ok("still", "Connection: close\r\n");
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    assert_eq!(exchange(&responder, &[request, GET]), closed);
    assert_eq!(exchange(&responder, &["GET / HTTP/1.0\r\n\r\n"]), closed);
}

#[test]
fn what_is_not_http_is_refused_and_the_connection_closed() {
    let responder = Responder::start(&["--body-bytes", "5"]);
    let refused = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    for request in [
        "\x16\x03\x01\x02\x00\x01\x00",
        "GET /\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n",
        "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
    ] {
        assert_eq!(exchange(&responder, &[request]), refused, "{request:?}");
        assert_eq!(exchange(&responder, &[GET, request, GET]), ok("still", "") + refused, "{request:?}");
    }
    let long = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(100_000));
    assert!(exchange(&responder, &[&long]).starts_with("HTTP/1.1 400"));
}

#[test]
fn a_client_that_waits_to_send_a_body_gets_100_continue() {
    let responder = Responder::start(&["--body-bytes", "5"]);
    let mut stream = responder.connect();
    stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "HTTP/1.1 100 Continue");
    stream.write_all(b"abc").unwrap();
    assert_eq!(lines.nth(1).unwrap().unwrap(), "HTTP/1.1 200 OK");
}

#[test]
fn a_client_that_does_not_read_gets_everything_later() {
    const REQUESTS: usize = 400;
    const BODY: usize = 100_000;
    let responder = Responder::start(&["--body-bytes", &BODY.to_string()]);
    let mut stream = responder.connect();
    stream.write_all(GET.repeat(REQUESTS).as_bytes()).unwrap();
    // Another client is served meanwhile, which shows that the first one blocks nothing.
    let mut other = responder.connect();
    other.write_all(GET.as_bytes()).unwrap();
    let mut some = [0; 12];
    other.read_exact(&mut some).unwrap();
    assert_eq!(&some, b"HTTP/1.1 200");
    let rss_kib_before = responder.process.rss() / 1024;
    assert!(
        rss_kib_before < 20_000,
        "{rss_kib_before} KiB: answers must not be kept for a client that does not read them"
    );
    stream.shutdown(Shutdown::Write).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {BODY}\r\n\r\n").len();
    assert_eq!(all.len(), REQUESTS * (head + BODY));
}

#[test]
fn delayed_answers_keep_their_delay_and_order() {
    let responder = Responder::start(&["--body-bytes", "5", "--latency", "uniform:20ms,60ms"]);
    let begun = Instant::now();
    let head = "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n";
    let requests: Vec<&str> = (0..40).map(|n| if n % 2 == 0 { GET } else { head }).collect();
    let answers = exchange(&responder, &[&requests.concat()]);
    assert!(begun.elapsed() >= Duration::from_millis(20));
    assert_eq!(answers, [ok("still", ""), ok("", "")].concat().repeat(20));
    let log = responder.end();
    let drawn = log.lines().find(|line| line.starts_with("drawn us: p50=")).unwrap();
    let kept = log.lines().find(|line| line.starts_with("kept us: p50=")).unwrap();
    let max = |line: &str| line.rsplit_once("max=").unwrap().1.parse::<f64>().unwrap();
    assert!(log.contains("answered 40 requests\n"));
    assert!((20_000.0..=60_100.0).contains(&max(drawn)) && max(kept) >= max(drawn) * 0.998, "{log}");
}

#[test]
fn more_connections_than_allowed_wait_for_their_turn() {
    let responder = Responder::start(&["--connections-max", "2", "--body-bytes", "5"]);
    let answered = |stream: &mut TcpStream| {
        let mut some = [0; 12];
        stream.read_exact(&mut some).map(|()| some == *b"HTTP/1.1 200").unwrap_or(false)
    };
    let mut streams: Vec<TcpStream> = (0..4).map(|_| responder.connect()).collect();
    for stream in &mut streams {
        stream.write_all(GET.as_bytes()).unwrap();
    }
    let mut late = streams.split_off(2);
    assert!(streams.iter_mut().all(answered));
    late[0].set_nonblocking(true).unwrap();
    assert!(late[0].read(&mut [0; 1]).is_err());
    late[0].set_nonblocking(false).unwrap();
    drop(streams);
    assert!(late.iter_mut().all(answered));
}

#[test]
fn it_ends_when_asked_and_when_its_starter_is_gone() {
    for signal in ["TERM", "INT"] {
        let mut responder = Responder::start(&[]);
        responder.process.signal(signal);
        assert!(responder.process.wait().success(), "{signal}");
        assert!(responder.process.log().ends_with("answered 0 requests\n"));
    }
    let mut child =
        lab(&["respond", "--until-stdin-closes"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("listening on 127.0.0.1:"));
    // Input on a terminal does not end it.
    child.stdin.as_mut().unwrap().write_all(b"x\n").unwrap();
    assert!(child.try_wait().unwrap().is_none());
    drop(child.stdin.take());
    eventually_within(RUN_PATIENCE, "the responder's end", || child.try_wait().unwrap().is_some());
}

#[test]
fn wrong_usage_is_refused_in_words() {
    let taken = Responder::start(&[]);
    let address = taken.address.to_string();
    let too_many = "999999999";
    for (arguments, word) in [
        (&["--latency", "soon"][..], "write none, fixed:2ms"),
        (&["--body-bytes", "1G"], "whole number"),
        (&["--body-bytes", "100M"], "at most"),
        (&["--cpu", "4095"], "--cpu 4095"),
        (&["--cpu", "99999999"], "--cpu 99999999"),
        (&["--connections-max", "0"], "at least 1"),
        (&["--connections-max", too_many], "file descriptors"),
        (&["--address", "localhost"], "invalid socket address"),
        (&["--address", &address], "cannot listen"),
        (&["--spin"], "unexpected argument"),
        (&["--until-stdin-closes"], "must be a pipe"),
    ] {
        let ended = run(&["respond"], arguments);
        assert!(ended.code == Some(2) && ended.stderr.contains(word), "{arguments:?}: {}", ended.stderr);
    }
    drop(taken);
}

#[test]
fn thousands_of_connections_are_served() {
    const CONNECTIONS: usize = 3000;
    let responder = Responder::start(&["--body-bytes", "5"]);
    let mut streams: Vec<TcpStream> = (0..CONNECTIONS).map(|_| responder.connect()).collect();
    for round in 0..2 {
        for stream in &mut streams {
            stream.write_all(GET.as_bytes()).unwrap();
        }
        for stream in &mut streams {
            let mut answer = vec![0; ok("still", "").len()];
            stream.read_exact(&mut answer).unwrap();
            assert!(answer.ends_with(b"still"), "round {round}");
        }
    }
    drop(streams);
    eventually_within(RUN_PATIENCE, "all descriptors are given back", || responder.process.fd_count() < 20);
}
