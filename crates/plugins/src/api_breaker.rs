//! `api-breaker`: answers requests instead of a node that fails repeatedly, for a growing time.
//!
//! State is kept by host and path for all workers, as in APISIX: neither the route nor the configuration makes a
//! difference. It is bounded; the time is the worker's.

use crate::variable_texts;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use stillgate_plugin_api::{Answer, Compile, Define, Flow, Phase, Phases, Plugin, Request, Response, Template};
use stillgate_schema::kind::unique;
use stillgate_schema::{At, LocatedKind, TEXT, int, list, map, object, some};
use stillgate_wire::{FieldValue, Fields, OwnedFieldName};

object! {
    /// Answers requests instead of a node that fails.
    pub(crate) struct ApiBreakerKeys {
        /// The status of the answer.
        break_response_code: u16 = int(200, 599) => required;
        /// Its body.
        break_response_body: String = TEXT => optional;
        /// Its header fields; values may have variables. They are sent with a body only.
        break_response_headers: Vec<BreakHeader> = list(map::<BreakHeader>()) => optional;
        /// The longest time for which the node gets no requests, in seconds.
        max_breaker_sec: u32 = int(3, 86_400) => default(300);
        /// When a node counts as unhealthy.
        unhealthy: UnhealthyKeys = map::<UnhealthyKeys>() => optional;
        /// When it counts as healthy again.
        healthy: HealthyKeys = map::<HealthyKeys>() => optional;
    }
}

object! {
    /// A header field of the answer.
    pub(crate) struct BreakHeader {
        /// Its name.
        key: At<OwnedFieldName> = LocatedKind(crate::server_call::FIELD_NAME) => required;
        /// Its value.
        value: At<String> = LocatedKind(TEXT) => required;
    }
}

object! {
    /// When a node counts as unhealthy.
    pub(crate) struct UnhealthyKeys {
        /// Statuses that count as failures.
        http_statuses: Vec<u16> = unique(some(int(500, 599))) => default(vec![500]);
        /// After so many, the node gets no requests for some time.
        failures: u32 = int(1, 1_000_000) => default(3);
    }
}

object! {
    /// When a node counts as healthy again.
    pub(crate) struct HealthyKeys {
        /// Statuses that count as successes.
        http_statuses: Vec<u16> = unique(some(int(200, 499))) => default(vec![200]);
        /// After so many, its failures are forgotten.
        successes: u32 = int(1, 1_000_000) => default(3);
    }
}

/// The state of all workers. It is created with the first configuration, off the workers.
static KNOWN: LazyLock<BreakerTable> = LazyLock::new(BreakerTable::new);

/// The plugin.
pub(crate) struct ApiBreaker {
    answer: Answer,
    headers: Box<[(OwnedFieldName, Template)]>,
    rest_s_max: u64,
    unhealthy: UnhealthyKeys,
    healthy: HealthyKeys,
}

impl Define for ApiBreaker {
    type Keys = ApiBreakerKeys;
    const NAME: &'static str = "api-breaker";
    const PRIORITY: i32 = 1005;
    const PHASES: Phases = Phases::of(&[Phase::Access, Phase::Log]);

    fn compile(keys: ApiBreakerKeys, cx: &mut Compile<'_>) -> Option<ApiBreaker> {
        let status = keys.break_response_code;
        let has_body = keys.break_response_body.is_some();
        let mut headers = Vec::new();
        for header in keys.break_response_headers.unwrap_or_default() {
            let path = cx.path.key("break_response_headers");
            let template = variable_texts::template(&header.value.value, header.value.at, &path, cx.sink);
            headers.push((header.key.value, template));
        }
        LazyLock::force(&KNOWN);
        Some(ApiBreaker {
            answer: match keys.break_response_body {
                Some(body) => Answer::shared(status, body.into_bytes().into()),
                None => Answer::page(status),
            },
            headers: if has_body { headers.into() } else { Box::default() },
            rest_s_max: u64::from(keys.max_breaker_sec),
            unhealthy: keys.unhealthy.unwrap_or(UnhealthyKeys { http_statuses: vec![500], failures: 3 }),
            healthy: keys.healthy.unwrap_or(HealthyKeys { http_statuses: vec![200], successes: 3 }),
        })
    }
}

impl Plugin for ApiBreaker {
    fn access(&self, request: &mut Request<'_>) -> Flow {
        let now_s = request.worker.now_ms() / 1000;
        let worker = request.worker;
        let key =
            worker.with_buffers(|text, _| key(request.facts.host, request.facts.path.map(|path| path.bytes()), text));
        if !KNOWN.state(key).is_some_and(|state| self.is_broken(state, now_s)) {
            return Flow::Continue;
        }
        let (mut text, mut buffer) = (Vec::new(), Vec::new());
        for (name, template) in &self.headers {
            text.clear();
            template.write(request, &mut text, &mut buffer);
            let name = name.name();
            match FieldValue::new(&text) {
                // A response has only one.
                Ok(value) if name.bytes().eq_ignore_ascii_case(b"content-type") => {
                    request.response.set(&Fields::default(), &[], name, value)
                }
                Ok(value) => request.response.add(name, value),
                Err(_) => return Flow::Answer(Answer::page(500)),
            }
        }
        Flow::Answer(self.answer.clone())
    }

    fn log(&self, response: &mut Response<'_>) {
        // As in APISIX, the node's status: the answer may be the gateway's own.
        let Some(status) = response.node_status else { return };
        let worker = response.worker;
        let now_s = worker.now_ms() / 1000;
        let key =
            worker.with_buffers(|text, _| key(response.facts.host, response.facts.path.map(|path| path.bytes()), text));
        self.learn(&KNOWN, key, status, now_s);
    }
}

impl ApiBreaker {
    fn is_broken(&self, state: PathState, now_s: u64) -> bool {
        state.broken_s.is_some_and(|broken_s| broken_s + self.rest_s(state.failures) >= now_s)
    }

    /// 2, 4, 8 seconds and so on, doubled for every `failures` that were counted.
    fn rest_s(&self, failures: u32) -> u64 {
        let times = failures.div_ceil(self.unhealthy.failures).max(1);
        1u64.checked_shl(times).unwrap_or(u64::MAX).min(self.rest_s_max)
    }

    fn learn(&self, known: &BreakerTable, key: u64, status: u16, now_s: u64) {
        if self.unhealthy.http_statuses.contains(&status) {
            known.fail(key, now_s, self.unhealthy.failures);
        } else if self.healthy.http_statuses.contains(&status) {
            known.succeed(key, self.healthy.successes);
        }
    }
}

fn key(host: &[u8], path: Option<&[u8]>, text: &mut Vec<u8>) -> u64 {
    text.clear();
    text.extend_from_slice(host);
    text.extend_from_slice(path.unwrap_or_default());
    KNOWN.key(text)
}

// Failures of hosts and paths: a table of atomics that all workers share, without locks, waits or allocations.
//
// ```text
//   slot: | key, 64 bits | failures, 32 bits; successes, 32 bits | broken since | last failure |
// ```
//
// A key is in one of the slots of its window. A new failing key replaces one that has healed, or else the one whose
// last failure is the oldest. Workers that meet in a slot while it changes its key may lose a failure, or count one
// for the other key.

/// Capacity in paths.
const SLOTS: usize = 16 * 1024;
/// Slots that a path may be in.
const WINDOW: usize = 8;

/// By host and path.
struct BreakerTable {
    slots: Box<[BreakerSlot]>,
    hashes: RandomState,
}

#[derive(Default)]
struct BreakerSlot {
    /// 0: none.
    key: AtomicU64,
    /// Failures above, successes below.
    counts: AtomicU64,
    /// When the limit of failures was last reached, in seconds plus one; 0: not since it healed.
    broken: AtomicU64,
    failed_s: AtomicU64,
}

/// State of a path that has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PathState {
    failures: u32,
    successes: u32,
    /// When the limit of failures was last reached, in seconds.
    broken_s: Option<u64>,
}

impl BreakerTable {
    fn new() -> BreakerTable {
        BreakerTable { slots: (0..SLOTS).map(|_| BreakerSlot::default()).collect(), hashes: RandomState::new() }
    }

    /// The key of a host and a path.
    fn key(&self, host_and_path: &[u8]) -> u64 {
        self.hashes.hash_one(host_and_path).max(1)
    }

    /// `None`: it has not failed since it healed.
    fn state(&self, key: u64) -> Option<PathState> {
        let slot = self.find(key)?;
        let (failures, successes) = unpack_counts(slot.counts.load(Ordering::Acquire));
        let broken_s = slot.broken.load(Ordering::Acquire).checked_sub(1);
        (failures > 0).then_some(PathState { failures, successes, broken_s })
    }

    /// Counts a failure. Every `enough` of them break the path again.
    fn fail(&self, key: u64, now_s: u64, enough: u32) {
        let slot = self.find(key).unwrap_or_else(|| self.claim(key));
        let count = |counts| Some(pack_counts(unpack_counts(counts).0.saturating_add(1), 0));
        let before = slot.counts.fetch_update(Ordering::AcqRel, Ordering::Acquire, count).unwrap_or_default();
        slot.failed_s.store(now_s, Ordering::Release);
        if unpack_counts(before).0.saturating_add(1).is_multiple_of(enough) {
            slot.broken.store(now_s + 1, Ordering::Release);
        }
    }

    /// Counts a success of a path that has failed. After `enough` of them it has healed.
    fn succeed(&self, key: u64, enough: u32) {
        let Some(slot) = self.find(key) else { return };
        let count = |counts| {
            let (failures, successes) = unpack_counts(counts);
            (failures > 0).then(|| match successes + 1 >= enough {
                true => 0,
                false => pack_counts(failures, successes + 1),
            })
        };
        let before = slot.counts.fetch_update(Ordering::AcqRel, Ordering::Acquire, count);
        if before.is_ok_and(|before| unpack_counts(before).1 + 1 >= enough) {
            slot.broken.store(0, Ordering::Release);
        }
    }

    fn window(&self, key: u64) -> impl Iterator<Item = &BreakerSlot> {
        (0..WINDOW).map(move |step| &self.slots[(key as usize + step) % SLOTS])
    }

    fn find(&self, key: u64) -> Option<&BreakerSlot> {
        self.window(key).find(|slot| slot.key.load(Ordering::Acquire) == key)
    }

    /// Claims a slot for a key that has none.
    fn claim(&self, key: u64) -> &BreakerSlot {
        let age = |slot: &&BreakerSlot| match unpack_counts(slot.counts.load(Ordering::Acquire)).0 {
            0 => 0,
            _ => slot.failed_s.load(Ordering::Acquire) + 1,
        };
        let slot = self.window(key).min_by_key(age).unwrap_or(&self.slots[0]);
        slot.key.store(key, Ordering::Release);
        slot.counts.store(0, Ordering::Release);
        slot.broken.store(0, Ordering::Release);
        slot
    }
}

fn unpack_counts(counts: u64) -> (u32, u32) {
    ((counts >> 32) as u32, counts as u32)
}

fn pack_counts(failures: u32, successes: u32) -> u64 {
    u64::from(failures) << 32 | u64::from(successes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker() -> ApiBreaker {
        ApiBreaker {
            answer: Answer::page(502),
            headers: Box::default(),
            rest_s_max: 10,
            unhealthy: UnhealthyKeys { http_statuses: vec![500, 503], failures: 3 },
            healthy: HealthyKeys { http_statuses: vec![200], successes: 2 },
        }
    }

    #[test]
    fn the_rest_grows_up_to_its_bound() {
        let (breaker, known) = (breaker(), BreakerTable::new());
        let fail = |times: usize, now_s| {
            (0..times).for_each(|_| breaker.learn(&known, 7, 500, now_s));
            known.state(7).expect("it has failed")
        };
        let is_broken = |state, now_s| breaker.is_broken(state, now_s);
        assert!(!is_broken(fail(2, 0), 0));
        let state = fail(1, 0);
        assert_eq!([0, 2, 3].map(|now_s| is_broken(state, now_s)), [true, true, false]);
        let state = fail(3, 100);
        assert_eq!([100, 104, 105].map(|now_s| is_broken(state, now_s)), [true, true, false]);
        let state = fail(300, 200);
        assert_eq!([200, 210, 211].map(|now_s| is_broken(state, now_s)), [true, true, false]);
    }

    #[test]
    fn successes_heal_and_other_statuses_say_nothing() {
        let (breaker, known) = (breaker(), BreakerTable::new());
        for status in [200, 404, 500, 503, 404, 200] {
            breaker.learn(&known, 7, status, 0);
        }
        assert_eq!(known.state(7), Some(PathState { failures: 2, successes: 1, broken_s: None }));
        breaker.learn(&known, 7, 500, 0);
        assert_eq!(known.state(7), Some(PathState { failures: 3, successes: 0, broken_s: Some(0) }));
        breaker.learn(&known, 7, 200, 9);
        breaker.learn(&known, 7, 200, 9);
        assert_eq!(known.state(7), None);
    }

    /// As in APISIX: neither routes nor configurations have a state of their own.
    #[test]
    fn all_configurations_know_the_same() {
        let (one, other) = (breaker(), ApiBreaker { rest_s_max: 300, ..breaker() });
        let known = BreakerTable::new();
        (0..3).for_each(|_| one.learn(&known, 7, 500, 0));
        assert!(other.is_broken(known.state(7).expect("it has failed"), 2));
        (0..2).for_each(|_| other.learn(&known, 7, 200, 3));
        assert_eq!(known.state(7), None);
    }
}

#[cfg(test)]
mod table_tests {
    use super::*;

    #[test]
    fn failures_break_and_successes_heal() {
        let (table, state) =
            (BreakerTable::new(), |failures, successes, broken_s| PathState { failures, successes, broken_s });
        let key = table.key(b"h/a");
        table.succeed(key, 1);
        assert_eq!(table.state(key), None);
        table.fail(key, 0, 2);
        table.succeed(key, 2);
        assert_eq!(table.state(key), Some(state(1, 1, None)));
        table.fail(key, 7, 2);
        assert_eq!(table.state(key), Some(state(2, 0, Some(7))));
        table.fail(key, 8, 2);
        assert_eq!(table.state(key), Some(state(3, 0, Some(7))));
        assert_eq!(table.state(table.key(b"h/b")), None);
        table.succeed(key, 2);
        table.succeed(key, 2);
        assert_eq!(table.state(key), None);
        table.fail(key, 9, 2);
        assert_eq!(table.state(key), Some(state(1, 0, None)));
    }

    #[test]
    fn the_oldest_makes_place_and_what_has_healed_before_it() {
        let table = BreakerTable::new();
        let key = |at: u64| 5 + at * SLOTS as u64;
        (1..=WINDOW as u64).for_each(|at| table.fail(key(at), 100 + at, 1));
        assert!((1..=WINDOW as u64).all(|at| table.state(key(at)).is_some()));
        table.succeed(key(4), 1);
        table.fail(key(20), 200, 1);
        assert_eq!((1..=WINDOW as u64).filter(|at| table.state(key(*at)).is_none()).collect::<Vec<_>>(), [4]);
        table.fail(key(21), 201, 1);
        assert_eq!((1..=WINDOW as u64).filter(|at| table.state(key(*at)).is_none()).collect::<Vec<_>>(), [1, 4]);
    }

    #[test]
    fn workers_count_together() {
        let (table, key) = (BreakerTable::new(), 77);
        table.fail(key, 0, u32::MAX);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| table.fail(key, 1, u32::MAX)));
            }
        });
        assert_eq!(table.state(key).map(|state| state.failures), Some(40_001));
    }
}
