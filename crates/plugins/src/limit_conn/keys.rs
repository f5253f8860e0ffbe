//! The keys of `limit-conn`.

use crate::counters::{OF_REDIS, Policy};
use crate::decimal::Decimal;
use crate::number::{ABOVE_ZERO, FROM_ZERO, Number};
use stillgate_schema::{At, Choice, Fault, Flag, Located, TEXT, Text, int, map, object, some, text};

object! {
    /// At most so many requests at once.
    pub(crate) struct LimitConnKeys {
        /// Requests of a key that are under way without waiting: a number above 0, or a text with variables that comes to one.
        conn: Number = ABOVE_ZERO => optional;
        /// Further ones, which wait: a number, or a text with variables that comes to one.
        burst: Number = FROM_ZERO => optional;
        /// How long a request is taken to last at first, in seconds: so long those of the burst wait.
        default_conn_delay: f64 = Decimal { min: 0.001, max: 3600.0 } => required;
        /// Whether that stays so; otherwise it follows how long requests last.
        only_use_default_delay: bool = Flag => default(false);
        /// What requests are counted by: a variable, or a text with variables, as `key_type` says. Where the request has no such
        /// value, by the client's address.
        key: At<String> = Located(TEXT.shown()) => optional;
        /// `var`: `key` is a variable's name. `var_combination`: a text such as `$remote_addr $consumer_name`.
        key_type: bool = KEY_TYPE => default(false);
        /// Several limits, each with a key of its own, in place of `conn`, `burst` and `key`. All must hold.
        rules: Vec<ConnRuleKeys> = some(map::<ConnRuleKeys>()) => optional;
        /// Where the counts are.
        policy: () = Policy => default(());
        /// The status of a request that is turned away.
        rejected_code: u16 = int(200, 599) => default(503);
        /// `error_msg` of the answer; without it the answer is an error page.
        rejected_msg: String = MESSAGE => optional;
        /// Whether a request is let through where it cannot be counted; otherwise it is answered with 500.
        allow_degradation: bool = Flag => default(false);
        foreign: OF_REDIS;
    }
}

object! {
    /// One of several limits.
    pub(crate) struct ConnRuleKeys {
        /// Requests of a key that are under way without waiting: a number above 0, or a text with variables that comes to one.
        conn: Number = ABOVE_ZERO => required;
        /// Further ones, which wait: a number, or a text with variables that comes to one.
        burst: Number = FROM_ZERO => required;
        /// A text with variables such as `$http_x_user`. Of a request that has none of them the rule counts nothing.
        key: At<String> = Located(TEXT) => required;
    }
}

const KEY_TYPE: Choice<bool> = Choice { words: &[("var", false), ("var_combination", true)], unbuilt: &[] };
const MESSAGE: Text<String> = text("a text", |text| match text.is_empty() {
    true => Err(Fault::new("the message is empty").hint("write one, or remove the key")),
    false => Ok(text.to_owned()),
});
