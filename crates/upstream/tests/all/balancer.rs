//! How requests are spread: the methods against their definitions, and what holds for all of them.

use proptest::prelude::*;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use stillgate_config::Balance;
use stillgate_route::Variable;
use stillgate_upstream::{Balancer, Endpoint, Failure, HealthVerdict, SET_ASIDE_FIRST_MS, TriedEndpoints, TryReport};

fn chash() -> Balance {
    Balance::ConsistentHash(Variable::Uri.into())
}

fn methods() -> [Balance; 4] {
    [Balance::RoundRobin, Balance::LeastConn, chash(), Balance::Ewma]
}

/// `10.0.0.N:80` for the N-th of `(weight, priority)`, from 0.
fn endpoints(nodes: &[(u32, i32)]) -> Vec<Endpoint> {
    nodes
        .iter()
        .enumerate()
        .map(|(n, &(weight, priority))| Endpoint {
            address: SocketAddr::from(([10, 0, (n >> 8) as u8, n as u8], 80)),
            weight,
            priority,
            host: format!("10.0.{}.{}", n >> 8, n & 255).into(),
            verdict: None,
        })
        .collect()
}

fn weighted(weights: &[u32]) -> Vec<Endpoint> {
    endpoints(&weights.iter().map(|w| (*w, 0)).collect::<Vec<_>>())
}

fn round_robin(weights: &[u32], picks: usize) -> String {
    let mut balancer = Balancer::new(&Balance::RoundRobin, &weighted(weights));
    (0..picks)
        .map(|_| balancer.pick(None, 0, 0, &TriedEndpoints::new()).unwrap())
        .map(|index| char::from(b'a' + index as u8))
        .collect()
}

/// A stream of different, well-mixed numbers.
fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[test]
fn round_robin_is_smooth() {
    assert_eq!(round_robin(&[5, 1, 1], 14), "aabacaaaabacaa");
    assert_eq!(round_robin(&[1, 1, 1], 6), "abcabc");
    assert_eq!(round_robin(&[0, 3, 1], 4), "bbcb");
}

#[test]
fn a_light_member_is_not_starved_when_a_heavy_one_is_gone() {
    let all = weighted(&[1, 1, 1_000]);
    let mut balancer = Balancer::new(&Balance::RoundRobin, &all);
    for _ in 0..501 {
        balancer.pick(None, 0, 0, &TriedEndpoints::new());
    }
    balancer.redefine(&Balance::RoundRobin, &all[..2]);
    let picks: Vec<_> = (0..8).map(|_| balancer.pick(None, 0, 0, &TriedEndpoints::new()).unwrap()).collect();
    for index in 0..2 {
        assert!(picks.iter().filter(|p| **p == index).count() >= 3, "{picks:?}");
    }
}

#[test]
fn lower_tiers_only_when_all_higher_are_unusable() {
    for balance in methods() {
        let nodes = endpoints(&[(1, 0), (1, 5), (1, 5), (9, -1)]);
        let mut balancer = Balancer::new(&balance, &nodes);
        let mut tried = TriedEndpoints::new();
        let mut order = Vec::new();
        while let Some(index) = balancer.pick(Some(b"k"), 0, 7, &tried) {
            order.push(nodes[index].priority);
            tried.insert(index);
        }
        assert_eq!(order, [5, 5, 0, -1], "{balance:?}");
        for index in [1, 2] {
            balancer.report(index, TryReport::Failed(Failure::Connect), 0);
        }
        assert_eq!(balancer.pick(Some(b"k"), 1, 7, &TriedEndpoints::new()), Some(0));
        balancer.report(2, TryReport::Connected, 0);
        assert_eq!(balancer.pick(Some(b"k"), 1, 7, &TriedEndpoints::new()), Some(2));
    }
}

#[test]
fn when_all_are_set_aside_the_least_recently_failed_is_tried() {
    for balance in methods() {
        let mut balancer = Balancer::new(&balance, &weighted(&[1, 1, 1, 0]));
        for (index, now_ms) in [(0, 20), (1, 10), (2, 30)] {
            balancer.report(index, TryReport::Failed(Failure::Connect), now_ms);
        }
        let mut tried = TriedEndpoints::new();
        let mut order = Vec::new();
        while let Some(index) = balancer.pick(Some(b"k"), 40, 0, &tried) {
            order.push(index);
            tried.insert(index);
        }
        assert_eq!(order, [1, 0, 2], "{balance:?}");
    }
}

#[test]
fn a_returning_endpoint_gets_one_probe() {
    let mut balancer = Balancer::new(&Balance::RoundRobin, &weighted(&[1, 1]));
    balancer.report(0, TryReport::Failed(Failure::Connect), 0);
    let picks = |balancer: &mut Balancer, now_ms| -> usize {
        (0..10).filter(|_| balancer.pick(None, now_ms, 0, &TriedEndpoints::new()) == Some(0)).count()
    };
    assert_eq!(picks(&mut balancer, SET_ASIDE_FIRST_MS - 1), 0);
    assert_eq!(picks(&mut balancer, SET_ASIDE_FIRST_MS), 1);
    balancer.report(0, TryReport::Connected, 0);
    assert_eq!(picks(&mut balancer, SET_ASIDE_FIRST_MS), 5);
}

#[test]
fn least_conn_fills_by_weight() {
    let mut balancer = Balancer::new(&Balance::LeastConn, &weighted(&[3, 1, 2]));
    let mut active = [0; 3];
    for _ in 0..12 {
        let index = balancer.pick(None, 0, 0, &TriedEndpoints::new()).unwrap();
        balancer.on_start(index);
        active[index] += 1;
    }
    assert_eq!(active, [6, 2, 4]);
    balancer.on_finish(1, None, 0);
    assert_eq!(balancer.pick(None, 0, 0, &TriedEndpoints::new()), Some(1));
}

#[test]
fn ewma_avoids_a_slow_member_and_tries_it_again_later() {
    let mut balancer = Balancer::new(&Balance::Ewma, &weighted(&[1, 1, 1]));
    let latency_us = [1_000, 1_000, 100_000];
    let mut run = |from_ms: u64, latency_us: [u32; 3]| {
        let mut counts = [0u32; 3];
        for n in 0..1_000 {
            let now_ms = from_ms + n;
            let index = balancer.pick(None, now_ms, mix(now_ms), &TriedEndpoints::new()).unwrap();
            balancer.on_start(index);
            balancer.on_finish(index, Some(latency_us[index] + (mix(n) % 512) as u32), now_ms);
            counts[index] += 1;
        }
        counts
    };
    let slow = run(0, latency_us);
    assert!(slow[2] < 20 && slow[0] > 200 && slow[1] > 200, "{slow:?}");
    run(60_000, [1_000; 3]);
    let well = run(75_000, [1_000; 3]);
    assert!(well.iter().all(|count| *count > 200), "{well:?}");
}

#[test]
fn ewma_honours_weights_under_load() {
    let weights = [4, 2, 1, 1];
    let mut balancer = Balancer::new(&Balance::Ewma, &weighted(&weights));
    let mut counts = [0u32; 4];
    let mut under_way = std::collections::VecDeque::new();
    for n in 0..8_000u64 {
        let index = balancer.pick(None, n, mix(n), &TriedEndpoints::new()).unwrap();
        balancer.on_start(index);
        under_way.push_back(index);
        counts[index] += 1;
        if under_way.len() > 64 {
            let index = under_way.pop_front().unwrap();
            balancer.on_finish(index, Some(64_000), n);
        }
    }
    for (count, weight) in counts.iter().zip(weights) {
        let share = f64::from(*count) / 1_000.0;
        assert!((share / f64::from(weight) - 1.0).abs() < 0.25, "{counts:?}");
    }
}

/// What nginx 1.22.1 answers for `hash $arg_k consistent` with these servers and keys.
#[test]
fn the_ring_is_that_of_nginx() {
    let nodes: Vec<_> = [(1u8, 1), (2, 2), (3, 1)]
        .iter()
        .map(|&(n, weight)| Endpoint {
            address: SocketAddr::from(([127, 0, 0, n], 18081)),
            weight,
            priority: 0,
            host: format!("127.0.0.{n}:18081").into(),
            verdict: None,
        })
        .collect();
    let mut balancer = Balancer::new(&chash(), &nodes);
    let found: String = (0..40)
        .map(|n| format!("key-{n}"))
        .map(|key| balancer.pick(Some(key.as_bytes()), 0, 0, &TriedEndpoints::new()).unwrap())
        .map(|index| char::from(b'1' + index as u8))
        .collect();
    assert_eq!(found, "2332211212223331211133222222322323212222");
}

fn owners(balancer: &mut Balancer, tried: &TriedEndpoints) -> HashMap<String, SocketAddr> {
    (0..500)
        .map(|n| {
            let key = format!("key-{n}");
            let index = balancer.pick(Some(key.as_bytes()), 0, 0, tried).unwrap();
            (key, balancer.endpoint(index).address)
        })
        .collect()
}

proptest! {
    #[test]
    fn round_robin_is_exact_over_a_cycle(weights in prop::collection::vec(0u32..20, 1..9)) {
        let total = weights.iter().sum::<u32>() as usize;
        let mut balancer = Balancer::new(&Balance::RoundRobin, &weighted(&weights));
        for _cycle in 0..2 {
            let mut counts = vec![0; weights.len()];
            for _ in 0..total {
                counts[balancer.pick(None, 0, 0, &TriedEndpoints::new()).unwrap()] += 1;
            }
            prop_assert_eq!(&counts, &weights);
        }
    }

    #[test]
    fn least_conn_is_least(
        weights in prop::collection::vec(1u32..6, 1..8),
        ends in prop::collection::vec(any::<prop::sample::Index>(), 1..60),
    ) {
        let mut balancer = Balancer::new(&Balance::LeastConn, &weighted(&weights));
        let mut active = vec![0u32; weights.len()];
        for end in ends {
            let index = balancer.pick(None, 0, 0, &TriedEndpoints::new()).unwrap();
            let load = |n: usize| f64::from(active[n]) / f64::from(weights[n]);
            prop_assert!((0..weights.len()).all(|n| load(index) <= load(n)));
            balancer.on_start(index);
            active[index] += 1;
            let ended = end.index(weights.len());
            if active[ended] > 0 && active.iter().sum::<u32>() % 3 == 0 {
                balancer.on_finish(ended, None, 0);
                active[ended] -= 1;
            }
        }
    }

    #[test]
    fn ketama_moves_only_the_keys_of_the_node_that_is_gone(
        weights in prop::collection::vec(1u32..4, 2..10),
        gone in any::<prop::sample::Index>(),
    ) {
        let all = weighted(&weights);
        let gone = gone.index(all.len());
        let mut rest = all.clone();
        rest.remove(gone);
        let mut balancer = Balancer::new(&chash(), &all);
        let before = owners(&mut balancer, &TriedEndpoints::new());

        let after = owners(&mut Balancer::new(&chash(), &rest), &TriedEndpoints::new());
        for (key, owner) in &before {
            prop_assert!(after[key] == *owner || *owner == all[gone].address);
        }
        let mut tried = TriedEndpoints::new();
        tried.insert(gone);
        prop_assert_eq!(&owners(&mut balancer, &tried), &after, "tried is as good as gone");
        balancer.report(gone, TryReport::Failed(Failure::Connect), 0);
        prop_assert_eq!(&owners(&mut balancer, &TriedEndpoints::new()), &after, "so is set aside");
        balancer.report(gone, TryReport::Connected, 0);
        prop_assert_eq!(&owners(&mut balancer, &TriedEndpoints::new()), &before, "and its keys come back");
        rest.reverse();
        let reversed = owners(&mut Balancer::new(&chash(), &rest), &TriedEndpoints::new());
        prop_assert_eq!(&reversed, &after, "whatever the order");
    }

    #[test]
    fn pick_keeps_to_tried_weight_tier_and_set_aside(
        method in 0usize..4,
        nodes in prop::collection::vec((0u32..4, -1i32..2), 0..160),
        failed in prop::collection::vec(any::<prop::sample::Index>(), 0..200),
        randoms in prop::collection::vec(any::<u64>(), 8),
    ) {
        let all = endpoints(&nodes);
        let mut balancer = Balancer::new(&methods()[method], &all);
        let mut aside = vec![false; all.len()];
        if !all.is_empty() {
            for index in failed.iter().map(|index| index.index(all.len())) {
                balancer.report(index, TryReport::Failed(Failure::Connect), 5);
                aside[index] = true;
            }
        }
        let mut tried = TriedEndpoints::new();
        loop {
            let random = randoms[tried.len() % randoms.len()];
            let open = |n: &usize| all[*n].weight > 0 && !tried.contains(*n);
            let usable = |n: &usize| open(n) && !aside[*n];
            let key = random.to_le_bytes();
            let Some(index) = balancer.pick(Some(&key), 6, random, &tried) else {
                prop_assert!(!(0..all.len()).any(|n| open(&n)));
                break;
            };
            prop_assert!(open(&index));
            match (0..all.len()).filter(usable).map(|n| all[n].priority).max() {
                Some(best) => prop_assert!(usable(&index) && all[index].priority == best),
                None => prop_assert!(aside[index]),
            }
            tried.insert(index);
        }
    }
}

#[test]
fn what_can_move_leaves_for_what_is_better() {
    let failed = TryReport::Failed(Failure::Connect);
    let mut nodes = weighted(&[1, 1]);
    let verdict = Arc::new(HealthVerdict::default());
    nodes[0].verdict = Some(verdict.clone());
    let mut balancer = Balancer::new(&Balance::RoundRobin, &nodes);
    assert!(!balancer.is_to_be_left(0, 5, 10), "all is well");
    balancer.report(0, failed, 10);
    assert!(balancer.is_to_be_left(0, 5, 10), "it has failed since");
    assert!(!balancer.is_to_be_left(0, 10, 10), "with this it is tried");
    assert!(!balancer.is_to_be_left(0, 5, 10 + SET_ASIDE_FIRST_MS), "it may be well again");
    balancer.report(1, failed, 11);
    assert!(!balancer.is_to_be_left(0, 5, 11), "the other is no better");
    let later = 11 + SET_ASIDE_FIRST_MS;
    verdict.set(false);
    assert!(balancer.is_to_be_left(0, 5, later), "found unhealthy");
    balancer.report(1, failed, later);
    assert!(!balancer.is_to_be_left(0, 5, later), "the other is no better again");
    verdict.set(true);
    assert!(!balancer.is_to_be_left(0, 5, later));
    balancer.on_start(0);
    balancer.redefine(&Balance::RoundRobin, &nodes[1..]);
    assert!(balancer.is_to_be_left(0, 5, later), "it is gone");
    balancer.redefine(&Balance::RoundRobin, &[]);
    assert!(balancer.is_to_be_left(0, 5, later), "and nobody is better");
}
