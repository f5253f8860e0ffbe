//! Traces, metrics and ids of requests.

use super::translation::{Translation, TranslationContext, seconds};
use crate::kong_file::Plugin;
use crate::object::Object;
use serde_json::{Map, Value as Json, json};

pub(super) fn correlation_id(plugin: &Plugin, _: &TranslationContext<'_>) -> Translation {
    let config = &plugin.config;
    let name = config.text("header_name").unwrap_or_else(|| "Kong-Request-ID".to_owned());
    if config.text("generator").unwrap_or_else(|| "uuid#counter".to_owned()) != "uuid" {
        config.changed("ids are random UUIDs here, without counter or time");
    }
    let echoes = config.flag("echo_downstream").unwrap_or(false);
    Translation::Observer(vec![("request-id", json!({"header_name": name, "include_in_response": echoes}))])
}

pub(super) fn prometheus(plugin: &Plugin, _: &TranslationContext<'_>) -> Translation {
    let config = &plugin.config;
    for key in
        ["per_consumer", "status_code_metrics", "latency_metrics", "bandwidth_metrics", "upstream_health_metrics"]
    {
        // All of them are measured anyway.
        config.skip(&[key]);
    }
    config.lost_if_set("ai_metrics", "there are no metrics of language models");
    config.lost_if_set("wasm_metrics", "there are no metrics of WebAssembly");
    config.changed("metrics have other names than Kong's (docs/metrics.md), and all requests are counted; change dashboards and alerts");
    Translation::Observer(vec![("prometheus", json!({}))])
}

pub(super) fn zipkin(plugin: &Plugin, cx: &TranslationContext<'_>) -> Translation {
    const RATIO_MIN: f64 = 0.00001;
    let config = &plugin.config;
    let endpoint = cx.text(config, "http_endpoint");
    let ratio = config.number("sample_ratio").unwrap_or(0.001);
    let service = config.text("local_service_name").unwrap_or_else(|| "kong".to_owned());
    other_keys(
        config,
        &["default_service_name", "static_tags", "http_response_header_for_traceid"],
        &["include_credential", "traceid_byte_count", "tags_header", "http_span_name", "phase_duration_flavor"],
    );
    config.lost("header_type", "only the B3 header fields are read and written");
    config.skip(&["default_header_type"]);
    let Some(endpoint) = endpoint else {
        config.changed(
            "without `http_endpoint` no spans are sent; the plugin is left out, and trace ids are passed on unread",
        );
        return Translation::Nothing;
    };
    if ratio < RATIO_MIN {
        config.changed("no request is sampled; the plugin is left out");
        return Translation::Nothing;
    }
    let keys = json!({"endpoint": endpoint, "sample_ratio": ratio.min(1.0), "service_name": service});
    Translation::Observer(vec![("zipkin", keys)])
}

pub(super) fn opentelemetry(plugin: &Plugin, cx: &TranslationContext<'_>) -> Translation {
    const TRACES: &str = "/v1/traces";
    let config = &plugin.config;
    let traces = cx.text(config, "traces_endpoint");
    let endpoint = traces.or_else(|| cx.text(config, "endpoint"));
    config.lost("logs_endpoint", "logs are not sent to a collector");
    config.lost("metrics", "metrics are not sent to a collector; it can scrape them (docs/metrics.md)");
    let ratio = config.number("sampling_rate");
    let headers = config.object("headers");
    let attributes = config.object("resource_attributes");
    other_keys(
        config,
        &["http_response_header_for_traceid", "access_logs_endpoint"],
        &["batch_span_count", "batch_flush_delay"],
    );
    config.lost("header_type", "only the W3C header fields are read and written");
    let Some(endpoint) = endpoint else {
        config.changed("without `traces_endpoint` no spans are sent; the plugin is left out");
        return Translation::Nothing;
    };
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("http", &endpoint));
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    if !path.is_empty() && path != TRACES && path != "/" {
        config.changed("spans are sent to the path `/v1/traces` of the collector");
    }
    let mut collector = Map::new();
    let address = if scheme == "https" { format!("https://{authority}") } else { authority.to_owned() };
    collector.insert("address".to_owned(), address.into());
    let texts = |object: Option<Object>| -> Map<String, Json> {
        let all = object.map_or_else(Vec::new, |object| object.all());
        all.into_iter().filter_map(|(name, field)| Some((name, cx.vaults.text(&field)?.into()))).collect()
    };
    let headers = texts(headers);
    if !headers.is_empty() {
        collector.insert("request_headers".to_owned(), headers.into());
    }
    let mut metadata = Map::new();
    metadata.insert("collector".to_owned(), collector.into());
    let mut resource = json!({"service.name": "kong"});
    for (name, value) in texts(attributes) {
        resource[name] = value;
    }
    metadata.insert("resource".to_owned(), resource);
    let mut all = cx.metadata.borrow_mut();
    if all.get("opentelemetry").is_some_and(|known| *known != metadata) {
        config.changed("all spans go to one collector here: that of the first plugin in the file");
    }
    all.entry("opentelemetry").or_insert(metadata);
    // The share of kong.conf.
    const RATIO: f64 = 0.01;
    if ratio.is_none() {
        config.changed(
            "without `sampling_rate` Kong samples the share that kong.conf says; here it is its default, 0.01",
        );
    }
    let root = json!({"name": "trace_id_ratio", "options": {"fraction": ratio.unwrap_or(RATIO)}});
    Translation::Observer(vec![(
        "opentelemetry",
        json!({"sampler": {"name": "parent_base", "options": {"root": root}}}),
    )])
}

/// What neither of the two can take over: `important` keys are losses, the others have no counterpart.
fn other_keys(config: &Object, important: &[&str], others: &[&str]) {
    for key in important {
        config.lost(key, "spans do not have this here");
    }
    config.skip(others);
    config.skip(&["connect_timeout", "send_timeout", "read_timeout"]);
    // Read for its type only: timeouts of collectors are fixed.
    let _ = seconds(config.field("read_timeout"), 5000.0, 3600);
    if config.has("queue") {
        config.lost("queue", "spans are sent in batches of another size (docs/plugins/opentelemetry.md)");
    }
    if config.has("propagation") {
        config.lost("propagation", "trace ids are read and written in one form");
    }
}
