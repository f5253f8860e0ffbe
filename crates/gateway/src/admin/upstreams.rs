//! What `GET /v1/upstreams` answers; the only owner of its JSON shapes.
//!
//! It combines three sources: the Plan lists the endpoints, the checks report their state, and each worker reports which nodes it
//! has set aside and how busy they are.

use serde::Serialize;
use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use stillgate_config::{Balance, Host, Upstream};
use stillgate_health::{CheckOutcome, CheckRecord};
use stillgate_proxy::access_log::rfc3339;
use stillgate_proxy::{Plan, UpstreamOverview, describe_failure};
use stillgate_upstream::{Circuit, Endpoint, EndpointStatus, NodeFigures, TryReport};

/// The part that is known before workers are asked.
pub(crate) struct UpstreamsSnapshot {
    pub(crate) plan: Arc<Plan>,
    pub(crate) records: HashMap<Peer, CheckRecord>,
    /// Names without addresses, and why.
    pub(crate) unresolved: HashMap<String, String>,
}

/// An upstream's key, and an endpoint's address and host.
pub(crate) type Peer = (String, SocketAddr, Arc<str>);

/// `GET /v1/upstreams`.
#[derive(Debug, Serialize)]
pub(crate) struct Upstreams {
    upstreams: Vec<UpstreamStatus>,
    /// Workers that did not answer in time, numbered from 0: their part is missing.
    silent_workers: Vec<usize>,
}

#[derive(Debug, Serialize)]
struct UpstreamStatus {
    /// Its id, or `routes/ID` or `services/ID` for one written inline.
    id: String,
    /// Its `name`; null where it has none.
    name: Option<String>,
    /// How a node is chosen, as `type` of an upstream.
    r#type: &'static str,
    /// Requests that wait for a place among those in flight.
    requests_waiting: usize,
    endpoints: Vec<NodeStatus>,
    /// The names of its nodes without an address. Their nodes are not among the endpoints.
    unresolved: Vec<UnresolvedName>,
}

#[derive(Debug, Serialize)]
struct UnresolvedName {
    name: String,
    reason: String,
}

#[derive(Debug, Serialize)]
struct NodeStatus {
    address: SocketAddr,
    host: String,
    weight: u32,
    priority: i32,
    state: NodeState,
    /// Null where no active checks are configured.
    active_checks: Option<ActiveChecks>,
    /// The workers that have set it aside.
    set_aside: Vec<SetAside>,
    requests_in_flight: u64,
    idle_connections: u64,
    /// Responses and failed tries since the workers know the node.
    requests_total: u64,
    /// Responses with a status of 5xx, and failed tries.
    errors_total: u64,
    /// The sum of the times to a response's head.
    response_seconds_total: f64,
    /// Why it gets no requests, or fewer; null while it is healthy.
    out_reason: Option<String>,
}

/// The worst known state of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum NodeState {
    Healthy,
    /// Some worker has set it aside.
    SetAside,
    /// Active checks have failed: all workers avoid it.
    Unhealthy,
}

#[derive(Debug, Serialize)]
struct ActiveChecks {
    healthy: bool,
    /// When that last changed, RFC 3339; null: never.
    since: Option<String>,
    /// The reason.
    reason: Option<String>,
    checks: u64,
    failures: u64,
    last: Option<LastCheck>,
}

#[derive(Debug, Serialize)]
struct LastCheck {
    at: String,
    latency_ms: f64,
    /// Null without a response.
    status: Option<u16>,
    /// Null where a response came, or where only a connection is checked.
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct SetAside {
    /// Number of the worker, from 0.
    worker: usize,
    circuit: &'static str,
    /// Time left, in milliseconds.
    for_ms: u64,
    /// Set-aside periods in a row.
    periods: u32,
    /// Requests of this worker to the node: where the circuit is half open, the one that tests it.
    requests_in_flight: u32,
}

impl Upstreams {
    /// `answers`: each worker's, as [`stillgate_proxy::Inquiry::ask`] returns them.
    /// `name_of`: the name of the upstream with an id.
    pub(crate) fn new(
        snapshot: &UpstreamsSnapshot,
        answers: Vec<Option<Vec<UpstreamOverview>>>,
        name_of: impl Fn(&str) -> Option<String>,
    ) -> Upstreams {
        let workers = answers.len();
        let silent_workers = (0..answers.len()).filter(|worker| answers[*worker].is_none()).collect();
        let mut by_peer: HashMap<Peer, Vec<(usize, EndpointStatus)>> = HashMap::new();
        let mut by_upstream: HashMap<String, usize> = HashMap::new();
        for (worker, overview) in answers.into_iter().enumerate() {
            for UpstreamOverview { upstream, waiting, nodes } in overview.into_iter().flatten() {
                *by_upstream.entry(upstream.clone()).or_default() += waiting;
                for node in nodes {
                    let peer = (upstream.clone(), node.address, node.host.clone());
                    by_peer.entry(peer).or_default().push((worker, node));
                }
            }
        }
        let node = |key: &str, endpoint: &Endpoint| {
            let peer = (key.to_owned(), endpoint.address, endpoint.host.clone());
            let known = by_peer.get(&peer).map_or(&[][..], Vec::as_slice);
            NodeStatus::new(endpoint, snapshot.records.get(&peer), known, workers)
        };
        let upstreams = snapshot.plan.upstreams().map(|(definition, endpoints)| UpstreamStatus {
            id: definition.key.clone(),
            name: name_of(&definition.key),
            r#type: type_of(&definition.balance),
            requests_waiting: by_upstream.get(&definition.key).copied().unwrap_or_default(),
            endpoints: endpoints.iter().map(|endpoint| node(&definition.key, endpoint)).collect(),
            unresolved: unresolved_of(definition, &snapshot.unresolved),
        });
        Upstreams { upstreams: upstreams.collect(), silent_workers }
    }
}

fn unresolved_of(upstream: &Upstream, unresolved: &HashMap<String, String>) -> Vec<UnresolvedName> {
    let names = upstream.nodes.iter().filter_map(|node| match &node.host {
        Host::Name(name) => Some(name),
        Host::Ip(_) => None,
    });
    // Several nodes may have one name.
    let names: BTreeSet<&String> = names.collect();
    let found = names.into_iter().filter_map(|name| Some((name, unresolved.get(name)?)));
    found.map(|(name, reason)| UnresolvedName { name: name.clone(), reason: reason.clone() }).collect()
}

fn type_of(balance: &Balance) -> &'static str {
    match balance {
        Balance::RoundRobin => "roundrobin",
        Balance::LeastConn => "least_conn",
        Balance::ConsistentHash(_) => "chash",
        Balance::Ewma => "ewma",
    }
}

/// Why a node gets no requests, or fewer.
fn out_reason(
    checks: Option<&ActiveChecks>,
    set_aside: &[SetAside],
    nodes: &[(usize, EndpointStatus)],
    workers: usize,
) -> Option<String> {
    if let Some(checks) = checks.filter(|checks| !checks.healthy) {
        let reason = checks.reason.as_deref().unwrap_or("no result yet");
        return Some(format!("active checks fail: {reason}"));
    }
    let longest = set_aside.iter().max_by_key(|of| of.periods)?;
    let last = nodes.iter().filter(|(_, node)| node.failures > 0).find_map(|(_, node)| node.figures.last_error);
    let last = last.map_or_else(String::new, |last| format!("; last: {}", error_words(last)));
    let times = if longest.periods == 1 { "once".to_owned() } else { format!("{} times in a row", longest.periods) };
    Some(format!("set aside {times} after failures, by {} of {workers} workers{last}", set_aside.len()))
}

fn error_words(error: TryReport) -> String {
    match error {
        TryReport::Status(status) => format!("status {status}"),
        TryReport::Failed(failure) => describe_failure(failure).to_owned(),
        TryReport::Connected | TryReport::Opened | TryReport::Inconclusive => "unknown".to_owned(),
    }
}

impl NodeStatus {
    fn new(
        endpoint: &Endpoint,
        record: Option<&CheckRecord>,
        nodes: &[(usize, EndpointStatus)],
        workers: usize,
    ) -> NodeStatus {
        let active_checks = endpoint.verdict.as_ref().map(|verdict| ActiveChecks::new(verdict.is_healthy(), record));
        let is_away = |(worker, node): &(usize, EndpointStatus)| {
            let circuit = match node.circuit {
                Circuit::Closed => return None,
                Circuit::Open => "open",
                Circuit::HalfOpen => "half_open",
            };
            Some(SetAside {
                worker: *worker,
                circuit,
                for_ms: node.set_aside_ms,
                periods: node.failures,
                requests_in_flight: node.active,
            })
        };
        let set_aside: Vec<SetAside> = nodes.iter().filter_map(is_away).collect();
        let state = match &active_checks {
            Some(checks) if !checks.healthy => NodeState::Unhealthy,
            _ if !set_aside.is_empty() => NodeState::SetAside,
            _ => NodeState::Healthy,
        };
        let sum = |of: fn(&NodeFigures) -> u64| nodes.iter().map(|(_, node)| of(&node.figures)).sum::<u64>();
        NodeStatus {
            out_reason: out_reason(active_checks.as_ref(), &set_aside, nodes, workers),
            address: endpoint.address,
            host: endpoint.host.to_string(),
            weight: endpoint.weight,
            priority: endpoint.priority,
            state,
            active_checks,
            set_aside,
            requests_in_flight: nodes.iter().map(|(_, node)| u64::from(node.active)).sum(),
            idle_connections: nodes.iter().map(|(_, node)| node.idle as u64).sum(),
            requests_total: sum(|figures| figures.requests),
            errors_total: sum(|figures| figures.errors),
            response_seconds_total: sum(|figures| figures.answered_us) as f64 / 1e6,
        }
    }
}

impl ActiveChecks {
    fn new(healthy: bool, record: Option<&CheckRecord>) -> ActiveChecks {
        let changed = record.and_then(|record| record.changed.as_ref());
        let last = record.and_then(|record| record.last.as_ref()).map(|last| LastCheck {
            at: rfc3339(last.at_unix_ms),
            latency_ms: (last.latency.as_secs_f64() * 1e6).round() / 1e3,
            status: match last.outcome {
                CheckOutcome::Status(status) => Some(status),
                _ => None,
            },
            error: match &last.outcome {
                CheckOutcome::Status(_) | CheckOutcome::Connected => None,
                other => Some(other.to_string()),
            },
        });
        ActiveChecks {
            healthy,
            since: changed.map(|(at_unix_ms, _)| rfc3339(*at_unix_ms)),
            reason: changed.map(|(_, reason)| reason.clone()),
            checks: record.map_or(0, |record| record.checks),
            failures: record.map_or(0, |record| record.failures),
            last,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use std::time::Duration;
    use stillgate_health::Last;

    fn overview(endpoint: &Endpoint, circuit: Circuit, active: u32) -> Option<Vec<UpstreamOverview>> {
        let failures = u32::from(circuit != Circuit::Closed);
        let node = EndpointStatus {
            address: endpoint.address,
            host: endpoint.host.clone(),
            active,
            idle: 2,
            circuit,
            failures,
            set_aside_ms: if circuit == Circuit::Open { 800 } else { 0 },
            figures: NodeFigures {
                requests: 10,
                errors: 3,
                answered_us: 1_500_000,
                last_error: Some(TryReport::Status(502)),
            },
        };
        Some(vec![UpstreamOverview { upstream: "u".to_owned(), waiting: 2, nodes: vec![node] }])
    }

    #[test]
    fn what_each_side_knows_is_put_together() {
        let text = "upstreams: [{id: u, nodes: {\"10.0.0.1:81\": 1, \"10.0.0.2:81\": 2, \"10.0.0.3:81\": 0}, checks: {active: \
                    {}}}]\nroutes: []\n";
        let config = stillgate_config::load(text, &|_| None).unwrap().config;
        let plan = Arc::new(Plan::build(1, &config, &HashMap::new(), None, None, None).unwrap());
        let endpoints = plan.upstreams().next().unwrap().1.to_vec();
        endpoints[0].verdict.as_ref().unwrap().set(false);
        let last =
            Last { at_unix_ms: 60_500, outcome: CheckOutcome::TimedOut, latency: Duration::from_micros(1_000_500) };
        let changed = Some((60_500, "3 timeouts: timed out".to_owned()));
        let record = CheckRecord { checks: 7, failures: 3, last: Some(last), changed };
        let peer = ("u".to_owned(), endpoints[0].address, endpoints[0].host.clone());
        let snapshot = UpstreamsSnapshot {
            plan: plan.clone(),
            records: HashMap::from([(peer, record)]),
            unresolved: HashMap::new(),
        };
        let answers =
            vec![overview(&endpoints[1], Circuit::Open, 1), None, overview(&endpoints[1], Circuit::Closed, 3)];
        let shown = serde_json::to_string(&Upstreams::new(&snapshot, answers, |key| Some(format!("name of {key}"))))
            .unwrap()
            .replace("},{", "},\n{");
        expect![[r#"
            {"upstreams":[{"id":"u","name":"name of u","type":"roundrobin","requests_waiting":4,"endpoints":[{"address":"10.0.0.1:81","host":"10.0.0.1:81","weight":1,"priority":0,"state":"unhealthy","active_checks":{"healthy":false,"since":"1970-01-01T00:01:00.500Z","reason":"3 timeouts: timed out","checks":7,"failures":3,"last":{"at":"1970-01-01T00:01:00.500Z","latency_ms":1000.5,"status":null,"error":"timed out"}},"set_aside":[],"requests_in_flight":0,"idle_connections":0,"requests_total":0,"errors_total":0,"response_seconds_total":0.0,"out_reason":"active checks fail: 3 timeouts: timed out"},
            {"address":"10.0.0.2:81","host":"10.0.0.2:81","weight":2,"priority":0,"state":"set_aside","active_checks":{"healthy":true,"since":null,"reason":null,"checks":0,"failures":0,"last":null},"set_aside":[{"worker":0,"circuit":"open","for_ms":800,"periods":1,"requests_in_flight":1}],"requests_in_flight":4,"idle_connections":4,"requests_total":20,"errors_total":6,"response_seconds_total":3.0,"out_reason":"set aside once after failures, by 1 of 3 workers; last: status 502"},
            {"address":"10.0.0.3:81","host":"10.0.0.3:81","weight":0,"priority":0,"state":"healthy","active_checks":{"healthy":true,"since":null,"reason":null,"checks":0,"failures":0,"last":null},"set_aside":[],"requests_in_flight":0,"idle_connections":0,"requests_total":0,"errors_total":0,"response_seconds_total":0.0,"out_reason":null}],"unresolved":[]}],"silent_workers":[1]}"#]].assert_eq(&shown);
    }

    #[test]
    fn names_without_addresses_are_listed_with_their_upstream() {
        let text = "upstreams: [{id: u, nodes: {\"a.test:81\": 1, \"a.test:82\": 1, \"b.test:81\": 1}}, {id: v, nodes: \
                    {\"b.test:81\": 1}}]\nroutes: []\n";
        let config = stillgate_config::load(text, &|_| None).unwrap().config;
        let addresses = HashMap::from([("b.test".to_owned(), vec!["10.0.0.1".parse().unwrap()])]);
        let plan = Arc::new(Plan::build(1, &config, &addresses, None, None, None).unwrap());
        let unresolved = HashMap::from([("a.test".to_owned(), "no such name".to_owned())]);
        let snapshot = UpstreamsSnapshot { plan, records: HashMap::new(), unresolved };
        let shown = serde_json::to_value(Upstreams::new(&snapshot, Vec::new(), |_| None)).unwrap();
        assert_eq!(
            shown["upstreams"][0]["unresolved"],
            serde_json::json!([{"name": "a.test", "reason": "no such name"}])
        );
        assert_eq!(shown["upstreams"][1]["unresolved"], serde_json::json!([]));
    }
}
