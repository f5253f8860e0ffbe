//! The last 15 minutes, second by second, for all viewers: the content of `GET /v1/live`. The slowest requests are in `slow`.
//!
//! ```text
//!  exporter's thread: Sampler reads the segments ─▶ Second ─▶ ring of 900 ─▶ first event of a stream
//!  control thread:    connections, generation    ─┘       └▶ one text, shared by all streams
//! ```
//!
//! Workers take no part: their counters are read in place. A second is computed once for all viewers, on the exporter's thread of
//! idle priority; if there are so many series that it takes long, it is computed less often.

#![forbid(unsafe_code)]

mod sampler;
mod second;
mod slow;

use second::{ProcessFigures, Second, SecondFigures};
use slow::Slow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use sampler::Sampler;
use stillgate_exporter::CollectorReader;
use stillgate_proxy::{PlanCell, WorkerTally};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Number of seconds that are kept.
const SECONDS_MAX: usize = 900;

/// The most routes whose own figures are sent on request.
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
    /// Whether requests are measured.
    has_metrics: bool,
    /// Locked for a few instructions, by the control side only.
    known: Mutex<Seconds>,
    /// The last second.
    last: watch::Sender<Option<Arc<Tick>>>,
    /// The slowest requests.
    pub slow: Arc<Slow>,
}

#[derive(Default)]
struct Seconds {
    ring: VecDeque<Arc<Tick>>,
    /// Routes with the number of streams that request them.
    followed: BTreeMap<Arc<str>, usize>,
}

/// A second in the form in which it is sent.
struct Tick {
    /// JSON without the closing brace.
    text: Bytes,
    /// The followed routes of that second, as JSON.
    routes: BTreeMap<Arc<str>, String>,
}

/// While this is held, the figures of a route are sent.
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
            has_metrics: reader.is_some(),
            known: Mutex::default(),
            last: watch::Sender::default(),
            slow: Slow::start(&plans, tally.clone(), give_back),
        });
        let task = live.clone();
        tokio::spawn(async move { task.run(reader, tally, plans).await });
        live
    }

    async fn run(&self, reader: Option<CollectorReader>, tally: WorkerTally, plans: Arc<PlanCell>) {
        let mut sampler = Some(Sampler::default());
        let mut due = Instant::now();
        let mut before: Option<(Instant, u64)> = None;
        loop {
            sleep_until(due).await;
            let wanted: Vec<Arc<str>> = self.lock().followed.keys().cloned().collect();
            let figures = match (&reader, sampler.take()) {
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
                self.add(Second::new(&known, &figures, counted, elapsed_s));
            }
            before = Some((at, counters.requests_total));
            due = (due + EVERY).max(at + (figures.took * REST).min(EVERY_MAX));
        }
    }

    fn add(&self, second: Second) {
        let Second { text, routes } = second;
        let tick = Arc::new(Tick { text, routes });
        let mut known = self.lock();
        if known.ring.len() == SECONDS_MAX {
            known.ring.pop_front();
        }
        known.ring.push_back(tick.clone());
        drop(known);
        self.last.send_replace(Some(tick));
    }

    fn lock(&self) -> MutexGuard<'_, Seconds> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests a route's own figures from now on; `None`: the maximum number of routes is already requested.
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

    /// Returns a receiver that changes with every later second.
    pub fn seconds(&self) -> LastSecond {
        let mut last = self.last.subscribe();
        last.mark_unchanged();
        LastSecond(last)
    }

    /// The first event of a stream: all kept seconds, in pieces that streams share.
    pub fn history(&self, followed: Option<&RouteInterest>) -> Vec<Bytes> {
        let ring: Vec<Arc<Tick>> = self.lock().ring.iter().cloned().collect();
        let has_metrics = self.has_metrics;
        let mut pieces = vec![Bytes::from(format!("retry: 1000\ndata: {{\"metrics\":{has_metrics},\"history\":["))];
        for (index, tick) in ring.iter().enumerate() {
            if index > 0 {
                pieces.push(Bytes::from_static(b","));
            }
            pieces.extend(tick.pieces(followed));
        }
        pieces.push(Bytes::from_static(b"]}\n\n"));
        pieces
    }
}

/// A stream's receiver for the next second.
pub struct LastSecond(watch::Receiver<Option<Arc<Tick>>>);

impl LastSecond {
    /// The next event, in pieces; a caller that is too slow misses seconds. `None`: the stream has ended.
    pub async fn next(&mut self, followed: Option<&RouteInterest>) -> Option<Vec<Bytes>> {
        loop {
            self.0.changed().await.ok()?;
            let tick = self.0.borrow_and_update().clone();
            if let Some(tick) = tick {
                let end = Bytes::from_static(b"\n\n");
                return Some(
                    [Bytes::from_static(b"data: ")].into_iter().chain(tick.pieces(followed)).chain([end]).collect(),
                );
            }
        }
    }
}

impl Tick {
    fn pieces(&self, followed: Option<&RouteInterest>) -> [Bytes; 2] {
        let own = followed.and_then(|followed| self.routes.get(&followed.route));
        let end = own.map_or(Bytes::from_static(b"}"), |own| Bytes::from(format!(",\"route\":{own}}}")));
        [self.text.clone(), end]
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

/// A clock before 1970 counts as 1970.
fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value as Json;

    fn live() -> Arc<Live> {
        Arc::new(Live {
            has_metrics: true,
            known: Mutex::default(),
            last: watch::Sender::default(),
            slow: Slow::unfed(),
        })
    }

    fn second(t: u64, routes: &[&str]) -> Second {
        let known = ProcessFigures { t, connections: 2, tunnels: 1, generation: 4 };
        let mut second = Second::new(&known, &SecondFigures::default(), 3, 1.0);
        second.routes.extend(routes.iter().map(|route| ((*route).into(), format!("{{\"id\":\"{route}\"}}"))));
        second
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
        let none = event(&live.history(None));
        assert_eq!((&none["metrics"], &none["history"]), (&Json::Bool(true), &Json::Array(Vec::new())));
        (0..1000).for_each(|t| live.add(second(t, &[])));
        let history = event(&live.history(None));
        let ring = history["history"].as_array().unwrap();
        assert_eq!((ring.len(), &ring[0]["t"], &ring[899]["t"]), (900, &100.into(), &999.into()));
        assert_eq!((&ring[0]["requests"], &ring[0]["generation"]), (&3.0.into(), &4.into()));

        let mut seconds = live.seconds();
        live.add(second(1000, &[]));
        assert_eq!(event(&seconds.next(None).await.unwrap())["t"], 1000);
    }

    #[tokio::test]
    async fn a_route_that_is_followed_comes_with_it() {
        let live = live();
        let followed = live.follow("a").unwrap();
        let twice = live.follow("a").unwrap();
        let mut seconds = live.seconds();
        live.add(second(1, &["a"]));
        assert_eq!(event(&seconds.next(Some(&followed)).await.unwrap())["route"]["id"], "a");
        assert_eq!(event(&live.history(Some(&followed)))["history"][0]["route"]["id"], "a");
        assert_eq!(event(&live.history(None))["history"][0]["route"], Json::Null);
        drop(followed);
        assert_eq!(live.lock().followed.len(), 1);
        drop(twice);
        assert_eq!(live.lock().followed.len(), 0);
        let all: Vec<_> = (0..FOLLOWED_MAX).map(|n| live.follow(&n.to_string()).unwrap()).collect();
        assert!(live.follow("one more").is_none());
        drop(all);
    }
}
