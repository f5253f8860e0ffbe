//! `limit-conn`: limits the number of concurrent requests, by one key of each request, or by several.
//!
//! Counters are shared by all workers. Beyond `conn` a request waits a while, beyond `conn` and `burst` it is refused.
//! A request counts until it has ended in any way, also under the rules before the one that refused it.

mod keys;
mod table;

use crate::counters::reads_consumer;
use crate::number::Number;
use keys::{ConnRuleKeys, LimitConnKeys};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::time::{Duration, Instant};
use stillgate_plugin::{Answer, Compile, Define, Flow, Identity, Phase, Phases, Plugin, Request, Template};
use stillgate_route::{Lookup, Variable};
use stillgate_schema::{At, Fault};
use table::{ConnTable, CountError};

/// Longest delay of a request of the burst.
const DELAY_MAX: Duration = Duration::from_secs(60);
/// Shorter delays are skipped.
const DELAY_MIN: Duration = Duration::from_millis(1);

/// The plugin; shared with the requests that wait.
pub(crate) struct LimitConn(Arc<LimitConnConfig>);

struct LimitConnConfig {
    rules: Box<[ConnRule]>,
    default_us: u64,
    is_default_only: bool,
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
            is_default_only: keys.only_use_default_delay,
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
        let (table, learns) = (inner.table.clone(), !inner.is_default_only);
        let began = learns.then(|| Instant::now() + delay);
        request.hold(ConcurrentRequest { table, slot: counted.slot, began, default_us: inner.default_us });
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
        let learned_us = self.table.unit_us.load(Ordering::Relaxed);
        let unit_us = if learned_us == 0 || self.is_default_only { self.default_us } else { learned_us };
        let turns = (count - 1) / conn;
        Duration::from_micros(unit_us.saturating_mul(turns)).min(DELAY_MAX)
    }
}

/// A request that is counted until it has ended.
struct ConcurrentRequest {
    table: Arc<ConnTable>,
    slot: usize,
    /// When it started; `None`: the duration of requests does not matter.
    began: Option<Instant>,
    /// `default_conn_delay`
    default_us: u64,
}

impl Drop for ConcurrentRequest {
    fn drop(&mut self) {
        self.table.leave(self.slot);
        if let Some(began) = self.began {
            let lasted_us = began.elapsed().as_micros() as u64;
            let before_us = match self.table.unit_us.load(Ordering::Relaxed) {
                0 => self.default_us,
                learned_us => learned_us,
            };
            // One of two requests that end at once may be lost: it is an estimate.
            self.table.unit_us.store(((before_us + lasted_us) / 2).max(1), Ordering::Relaxed);
        }
    }
}
