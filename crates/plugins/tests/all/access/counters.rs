//! Counters are in the process: APISIX's keys for counters in Redis are refused by name, under each limit.

use super::harness;
use expect_test::expect;
use harness::{plugins, refusal, said_of_store};

const LIMITS: [(&str, &str); 3] = [
    ("limit-count", "count: 1, time_window: 1"),
    ("limit-req", "rate: 1, burst: 1, key: host"),
    ("limit-conn", "conn: 1, burst: 0, default_conn_delay: 1, key: host"),
];

/// The messages of each limit, without their position.
fn said(keys: &str, say: fn(&str) -> String) -> String {
    let of_limit = |(name, needed): (&str, &str)| {
        let said = say(&format!("{name}: {{{needed}, {keys}}}"));
        said.lines().map(|line| format!("{}\n", line.split_once(": ").unwrap_or(("", line)).1)).collect::<String>()
    };
    LIMITS.map(of_limit).concat()
}

#[test]
fn policies_that_are_not_here_are_refused() {
    let all = ["redis", "redis-cluster", "redis-sentinel", "redis-here", "[]"];
    let text: String = all.map(|policy| said(&format!("policy: {policy}"), refusal)).concat();
    expect![[r#"
        limit-count.policy: "redis": counters cannot be kept in Redis yet; write `local`, which counts over all workers of this gateway; several gateways count each for themselves
        limit-req.policy: "redis": counters cannot be kept in Redis yet; write `local`, which counts over all workers of this gateway; several gateways count each for themselves
        limit-conn.policy: "redis": counters cannot be kept in Redis yet; write `local`, which counts over all workers of this gateway; several gateways count each for themselves
        limit-count.policy: "redis-cluster": counters cannot be kept in Redis yet; write `local`, which counts over all workers of this gateway; several gateways count each for themselves
        limit-req.policy: "redis-cluster": counters cannot be kept in Redis yet; write `local`, which counts over all workers of this gateway; several gateways count each for themselves
        limit-conn.policy: "redis-cluster": counters cannot be kept in Redis yet; write `local`, which counts over all workers of this gateway; several gateways count each for themselves
        limit-count.policy: "redis-sentinel": counters cannot be kept in Redis yet; write `local`, which counts over all workers of this gateway; several gateways count each for themselves
        limit-req.policy: "redis-sentinel": counters cannot be kept in Redis yet; write `local`, which counts over all workers of this gateway; several gateways count each for themselves
        limit-conn.policy: "redis-sentinel": counters cannot be kept in Redis yet; write `local`, which counts over all workers of this gateway; several gateways count each for themselves
        limit-count.policy: expected local, found the text "redis-here"
        limit-req.policy: expected local, found the text "redis-here"
        limit-conn.policy: expected local, found the text "redis-here"
        limit-count.policy: expected local, found an empty list
        limit-req.policy: expected local, found an empty list
        limit-conn.policy: expected local, found an empty list
    "#]].assert_eq(&text);
    for (name, needed) in LIMITS {
        assert!(plugins(&format!("{name}: {{{needed}, policy: local}}")).is_ok(), "{name}");
    }
}

#[test]
fn keys_of_counters_in_redis_are_refused() {
    let keys =
        "redis_host: r.test, redis_port: 6379, redis_password: secret, redis_cluster_nodes: [a], redis_sentinels: [{}]";
    expect![[r#"
        limit-count.redis_host: counters cannot be kept in Redis yet; remove the key; `policy: local` counts over all workers of this gateway
        limit-count.redis_port: counters cannot be kept in Redis yet; remove the key; `policy: local` counts over all workers of this gateway
        limit-count.redis_password: counters cannot be kept in Redis yet; remove the key; `policy: local` counts over all workers of this gateway
        limit-count.redis_cluster_nodes: counters cannot be kept in Redis yet; remove the key; `policy: local` counts over all workers of this gateway
        limit-count.redis_sentinels: counters cannot be kept in Redis yet; remove the key; `policy: local` counts over all workers of this gateway
        limit-req.redis_host: counters cannot be kept in Redis yet; remove the key; `policy: local` counts over all workers of this gateway
        limit-req.redis_port: counters cannot be kept in Redis yet; remove the key; `policy: local` counts over all workers of this gateway
        limit-req.redis_password: counters cannot be kept in Redis yet; remove the key; `policy: local` counts over all workers of this gateway
        limit-req.redis_cluster_nodes: counters cannot be kept in Redis yet; remove the key; `policy: local` counts over all workers of this gateway
        limit-req.redis_sentinels: counters cannot be kept in Redis yet; remove the key; `policy: local` counts over all workers of this gateway
        limit-conn.redis_host: counters cannot be kept in Redis yet; remove the key; `policy: local` counts over all workers of this gateway
        limit-conn.redis_port: counters cannot be kept in Redis yet; remove the key; `policy: local` counts over all workers of this gateway
        limit-conn.redis_password: counters cannot be kept in Redis yet; remove the key; `policy: local` counts over all workers of this gateway
        limit-conn.redis_cluster_nodes: counters cannot be kept in Redis yet; remove the key; `policy: local` counts over all workers of this gateway
        limit-conn.redis_sentinels: counters cannot be kept in Redis yet; remove the key; `policy: local` counts over all workers of this gateway
    "#]].assert_eq(&said(keys, refusal));
    let others = "redis_username: u, redis_database: 1, redis_timeout: 1, redis_ssl: true, redis_ssl_verify: true, \
        redis_keepalive_timeout: 1000, redis_keepalive_pool: 1, redis_cluster_name: c, redis_cluster_ssl: true, \
        redis_cluster_ssl_verify: true, redis_master_name: m, redis_role: slave, sentinel_username: u, \
        sentinel_password: p, key_ttl: 1";
    let refused = said(others, refusal);
    let by_name = refused.lines().filter(|line| line.contains("counters cannot be kept in Redis yet"));
    assert_eq!((by_name.count(), refused.lines().count()), (3 * 15, 3 * 15), "{refused}");
}

/// They are harmless in a store that is APISIX's as well, as long as counters are in the process, or the keys have no
/// effect.
#[test]
fn keys_of_counters_in_redis_are_reported_in_a_store() {
    expect![[r#"
        warning: limit-count.redis_host: counters cannot be kept in Redis yet; remove the key; `policy: local` counts over all workers of this gateway
        warning: limit-req.redis_host: counters cannot be kept in Redis yet; remove the key; `policy: local` counts over all workers of this gateway
        warning: limit-conn.redis_host: counters cannot be kept in Redis yet; remove the key; `policy: local` counts over all workers of this gateway
    "#]].assert_eq(&said("policy: local, redis_host: r.test, redis_ssl: false", said_of_store));
    expect![[r#"
        limit-count.policy: "redis-sentinel": counters cannot be kept in Redis yet; write `local`, which counts over all workers of this gateway; several gateways count each for themselves
        limit-req.policy: "redis-sentinel": counters cannot be kept in Redis yet; write `local`, which counts over all workers of this gateway; several gateways count each for themselves
        limit-conn.policy: "redis-sentinel": counters cannot be kept in Redis yet; write `local`, which counts over all workers of this gateway; several gateways count each for themselves
    "#]].assert_eq(&said("policy: redis-sentinel, redis_ssl: false", said_of_store));
}
