//! `limit-count`: at most so many requests in a window of time, by a key of each request.
//!
//! A limit holds over all workers, and over both processes of an upgrade: counters are in the table of `stillgate-limits`. Each
//! configuration has counters of its own, in each resource that it is written in, unless `group` names shared ones; another
//! configuration begins to count anew.
//!
//! Different from APISIX: a variable that does not exist is refused when the configuration is loaded (there the client's address
//! counts in its place), and so is a limit that is no number.

use serde_json::json;
use std::io::Write;
use std::sync::Arc;
use stillgate_limits::{KeyHasher, Limit, Limits, Taken};
use stillgate_plugin::{Answer, Compile, Define, Flow, Identity, Metadata, Phase, Phases, Plugin, Request, Template};
use stillgate_route::{Lookup, Variable};
use stillgate_schema::{
    At, Choice, Definitions, Fault, Flag, Json, Kind, Located, Node, Path, Sink, TEXT, Text, Value, expected, int,
    object, some, text,
};
use stillgate_wire::{FieldName, FieldValue};

/// APISIX's name.
const NAME: &str = "limit-count";
/// The largest limit and window, as Lua's numbers hold them exactly.
const NUMBER_MAX: u64 = (1 << 53) - 1;
/// What the largest number takes to write, with hundredths and a sign.
const NUMBER_BYTES_MAX: usize = 24;

object! {
    /// At most so many requests in a window of time.
    pub(crate) struct LimitCountKeys {
        /// How many requests are let through in a window: a number above 0, or a text with variables that comes to one.
        count: Number = NumberKind => optional;
        /// How long a window is, in seconds: a number above 0, or a text with variables that comes to one.
        time_window: Number = NumberKind => optional;
        /// `fixed`: a window begins with the first request of a key. `sliding`: the window before counts by the part of it that a
        /// window ending now covers.
        window_type: WindowType = WINDOW_TYPE => default(WindowType::Fixed);
        /// Several limits, each with a key of its own, in place of `count`, `time_window` and `key`. All must hold.
        rules: Vec<RuleKeys> = some(stillgate_schema::map::<RuleKeys>()) => optional;
        /// What requests are counted by: a variable, a text with variables, or a constant, as `key_type` says. Where the request
        /// has no such value, by the client's address.
        key: At<String> = Located(TEXT.shown()) => default(stillgate_schema::kind::unplaced("remote_addr".to_owned()));
        /// `var`: `key` is a variable's name. `var_combination`: a text such as `$remote_addr $consumer_name`. `constant`: all
        /// requests count as one.
        key_type: KeyType = KEY_TYPE => default(KeyType::Var);
        /// Counters that all configurations with this name share. They must be the same.
        group: String = TEXT => optional;
        /// The status of a request that is turned away.
        rejected_code: u16 = int(200, 599) => default(503);
        /// `error_msg` of the answer; without it the answer is an error page.
        rejected_msg: String = MESSAGE => optional;
        /// Where the counters are.
        policy: () = POLICY => default(());
        /// Whether a request is let through where it cannot be counted; otherwise it is answered with 500.
        allow_degradation: bool = Flag => default(false);
        /// Whether responses tell the limit, what remains of it and when it begins anew.
        show_limit_quota_header: bool = Flag => default(true);
        /// Means something to other policies only.
        sync_interval: i64 = int(-1, -1) => default(-1);
    }
}

object! {
    /// One of several limits.
    pub(crate) struct RuleKeys {
        /// How many requests are let through in a window: a number above 0, or a text with variables that comes to one.
        count: Number = NumberKind => required;
        /// How long a window is, in seconds: a number above 0, or a text with variables that comes to one.
        time_window: Number = NumberKind => required;
        /// A text with variables such as `$http_x_user`. Of a request that has none of them the rule counts nothing.
        key: At<String> = Located(TEXT) => required;
        /// The rule's headers are `X-PREFIX-RateLimit-Limit` and so on; its number, from 1, where this is absent.
        header_prefix: At<String> = Located(TEXT) => optional;
    }
}

object! {
    /// The names of the headers.
    pub(crate) struct LimitCountMetadata {
        /// What the limit is.
        limit_header: HeaderText = HEADER => default(HeaderText("X-RateLimit-Limit".into()));
        /// What remains of it.
        remaining_header: HeaderText = HEADER => default(HeaderText("X-RateLimit-Remaining".into()));
        /// Seconds until it begins anew.
        reset_header: HeaderText = HEADER => default(HeaderText("X-RateLimit-Reset".into()));
    }
}

/// Which windows are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowType {
    /// They begin with a key's first request.
    Fixed,
    /// The one before counts in part.
    Sliding,
}

const WINDOW_TYPE: Choice<WindowType> =
    Choice { words: &[("fixed", WindowType::Fixed), ("sliding", WindowType::Sliding)], unbuilt: &[] };

/// What `key` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyType {
    /// A variable.
    Var,
    /// A text with variables.
    VarCombination,
    /// A text.
    Constant,
}

const KEY_TYPE: Choice<KeyType> = Choice {
    words: &[("var", KeyType::Var), ("var_combination", KeyType::VarCombination), ("constant", KeyType::Constant)],
    unbuilt: &[],
};

const POLICY: Choice<()> = Choice { words: &[("local", ())], unbuilt: &["redis", "redis-cluster", "redis-sentinel"] };

const MESSAGE: Text<String> = text("a text", |text| match text.is_empty() {
    true => Err(Fault::new("the message is empty").hint("write one, or remove the key")),
    false => Ok(text.to_owned()),
});

/// The name of a header field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeaderText(Box<str>);

const HEADER: Text<HeaderText> = text("the name of a header field", |text| {
    FieldName::new(text.as_bytes()).map(|_| HeaderText(text.into())).map_err(|error| Fault::new(error.to_string()))
});

/// A number above 0, or a text that comes to one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Number {
    /// The number.
    Plain(u64),
    /// The text.
    Text(Template),
}

/// The kind of a [`Number`].
struct NumberKind;

impl Kind for NumberKind {
    type Out = Number;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Number> {
        let Value::Scalar(scalar) = &node.value else {
            expected("a number above 0, or a text with variables", node, path, sink);
            return None;
        };
        let parsed =
            Template::parse(&scalar.text).map_err(|error| Fault::new(error.to_string())).and_then(|template| {
                match template.constant() {
                    None => Ok(Number::Text(template)),
                    Some(text) => number(text).map(Number::Plain).ok_or_else(|| {
                        Fault::new(format!("expected a whole number above 0, found {}", node.found()))
                            .hint("write a number, or variables such as \"$http_x_limit\"")
                    }),
                }
            });
        parsed.map_err(|fault| sink.error(node.at, path, fault)).ok()
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        json!({"anyOf": [{"type": "integer", "exclusiveMinimum": 0}, {"type": "string"}]})
    }
}

/// A whole number from 1 to [`NUMBER_MAX`].
fn number(text: &[u8]) -> Option<u64> {
    let number: u64 = std::str::from_utf8(text).ok()?.trim().parse().ok()?;
    (1..=NUMBER_MAX).contains(&number).then_some(number)
}

/// A limit-count, compiled.
pub(crate) struct LimitCount {
    rules: Box<[Rule]>,
    window_type: WindowType,
    rejected: Answer,
    degrades: bool,
    shows: bool,
    identity: Identity,
    group: Option<Box<str>>,
    /// What must be the same in all of a group.
    of_group: Identity,
}

struct Rule {
    count: Number,
    seconds: Number,
    key: Key,
    /// Headers of its own; `None`: those of the metadata.
    headers: Option<Headers>,
}

enum Key {
    Variable(Variable),
    Combination(Template),
    Constant(Box<[u8]>),
    /// As a combination, but a request with none of its variables is not counted.
    Present(Template),
}

/// The names of a rule's three headers.
struct Headers([Box<str>; 3]);

impl Define for LimitCount {
    type Keys = LimitCountKeys;
    const NAME: &'static str = NAME;
    const PRIORITY: i32 = 1002;
    const PHASES: Phases = Phases::of(&[Phase::Access]);

    fn compile(keys: LimitCountKeys, cx: &mut Compile<'_>) -> Option<LimitCount> {
        let of_group = Identity::of(&[format!("{keys:?}").as_bytes()]);
        let rejected = match &keys.rejected_msg {
            Some(message) => {
                let body = format!("{}\n", json!({"error_msg": message}));
                Answer::shared(keys.rejected_code, body.into_bytes().into())
            }
            None => Answer::page(keys.rejected_code),
        };
        let rules = match (keys.rules, keys.count, keys.time_window) {
            (Some(rules), None, None) => several(rules, cx)?,
            (None, Some(count), Some(seconds)) => {
                let key = key(&keys.key, keys.key_type, cx)?;
                Box::new([Rule { count, seconds, key, headers: None }])
            }
            (rules, ..) => {
                let fault = match rules {
                    Some(_) => Fault::new("`rules` stands beside `count` or `time_window`").hint("keep one of the two"),
                    None => Fault::new("there is no limit").hint("add `count` and `time_window`, or `rules`"),
                };
                cx.sink.error(cx.at, cx.path, fault);
                return None;
            }
        };
        Some(LimitCount {
            rules,
            window_type: keys.window_type,
            rejected,
            degrades: keys.allow_degradation,
            shows: keys.show_limit_quota_header,
            identity: cx.identity,
            group: keys.group.map(Into::into),
            of_group,
        })
    }
}

impl Metadata for LimitCount {
    type Metadata = LimitCountMetadata;
}

fn several(keys: Vec<RuleKeys>, cx: &mut Compile<'_>) -> Option<Box<[Rule]>> {
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
        let template = match Template::parse(text) {
            Ok(template) => template,
            Err(error) => {
                cx.sink.error(rule.key.at, &path.key("key"), Fault::new(error.to_string()));
                return None;
            }
        };
        seen.push(text.clone());
        let prefix = rule.header_prefix.as_ref().map_or_else(|| (index + 1).to_string(), |prefix| prefix.value.clone());
        let names = ["Limit", "Remaining", "Reset"].map(|what| format!("X-{prefix}-RateLimit-{what}").into_boxed_str());
        if let Some(error) = names.iter().find_map(|name| FieldName::new(name.as_bytes()).err()) {
            let at = rule.header_prefix.map_or(cx.at, |prefix| prefix.at);
            cx.sink.error(at, &path.key("header_prefix"), Fault::new(error.to_string()));
            return None;
        }
        let (count, seconds) = (rule.count, rule.time_window);
        rules.push(Rule { count, seconds, key: Key::Present(template), headers: Some(Headers(names)) });
    }
    Some(rules.into())
}

fn key(key: &At<String>, kind: KeyType, cx: &mut Compile<'_>) -> Option<Key> {
    let text = &key.value;
    let parsed = match kind {
        KeyType::Constant => Ok(Key::Constant(text.as_bytes().into())),
        KeyType::Var => Variable::parse_late(text).map(Key::Variable),
        KeyType::VarCombination => Template::parse(text).map(Key::Combination),
    };
    parsed.map_err(|error| cx.sink.error(key.at, &cx.path.key("key"), Fault::new(error.to_string()))).ok()
}

impl Plugin for LimitCount {
    fn access(&self, request: &mut Request<'_>) -> Flow {
        let Some(limits) = request.worker.limits() else { return self.uncounted() };
        let limits: Arc<Limits> = Arc::clone(limits);
        self.take(&limits, request)
    }

    fn shared(&self) -> Option<(&str, Identity)> {
        self.group.as_deref().map(|group| (group, self.of_group))
    }
}

impl LimitCount {
    /// All rules, in order, until one turns the request away.
    fn take(&self, limits: &Limits, request: &mut Request<'_>) -> Flow {
        let mut counted = false;
        for (index, rule) in self.rules.iter().enumerate() {
            let Some(limit) = rule.limit(request) else { continue };
            let Some(key) = self.key(limits, index, rule, request) else { continue };
            counted = true;
            let now_ms = request.worker.now_ms();
            let taken = match self.window_type {
                WindowType::Fixed => limits.take_fixed(key, limit, 1, now_ms),
                WindowType::Sliding => limits.take_sliding(key, limit, 1, now_ms),
            };
            let Ok(taken) = taken else { return self.uncounted() };
            if self.shows {
                tell(rule, limit, taken, request);
            }
            if !taken.admitted {
                return Flow::Answer(self.rejected.clone());
            }
        }
        // Of rules none may apply, and what a text comes to may be no limit. APISIX answers that as an error, too.
        match counted || self.degrades {
            true => Flow::Continue,
            false => Flow::Answer(Answer::page(500)),
        }
    }

    /// What a request is counted under; `None`: the rule does not apply to it.
    fn key(&self, limits: &Limits, index: usize, rule: &Rule, request: &Request<'_>) -> Option<stillgate_limits::Key> {
        let hasher = self.hasher(limits, index);
        request.worker.with_buffers(|value, buffer| {
            let present = match &rule.key {
                Key::Constant(text) => return Some(hasher.part(text).finish()),
                Key::Variable(variable) => match request.value(variable, buffer) {
                    Some(value) => return Some(hasher.part(value).finish()),
                    None => 0,
                },
                Key::Combination(template) | Key::Present(template) => template.write(request, value, buffer),
            };
            match &rule.key {
                Key::Present(_) if present == 0 => None,
                _ if present > 0 => Some(hasher.part(value).finish()),
                _ => {
                    let client = request.value(&Variable::RemoteAddr, buffer)?;
                    Some(hasher.part(client).finish())
                }
            }
        })
    }

    fn hasher(&self, limits: &Limits, index: usize) -> KeyHasher {
        let index = (index as u64).to_le_bytes();
        match &self.group {
            Some(group) => limits.hasher().part(b"group").part(group.as_bytes()).part(&index),
            None => limits.hasher().part(&self.identity.0.to_le_bytes()).part(&index),
        }
    }

    fn uncounted(&self) -> Flow {
        match self.degrades {
            true => Flow::Continue,
            false => Flow::Answer(Answer::json(500, r#"{"error_msg":"failed to limit count"}"#)),
        }
    }
}

impl Rule {
    /// Its limit for a request; `None`: what it comes to is no limit.
    fn limit(&self, request: &Request<'_>) -> Option<Limit> {
        let count = self.count.of(request)?;
        let window_ms = self.seconds.of(request)?.saturating_mul(1000);
        Some(Limit { count, window_ms })
    }
}

impl Number {
    fn of(&self, request: &Request<'_>) -> Option<u64> {
        match self {
            Number::Plain(number) => Some(*number),
            Number::Text(template) => request.worker.with_buffers(|text, buffer| {
                template.write(request, text, buffer);
                number(text)
            }),
        }
    }
}

/// Sets the three headers of the response.
fn tell(rule: &Rule, limit: Limit, taken: Taken, request: &mut Request<'_>) {
    let metadata = request.metadata::<LimitCountMetadata>(NAME);
    let names = match (&rule.headers, metadata) {
        (Some(Headers(names)), _) => names.each_ref().map(|name| &**name),
        (None, Some(own)) => [&*own.limit_header.0, &*own.remaining_header.0, &*own.reset_header.0],
        (None, None) => ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"],
    };
    let mut texts = [[0; NUMBER_BYTES_MAX]; 3];
    let [count, remaining, reset] = &mut texts;
    let values = [
        written(count, format_args!("{}", limit.count)),
        written(remaining, format_args!("{}", taken.remaining.max(0))),
        written_seconds(reset, taken.reset_ms),
    ];
    for (name, value) in names.into_iter().zip(values) {
        // Both were checked: names when they were read, and digits are a value.
        if let (Ok(name), Ok(value)) = (FieldName::new(name.as_bytes()), FieldValue::new(value)) {
            request.response.set(&stillgate_wire::Fields::default(), &[], name, value);
        }
    }
}

fn written<'a>(space: &'a mut [u8; NUMBER_BYTES_MAX], value: std::fmt::Arguments<'_>) -> &'a [u8] {
    let mut left = &mut space[..];
    let _ = left.write_fmt(value);
    let unused = left.len();
    &space[..NUMBER_BYTES_MAX - unused]
}

/// Rounded down to hundredths of a second, without zeros at the end, as Lua writes it.
fn written_seconds(space: &mut [u8; NUMBER_BYTES_MAX], ms: u64) -> &[u8] {
    let (seconds, hundredths) = (ms / 1000, ms % 1000 / 10);
    match (hundredths % 10, hundredths) {
        (_, 0) => written(space, format_args!("{seconds}")),
        (0, _) => written(space, format_args!("{seconds}.{}", hundredths / 10)),
        _ => written(space, format_args!("{seconds}.{hundredths:02}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_as_lua_writes_them() {
        let check = |ms: u64, expected: &str| {
            assert_eq!(written_seconds(&mut [0; NUMBER_BYTES_MAX], ms), expected.as_bytes(), "{ms}");
        };
        check(60_000, "60");
        check(59_999, "59.99");
        check(59_900, "59.9");
        check(1_050, "1.05");
        check(9, "0");
    }

    #[test]
    fn numbers() {
        for (text, expected) in [("1", Some(1)), (" 7 ", Some(7)), ("9007199254740991", Some(NUMBER_MAX))] {
            assert_eq!(number(text.as_bytes()), expected, "{text}");
        }
        for text in ["", "0", "-1", "1.5", "x", "9007199254740992", "99999999999999999999"] {
            assert_eq!(number(text.as_bytes()), None, "{text}");
        }
    }
}
