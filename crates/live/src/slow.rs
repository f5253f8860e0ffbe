//! The slowest requests of the last 15 minutes, minute by minute: the content of `GET /v1/slow`.
//!
//! Each worker sends the slow ones among its own requests; the slowest of all are kept here.
//!
//! The last long turns of the workers' event loops, with their stacks, are recorded while slow requests are. A thread
//! of low priority reads the workers' counters a few hundred times a second. The workers take no part, except that one
//! with a long turn is asked for its stack.

use serde_json::{Value as Json, json};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};
use stillgate_profiler::stalls::{ContinuousWatch, LongTurn, LongTurnStack};
use stillgate_proxy::slow::{Cause, SLOW_QUEUE_MAX, SlowRequest};
use stillgate_proxy::{PlanCell, WORKER_NAME, WorkerTally};
use tokio::sync::mpsc;
use tracing::warn;

/// Number of minutes that are kept, including the current one.
const MINUTES_MAX: usize = 15;

/// Number of requests kept per minute.
const REQUESTS_MAX: usize = 20;

const MINUTE_MS: u64 = 60_000;

/// The recorded requests.
pub struct Slow {
    /// Locked for a few instructions, by the control side only.
    minutes: Mutex<VecDeque<Minute>>,
    tally: WorkerTally,
    turns: Arc<LongTurns>,
}

struct Minute {
    /// Minutes since 1970.
    number: u64,
    /// The slowest first.
    requests: Vec<SlowRequest>,
}

impl Slow {
    /// Starts to receive what the workers send. The task ends with the runtime.
    pub(super) fn start(plans: &PlanCell, tally: WorkerTally, give_back: fn()) -> Arc<Slow> {
        let (sender, mut told) = mpsc::channel(SLOW_QUEUE_MAX);
        let slow = Arc::new(Slow::new(tally, give_back));
        // It is set once, since a process has only one of these.
        if plans.slow.set(sender).is_ok() {
            let keeper = slow.clone();
            tokio::spawn(async move {
                while let Some(request) = told.recv().await {
                    keeper.add(request);
                }
            });
        }
        slow
    }

    fn new(tally: WorkerTally, give_back: fn()) -> Slow {
        Slow { minutes: Mutex::default(), tally, turns: LongTurns::new(give_back) }
    }

    /// An instance that receives nothing.
    #[cfg(test)]
    pub(super) fn unfed() -> Arc<Slow> {
        Arc::new(Slow::new(WorkerTally::default(), || {}))
    }

    /// Switches recording on or off.
    pub fn switch(&self, is_on: bool) {
        self.turns.watch(is_on);
    }

    fn add(&self, request: SlowRequest) {
        let (number, mut minutes) = (request.ended_unix_ms / MINUTE_MS, self.lock());
        let place = minutes.partition_point(|minute| minute.number < number);
        if minutes.get(place).is_none_or(|minute| minute.number != number) {
            minutes.insert(place, Minute { number, requests: Vec::new() });
        }
        let requests = &mut minutes[place].requests;
        let slower = requests.partition_point(|other| other.times.took >= request.times.took);
        requests.insert(slower, request);
        requests.truncate(REQUESTS_MAX);
        while minutes.len() > MINUTES_MAX {
            minutes.pop_front();
        }
    }

    /// All recorded requests, the last minute first.
    pub fn show(&self) -> Json {
        let minutes = self.lock();
        let minute = |minute: &Minute| {
            let requests: Vec<Json> = minute.requests.iter().map(|request| shown(request, &self.turns)).collect();
            json!({ "minute_unix_s": minute.number * MINUTE_MS / 1000, "requests": requests })
        };
        let minutes: Vec<Json> = minutes.iter().rev().map(minute).collect();
        json!({ "minutes": minutes, "lost": self.tally.read().slow_requests_lost })
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Minute>> {
        self.minutes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn shown(request: &SlowRequest, turns: &LongTurns) -> Json {
    let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
    let SlowRequest { worker, ended_unix_ms, times, status, route, method, path, node } = request;
    json!({
        "ended_unix_ms": ended_unix_ms,
        "worker": worker,
        "route": route,
        "method": method,
        "path": path,
        "status": status,
        "node": node.map(|node| node.to_string()),
        "cause": cause(times.cause()),
        "took_ms": ms(times.took),
        "before_ms": ms(times.before),
        "queued_ms": ms(times.queued),
        "node_ms": ms(times.node),
        "after_ms": ms(times.after),
        "longest_turn_ms": ms(times.longest_turn),
        "cpu_wait_ms": ms(times.cpu_wait),
        "turns": turns.of(request),
    })
}

fn cause(cause: Cause) -> &'static str {
    match cause {
        Cause::Cpu => "cpu",
        Cause::Turn => "turn",
        Cause::Queue => "queue",
        Cause::Node => "node",
        Cause::Client => "client",
        Cause::Before => "before_node",
        Cause::Several => "several",
    }
}

/// Turns shorter than this have no stack.
const OVER: Duration = Duration::from_millis(20);

/// Number of turns that are kept.
const TURNS_MAX: usize = 256;

/// Number of turns shown for one request.
const SHOWN_MAX: usize = 3;

/// The interval at which stacks are symbolised.
const NAME_EVERY: Duration = Duration::from_secs(1);

/// The pause before a watch that failed to start is started again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The share of the thread's time that symbolising may take: one part in so many.
const REST: u32 = 10;

/// The recorded turns, and whether a thread watches.
struct LongTurns {
    /// Locked for a few instructions, by the control side only.
    kept: Mutex<VecDeque<LongTurn>>,
    /// The flag that keeps the watching thread running.
    watching: Mutex<Option<Arc<AtomicBool>>>,
    /// Returns free memory of the calling thread to the system.
    give_back: fn(),
}

impl LongTurns {
    pub(super) fn new(give_back: fn()) -> Arc<LongTurns> {
        Arc::new(LongTurns { kept: Mutex::default(), watching: Mutex::default(), give_back })
    }

    /// Starts or stops watching.
    pub(super) fn watch(self: &Arc<Self>, is_wanted: bool) {
        let mut watching = self.watching.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*watching, is_wanted) {
            (Some(goes_on), false) => {
                goes_on.store(false, Ordering::Relaxed);
                *watching = None;
            }
            (None, true) => {
                let goes_on = Arc::new(AtomicBool::new(true));
                let (turns, sign) = (self.clone(), goes_on.clone());
                let begun = thread::Builder::new().name("long-turns".to_owned()).spawn(move || turns.run(&sign));
                match begun {
                    Ok(_) => *watching = Some(goes_on),
                    Err(error) => warn!(%error, "long turns of event loops have no stacks in /v1/slow"),
                }
            }
            _ => {}
        }
    }

    fn run(&self, goes_on: &AtomicBool) {
        let begun = begin(goes_on, || ContinuousWatch::new(OVER), || thread::sleep(AGAIN_AFTER));
        let Some(mut watch) = begun else { return };
        let mut named = Instant::now();
        while goes_on.load(Ordering::Relaxed) {
            watch.look();
            if named.elapsed() >= NAME_EVERY {
                let begin = Instant::now();
                let turns = watch.long_turns();
                if !turns.is_empty() {
                    self.add(turns);
                    // The symbols of the binary took much of it for a moment.
                    (self.give_back)();
                }
                // Paused in proportion, so that most of the time is spent watching.
                named = Instant::now() + begin.elapsed() * REST;
            }
            thread::sleep(watch.pause());
        }
    }

    fn add(&self, turns: Vec<LongTurn>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(turns);
        let surplus = kept.len().saturating_sub(TURNS_MAX);
        drop(kept.drain(..surplus));
    }

    /// The turns of the request's worker that overlapped the request, the longest first.
    pub(super) fn of(&self, request: &SlowRequest) -> Json {
        let worker = format!("{WORKER_NAME}{}", request.worker);
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let began_unix_ms = request.ended_unix_ms.saturating_sub(ms(request.times.took));
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let overlaps = |turn: &&LongTurn| {
            turn.thread == worker
                && turn.ended_unix_ms >= began_unix_ms
                && turn.ended_unix_ms.saturating_sub(ms(turn.took)) <= request.ended_unix_ms
        };
        let mut turns: Vec<&LongTurn> = kept.iter().filter(overlaps).collect();
        turns.sort_by_key(|turn| std::cmp::Reverse(turn.took));
        turns.iter().take(SHOWN_MAX).map(|turn| long_turns_shown(turn)).collect()
    }
}

/// Tries until it succeeds or is no longer wanted; logs the first failure.
fn begin<T>(goes_on: &AtomicBool, mut new: impl FnMut() -> io::Result<T>, mut pause: impl FnMut()) -> Option<T> {
    let mut is_said = false;
    while goes_on.load(Ordering::Relaxed) {
        match new() {
            Ok(begun) => return Some(begun),
            Err(error) if !is_said => {
                warn!(%error, "long turns of event loops have no stacks in /v1/slow; this is tried again");
                is_said = true;
            }
            Err(_) => {}
        }
        pause();
    }
    None
}

fn long_turns_shown(turn: &LongTurn) -> Json {
    let stack = |stack: &LongTurnStack| {
        let frames: Vec<&str> = stack.frames.iter().map(|frame| &**frame).collect();
        json!({ "seen": stack.seen, "route": stack.route, "plugin": stack.plugin, "frames": frames })
    };
    json!({
        "ended_unix_ms": turn.ended_unix_ms,
        "took_ms": (turn.took.as_secs_f64() * 1e6).round() / 1e3,
        "stacks": turn.stacks.iter().map(stack).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_proxy::slow::Times;

    fn request(minute: u64, took_ms: u64) -> SlowRequest {
        let took = Duration::from_millis(took_ms);
        SlowRequest {
            worker: 0,
            ended_unix_ms: minute * MINUTE_MS + 1,
            times: Times { took, node: took, ..Times::default() },
            status: 200,
            route: Some("r".to_owned()),
            method: "GET".to_owned(),
            path: "/".to_owned(),
            node: None,
        }
    }

    #[test]
    fn the_slowest_of_each_minute_are_kept() {
        let slow = Slow::unfed();
        // A late request is added to its own minute.
        for minute in (0..20).chain([18, 3]) {
            (1..=30).for_each(|took_ms| slow.add(request(minute, took_ms * 7 % 31)));
        }
        let shown = slow.show();
        let minutes = shown["minutes"].as_array().unwrap();
        assert_eq!(minutes.len(), MINUTES_MAX);
        assert_eq!((&minutes[0]["minute_unix_s"], &minutes[14]["minute_unix_s"]), (&json!(19 * 60), &json!(5 * 60)));
        let took = |minute: &Json| -> Vec<f64> {
            minute["requests"].as_array().unwrap().iter().map(|of| of["took_ms"].as_f64().unwrap()).collect()
        };
        let expected: Vec<f64> = (0..REQUESTS_MAX).map(|place| 30.0 - place as f64).collect();
        assert_eq!(took(&minutes[0]), expected);
        assert_eq!(took(&minutes[1])[..4], [30.0, 30.0, 29.0, 29.0], "twice as many of this minute");
        assert_eq!(minutes[0]["requests"][0]["cause"], "node");
    }

    #[test]
    fn a_watch_that_cannot_begin_is_tried_again_while_it_is_wanted() {
        let goes_on = AtomicBool::new(true);
        let mut tries = 0;
        let mut new = || {
            tries += 1;
            if tries < 3 { Err(io::Error::other("not yet")) } else { Ok(tries) }
        };
        assert_eq!(begin(&goes_on, &mut new, || {}), Some(3));
        let failing = || Err::<(), _>(io::Error::other("never"));
        let mut pauses = 0;
        let ended = begin(&goes_on, failing, || {
            pauses += 1;
            goes_on.store(pauses < 2, Ordering::Relaxed);
        });
        assert_eq!((ended, pauses), (None, 2));
    }
}
