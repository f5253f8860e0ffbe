//! `limit-count`: limits the number of requests in a time window, by a key of each request.
//!
//! A limit is shared by all workers, and by both processes of an upgrade: counters are in the table of
//! `stillgate-limits`. Each configuration has counters of its own, in each resource that contains it, unless `group`
//! names shared ones; a changed configuration starts from zero.
//!
//! Unlike APISIX, an unknown variable is refused when the configuration is loaded (APISIX uses the client's address
//! instead), and so is a limit that is not a number. The rest is in `docs/plugins/limit-count.md`.

use crate::counters::{CounterPolicy, OF_REDIS, reads_consumer};
use crate::number::{ABOVE_ZERO, Number};
use serde_json::json;
use std::net::IpAddr;
use stillgate_limits::{KeyHasher, KeyPrefix, Limit, LimitDecision, Limits};
use stillgate_plugin_api::facts::AddressText;
use stillgate_plugin_api::{
    Answer, Compile, Define, Flow, Identity, Metadata, Phase, Phases, Plugin, Request, Template,
};
use stillgate_route::{Lookup, Variable};
use stillgate_schema::kind::unplaced;
use stillgate_schema::text::scalar::Meaning;
use stillgate_schema::{
    At, Choice, Definitions, Fault, Flag, Json, Kind, LocatedKind, Node, Path, Sink, TEXT, Text, Value, int, map,
    object, report_expected, some, text,
};
use stillgate_wire::{Decimal, FieldName, FieldValue, OwnedFieldName};

/// APISIX's name.
const NAME: &str = "limit-count";

/// A compiled limit-count.
pub(crate) struct LimitCount {
    rules: Box<[CountRule]>,
    /// Whether some rule's limit is known only with the request.
    is_late: bool,
    window_type: WindowType,
    rejected: Answer,
    degrades: bool,
    shows: bool,
    identity: Identity,
    group: Option<Box<str>>,
}

struct CountRule {
    count: Number,
    seconds: Number,
    key: CountKey,
    /// Prefix in the names of its headers; `None`: none.
    prefix: Option<Box<str>>,
    /// Common prefix of all its keys.
    begun: KeyPrefix,
}

enum CountKey {
    Variable(Variable),
    Combination(Template),
    Constant(Box<[u8]>),
    /// A text with variables, but the rule does not apply to a request with none of its variables.
    Present(Template),
}

impl Define for LimitCount {
    type Keys = LimitCountKeys;
    const NAME: &'static str = NAME;
    const PRIORITY: i32 = 1002;
    const PHASES: Phases = Phases::of(&[Phase::Access]);

    fn compile(keys: LimitCountKeys, cx: &mut Compile<'_>) -> Option<LimitCount> {
        let of_group = keys.group.as_ref().map(|group| Identity::of(&[group.as_bytes(), in_group(&keys).as_bytes()]));
        let rejected = Answer::rejection(keys.rejected_code, keys.rejected_msg.as_deref());
        let rules = match (keys.rules, keys.count, keys.time_window) {
            (Some(_), None, None) if keys.group.is_some() => {
                return refuse("`group` and `rules` cannot be combined", "keep one of the two", cx);
            }
            (Some(rules), None, None) => several(rules, cx)?,
            (None, Some(count), Some(seconds)) => {
                let key = key(&keys.key, keys.key_type, cx)?;
                Box::new([CountRule { count, seconds, key, prefix: None, begun: KeyPrefix::default() }])
            }
            (Some(_), ..) => {
                return refuse("`rules` cannot be combined with `count` or `time_window`", "keep one of the two", cx);
            }
            (None, ..) => return refuse("there is no limit", "add `count` and `time_window`, or `rules`", cx),
        };
        Some(LimitCount {
            is_late: rules.iter().any(CountRule::is_late),
            rules,
            window_type: keys.window_type,
            rejected,
            degrades: keys.allow_degradation,
            shows: keys.show_limit_quota_header,
            identity: of_group.unwrap_or(cx.identity),
            group: keys.group.map(Into::into),
        })
    }
}

impl Metadata for LimitCount {
    type Metadata = LimitCountMetadata;
}

fn refuse(what: &str, hint: &str, cx: &mut Compile<'_>) -> Option<LimitCount> {
    cx.sink.error(cx.at, cx.path, Fault::new(what).hint(hint));
    None
}

/// The part that must be equal in all configurations of a group: all keys, whatever their order.
fn in_group(keys: &LimitCountKeys) -> String {
    let LimitCountKeys { count, time_window, window_type, key, key_type, rejected_code, rejected_msg, .. } = keys;
    let shown = (keys.allow_degradation, keys.show_limit_quota_header);
    format!("{:?}", (count, time_window, window_type, &key.value, key_type, rejected_code, rejected_msg, shown))
}

fn several(keys: Vec<RuleKeys>, cx: &mut Compile<'_>) -> Option<Box<[CountRule]>> {
    let mut seen: Vec<String> = Vec::with_capacity(keys.len());
    let mut rules = Vec::with_capacity(keys.len());
    let list = cx.path.key("rules");
    for (index, rule) in keys.into_iter().enumerate() {
        let path = list.index(index);
        let text = &rule.key.value;
        if seen.contains(text) {
            let fault = Fault::new(format!("the key {text:?} is in two rules")).hint("keep one of them");
            cx.sink.error(rule.key.at, &path.key("key"), fault);
            return None;
        }
        let template = match Template::parse_with_body(text) {
            Ok(template) => template,
            Err(error) => {
                cx.sink.error(rule.key.at, &path.key("key"), Fault::new(error.to_string()));
                return None;
            }
        };
        if template.variables().next().is_none() {
            let fault = Fault::new(format!("the key {text:?} has no variable, so the rule applies to no request"));
            cx.sink.warning(rule.key.at, &path.key("key"), fault.hint("write one, such as $remote_addr"));
        }
        seen.push(text.clone());
        let prefix = rule.header_prefix.unwrap_or_else(|| (index + 1).to_string());
        let (count, seconds) = (rule.count, rule.time_window);
        rules.push(CountRule {
            count,
            seconds,
            key: CountKey::Present(template),
            prefix: Some(prefix.into()),
            begun: KeyPrefix::default(),
        });
    }
    Some(rules.into())
}

fn key(key: &At<String>, kind: KeyType, cx: &mut Compile<'_>) -> Option<CountKey> {
    let text = &key.value;
    let parsed = match kind {
        KeyType::Constant => Ok(CountKey::Constant(text.as_bytes().into())),
        KeyType::Var => Variable::parse_with_body(text).map(CountKey::Variable),
        KeyType::VarCombination => Template::parse_with_body(text).map(CountKey::Combination),
    };
    parsed.map_err(|error| cx.sink.error(key.at, &cx.path.key("key"), Fault::new(error.to_string()))).ok()
}

impl Plugin for LimitCount {
    fn access(&self, request: &mut Request<'_>) -> Flow {
        // With an invalid limit nothing is counted, not even by the rules before it.
        if self.is_late && !self.rules.iter().all(|rule| rule.is_sound(request)) {
            return self.handle_uncounted(Answer::page(500));
        }
        let worker = request.worker;
        match worker.limits() {
            Some(limits) => self.take(limits, request),
            None => self.handle_uncounted(uncounted_answer()),
        }
    }

    fn shared(&self) -> Option<(&str, Identity)> {
        self.group.as_deref().map(|group| (group, self.identity))
    }

    fn needs_limits(&self) -> bool {
        true
    }

    fn each_variable(&self, visit: &mut dyn FnMut(&Variable)) {
        for rule in &self.rules {
            match &rule.key {
                CountKey::Variable(variable) => visit(variable),
                CountKey::Combination(template) | CountKey::Present(template) => {
                    template.variables().for_each(&mut *visit)
                }
                CountKey::Constant(_) => {}
            }
            rule.count.variables().chain(rule.seconds.variables()).for_each(&mut *visit);
        }
    }

    fn reads_consumer(&self) -> bool {
        reads_consumer(self)
    }
}

impl LimitCount {
    /// Applies all rules in order, until one refuses the request.
    fn take(&self, limits: &Limits, request: &mut Request<'_>) -> Flow {
        let mut applies = false;
        for (index, rule) in self.rules.iter().enumerate() {
            let Some((key, limit)) = self.key(limits, index, rule, request).zip(rule.limit(request)) else { continue };
            applies = true;
            let key = match rule.seconds {
                Number::Plain(_) => key,
                // Each length has windows of its own.
                Number::Text(_) => key.part(&limit.window_ms.to_le_bytes()),
            };
            let now_ms = request.worker.now_ms();
            let taken = match self.window_type {
                WindowType::Fixed => limits.take_fixed(key.finish(), limit, 1, now_ms),
                WindowType::Sliding => limits.take_sliding(key.finish(), limit, 1, now_ms),
            };
            let Ok(taken) = taken else { return self.handle_uncounted(uncounted_answer()) };
            if self.shows {
                tell_limit(rule.prefix.as_deref(), limit, taken, request);
            }
            if !taken.admitted {
                return Flow::Answer(self.rejected.clone());
            }
        }
        if applies { Flow::Continue } else { self.handle_uncounted(Answer::page(500)) }
    }

    /// The key of a request; `None`: the rule does not apply to it.
    fn key(&self, limits: &Limits, index: usize, rule: &CountRule, request: &Request<'_>) -> Option<KeyHasher> {
        let take_in =
            |hasher: KeyHasher| hasher.part(&self.identity.0.to_le_bytes()).part(&(index as u64).to_le_bytes());
        let hasher = limits.hasher_of(&rule.begun, take_in);
        if let (CountKey::Variable(Variable::RemoteAddr), IpAddr::V4(client)) = (&rule.key, request.facts.client) {
            return Some(hasher.part(AddressText::new(client).bytes()));
        }
        request.worker.with_buffers(|text, buffer| {
            let present = match &rule.key {
                CountKey::Constant(text) => return Some(hasher.part(text)),
                CountKey::Variable(variable) => match request.value(variable, buffer) {
                    Some(value) => return Some(hasher.part(value)),
                    None => 0,
                },
                CountKey::Combination(template) | CountKey::Present(template) => template.write(request, text, buffer),
            };
            match &rule.key {
                _ if present > 0 => Some(hasher.part(text)),
                CountKey::Present(_) => None,
                _ => request.value(&Variable::RemoteAddr, buffer).map(|client| hasher.part(client)),
            }
        })
    }

    /// Handles a request that could not be counted.
    fn handle_uncounted(&self, answer: Answer) -> Flow {
        if self.degrades { Flow::Continue } else { Flow::Answer(answer) }
    }
}

fn uncounted_answer() -> Answer {
    Answer::json(500, r#"{"error_msg":"failed to limit count"}"#)
}

impl CountRule {
    fn is_late(&self) -> bool {
        matches!((&self.count, &self.seconds), (Number::Text(_), _) | (_, Number::Text(_)))
    }

    /// Whether it has a limit for a request, or does not apply to it.
    fn is_sound(&self, request: &Request<'_>) -> bool {
        let applies = match &self.key {
            CountKey::Present(key) => request.worker.with_buffers(|text, buffer| key.write(request, text, buffer)) > 0,
            _ => true,
        };
        !applies || self.limit(request).is_some()
    }

    /// Its limit for a request; `None`: the value is not a valid limit.
    fn limit(&self, request: &Request<'_>) -> Option<Limit> {
        let count = self.count.of(1, request)?;
        let window_ms = self.seconds.of(1, request)?.saturating_mul(1000);
        Some(Limit { count, window_ms })
    }
}

// The keys of `limit-count`, and those of its metadata.

object! {
    /// Limits the number of requests in a time window.
    pub(crate) struct LimitCountKeys {
        /// Requests admitted in a window: a number above 0, or a text with variables that yields one.
        count: Number = ABOVE_ZERO => optional;
        /// Length of a window in seconds: a number above 0, or a text with variables that yields one.
        time_window: Number = ABOVE_ZERO => optional;
        /// `fixed`: a window begins with the first request of a key. `sliding`: the previous window counts in
        /// proportion to its overlap with a window that ends now.
        window_type: WindowType = WINDOW_TYPE => default(WindowType::Fixed);
        /// Several limits, each with a key of its own, instead of `count`, `time_window` and `key`. All must hold.
        rules: Vec<RuleKeys> = some(map::<RuleKeys>()) => optional;
        /// The key that requests are counted by: a variable, a text with variables, or a constant, as `key_type` says.
        /// If the request has no such value, the client's address is used.
        key: At<String> = LocatedKind(TEXT.shown()) => default(unplaced("remote_addr".to_owned()));
        /// `var`: `key` is a variable's name. `var_combination`: a text such as `$remote_addr $consumer_name`. `constant`: all
        /// requests count as one.
        key_type: KeyType = KEY_TYPE => default(KeyType::Var);
        /// Name of counters that all configurations with this group share. They must be equal.
        group: String = TEXT => optional;
        /// The status for a request that is refused.
        rejected_code: u16 = int(200, 599) => default(503);
        /// `error_msg` of the answer; without it the answer is an error page.
        rejected_msg: String = MESSAGE => optional;
        /// Where the counters are kept.
        policy: () = CounterPolicy => default(());
        /// Whether a request is admitted if it cannot be counted; otherwise it is answered with 500.
        allow_degradation: bool = Flag => default(false);
        /// Whether responses state the limit, what remains of it and when the window resets.
        show_limit_quota_header: bool = Flag => default(true);
        /// For other policies; has no effect here.
        sync_interval: () = IgnoredNumber => optional;
        foreign: OF_REDIS;
    }
}

object! {
    /// One of several limits.
    pub(crate) struct RuleKeys {
        /// Requests admitted in a window: a number above 0, or a text with variables that yields one.
        count: Number = ABOVE_ZERO => required;
        /// Length of a window in seconds: a number above 0, or a text with variables that yields one.
        time_window: Number = ABOVE_ZERO => required;
        /// A text with variables such as `$http_x_user`. The rule does not apply to a request that has none of them.
        key: At<String> = LocatedKind(TEXT) => required;
        /// The rule's headers are `X-PREFIX-RateLimit-Limit` and so on; the default prefix is its number, from 1.
        header_prefix: String = PREFIX => optional;
    }
}

object! {
    /// The names of the headers.
    pub(crate) struct LimitCountMetadata {
        /// The limit.
        limit_header: OwnedFieldName = HEADER => default(field_name("X-RateLimit-Limit"));
        /// The remaining requests.
        remaining_header: OwnedFieldName = HEADER => default(field_name("X-RateLimit-Remaining"));
        /// Seconds until the window resets.
        reset_header: OwnedFieldName = HEADER => default(field_name("X-RateLimit-Reset"));
    }
}

/// The kind of windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WindowType {
    /// Windows begin with a key's first request.
    Fixed,
    /// The previous window counts in part.
    Sliding,
}

const WINDOW_TYPE: Choice<WindowType> =
    Choice { words: &[("fixed", WindowType::Fixed), ("sliding", WindowType::Sliding)], unbuilt: &[] };

/// The type of `key`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyType {
    /// A variable.
    Var,
    /// A text with variables.
    VarCombination,
    /// A constant text.
    Constant,
}

const KEY_TYPE: Choice<KeyType> = Choice {
    words: &[("var", KeyType::Var), ("var_combination", KeyType::VarCombination), ("constant", KeyType::Constant)],
    unbuilt: &[],
};

const MESSAGE: Text<String> = text("a text", |text| match text.is_empty() {
    true => Err(Fault::new("the message is empty").hint("write one, or remove the key")),
    false => Ok(text.to_owned()),
});

const HEADER: Text<OwnedFieldName> = text("the name of a header field", |text| {
    OwnedFieldName::new(text.as_bytes()).map_err(|error| Fault::new(error.to_string()))
});

const PREFIX: Text<String> = text("the name of a header field", |text| {
    OwnedFieldName::new(text.as_bytes()).map(|_| text.to_owned()).map_err(|error| Fault::new(error.to_string()))
});

fn field_name(name: &str) -> OwnedFieldName {
    OwnedFieldName::new(name.as_bytes()).expect("a name written here")
}

/// A number that has no meaning here.
struct IgnoredNumber;

impl Kind for IgnoredNumber {
    type Out = ();

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<()> {
        match &node.value {
            Value::Scalar(scalar) if matches!(scalar.meaning(), Meaning::Int(_) | Meaning::Float(_)) => Some(()),
            _ => {
                report_expected("a number", node, path, sink);
                None
            }
        }
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        json!({"type": "number"})
    }
}

const HEADER_NAMES: [FieldName<'static>; 3] = [
    FieldName::constant("X-RateLimit-Limit"),
    FieldName::constant("X-RateLimit-Remaining"),
    FieldName::constant("X-RateLimit-Reset"),
];
/// The prefix of a rule is inserted before this part of a name.
const HEADER_STEM: &[u8] = b"RateLimit-";

/// Sets them, for a rule with its prefix in their names.
fn tell_limit(prefix: Option<&str>, limit: Limit, taken: LimitDecision, request: &mut Request<'_>) {
    let names = match request.metadata::<LimitCountMetadata>(NAME) {
        Some(own) => [own.limit_header.name(), own.remaining_header.name(), own.reset_header.name()],
        None => HEADER_NAMES,
    };
    let values = [
        Decimal::whole(limit.count),
        // The estimate of a sliding window may be over the limit by a part of a request.
        Decimal::whole(taken.remaining.max(0) as u64),
        Decimal::seconds(taken.reset_ms),
    ];
    let told = names.into_iter().zip(values.iter().map(Decimal::value));
    match prefix {
        None => told.for_each(|(name, value)| set_header(name, value, request)),
        Some(prefix) => request.worker.with_buffers(|prefixed, _| {
            for (name, value) in told {
                // Each of its parts was validated when it was read.
                if let Ok(name) = FieldName::new(with_prefix(name.bytes(), prefix, prefixed)) {
                    set_header(name, value, request);
                }
            }
        }),
    }
}

fn set_header(name: FieldName<'_>, value: FieldValue<'_>, request: &mut Request<'_>) {
    request.response.remove_added(name);
    request.response.add(name, value);
}

/// `X-RateLimit-Limit` becomes `X-PREFIX-RateLimit-Limit`; a name without [`HEADER_STEM`] is unchanged.
fn with_prefix<'a>(name: &'a [u8], prefix: &str, out: &'a mut Vec<u8>) -> &'a [u8] {
    let Some(at) = name.windows(HEADER_STEM.len()).position(|part| part == HEADER_STEM) else { return name };
    out.clear();
    for part in [&name[..at], prefix.as_bytes(), b"-", &name[at..]] {
        out.extend_from_slice(part);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_stands_before_the_stem() {
        let check = |name: &str, expected: &str| {
            assert_eq!(with_prefix(name.as_bytes(), "7", &mut Vec::new()), expected.as_bytes());
        };
        check("X-RateLimit-Limit", "X-7-RateLimit-Limit");
        check("X-AI-RateLimit-Reset", "X-AI-7-RateLimit-Reset");
        check("RateLimit-Limit", "7-RateLimit-Limit");
        check("X-Quota", "X-Quota");
    }
}
