//! The slowest requests of the last 15 minutes, minute by minute: the content of `GET /v1/slow`.
//!
//! Each worker sends the slow ones among its own requests; the slowest of all are kept here.

use super::long_turns::LongTurns;
use serde_json::{Value as Json, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use stillgate_proxy::slow::{Cause, SLOW_QUEUE_MAX, SlowRequest};
use stillgate_proxy::{PlanCell, WorkerTally};
use tokio::sync::mpsc;

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
}
