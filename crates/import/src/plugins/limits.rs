//! Limits of requests and of the size of their bodies.

use super::translation::{Translation, TranslationContext, close, is_variable_name};
use crate::kong_file::Plugin;
use crate::object::{Count, Field, Object};
use serde_json::{Map, Value as Json, json};

/// Kong's periods with their names in header fields, in seconds. Months and years are those of most.
const PERIODS: [(&str, i64, &str); 6] = [
    ("second", 1, "Second"),
    ("minute", 60, "Minute"),
    ("hour", 3600, "Hour"),
    ("day", 86_400, "Day"),
    ("month", 2_592_000, "Month"),
    ("year", 31_536_000, "Year"),
];

/// Largest limit here.
const COUNT_MAX: f64 = 9_007_199_254_740_991.0;

/// A `rate-limiting`, before it is known whether its routes know their consumers.
#[derive(Debug, Clone)]
pub(crate) struct Limit {
    windows: Vec<Window>,
    by: LimitBy,
    common: Map<String, Json>,
}

#[derive(Debug, Clone)]
struct Window {
    /// A number, or a text with a variable of the environment.
    count: Json,
    seconds: i64,
    name: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum LimitBy {
    Consumer,
    Address,
    Service,
    /// The variable of a header field.
    Header(String),
}

/// What the requests that a limit counts have. Kong counts by address those that lack what it counts by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LimitedRequests {
    /// Whether the limit counts by consumer, where Kong does.
    pub(crate) has_consumer: bool,
    /// Whether some of the requests still have no consumer.
    pub(crate) may_lack_consumer: bool,
    /// Whether some of the requests have no service.
    pub(crate) may_lack_service: bool,
}

impl LimitedRequests {
    /// What the requests of a consumer have.
    pub(crate) const OF_CONSUMER: LimitedRequests =
        LimitedRequests { has_consumer: true, may_lack_consumer: false, may_lack_service: true };
}

impl Limit {
    /// Whether its key depends on the consumer.
    pub(crate) fn is_by_consumer(&self) -> bool {
        self.by == LimitBy::Consumer
    }

    /// Whether several configurations can count together.
    pub(crate) fn can_share(&self) -> bool {
        self.windows.len() == 1
    }

    /// The keys of `limit-count`. Configurations with the same `group` count together, if that is possible.
    pub(crate) fn keys(&self, requests: LimitedRequests, group: Option<&str>) -> Json {
        let (variable, may_be_absent) = match &self.by {
            LimitBy::Consumer if requests.has_consumer => ("consumer_name", requests.may_lack_consumer),
            LimitBy::Consumer | LimitBy::Address => ("remote_addr", false),
            LimitBy::Service => ("service_id", requests.may_lack_service),
            LimitBy::Header(variable) => (&**variable, true),
        };
        let mut keys = Map::new();
        match &*self.windows {
            [Window { count, seconds, .. }] => {
                keys.insert("count".to_owned(), count.clone());
                keys.insert("time_window".to_owned(), (*seconds).into());
                keys.insert("key".to_owned(), variable.into());
                keys.extend(group.map(|group| ("group".to_owned(), group.into())));
            }
            several => {
                let rule = |key: String, window: &Window| {
                    let Window { count, seconds, name } = window;
                    json!({"key": format!("{key} {name}"), "count": count, "time_window": seconds, "header_prefix": name})
                };
                let mut rules: Vec<Json> = several.iter().map(|window| rule(format!("${variable}"), window)).collect();
                if may_be_absent {
                    // A rule does not apply to a request without its variable, and a default is a constant. So further
                    // rules count by address, and apart for each value, so that they limit nothing more where it has one.
                    let by_address = format!("${{{variable} ?? -}} $remote_addr");
                    rules.extend(several.iter().map(|window| rule(by_address.clone(), window)));
                }
                keys.insert("rules".to_owned(), rules.into());
            }
        }
        keys.extend(self.common.clone());
        keys.into()
    }
}

pub(super) fn rate_limiting(plugin: &Plugin, cx: &TranslationContext<'_>) -> Translation {
    let config = &plugin.config;
    let mut windows = Vec::new();
    for (key, seconds, name) in PERIODS {
        let Some(field) = config.field(key) else { continue };
        let count = match field.count() {
            Some(Count::Known(count)) if count > 0.0 => {
                if count.fract() != 0.0 {
                    field.lost("limits are whole numbers here; the next higher one is used");
                }
                Json::from(count.ceil().min(COUNT_MAX) as i64)
            }
            Some(Count::Variable(text)) => text.into(),
            Some(Count::Known(_)) => field.wrong("a number above 0").unwrap_or_default(),
            None => continue,
        };
        if matches!(key, "month" | "year") {
            field.lost("a month has 30 days here, and a year 365");
        }
        windows.push(Window { count, seconds, name });
    }
    let by = limit_by(config, windows.len());
    if config.text("policy").is_some_and(|policy| policy != "local") {
        config.lost(
            "policy",
            "counters are in the process here, so each gateway counts for itself; divide the limits by their number",
        );
    }
    config.skip(&["redis", "sync_rate", "dictionary_name"]);
    for key in ["host", "port", "password", "username", "ssl", "ssl_verify", "server_name", "timeout", "database"] {
        config.skip(&[&*format!("redis_{key}")]);
    }
    config.lost("throttling", "requests above the limit do not wait here; see `limit-req`");
    let code = config.whole("error_code").unwrap_or(429);
    if !(200..600).contains(&code) {
        config.lost("error_code", "a response cannot have this status; it is 429");
    }
    let message = config.text("error_message").unwrap_or_else(|| "API rate limit exceeded".to_owned());
    let mut common = Map::new();
    common.insert("rejected_code".to_owned(), if (200..600).contains(&code) { code } else { 429 }.into());
    // True by default in Kong, and false here.
    let degrades = config.field("fault_tolerant").map_or(Some(true.into()), |field| field.switch());
    if let Some(degrades) = degrades.filter(|degrades| *degrades != Json::Bool(false)) {
        common.insert("allow_degradation".to_owned(), degrades);
    }
    if config.flag("hide_client_headers") == Some(true) {
        common.insert("show_limit_quota_header".to_owned(), false.into());
    }
    common.insert("_meta".to_owned(), json!({"error_response": {"message": message}}));
    if windows.is_empty() {
        return close(plugin, "no limit of it can be read");
    }
    let fields = match windows.len() {
        1 => {
            "header fields are `RateLimit-Limit`, `-Remaining` and `-Reset`, without `X-RateLimit-…` and `Retry-After`"
        }
        _ => {
            "with several periods, header fields are `Minute-RateLimit-Limit` and so on, in place of `RateLimit-Limit`, `X-RateLimit-Limit-Minute` and so on"
        }
    };
    config.changed(format!(
        "a window begins with the first request of a key, not with the minute or hour of the clock; and {fields}"
    ));
    let names = json!({"limit_header": "RateLimit-Limit", "remaining_header": "RateLimit-Remaining", "reset_header": "RateLimit-Reset"});
    cx.metadata.borrow_mut().insert("limit-count", crate::upstreams::json_map(names));
    Translation::Limit(Limit { windows, by, common })
}

/// What requests are counted by.
fn limit_by(config: &Object, periods: usize) -> LimitBy {
    let limit_by = config.text("limit_by").unwrap_or_else(|| "consumer".to_owned());
    let header = config.text("header_name");
    config.skip(&["path"]);
    match (&*limit_by, header) {
        ("consumer", _) => LimitBy::Consumer,
        ("ip", _) => LimitBy::Address,
        ("service", _) => LimitBy::Service,
        ("header", Some(name)) if !is_variable_name(&name) => {
            config.lost(
                "header_name",
                "no variable has the value of this header field, so requests are counted by address",
            );
            LimitBy::Address
        }
        ("header", Some(name)) => {
            if periods > 1 {
                config.lost("limit_by", "with several periods, requests with the same value are also limited for each address, in windows that may begin later");
            }
            LimitBy::Header(format!("http_{}", name.to_lowercase().replace('-', "_")))
        }
        ("credential", _) => {
            config.lost("limit_by", "all credentials of a consumer count together here");
            LimitBy::Consumer
        }
        ("path", _) => {
            config.lost("limit_by", "requests are counted by address here, those of `path` as well");
            LimitBy::Address
        }
        _ => {
            config.lost("limit_by", "requests are counted by address here");
            LimitBy::Address
        }
    }
}

pub(super) fn request_size_limiting(plugin: &Plugin, _: &TranslationContext<'_>) -> Translation {
    const MEGABYTES: i64 = 128;
    let config = &plugin.config;
    let written = config.field("allowed_payload_size");
    let unit = match config.text("size_unit").as_deref() {
        Some("bytes") => Some(1),
        Some("kilobytes") => Some(1024),
        None | Some("megabytes") => Some(1_048_576),
        Some(_) => None,
    };
    config.lost_if_set(
        "require_content_length",
        "requests without `Content-Length` are admitted; the size of their bodies is still limited",
    );
    let Some(unit) = unit else { return close(plugin, "the unit of the size cannot be read") };
    let size = match written.as_ref().map(Field::count) {
        None => Json::from(MEGABYTES * unit),
        Some(Some(Count::Variable(text))) if unit == 1 => {
            config.lost(
                "allowed_payload_size",
                "the value of the variable must be above 0, which stands for no limit here",
            );
            text.into()
        }
        Some(Some(Count::Variable(_))) => {
            return close(plugin, "a size that comes from a variable must be in bytes (`size_unit: bytes`)");
        }
        Some(_) => {
            let Some(size) = config.whole("allowed_payload_size") else {
                return close(plugin, "the size cannot be read");
            };
            let bytes = size.saturating_mul(unit);
            if bytes <= 0 {
                // Kong lets no body through; here 0 means no bound.
                config.lost("allowed_payload_size", "the smallest bound is one byte here");
            }
            bytes.max(1).into()
        }
    };
    Translation::Plain(vec![("client-control", json!({"max_body_size": size}))])
}
