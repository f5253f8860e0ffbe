//! A worker's route cache, used as far as it pays.
//!
//! The Plan says whether there is one (`measure` finds out if the configuration leaves it to us). Under `auto` a worker also checks
//! the results: if too few look-ups are hits, they cost more than they save, so the cache rests for a number of requests that
//! doubles each time. Its contents belong to one matcher; with another one it starts empty, in the same memory.

use super::Plan;
use crate::basics::counters::WorkerCounters;
use rustix::time::{ClockId, clock_gettime};
use std::cell::RefCell;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use stillgate_route::path::normalise;
use stillgate_route::{Match, MatchRequest, Matcher, PathError, RouteCache, SampleRequest, Scratch};

/// Look-ups after which hits are evaluated.
const WINDOW: u32 = 4096;
/// Requests without the cache after a window with too few hits; then twice as many, up to the maximum.
const REST_MIN: u32 = 1 << 16;
const REST_MAX: u32 = 1 << 24;

/// What a Plan says about route caches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum CachePolicy {
    /// Without a cache.
    Off,
    /// With a cache of this size.
    On {
        entries_max: usize,
        bytes_max: usize,
        /// The share of the look-ups that must be hits for it to pay; zero: it is always used.
        hits_min: f32,
    },
}

/// A worker's cache.
pub(crate) struct RouteMemory {
    cache: Option<Cache>,
    seed: u64,
}

struct Cache {
    routes: RouteCache,
    /// The size that it was made with.
    entries_max: usize,
    bytes_max: usize,
    /// The matcher whose answers it holds: [`Plan::matching`].
    matching: u64,
    trial: Trial,
}

/// Measures whether the cache is worth consulting.
#[derive(Debug)]
struct Trial {
    asked: u32,
    hits: u32,
    /// Further requests that bypass it.
    rest: u32,
    next_rest: u32,
}

impl RouteMemory {
    /// Starts without a cache until a Plan has one. The seed is for its hashes.
    pub(crate) fn new(seed: u64) -> RouteMemory {
        RouteMemory { cache: None, seed }
    }

    /// The route that takes a request, as [`stillgate_route::Matcher::find`] has it.
    #[inline]
    pub(crate) fn find(
        &mut self,
        plan: &Plan,
        request: &MatchRequest<'_>,
        scratch: &mut Scratch,
        counters: &WorkerCounters,
    ) -> Result<Option<Match>, PathError> {
        let matcher = plan.matcher();
        let CachePolicy::On { entries_max, bytes_max, hits_min } = plan.caching else {
            return matcher.find(request, scratch);
        };
        let RouteMemory { cache, seed } = self;
        let is_current = cache.as_ref().is_some_and(|cache| cache.is_for(plan, entries_max, bytes_max));
        let cache = match cache {
            Some(cache) if is_current => cache,
            cache => Cache::renew(cache, plan, entries_max, bytes_max, *seed),
        };
        if cache.trial.count_bypass() {
            return matcher.find(request, scratch);
        }
        let routes = &mut cache.routes;
        let (hits, misses) = (routes.hits(), routes.misses());
        let found = matcher.find_cached(request, scratch, routes);
        // Neither counter grows if the cache is bypassed.
        let (hits, misses) = (routes.hits() - hits, routes.misses() - misses);
        counters.route_cache_hits.add(hits);
        counters.route_cache_misses.add(misses);
        if hits + misses > 0 {
            cache.trial.count(hits > 0, hits_min);
        }
        found
    }

    /// Reports how large it is, and drops a cache that the Plan does not have.
    pub(crate) fn tick(&mut self, plan: &Plan, counters: &WorkerCounters) {
        if plan.caching == CachePolicy::Off {
            self.cache = None;
        }
        let size = self.cache.as_ref().map_or((0, 0), |cache| (cache.routes.len(), cache.routes.bytes()));
        counters.route_cache_entries.set(size.0 as u64);
        counters.route_cache_bytes.set(size.1 as u64);
    }
}

impl Cache {
    fn is_for(&self, plan: &Plan, entries_max: usize, bytes_max: usize) -> bool {
        (self.matching, self.entries_max, self.bytes_max) == (plan.matching, entries_max, bytes_max)
    }

    /// Makes a cache for another matcher, or of another size.
    #[cold]
    fn renew<'a>(
        cache: &'a mut Option<Cache>,
        plan: &Plan,
        entries_max: usize,
        bytes_max: usize,
        seed: u64,
    ) -> &'a mut Cache {
        let same = cache.take().filter(|cache| (cache.entries_max, cache.bytes_max) == (entries_max, bytes_max));
        let matching = plan.matching;
        cache.insert(match same {
            Some(mut same) => {
                same.routes.clear();
                Cache { matching, ..same }
            }
            None => {
                let routes = RouteCache::new(entries_max, bytes_max, seed);
                Cache { routes, entries_max, bytes_max, matching, trial: Trial::default() }
            }
        })
    }
}

impl Default for Trial {
    fn default() -> Trial {
        Trial { asked: 0, hits: 0, rest: 0, next_rest: REST_MIN }
    }
}

impl Trial {
    /// Counts a request while requests bypass the cache.
    #[inline]
    fn count_bypass(&mut self) -> bool {
        let rests = self.rest > 0;
        self.rest -= u32::from(rests);
        rests
    }

    #[inline]
    fn count(&mut self, is_hit: bool, hits_min: f32) {
        self.asked += 1;
        self.hits += u32::from(is_hit);
        if self.asked == WINDOW {
            self.conclude(hits_min);
        }
    }

    #[cold]
    fn conclude(&mut self, hits_min: f32) {
        let pays = self.hits as f32 >= hits_min * WINDOW as f32;
        (self.rest, self.next_rest) = match pays {
            true => (0, REST_MIN),
            false => (self.next_rest, (self.next_rest * 2).min(REST_MAX)),
        };
        (self.asked, self.hits) = (0, 0);
    }
}

// Whether a route cache pays for a matcher: by measuring both on requests that its routes are made for.
//
// The building thread measures, by its own CPU time, so that what else the machine does hardly counts. The samples are few and
// looked up again and again, so both are as fast as they can be; the cache has to win by a clear margin, since it also takes room
// in the processor's caches.

/// Requests that are matched in a measurement.
const SAMPLES: usize = 64;
/// How often each is matched, and for how long at most; the fastest turn counts.
const TURNS_MAX: usize = 16;
const TIME_MAX: Duration = Duration::from_millis(4);
/// How long the first turn may take, which also builds automata. Routes that are slower than this are not measured.
const FIRST_TIME_MAX: Duration = Duration::from_millis(100);
/// The cost of a hit where it is not measured.
const HIT_NS_ASSUMED: f64 = 100.0;
/// How many times as fast as the matcher the cache must be, and how much it must save per request.
const TIMES_FASTER_MIN: f64 = 2.0;
const SAVED_NS_MIN: f64 = 150.0;
/// Share of both that is enough for an existing cache: it must not come and go with the error of measurement.
const KEPT_SHARE: f64 = 0.75;
/// The minimum share of hits: what is measured as free may not be, with other samples and colder memory.
const HITS_MIN: f32 = 0.1;

type Clock<'c> = &'c mut dyn FnMut() -> Duration;

/// What matching one request takes, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MatchCost {
    /// Without a cache.
    pub matcher_ns: f64,
    /// With a cache that contains the answer.
    pub hit_ns: f64,
    /// With a cache that does not, and stores it.
    pub miss_ns: f64,
}

impl MatchCost {
    /// Measures the cost; `None` without routes.
    pub(crate) fn of(matcher: &Matcher) -> Option<MatchCost> {
        MatchCost::measure_by(&mut cpu_time, &mut cpu_time, matcher)
    }

    /// Measures it by clocks that advance with the work of this thread: one for the first turn, one for those that are measured.
    fn measure_by(first: Clock<'_>, clock: Clock<'_>, matcher: &Matcher) -> Option<MatchCost> {
        let samples = matcher.samples(SAMPLES);
        let mut normal: Vec<Vec<u8>> = vec![Vec::new(); samples.len()];
        let request = |(sample, normal)| to_request(sample, normal);
        let requests: Vec<MatchRequest<'_>> = samples.iter().zip(&mut normal).filter_map(request).collect();
        if requests.is_empty() {
            return None;
        }
        let mut scratch = Scratch::default();
        const CACHE_BYTES: usize = 1 << 20;
        let mut cache = RouteCache::new(16 * SAMPLES, CACHE_BYTES, 0);
        let began = first();
        for request in &requests {
            let _ = black_box(matcher.find(request, &mut scratch));
            if first().saturating_sub(began) > FIRST_TIME_MAX {
                // A hit costs next to nothing beside that.
                let matcher_ns = FIRST_TIME_MAX.as_nanos() as f64;
                return Some(MatchCost { matcher_ns, hit_ns: HIT_NS_ASSUMED, miss_ns: matcher_ns });
            }
        }
        let matcher_ns = fastest(clock, &requests, &mut || {}, &mut |request| {
            let _ = black_box(matcher.find(request, &mut scratch));
        });
        let miss_ns = {
            let (cache, scratch) = (RefCell::new(&mut cache), &mut scratch);
            fastest(clock, &requests, &mut || cache.borrow_mut().clear(), &mut |request| {
                let _ = black_box(matcher.find_cached(request, scratch, &mut cache.borrow_mut()));
            })
        };
        let hit_ns = fastest(clock, &requests, &mut || {}, &mut |request| {
            let _ = black_box(matcher.find_cached(request, &mut scratch, &mut cache));
        });
        Some(MatchCost { matcher_ns, hit_ns, miss_ns })
    }

    /// How a worker should use a cache of this size; `is_there`: it already has one.
    pub(crate) fn decide(&self, entries_max: usize, bytes_max: usize, is_there: bool) -> CachePolicy {
        let MatchCost { matcher_ns, hit_ns, miss_ns } = *self;
        let share = if is_there { KEPT_SHARE } else { 1.0 };
        if matcher_ns < share * TIMES_FASTER_MIN * hit_ns || matcher_ns - hit_ns < share * SAVED_NS_MIN {
            return CachePolicy::Off;
        }
        // With this share of hits the costs are equal.
        let miss_ns = miss_ns.max(matcher_ns);
        let hits_min = (miss_ns - matcher_ns) / (miss_ns - hit_ns);
        CachePolicy::On { entries_max, bytes_max, hits_min: (hits_min as f32).max(HITS_MIN) }
    }
}

fn to_request<'a>(sample: &'a SampleRequest, normal: &'a mut Vec<u8>) -> Option<MatchRequest<'a>> {
    Some(MatchRequest {
        method: sample.method,
        host: &sample.host,
        path: normalise(&sample.path, normal).ok()?,
        client: IpAddr::V4(Ipv4Addr::LOCALHOST),
        vars: sample,
    })
}

/// Nanoseconds per request in the fastest turn; `before` runs before each turn.
fn fastest(
    clock: Clock<'_>,
    requests: &[MatchRequest<'_>],
    before: &mut dyn FnMut(),
    find: &mut dyn FnMut(&MatchRequest<'_>),
) -> f64 {
    // Memory grows in the first turn, and the data that is looked up gets into the processor's caches.
    requests.iter().for_each(&mut *find);
    let (mut best, mut all) = (Duration::MAX, Duration::ZERO);
    for _ in 0..TURNS_MAX {
        before();
        let began = clock();
        requests.iter().for_each(&mut *find);
        let took = clock().saturating_sub(began);
        best = best.min(took);
        all += took;
        if all >= TIME_MAX {
            break;
        }
    }
    best.as_nanos() as f64 / requests.len() as f64
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // The clock counts from the thread's start.
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::net::{IpAddr, Ipv4Addr};
    use stillgate_route::path::normalise;

    #[test]
    fn what_is_remembered_is_of_the_present_matcher() {
        let plan = |mode: &str, uri: &str, previous: Option<&Plan>| {
            let text = format!(
                "gateway: {{route_cache: {{mode: {mode}}}}}\nupstreams: [{{id: u, type: roundrobin, nodes: {{}}}}]\n\
                 routes: [{{id: a, uri: {uri}, upstream_id: u}}]\n"
            );
            let config = stillgate_config::load(text, &|_| None).unwrap().config;
            Plan::build(1, &config, &HashMap::new(), previous, None, None).unwrap()
        };
        let first = plan("on", "/a", None);
        let sample = first.matcher().samples(1).remove(0);
        let mut normal = Vec::new();
        let request = MatchRequest {
            method: sample.method,
            host: &sample.host,
            path: normalise(&sample.path, &mut normal).unwrap(),
            client: IpAddr::V4(Ipv4Addr::LOCALHOST),
            vars: &sample,
        };
        let (counters, mut memory) = (WorkerCounters::default(), RouteMemory::new(7));
        let mut scratch = Scratch::default();
        let mut check = |plan: &Plan, is_found: bool, hits: u64, misses: u64| {
            let found = memory.find(plan, &request, &mut scratch, &counters).unwrap();
            assert_eq!(found.is_some(), is_found);
            memory.tick(plan, &counters);
            assert_eq!((counters.route_cache_hits.get(), counters.route_cache_misses.get()), (hits, misses));
            (counters.route_cache_entries.get(), counters.route_cache_bytes.get() > 0)
        };
        check(&first, true, 0, 1);
        assert_eq!(check(&first, true, 1, 1), (1, true));
        let second = plan("on", "/b", Some(&first));
        check(&second, false, 1, 2);
        // The other Plan has the same matcher.
        check(&plan("on", "/b", Some(&second)), false, 2, 2);
        assert_eq!(check(&plan("off", "/b", Some(&second)), false, 2, 2), (0, false));
    }

    #[test]
    fn a_cache_without_hits_rests_longer_each_time() {
        let mut trial = Trial::default();
        let mut rests = Vec::new();
        for _ in 0..10 {
            (0..WINDOW).for_each(|_| trial.count(false, 0.5));
            let mut rest = 0;
            while trial.count_bypass() {
                rest += 1;
            }
            rests.push(rest);
        }
        assert!(rests.windows(2).all(|pair| pair[1] == (pair[0] * 2).min(REST_MAX)), "{rests:?}");
        assert_eq!(rests[0], REST_MIN);
        // After one good window it is trusted as at first.
        (0..WINDOW).for_each(|turn| trial.count(turn % 2 == 0, 0.5));
        assert!(!trial.count_bypass());
        (0..WINDOW).for_each(|turn| trial.count(turn % 3 == 0, 0.5));
        assert!(trial.count_bypass() && trial.rest == REST_MIN - 1);
    }

    #[test]
    fn one_that_is_wanted_never_rests() {
        let mut trial = Trial::default();
        (0..10 * WINDOW).for_each(|_| trial.count(false, 0.0));
        assert!(!trial.count_bypass());
    }
}

#[cfg(test)]
mod measure_tests {
    use super::*;

    #[test]
    fn a_cache_has_to_win_clearly() {
        let decided = |is_there, matcher_ns, hit_ns, miss_ns, expected: Option<f32>| {
            let hits_min = match (MatchCost { matcher_ns, hit_ns, miss_ns }).decide(1, 2, is_there) {
                CachePolicy::Off => None,
                CachePolicy::On { entries_max, bytes_max, hits_min } => {
                    assert_eq!((entries_max, bytes_max), (1, 2));
                    Some(hits_min)
                }
            };
            assert_eq!(hits_min, expected, "{matcher_ns} {hit_ns} {miss_ns}");
        };
        let check = |matcher_ns, hit_ns, miss_ns, expected| decided(false, matcher_ns, hit_ns, miss_ns, expected);
        check(100.0, 40.0, 150.0, None);
        check(400.0, 250.0, 500.0, None);
        check(1000.0, 100.0, 1100.0, Some(0.1));
        check(1000.0, 100.0, 1000.0, Some(HITS_MIN));
        // The difference is within the error of measurement.
        check(1000.0, 100.0, 900.0, Some(HITS_MIN));
        // Not enough for a new cache, but for an existing one.
        check(1000.0, 550.0, 1100.0, None);
        decided(true, 1000.0, 550.0, 1050.0, Some(HITS_MIN));
        decided(true, 1000.0, 700.0, 1100.0, None);
    }

    fn compiled(routes: &str) -> Matcher {
        let text = format!("upstreams: [{{id: u, type: roundrobin, nodes: {{}}}}]\nroutes: [{routes}]\n");
        let config = stillgate_config::load(text, &|_| None).unwrap().config;
        Matcher::compile(config.routes.iter().map(|route| route.spec.clone()).collect()).unwrap()
    }

    #[test]
    fn every_matcher_has_a_cost_unless_it_is_empty() {
        assert_eq!(MatchCost::of(&compiled("")), None);
        let cost = MatchCost::of(&compiled("{id: a, uri: /a, upstream_id: u}, {id: b, uri: /b/*, upstream_id: u}"));
        let cost = cost.unwrap();
        assert!(cost.matcher_ns > 0.0 && cost.hit_ns > 0.0 && cost.miss_ns > 0.0, "{cost:?}");
    }

    /// The cost by a clock on which each turn of the matcher, of misses and of hits takes so many microseconds, and up to two more.
    fn made_up([matcher_us, miss_us, hit_us]: [u64; 3]) -> (MatchCost, u64) {
        let (mut asked, mut now) = (0, Duration::ZERO);
        let mut clock = || {
            let (turn, is_end) = (asked / 2, asked % 2 == 1);
            let measured = turn / TURNS_MAX as u64;
            // The first turn is not always the fastest.
            let us = [matcher_us, miss_us, hit_us].get(measured as usize).map(|us| us + (turn + 2) % 3);
            asked += 1;
            now += if is_end { Duration::from_micros(us.unwrap()) } else { Duration::ZERO };
            now
        };
        let cost =
            MatchCost::measure_by(&mut || Duration::ZERO, &mut clock, &compiled("{id: a, uri: /a, upstream_id: u}"))
                .unwrap();
        (cost, asked)
    }

    #[test]
    fn the_fastest_turn_is_the_cost() {
        let (cost, asked) = made_up([100, 150, 10]);
        assert_eq!(asked, 3 * 2 * TURNS_MAX as u64, "each has all turns");
        let near = |ratio: f64, expected: f64| (ratio - expected).abs() < 1e-6;
        assert!(near(cost.matcher_ns / cost.hit_ns, 10.0) && near(cost.miss_ns / cost.hit_ns, 15.0), "{cost:?}");
        let hits_min = match cost.decide(1, 2, false) {
            CachePolicy::On { hits_min, .. } => f64::from(hits_min),
            CachePolicy::Off => panic!("{cost:?}"),
        };
        assert!(near(hits_min, 50.0 / 140.0), "{hits_min}");
        let (cost, _) = made_up([15, 20, 10]);
        assert_eq!(cost.decide(1, 2, false), CachePolicy::Off, "{cost:?}");
    }

    /// A regex can take longer for one request than a measurement may take in all.
    #[test]
    fn routes_that_are_too_slow_to_measure_get_a_cache() {
        let mut now = Duration::ZERO;
        let mut first = || {
            now += Duration::from_millis(110);
            now
        };
        let mut never = || -> Duration { panic!("no turn is measured") };
        let cost =
            MatchCost::measure_by(&mut first, &mut never, &compiled("{id: a, uri: /a, upstream_id: u}")).unwrap();
        assert!(matches!(cost.decide(1, 2, false), CachePolicy::On { .. }), "{cost:?}");
        assert_eq!(now, Duration::from_millis(220), "one request was matched");
    }

    #[test]
    fn no_measurement_goes_on_for_long() {
        let (mut asked, mut now) = (0, Duration::ZERO);
        let mut clock = || {
            asked += 1;
            now += TIME_MAX;
            now
        };
        MatchCost::measure_by(&mut || Duration::ZERO, &mut clock, &compiled("{id: a, uri: /a, upstream_id: u}"))
            .unwrap();
        assert_eq!(asked, 3 * 2, "one turn of each");
    }

    /// CPU time, too, has a large error on a busy machine: other work on the same core and cold caches make turns longer. They do
    /// so at random. A matcher that is judged wrongly is so in each measurement; one that is judged correctly needs only one.
    #[test]
    fn a_slow_matcher_gets_a_cache_and_a_quick_one_does_not() {
        const TRIES: usize = 100;
        let check = |routes: &str, expected: fn(&CachePolicy) -> bool| {
            let matcher = compiled(routes);
            let mut costs = (0..TRIES).map(|_| MatchCost::of(&matcher).unwrap());
            assert!(costs.any(|cost| expected(&cost.decide(1, 2, false))), "{:?}", MatchCost::of(&matcher));
        };
        check("{id: a, uri: /a, upstream_id: u}", |caching| *caching == CachePolicy::Off);
        // Each is evaluated for every request, which takes hundreds of times as long as a hit: no path suffix is looked up.
        let condition = |n| format!(r#"http.path =^ "{n}-" && http.path contains "x{n}""#);
        let route = |n| format!("{{id: r{n}, expression: '{}', upstream_id: u}}", condition(n));
        let routes = (0..5_000).map(route).collect::<Vec<_>>().join(",\n  ");
        check(&routes, |caching| matches!(caching, CachePolicy::On { .. }));
    }
}
