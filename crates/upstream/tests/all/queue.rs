//! Requests that wait for a place at their upstream: which is next, and which is woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;
use stillgate_config::{Balance, KeepalivePool, PassHost, Upstream, UpstreamLimits, UpstreamTimeouts};
use stillgate_upstream::{Endpoint, Ticket, UpstreamState};

#[derive(Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A request that waits.
struct WaitingRequest {
    ticket: Ticket,
    woken: Arc<Woken>,
}

impl WaitingRequest {
    fn waker(&self) -> Waker {
        self.woken.clone().into()
    }

    /// How often it was woken since the last call.
    fn woken(&self) -> u32 {
        self.woken.0.swap(0, Ordering::Relaxed)
    }
}

/// An upstream with one node.
struct One(UpstreamState<()>);

impl One {
    fn new(requests: u32, queue: u32) -> One {
        One(UpstreamState::new(&upstream(Some(requests), queue), &[endpoint()]))
    }

    fn join(&mut self) -> Option<WaitingRequest> {
        let woken = Arc::new(Woken::default());
        let (ticket, _) = self.0.join_queue(&woken.clone().into())?;
        Some(WaitingRequest { ticket, woken })
    }

    fn is_turn(&mut self, waiting: &WaitingRequest) -> bool {
        self.0.poll_turn(waiting.ticket, &waiting.waker())
    }

    /// It is next in line: it leaves, and its try begins.
    #[track_caller]
    fn goes(&mut self, waiting: &WaitingRequest) {
        assert!(self.is_turn(waiting));
        self.0.leave_queue(waiting.ticket);
        self.0.on_start(0);
    }
}

fn upstream(requests: Option<u32>, queue: u32) -> Upstream {
    let second = Duration::from_secs(1);
    Upstream {
        key: "u".into(),
        balance: Balance::RoundRobin,
        nodes: Vec::new(),
        options: stillgate_config::UpstreamOptions::default(),
        limits: UpstreamLimits { requests, queue, queue_timeout: second },
        checks: None,
        timeout: UpstreamTimeouts { connect: second, send: second, read: second, per_try: None },
        pass_host: PassHost::Pass,
        keepalive: KeepalivePool { size: 1, idle_timeout: second, requests: 1 },
        http2: false,
        grpc: false,
        protocol: stillgate_config::NodeProtocol::Http,
        proxy_protocol: None,
        tls: None,
    }
}

fn endpoint() -> Endpoint {
    Endpoint { address: ([127, 0, 0, 1], 1).into(), weight: 1, priority: 0, host: "h".into(), verdict: None }
}

#[test]
fn the_oldest_is_woken_and_goes_first() {
    let mut one = One::new(1, 2);
    assert!(one.0.has_place());
    one.0.on_start(0);
    assert!(!one.0.has_place());
    let (first, second) = (one.join().unwrap(), one.join().unwrap());
    assert!(one.join().is_none() && one.0.waiting_count() == 2, "full");
    assert!(!one.is_turn(&first) && !one.is_turn(&second));
    one.0.on_finish(0, None, 0);
    assert_eq!((first.woken(), second.woken()), (1, 0));
    // There is room, but not for a new request.
    assert!(!one.0.has_place() && !one.is_turn(&second));
    one.goes(&first);
    // There may be room for two.
    assert_eq!(second.woken(), 1);
    assert!(!one.is_turn(&second));
    one.0.on_finish(0, None, 0);
    one.goes(&second);
    one.0.on_finish(0, None, 0);
    assert!(one.0.has_place() && one.0.waiting_count() == 0);
}

/// Requests that are about to leave do not block others.
#[test]
fn there_is_room_behind_those_who_go() {
    let mut one = One::new(2, 1);
    (0..2).for_each(|_| one.0.on_start(0));
    let first = one.join().unwrap();
    assert!(one.join().is_none());
    (0..2).for_each(|_| one.0.on_finish(0, None, 0));
    let others = [one.join().unwrap(), one.join().unwrap()];
    assert!(one.join().is_none(), "two may go, and one may wait");
    one.goes(&first);
    one.goes(&others[0]);
    assert!(!one.is_turn(&others[1]) && one.join().is_none());
}

#[test]
fn who_leaves_loses_no_place() {
    let mut one = One::new(1, 3);
    one.0.on_start(0);
    let waiting: Vec<WaitingRequest> = (0..3).map(|_| one.join().unwrap()).collect();
    // From the middle: the order of the others does not change.
    one.0.leave_queue(waiting[1].ticket);
    assert!(waiting.iter().all(|waiting| waiting.woken() == 0));
    let last = one.join().unwrap();
    one.0.on_finish(0, None, 0);
    assert_eq!(waiting[0].woken(), 1);
    // The woken request leaves instead.
    one.0.leave_queue(waiting[0].ticket);
    assert_eq!((waiting[2].woken(), last.woken()), (1, 0));
    // A second call has no effect.
    one.0.leave_queue(waiting[0].ticket);
    assert_eq!((waiting[2].woken(), one.0.waiting_count()), (0, 2));
    one.goes(&waiting[2]);
}

#[test]
fn the_latest_waker_counts() {
    let mut one = One::new(1, 1);
    one.0.on_start(0);
    let mut waiting = one.join().unwrap();
    let before = std::mem::take(&mut waiting.woken);
    assert!(!one.is_turn(&waiting));
    one.0.on_finish(0, None, 0);
    assert_eq!((before.0.load(Ordering::Relaxed), waiting.woken()), (0, 1));
}

#[test]
fn a_new_bound_holds_for_those_who_wait() {
    for (requests, turns) in [(None, 3), (Some(3), 1), (Some(2), 0), (Some(1), 0), (Some(9), 3)] {
        let mut one = One::new(2, 3);
        one.0.on_start(0);
        one.0.on_start(0);
        let waiting: Vec<WaitingRequest> = (0..3).map(|_| one.join().unwrap()).collect();
        // A smaller queue removes no waiting request.
        one.0.migrate(&upstream(requests, 0), &[endpoint()]);
        assert_eq!((waiting[0].woken(), one.0.waiting_count()), (1, 3));
        // Behind the waiting requests there is room for one more, or there is none.
        let late = one.join();
        assert_eq!(late.is_some(), turns == 3, "{requests:?}");
        late.into_iter().for_each(|late| one.0.leave_queue(late.ticket));
        let mut went = 0;
        for waiting in &waiting {
            if !one.is_turn(waiting) {
                break;
            }
            one.goes(waiting);
            went += 1;
        }
        assert_eq!(went, turns, "{requests:?}");
        assert!(waiting.iter().skip(1).take(turns).all(|next| next.woken() == 1), "each wakes the next");
    }
}
