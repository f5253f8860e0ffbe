//! Limits of requests and of the size of their bodies.

use super::{Translation, TranslationContext};
use crate::kong_file::Plugin;
use crate::object::Object;
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
    windows: Vec<(i64, i64, &'static str)>,
    by: LimitBy,
    common: Map<String, Json>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum LimitBy {
    Consumer,
    Address,
    Service,
    /// The variable of a header field.
    Header(String),
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

    /// The keys of `limit-count`. Kong counts by address where a request has no consumer; `is_authenticated` says that
    /// all requests have one. Configurations with the same `group` count together, if that is possible.
    pub(crate) fn keys(&self, is_authenticated: bool, group: Option<&str>) -> Json {
        let variable = match &self.by {
            LimitBy::Consumer if is_authenticated => "consumer_name",
            LimitBy::Consumer | LimitBy::Address => "remote_addr",
            LimitBy::Service => "service_id",
            LimitBy::Header(variable) => variable,
        };
        let mut keys = Map::new();
        match &*self.windows {
            [(count, seconds, _)] => {
                keys.insert("count".to_owned(), (*count).into());
                keys.insert("time_window".to_owned(), (*seconds).into());
                keys.insert("key".to_owned(), variable.into());
                keys.extend(group.map(|group| ("group".to_owned(), group.into())));
            }
            several => {
                let rule = |(count, seconds, name): &(i64, i64, &str)| json!({"key": format!("${variable} {name}"), "count": count, "time_window": seconds, "header_prefix": name});
                keys.insert("rules".to_owned(), several.iter().map(rule).collect::<Vec<_>>().into());
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
        let Some(count) = config.number(key).filter(|count| *count > 0.0) else { continue };
        if count.fract() != 0.0 {
            config.lost(key, "limits are whole numbers here; the next higher one is used");
        }
        if matches!(key, "month" | "year") {
            config.lost(key, "a month has 30 days here, and a year 365");
        }
        windows.push((count.ceil().min(COUNT_MAX) as i64, seconds, name));
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
    if config.flag("fault_tolerant").unwrap_or(true) {
        common.insert("allow_degradation".to_owned(), true.into());
    }
    if config.flag("hide_client_headers") == Some(true) {
        common.insert("show_limit_quota_header".to_owned(), false.into());
    }
    common.insert("_meta".to_owned(), json!({"error_response": {"message": message}}));
    if windows.is_empty() {
        config.changed("the plugin has no limit; it is left out");
        return Translation::Nothing;
    }
    config.changed("a window begins with the first request of a key, not with the minute or hour of the clock; and header fields are `RateLimit-Limit`, `-Remaining` and `-Reset`, without `X-RateLimit-…` and `Retry-After`");
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
        ("header", Some(name)) => {
            if periods > 1 {
                config.lost("limit_by", "with several periods, a request without the header field is answered 500; Kong counts it by address");
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
    let config = &plugin.config;
    let size = config.whole("allowed_payload_size").unwrap_or(128);
    let unit = match config.text("size_unit").as_deref() {
        Some("bytes") => 1,
        Some("kilobytes") => 1024,
        _ => 1_048_576,
    };
    config.lost_if_set(
        "require_content_length",
        "requests without `Content-Length` are admitted; the size of their bodies is still limited",
    );
    let bytes = size.saturating_mul(unit);
    if bytes <= 0 {
        // Kong lets no body through, and 0 stands for no bound here.
        config.lost("allowed_payload_size", "the smallest bound is one byte here");
    }
    Translation::Plain(vec![("client-control", json!({"max_body_size": bytes.max(1)}))])
}
