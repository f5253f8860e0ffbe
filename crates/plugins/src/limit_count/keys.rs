//! The keys of `limit-count`, and those of its metadata.

use crate::counters::{CounterPolicy, OF_REDIS};
use crate::number::{ABOVE_ZERO, Number};
use serde_json::json;
use stillgate_schema::kind::unplaced;
use stillgate_schema::text::scalar::Meaning;
use stillgate_schema::{
    At, Choice, Definitions, Fault, Flag, Json, Kind, LocatedKind, Node, Path, Sink, TEXT, Text, Value, expected, int,
    map, object, some, text,
};
use stillgate_wire::OwnedFieldName;

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
        sync_interval: () = NumberOfOthers => optional;
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
        limit_header: OwnedFieldName = HEADER => default(named("X-RateLimit-Limit"));
        /// The remaining requests.
        remaining_header: OwnedFieldName = HEADER => default(named("X-RateLimit-Remaining"));
        /// Seconds until the window resets.
        reset_header: OwnedFieldName = HEADER => default(named("X-RateLimit-Reset"));
    }
}

/// The kind of windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowType {
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

fn named(name: &str) -> OwnedFieldName {
    OwnedFieldName::new(name.as_bytes()).expect("a name written here")
}

/// A number that has no meaning here.
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
