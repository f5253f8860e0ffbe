//! How a balancer handles failing endpoints: how many are ejected, which are used instead, how they return.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use stillgate_config::{Balance, CheckType, Checks, PassiveCheck, PassiveHealthy, PassiveUnhealthy};
use stillgate_upstream::{
    Balancer, Endpoint, Failure, HealthVerdict, News, SET_ASIDE_FIRST_MS, TriedEndpoints, TryReport, share_verdicts,
};

const REFUSED: TryReport = TryReport::Failed(Failure::Connect);

fn endpoints(count: u8) -> Vec<Endpoint> {
    (0..count)
        .map(|n| Endpoint {
            address: SocketAddr::from(([10, 0, 0, n], 80)),
            weight: 1,
            priority: 0,
            host: format!("10.0.0.{n}").into(),
            verdict: None,
        })
        .collect()
}

fn checked(count: u8) -> (Vec<Endpoint>, Vec<Arc<HealthVerdict>>) {
    let mut endpoints = endpoints(count);
    share_verdicts(&mut endpoints, &[]);
    let verdicts = endpoints.iter().map(|endpoint| endpoint.verdict.clone().unwrap()).collect();
    (endpoints, verdicts)
}

/// One failure ejects, and one success restores.
fn passive(max_ejected_percent: u32, slow_start: Duration) -> Arc<Checks> {
    let passive = PassiveCheck {
        r#type: CheckType::Http,
        healthy: PassiveHealthy { http_statuses: vec![200], successes: 1 },
        unhealthy: PassiveUnhealthy { http_statuses: vec![500], http_failures: 1, tcp_failures: 1, timeouts: 1 },
    };
    Arc::new(Checks { active: None, passive: Some(passive), max_ejected_percent, slow_start })
}

fn balancer(endpoints: &[Endpoint], checks: Option<&Arc<Checks>>) -> Balancer {
    let mut balancer = Balancer::new(&Balance::RoundRobin, endpoints);
    balancer.set_checks(checks);
    balancer
}

/// How often each of four is chosen.
fn shares(balancer: &mut Balancer, now_ms: u64, picks: usize) -> [usize; 4] {
    let mut shares = [0; 4];
    for n in 0..picks as u64 {
        let random = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        shares[balancer.pick(Some(&n.to_le_bytes()), now_ms, random, &TriedEndpoints::new()).unwrap()] += 1;
    }
    shares
}

#[test]
fn no_more_are_ejected_than_allowed_and_one_always_stays() {
    for (count, percent, allowed) in [(1, 100, 0), (2, 50, 1), (3, 50, 1), (4, 50, 2), (4, 100, 3), (3, 30, 0)] {
        let mut balancer = balancer(&endpoints(count), Some(&passive(percent, Duration::ZERO)));
        let ejected = (0..usize::from(count)).filter(|&index| balancer.report(index, REFUSED, 1).is_some()).count();
        assert_eq!(ejected, allowed, "{percent} % of {count}");
    }
}

#[test]
fn one_that_could_not_be_ejected_is_when_there_is_room() {
    let mut balancer = balancer(&endpoints(3), Some(&passive(50, Duration::ZERO)));
    assert_eq!(balancer.report(0, REFUSED, 1), Some(News::SetAside { period_ms: SET_ASIDE_FIRST_MS }));
    assert_eq!(balancer.report(1, REFUSED, 1), None);
    let probe = 1 + SET_ASIDE_FIRST_MS;
    while balancer.pick(None, probe, 0, &TriedEndpoints::new()) != Some(0) {}
    assert_eq!(balancer.report(0, TryReport::Status(200), probe), Some(News::Recovered));
    assert_eq!(
        balancer.report(1, TryReport::Status(500), probe),
        Some(News::SetAside { period_ms: SET_ASIDE_FIRST_MS })
    );
    let shares = shares(&mut balancer, probe, 10);
    assert!(shares[0] >= 4 && shares[1] == 0 && shares[2] >= 4, "{shares:?}");
}

#[test]
fn what_active_checks_find_is_seen_at_once_by_all_methods() {
    use stillgate_route::Variable;
    let methods =
        [Balance::RoundRobin, Balance::LeastConn, Balance::Ewma, Balance::ConsistentHash(Variable::Uri.into())];
    for method in methods {
        let (endpoints, verdicts) = checked(4);
        let mut balancer = Balancer::new(&method, &endpoints);
        assert!(shares(&mut balancer, 0, 400).iter().all(|share| *share > 0), "{method:?}");
        assert!(verdicts[1].set(false) && !verdicts[1].set(false));
        assert_eq!(shares(&mut balancer, 0, 400)[1], 0, "{method:?}");
        assert!(verdicts[1].set(true));
        assert!(shares(&mut balancer, 0, 400)[1] > 0, "{method:?}");
    }
}

#[test]
fn when_active_checks_fail_all_they_take_turns() {
    let (endpoints, verdicts) = checked(4);
    let mut balancer = Balancer::new(&Balance::RoundRobin, &endpoints);
    assert!(verdicts.iter().all(|verdict| verdict.set(false)));
    assert_eq!(shares(&mut balancer, 0, 40), [10; 4]);
    // Endpoints that have also failed requests come last.
    balancer.report(2, REFUSED, 7);
    assert_eq!(shares(&mut balancer, 8, 30), [10, 10, 0, 10]);
    verdicts[3].set(true);
    assert_eq!(shares(&mut balancer, 8, 10), [0, 0, 0, 10]);
}

#[test]
fn a_peer_that_stays_keeps_what_was_found_of_it() {
    let (before, verdicts) = checked(2);
    verdicts[1].set(false);
    let mut after = endpoints(3);
    after.rotate_left(1);
    share_verdicts(&mut after, &before);
    assert_eq!(after[0], before[1]);
    assert!(!after[0].verdict.as_ref().unwrap().is_healthy());
    assert_ne!(after[1].verdict, before[0].verdict);
    assert_eq!(after[2], before[0]);
}

#[test]
fn the_weight_of_one_that_has_recovered_grows() {
    let (endpoints, verdicts) = checked(2);
    let mut balancer = balancer(&endpoints, Some(&passive(50, Duration::from_secs(10))));
    assert_eq!(shares(&mut balancer, 0, 100), [50, 50, 0, 0], "none has recovered");
    let check = |balancer: &mut Balancer, from_ms: u64| {
        for (elapsed_ms, percent) in [(0, 10), (5_000, 55), (9_999, 100), (10_000, 100), (60_000, 100)] {
            let share = shares(balancer, from_ms + elapsed_ms, 1_100)[1] as f64;
            let expected = 1_100.0 * percent as f64 / (100.0 + percent as f64);
            assert!((share - expected).abs() < 6.0, "{elapsed_ms} ms: {share} of 1100, expected {expected}");
        }
    };
    verdicts[1].set(false);
    assert_eq!(shares(&mut balancer, 1_000, 10), [10, 0, 0, 0]);
    verdicts[1].set(true);
    check(&mut balancer, 2_000);
    // And after passive checks have ejected it.
    balancer.report(1, REFUSED, 100_000);
    while balancer.pick(None, 102_000, 0, &TriedEndpoints::new()) != Some(1) {}
    assert_eq!(balancer.report(1, TryReport::Status(200), 102_000), Some(News::Recovered));
    check(&mut balancer, 102_000);
}

#[test]
fn without_slow_start_all_of_the_weight_is_back_at_once() {
    let (endpoints, verdicts) = checked(2);
    let mut balancer = balancer(&endpoints, Some(&passive(50, Duration::from_secs(10))));
    shares(&mut balancer, 0, 2);
    verdicts[0].set(false);
    verdicts[0].set(true);
    assert!(shares(&mut balancer, 5, 100)[0] < 20);
    balancer.set_checks(Some(&passive(50, Duration::ZERO)));
    let share = shares(&mut balancer, 6, 100)[0];
    assert!((48..=52).contains(&share), "{share}");
}
