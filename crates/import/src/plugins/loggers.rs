//! Loggers. They send entries with the members that loggers here have, which are not Kong's.

use super::translation::{Translation, TranslationContext, seconds};
use crate::kong_file::Plugin;
use crate::object::Object;
use serde_json::{Map, Value as Json, json};

const OTHER_ENTRIES: &str =
    "entries have other members than Kong's (docs/plugins/loggers.md); use `log_format` for what your receiver needs";
/// Longest timeout of loggers here, in seconds.
const TIMEOUT_MAX: i64 = 3600;

pub(super) fn http_log(plugin: &Plugin, cx: &TranslationContext<'_>) -> Translation {
    let config = &plugin.config;
    let endpoint = cx.text(config, "http_endpoint");
    let mut keys = Map::new();
    let (url, user) = endpoint.map_or((None, None), |url| without_user(&url));
    keys.insert("timeout".to_owned(), seconds(config.field("timeout"), 10_000.0, TIMEOUT_MAX).into());
    if user.is_some() {
        config.lost("http_endpoint", "a user name in the address is not sent here; write `auth_header`");
    }
    for (name, field) in config.object("headers").map_or_else(Vec::new, |headers| headers.all()) {
        match name.eq_ignore_ascii_case("authorization") {
            true => keys.extend(cx.vaults.text(&field).map(|value| ("auth_header".to_owned(), value.into()))),
            false => field.lost("entries are sent without this header field; only `Authorization` is possible"),
        }
    }
    if config.text("method").is_some_and(|method| method != "POST") {
        config.lost("method", "entries are sent with POST");
    }
    config.skip(&["content_type", "keepalive", "retry_count"]);
    config.lost("custom_fields_by_lua", "fields made in Lua are left out; use `log_format`");
    batches(config, &mut keys);
    let Some(url) = url else {
        config.changed("the logger has no address; it is left out");
        return Translation::Nothing;
    };
    let mut all = Map::new();
    all.insert("uri".to_owned(), url.into());
    all.extend(keys);
    config.changed(OTHER_ENTRIES);
    Translation::Observer(vec![("http-logger", all.into())])
}

/// An URL without user name and password, and whether it had some.
fn without_user(url: &str) -> (Option<String>, Option<()>) {
    let Some((scheme, rest)) = url.split_once("://") else { return (Some(url.to_owned()), None) };
    let end = rest.find('/').unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => (Some(format!("{scheme}://{}", &rest[at + 1..])), Some(())),
        None => (Some(url.to_owned()), None),
    }
}

/// Kong's queue as batches.
fn batches(config: &Object, keys: &mut Map<String, Json>) {
    const ENTRIES: i64 = 1_000_000;
    let queue = config.object("queue");
    let size = queue.as_ref().and_then(|queue| queue.whole("max_batch_size")).or_else(|| config.whole("queue_size"));
    let delay = queue
        .as_ref()
        .and_then(|queue| queue.number("max_coalescing_delay"))
        .or_else(|| config.number("flush_timeout"));
    config.skip(&["queue_size", "flush_timeout"]);
    let size = size.unwrap_or(1).clamp(1, ENTRIES);
    keys.insert("batch_max_size".to_owned(), size.into());
    if size > 1 {
        let delay = (delay.unwrap_or(1.0).ceil() as i64).clamp(1, TIMEOUT_MAX);
        keys.insert("inactive_timeout".to_owned(), delay.into());
        keys.insert("buffer_duration".to_owned(), delay.into());
    }
    let retries = queue.as_ref().and_then(|queue| queue.number("max_retry_time")).unwrap_or(60.0);
    if retries > 0.0 {
        // Kong tries for a minute, with delays that double.
        keys.insert("max_retry_count".to_owned(), 6.into());
    }
    if let Some(queue) = queue {
        queue.skip(&["initial_retry_delay", "max_retry_delay"]);
        for key in ["max_entries", "max_bytes", "concurrency_limit"] {
            queue.lost(key, "what waits has other bounds here (docs/plugins/loggers.md)");
        }
        queue.finish();
    }
}

pub(super) fn file_log(plugin: &Plugin, cx: &TranslationContext<'_>) -> Translation {
    let config = &plugin.config;
    let path = cx.text(config, "path");
    config.skip(&["reopen"]);
    config.lost("custom_fields_by_lua", "fields made in Lua are left out; use `log_format`");
    config.changed(OTHER_ENTRIES);
    match path {
        Some(path) => Translation::Observer(vec![("file-logger", json!({"path": path}))]),
        None => Translation::Nothing,
    }
}

pub(super) fn tcp_log(plugin: &Plugin, cx: &TranslationContext<'_>) -> Translation {
    let config = &plugin.config;
    let (address, mut keys) = socket(config, cx);
    let timeout = config.number("timeout").unwrap_or(10_000.0) as i64;
    keys.insert("timeout".to_owned(), timeout.clamp(1, 3_600_000).into());
    config.skip(&["keepalive"]);
    if config.flag("tls") == Some(true) {
        keys.insert("tls".to_owned(), true.into());
    }
    if let Some(name) = config.text("tls_sni") {
        keys.insert("tls_options".to_owned(), name.into());
    }
    config.changed(OTHER_ENTRIES);
    if address { Translation::Observer(vec![("tcp-logger", keys.into())]) } else { Translation::Nothing }
}

pub(super) fn udp_log(plugin: &Plugin, cx: &TranslationContext<'_>) -> Translation {
    let config = &plugin.config;
    let (address, mut keys) = socket(config, cx);
    keys.insert("timeout".to_owned(), seconds(config.field("timeout"), 10_000.0, TIMEOUT_MAX).into());
    config.changed(OTHER_ENTRIES);
    if address { Translation::Observer(vec![("udp-logger", keys.into())]) } else { Translation::Nothing }
}

/// The address of a receiver; each entry is sent by itself.
fn socket(config: &Object, cx: &TranslationContext<'_>) -> (bool, Map<String, Json>) {
    let (host, port) = (cx.text(config, "host"), config.whole("port"));
    config.lost("custom_fields_by_lua", "fields made in Lua are left out; use `log_format`");
    let is_there = host.is_some() && port.is_some();
    let mut keys = Map::new();
    if let (Some(host), Some(port)) = (host, port) {
        keys.insert("host".to_owned(), host.into());
        keys.insert("port".to_owned(), port.into());
        keys.insert("batch_max_size".to_owned(), 1.into());
    } else {
        config.changed("the logger has no address; it is left out");
    }
    (is_there, keys)
}

pub(super) fn syslog(plugin: &Plugin, _: &TranslationContext<'_>) -> Translation {
    let config = &plugin.config;
    config.skip(&["log_level", "successful_severity", "client_errors_severity", "server_errors_severity", "facility"]);
    config.lost("custom_fields_by_lua", "fields made in Lua are left out; use `log_format`");
    config.changed("Kong writes to the machine's own log; here entries go to 127.0.0.1:514 over UDP, with one severity and facility: let your syslog daemon listen there");
    config.changed(OTHER_ENTRIES);
    let keys = json!({"host": "127.0.0.1", "port": 514, "sock_type": "udp", "batch_max_size": 1});
    Translation::Observer(vec![("syslog", keys)])
}
