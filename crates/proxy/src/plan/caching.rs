//! A worker's route cache, used as far as it pays.
//!
//! The Plan says whether there is one (`measure` finds out if the configuration leaves it to us). Under `auto` a worker also checks
//! the results: if too few look-ups are hits, they cost more than they save, so the cache rests for a number of requests that
//! doubles each time. Its contents belong to one matcher; with another one it starts empty, in the same memory.

pub(crate) mod measure;

use super::Plan;
use crate::basics::counters::WorkerCounters;
use stillgate_route::{Match, MatchRequest, PathError, RouteCache, Scratch};

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
        if cache.trial.is_resting() {
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
    fn is_resting(&mut self) -> bool {
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
            while trial.is_resting() {
                rest += 1;
            }
            rests.push(rest);
        }
        assert!(rests.windows(2).all(|pair| pair[1] == (pair[0] * 2).min(REST_MAX)), "{rests:?}");
        assert_eq!(rests[0], REST_MIN);
        // After one good window it is trusted as at first.
        (0..WINDOW).for_each(|turn| trial.count(turn % 2 == 0, 0.5));
        assert!(!trial.is_resting());
        (0..WINDOW).for_each(|turn| trial.count(turn % 3 == 0, 0.5));
        assert!(trial.is_resting() && trial.rest == REST_MIN - 1);
    }

    #[test]
    fn one_that_is_wanted_never_rests() {
        let mut trial = Trial::default();
        (0..10 * WINDOW).for_each(|_| trial.count(false, 0.0));
        assert!(!trial.is_resting());
    }
}
