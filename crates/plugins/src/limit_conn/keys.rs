//! The keys of `limit-conn`.

use crate::counters::{CounterPolicy, OF_REDIS};
use crate::decimal::Decimal;
use crate::number::{ABOVE_ZERO, FROM_ZERO, Number};
use stillgate_schema::{At, Choice, Fault, Flag, LocatedKind, TEXT, Text, int, map, object, some, text};

object! {
    /// Limits the number of concurrent requests.
    pub(crate) struct LimitConnKeys {
        /// Concurrent requests of a key that run without waiting: a number above 0, or a text with variables that
        /// yields one.
        conn: Number = ABOVE_ZERO => optional;
        /// Further requests, which wait: a number, or a text with variables that yields one.
        burst: Number = FROM_ZERO => optional;
        /// The assumed duration of a request at first, in seconds: requests of the burst wait as long.
        default_conn_delay: f64 = Decimal { min: 0.001, max: 3600.0 } => required;
        /// Whether that value is kept; otherwise it follows the measured duration of requests.
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
