//! Figures of routes and consumers over the last minute, for lists that are sorted by them.

use crate::history::RouteHistory;
use crate::recent::RecentTimes;
use crate::second::{OfRequests, rounded, unix_s};
use crate::{Live, Tick};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, PoisonError};
use stillgate_metrics::labels::value_of;
use stillgate_metrics::{Collector, OTHER, Value};

/// Seconds over which rates are averaged.
const RATE_S: f64 = 60.0;

/// Points of a route's small chart, and how many seconds each is of.
const POINTS: usize = 30;
const POINT_S: u64 = 30;

/// Routes that are listed of a consumer.
const CONSUMER_ROUTES_MAX: usize = 5;

/// A route's figures of the last minute. Rates are per second, times in seconds.
#[derive(Debug, Clone, Serialize)]
pub struct RouteTraffic {
    /// Requests.
    pub requests: f64,
    /// Responses with a status of 4xx; `None`: the metrics have no label `code`.
    pub client_errors: Option<f64>,
    /// Responses with a status of 5xx.
    pub errors: Option<f64>,
    /// Requests that the times are of.
    pub timed: u64,
    /// Half of the requests took at most this.
    pub p50: Option<f64>,
    /// 99% of the requests took at most this.
    pub p99: Option<f64>,
    /// The slowest request.
    pub max: Option<f64>,
    /// The share of the summed time of all requests.
    pub time_share: Option<f64>,
}

/// A consumer's requests.
#[derive(Debug, Serialize)]
pub struct ConsumerTraffic {
    /// Its name.
    pub name: String,
    /// `None`: it has sent none while this process has looked.
    pub last_seen_unix_s: Option<u64>,
    /// Per second, over the last minute.
    pub requests: f64,
    /// Responses with a status of 5xx per second.
    pub errors: f64,
    /// Requests since the start.
    pub requests_total: u64,
    /// Routes that it has sent requests to.
    pub routes_total: usize,
    /// The routes with the most requests.
    pub routes: Vec<ConsumerRoute>,
}

/// A consumer's requests of one route.
#[derive(Debug, Serialize)]
pub struct ConsumerRoute {
    /// The route; empty: none took the requests.
    pub id: String,
    /// Requests since the start.
    pub requests_total: u64,
}

/// Requests of all consumers, by name and route; `None`: the metrics have no label `consumer`.
type Consumers = Option<BTreeMap<String, BTreeMap<String, u64>>>;

impl Live {
    /// Whether requests are measured.
    pub fn has_metrics(&self) -> bool {
        self.reader.is_some()
    }

    /// When requests were first looked at, in seconds since 1970.
    pub fn since_unix_s(&self) -> u64 {
        self.since_unix_s
    }

    /// The routes with requests in the last 15 minutes. It takes up to milliseconds.
    pub fn traffic(&self) -> HashMap<Arc<str>, RouteTraffic> {
        let times = self.recent.lock().unwrap_or_else(PoisonError::into_inner).times();
        let known = self.lock();
        let (last, elapsed_s) = last_minute(&known.ring);
        let routes = known.routes.routes();
        let of = |id: &Arc<str>| {
            let times = times.get(id).copied().unwrap_or_default();
            (id.clone(), RouteTraffic::new(id, &known.routes, &last, elapsed_s, times))
        };
        routes.map(of).collect()
    }

    /// A route's requests per second in steps of 30 seconds, the oldest first; `None`: unknown.
    pub fn points(&self, id: &str) -> Vec<Option<f64>> {
        let known = self.lock();
        let Some(end) = known.ring.back().map(|last| last.t) else { return vec![None; POINTS] };
        let mut sums: Vec<Option<(u64, f64)>> = vec![None; POINTS];
        for tick in &known.ring {
            let age = end.saturating_sub(tick.t) / POINT_S;
            let Some(place) = (POINTS - 1).checked_sub(usize::try_from(age).unwrap_or(POINTS)) else { continue };
            let Some(of) = tick.route(&known.routes, id) else { continue };
            let (requests, elapsed_s) = sums[place].unwrap_or_default();
            sums[place] = Some((requests + of.requests, elapsed_s + tick.elapsed_s));
        }
        let rate = |(requests, elapsed_s): (u64, f64)| rounded(requests as f64 / elapsed_s.max(0.001));
        sums.into_iter().map(|sum| sum.map(rate)).collect()
    }

    /// Consumers with requests since the start whose names contain a text, sorted by name; `None`: they are not distinguished.
    pub async fn consumers(&self, is_wanted: impl Fn(&str) -> bool + Send + 'static) -> Option<Vec<ConsumerTraffic>> {
        let consumers = self.reader.as_ref()?.read(move |collector| consumers(collector, is_wanted)).await??;
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let now = unix_s();
        let of = |(name, routes): (String, BTreeMap<String, u64>)| {
            let seen = recent.consumer(&name);
            let (requests, errors) = seen.map(|seen| seen.rates(now)).unwrap_or_default();
            ConsumerTraffic::new(name, seen.map(|seen| seen.last_seen_unix_s), (requests, errors), routes)
        };
        Some(consumers.into_iter().map(of).collect())
    }
}

/// The seconds of the last minute, and how long they were together.
fn last_minute(ring: &VecDeque<Arc<Tick>>) -> (Vec<&Tick>, f64) {
    let mut elapsed_s = 0.0;
    let mut last = Vec::new();
    for tick in ring.iter().rev() {
        if elapsed_s >= RATE_S {
            break;
        }
        elapsed_s += tick.elapsed_s;
        last.push(&**tick);
    }
    (last, elapsed_s)
}

impl RouteTraffic {
    fn new(id: &str, history: &RouteHistory, last: &[&Tick], elapsed_s: f64, times: RecentTimes) -> RouteTraffic {
        let mut sum = OfRequests { client_errors: Some(0), errors: Some(0), ..OfRequests::default() };
        // Seconds without requests say nothing: before the first one it is not known whether errors are counted.
        let seconds = last.iter().filter_map(|tick| tick.route(history, id));
        for of in seconds.filter(|of| of.requests > 0) {
            sum.requests += of.requests;
            sum.client_errors = sum.client_errors.zip(of.client_errors).map(|(sum, more)| sum + more);
            sum.errors = sum.errors.zip(of.errors).map(|(sum, more)| sum + more);
        }
        let rate = |count: u64| rounded(count as f64 / elapsed_s.max(0.001));
        let RecentTimes { timed, p50, p99, max, time_share } = times;
        RouteTraffic {
            requests: rate(sum.requests),
            client_errors: sum.client_errors.map(rate),
            errors: sum.errors.map(rate),
            timed,
            p50: p50.map(rounded),
            p99: p99.map(rounded),
            max: max.map(rounded),
            time_share: time_share.map(rounded),
        }
    }
}

impl ConsumerTraffic {
    fn new(
        name: String,
        last_seen_unix_s: Option<u64>,
        (requests, errors): (f64, f64),
        routes: BTreeMap<String, u64>,
    ) -> ConsumerTraffic {
        let (requests_total, routes_total) = (routes.values().sum(), routes.len());
        let mut routes: Vec<ConsumerRoute> =
            routes.into_iter().map(|(id, requests_total)| ConsumerRoute { id, requests_total }).collect();
        routes.sort_by_key(|route| std::cmp::Reverse(route.requests_total));
        routes.truncate(CONSUMER_ROUTES_MAX);
        let (requests, errors) = (rounded(requests), rounded(errors));
        ConsumerTraffic { name, last_seen_unix_s, requests, errors, requests_total, routes_total, routes }
    }
}

/// Runs on the exporter's thread.
fn consumers(collector: &Collector, is_wanted: impl Fn(&str) -> bool) -> Consumers {
    let mut is_known = false;
    let mut consumers: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for family in crate::sampler::COUNTED {
        let found = collector.visit(family, |labels, value| {
            let Value::Unsigned(count) = value else { return };
            let name = value_of(labels, "consumer").filter(|name| !name.is_empty() && **name != *OTHER);
            let Some(name) = name.filter(|name| is_wanted(name)) else { return };
            let route = value_of(labels, "route").unwrap_or_default();
            if !consumers.contains_key(&*name) {
                consumers.insert(name.clone().into_owned(), BTreeMap::new());
            }
            let routes = consumers.get_mut(&*name).expect("inserted above");
            *routes.entry(route.into_owned()).or_default() += count;
        });
        is_known |= found.is_some_and(|family| family.labels.iter().any(|label| label == "consumer"));
    }
    is_known.then_some(consumers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_has_the_rate_of_its_last_minute_and_points_of_fifteen() {
        let live = crate::tests::live();
        // Five minutes with 2 requests a second, then one with 12.
        (0..300).for_each(|t| live.add_second(t, &[("a", 2)]));
        (300..360).for_each(|t| live.add_second(t, &[("a", 12)]));
        let traffic = &live.traffic()["a"];
        assert_eq!((traffic.requests, traffic.client_errors, traffic.errors), (12.0, Some(0.0), Some(1.0)));
        assert_eq!((traffic.timed, traffic.p99, traffic.time_share), (0, None, None));
        let points = live.points("a");
        assert_eq!(points.len(), POINTS);
        assert_eq!(points[POINTS - 2..], [Some(12.0), Some(12.0)]);
        assert_eq!(points[POINTS - 12..POINTS - 2], [Some(2.0); 10]);
        assert_eq!(points[..POINTS - 12], [None; POINTS - 12]);
        assert_eq!(live.points("quiet")[POINTS - 1], Some(0.0));
    }
}
