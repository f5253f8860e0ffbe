//! Envoy's part of the plugin bench: a listener for each case, since a filter that a route switches off is not free.
//!
//! The key is one exact match of `rbac`, which names no consumer: the cheapest form there is.

use super::super::peers::Protocol;
use super::super::peers::envoy::{self, EXTENSIONS};
use super::cases::{
    CORS, Case, Endpoint, Feature, KEY_HEADER, LIMIT, ORIGIN, PATH_PATTERN, PATH_PREFIX, PATH_REWRITTEN, REQUEST_FIELD,
    RESPONSE_FIELD, used_key,
};
use crate::Result;
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// Writes the configuration; the command that runs it.
pub(super) fn configure(
    binary: &Path,
    dir: &Path,
    endpoints: &[Endpoint],
    upstream: SocketAddr,
) -> Result<Vec<String>> {
    let listeners: Vec<Value> = endpoints
        .iter()
        .map(|Endpoint { case, address }| {
            let filters = case.features.iter().filter_map(|&feature| filter(feature)).collect();
            envoy::listener(*address, &route(case), filters)
        })
        .collect();
    let config = dir.join("envoy.json");
    fs::write(&config, envoy::config(&listeners, upstream, Protocol::Http1).to_string())?;
    Ok(envoy::command(binary, &config))
}

/// The HTTP filter of a feature that has one.
fn filter(feature: Feature) -> Option<Value> {
    let (name, mut typed) = match feature {
        Feature::KeyAuth => {
            let exact = json!({ "name": KEY_HEADER, "string_match": { "exact": used_key() } });
            let policy = json!({ "permissions": [{ "any": true }], "principals": [{ "header": exact }] });
            ("rbac.v3.RBAC", json!({ "rules": { "action": "ALLOW", "policies": { "key": policy } } }))
        }
        Feature::LimitCount => {
            let always = |key: &str| json!({ "runtime_key": key, "default_value": { "numerator": 100 } });
            let bucket = json!({ "max_tokens": LIMIT, "tokens_per_fill": LIMIT, "fill_interval": "1s" });
            let typed = json!({
                "stat_prefix": "limit", "token_bucket": bucket,
                "filter_enabled": always("limit_enabled"), "filter_enforced": always("limit_enforced"),
            });
            ("local_ratelimit.v3.LocalRateLimit", typed)
        }
        Feature::Cors => ("cors.v3.Cors", json!({})),
        Feature::FixedPath | Feature::RegexPath | Feature::ResponseRewrite => return None,
    };
    typed["@type"] = json!(format!("{EXTENSIONS}.filters.http.{name}"));
    let short = name.split('.').next().unwrap_or_default();
    Some(json!({ "name": format!("envoy.filters.http.{short}"), "typed_config": typed }))
}

fn route(case: &Case) -> Value {
    let mut route = json!({ "match": { "path": case.path }, "route": { "cluster": "u" } });
    for feature in case.features {
        match feature {
            Feature::KeyAuth | Feature::LimitCount => {}
            Feature::Cors => {
                let [(_, methods), (_, headers), (_, age)] = CORS;
                let policy = json!({
                    "@type": format!("{EXTENSIONS}.filters.http.cors.v3.CorsPolicy"),
                    "allow_origin_string_match": [{ "exact": ORIGIN }],
                    "allow_methods": methods, "allow_headers": headers, "max_age": age,
                });
                route["typed_per_filter_config"] = json!({ "envoy.filters.http.cors": policy });
            }
            Feature::FixedPath => {
                // A path is its own prefix.
                route["route"]["prefix_rewrite"] = json!(PATH_REWRITTEN);
                route["request_headers_to_add"] = json!([set(REQUEST_FIELD)]);
            }
            Feature::RegexPath => {
                let substitution = format!("{PATH_PREFIX}\\1");
                route["route"]["regex_rewrite"] =
                    json!({ "pattern": { "regex": PATH_PATTERN }, "substitution": substitution });
                route["request_headers_to_add"] = json!([set(REQUEST_FIELD)]);
            }
            Feature::ResponseRewrite => route["response_headers_to_add"] = json!([set(RESPONSE_FIELD)]),
        }
    }
    route
}

fn set((name, value): (&str, &str)) -> Value {
    json!({ "header": { "key": name, "value": value }, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD" })
}
