//! Reads the workers' counters on the exporter's thread and computes the difference to the last reading.
//!
//! The last counts of every route are kept, so that a removed route does not reduce the sum. Histograms are kept only for the few
//! routes that may be shown: with very many routes, all of them would take hundreds of mebibytes.
//!
//! Latencies come from the internal family of fine buckets. If there are more routes than it distinguishes, a route's latency comes
//! from the classic buckets of the exposed family, which may be off by a third.

use super::recent::Recent;
use super::second::{OfRequests, SecondFigures, unix_s};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use stillgate_metrics::labels::value_of;
use stillgate_metrics::{Buckets, Collector, Distribution, FamilyType, OTHER, Value};
use stillgate_proxy::LIVE_DURATION;

/// Number of routes shown for having the most requests, and of those shown for having the most errors.
const TOP: usize = 10;

/// Number of routes whose histogram is kept: those with the most requests.
const TIMED_MAX: usize = 1000;

/// Families that count requests by route and status, one per dialect. At most one of them counts at a time.
pub(crate) const COUNTED: [&str; 2] = ["stillgate_http_requests_total", "apisix_http_status"];

/// Families with the latency of requests, the finest first: name, the value of the label `type` for the whole request, and the unit
/// in seconds.
const TIMED: [(&str, Option<&str>, f64); 3] = [
    (LIVE_DURATION, None, 1.0),
    ("stillgate_http_request_duration_seconds", None, 1.0),
    ("apisix_http_latency", Some("request"), 0.001),
];

/// The values of the last reading.
#[derive(Default)]
pub(super) struct Sampler {
    routes: HashMap<Arc<str>, CountPair>,
    consumers: HashMap<Arc<str>, CountPair>,
    timed: [TimedFamily; TIMED.len()],
    /// Shared with those who ask for the figures of the last minute.
    recent: Arc<Mutex<Recent>>,
    is_first: bool,
    has_begun: bool,
}

/// Requests of a route or consumer, as last and as now.
#[derive(Default, Clone, Copy)]
struct CountPair {
    before: RequestCounts,
    now: RequestCounts,
}

#[derive(Default, Clone, Copy)]
struct RequestCounts {
    requests: u64,
    client_errors: u64,
    errors: u64,
}

impl RequestCounts {
    fn add(&mut self, count: u64, code: Option<&str>) {
        self.requests += count;
        match code.and_then(|code| code.as_bytes().first()) {
            Some(b'4') => self.client_errors += count,
            Some(b'5') => self.errors += count,
            _ => {}
        }
    }

    /// What came since.
    fn since(self, before: RequestCounts) -> RequestCounts {
        RequestCounts {
            requests: self.requests.saturating_sub(before.requests),
            client_errors: self.client_errors.saturating_sub(before.client_errors),
            errors: self.errors.saturating_sub(before.errors),
        }
    }
}

impl CountPair {
    fn increase(self) -> RequestCounts {
        self.now.since(self.before)
    }
}

/// A family's histograms.
#[derive(Default)]
struct TimedFamily {
    /// The buckets, and the unit of their bounds in seconds.
    family: Option<Arc<(Buckets, f64)>>,
    all: Distribution,
    routes: HashMap<Arc<str>, Distribution>,
}

/// What a family has counted since the last reading.
pub(super) struct Since {
    /// The buckets, and the unit of their bounds in seconds.
    pub(super) family: Arc<(Buckets, f64)>,
    pub(super) all: Distribution,
    pub(super) routes: HashMap<Arc<str>, Distribution>,
}

/// Latencies of requests, in seconds.
#[derive(Default)]
struct Times {
    count: u64,
    p50: Option<f64>,
    p99: Option<f64>,
    p999: Option<f64>,
    max: Option<f64>,
}

impl Sampler {
    /// Figures of the last minute are written to `recent`.
    pub(super) fn new(recent: Arc<Mutex<Recent>>) -> Sampler {
        Sampler { recent, ..Sampler::default() }
    }

    /// Computes the difference to the last reading; empty the first time.
    pub(super) fn sample(&mut self, collector: &Collector, followed: &[Arc<str>]) -> SecondFigures {
        let began = Instant::now();
        let has_codes = self.count(collector);
        let busiest = self.top(TIMED_MAX, |requests| requests.requests);
        let worst = self.top(TOP, |requests| requests.errors);
        let mut wanted: HashSet<Arc<str>> = busiest.iter().chain(&worst).chain(followed).cloned().collect();
        let active: Vec<Arc<str>> = wanted.iter().cloned().collect();
        // A route without requests for some seconds keeps its place while there is room.
        let former: Vec<_> = self.timed.iter().flat_map(|timed| timed.routes.keys().cloned()).collect();
        for id in former {
            if wanted.len() >= TIMED_MAX {
                break;
            }
            wanted.insert(id);
        }
        let since = self.time(collector, &wanted);
        self.is_first = !std::mem::replace(&mut self.has_begun, true);
        let is_complete = busiest.len() < TIMED_MAX;
        let mut shown: Vec<Arc<str>> = busiest;
        shown.truncate(TOP);
        let more: Vec<_> = worst.into_iter().filter(|id| !shown.contains(id)).collect();
        shown.extend(more);
        let of = |ids: &[Arc<str>]| ids.iter().map(|id| (id.clone(), self.of_route(id, has_codes, &since))).collect();
        let figures = match self.is_first {
            true => SecondFigures::default(),
            false => {
                self.remember(&active, &since);
                SecondFigures {
                    all: Some(self.of_all(has_codes, &since)),
                    routes: of(&shown),
                    active: of(&active),
                    is_complete,
                    has_codes,
                    ..SecondFigures::default()
                }
            }
        };
        let counted = self.routes.values_mut().chain(self.consumers.values_mut());
        counted.for_each(|counted| counted.before = std::mem::take(&mut counted.now));
        SecondFigures { took: began.elapsed(), ..figures }
    }

    /// Adds the last second to the figures of the last minute.
    fn remember(&self, active: &[Arc<str>], since: &[Since]) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.turn(Instant::now());
        if let Some(finest) = since.first() {
            recent.add_all(&finest.family, &finest.all);
        }
        for id in active {
            if let Some((since, state)) = finest(id, since) {
                recent.add_route(id, &since.family, state);
            }
        }
        let now = unix_s();
        for (name, counted) in &self.consumers {
            let RequestCounts { requests, errors, .. } = counted.increase();
            if requests > 0 {
                recent.add_consumer(name, now, requests, errors);
            }
        }
        recent.retain_consumers(|name| self.consumers.contains_key(name));
    }

    /// Counts requests by route and by consumer; returns whether the status is known.
    fn count(&mut self, collector: &Collector) -> bool {
        let mut has_codes = false;
        for family in COUNTED {
            let found = collector.visit(family, |labels, value| {
                let Value::Unsigned(count) = value else { return };
                let id = value_of(labels, "route").unwrap_or_default();
                let code = value_of(labels, "code");
                entry(&mut self.routes, &id).now.add(count, code.as_deref());
                let consumer = value_of(labels, "consumer").filter(|name| !name.is_empty() && **name != *OTHER);
                if let Some(name) = consumer {
                    entry(&mut self.consumers, &name).now.add(count, code.as_deref());
                }
            });
            has_codes |= found.is_some_and(|family| family.labels.iter().any(|label| label == "code"));
        }
        // What has lost its series starts from zero if it returns.
        self.routes.retain(|_, route| route.now.requests > 0);
        self.consumers.retain(|_, consumer| consumer.now.requests > 0);
        has_codes
    }

    /// Routes with the most of something, in descending order. Requests without a route, and those of routes that are no longer
    /// distinguished, belong to no route.
    fn top(&self, count: usize, of: impl Fn(RequestCounts) -> u64) -> Vec<Arc<str>> {
        let is_route = |id: &str| !id.is_empty() && id != OTHER;
        let some = self.routes.iter().map(|(id, route)| (of(route.increase()), id));
        let mut some: Vec<_> = some.filter(|(much, id)| *much > 0 && is_route(id)).collect();
        let order = |a: &(u64, &Arc<str>), b: &(u64, &Arc<str>)| b.0.cmp(&a.0).then_with(|| a.1.cmp(b.1));
        if some.len() > count {
            some.select_nth_unstable_by(count, order);
            some.truncate(count);
        }
        some.sort_unstable_by(order);
        some.into_iter().map(|(_, id)| id.clone()).collect()
    }

    /// Reads histograms, the finest first; those without new values are left out.
    fn time(&mut self, collector: &Collector, wanted: &HashSet<Arc<str>>) -> Vec<Since> {
        let mut since = Vec::new();
        for (before, (family, kind, unit_s)) in self.timed.iter_mut().zip(TIMED) {
            let mut now = TimedFamily::default();
            let found = collector.visit(family, |labels, value| {
                let Value::Histogram(state) = value else { return };
                if kind.is_some_and(|kind| value_of(labels, "type").is_none_or(|of| of != kind)) {
                    return;
                }
                now.all.merge(state);
                let id = value_of(labels, "route").unwrap_or_default();
                if let Some(id) = wanted.get(&*id) {
                    now.routes.entry(id.clone()).or_default().merge(state);
                }
            });
            let Some(FamilyType::Histogram(buckets)) = found.map(|family| &family.kind) else { continue };
            let known = before.family.take().filter(|known| known.0 == *buckets);
            let of_buckets = known.unwrap_or_else(|| Arc::new((buckets.clone(), unit_s)));
            now.family = Some(of_buckets.clone());
            let all = now.all.since(&before.all);
            let nothing = Distribution::default();
            let is_new = |id: &str| self.routes.get(id).is_some_and(|route| route.before.requests == 0);
            // Routes that were not read the last time have no difference, unless their histogram did not exist.
            let both = now.routes.iter().filter_map(|(id, now)| {
                let before = before.routes.get(id).or_else(|| is_new(id).then_some(&nothing))?;
                Some((id.clone(), now.since(before)))
            });
            let of_family = Since { family: of_buckets, routes: both.collect(), all };
            *before = now;
            if of_family.all.count() > 0 {
                since.push(of_family);
            }
        }
        since
    }

    fn of_all(&self, has_codes: bool, since: &[Since]) -> OfRequests {
        let mut sum = RequestCounts::default();
        for RequestCounts { requests, client_errors, errors } in self.routes.values().map(|route| route.increase()) {
            sum.requests += requests;
            sum.client_errors += client_errors;
            sum.errors += errors;
        }
        let times = since.first().map(|since| since.times(&since.all)).unwrap_or_default();
        of_requests(sum, has_codes, times)
    }

    fn of_route(&self, id: &str, has_codes: bool, since: &[Since]) -> OfRequests {
        let requests = self.routes.get(id).copied().unwrap_or_default().increase();
        let times = finest(id, since).map(|(since, state)| since.times(state)).unwrap_or_default();
        OfRequests { p999: None, ..of_requests(requests, has_codes, times) }
    }
}

/// The entry of a name, whose key is made if it is new.
fn entry<'a>(map: &'a mut HashMap<Arc<str>, CountPair>, name: &str) -> &'a mut CountPair {
    if !map.contains_key(name) {
        map.insert(name.into(), CountPair::default());
    }
    map.get_mut(name).expect("inserted above")
}

/// A route's latencies in the finest family that has some.
fn finest<'a>(id: &str, since: &'a [Since]) -> Option<(&'a Since, &'a Distribution)> {
    let mut states = since.iter().filter_map(|since| Some((since, since.routes.get(id)?)));
    states.find(|(_, state)| state.count() > 0)
}

fn of_requests(counts: RequestCounts, has_codes: bool, times: Times) -> OfRequests {
    let Times { count, p50, p99, p999, max } = times;
    OfRequests {
        requests: counts.requests,
        client_errors: has_codes.then_some(counts.client_errors),
        errors: has_codes.then_some(counts.errors),
        timed: count,
        p50,
        p99,
        p999,
        max,
    }
}

impl Since {
    fn times(&self, state: &Distribution) -> Times {
        let q = |q| state.quantile(q, &self.family.0).map(|value| value * self.family.1);
        Times { count: state.count(), p50: q(0.5), p99: q(0.99), p999: q(0.999), max: q(1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_config::Metrics;
    use stillgate_metrics::{
        CollectorOptions, DeclaredFamily, Family, Registry, RegistryOptions, SegmentProcess, Writer,
    };
    use stillgate_proxy::declare_live;
    use stillgate_testkit::eventually;

    /// Metrics with one writer.
    struct Bench {
        writer: Writer,
        collector: Collector,
        counted: Arc<DeclaredFamily>,
        /// The families with classic and with fine buckets.
        timed: [Arc<DeclaredFamily>; 2],
        sampler: Sampler,
        recent: Arc<Mutex<Recent>>,
        now_ms: u64,
    }

    impl Bench {
        /// Makes metrics with fine buckets for some routes.
        fn new(live_routes: u32) -> Bench {
            let registry =
                Arc::new(Registry::start(RegistryOptions::new(SegmentProcess { pid: 1, start: 1 }, 1_000, 7)).unwrap());
            let family = |name: &str, kind, labels: &[&str]| Family {
                name: name.to_owned(),
                help: "Help.".to_owned(),
                unit: String::new(),
                kind,
                labels: labels.iter().map(|label| (*label).to_owned()).collect(),
                exemplars: false,
            };
            let counted = registry.declare(family(COUNTED[0], FamilyType::Counter, &["route", "code"])).unwrap();
            let buckets = Buckets { classic: vec![0.001, 0.01, 0.1, 1.0], native: None };
            let classic = registry.declare(family(TIMED[1].0, FamilyType::Histogram(buckets), &["route"])).unwrap();
            let loaded = stillgate_config::load("gateway: {}\n", &|_| None).unwrap();
            let metrics = Metrics { live_routes, ..loaded.config.gateway.metrics.unwrap() };
            let timed = [classic, declare_live(&metrics, &registry).unwrap().unwrap()];
            let writer = registry.writer().unwrap();
            let collector = Collector::of_registry(registry, CollectorOptions::default()).unwrap();
            let recent = Arc::<Mutex<Recent>>::default();
            let sampler = Sampler::new(recent.clone());
            Bench { writer, collector, counted, timed, sampler, recent, now_ms: 1_000 }
        }

        fn requests(&mut self, route: &str, code: &str, count: u64, seconds: f64) {
            eventually("memory for the series", || {
                let series = self.writer.series(&self.counted, &[route.as_bytes(), code.as_bytes()]);
                self.writer.add(series, 0)
            });
            let series = self.writer.series(&self.counted, &[route.as_bytes(), code.as_bytes()]);
            assert!(self.writer.add(series, count));
            for timed in &self.timed {
                let series = self.writer.series(timed, &[route.as_bytes()]);
                (0..count).for_each(|_| assert!(self.writer.observe(series, seconds)));
            }
        }

        fn sample(&mut self, followed: &[&str]) -> SecondFigures {
            self.now_ms += 1_000;
            self.collector.refresh(self.now_ms).unwrap();
            let followed: Vec<Arc<str>> = followed.iter().map(|id| (*id).into()).collect();
            self.sampler.sample(&self.collector, &followed)
        }
    }

    fn of<'a>(figures: &'a SecondFigures, id: &str) -> &'a OfRequests {
        &figures.active.iter().find(|(route, _)| &**route == id).expect("the route is among the active ones").1
    }

    #[test]
    fn a_second_is_what_came_since_the_last_one() {
        let mut bench = Bench::new(100);
        bench.requests("a", "200", 100, 0.005);
        bench.requests("", "404", 5, 0.0005);
        assert_eq!(bench.sample(&[]).all, None);

        bench.requests("a", "200", 8, 0.005);
        bench.requests("a", "502", 2, 0.005);
        bench.requests("b", "200", 10, 0.5);
        bench.requests("", "404", 3, 0.0005);
        let figures = bench.sample(&["b", "no such route"]);
        let all = figures.all.clone().unwrap();
        assert_eq!((all.requests, all.errors), (23, Some(2)));
        assert!(all.p50.is_some_and(|p50| p50 > 0.001 && p50 <= 0.01), "{all:?}");
        assert!(all.p99.is_some_and(|p99| p99 > 0.1 && p99 <= 1.0), "{all:?}");
        let shown: Vec<_> = figures.routes.iter().map(|(id, of)| (&**id, of.requests, of.errors)).collect();
        assert_eq!(shown, [("a", 10, Some(2)), ("b", 10, Some(0))]);
        assert!(figures.routes[0].1.p50.is_some_and(|p50| p50 <= 0.01));
        // The route is new.
        assert!(figures.routes[1].1.p50.is_some_and(|p50| p50 > 0.1));
        assert_eq!(
            *of(&figures, "no such route"),
            OfRequests { errors: Some(0), client_errors: Some(0), ..OfRequests::default() }
        );

        bench.requests("b", "200", 1, 0.5);
        let figures = bench.sample(&["b"]);
        assert!(of(&figures, "b").p50.is_some_and(|p50| p50 > 0.1));
        assert_eq!(figures.routes.len(), 1);

        // This also holds after a second without requests.
        bench.sample(&[]);
        bench.requests("a", "200", 4, 0.05);
        let figures = bench.sample(&[]);
        assert!(figures.routes[0].1.p50.is_some_and(|p50| p50 > 0.01 && p50 <= 0.1), "{figures:?}");
    }

    /// A percentile of a minute is not one of its seconds.
    #[test]
    fn the_last_minute_has_its_own_percentiles() {
        let mut bench = Bench::new(100);
        bench.sample(&[]);
        for second in 0..20 {
            bench.requests("fast", "200", 100, 0.001);
            bench.requests("slow", "200", 5, if second == 7 { 2.0 } else { 0.2 });
            bench.sample(&[]);
        }
        let times = bench.recent.lock().unwrap().times();
        let slow = times["slow"];
        assert_eq!((slow.timed, times["fast"].timed), (100, 2000));
        assert!((slow.p50.unwrap() / 0.2 - 1.0).abs() < 0.05, "{slow:?}");
        assert!((slow.p99.unwrap() / 2.0 - 1.0).abs() < 0.05, "{slow:?}");
        let share = 29.0 / (29.0 + 2.0);
        assert!((slow.time_share.unwrap() / share - 1.0).abs() < 0.01, "{slow:?}");
    }

    #[test]
    fn percentiles_are_within_a_twentieth() {
        let mut bench = Bench::new(100);
        bench.requests("a", "200", 1, 0.3);
        bench.sample(&[]);
        // The bounds of buckets, and values next to them.
        let bounds = (-255..140).map(|step| (f64::from(step) / 16.0).exp2());
        for seconds in bounds.flat_map(|bound| [bound, bound * 1.000_001, bound * 1.02]).chain([0.3, 1.0]) {
            bench.requests("a", "200", 120, seconds);
            let figures = bench.sample(&[]);
            for of in [figures.all.as_ref().unwrap(), &figures.routes[0].1] {
                assert_eq!(of.timed, 120);
                for found in [of.p50, of.p99, of.max] {
                    let found = found.unwrap();
                    assert!((found / seconds - 1.0).abs() < 0.05, "{found} for {seconds}");
                }
            }
        }
        // Above all bounds.
        bench.requests("a", "200", 1, 86_400.0);
        assert_eq!(bench.sample(&[]).all.unwrap().max, Some(512.0));
        bench.requests("a", "200", 1, 0.0);
        assert!(bench.sample(&[]).all.unwrap().max.unwrap() < 1e-4);
    }

    /// The total stays exact.
    #[test]
    fn with_more_routes_than_are_distinguished_theirs_come_from_classic_buckets() {
        let mut bench = Bench::new(64);
        (0..300).for_each(|n| bench.requests(&format!("r{n}"), "200", 1, 0.3));
        bench.sample(&[]);
        bench.sample(&[]);
        (0..300).for_each(|n| bench.requests(&format!("r{n}"), "200", 1, 0.3));
        let figures = bench.sample(&[]);
        let all = figures.all.unwrap();
        assert_eq!((all.requests, all.timed), (300, 300));
        assert!((all.p99.unwrap() / 0.3 - 1.0).abs() < 0.05, "{all:?}");
        let (_, route) = &figures.routes[0];
        assert_eq!(route.timed, 1);
        assert!(route.max.is_some_and(|max| max > 0.1 && max <= 1.0), "{route:?}");
    }

    #[test]
    fn the_ten_busiest_and_the_ten_worst() {
        let mut bench = Bench::new(100);
        (0..40).for_each(|n| bench.requests(&format!("r{n:02}"), "200", 1, 0.005));
        bench.sample(&[]);
        (0..40).for_each(|n| bench.requests(&format!("r{n:02}"), "200", n + 1, 0.005));
        (0..5).for_each(|n| bench.requests(&format!("r{n:02}"), "500", 1, 0.005));
        let figures = bench.sample(&[]);
        let shown: Vec<_> = figures.routes.iter().map(|(id, _)| &**id).collect();
        let expected =
            ["r39", "r38", "r37", "r36", "r35", "r34", "r33", "r32", "r31", "r30", "r00", "r01", "r02", "r03", "r04"];
        assert_eq!(shown, expected);
        let quiet = bench.sample(&[]);
        assert_eq!((quiet.all.unwrap().requests, quiet.routes.len()), (0, 0));
    }
}
