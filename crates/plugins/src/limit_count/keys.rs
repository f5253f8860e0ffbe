//! The keys of `limit-count`, and those of its metadata.

use crate::counters::{OF_REDIS, Policy};
use crate::number::{ABOVE_ZERO, Number};
use serde_json::json;
use stillgate_schema::kind::unplaced;
use stillgate_schema::text::scalar::Meaning;
use stillgate_schema::{
    At, Choice, Definitions, Fault, Flag, Json, Kind, Located, Node, Path, Sink, TEXT, Text, Value, expected, int, map,
    object, some, text,
};
use stillgate_wire::OwnedFieldName;

object! {
    /// At most so many requests in a window of time.
    pub(crate) struct LimitCountKeys {
        /// How many requests are let through in a window: a number above 0, or a text with variables that comes to one.
        count: Number = ABOVE_ZERO => optional;
        /// How long a window is, in seconds: a number above 0, or a text with variables that comes to one.
        time_window: Number = ABOVE_ZERO => optional;
        /// `fixed`: a window begins with the first request of a key. `sliding`: the window before counts by the part of it that a
        /// window ending now covers.
        window_type: WindowType = WINDOW_TYPE => default(WindowType::Fixed);
        /// Several limits, each with a key of its own, in place of `count`, `time_window` and `key`. All must hold.
        rules: Vec<RuleKeys> = some(map::<RuleKeys>()) => optional;
        /// What requests are counted by: a variable, a text with variables, or a constant, as `key_type` says. Where the request
        /// has no such value, by the client's address.
        key: At<String> = Located(TEXT.shown()) => default(unplaced("remote_addr".to_owned()));
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
        policy: () = Policy => default(());
        /// Whether a request is let through where it cannot be counted; otherwise it is answered with 500.
        allow_degradation: bool = Flag => default(false);
        /// Whether responses state the limit, what remains of it and when the window resets.
        show_limit_quota_header: bool = Flag => default(true);
        /// For other policies; has no effect here.
        sync_interval: () = NumberOfOthers => optional;
        foreign: OF_REDIS;
    }
}

object! {
    /// One of several limits.
    pub(crate) struct RuleKeys {
        /// How many requests are let through in a window: a number above 0, or a text with variables that comes to one.
        count: Number = ABOVE_ZERO => required;
        /// How long a window is, in seconds: a number above 0, or a text with variables that comes to one.
        time_window: Number = ABOVE_ZERO => required;
        /// A text with variables such as `$http_x_user`. Of a request that has none of them the rule counts nothing.
        key: At<String> = Located(TEXT) => required;
        /// The rule's headers are `X-PREFIX-RateLimit-Limit` and so on; its number, from 1, where this is absent.
        header_prefix: String = PREFIX => optional;
    }
}

object! {
    /// The names of the headers.
    pub(crate) struct LimitCountMetadata {
        /// What the limit is.
        limit_header: OwnedFieldName = HEADER => default(named("X-RateLimit-Limit"));
        /// What remains of it.
        remaining_header: OwnedFieldName = HEADER => default(named("X-RateLimit-Remaining"));
        /// Seconds until the window resets.
        reset_header: OwnedFieldName = HEADER => default(named("X-RateLimit-Reset"));
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

fn named(name: &str) -> OwnedFieldName {
    OwnedFieldName::new(name.as_bytes()).expect("a name that stands here")
}

/// A number that means nothing here.
struct NumberOfOthers;

impl Kind for NumberOfOthers {
    type Out = ();

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<()> {
        match &node.value {
            Value::Scalar(scalar) if matches!(scalar.meaning(), Meaning::Int(_) | Meaning::Float(_)) => Some(()),
            _ => {
                expected("a number", node, path, sink);
                None
            }
        }
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        json!({"type": "number"})
    }
}
