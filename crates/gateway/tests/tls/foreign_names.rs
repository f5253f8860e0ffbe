//! Requests for names that the nodes have no certificate of: they fail by themselves, and count against no node.

use crate::shared::STILLGATE;
use crate::shared::authority::{Authority, TlsServer};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stillgate_testkit::http2::{END_STREAM, Http2, NO_DYNAMIC_TABLE, StreamEnd, kind};
use stillgate_testkit::{BufferedSocket, Client, Gateway, Nginx, Setup, Upstream, eventually};

/// What a node does when a client sends a name which it does not serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// It shows the certificate of another name.
    OtherName,
    /// It shows a certificate that is not trusted, like the default of an ingress.
    Stranger,
    /// It sends the alert `unrecognized_name`.
    Alert,
    /// It closes the connection.
    Close,
}

const REFUSALS: [Refusal; 4] = [Refusal::OtherName, Refusal::Stranger, Refusal::Alert, Refusal::Close];
/// A fatal alert of TLS 1.2 (RFC 6066 section 3).
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

struct World {
    trusted: Arc<Authority>,
    stranger: Arc<Authority>,
}

impl World {
    fn new() -> World {
        let (trusted, stranger) = (Authority::new(), Authority::new());
        for (name, covered) in [("a.test", "a.test"), ("b.test", "b.test"), ("many.test", "*.many.test")] {
            trusted.issue(name, &[covered]);
            stranger.issue(name, &[covered]);
        }
        World { trusted: trusted.into(), stranger: stranger.into() }
    }

    /// A node that serves one name, one request to a connection. Once it is broken it serves none.
    fn node(&self, name: &'static str, refusal: Refusal, is_broken: &Arc<AtomicBool>) -> Upstream {
        let (trusted, stranger, is_broken) = (self.trusted.clone(), self.stranger.clone(), is_broken.clone());
        Upstream::serve(move |connection| {
            let stream = connection.stream().try_clone().expect("a handle");
            let is_served = !is_broken.load(Ordering::SeqCst) && asks_for(&stream, name);
            let authority = if is_served || refusal == Refusal::OtherName { &trusted } else { &stranger };
            match refusal {
                _ if is_served => answer(authority.serve(stream, name, &[])),
                Refusal::OtherName | Refusal::Stranger => answer(authority.serve(stream, name, &[])),
                Refusal::Alert => drop((&stream).write_all(&UNRECOGNIZED_NAME)),
                Refusal::Close => {}
            }
        })
    }

    fn gateway(&self, nodes: &[&Upstream], keys: &str) -> Gateway {
        self.gateway_of_tiers(&[nodes], keys)
    }

    /// Each tier is for when those before it fail.
    fn gateway_of_tiers(&self, tiers: &[&[&Upstream]], keys: &str) -> Gateway {
        let nodes = tiers.iter().zip((0..10).rev()).flat_map(|(tier, priority)| {
            tier.iter().map(move |node| {
                let address = node.addr();
                format!("{{host: {}, port: {}, weight: 1, priority: {priority}}}", address.ip(), address.port())
            })
        });
        let nodes: Vec<String> = nodes.collect();
        let ca = self.trusted.path("ca.pem");
        Gateway::start(
            STILLGATE,
            &Setup::resources(format!(
                "upstreams: [{{id: u, scheme: https, tls: {{ca: \"{ca}\"}}, nodes: [{}]{keys}}}]\n\
                 routes: [{{id: r, uri: /*, upstream_id: u}}]\n",
                nodes.join(", ")
            )),
        )
    }
}

/// Whether a client's ClientHello, which is not consumed, names a server.
fn asks_for(stream: &TcpStream, name: &str) -> bool {
    let mut hello = vec![0; 16 * 1024];
    let mut len = 0;
    eventually("the hello", || {
        len = stream.peek(&mut hello).unwrap_or_default();
        len > 5 && len >= 5 + usize::from(u16::from_be_bytes([hello[3], hello[4]]))
    });
    hello[..len].windows(name.len()).any(|window| window == name.as_bytes())
}

/// Answers one request. A failed handshake is reported by the client.
fn answer(mut tls: TlsServer) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match tls.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let _ = tls.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    tls.conn.send_close_notify();
    let _ = tls.flush();
}

fn ask(client: &mut BufferedSocket, host: &str) -> u16 {
    client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    client.expect_response("GET").head.status()
}

fn states(gateway: &Gateway) -> Vec<String> {
    let response = Client::connect(gateway.admin_addr()).get("/v1/upstreams");
    let shown: serde_json::Value = serde_json::from_slice(&response.body).expect("JSON");
    let endpoints = shown["upstreams"][0]["endpoints"].as_array().expect("a list").clone();
    endpoints.iter().map(|endpoint| endpoint["state"].as_str().unwrap_or_default().to_owned()).collect()
}

const STRICT: &str = ", checks: {passive: {unhealthy: {tcp_failures: 1, http_failures: 1, timeouts: 1}}}";

#[test]
fn one_fails_by_itself_at_two_nodes() {
    let (world, never) = (World::new(), Arc::new(AtomicBool::new(false)));
    for (refusal, keys) in REFUSALS.into_iter().flat_map(|refusal| ["", STRICT].map(|keys| (refusal, keys))) {
        let nodes = [(); 3].map(|()| world.node("a.test", refusal, &never));
        let gateway = world.gateway(&nodes.each_ref(), keys);
        let mut client = gateway.client().into_connection();
        let made = || nodes.each_ref().map(Upstream::connections);
        let total = || made().iter().sum::<usize>();
        // Both before the nodes are known, and after.
        for _ in 0..2 {
            for _ in 0..4 {
                let before = total();
                assert_eq!(ask(&mut client, "evil.test"), 502, "{refusal:?}");
                assert_eq!(total(), before + 2, "{refusal:?}: a second node shows that the first is not at fault");
            }
            let before = made();
            (0..12).for_each(|_| assert_eq!(ask(&mut client, "a.test"), 200, "{refusal:?}"));
            let shares: Vec<usize> = made().iter().zip(before).map(|(now, before)| now - before).collect();
            assert!(shares.iter().all(|share| (3..=5).contains(share)), "{refusal:?}{keys}: {shares:?}");
        }
        assert_eq!(states(&gateway), ["healthy"; 3], "{refusal:?}{keys}");
        assert!(!gateway.log().contains("it is set aside"), "{}", gateway.log());
        eventually("the reason in the log", || {
            gateway
                .log()
                .contains("TLS with the nodes failed for the requested server name; TLS with the node failed: ")
        });
    }
}

/// The good names are not known when the first node is broken: the next one is tried, and shows it.
#[test]
fn a_node_that_is_broken_from_the_start_does_not_hide_the_next() {
    let world = World::new();
    let (never, broken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
    let refusals = || REFUSALS.into_iter().filter(|refusal| *refusal != Refusal::OtherName);
    for (refusal, keys) in refusals().flat_map(|refusal| ["", STRICT].map(|keys| (refusal, keys))) {
        let node = world.node("a.test", refusal, &broken);
        let spare = world.node("a.test", refusal, &never);
        for is_tier in [true, false] {
            let gateway = match is_tier {
                true => world.gateway_of_tiers(&[&[&node], &[&spare]], keys),
                false => world.gateway(&[&node, &spare], keys),
            };
            let mut client = gateway.client().into_connection();
            for _ in 0..4 {
                assert_eq!(ask(&mut client, "a.test"), 200, "{refusal:?}{keys}");
            }
            assert_eq!(states(&gateway), ["set_aside", "healthy"], "{refusal:?}{keys}");
        }
    }
}

/// Where two are broken, the nodes that have not failed yet are preferred for the second handshake.
#[test]
fn several_nodes_that_are_broken_from_the_start_do_not_hide_the_others() {
    let world = World::new();
    let (never, broken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
    let nodes = [&broken, &broken, &broken, &never].map(|state| world.node("a.test", Refusal::Stranger, state));
    let [first, second, third, spare] = nodes.each_ref();
    let gateway = world.gateway_of_tiers(&[&[first, second, third], &[spare]], "");
    let mut client = gateway.client().into_connection();
    let statuses: Vec<u16> = (0..8).map(|_| ask(&mut client, "a.test")).collect();
    assert!(statuses[3..].iter().all(|status| *status == 200), "{statuses:?}");
}

/// More names than the gateway remembers, under one certificate: forgotten ones do not count, and do not hide a node that breaks.
#[test]
fn many_names_under_one_certificate_do_not_hide_a_node_that_breaks() {
    let world = World::new();
    let (never, breaks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let nodes = [&never, &breaks].map(|state| world.node("many.test", Refusal::Stranger, state));
    let gateway = world.gateway(&nodes.each_ref(), "");
    let mut client = gateway.client().into_connection();
    let names: Vec<String> = (0..150).map(|number| format!("n{number}.many.test")).collect();
    names.iter().for_each(|name| assert_eq!(ask(&mut client, name), 200, "{name}"));
    assert_eq!(states(&gateway), ["healthy"; 2]);
    breaks.store(true, Ordering::SeqCst);
    eventually("the node to be set aside", || {
        names.iter().for_each(|name| assert_eq!(ask(&mut client, name), 200, "{name}"));
        states(&gateway)[1] == "set_aside"
    });
    assert_eq!(states(&gateway)[0], "healthy");
}

/// The behaviour of two primaries, and how they are chosen; the backup is healthy, and serves any number of names under one
/// certificate.
fn check_backup(world: &World, refusal: Refusal, keys: &str, is_tier: bool) {
    let what = format!("{refusal:?}{keys}, a backup of lower priority: {is_tier}");
    let (never, broken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
    let primaries = [(); 2].map(|()| match refusal {
        // A good certificate of another name.
        Refusal::OtherName => world.node("a.test", refusal, &never),
        _ => world.node("many.test", refusal, &broken),
    });
    let backup = world.node("many.test", refusal, &never);
    let [first, second] = primaries.each_ref();
    let gateway = match is_tier {
        true => world.gateway_of_tiers(&[&[first, second], &[&backup]], keys),
        false => world.gateway(&[first, second, &backup], keys),
    };
    let mut client = gateway.client().into_connection();
    let mut number = 0;
    let mut ask_next = || {
        number += 1;
        ask(&mut client, &format!("n{number}.many.test"))
    };
    // One request meets both primaries, and nothing proves that it is not to blame itself.
    let failed = (0..3).filter(|_| ask_next() != 200).count();
    assert!(failed <= 1, "{what}: {failed} requests failed");
    (0..80).for_each(|_| assert_eq!(ask_next(), 200, "{what}"));
    // Nodes that are set aside are tried again with names that nothing has proved.
    let connections = || primaries.iter().map(Upstream::connections).sum::<usize>();
    let before = connections();
    eventually("the primaries to be tried again", || {
        assert_eq!(ask_next(), 200, "{what}");
        connections() >= before + 2
    });
    assert_eq!(states(&gateway)[2], "healthy", "{what}");
}

#[test]
fn two_primaries_with_bad_certificates_do_not_hide_their_backup() {
    let world = World::new();
    REFUSALS.into_iter().for_each(|refusal| check_backup(&world, refusal, "", true));
    let chash = ", type: chash, hash_on: vars, key: remote_addr";
    for (keys, is_tier) in [(STRICT, true), (", retries: 0", true), (chash, true), ("", false)] {
        check_backup(&world, Refusal::Stranger, keys, is_tier);
    }
}

/// A client with foreign names makes every node doubtful; the backup is still found.
#[test]
fn foreign_names_do_not_keep_requests_from_a_backup() {
    let world = World::new();
    for keys in ["", STRICT, ", retries: 0"] {
        let (never, broken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
        let nodes = [&broken, &broken, &never].map(|state| world.node("many.test", Refusal::Stranger, state));
        let [first, second, backup] = nodes.each_ref();
        let gateway = world.gateway_of_tiers(&[&[first, second], &[backup]], keys);
        let mut client = gateway.client().into_connection();
        for number in 0..10 {
            assert_eq!(ask(&mut client, &format!("evil{number}.test")), 502, "{keys}");
        }
        let mut number = 0;
        // Any of them is tried, with a foreign name in between each time.
        eventually("the backup", || {
            number += 1;
            let status = ask(&mut client, &format!("n{number}.many.test"));
            assert_eq!(ask(&mut client, &format!("evil{number}.test")), 502, "{keys}");
            status == 200
        });
        eventually("the broken nodes to be set aside", || {
            number += 1;
            ask(&mut client, &format!("n{number}.many.test"));
            let states = states(&gateway);
            let ejected = states.iter().filter(|state| *state == "set_aside").count();
            states[2] == "healthy" && ejected == if keys == STRICT { 1 } else { 2 }
        });
        assert_eq!(ask(&mut client, "again.many.test"), 200, "{keys}");
    }
}

/// Both primaries served all names until their certificate ended.
#[test]
fn primaries_that_break_together_do_not_hide_their_backup() {
    let world = World::new();
    let (never, breaks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let nodes = [&breaks, &breaks, &never].map(|state| world.node("many.test", Refusal::Stranger, state));
    let [first, second, backup] = nodes.each_ref();
    let gateway = world.gateway_of_tiers(&[&[first, second], &[backup]], "");
    let mut client = gateway.client().into_connection();
    let names: Vec<String> = (0..100).map(|number| format!("n{number}.many.test")).collect();
    names.iter().for_each(|name| assert_eq!(ask(&mut client, name), 200, "{name}"));
    breaks.store(true, Ordering::SeqCst);
    let failed = names.iter().filter(|name| ask(&mut client, name) != 200).count();
    assert!(failed <= 1, "{failed} requests failed");
    eventually("both to be set aside", || {
        names.iter().for_each(|name| assert_eq!(ask(&mut client, name), 200, "{name}"));
        states(&gateway) == ["set_aside", "set_aside", "healthy"]
    });
    breaks.store(false, Ordering::SeqCst);
    eventually("both to be back", || {
        names.iter().for_each(|name| assert_eq!(ask(&mut client, name), 200, "{name}"));
        states(&gateway) == ["healthy"; 3]
    });
}

/// A name that a plugin has set does not count against a node either, nor one that a client of HTTP/2 sends.
#[test]
fn the_name_may_come_in_other_ways() {
    let world = World::new();
    let node = Nginx::start(&format!(
        "server {{ listen 127.0.0.1:{{port}} ssl http2; ssl_certificate {}; ssl_certificate_key {};\n\
         location / {{ return 200; }} }}",
        world.trusted.path("a.test.pem"),
        world.trusted.path("a.test.key"),
    ));
    let ca = world.trusted.path("ca.pem");
    let gateway = Gateway::start(
        STILLGATE,
        &Setup::resources(format!(
            "upstreams: [{{id: u, scheme: https, http2: true, tls: {{ca: \"{ca}\"}}, nodes: {{\"{}\": 1}}}}]\n\
             routes:\n- {{id: r, uri: /*, upstream_id: u}}\n\
             - {{id: p, uri: /named, upstream_id: u, plugins: {{proxy-rewrite: {{host: \"evil.test\"}}}}}}\n",
            node.addr()
        )),
    );
    let mut client = Http2::connect_with(gateway.addr(), &[NO_DYNAMIC_TABLE]);
    let mut get = |stream: u32, path: &str, host: &str| {
        let fields = [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", host)];
        client.send_head(stream, &fields, END_STREAM);
        let (heads, _, end) = client.finish(stream);
        assert_eq!(end, StreamEnd::Whole);
        heads.iter().filter(|frame| frame.kind == kind::HEADERS).map(|head| head.status()).next_back()
    };
    for round in 0..2 {
        assert_eq!(get(8 * round + 1, "/", "evil.test"), Some(502));
        assert_eq!(get(8 * round + 3, "/named", "a.test"), Some(502));
        assert_eq!(get(8 * round + 5, "/", "a.test"), Some(200));
    }
    assert_eq!(states(&gateway), ["healthy"]);
}

/// A node that breaks fails names that other nodes serve: it is set aside, and no request fails for it.
#[test]
fn a_node_that_breaks_is_set_aside_for_names_that_others_serve() {
    let world = World::new();
    for refusal in REFUSALS.into_iter().filter(|refusal| *refusal != Refusal::OtherName) {
        let (never, breaks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let nodes = [world.node("a.test", refusal, &never), world.node("a.test", refusal, &breaks)];
        let gateway = world.gateway(&nodes.each_ref(), "");
        let mut client = gateway.client().into_connection();
        (0..4).for_each(|_| assert_eq!(ask(&mut client, "a.test"), 200));
        breaks.store(true, Ordering::SeqCst);
        eventually("the node to be set aside", || {
            assert_eq!(ask(&mut client, "a.test"), 200, "{refusal:?}");
            states(&gateway)[1] == "set_aside"
        });
        breaks.store(false, Ordering::SeqCst);
        eventually("the node to be back", || {
            assert_eq!(ask(&mut client, "a.test"), 200, "{refusal:?}");
            states(&gateway) == ["healthy"; 2]
        });
    }
}

/// Nodes that serve different names serve each other's on the second try, from the first request on.
#[test]
fn nodes_may_serve_different_names() {
    let (world, never) = (World::new(), Arc::new(AtomicBool::new(false)));
    let nodes = ["a.test", "b.test"].map(|name| world.node(name, Refusal::OtherName, &never));
    let gateway = world.gateway(&nodes.each_ref(), "");
    let mut client = gateway.client().into_connection();
    eventually("a name of each node to be known", || {
        // The number is odd, so that each name comes to each node.
        let statuses = ["a.test", "b.test", "a.test"].map(|name| ask(&mut client, name));
        assert_eq!(statuses, [200; 3]);
        nodes.iter().all(|node| node.connections() > 1)
    });
    for _ in 0..6 {
        assert_eq!(["a.test", "b.test", "a.test"].map(|name| ask(&mut client, name)), [200; 3]);
    }
    assert_eq!(states(&gateway), ["healthy"; 2]);
    assert!(!gateway.log().contains("it is set aside"), "{}", gateway.log());
}

/// A call whose client gives it hardly any time shows nothing of a node that takes longer for a handshake.
#[test]
fn the_deadline_of_a_client_is_not_the_nodes_failure() {
    let (world, silent) = (World::new(), Upstream::bind());
    let ca = world.trusted.path("ca.pem");
    let gateway = Gateway::start(
        STILLGATE,
        &Setup::to(silent.addr())
            .upstream(&format!("scheme: grpcs\ntls: {{ca: \"{ca}\"}}{}", STRICT.replacen(", ", "\n", 1))),
    );
    let mut client = Http2::connect(gateway.addr());
    for stream in [1, 3, 5] {
        let fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/test.Echo/Unary"),
            (":authority", "a.test"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("grpc-timeout", "1m"),
        ];
        client.send_head(stream, &fields, END_STREAM);
        let (heads, _, end) = client.finish(stream);
        assert_eq!((heads.len(), heads[0].status(), end), (1, 200, StreamEnd::Whole));
    }
    assert_eq!(states(&gateway), ["healthy"]);
    assert!(!gateway.log().contains("it is set aside"), "{}", gateway.log());
}
