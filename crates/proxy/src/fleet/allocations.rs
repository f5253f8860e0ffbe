//! What a request allocates in the steady state, on its whole path through a worker: nothing, with plugins or without.
//!
//! A worker is run twice, from its start to its end, with few requests and with many on one connection: its allocations must be the
//! same. What a worker does for itself once per second takes some memory now and then, far less than once per request.

use super::{Fleet, thread};
use crate::plan::{Plan, PlanCell};
use crate::sockets::{InheritedSockets, Sockets};
use allocation_counter::{AllocationInfo, measure};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use stillgate_config::{Config, PluginSet};
use stillgate_limits::Limits;
use stillgate_plugin_api::NoSecrets;
use stillgate_testkit::{Client, Upstream};

/// Enough requests for buffers to have grown to their final size.
const FEW: usize = 200;
/// Additional requests.
const MORE: usize = 1_000;
/// Allocations not made by requests, but by the timers and chores of a slow run.
const OTHERS_MAX: u64 = MORE as u64 / 10;

const LIMIT: &str = "limit-count: {count: 1000000, time_window: 3600}";
const CORS: &str = "cors: {allow_origins: \"https://a.example\", allow_methods: \"GET,POST\", max_age: 600}";
const REWRITE: &str =
    "proxy-rewrite: {regex_uri: [\"^/r/(.*)$\", \"/new/$1\"], headers: {set: {X-A: \"1\", X-B: $remote_addr}}}";
const RESPONSE: &str = "response-rewrite: {headers: {set: {X-C: \"1\"}, add: [\"X-D: $status\"], remove: [X-E]}}";

/// A route with these plugins, and a consumer with others.
fn config(node: &Upstream, route: &str, consumer: &str, extra: &str) -> Config {
    let text = format!(
        "gateway: {{workers: 1, listeners: [{{address: \"127.0.0.1:0\"}}]{extra}}}\n\
         upstreams: [{{id: u, type: roundrobin, nodes: {{\"{}\": 1}}}}]\n\
         consumers: [{{username: jack, labels: {{custom_id: \"7\"}}, plugins: {{key-auth: {{key: k}}{consumer}}}}}]\n\
         routes: [{{id: r, uri: /r*, upstream_id: u, plugins: {{{route}}}}}]\n",
        node.addr()
    );
    let plugins = PluginSet { table: stillgate_plugins::TABLE, secrets: Arc::new(NoSecrets), ..PluginSet::default() };
    stillgate_config::load_with(text, &|_| None, plugins).unwrap().config
}

/// Allocations of a worker's thread from its start to its end, while a client runs in between.
pub(crate) fn measured(config: &Config, plan: Plan, client: impl FnOnce(SocketAddr)) -> AllocationInfo {
    let plans = Arc::new(PlanCell::new(Arc::new(plan)));
    assert!(plans.limits.set(Arc::new(Limits::create(1 << 16).unwrap())).is_ok());
    let sockets = Sockets::open(&config.listeners, 1, &mut InheritedSockets::default()).unwrap();
    let address = sockets.addresses()[0];
    let (fleet, setups) =
        Fleet::set_up(&config.gateway, sockets, plans, Vec::new(), Default::default(), Default::default(), || {})
            .unwrap();
    let commander = fleet.commander();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| measure(|| setups.into_iter().for_each(|setup| thread::run(setup).unwrap())));
        client(address);
        commander.drain(Duration::ZERO);
        worker.join().unwrap()
    })
}

/// How often a worker that serves so many requests allocates.
fn allocations(config: &Config, fields: &str, requests: usize) -> u64 {
    let plan = Plan::build(1, config, &HashMap::new(), None, None, None).unwrap();
    let counted = measured(config, plan, |address| {
        let mut client = Client::connect(address).into_connection();
        for _ in 0..requests {
            client.send(format!("GET /r/a?b=c HTTP/1.1\r\nHost: h.example\r\n{fields}\r\n"));
            assert_eq!(client.read_response("GET").unwrap().head.status(), 200);
        }
    });
    counted.count_total
}

#[track_caller]
fn check(route: &str, consumer: &str, extra: &str, fields: &str) {
    let node = Upstream::echo();
    let config = config(&node, route, consumer, extra);
    let few = allocations(&config, fields, FEW);
    let many = allocations(&config, fields, FEW + MORE);
    let more = many.saturating_sub(few);
    assert!(more <= OTHERS_MAX, "{MORE} requests allocate {more} times");
}

const ALL_FIELDS: &str = "apikey: k\r\nOrigin: https://a.example\r\nX-Forwarded-For: 192.0.2.7\r\n";

#[test]
fn a_request_without_plugins() {
    check("", "", "", ALL_FIELDS);
}

#[test]
fn the_chain_of_five() {
    check(&format!("key-auth: {{}}, {LIMIT}, {CORS}, {REWRITE}, {RESPONSE}"), "", "", ALL_FIELDS);
}

#[test]
fn a_consumer_that_brings_plugins() {
    check(&format!("key-auth: {{}}, {CORS}"), &format!(", {LIMIT}, {REWRITE}, {RESPONSE}"), "", ALL_FIELDS);
}

#[test]
fn a_client_behind_a_trusted_proxy() {
    let forwarded = "proxy-rewrite: {headers: {add: {X-Forwarded-For: 192.0.2.9, X-Forwarded-Proto: https}}}";
    let trusted = ", trusted_proxies: [127.0.0.0/8]";
    check(&format!("key-auth: {{hide_credentials: true}}, {forwarded}"), "", trusted, ALL_FIELDS);
}

#[test]
fn keys_and_rules_that_are_put_together() {
    let rules = "limit-count: {rules: [{count: 1000000, time_window: 60, key: $remote_addr$http_origin}]}";
    let by_regex = "cors: {allow_origins_by_regex: [\"a[.]example$\"], allow_headers: \"**\"}";
    check(&format!("key-auth: {{}}, {rules}, {by_regex}"), "", "", ALL_FIELDS);
}
