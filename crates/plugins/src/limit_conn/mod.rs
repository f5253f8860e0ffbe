//! `limit-conn`: at most so many requests at once, by a key of each request.
//!
//! The count holds over all workers. Beyond `conn` a request waits a while, beyond `conn` and `burst` it is turned away. A
//! request counts until it has ended, whatever becomes of it.

mod table;

use crate::decimal::Decimal;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::time::{Duration, Instant};
use stillgate_plugin::{Answer, Compile, Define, Flow, Identity, Phase, Phases, Plugin, Request, Template};
use stillgate_route::{Lookup, Variable};
use stillgate_schema::{At, Choice, Fault, Flag, Located, TEXT, Text, int, object, text};
use table::{Table, Uncounted};

object! {
    /// At most so many requests at once.
    pub(crate) struct LimitConnKeys {
        /// Requests of a key that are under way without waiting.
        conn: u32 = int(1, 1_000_000) => required;
        /// Further ones, which wait.
        burst: u32 = int(0, 1_000_000) => required;
        /// How long a request is taken to last at first, in seconds: so long those of the burst wait.
        default_conn_delay: f64 = Decimal { min: 0.001, max: 3600.0 } => required;
        /// Whether that stays so; otherwise it follows how long requests last.
        only_use_default_delay: bool = Flag => default(false);
        /// What requests are counted by: a variable, or a text with variables, as `key_type` says. Where the request has no such
        /// value, by the client's address.
        key: At<String> = Located(TEXT.shown()) => required;
        /// `var`: `key` is a variable's name. `var_combination`: a text such as `$remote_addr $consumer_name`.
        key_type: bool = KEY_TYPE => default(false);
        /// Where the counts are.
        policy: () = POLICY => default(());
        /// The status of a request that is turned away.
        rejected_code: u16 = int(200, 599) => default(503);
        /// `error_msg` of the answer; without it the answer is an error page.
        rejected_msg: String = MESSAGE => optional;
        /// Whether a request is let through where it cannot be counted; otherwise it is answered with 500.
        allow_degradation: bool = Flag => default(false);
    }
}

const KEY_TYPE: Choice<bool> = Choice { words: &[("var", false), ("var_combination", true)], unbuilt: &[] };
const POLICY: Choice<()> = Choice { words: &[("local", ())], unbuilt: &["redis", "redis-cluster"] };
const MESSAGE: Text<String> = text("a text", |text| match text.is_empty() {
    true => Err(Fault::new("the message is empty").hint("write one, or remove the key")),
    false => Ok(text.to_owned()),
});

/// The longest that a request of the burst waits.
const DELAY_MAX: Duration = Duration::from_secs(60);
/// Less than this is no delay.
const DELAY_MIN: Duration = Duration::from_millis(1);

/// The plugin.
pub(crate) struct LimitConn {
    conn: u64,
    burst: u64,
    default_us: u64,
    is_default_only: bool,
    key: Key,
    rejected: Answer,
    degrades: bool,
    hashes: RandomState,
    table: Arc<Table>,
}

enum Key {
    Variable(Variable),
    Combination(Template),
}

impl Define for LimitConn {
    type Keys = LimitConnKeys;
    const NAME: &'static str = "limit-conn";
    const PRIORITY: i32 = 1003;
    const PHASES: Phases = Phases::of(&[Phase::Access]);

    fn compile(keys: LimitConnKeys, cx: &mut Compile<'_>) -> Option<LimitConn> {
        let text = &keys.key.value;
        let key = match keys.key_type {
            false => Variable::parse_late(text).map(Key::Variable),
            true => Template::parse(text).map(Key::Combination),
        };
        let key =
            key.map_err(|error| cx.sink.error(keys.key.at, &cx.path.key("key"), Fault::new(error.to_string()))).ok()?;
        let (hashes, table) = shared(cx.identity);
        Some(LimitConn {
            conn: u64::from(keys.conn),
            burst: u64::from(keys.burst),
            default_us: (keys.default_conn_delay * 1e6) as u64,
            is_default_only: keys.only_use_default_delay,
            key,
            rejected: Answer::rejection(keys.rejected_code, keys.rejected_msg.as_deref()),
            degrades: keys.allow_degradation,
            hashes,
            table,
        })
    }
}

/// The counts of a configuration, the same ones however often it is compiled. Only the control side comes here.
fn shared(identity: Identity) -> (RandomState, Arc<Table>) {
    static TABLES: LazyLock<Mutex<HashMap<Identity, Weak<Table>>>> = LazyLock::new(Mutex::default);
    static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let mut tables = TABLES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    tables.retain(|_, table| table.strong_count() > 0);
    let known = tables.get(&identity).and_then(Weak::upgrade);
    let table = known.unwrap_or_else(|| Arc::new(Table::new()));
    tables.insert(identity, Arc::downgrade(&table));
    (HASHES.clone(), table)
}

impl Plugin for LimitConn {
    fn access(&self, request: &mut Request<'_>) -> Flow {
        let hash = self.hash(request);
        let counted = match self.table.enter(hash, self.conn + self.burst) {
            Ok(counted) => counted,
            Err(Uncounted::Enough) => return Flow::Answer(self.rejected.clone()),
            Err(Uncounted::Full) if self.degrades => return Flow::Continue,
            Err(Uncounted::Full) => return Flow::Answer(Answer::page(500)),
        };
        let delay = self.delay(counted.count);
        let (table, learns) = (self.table.clone(), !self.is_default_only);
        request.hold(UnderWay { table, slot: counted.slot, began: learns.then(|| Instant::now() + delay) });
        match delay < DELAY_MIN {
            true => Flow::Continue,
            false => Flow::wait(request.worker.io().sleep(delay), |(), _| Flow::Continue),
        }
    }

    fn reads_consumer(&self) -> bool {
        let is_it = |variable: &Variable| matches!(variable, Variable::ConsumerName | Variable::ConsumerGroupId);
        match &self.key {
            Key::Variable(variable) => is_it(variable),
            Key::Combination(template) => template.variables().any(is_it),
        }
    }
}

impl LimitConn {
    fn hash(&self, request: &Request<'_>) -> u64 {
        request.worker.with_buffers(|text, buffer| {
            let value = match &self.key {
                Key::Variable(variable) => request.value(variable, buffer),
                Key::Combination(template) => (template.write(request, text, buffer) > 0).then_some(&text[..]),
            };
            match value {
                Some(value) => self.hashes.hash_one(value),
                None => self.hashes.hash_one(request.facts.client),
            }
        })
    }

    /// How long the request waits that is the `count`-th of its key.
    fn delay(&self, count: u64) -> Duration {
        if count <= self.conn {
            return Duration::ZERO;
        }
        let learned_us = self.table.unit_us.load(Ordering::Relaxed);
        let unit_us = if learned_us == 0 || self.is_default_only { self.default_us } else { learned_us };
        let turns = (count - 1) / self.conn;
        Duration::from_micros(unit_us.saturating_mul(turns)).min(DELAY_MAX)
    }
}

/// A request that is counted until it has ended.
struct UnderWay {
    table: Arc<Table>,
    slot: usize,
    /// When it went on; `None`: how long requests last does not matter.
    began: Option<Instant>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.table.leave(self.slot);
        if let Some(began) = self.began {
            let lasted_us = began.elapsed().as_micros() as u64;
            let before_us = self.table.unit_us.load(Ordering::Relaxed);
            let unit_us = if before_us == 0 { lasted_us } else { (before_us + lasted_us) / 2 };
            // One of two that end at once may be lost: it is an estimate.
            self.table.unit_us.store(unit_us.max(1), Ordering::Relaxed);
        }
    }
}
