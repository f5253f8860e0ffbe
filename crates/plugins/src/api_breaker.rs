//! `api-breaker`: answers in place of a node that fails again and again, for a time that grows.
//!
//! State is kept by host and path, as in APISIX, and by worker: each finds out for itself. It is bounded; the time is the
//! worker's.

use std::cell::RefCell;
use std::collections::HashMap;
use stillgate_plugin::{Answer, Compile, Define, Flow, Identity, Phase, Phases, Plugin, Request, Response, Template};
use stillgate_schema::{At, Fault, Located, TEXT, int, map, object, some};
use stillgate_wire::{FieldValue, Fields, OwnedFieldName};

object! {
    /// Answers in place of a node that fails.
    pub(crate) struct ApiBreakerKeys {
        /// The status of the answer.
        break_response_code: u16 = int(200, 599) => required;
        /// Its body.
        break_response_body: String = TEXT => optional;
        /// Its header fields; values may have variables. They are sent with a body only.
        break_response_headers: Vec<BreakHeader> = some(map::<BreakHeader>()) => optional;
        /// The longest time that the node is left alone for, in seconds.
        max_breaker_sec: u32 = int(3, 86_400) => default(300);
        /// When a node counts as failing.
        unhealthy: UnhealthyKeys = map::<UnhealthyKeys>() => optional;
        /// When it counts as working again.
        healthy: HealthyKeys = map::<HealthyKeys>() => optional;
    }
}

object! {
    /// A header field of the answer.
    pub(crate) struct BreakHeader {
        /// Its name.
        key: At<OwnedFieldName> = Located(crate::asking::FIELD_NAME) => required;
        /// Its value.
        value: At<String> = Located(TEXT) => required;
    }
}

object! {
    /// When a node counts as failing.
    pub(crate) struct UnhealthyKeys {
        /// Statuses that count as failures.
        http_statuses: Vec<u16> = some(int(500, 599)) => default(vec![500]);
        /// So many, and the node is left alone.
        failures: u32 = int(1, 1_000_000) => default(3);
    }
}

object! {
    /// When a node counts as working again.
    pub(crate) struct HealthyKeys {
        /// Statuses that count as successes.
        http_statuses: Vec<u16> = some(int(200, 499)) => default(vec![200]);
        /// So many, and its failures are forgotten.
        successes: u32 = int(1, 1_000_000) => default(3);
    }
}

/// Configurations that a worker keeps the state of.
const CONFIGURATIONS_MAX: usize = 1024;
/// Paths that a worker keeps the state of, for one configuration.
const PATHS_MAX: usize = 16 * 1024;

/// The plugin.
pub(crate) struct ApiBreaker {
    answer: Answer,
    headers: Box<[(OwnedFieldName, Template)]>,
    rest_s_max: u64,
    unhealthy: UnhealthyKeys,
    healthy: HealthyKeys,
    identity: Identity,
}

/// What is known of one path.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct State {
    failures: u32,
    successes: u32,
    /// When enough failures were counted last, in seconds.
    broken_s: Option<u64>,
}

/// By host and path.
type States = HashMap<Box<[u8]>, State>;

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
            match Template::parse(&header.value.value) {
                Ok(template) => headers.push((header.key.value, template)),
                Err(error) => {
                    let path = cx.path.key("break_response_headers");
                    cx.sink.error(header.value.at, &path, Fault::new(error.to_string()));
                    return None;
                }
            }
        }
        Some(ApiBreaker {
            answer: match keys.break_response_body {
                Some(body) => Answer::shared(status, body.into_bytes().into()),
                None => Answer::page(status),
            },
            headers: if has_body { headers.into() } else { Box::default() },
            rest_s_max: u64::from(keys.max_breaker_sec),
            unhealthy: keys.unhealthy.unwrap_or(UnhealthyKeys { http_statuses: vec![500], failures: 3 }),
            healthy: keys.healthy.unwrap_or(HealthyKeys { http_statuses: vec![200], successes: 3 }),
            identity: cx.identity,
        })
    }
}

impl Plugin for ApiBreaker {
    fn access(&self, request: &mut Request<'_>) -> Flow {
        let now_s = request.worker.now_ms() / 1000;
        let worker = request.worker;
        let is_broken = worker.with_buffers(|key, _| {
            write_key(request.facts.host, request.facts.path.map(|path| path.bytes()), key);
            self.with_states(|states| states.get(key.as_slice()).is_some_and(|state| self.is_broken(*state, now_s)))
        });
        if !is_broken {
            return Flow::Continue;
        }
        let (mut text, mut buffer) = (Vec::new(), Vec::new());
        for (name, template) in &self.headers {
            text.clear();
            template.write(request, &mut text, &mut buffer);
            if let Ok(value) = FieldValue::new(&text) {
                request.response.set(&Fields::default(), &[], name.name(), value);
            }
        }
        Flow::Answer(self.answer.clone())
    }

    fn log(&self, response: &mut Response<'_>) {
        if !response.was_asked {
            return;
        }
        let (status, now_s) = (response.came_with, response.worker.now_ms() / 1000);
        let worker = response.worker;
        worker.with_buffers(|key, _| {
            write_key(response.facts.host, response.facts.path.map(|path| path.bytes()), key);
            self.with_states(|states| self.learn(states, key, status, now_s));
        });
    }
}

impl ApiBreaker {
    /// Calls `then` with what this worker knows. A reload that leaves the configuration as it was leaves that as well.
    fn with_states<R>(&self, then: impl FnOnce(&mut States) -> R) -> R {
        thread_local!(static KNOWN: RefCell<HashMap<Identity, States>> = RefCell::default());
        KNOWN.with_borrow_mut(|known| {
            if known.len() >= CONFIGURATIONS_MAX && !known.contains_key(&self.identity) {
                known.clear();
            }
            then(known.entry(self.identity).or_default())
        })
    }

    fn is_broken(&self, state: State, now_s: u64) -> bool {
        state.broken_s.is_some_and(|broken_s| broken_s + self.rest_s(state.failures) >= now_s)
    }

    /// 2, 4, 8 seconds and so on, with every `failures` that were counted.
    fn rest_s(&self, failures: u32) -> u64 {
        let times = failures.div_ceil(self.unhealthy.failures).max(1);
        1u64.checked_shl(times).unwrap_or(u64::MAX).min(self.rest_s_max)
    }

    fn learn(&self, states: &mut States, key: &[u8], status: u16, now_s: u64) {
        if self.unhealthy.http_statuses.contains(&status) {
            if !states.contains_key(key) {
                if states.len() >= PATHS_MAX {
                    // Which of them are broken is found out anew.
                    states.clear();
                }
                states.insert(key.into(), State::default());
            }
            let Some(state) = states.get_mut(key) else { return };
            // Long enough ago, and it is as if it had not been broken, as a key of APISIX expires.
            if state.broken_s.is_some_and(|broken_s| now_s >= broken_s + self.rest_s_max) {
                state.broken_s = None;
            }
            state.failures = state.failures.saturating_add(1);
            state.successes = 0;
            if state.failures % self.unhealthy.failures == 0 {
                state.broken_s = Some(now_s);
            }
        } else if self.healthy.http_statuses.contains(&status)
            && let Some(state) = states.get_mut(key)
        {
            state.successes += 1;
            if state.successes >= self.healthy.successes {
                states.remove(key);
            }
        }
    }
}

fn write_key(host: &[u8], path: Option<&[u8]>, key: &mut Vec<u8>) {
    key.clear();
    key.extend_from_slice(host);
    key.extend_from_slice(path.unwrap_or_default());
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
            identity: Identity(0),
        }
    }

    #[test]
    fn the_rest_grows_up_to_its_bound() {
        let (breaker, mut states) = (breaker(), States::new());
        let mut fail = |times: usize, now_s| {
            (0..times).for_each(|_| breaker.learn(&mut states, b"a", 500, now_s));
            states[&b"a"[..]]
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
        let (breaker, mut states) = (breaker(), States::new());
        for status in [200, 404, 500, 503, 404, 200] {
            breaker.learn(&mut states, b"a", status, 0);
        }
        assert_eq!(states[&b"a"[..]], State { failures: 2, successes: 1, broken_s: None });
        breaker.learn(&mut states, b"a", 500, 0);
        assert_eq!(states[&b"a"[..]], State { failures: 3, successes: 0, broken_s: Some(0) });
        breaker.learn(&mut states, b"a", 200, 9);
        breaker.learn(&mut states, b"a", 200, 9);
        assert!(states.is_empty());
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let (breaker, mut states) = (breaker(), States::new());
        for path in 0..2 * PATHS_MAX {
            breaker.learn(&mut states, path.to_string().as_bytes(), 500, 0);
            assert!(states.len() <= PATHS_MAX);
        }
    }
}
