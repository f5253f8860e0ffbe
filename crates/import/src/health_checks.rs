//! Health checks of Kong's upstreams. Their keys are nearly ours; what is off there has to be left out here.

use crate::object::Object;
use serde_json::{Map, Value as Json, json};

const COUNT_MAX: i64 = 254;
/// Longest interval here.
const DAY_MS: f64 = 86_400_000.0;
const HOUR_MS: f64 = 3_600_000.0;

/// The `checks` of an upstream, if anything is checked. `is_https`: the nodes speak HTTPS; `is_http1`: HTTP/1.1.
pub(crate) fn checks(object: &Object, is_https: bool, is_http1: bool) -> Option<Json> {
    let active = object.object("active").and_then(|active| active_check(&active, is_https, is_http1));
    let passive = object.object("passive").and_then(|passive| passive_check(&passive));
    let has_threshold = object.number("threshold").is_some_and(|threshold| threshold > 0.0);
    if has_threshold {
        object.lost("threshold", "an upstream with too few healthy targets still gets requests here; Kong answers 503");
    }
    object.finish();
    if active.is_none() && passive.is_none() {
        return None;
    }
    object.changed("if no target is healthy, one of them still gets requests; Kong answers 503");
    let mut checks = Map::new();
    checks.extend(active.map(|active| ("active".to_owned(), active)));
    if let Some(passive) = passive {
        checks.insert("passive".to_owned(), passive);
        // Kong takes any number of targets out.
        checks.insert("max_ejected_percent".to_owned(), 100.into());
    }
    Some(checks.into())
}

fn active_check(object: &Object, is_https: bool, is_http1: bool) -> Option<Json> {
    let [healthy, unhealthy] = ["healthy", "unhealthy"].map(|key| part(object, key));
    let intervals = [&healthy, &unhealthy].map(|part| part.number("interval").unwrap_or(0.0));
    let written = object.text("type").unwrap_or_else(|| "http".to_owned());
    let headers = headers(object);
    let mut check = Map::new();
    let kind = match &*written {
        "https" if is_https => "https",
        "https" => {
            object.lost(
                "type",
                "checks over TLS need a service with the protocol https; here, the check only connects to the port",
            );
            "tcp"
        }
        "http" if is_http1 && !is_https => "http",
        "tcp" => "tcp",
        _ => {
            object.lost(
                "type",
                "checks of this type do not fit the protocol of the service; here, the check only connects to the port",
            );
            "tcp"
        }
    };
    check.insert("type".to_owned(), kind.into());
    check.insert("timeout".to_owned(), milliseconds(object.number("timeout").unwrap_or(1.0) * 1000.0, HOUR_MS));
    let (concurrency, path, name) = (object.whole("concurrency"), object.text("http_path"), object.text("https_sni"));
    let verifies = object.flag("https_verify_certificate");
    if let Some(concurrency) = concurrency {
        check.insert("concurrency".to_owned(), concurrency.clamp(1, 10_000).into());
    }
    if kind != "tcp" {
        check.insert("http_path".to_owned(), path.unwrap_or_else(|| "/".to_owned()).into());
        check.extend(name.filter(|_| kind == "https").map(|name| ("host".to_owned(), name.into())));
        if !headers.is_empty() {
            check.insert("req_headers".to_owned(), headers.into());
        }
    }
    if verifies == Some(true) && kind == "https" {
        object.lost("https_verify_certificate", "the check verifies certificates if the service does");
    }
    let is_on = intervals.iter().any(|interval| *interval > 0.0);
    let (good, bad) = (good_part(&healthy, kind, is_on), bad_part(&unhealthy, kind));
    object.finish();
    if !is_on {
        return None;
    }
    for (key, interval, mut keys) in [("healthy", intervals[0], good), ("unhealthy", intervals[1], bad)] {
        if interval <= 0.0 {
            object.changed(format!(
                "Kong does not check {key} targets; here they are checked once a day, the longest interval"
            ));
        }
        let interval = if interval > 0.0 { interval * 1000.0 } else { DAY_MS };
        keys.insert("interval".to_owned(), milliseconds(interval.max(100.0), DAY_MS));
        check.insert(key.to_owned(), keys.into());
    }
    Some(check.into())
}

fn passive_check(object: &Object) -> Option<Json> {
    let [healthy, unhealthy] = ["healthy", "unhealthy"].map(|key| part(object, key));
    let kind = match object.text("type").as_deref() {
        Some("tcp") => "tcp",
        _ => "http",
    };
    let counts = ["http_failures", "tcp_failures", "timeouts"];
    let is_on = counts.iter().any(|key| unhealthy.whole(key).unwrap_or(0) > 0);
    let (good, bad) = (good_part(&healthy, kind, is_on), bad_part(&unhealthy, kind));
    object.finish();
    is_on.then(|| json!({"type": kind, "healthy": good, "unhealthy": bad}))
}

fn part(object: &Object, key: &str) -> Object {
    object
        .object(key)
        .unwrap_or_else(|| Object::empty(format!("{}.{key}", object.path()), object.at(), object.losses()))
}

fn good_part(object: &Object, kind: &str, is_on: bool) -> Map<String, Json> {
    let mut keys = Map::new();
    let successes = object.whole("successes").unwrap_or(0);
    if successes == 0 && is_on {
        object.changed("in Kong, `successes: 0` never brings an unhealthy target back; here, one success does");
    }
    keys.insert("successes".to_owned(), successes.clamp(1, COUNT_MAX).into());
    statuses(object, kind, &mut keys);
    object.skip(&["interval"]);
    object.finish();
    keys
}

fn bad_part(object: &Object, kind: &str) -> Map<String, Json> {
    let mut keys = Map::new();
    for key in ["http_failures", "tcp_failures", "timeouts"] {
        // Kong's default is 0, which switches it off; ours is not.
        keys.insert(key.to_owned(), object.whole(key).unwrap_or(0).clamp(0, COUNT_MAX).into());
    }
    statuses(object, kind, &mut keys);
    object.skip(&["interval"]);
    object.finish();
    keys
}

/// The statuses that count. The defaults are the same.
fn statuses(object: &Object, kind: &str, keys: &mut Map<String, Json>) {
    let fields = object.items("http_statuses");
    let all: Vec<i64> = fields.iter().filter_map(|field| field.whole()).collect();
    let valid: Vec<i64> = all.iter().copied().filter(|status| (200..600).contains(status)).collect();
    if valid.len() < all.len() {
        object.lost("http_statuses", "statuses below 200 and above 599 do not count here");
    }
    if !valid.is_empty() && kind != "tcp" {
        keys.insert("http_statuses".to_owned(), valid.into());
    }
}

fn headers(object: &Object) -> Vec<String> {
    let all = object.object("headers").map_or_else(Vec::new, |headers| headers.all());
    all.iter()
        .flat_map(|(name, field)| {
            field.items().into_iter().filter_map(move |value| Some(format!("{name}: {}", value.text()?)))
        })
        .collect()
}

fn milliseconds(value: f64, max: f64) -> Json {
    crate::upstreams::duration(value.clamp(1.0, max).round() as i64)
}
