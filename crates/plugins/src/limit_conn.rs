//! `limit-conn`: limits the number of concurrent requests, by one key of each request, or by several.
//!
//! Counters are shared by all workers. Beyond `conn` a request waits a while, beyond `conn` and `burst` it is refused.
//! A request counts until it has ended in any way, also under the rules before the one that refused it.

use crate::counters::{CounterPolicy, OF_REDIS, reads_consumer};
use crate::number::Decimal;
use crate::number::{ABOVE_ZERO, FROM_ZERO, Number};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::time::Duration;
use stillgate_plugin_api::{Answer, Compile, Define, Flow, Identity, Phase, Phases, Plugin, Request, Template};
use stillgate_route::{Lookup, Variable};
use stillgate_schema::{At, Choice, Fault, Flag, LocatedKind, TEXT, Text, int, map, object, some, text};

/// Longest delay of a request of the burst.
const DELAY_MAX: Duration = Duration::from_secs(60);
/// Shorter delays are skipped.
const DELAY_MIN: Duration = Duration::from_millis(1);

/// The plugin; shared with the requests that wait.
pub(crate) struct LimitConn(Arc<LimitConnConfig>);

struct LimitConnConfig {
    rules: Box<[ConnRule]>,
    default_us: u64,
    rejected: Answer,
    degrades: bool,
    hashes: RandomState,
    table: Arc<ConnTable>,
}

struct ConnRule {
    conn: Number,
    burst: Number,
    key: ConnKey,
}

enum ConnKey {
    Variable(Variable),
    Combination(Template),
    /// A text with variables, but the rule does not apply to a request with none of its variables.
    Present(Template),
}

impl Define for LimitConn {
    type Keys = LimitConnKeys;
    const NAME: &'static str = "limit-conn";
    const PRIORITY: i32 = 1003;
    const PHASES: Phases = Phases::of(&[Phase::Access]);

    fn compile(keys: LimitConnKeys, cx: &mut Compile<'_>) -> Option<LimitConn> {
        let rules = match (keys.rules, keys.conn, keys.burst, keys.key) {
            (Some(rules), None, None, None) => several(rules, cx)?,
            (None, Some(conn), Some(burst), Some(key)) => {
                let parsed = match keys.key_type {
                    false => Variable::parse_with_body(&key.value).map(ConnKey::Variable),
                    true => Template::parse_with_body(&key.value).map(ConnKey::Combination),
                };
                let fault = |error| Fault::new(format!("{error}"));
                let parsed = parsed.map_err(|error| cx.sink.error(key.at, &cx.path.key("key"), fault(error)));
                Box::new([ConnRule { conn, burst, key: parsed.ok()? }])
            }
            (Some(_), ..) => {
                return refuse("`rules` cannot be combined with `conn`, `burst` or `key`", "keep one of them", cx);
            }
            (None, ..) => return refuse("there is no limit", "add `conn`, `burst` and `key`, or `rules`", cx),
        };
        let (hashes, table) = shared(cx.identity);
        Some(LimitConn(Arc::new(LimitConnConfig {
            rules,
            default_us: (keys.default_conn_delay * 1e6) as u64,
            rejected: Answer::rejection(keys.rejected_code, keys.rejected_msg.as_deref()),
            degrades: keys.allow_degradation,
            hashes,
            table,
        })))
    }
}

fn refuse<T>(what: &str, hint: &str, cx: &mut Compile<'_>) -> Option<T> {
    cx.sink.error(cx.at, cx.path, Fault::new(what).hint(hint));
    None
}

fn several(keys: Vec<ConnRuleKeys>, cx: &mut Compile<'_>) -> Option<Box<[ConnRule]>> {
    let list = cx.path.key("rules");
    let mut rules = Vec::with_capacity(keys.len());
    for (index, ConnRuleKeys { conn, burst, key: At { at, value } }) in keys.into_iter().enumerate() {
        let path = list.index(index);
        let template = Template::parse_with_body(&value)
            .map_err(|error| cx.sink.error(at, &path.key("key"), Fault::new(error.to_string())))
            .ok()?;
        if template.variables().next().is_none() {
            let fault = Fault::new(format!("the key {value:?} has no variable, so the rule applies to no request"));
            cx.sink.warning(at, &path.key("key"), fault.hint("write one, such as $remote_addr"));
        }
        rules.push(ConnRule { conn, burst, key: ConnKey::Present(template) });
    }
    Some(rules.into())
}

/// The counters of a configuration, which are the same each time it is compiled. Called only on the control side.
fn shared(identity: Identity) -> (RandomState, Arc<ConnTable>) {
    static TABLES: LazyLock<Mutex<HashMap<Identity, Weak<ConnTable>>>> = LazyLock::new(Mutex::default);
    static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let mut tables = TABLES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    tables.retain(|_, table| table.strong_count() > 0);
    let known = tables.get(&identity).and_then(Weak::upgrade);
    let table = known.unwrap_or_else(|| Arc::new(ConnTable::new()));
    tables.insert(identity, Arc::downgrade(&table));
    (HASHES.clone(), table)
}

impl Plugin for LimitConn {
    fn access(&self, request: &mut Request<'_>) -> Flow {
        go_on(&self.0, 0, false, request)
    }

    fn each_variable(&self, visit: &mut dyn FnMut(&Variable)) {
        for rule in &self.0.rules {
            match &rule.key {
                ConnKey::Variable(variable) => visit(variable),
                ConnKey::Combination(template) | ConnKey::Present(template) => {
                    template.variables().for_each(&mut *visit)
                }
            }
            rule.conn.variables().chain(rule.burst.variables()).for_each(&mut *visit);
        }
    }

    fn reads_consumer(&self) -> bool {
        reads_consumer(self)
    }
}

/// Counts a request under the rules from an index on, until it waits or is refused.
fn go_on(inner: &Arc<LimitConnConfig>, from: usize, mut applies: bool, request: &mut Request<'_>) -> Flow {
    for (index, rule) in inner.rules.iter().enumerate().skip(from) {
        let hash = inner.hash(index, rule, request);
        let limit = rule.conn.of(1, request).zip(rule.burst.of(0, request));
        let (Some(hash), Some((conn, burst))) = (hash, limit) else { continue };
        applies = true;
        let counted = match inner.table.enter(hash, conn.saturating_add(burst)) {
            Ok(counted) => counted,
            Err(CountError::Enough) => return Flow::Answer(inner.rejected.clone()),
            Err(CountError::Full) if inner.degrades => continue,
            Err(CountError::Full) => return Flow::Answer(Answer::page(500)),
        };
        let delay = inner.delay(counted.count, conn);
        request.hold(ConcurrentRequest { table: inner.table.clone(), slot: counted.slot });
        if delay >= DELAY_MIN {
            let inner = inner.clone();
            return Flow::wait(request.worker.io().sleep(delay), move |(), request| {
                go_on(&inner, index + 1, true, request)
            });
        }
    }
    match applies || inner.degrades {
        true => Flow::Continue,
        false => Flow::Answer(Answer::page(500)),
    }
}

impl LimitConnConfig {
    /// The hash of the request's key; `None`: the rule does not apply to it.
    fn hash(&self, index: usize, rule: &ConnRule, request: &Request<'_>) -> Option<u64> {
        request.worker.with_buffers(|text, buffer| {
            let value = match &rule.key {
                ConnKey::Variable(variable) => request.value(variable, buffer),
                ConnKey::Combination(template) | ConnKey::Present(template) => {
                    (template.write(request, text, buffer) > 0).then_some(&text[..])
                }
            };
            match value {
                Some(value) => Some(self.hashes.hash_one((index, value))),
                None if matches!(rule.key, ConnKey::Present(_)) => None,
                None => Some(self.hashes.hash_one((index, request.facts.client))),
            }
        })
    }

    /// The delay of the request that is the `count`-th of its key.
    fn delay(&self, count: u64, conn: u64) -> Duration {
        if count <= conn {
            return Duration::ZERO;
        }
        let turns = (count - 1) / conn;
        Duration::from_micros(self.default_us.saturating_mul(turns)).min(DELAY_MAX)
    }
}

/// A request that is counted until it has ended.
struct ConcurrentRequest {
    table: Arc<ConnTable>,
    slot: usize,
}

impl Drop for ConcurrentRequest {
    fn drop(&mut self) {
        self.table.leave(self.slot);
    }
}

// The keys of `limit-conn`.

object! {
    /// Limits the number of concurrent requests.
    pub(crate) struct LimitConnKeys {
        /// Concurrent requests of a key that run without waiting: a number above 0, or a text with variables that
        /// yields one.
        conn: Number = ABOVE_ZERO => optional;
        /// Further requests, which wait: a number, or a text with variables that yields one.
        burst: Number = FROM_ZERO => optional;
        /// The assumed duration of a request in seconds: requests of the burst wait as long.
        default_conn_delay: f64 = Decimal { min: 0.001, max: 3600.0 } => required;
        /// Accepted without effect: the assumed duration is always `default_conn_delay`, as in APISIX.
        only_use_default_delay: bool = Flag => default(false);
        /// The key that requests are counted by: a variable, or a text with variables, as `key_type` says. If the
        /// request has no such value, the client's address is used.
        key: At<String> = LocatedKind(TEXT.shown()) => optional;
        /// `var`: `key` is a variable's name. `var_combination`: a text such as `$remote_addr $consumer_name`.
        key_type: bool = KEY_TYPE => default(false);
        /// Several limits, each with a key of its own, instead of `conn`, `burst` and `key`. All must hold.
        rules: Vec<ConnRuleKeys> = some(map::<ConnRuleKeys>()) => optional;
        /// Where the counters are kept.
        policy: () = CounterPolicy => default(());
        /// The status for a request that is refused.
        rejected_code: u16 = int(200, 599) => default(503);
        /// `error_msg` of the answer; without it the answer is an error page.
        rejected_msg: String = MESSAGE => optional;
        /// Whether a request is admitted if it cannot be counted; otherwise it is answered with 500.
        allow_degradation: bool = Flag => default(false);
        foreign: OF_REDIS;
    }
}

object! {
    /// One of several limits.
    pub(crate) struct ConnRuleKeys {
        /// Concurrent requests of a key that run without waiting: a number above 0, or a text with variables that
        /// yields one.
        conn: Number = ABOVE_ZERO => required;
        /// Further requests, which wait: a number, or a text with variables that yields one.
        burst: Number = FROM_ZERO => required;
        /// A text with variables such as `$http_x_user`. The rule does not apply to a request that has none of them.
        key: At<String> = LocatedKind(TEXT) => required;
    }
}

const KEY_TYPE: Choice<bool> = Choice { words: &[("var", false), ("var_combination", true)], unbuilt: &[] };
const MESSAGE: Text<String> = text("a text", |text| match text.is_empty() {
    true => Err(Fault::new("the message is empty").hint("write one, or remove the key")),
    false => Ok(text.to_owned()),
});

// Concurrent requests by key: a table of atomics that all workers share, without locks or waits.
//
// ```text
//   slot: | tag of the key, 40 bits | requests under way, 24 bits |      free where no request is under way
// ```
//
// A key is in one of the slots of its window. Two workers that count the first request of a key at once meet in the
// same slot, unless another slot of the window becomes free in that moment: then the key has two slots until either is
// empty, and as many excess requests may be admitted.

/// Capacity in keys.
const SLOTS: usize = 16 * 1024;
/// Slots that a key may be in.
const WINDOW: usize = 64;
const COUNT_BITS: u32 = 24;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// Counters of requests.
struct ConnTable {
    slots: Box<[AtomicU64]>,
}

/// A counted request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CountedRequest {
    slot: usize,
    /// Number of requests of its key, including this one.
    count: u64,
}

/// The reason why a request is not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CountError {
    /// The limit is reached.
    Enough,
    /// There is no slot for its key.
    Full,
}

impl ConnTable {
    fn new() -> ConnTable {
        ConnTable { slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Counts a request, unless its key has `max` already.
    fn enter(&self, hash: u64, max: u64) -> Result<CountedRequest, CountError> {
        let (tag, first) = (hash >> COUNT_BITS << COUNT_BITS, hash as usize % SLOTS);
        let count = |word: u64| word & COUNT_MASK;
        loop {
            // One look at each slot: a second one could find that this key has just taken the first free slot, and take
            // another.
            let (mut known, mut free) = (None, None);
            for slot in (0..WINDOW).map(|step| (first + step) % SLOTS) {
                let word = self.slots[slot].load(Ordering::Acquire);
                if count(word) == 0 {
                    free = free.or(Some((slot, word)));
                } else if word & !COUNT_MASK == tag {
                    known = Some((slot, word));
                    break;
                }
            }
            let (slot, word) = known.or(free).ok_or(CountError::Full)?;
            if count(word) >= max.min(COUNT_MASK) {
                return Err(CountError::Enough);
            }
            let next = tag | (count(word) + 1);
            if self.slots[slot].compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return Ok(CountedRequest { slot, count: count(next) });
            }
        }
    }

    /// Ends a counted request.
    fn leave(&self, slot: usize) {
        self.slots[slot].fetch_sub(1, Ordering::AcqRel);
    }

    #[cfg(test)]
    fn under_way(&self) -> u64 {
        self.slots.iter().map(|word| word.load(Ordering::Relaxed) & COUNT_MASK).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64 as Atomic;

    /// Spreads keys like a hasher.
    fn hash(key: u64) -> u64 {
        key.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
    }

    #[test]
    fn as_many_as_may_be_are_let_in() {
        let table = ConnTable::new();
        let slots: Vec<usize> = (1..=5)
            .map(|count| {
                let counted = table.enter(hash(7), 5).unwrap();
                assert_eq!(counted.count, count);
                counted.slot
            })
            .collect();
        assert_eq!(table.enter(hash(7), 5), Err(CountError::Enough));
        assert!(table.enter(hash(8), 5).is_ok());
        table.leave(slots[0]);
        assert_eq!(table.enter(hash(7), 5).unwrap().count, 5);
    }

    #[test]
    fn a_full_window_is_reported() {
        let table = ConnTable::new();
        // The same window, other tags.
        let keys = (0..WINDOW as u64 + 1).map(|tag| 5 + (tag << COUNT_BITS));
        let results: Vec<_> = keys.map(|hash| table.enter(hash, 9)).collect();
        assert!(results[..WINDOW].iter().all(Result::is_ok));
        assert_eq!(results[WINDOW], Err(CountError::Full));
    }

    #[test]
    fn of_requests_that_come_at_once_no_more_are_let_in() {
        const WORKERS: usize = 4;
        // Each round has a key of its own; they stay far below the number of slots.
        const ROUNDS: usize = 4_000;
        let (table, begin) = (ConnTable::new(), std::sync::Barrier::new(WORKERS));
        let let_in: Vec<Atomic> = (0..ROUNDS).map(|_| Atomic::new(0)).collect();
        std::thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| {
                    for (round, let_in) in let_in.iter().enumerate() {
                        begin.wait();
                        let_in.fetch_add(u64::from(table.enter(hash(round as u64), 2).is_ok()), Ordering::Relaxed);
                    }
                });
            }
        });
        for (round, let_in) in let_in.iter().enumerate() {
            assert_eq!(let_in.load(Ordering::Relaxed), 2, "round {round}");
        }
    }

    #[test]
    fn workers_count_together() {
        let (table, most) = (ConnTable::new(), Atomic::new(0));
        let inside: Vec<Atomic> = (0..3).map(|_| Atomic::new(0)).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for turn in 0..20_000_u64 {
                        let key = turn % 3;
                        if let Ok(counted) = table.enter(hash(key), 1_000) {
                            let now = inside[key as usize].fetch_add(1, Ordering::SeqCst) + 1;
                            most.fetch_max(now, Ordering::SeqCst);
                            inside[key as usize].fetch_sub(1, Ordering::SeqCst);
                            table.leave(counted.slot);
                        }
                    }
                });
            }
        });
        assert_eq!(table.under_way(), 0);
        assert!((1..=4).contains(&most.load(Ordering::SeqCst)));
    }
}
