//! The last 15 minutes, second by second, for all viewers: the content of `GET /v1/live`, and what routes and consumers did lately.
//! The slowest requests are in `slow`.
//!
//! ```text
//!  exporter's thread: Sampler reads the segments ─┬▶ second ─▶ ring of 900 ─▶ first event of a stream
//!  control thread:    connections, generation    ─┘       └▶ one text, shared by all streams
//!                                                 ├▶ history: each route, 12 bytes a second
//!                                                 └▶ recent: percentiles of the last minute, consumers
//! ```
//!
//! Workers take no part: their counters are read in place. A second is computed once for all viewers, on the exporter's thread of
//! idle priority; if there are so many series that it takes long, it is computed less often.

#![forbid(unsafe_code)]

mod history;
mod recent;
mod sampler;
mod second;
mod slow;
pub mod traffic;

use history::RouteHistory;
use recent::Recent;
use second::{OfRequests, ProcessFigures, SecondFigures, route_text, second_text, unix_s};
use slow::Slow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sampler::Sampler;
use stillgate_exporter::CollectorReader;
use stillgate_proxy::{PlanCell, WorkerTally};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Number of seconds that are kept.
const SECONDS_MAX: usize = 900;

/// The most routes that are measured because somebody asks for them, however few requests they have.
const FOLLOWED_MAX: usize = 32;

/// The longest id of such a route, in bytes.
const FOLLOWED_BYTES_MAX: usize = 512;

const EVERY: Duration = Duration::from_secs(1);

/// The share of the exporter's time that reading may take: one part in so many.
const REST: u32 = 20;

/// The longest interval between two readings.
const EVERY_MAX: Duration = Duration::from_secs(60);

/// The recent figures and their viewers.
pub struct Live {
    /// When this began, in seconds since 1970.
    since_unix_s: u64,
    /// Reads the metrics; `None`: nothing is measured.
    reader: Option<CollectorReader>,
    /// Locked for a few instructions, by the control side only.
    known: Mutex<Seconds>,
    /// Written once a second by the exporter's thread.
    recent: Arc<Mutex<Recent>>,
    /// The last second.
    last: watch::Sender<Option<Arc<Tick>>>,
    /// The slowest requests.
    pub slow: Arc<Slow>,
}

#[derive(Default)]
struct Seconds {
    ring: VecDeque<Arc<Tick>>,
    routes: RouteHistory,
    /// Routes with the number of streams that request them.
    followed: BTreeMap<Arc<str>, usize>,
}

/// A second in the form in which it is sent.
struct Tick {
    /// Number of the reading.
    number: u64,
    /// Seconds since 1970.
    t: u64,
    /// The time since the reading before.
    elapsed_s: f64,
    /// Whether routes that are not in the history had no requests.
    is_complete: bool,
    /// Whether errors are counted.
    has_codes: bool,
    /// JSON without the closing brace.
    text: Bytes,
}

/// While this is held, a route is measured, and its figures are sent.
pub struct RouteInterest {
    live: Arc<Live>,
    route: Arc<str>,
}

impl Live {
    /// Starts; `None`: only what the workers count in any case is known. The task ends with the runtime.
    pub fn start(
        reader: Option<CollectorReader>,
        tally: WorkerTally,
        plans: Arc<PlanCell>,
        give_back: fn(),
    ) -> Arc<Live> {
        let live = Arc::new(Live {
            since_unix_s: unix_s(),
            reader,
            known: Mutex::default(),
            recent: Arc::default(),
            last: watch::Sender::default(),
            slow: Slow::start(&plans, tally.clone(), give_back),
        });
        let task = live.clone();
        tokio::spawn(async move { task.run(tally, plans).await });
        live
    }

    async fn run(&self, tally: WorkerTally, plans: Arc<PlanCell>) {
        let mut sampler = Some(Sampler::new(self.recent.clone()));
        let mut due = Instant::now();
        let mut before: Option<(Instant, u64)> = None;
        loop {
            sleep_until(due).await;
            let wanted: Vec<Arc<str>> = self.lock().followed.keys().cloned().collect();
            let figures = match (&self.reader, sampler.take()) {
                (Some(reader), Some(mut of)) => {
                    let sampled = reader.read(move |collector| {
                        let figures = of.sample(collector, &wanted);
                        (of, figures)
                    });
                    // Ends with the exporter; the workers' own counts continue.
                    let (of, figures) =
                        sampled.await.map_or((None, SecondFigures::default()), |(of, figures)| (Some(of), figures));
                    sampler = of;
                    figures
                }
                _ => SecondFigures::default(),
            };
            let at = Instant::now();
            let counters = tally.read();
            let known = ProcessFigures {
                t: unix_s(),
                connections: counters.connections_open,
                tunnels: counters.tunnels_open,
                generation: plans.load().generation,
            };
            if let Some((last, requests)) = before {
                let elapsed_s = (at - last).as_secs_f64();
                let counted = counters.requests_total.saturating_sub(requests);
                self.add(&known, &figures, counted, elapsed_s);
            }
            before = Some((at, counters.requests_total));
            due = (due + EVERY).max(at + (figures.took * REST).min(EVERY_MAX));
        }
    }

    /// Adds a second; see [`second_text`].
    fn add(&self, now: &ProcessFigures, figures: &SecondFigures, counted: u64, elapsed_s: f64) {
        let text = second_text(now, figures, counted, elapsed_s);
        let mut known = self.lock();
        let number = known.ring.back().map_or(0, |last| last.number + 1);
        let SecondFigures { is_complete, has_codes, .. } = *figures;
        let tick = Arc::new(Tick { number, t: now.t, elapsed_s, is_complete, has_codes, text });
        if known.ring.len() == SECONDS_MAX {
            known.ring.pop_front();
        }
        known.ring.push_back(tick.clone());
        let kept_from = known.ring.front().map_or(0, |first| first.number);
        for (route, of) in &figures.active {
            known.routes.add(number, kept_from, route, of);
        }
        drop(known);
        self.last.send_replace(Some(tick));
    }

    fn lock(&self) -> MutexGuard<'_, Seconds> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Measures a route from now on, however few requests it has; `None`: as many routes as possible are already requested.
    pub fn follow(self: &Arc<Self>, route: &str) -> Option<RouteInterest> {
        let mut known = self.lock();
        let is_known = known.followed.contains_key(route);
        if !is_known && (known.followed.len() >= FOLLOWED_MAX || route.len() > FOLLOWED_BYTES_MAX) {
            return None;
        }
        let route: Arc<str> = route.into();
        *known.followed.entry(route.clone()).or_default() += 1;
        Some(RouteInterest { live: self.clone(), route })
    }

    /// The first event of a stream: the last `count` of the kept seconds, in pieces that streams share.
    pub fn history(&self, followed: Option<&RouteInterest>, count: usize) -> Vec<Bytes> {
        let has_metrics = self.reader.is_some();
        let mut pieces = vec![Bytes::from(format!("retry: 1000\ndata: {{\"metrics\":{has_metrics},\"history\":["))];
        let known = self.lock();
        let left_out = known.ring.len().saturating_sub(count);
        for (index, tick) in known.ring.iter().skip(left_out).enumerate() {
            if index > 0 {
                pieces.push(Bytes::from_static(b","));
            }
            pieces.extend(tick.pieces(&known.routes, followed));
        }
        pieces.push(Bytes::from_static(b"]}\n\n"));
        pieces
    }

    /// Returns a receiver that changes with every later second.
    pub fn seconds(self: &Arc<Self>) -> LastSecond {
        let mut last = self.last.subscribe();
        last.mark_unchanged();
        LastSecond { live: self.clone(), last }
    }
}

/// A stream's receiver for the next second.
pub struct LastSecond {
    live: Arc<Live>,
    last: watch::Receiver<Option<Arc<Tick>>>,
}

impl LastSecond {
    /// The next event, in pieces; a caller that is too slow misses seconds. `None`: the stream has ended.
    pub async fn next(&mut self, followed: Option<&RouteInterest>) -> Option<Vec<Bytes>> {
        loop {
            self.last.changed().await.ok()?;
            let tick = self.last.borrow_and_update().clone();
            if let Some(tick) = tick {
                let mut pieces = vec![Bytes::from_static(b"data: ")];
                pieces.extend(tick.pieces(&self.live.lock().routes, followed));
                pieces.push(Bytes::from_static(b"\n\n"));
                return Some(pieces);
            }
        }
    }
}

impl Tick {
    fn pieces(&self, routes: &RouteHistory, followed: Option<&RouteInterest>) -> [Bytes; 2] {
        let own = followed.and_then(|followed| Some((&followed.route, self.route(routes, &followed.route)?)));
        let end = own.map_or(Bytes::from_static(b"}"), |(id, of)| {
            Bytes::from(format!(",\"route\":{}}}", route_text(id, &of, self.elapsed_s)))
        });
        [self.text.clone(), end]
    }

    /// What a route did in this second; `None`: unknown.
    fn route(&self, routes: &RouteHistory, id: &str) -> Option<OfRequests> {
        let of = routes.get(self.number, id, self.has_codes)?;
        (of.requests > 0 || self.is_complete).then_some(of)
    }
}

impl Drop for RouteInterest {
    fn drop(&mut self) {
        let mut known = self.live.lock();
        if let Some(streams) = known.followed.get_mut(&self.route) {
            *streams -= 1;
            if *streams == 0 {
                known.followed.remove(&self.route);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::Value as Json;

    pub(crate) fn live() -> Arc<Live> {
        Arc::new(Live {
            since_unix_s: 0,
            reader: None,
            known: Mutex::default(),
            recent: Arc::default(),
            last: watch::Sender::default(),
            slow: Slow::unfed(),
        })
    }

    fn requests(requests: u64) -> OfRequests {
        OfRequests { requests, errors: Some(1), client_errors: Some(0), timed: requests, ..OfRequests::default() }
    }

    impl Live {
        pub(crate) fn add_second(&self, t: u64, active: &[(&str, u64)]) {
            let known = ProcessFigures { t, connections: 2, tunnels: 1, generation: 4 };
            let active = active.iter().map(|(id, count)| ((*id).into(), requests(*count))).collect();
            let figures = SecondFigures { active, is_complete: true, has_codes: true, ..SecondFigures::default() };
            self.add(&known, &figures, 3, 1.0);
        }
    }

    fn event(pieces: &[Bytes]) -> Json {
        let text = String::from_utf8(pieces.concat()).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
        assert!(text.ends_with("\n\n") && text.matches("data: ").count() == 1, "{text}");
        serde_json::from_str(line).unwrap()
    }

    #[tokio::test]
    async fn a_stream_begins_with_what_was_and_goes_on() {
        let live = live();
        let none = event(&live.history(None, SECONDS_MAX));
        assert_eq!((&none["metrics"], &none["history"]), (&Json::Bool(false), &Json::Array(Vec::new())));
        (0..1000).for_each(|t| live.add_second(t, &[]));
        let history = event(&live.history(None, SECONDS_MAX));
        let ring = history["history"].as_array().unwrap();
        assert_eq!((ring.len(), &ring[0]["t"], &ring[899]["t"]), (900, &100.into(), &999.into()));
        assert_eq!((&ring[0]["requests"], &ring[0]["generation"]), (&3.0.into(), &4.into()));

        let mut seconds = live.seconds();
        live.add_second(1000, &[]);
        assert_eq!(event(&seconds.next(None).await.unwrap())["t"], 1000);
    }

    /// The history of a route does not begin when somebody first looks at it.
    #[tokio::test]
    async fn a_route_has_all_seconds_from_before_it_is_followed() {
        let live = live();
        (0..200).for_each(|t| live.add_second(t, &[("a", t + 1), ("b", 1)]));
        live.add_second(200, &[]);
        let followed = live.follow("a").unwrap();
        let history = event(&live.history(Some(&followed), SECONDS_MAX));
        for t in 0..200 {
            assert_eq!(history["history"][t]["route"]["requests"], (t + 1) as f64, "{t}");
        }
        assert_eq!(history["history"][200]["route"]["requests"], 0.0);
        assert_eq!(event(&live.history(None, SECONDS_MAX))["history"][0]["route"], Json::Null);
        let mut seconds = live.seconds();
        live.add_second(201, &[("a", 7)]);
        let next = event(&seconds.next(Some(&followed)).await.unwrap());
        assert_eq!((&next["route"]["id"], &next["route"]["requests"]), (&"a".into(), &7.0.into()));
    }

    #[test]
    fn so_many_routes_are_followed_and_no_more() {
        let live = live();
        let followed = live.follow("a").unwrap();
        let twice = live.follow("a").unwrap();
        drop(followed);
        assert_eq!(live.lock().followed.len(), 1);
        drop(twice);
        assert_eq!(live.lock().followed.len(), 0);
        let all: Vec<_> = (0..FOLLOWED_MAX).map(|n| live.follow(&n.to_string()).unwrap()).collect();
        assert!(live.follow("one more").is_none());
        drop(all);
    }
}
