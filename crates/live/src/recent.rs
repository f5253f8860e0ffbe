//! What routes and consumers did lately: latencies of the last 30 to 60 seconds, and who sent requests when.
//!
//! A percentile of a minute cannot be had from those of its seconds, so the buckets of two half minutes are kept.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stillgate_metrics::{Buckets, Distribution};

/// Length of a window: figures are those of the last whole one and the current one.
const WINDOW: Duration = Duration::from_secs(30);

/// Routes with a window. Further ones have no percentiles of the last minute.
const ROUTES_MAX: usize = 1000;

/// Parts of the minute over which a consumer's rate is averaged, and their length in seconds.
const PARTS: usize = 6;
const PART_S: u64 = 10;

/// Latencies of the last 30 to 60 seconds, in seconds.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) struct RecentTimes {
    pub(super) timed: u64,
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
    pub(super) max: Option<f64>,
    /// The share of the summed time of all requests.
    pub(super) time_share: Option<f64>,
}

/// Written by the exporter's thread once a second, read when a page asks.
#[derive(Default)]
pub(super) struct Recent {
    all: LatencyWindow,
    routes: HashMap<Arc<str>, LatencyWindow>,
    began: Option<Instant>,
    consumers: HashMap<Arc<str>, RecentConsumer>,
}

#[derive(Default)]
struct LatencyWindow {
    /// Which family the buckets are of, the unit of their bounds included.
    of: Option<Arc<(Buckets, f64)>>,
    former: Distribution,
    current: Distribution,
}

/// When a consumer sent requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecentConsumer {
    /// Seconds since 1970.
    pub(super) last_seen_unix_s: u64,
    /// Requests and 5xx responses, by the number of the part.
    parts: [(u64, u32, u32); PARTS],
}

impl Recent {
    /// Begins a new window if the current one is over.
    pub(super) fn turn(&mut self, now: Instant) {
        if self.began.is_none_or(|began| now.duration_since(began) >= WINDOW) {
            self.began = Some(now);
            self.all.turn();
            self.routes.retain(|_, window| window.turn());
        }
    }

    /// Adds the latencies of all requests of the last second.
    pub(super) fn add_all(&mut self, family: &Arc<(Buckets, f64)>, state: &Distribution) {
        self.all.add(family, state);
    }

    /// Adds those of a route.
    pub(super) fn add_route(&mut self, id: &Arc<str>, family: &Arc<(Buckets, f64)>, state: &Distribution) {
        if self.routes.len() < ROUTES_MAX || self.routes.contains_key(id) {
            self.routes.entry(id.clone()).or_default().add(family, state);
        }
    }

    /// Each route's latencies.
    pub(super) fn times(&self) -> HashMap<Arc<str>, RecentTimes> {
        let total_s = self.all.total_s();
        self.routes.iter().map(|(id, window)| (id.clone(), window.times(total_s))).collect()
    }

    /// Adds what a consumer did in the last second.
    pub(super) fn add_consumer(&mut self, name: &Arc<str>, unix_s: u64, requests: u64, errors: u64) {
        let nothing = RecentConsumer { last_seen_unix_s: unix_s, parts: [(0, 0, 0); PARTS] };
        let consumer = self.consumers.entry(name.clone()).or_insert(nothing);
        consumer.last_seen_unix_s = unix_s;
        let number = unix_s / PART_S;
        let part = &mut consumer.parts[(number % PARTS as u64) as usize];
        if part.0 != number {
            *part = (number, 0, 0);
        }
        let added = |before: u32, more: u64| before.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
        *part = (number, added(part.1, requests), added(part.2, errors));
    }

    /// Drops consumers whose series have ended, so that no more are kept than metrics have.
    pub(super) fn retain_consumers(&mut self, is_known: impl Fn(&str) -> bool) {
        self.consumers.retain(|name, _| is_known(name));
    }

    pub(super) fn consumer(&self, name: &str) -> Option<RecentConsumer> {
        self.consumers.get(name).copied()
    }
}

impl RecentConsumer {
    /// Requests and 5xx responses per second, over the last minute.
    pub(super) fn rates(&self, unix_s: u64) -> (f64, f64) {
        let now = unix_s / PART_S;
        let last = self.parts.iter().filter(|part| part.0 + PARTS as u64 > now && part.0 <= now);
        let (requests, errors) =
            last.fold((0.0, 0.0), |sum, part| (sum.0 + f64::from(part.1), sum.1 + f64::from(part.2)));
        let seconds = ((PARTS as u64 - 1) * PART_S + unix_s % PART_S + 1) as f64;
        (requests / seconds, errors / seconds)
    }
}

impl LatencyWindow {
    fn add(&mut self, family: &Arc<(Buckets, f64)>, state: &Distribution) {
        if self.of.as_ref().is_none_or(|of| !Arc::ptr_eq(of, family) && **of != **family) {
            *self = LatencyWindow { of: Some(family.clone()), ..LatencyWindow::default() };
        }
        self.current.merge(state);
    }

    /// Begins the next window; returns whether the last one had anything.
    fn turn(&mut self) -> bool {
        self.former = std::mem::take(&mut self.current);
        self.former.count() > 0
    }

    fn total_s(&self) -> f64 {
        let unit_s = self.of.as_ref().map_or(1.0, |of| of.1);
        (self.former.sum + self.current.sum) * unit_s
    }

    fn times(&self, total_s: f64) -> RecentTimes {
        let Some(of) = &self.of else { return RecentTimes::default() };
        let mut state = self.former.clone();
        state.merge(&self.current);
        let q = |q| state.quantile(q, &of.0).map(|value| value * of.1);
        let time_share = (total_s > 0.0).then(|| (self.total_s() / total_s).min(1.0));
        RecentTimes { timed: state.count(), p50: q(0.5), p99: q(0.99), max: q(1.0), time_share }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_has_the_rate_of_its_last_minute() {
        let mut recent = Recent::default();
        let rose: Arc<str> = "rose".into();
        (1000..1060).for_each(|t| recent.add_consumer(&rose, t, 2, 1));
        let consumer = recent.consumer("rose").unwrap();
        assert_eq!((consumer.last_seen_unix_s, consumer.rates(1059)), (1059, (2.0, 1.0)));
        assert_eq!(consumer.rates(1200), (0.0, 0.0));
        recent.retain_consumers(|name| name != "rose");
        assert!(recent.consumer("rose").is_none());
    }
}
