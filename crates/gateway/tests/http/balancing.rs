//! Which node gets a request, seen from outside: every kind of balancer, through failures and reloads.

use crate::shared::STILLGATE;
use std::time::Duration;
use stillgate_testkit::{Gateway, Setup, Upstream, eventually, eventually_within};

/// Time until a node that the machine has delayed for some seconds is trusted again.
const TRUST_PATIENCE: Duration = Duration::from_secs(300);

fn resources(upstream: &str, nodes: &[&Upstream]) -> Setup {
    let nodes: String = nodes.iter().map(|node| format!("\"{}\": 1, ", node.addr())).collect();
    Setup::resources(format!(
        "upstreams: [{{id: u, {upstream}, nodes: {{{nodes}}}}}]\nroutes: [{{id: r, uri: /*, upstream_id: u}}]\n"
    ))
}

#[test]
fn consistent_hash_sends_a_key_to_its_node() {
    let nodes = [Upstream::echo(), Upstream::echo(), Upstream::echo()];
    let [a, b, c] = &nodes;
    let setup = resources("type: chash, hash_on: header, key: X-User", &[a, b, c]);
    let gateway = Gateway::start(STILLGATE, &setup);
    let requests = || nodes.each_ref().map(Upstream::requests);
    let ask = |client: &mut stillgate_testkit::Client, user: usize| {
        let before = requests();
        client.send(format!("GET / HTTP/1.1\r\nHost: a\r\nX-User: {user}\r\n\r\n"));
        client.expect_response("GET");
        requests().iter().zip(before).position(|(now, before)| *now > before).expect("some node got it")
    };
    let mut client = gateway.client();
    let first: Vec<usize> = (0..60).map(|user| ask(&mut client, user)).collect();
    assert!((0..3).all(|node| first.contains(&node)), "all nodes are used: {first:?}");
    // Another connection, another worker's state: the same answer.
    gateway.reload(&setup.clone().gateway("timeouts: {head: 30s}"));
    let mut client = gateway.client();
    let again: Vec<usize> = (0..60).map(|user| ask(&mut client, user)).collect();
    assert_eq!(first, again);
}

#[test]
fn consistent_hash_moves_on_where_its_node_is_dead() {
    let (dead, alive) = (Upstream::refusing(), Upstream::echo());
    let setup = resources("type: chash, hash_on: vars, key: request_uri", &[&dead, &alive]);
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    for number in 0..20 {
        assert_eq!(client.get(&format!("/{number}")).head.status(), 200);
    }
}

#[test]
fn least_conn_avoids_the_busy_node() {
    let (busy, free) = (Upstream::bind(), Upstream::echo());
    let gateway = Gateway::start(STILLGATE, &resources("type: least_conn", &[&busy, &free]));
    // One at a time, until the node that never answers has one: the other is idle then.
    let mut waiting = Vec::new();
    let mut held = None;
    while held.is_none() {
        let mut client = gateway.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        eventually("an answer, or the slow node's turn", || {
            held = busy.try_accept();
            held.is_some() || !client.pending().is_empty()
        });
        waiting.push(client);
    }
    let mut client = gateway.client();
    for _ in 0..20 {
        assert_eq!(client.get("/").head.status(), 200, "while the other node is busy");
    }
}

#[test]
fn ewma_prefers_the_fast_node() {
    let slow = Upstream::serve(|connection| {
        while let Ok(mut request) = connection.read_request() {
            request.head.start = "GET /?delay=1000 HTTP/1.1".to_owned();
            if !stillgate_testkit::echo(connection, &request) {
                return;
            }
        }
    });
    let fast = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &resources("type: ewma", &[&slow, &fast]));
    let mut client = gateway.client();
    // If the machine delays the fast one, it is the slow one for a while: so this may take time.
    eventually_within(TRUST_PATIENCE, "the fast node to get all of 15 requests in a row", || {
        let before = fast.requests();
        for _ in 0..15 {
            assert_eq!(client.get("/").head.status(), 200);
        }
        fast.requests() == before + 15
    });
}

#[test]
fn a_node_that_comes_back_is_used_again() {
    let (mut lame, steady) = (Upstream::refusing(), Upstream::echo());
    let gateway = Gateway::start(STILLGATE, &resources("type: roundrobin", &[&lame, &steady]));
    let mut client = gateway.client();
    for _ in 0..10 {
        assert_eq!(client.get("/").head.status(), 200);
    }
    lame.start_echo();
    eventually("the node to be used again", || {
        assert_eq!(client.get("/").head.status(), 200);
        lame.requests() > 0
    });
}

#[test]
fn a_lower_tier_is_used_only_while_the_higher_is_dead() {
    let (mut first, second) = (Upstream::echo(), Upstream::echo());
    let gateway = Gateway::start(STILLGATE, &Setup::to_tiers(&[first.addr(), second.addr()]));
    let mut client = gateway.client();
    for _ in 0..10 {
        client.get("/");
    }
    assert_eq!((first.requests(), second.requests()), (10, 0));
    first.stop();
    assert_eq!(client.get("/").head.status(), 200);
    assert_eq!(second.requests(), 1);
    first.start_echo();
    eventually("the first tier to be used again", || {
        assert_eq!(client.get("/").head.status(), 200);
        first.requests() > 10
    });
}

/// A reload that leaves an upstream alone leaves its connections and its turn alone too.
#[test]
fn an_unchanged_upstream_survives_a_reload() {
    let (a, b) = (Upstream::echo(), Upstream::echo());
    let setup = resources("type: roundrobin", &[&a, &b]);
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    for generation in 1..10 {
        client.get("/");
        let another = setup.clone().gateway(&format!("timeouts: {{head: {}s}}", 10 + generation));
        gateway.reload(&another);
    }
    client.get("/");
    assert_eq!((a.requests(), b.requests()), (5, 5), "turns go on across reloads");
    assert_eq!((a.connections(), b.connections()), (1, 1), "connections live across reloads");
}

/// Connections to an upstream that is removed are closed.
#[test]
fn a_removed_upstream_loses_its_connections() {
    let (old, new) = (Upstream::bind(), Upstream::echo());
    let gateway = Gateway::start(STILLGATE, &Setup::to(old.addr()));
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut node = old.accept();
    node.expect_request();
    node.send("HTTP/1.1 204 No Content\r\n\r\n");
    client.expect_response("GET");
    gateway.reload(&Setup::to(new.addr()));
    eventually("the pooled connection to be closed", || node.is_closed());
}
