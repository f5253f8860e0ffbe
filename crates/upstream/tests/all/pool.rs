//! Compares the pool with a plain list that does the same slowly.

use proptest::prelude::*;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use stillgate_config::{Balance, KeepalivePool, PassHost, Upstream, UpstreamTimeouts};
use stillgate_upstream::{ConnMeta, Endpoint, Fit, Pool, UpstreamState};

const IDLE_TIMEOUT_MS: u64 = 100;

/// A connection that counts how many of its kind are open.
#[derive(Debug)]
struct Conn {
    id: usize,
    open: Rc<Cell<usize>>,
}

impl Conn {
    fn new(id: usize, open: &Rc<Cell<usize>>) -> Self {
        open.set(open.get() + 1);
        let open = open.clone();
        Self { id, open }
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.open.set(self.open.get() - 1);
    }
}

fn bounds(size: usize, requests: u32) -> KeepalivePool {
    KeepalivePool { size, idle_timeout: Duration::from_millis(IDLE_TIMEOUT_MS), requests }
}

/// A meta as a worker gets it, for a connection about to carry its first request.
fn fresh() -> ConnMeta {
    let second = Duration::from_secs(1);
    let upstream = Upstream {
        key: "u".into(),
        balance: Balance::RoundRobin,
        nodes: Vec::new(),
        options: stillgate_config::UpstreamOptions::default(),
        limits: stillgate_config::UpstreamLimits { requests: None, queue: 0, queue_timeout: second },
        checks: None,
        timeout: UpstreamTimeouts { connect: second, send: second, read: second, per_try: None },
        pass_host: PassHost::Pass,
        keepalive: bounds(1, 1),
        protocol: stillgate_config::NodeProtocol::Http,
        proxy_protocol: None,
        http2: false,
        grpc: false,
        tls: None,
    };
    let endpoint =
        Endpoint { address: ([127, 0, 0, 1], 1).into(), weight: 1, priority: 0, host: "h".into(), verdict: None };
    UpstreamState::<()>::new(&upstream, &[endpoint]).fresh_meta(0)
}

#[test]
fn the_last_used_comes_first_and_the_oldest_goes_first() {
    let mut pool = Pool::new(bounds(3, 10));
    for (now_ms, (endpoint, id)) in [(0, 'a'), (1, 'b'), (0, 'c')].into_iter().enumerate() {
        assert_eq!(pool.put(endpoint, id, fresh(), now_ms as u64), None);
    }
    assert_eq!(pool.put(1, 'd', fresh(), 4), Some('a'));
    assert_eq!(pool.take(1, 5, |_| Fit::Right).unwrap().0, 'd');
    assert_eq!(pool.take(1, 5, |_| Fit::Right).unwrap().0, 'b');
    assert_eq!(pool.take(1, 5, |_| Fit::Right), None);
    assert_eq!(pool.take(7, 5, |_| Fit::Right), None);
    assert_eq!(pool.len(), 1);
}

#[test]
fn those_that_do_not_fit_stay_and_keep_their_age() {
    let mut pool = Pool::new(bounds(20, 10));
    for id in 0..3 {
        pool.put(0, id, fresh(), id);
    }
    let fit = |id: &mut u64| if *id == 1 { Fit::Right } else { Fit::Other };
    let (id, meta) = pool.take(0, 50, fit).unwrap();
    assert_eq!((id, meta.requests, pool.len()), (1, 2, 2));
    assert_eq!(pool.take(0, 50, fit), None);
    // Their idle time continues as if they had not been looked at.
    assert_eq!(pool.expire(IDLE_TIMEOUT_MS, |_| false), 1);
    assert_eq!(pool.take(0, IDLE_TIMEOUT_MS + 1, |_| Fit::Right).unwrap().0, 2);
    // Only this many are looked at.
    for others in [7, 8] {
        pool.put(0, 1, fresh(), 0);
        for _ in 0..others {
            pool.put(0, 2, fresh(), 0);
        }
        assert_eq!(pool.take(0, 0, fit).is_some(), others == 7);
        assert_eq!(pool.take(0, 0, fit), None);
    }
    assert_eq!(pool.take(0, 0, |_| Fit::Dead), None);
    assert!(pool.is_empty());
}

#[test]
fn a_connection_carries_its_share_of_requests() {
    let mut pool = Pool::new(bounds(3, 3));
    let (mut conn, mut meta) = ('a', fresh());
    for request in 1..3 {
        assert_eq!((meta.requests, meta.is_reused()), (request, request > 1));
        assert_eq!(pool.put(0, conn, meta, 0), None);
        (conn, meta) = pool.take(0, 0, |_| Fit::Right).unwrap();
    }
    assert_eq!(pool.put(0, conn, meta, 0), Some('a'));
    assert_eq!(Pool::new(bounds(0, 9)).put(0, 'b', fresh(), 0), Some('b'));
}

#[test]
fn smaller_bounds_take_effect_at_once() {
    let mut pool = Pool::new(bounds(4, 10));
    for id in 0..4 {
        pool.put(id % 2, id, fresh(), id as u64);
    }
    pool.set_bounds(bounds(1, 10));
    assert_eq!((pool.len(), pool.idle(0), pool.idle(1)), (1, 0, 1));
    assert_eq!(pool.take(1, 5, |_| Fit::Right).unwrap().0, 3);
}

fn fit(id: usize, divisor: usize) -> Fit {
    match id % divisor {
        0 => Fit::Right,
        1 => Fit::Dead,
        2 => Fit::Reserved,
        _ => Fit::Other,
    }
}

#[test]
fn any_number_of_reserved_connections_is_skipped() {
    let mut pool = Pool::new(bounds(100, 10));
    for id in 0..100 {
        pool.put(0, id, fresh(), 0);
    }
    let first = |conn: &mut i32| if *conn == 0 { Fit::Right } else { Fit::Reserved };
    assert_eq!(pool.take(0, 0, first).unwrap().0, 0);
    assert_eq!(pool.len(), 99);
}

#[derive(Debug, Clone)]
enum Op {
    Put(usize),
    /// Determines, together with the id, which are right and which dead.
    Take(usize, usize),
    Wait(u64),
    /// Connections whose id is divisible by this are dead.
    Expire(usize),
    Clear(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..4usize).prop_map(Op::Put),
        4 => (0..4usize, 1..5usize).prop_map(|(endpoint, divisor)| Op::Take(endpoint, divisor)),
        2 => (1..60u64).prop_map(Op::Wait),
        1 => (1..7usize).prop_map(Op::Expire),
        1 => (0..4usize).prop_map(Op::Clear),
    ]
}

proptest! {
    #[test]
    fn agrees_with_a_list(size in 0..7usize, ops in prop::collection::vec(op(), 1..200)) {
        let open = Rc::new(Cell::new(0));
        let mut pool = Pool::new(bounds(size, 1_000));
        // (endpoint, id, idle since), oldest first.
        let mut list: Vec<(usize, usize, u64)> = Vec::new();
        let mut now_ms = 0;
        let stale = |since: u64, now_ms: u64| now_ms - since >= IDLE_TIMEOUT_MS;
        for (id, op) in ops.into_iter().enumerate() {
            match op {
                Op::Put(endpoint) => {
                    let refused = pool.put(endpoint, Conn::new(id, &open), fresh(), now_ms);
                    list.push((endpoint, id, now_ms));
                    let expected = (list.len() > size).then(|| list.remove(0).1);
                    prop_assert_eq!(refused.map(|conn| conn.id), expected);
                }
                Op::Take(endpoint, divisor) => {
                    let taken = pool.take(endpoint, now_ms, |conn| fit(conn.id, divisor)).map(|(conn, _)| conn.id);
                    let (mut expected, mut others) = (None, 0);
                    let mut at = list.len();
                    while at > 0 && expected.is_none() && others < 8 {
                        at -= 1;
                        let (of, id, since) = list[at];
                        match fit(id, divisor) {
                            _ if of != endpoint => {}
                            _ if stale(since, now_ms) => {
                                list.remove(at);
                                break;
                            }
                            Fit::Other => others += 1,
                            Fit::Reserved => {}
                            Fit::Dead => drop(list.remove(at)),
                            Fit::Right => expected = Some(list.remove(at).1),
                        }
                    }
                    prop_assert_eq!(taken, expected);
                }
                Op::Wait(ms) => now_ms += ms,
                Op::Expire(divisor) => {
                    let dropped = pool.expire(now_ms, |conn| conn.id % divisor == 0);
                    let before = list.len();
                    list.retain(|entry| !stale(entry.2, now_ms) && entry.1 % divisor != 0);
                    prop_assert_eq!(dropped, before - list.len());
                }
                Op::Clear(endpoint) => {
                    pool.retain(|of, _| of != endpoint);
                    list.retain(|entry| entry.0 != endpoint);
                }
            }
            prop_assert!(pool.len() <= size);
            prop_assert_eq!(pool.len(), list.len());
            prop_assert_eq!(open.get(), list.len(), "nothing but the idle ones is open");
            for endpoint in 0..4 {
                let expected = list.iter().filter(|entry| entry.0 == endpoint).count();
                prop_assert_eq!(pool.idle(endpoint), expected);
            }
        }
        drop(pool);
        prop_assert_eq!(open.get(), 0);
    }
}
