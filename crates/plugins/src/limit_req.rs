//! `limit-req`: limits the rate of requests, by a key of each request; faster ones are delayed, and refused above a
//! burst.
//!
//! A limit is shared by all workers, and by both processes of an upgrade, like that of `limit-count`: its buckets are
//! in the table of `stillgate-limits`.

use crate::counters::{CounterPolicy, OF_REDIS, reads_consumer};
use crate::number::Decimal;
use crate::uri_blocker::REJECTED_MSG;
use std::time::Duration;
use stillgate_limits::{BURST_MAX, CounterKey, Leak, Limits, RATE_MAX, RATE_MIN};
use stillgate_plugin_api::{Answer, Compile, Define, Flow, Identity, Phase, Phases, Plugin, Request, Template};
use stillgate_route::{Lookup, Variable};
use stillgate_schema::{At, Choice, Fault, Flag, LocatedKind, TEXT, int, object};

object! {
    /// Limits the number of requests in a second.
    pub(crate) struct LimitReqKeys {
        /// Requests in a second that continue without a delay.
        rate: f64 = Decimal { min: RATE_MIN, max: RATE_MAX } => required;
        /// Requests above `rate` that are delayed; further ones are refused.
        burst: f64 = Decimal { min: 0.0, max: BURST_MAX } => required;
        /// The key that requests are counted by: a variable, or a text with variables, as `key_type` says. If the
        /// request has no such value, the client's address is used.
        key: At<String> = LocatedKind(TEXT) => required;
        /// `var`: `key` is a variable's name. `var_combination`: a text such as `$remote_addr $consumer_name`.
        key_type: KeyType = KEY_TYPE => default(KeyType::Var);
        /// The status for a request that is refused.
        rejected_code: u16 = int(200, 599) => default(503);
        /// `error_msg` of the answer; without it the answer is an error page.
        rejected_msg: String = REJECTED_MSG => optional;
        /// Whether requests within `burst` continue without a delay.
        nodelay: bool = Flag => default(false);
        /// Whether a request continues if it cannot be counted; otherwise it is answered with 500.
        allow_degradation: bool = Flag => default(false);
        /// Where the counters are kept.
        policy: () = CounterPolicy => default(());
        foreign: OF_REDIS;
    }
}

/// The type of `key`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyType {
    /// A variable.
    Var,
    /// A text with variables.
    VarCombination,
}

const KEY_TYPE: Choice<KeyType> =
    Choice { words: &[("var", KeyType::Var), ("var_combination", KeyType::VarCombination)], unbuilt: &[] };

/// Shorter delays are skipped, as in APISIX.
const DELAY_US_MIN: u64 = 1_000;

/// The plugin.
pub(crate) struct LimitReq {
    leak: Leak,
    key: CountedBy,
    rejected: Answer,
    delays: bool,
    degrades: bool,
    identity: Identity,
}

enum CountedBy {
    Variable(Variable),
    Combination(Template),
}

impl Define for LimitReq {
    type Keys = LimitReqKeys;
    const NAME: &'static str = "limit-req";
    const PRIORITY: i32 = 1001;
    const PHASES: Phases = Phases::of(&[Phase::Access]);

    fn compile(keys: LimitReqKeys, cx: &mut Compile<'_>) -> Option<LimitReq> {
        let text = &keys.key.value;
        let key = match keys.key_type {
            KeyType::Var => Variable::parse_with_body(text).map(CountedBy::Variable),
            KeyType::VarCombination => Template::parse_with_body(text).map(CountedBy::Combination),
        };
        let key = key.map_err(|error| cx.sink.error(keys.key.at, &cx.path.key("key"), Fault::new(error.to_string())));
        Some(LimitReq {
            leak: Leak::new(keys.rate, keys.burst),
            key: key.ok()?,
            rejected: Answer::rejection(keys.rejected_code, keys.rejected_msg.as_deref()),
            delays: !keys.nodelay,
            degrades: keys.allow_degradation,
            identity: cx.identity,
        })
    }
}

impl Plugin for LimitReq {
    fn access(&self, request: &mut Request<'_>) -> Flow {
        let worker = request.worker;
        let poured = worker.limits().and_then(|limits| {
            let key = self.key(limits, request);
            limits.pour(key, self.leak, worker.now_ms()).ok()
        });
        match poured {
            None if self.degrades => Flow::Continue,
            None => Flow::Answer(Answer::page(500)),
            Some(poured) if !poured.admitted => Flow::Answer(self.rejected.clone()),
            Some(poured) if self.delays && poured.delay_us >= DELAY_US_MIN => {
                Flow::wait(worker.io().sleep(Duration::from_micros(poured.delay_us)), |(), _| Flow::Continue)
            }
            Some(_) => Flow::Continue,
        }
    }

    fn needs_limits(&self) -> bool {
        true
    }

    fn each_variable(&self, visit: &mut dyn FnMut(&Variable)) {
        match &self.key {
            CountedBy::Variable(variable) => visit(variable),
            CountedBy::Combination(template) => template.variables().for_each(visit),
        }
    }

    fn reads_consumer(&self) -> bool {
        reads_consumer(self)
    }
}

impl LimitReq {
    /// The key of a request.
    fn key(&self, limits: &Limits, request: &Request<'_>) -> CounterKey {
        let hasher = limits.hasher().part(&self.identity.0.to_le_bytes());
        request.worker.with_buffers(|text, buffer| {
            let value = match &self.key {
                CountedBy::Variable(variable) => request.value(variable, text),
                CountedBy::Combination(template) => {
                    let present = template.write(request, text, buffer);
                    (present > 0).then_some(&text[..])
                }
            };
            let value = value.or_else(|| request.value(&Variable::RemoteAddr, buffer)).unwrap_or_default();
            hasher.part(value).finish()
        })
    }
}
