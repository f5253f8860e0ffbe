//! Reports where the time of a slow request went, at its end.

use super::Exchange;
use crate::basics::slow_request::{PATH_BYTES_MAX, SlowRequest, Times};
use crate::plan::Plan;
use crate::telemetry::outcome::RequestOutcome;
use crate::worker::Worker;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Reports the request if it is one of the slowest of this minute. Tunnels do not count: they last as long as their ends want.
pub(super) fn report(worker: &Worker, exchange: &Exchange, plan: &Plan, ended: Option<Instant>) {
    let outcome = &exchange.outcome;
    // A request that began before slow requests were reported has no times.
    let Some((started, ended)) = outcome.started.zip(ended).filter(|_| outcome.kept.is_none()) else { return };
    let (took, now_unix_ms) = (ended.saturating_duration_since(started), worker.clock.now_unix_ms());
    let Some(keeper) = worker.plans.slow.get().filter(|_| worker.slowest.is_slow(took, now_unix_ms)) else { return };
    let head = exchange.from_client.head();
    let path = exchange.request.target.of(head).split(|byte| *byte == b'?').next().unwrap_or_default();
    let path = &path[..path.len().min(PATH_BYTES_MAX)];
    let told = SlowRequest {
        worker: worker.slowest.worker,
        // The worker's clock does not advance within a turn, which may have been long.
        ended_unix_ms: unix_ms(),
        times: times(worker, exchange, outcome, started, ended),
        status: outcome.status,
        route: outcome.route.map(|found| plan.routes[found.route].route.spec.id.as_str().to_owned()),
        method: String::from_utf8_lossy(exchange.request.method_bytes(head)).into_owned(),
        path: String::from_utf8_lossy(path).into_owned(),
        node: outcome.asked.map(|(_, address)| address),
    };
    if keeper.try_send(told).is_err() {
        worker.counters.slow_requests_lost.add(1);
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn times(worker: &Worker, exchange: &Exchange, outcome: &RequestOutcome, started: Instant, ended: Instant) -> Times {
    let node_since = outcome.node_since.unwrap_or(ended);
    let node_until = outcome.node_until.unwrap_or(ended).max(node_since);
    Times {
        took: ended.saturating_duration_since(started),
        before: node_since.saturating_duration_since(started),
        queued: if outcome.timing.has_queued { exchange.queued } else { Default::default() },
        node: node_until.saturating_duration_since(node_since),
        after: ended.saturating_duration_since(node_until),
        longest_turn: worker.slowest.longest_turn(started, worker.clock.turn()),
        cpu_wait: worker.slowest.cpu_wait(started),
    }
}
