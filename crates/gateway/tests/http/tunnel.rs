//! Tunnels: which requests get one, which do not, and that every byte and every end arrives.

use crate::shared::STILLGATE;
use crate::shared::tunnel::{AGREE, ASK, Tunnel, setup};
use std::time::{Duration, Instant};
use stillgate_testkit::{Client, Gateway, MessageError, Setup, Upstream, eventually, payload};

/// More than all buffers on the way hold.
const MUCH: usize = 8 * 1024 * 1024;

#[test]
fn the_heads_pass_and_bytes_go_both_ways() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &setup(&upstream));
    let mut client = gateway.client();
    client.send(ASK);
    let mut node = upstream.accept();
    let asked = node.expect_request().head;
    assert_eq!((asked.all("connection"), asked.all("upgrade")), (vec!["Upgrade"], vec!["websocket"]));
    assert_eq!((asked.get("x-mine"), asked.get("x-forwarded-for")), (Some("1"), Some("127.0.0.1")));
    node.send(AGREE);
    let agreed = client.read_head().expect("an answer");
    assert_eq!(agreed.start, "HTTP/1.1 101 Switching Protocols");
    assert_eq!((agreed.all("connection"), agreed.all("upgrade")), (vec!["Upgrade"], vec!["websocket"]));
    assert_eq!((agreed.get("x-yours"), agreed.get("content-length")), (Some("2"), None));
    let mut tunnel = Tunnel { client, node };
    for _ in 0..3 {
        tunnel.check();
    }
    let status = gateway.status();
    assert_eq!((&status["tunnels"]["open"], &status["requests"]["in_flight"]), (&1.into(), &0.into()));
    assert_eq!(status["connections"]["open"], 1);
}

/// They may last for days.
#[test]
fn tunnels_take_no_room_from_requests() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &setup(&upstream).upstream("limits: {requests: 2}"));
    let mut tunnels = [(); 3].map(|()| Tunnel::open(&gateway, &upstream));
    let mut clients = [gateway.client(), gateway.client()];
    let mut nodes = clients.each_mut().map(|client| {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut node = upstream.accept();
        node.expect_request();
        node
    });
    assert_eq!(gateway.get("/").head.status(), 503, "two requests are all there may be");
    tunnels.iter_mut().for_each(Tunnel::check);
    for (client, node) in clients.iter_mut().zip(&mut nodes) {
        node.send("HTTP/1.1 204 No Content\r\n\r\n");
        assert_eq!(client.expect_response("GET").head.status(), 204);
    }
}

#[test]
fn what_comes_early_is_passed_on() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &setup(&upstream));
    for size in [1, 5_000, 1_000_000] {
        let (early_up, early_down) = (payload(1, size), payload(2, size));
        let mut client = gateway.client();
        let mut node = std::thread::scope(|scope| {
            scope.spawn(|| client.send([ASK.as_bytes(), &early_up].concat()));
            let mut node = upstream.accept();
            node.expect_request();
            let node = scope.spawn(|| {
                node.send([AGREE.as_bytes(), &early_down].concat());
                node
            });
            node.join().expect("the node sends")
        });
        assert_eq!(client.read_head().expect("an answer").status(), 101);
        assert!(client.read_exactly(size).expect("what the node sent") == early_down, "{size}");
        assert!(node.read_exactly(size).expect("what the client sent") == early_up, "{size}");
        Tunnel { client, node }.check();
    }
}

#[test]
fn much_goes_both_ways_at_once() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &setup(&upstream));
    let Tunnel { mut client, mut node } = Tunnel::open(&gateway, &upstream);
    let (up, down) = (payload(3, MUCH), payload(4, MUCH));
    let mut client_sends = Client::from_connection(stillgate_testkit::BufferedSocket::new(
        client.stream().try_clone().expect("a second handle on the socket"),
    ));
    let node_sends = node.stream().try_clone().expect("a second handle on the socket");
    let mut node_sends = stillgate_testkit::BufferedSocket::new(node_sends);
    std::thread::scope(|scope| {
        scope.spawn(|| client_sends.send(&up));
        scope.spawn(|| node_sends.send(&down));
        let received = scope.spawn(|| node.read_exactly(MUCH));
        assert!(client.read_exactly(MUCH).expect("what the node sent") == down);
        assert!(received.join().expect("the node reads").expect("what the client sent") == up);
    });
}

#[test]
fn each_side_may_end_alone() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &setup(&upstream));
    let Tunnel { mut client, mut node } = Tunnel::open(&gateway, &upstream);
    client.send("last");
    client.half_close();
    assert_eq!(node.read_to_end().expect("an orderly end"), b"last");
    node.send("and yet");
    assert_eq!(client.read_exactly(7).expect("what the node still sends"), b"and yet");
    node.half_close();
    assert_eq!(client.read_to_end().expect("an orderly end"), b"");

    let Tunnel { mut client, mut node } = Tunnel::open(&gateway, &upstream);
    node.send("last");
    node.half_close();
    assert_eq!(client.read_to_end().expect("an orderly end"), b"last");
    client.send("and yet");
    assert_eq!(node.read_exactly(7).expect("what the client still sends"), b"and yet");
    client.half_close();
    assert_eq!(node.read_to_end().expect("an orderly end"), b"");
    eventually("both tunnels to end", || gateway.status()["tunnels"]["open"] == 0);
    assert_eq!(gateway.status()["tunnels"]["total"], 2);
}

/// The end of the client's sending may come before the 101.
#[test]
fn a_client_may_end_before_the_answer() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &setup(&upstream));
    let mut client = gateway.client();
    client.send(format!("{ASK}early"));
    client.half_close();
    let mut node = upstream.accept();
    node.expect_request();
    node.send(format!("{AGREE}late"));
    assert_eq!(node.read_to_end().expect("an orderly end"), b"early");
    drop(node);
    let answer = client.read_response("GET").expect("an answer");
    assert_eq!(answer.head.status(), 101);
    assert_eq!(client.read_to_end().expect("an orderly end"), b"late");
}

#[test]
fn a_body_comes_before_the_tunnel() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &setup(&upstream));
    let ask = "POST /exec HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 4\r\n\r\n";
    let agree = "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n";
    let mut client = gateway.client();
    client.send(format!("{ask}bodyearly"));
    let mut node = upstream.accept();
    let request = node.expect_request();
    assert_eq!((request.head.get("upgrade"), &request.body[..]), (Some("tcp"), &b"body"[..]));
    node.send(agree);
    assert_eq!(client.read_head().expect("an answer").status(), 101);
    assert_eq!(node.read_exactly(5).expect("what came early"), b"early");
    Tunnel { client, node }.check();

    // A node that does not wait for the body has not understood the request.
    let mut client = gateway.client();
    client.send(format!("{ask}bo"));
    let mut node = upstream.accept();
    node.read_head().expect("the head goes ahead");
    node.send(agree);
    assert_eq!(client.expect_response("POST").head.status(), 502);
    client.expect_close();
}

#[test]
fn what_was_not_asked_for_is_a_bad_response() {
    let upstream = Upstream::bind();
    let open = Gateway::start(STILLGATE, &setup(&upstream));
    let shut = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let plain = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let h2c = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n\r\n";
    let both = ASK.replace("Upgrade: websocket", "Upgrade: h2c, websocket");
    let other = AGREE.replace("websocket", "other");
    let none = AGREE.replace("Upgrade: websocket\r\n", "");
    let check = |gateway: &Gateway, ask: &str, upgrade: Option<&str>, agree: &str| {
        let mut client = gateway.client();
        client.send(ask);
        let mut node = upstream.accept();
        let request = node.expect_request();
        assert_eq!(request.head.get("upgrade"), upgrade, "{ask}");
        assert_eq!(
            (request.head.connection_has("upgrade"), request.head.get("http2-settings")),
            (upgrade.is_some(), None)
        );
        node.send(agree);
        assert_eq!(client.expect_response("GET").head.status(), 502, "{ask} {agree}");
        node.expect_close();
    };
    check(&shut, ASK, None, AGREE);
    check(&open, plain, None, AGREE);
    check(&open, h2c, None, &AGREE.replace("websocket", "h2c"));
    check(&open, &both, Some("websocket"), &AGREE.replace("websocket", "h2c"));
    check(&open, ASK, Some("websocket"), &other);
    check(&open, ASK, Some("websocket"), &none);
    check(&open, &ASK.replace("keep-alive, Upgrade", "keep-alive"), None, AGREE);
}

#[test]
fn a_node_may_decline() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &setup(&upstream));
    let mut client = gateway.client();
    // The bytes behind the request are the next one, as the tunnel was refused.
    client.send(format!("{ASK}GET /next HTTP/1.1\r\nHost: a\r\n\r\n"));
    let mut node = upstream.accept();
    node.expect_request();
    node.send("HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\n\r\nno");
    let declined = client.expect_response("GET");
    assert_eq!((declined.head.status(), &declined.body[..]), (426, &b"no"[..]));
    assert_eq!(node.expect_request().head.start, "GET /next HTTP/1.1");
    node.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    assert_eq!(client.expect_response("GET").body, b"ok");
    // The same connections may still become a tunnel.
    client.send(ASK);
    node.expect_request();
    node.send("HTTP/1.1 103 Early Hints\r\n\r\n");
    node.send(AGREE);
    assert_eq!(client.read_head().expect("an interim answer").status(), 103);
    assert_eq!(client.read_head().expect("an answer").status(), 101);
    Tunnel { client, node }.check();
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn a_service_decides_where_its_route_does_not() {
    let upstream = Upstream::bind();
    let resources = Setup::resources(format!(
        "services: [{{id: s, enable_websocket: true, upstream: {{nodes: {{\"{}\": 1}}}}}}]\n\
         routes: [{{id: on, uri: /chat, service_id: s}}, {{id: off, uri: /not, service_id: s, enable_websocket: false}}]\n",
        upstream.addr()
    ));
    let gateway = Gateway::start(STILLGATE, &resources);
    Tunnel::open(&gateway, &upstream).check();
    let mut client = gateway.client();
    client.send(ASK.replace("/chat", "/not"));
    assert_eq!(upstream.accept().expect_request().head.get("upgrade"), None);
}

#[test]
fn a_reset_is_passed_on() {
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &setup(&upstream));
    let mut tunnel = Tunnel::open(&gateway, &upstream);
    tunnel.check();
    tunnel.client.into_connection().reset();
    assert!(matches!(tunnel.node.read_to_end(), Err(MessageError::Reset(_))));
    let mut tunnel = Tunnel::open(&gateway, &upstream);
    tunnel.check();
    tunnel.node.reset();
    assert!(matches!(tunnel.client.read_to_end(), Err(MessageError::Reset(_))));
    // After one side has ended.
    let mut tunnel = Tunnel::open(&gateway, &upstream);
    tunnel.client.half_close();
    assert_eq!(tunnel.node.read_to_end().expect("an orderly end"), b"");
    tunnel.node.reset();
    assert!(matches!(tunnel.client.read_to_end(), Err(MessageError::Reset(_))));
    eventually("all tunnels to end", || gateway.status()["tunnels"]["open"] == 0);
}

/// The head is half read, or the 101 has not arrived yet.
#[test]
fn a_reset_before_the_tunnel_is_an_ordinary_failure() {
    let upstream = Upstream::bind();
    let mut gateway = Gateway::start(STILLGATE, &setup(&upstream).upstream("retries: 0"));
    let mut client = gateway.client();
    client.send(&ASK[..40]);
    client.into_connection().reset();
    let mut client = gateway.client();
    client.send(ASK);
    let mut node = upstream.accept();
    node.expect_request();
    node.send(&AGREE[..40]);
    node.reset();
    assert_eq!(client.expect_response("GET").head.status(), 502);
    drop(client);
    let mut client = gateway.client();
    client.send(ASK);
    let mut node = upstream.accept();
    node.expect_request();
    client.into_connection().reset();
    eventually("the node to be let go", || node.is_closed());
    eventually("nothing to be open", || gateway.status()["connections"]["open"] == 0);
    assert_eq!(gateway.status()["tunnels"]["total"], 0);
    gateway.assert_healthy();
}

/// A receiver that reads nothing stalls its sender, and nothing piles up in between.
#[test]
fn a_slow_receiver_costs_a_buffer() {
    const BYTES_MAX: usize = 1024 * 1024;
    let upstream = Upstream::bind();
    let gateway = Gateway::start(STILLGATE, &setup(&upstream).gateway("timeouts: {send: 5s}"));
    let mut tunnel = Tunnel::open(&gateway, &upstream);
    tunnel.check();
    let before = gateway.rss();
    tunnel.node.stream().set_nonblocking(true).expect("set a live socket non-blocking");
    let piece = [b'x'; 65536];
    let mut sent = 0;
    let mut since = Instant::now();
    eventually("the sender to be held up", || {
        match std::io::Write::write(&mut tunnel.node.stream(), &piece) {
            Ok(n) => (sent, since) = (sent + n, Instant::now()),
            // Where the test stood still for long it is given up by now.
            Err(error) => {
                let is_given_up = since.elapsed() > Duration::from_secs(4);
                assert!(error.kind() == std::io::ErrorKind::WouldBlock || is_given_up, "{error}");
            }
        }
        since.elapsed() > Duration::from_millis(300)
    });
    let grown = gateway.rss().saturating_sub(before);
    assert!(grown < BYTES_MAX, "{grown} bytes more after {sent} were sent");
    // It is given up in the end, and the received part does not look complete.
    eventually("the tunnel to be given up", || gateway.status()["tunnels"]["open"] == 0);
    assert!(matches!(tunnel.client.read_to_end(), Err(MessageError::Reset(_))));
}
