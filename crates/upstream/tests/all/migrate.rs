//! The state that is kept when an upstream's definition or its resolved addresses change.

use proptest::prelude::*;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;
use stillgate_config::{Balance, KeepalivePool, PassHost, RetryBudget, Upstream, UpstreamTimeouts};
use stillgate_upstream::{ConnMeta, Endpoint, Failure, Fit, TriedEndpoints, TryReport, UpstreamState};

fn upstream(balance: Balance, pool_size: usize) -> Upstream {
    let second = Duration::from_secs(1);
    Upstream {
        key: "u".into(),
        balance,
        nodes: Vec::new(),
        options: stillgate_config::UpstreamOptions::default(),
        limits: stillgate_config::UpstreamLimits { requests: None, queue: 0, queue_timeout: second },
        checks: None,
        timeout: UpstreamTimeouts { connect: second, send: second, read: second, per_try: None },
        pass_host: PassHost::Pass,
        keepalive: KeepalivePool { size: pool_size, idle_timeout: Duration::from_secs(60), requests: 1_000 },
        protocol: stillgate_config::NodeProtocol::Http,
        proxy_protocol: None,
        http2: false,
        grpc: false,
        tls: None,
    }
}

fn endpoint(n: u8, weight: u32) -> Endpoint {
    Endpoint {
        address: SocketAddr::from(([10, 0, 0, n], 80)),
        weight,
        priority: 0,
        host: format!("10.0.0.{n}").into(),
        verdict: None,
    }
}

fn pick(state: &mut UpstreamState<char>) -> u8 {
    let index = state.pick(None, 0, 0, &TriedEndpoints::new()).unwrap();
    match state.endpoint(index).address {
        SocketAddr::V4(address) => address.ip().octets()[3],
        SocketAddr::V6(_) => unreachable!("the tests use IPv4 addresses"),
    }
}

#[test]
fn what_stays_keeps_its_connections_failures_and_turn() {
    let definition = upstream(Balance::RoundRobin, 8);
    let mut state = UpstreamState::new(&definition, &[1, 2, 3].map(|n| endpoint(n, 1)));
    assert_eq!(pick(&mut state), 1);
    for (index, conn) in ['a', 'b', 'c'].into_iter().enumerate() {
        state.put(index, conn, state.fresh_meta(index), 0);
    }
    state.report(2, TryReport::Failed(Failure::Connect), 0);

    state.migrate(&definition, &[4, 3, 2].map(|n| endpoint(n, 1)));
    let mut status: Vec<_> = state.status(0).map(|s| (s.address.to_string(), s.idle, s.failures)).collect();
    status.sort();
    let expected = [("10.0.0.2:80", 1, 0), ("10.0.0.3:80", 1, 1), ("10.0.0.4:80", 0, 0)];
    assert_eq!(status, expected.map(|(a, i, f)| (a.to_string(), i, f)));
    assert_eq!(state.take(1, 0, |_, _| Fit::Right).unwrap().0, 'b');
    assert_eq!(pick(&mut state), 2, "it was next before the change");
}

#[test]
fn a_connection_in_use_is_not_kept_for_the_peer_that_took_its_slot() {
    let definition = upstream(Balance::RoundRobin, 8);
    let mut state = UpstreamState::new(&definition, &[endpoint(1, 1)]);
    let index = state.pick(None, 0, 0, &TriedEndpoints::new()).unwrap();
    state.on_start(index);
    let meta = state.fresh_meta(index);
    state.migrate(&definition, &[endpoint(2, 1)]);
    assert_eq!(state.endpoint(index), &endpoint(1, 1), "still in use");
    state.on_finish(index, None, 0);
    state.migrate(&definition, &[endpoint(3, 1)]);
    assert_eq!(state.endpoint(index), &endpoint(3, 1));
    assert_eq!(state.put(index, 'a', meta, 0), Some('a'));
    assert_eq!(state.idle(), 0);
}

#[test]
fn a_tunnel_counts_at_its_node_and_as_no_request() {
    let budget = RetryBudget { percent: 50, min_concurrency: 0 };
    let mut state = UpstreamState::<char>::new(&upstream(Balance::LeastConn, 8), &[endpoint(1, 1), endpoint(2, 1)]);
    let index = state.pick(None, 0, 0, &TriedEndpoints::new()).unwrap();
    state.on_tunnel_start(index);
    assert_eq!((state.active(), state.status(0).map(|node| node.active).sum::<u32>()), (0, 1));
    assert!(!state.has_budget(&budget), "half of the one request that asks is none");
    let next = state.pick(None, 0, 0, &TriedEndpoints::new()).unwrap();
    assert_ne!(next, index, "the other one has less to do");
    state.on_start(next);
    assert!(state.has_budget(&budget));
    state.on_tunnel_finish(index, 0);
    assert_eq!((state.active(), state.status(0).map(|node| node.active).sum::<u32>()), (1, 1));
}

#[test]
fn no_endpoints_and_back() {
    let definition = upstream(Balance::LeastConn, 8);
    let mut state = UpstreamState::<char>::new(&definition, &[]);
    assert_eq!(state.pick(None, 0, 0, &TriedEndpoints::new()), None);
    state.migrate(&definition, &[endpoint(1, 1)]);
    assert_eq!((pick(&mut state), state.choices()), (1, 1));
    state.migrate(&definition, &[]);
    assert_eq!((state.pick(None, 0, 0, &TriedEndpoints::new()), state.choices()), (None, 0));
}

#[derive(Debug, Clone)]
enum Op {
    /// Weights of the addresses 0..6; `None`: not part of the upstream.
    Migrate(Vec<Option<u32>>),
    Start(u64),
    /// Ends the oldest request; returns whether its connection is kept.
    Finish(bool),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        1 => prop::collection::vec(prop::option::of(0u32..4), 6).prop_map(Op::Migrate),
        3 => any::<u64>().prop_map(Op::Start),
        2 => any::<bool>().prop_map(Op::Finish),
    ]
}

proptest! {
    #[test]
    fn indices_and_connections_never_stand_for_another_peer(
        method in 0usize..3,
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let balance = [Balance::RoundRobin, Balance::LeastConn, Balance::Ewma][method].clone();
        let definition = upstream(balance, 4);
        let mut state: UpstreamState<SocketAddr> = UpstreamState::new(&definition, &[]);
        let mut live: HashMap<SocketAddr, u32> = HashMap::new();
        let mut under_way: Vec<(usize, SocketAddr, SocketAddr, ConnMeta)> = Vec::new();
        for op in ops {
            match op {
                Op::Migrate(weights) => {
                    let endpoints: Vec<_> = (0u8..)
                        .zip(weights)
                        .filter_map(|(n, weight)| Some(endpoint(n, weight?)))
                        .collect();
                    live = endpoints.iter().map(|e| (e.address, e.weight)).collect();
                    state.migrate(&definition, &endpoints);
                }
                Op::Start(random) => {
                    let picked = state.pick(None, 0, random, &TriedEndpoints::new());
                    prop_assert_eq!(picked.is_some(), live.values().any(|weight| *weight > 0));
                    if let Some(index) = picked {
                        let address = state.endpoint(index).address;
                        prop_assert!(live[&address] > 0);
                        state.on_start(index);
                        let fresh = state.fresh_meta(index);
                        let (conn, meta) = state.take(index, 0, |_, _| Fit::Right).unwrap_or((address, fresh));
                        under_way.push((index, address, conn, meta));
                    }
                }
                Op::Finish(keep) if !under_way.is_empty() => {
                    let (index, address, conn, meta) = under_way.remove(0);
                    if keep {
                        state.put(index, conn, meta, 0);
                    }
                    state.on_finish(index, keep.then_some(500), 0);
                    prop_assert_eq!(conn, address);
                }
                Op::Finish(_) => {}
            }
            for (index, address, conn, _) in &under_way {
                prop_assert_eq!(state.endpoint(*index).address, *address);
                prop_assert_eq!(conn, address, "a connection to somebody else was taken");
            }
            let status: Vec<_> = state.status(0).collect();
            prop_assert_eq!(status.len(), live.len());
            for endpoint in status {
                prop_assert!(live.contains_key(&endpoint.address));
                let active = under_way.iter().filter(|u| u.1 == endpoint.address).count();
                prop_assert_eq!(endpoint.active as usize, active);
            }
            prop_assert!(state.idle() <= 4);
        }
    }
}
