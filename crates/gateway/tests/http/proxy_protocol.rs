//! Listeners behind a balancer that passes the client's address in the PROXY protocol.

use crate::shared::STILLGATE;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use stillgate_testkit::http2::{Http2, kind};
use stillgate_testkit::{
    Client, Delivery, Gateway, Haproxy, PATIENCE, Setup, Upstream, eventually, run_tool, with_longer_times,
};

const V1: &[u8] = b"PROXY TCP4 192.0.2.1 198.51.100.2 40000 8443\r\n";
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\xc6\x33\x64\x02\x9c\x40\x20\xfb";
const V2_LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
/// The checksum of [`V2`] with a TLV for it.
const SUM: [u8; 4] = [0x49, 0x9, 0xec, 0xcd];
/// The beginning of one that is longer than any test sends.
const V2_LONG: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\x0f\0";
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Answers the client's address and the port that it connected to, as the gateway reports them.
fn witness() -> Upstream {
    Upstream::serve(|connection| {
        while let Ok(request) = connection.read_request() {
            let field = |name| request.head.get(name).unwrap_or("none");
            let body = format!("{} {}", field("x-forwarded-for"), field("x-forwarded-port"));
            let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            if connection.try_send(response).is_err() {
                return;
            }
        }
    })
}

fn setup(upstream: &Upstream) -> Setup {
    Setup::to(upstream.addr()).listener("proxy_protocol: true")
}

fn counted(gateway: &Gateway) -> u64 {
    gateway.status()["connections"]["proxy_protocol_errors"].as_u64().expect("a number")
}

#[track_caller]
fn answer(client: &mut Client) -> String {
    String::from_utf8(client.expect_response("GET").body).expect("text")
}

#[test]
fn the_client_is_whom_the_header_names() {
    let upstream = witness();
    let gateway = Gateway::start(STILLGATE, &setup(&upstream));
    let own = format!("127.0.0.1 {}", gateway.addr().port());
    let with_tlv = [&V2[..15], b"\x13", &V2[16..], b"\x04\0\x04\r\n\r\n"].concat();
    let six = "PROXY TCP6 2001:db8::1 2001:db8::2 40000 443\r\n";
    let mapped = "PROXY TCP6 ::ffff:192.0.2.7 ::ffff:192.0.2.8 40000 443\r\n";
    for (header, expected) in [
        (V1, "192.0.2.1 8443"),
        (V2, "192.0.2.1 8443"),
        (&with_tlv, "192.0.2.1 8443"),
        (six.as_bytes(), "2001:db8::1 443"),
        (mapped.as_bytes(), "192.0.2.7 443"),
        (b"PROXY UNKNOWN\r\n", &own),
        (b"PROXY UNKNOWN and whatever else\r\n", &own),
        (V2_LOCAL, &own),
    ] {
        for how in Delivery::ALL {
            let mut client = gateway.client();
            client.deliver(&[header, GET].concat(), how);
            assert_eq!(answer(&mut client), expected, "{how:?} {}", header.escape_ascii());
            // Once a connection is enough.
            client.send(GET);
            assert_eq!(answer(&mut client), expected);
        }
    }
    assert_eq!(counted(&gateway), 0);
}

/// Where the balancer has ended TLS, by its word for it, the scheme is that of its client.
#[test]
fn the_scheme_is_that_of_the_balancers_client() {
    let upstream = Upstream::serve(|connection| {
        while let Ok(request) = connection.read_request() {
            let body = request.head.get("x-forwarded-proto").unwrap_or("none").to_owned();
            let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            if connection.try_send(response).is_err() {
                return;
            }
        }
    });
    let node = upstream.addr();
    let resources = format!(
        "upstreams: [{{id: u, nodes: {{\"{node}\": 1}}}}]\nroutes:\n  \
         - {{id: secure, uri: /*, vars: [[scheme, ==, https]], upstream_id: u}}\n  \
         - {{id: plain, uri: /plain, vars: [[scheme, ==, http]], upstream_id: u}}\n"
    );
    let gateway = Gateway::start(STILLGATE, &Setup::resources(resources).listener("proxy_protocol: true"));
    let with = |tlvs: &[u8]| [&V2[..15], &[12 + tlvs.len() as u8], &V2[16..], tlvs].concat();
    let tls = |client: u8| with(&[0x20, 0, 5, client, 0, 0, 0, 1]);
    for (header, expected) in [
        (V1.to_vec(), "http"),
        (V2.to_vec(), "http"),
        (tls(0x01), "https"),
        (tls(0x07), "https"),
        // A certificate in a session, and no TLS: the one bit counts.
        (tls(0x06), "http"),
        (tls(0x00), "http"),
        (with(b"\x01\0\x02h2"), "http"),
    ] {
        let mut client = gateway.client();
        let path = if expected == "https" { "/" } else { "/plain" };
        let get = format!("GET {path} HTTP/1.1\r\nHost: a\r\nX-Forwarded-Proto: gopher\r\n\r\n");
        client.send(header);
        for _ in 0..2 {
            client.send(&get);
            assert_eq!(answer(&mut client), expected);
        }
    }
    // What is over HTTP/2 as well.
    let mut client = Http2::over(std::net::TcpStream::connect(gateway.addr()).expect("connect"));
    client.send_bytes(&tls(0x01));
    client.send_bytes(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    client.send(kind::SETTINGS, 0, 0, &[]);
    client.get(1, "/");
    assert_eq!(client.finish(1).1, b"https");
}

#[test]
fn a_wrong_checksum_closes_the_connection() {
    let upstream = witness();
    let gateway = Gateway::start(STILLGATE, &setup(&upstream));
    // The sum is that of RFC 3720 over the header with zeros in its place.
    for (sum, is_good) in [(&SUM, true), (&[0; 4], false)] {
        let mut client = gateway.client();
        client.send([&V2[..15], b"\x13", &V2[16..], b"\x03\0\x04", &sum[..], GET].concat());
        match is_good {
            true => assert_eq!(answer(&mut client), "192.0.2.1 8443"),
            false => client.expect_close(),
        }
    }
    eventually("the refusal to be counted", || counted(&gateway) == 1);
    eventually("a line in the log", || gateway.log().contains("the checksum (CRC-32C) is wrong"));
}

#[test]
fn a_header_and_its_request_may_be_apart() {
    let upstream = witness();
    let mut gateway = Gateway::start(STILLGATE, &setup(&upstream));
    for header in [V1, V2] {
        for cut in [1, 5, 12, 15, 16, header.len() - 1, header.len()] {
            let mut client = gateway.client();
            client.send(&header[..cut]);
            // The gateway has seen the first part when a later connection was served.
            let mut other = gateway.client();
            other.send([V2_LOCAL, GET].concat());
            answer(&mut other);
            client.send(&header[cut..]);
            client.send(GET);
            assert_eq!(answer(&mut client), "192.0.2.1 8443", "cut at {cut}");
        }
    }
    gateway.assert_healthy();
}

#[test]
fn routes_and_trust_go_by_the_header() {
    let upstream = witness();
    let resources = format!(
        "upstreams: [{{id: node, type: roundrobin, nodes: {{\"{}\": 1}}}}]\nroutes:\n  \
         - {{id: inside, expression: 'net.src.ip in 192.0.2.0/24', upstream_id: node}}\n  \
         - {{id: named, expression: 'net.src.ip in 203.0.113.0/24', upstream_id: node}}\n",
        upstream.addr()
    );
    let setup = Setup::resources(resources).listener("proxy_protocol: true");
    let gateway = Gateway::start(STILLGATE, &setup.gateway("trusted_proxies: [198.51.100.0/24]"));
    let named = b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.5\r\n\r\n";
    for (source, request, status) in [
        ("192.0.2.1", GET, 200),
        ("192.0.3.1", GET, 404),
        // 127.0.0.1, the balancer, does not make any other address trusted.
        ("192.0.3.1", named, 404),
        ("198.51.100.9", named, 200),
    ] {
        let mut client = gateway.client();
        client.send([format!("PROXY TCP4 {source} 192.0.2.2 1 2\r\n").as_bytes(), request].concat());
        assert_eq!(client.expect_response("GET").head.status(), status, "{source}");
    }
}

#[test]
fn what_is_not_a_header_is_closed_without_an_answer() {
    let upstream = witness();
    let mut gateway = Gateway::start(STILLGATE, &setup(&upstream));
    let too_long = ["PROXY UNKNOWN ", &"x".repeat(100)].concat();
    let bad: [&[u8]; 9] = [
        GET,
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 040000 8443\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 40000 8443\nGET / HTTP/1.1\r\n",
        b"PROXY TCP9 192.0.2.1 198.51.100.2 40000 8443\r\n",
        too_long.as_bytes(),
        b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\x0c",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x0c",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff",
    ];
    for (index, header) in bad.iter().enumerate() {
        let mut client = gateway.client();
        client.send(header);
        client.expect_close();
        eventually("the refusal to be counted", || counted(&gateway) == index as u64 + 1);
    }
    eventually("a line in the log", || gateway.log().contains("no good PROXY protocol header"));
    assert!(gateway.log().contains("\"peer\":\"127.0.0.1:"), "{}", gateway.log());
    assert_eq!(upstream.connections(), 0);
    gateway.assert_healthy();
}

/// A probe that only checks whether we listen sends nothing.
#[test]
fn a_connection_without_a_byte_is_not_an_error() {
    let upstream = witness();
    let gateway = Gateway::start(STILLGATE, &setup(&upstream));
    for _ in 0..5 {
        gateway.client().half_close();
        gateway.client().into_connection().reset();
    }
    let mut client = gateway.client();
    client.send(&V1[..20]);
    client.half_close();
    client.expect_close();
    eventually("the connections to be closed", || gateway.status()["connections"]["open"] == 0);
    assert_eq!(counted(&gateway), 1);
}

#[test]
fn a_header_that_does_not_come_in_time_is_not_waited_for() {
    let upstream = witness();
    let gateway = Gateway::start(STILLGATE, &setup(&upstream).gateway("timeouts: {head: 1s}"));
    for stalled in [&b""[..], &V1[..20], &V2[..14], V2_LONG] {
        let (begun, cpu) = (Instant::now(), gateway.cpu());
        let mut client = gateway.client();
        client.send(stalled);
        client.expect_close();
        let (elapsed, cpu) = (begun.elapsed(), gateway.cpu() - cpu);
        // A worker that stood still when it took the connection may use an earlier time.
        assert!(elapsed >= Duration::from_millis(500), "{elapsed:?}");
        // The received part of a header must not be parsed again and again.
        assert!(cpu < elapsed / 2, "{cpu:?} of CPU in {elapsed:?}");
    }
    let begun = Instant::now();
    let mut client = gateway.client();
    client.send(V2_LONG);
    eventually("the gateway to lose its patience", || client.try_send("x").is_err() || client.is_closed());
    assert!(begun.elapsed() < PATIENCE / 2);
    eventually("all of them to be counted", || counted(&gateway) == 5);
    assert_eq!(upstream.connections(), 0);
}

/// A header's time is not the request's: what follows it has the time of an idle connection.
#[test]
fn a_connection_with_its_header_may_be_idle() {
    let upstream = witness();
    with_longer_times(Duration::from_secs(1), "a header in time", |head| {
        let timeouts = format!("timeouts: {{head: {}ms, keepalive: 1h}}", head.as_millis());
        let gateway = Gateway::start(STILLGATE, &setup(&upstream).gateway(&timeouts));
        let connected = Instant::now();
        let mut client = gateway.client();
        // If the client was delayed it is closed.
        let _ = client.try_send(V1);
        let held_up = connected.elapsed();
        let mut late = gateway.client();
        late.expect_close();
        if client.is_closed() {
            assert!(held_up >= head * 8 / 10, "{held_up:?}");
            return false;
        }
        client.send(GET);
        assert_eq!(answer(&mut client), "192.0.2.1 8443");
        true
    });
}

#[test]
fn a_header_awaited_does_not_hold_up_the_end() {
    let upstream = witness();
    let mut gateway = Gateway::start(STILLGATE, &setup(&upstream));
    let (mut silent, mut begun) = (gateway.client(), gateway.client());
    begun.send(&V1[..20]);
    eventually("both to be accepted", || gateway.status()["connections"]["open"] == 2);
    let asked = Instant::now();
    gateway.signal("TERM");
    silent.expect_close();
    begun.expect_close();
    assert!(gateway.wait().success());
    // Less than the drain's half an hour.
    assert!(asked.elapsed() < 2 * PATIENCE, "{:?}", asked.elapsed());
}

/// Runs curl from an address that nothing else uses.
#[track_caller]
fn curl(addr: SocketAddr, arguments: &[&str]) -> String {
    let url = format!("http://{addr}/");
    let always = ["-sS", "--max-time", "300", "--noproxy", "*", "--interface", "127.0.0.77"];
    let output = run_tool("curl", "curl", &[&always, arguments, &[&url]].concat());
    assert!(output.status.success(), "curl: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn curl_is_understood() {
    let upstream = witness();
    let gateway = Gateway::start(STILLGATE, &setup(&upstream));
    let expected = format!("127.0.0.77 {}", gateway.addr().port());
    assert_eq!(curl(gateway.addr(), &["--haproxy-protocol"]), expected);
}

#[test]
fn haproxy_is_understood() {
    let upstream = witness();
    let gateway = Gateway::start(STILLGATE, &setup(&upstream));
    let options =
        ["send-proxy", "send-proxy-v2", "send-proxy-v2 proxy-v2-options ssl,cert-cn,crc32c,authority,unique-id"];
    let haproxy = Haproxy::start(&options.map(|options| format!("{} {options}", gateway.addr())));
    for (server, options) in options.iter().enumerate() {
        let expected = format!("127.0.0.77 {}", haproxy.addr(server).port());
        assert_eq!(curl(haproxy.addr(server), &[]), expected, "{options}");
    }
    assert_eq!(counted(&gateway), 0);
}
