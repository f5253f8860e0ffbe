//! The places in documents that name other documents: one table, which determines what must exist for a write and what a deletion
//! would break.
//!
//! References that APISIX does not check are included: a gateway rejects a resource that names a missing one, also if it was not written here. A
//! list of ids that a plugin compares, as in `consumer-restriction`, is not a reference.

use super::references::text_of;
use serde_json::Value as Json;

/// A kind of reference.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    /// Collections whose documents contain it.
    pub(crate) users: &'static [&'static str],
    place: ReferenceLocation,
    /// The collection of the named document.
    pub(crate) target: &'static str,
    /// APISIX's term for the named document.
    pub(crate) kind: &'static str,
    /// Whether a write that names a missing document is refused here. The gateway refuses the others itself, with a better message,
    /// when it compiles the document.
    pub(crate) is_required: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum ReferenceLocation {
    /// Keys from the document down, separated by dots; `*` matches each item of a list and each key of a map.
    At(&'static str),
    /// Any text with this prefix, in any case. The id of two segments follows: `vault/1`.
    TextsWith(&'static str),
}

/// Collections whose documents have `plugins` with configurations for routes.
const WITH_PLUGINS: &[&str] =
    &["routes", "services", "stream_routes", "plugin_configs", "consumers", "consumer_groups", "global_rules"];

/// Collections whose documents may contain an inline upstream.
const WITH_UPSTREAM: &[&str] = &["routes", "services", "stream_routes"];

const ANY_BUT_SECRETS: &[&str] = &[
    "routes",
    "services",
    "stream_routes",
    "plugin_configs",
    "consumers",
    "consumer_groups",
    "global_rules",
    "upstreams",
    "ssls",
    "plugin_metadata",
    "protos",
];

const fn reference_at(
    users: &'static [&'static str],
    path: &'static str,
    (target, kind): (&'static str, &'static str),
    is_required: bool,
) -> Reference {
    Reference { users, place: ReferenceLocation::At(path), target, kind, is_required }
}

const UPSTREAM: (&str, &str) = ("upstreams", "upstream");
const SERVICE: (&str, &str) = ("services", "service");
const SSL: (&str, &str) = ("ssls", "ssl");
const CONSUMER: (&str, &str) = ("consumers", "consumer");

static REFERENCES: [Reference; 14] = [
    reference_at(WITH_UPSTREAM, "upstream_id", UPSTREAM, true),
    reference_at(&["routes", "stream_routes"], "service_id", SERVICE, true),
    reference_at(&["routes"], "plugin_config_id", ("plugin_configs", "plugin config"), true),
    reference_at(&["consumers"], "group_id", ("consumer_groups", "consumer group"), true),
    reference_at(&["stream_routes"], "protocol.superior_id", ("stream_routes", "stream route"), true),
    reference_at(WITH_PLUGINS, "plugins.traffic-split.rules.*.weighted_upstreams.*.upstream_id", UPSTREAM, false),
    reference_at(WITH_PLUGINS, "plugins.device-gateway.upstream_id", UPSTREAM, false),
    reference_at(WITH_PLUGINS, "plugins.grpc-transcode.proto_id", ("protos", "proto"), false),
    reference_at(&["upstreams"], "tls.client_cert_id", SSL, true),
    reference_at(WITH_UPSTREAM, "upstream.tls.client_cert_id", SSL, true),
    reference_at(
        WITH_PLUGINS,
        "plugins.traffic-split.rules.*.weighted_upstreams.*.upstream.tls.client_cert_id",
        SSL,
        true,
    ),
    reference_at(WITH_PLUGINS, "plugins.*.anonymous_consumer", CONSUMER, true),
    reference_at(WITH_PLUGINS, "plugins.multi-auth.auth_plugins.*.*.anonymous_consumer", CONSUMER, true),
    Reference {
        users: ANY_BUT_SECRETS,
        place: ReferenceLocation::TextsWith("$secret://"),
        target: "secrets",
        kind: "secret",
        is_required: false,
    },
];

/// Calls `found` with each reference of a document and the id that it names.
pub(crate) fn each(collection: &str, document: &Json, found: &mut dyn FnMut(&'static Reference, String)) {
    // Credentials are stored below their consumers.
    let collection = if collection == "credentials" { "consumers" } else { collection };
    for reference in REFERENCES.iter().filter(|reference| reference.users.contains(&collection)) {
        match reference.place {
            ReferenceLocation::At(path) => at_path(document, path, &mut |value| {
                if let Some(id) = text_of(value) {
                    found(reference, id);
                }
            }),
            ReferenceLocation::TextsWith(start) => each_text(document, &mut |text| {
                let is_one = text.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start));
                let id = is_one.then(|| first_two(&text[start.len()..])).flatten();
                if let Some(id) = id {
                    found(reference, id.to_owned());
                }
            }),
        }
    }
}

/// The collections whose documents may name one of this collection, in the order in which they are searched.
pub(crate) fn users_of(target: &str) -> Vec<&'static str> {
    let mut users = Vec::new();
    for reference in REFERENCES.iter().filter(|reference| reference.target == target) {
        users.extend(reference.users.iter().filter(|user| !users.contains(*user)).copied().collect::<Vec<_>>());
    }
    users
}

impl Reference {
    /// Whether it is in a plugin's configuration.
    pub(crate) fn is_of_plugin(&self) -> bool {
        matches!(self.place, ReferenceLocation::At(path) if path.starts_with("plugins."))
    }
}

fn at_path<'a>(value: &'a Json, path: &str, found: &mut dyn FnMut(&'a Json)) {
    let (step, rest) = path.split_once('.').map_or((path, None), |(step, rest)| (step, Some(rest)));
    let mut go_on = |value: &'a Json| match rest {
        Some(rest) => at_path(value, rest, found),
        None => found(value),
    };
    match (step, value) {
        ("*", Json::Array(items)) => items.iter().for_each(go_on),
        ("*", Json::Object(fields)) => fields.values().for_each(go_on),
        (step, Json::Object(fields)) => {
            if let Some(value) = fields.get(step) {
                go_on(value);
            }
        }
        _ => {}
    }
}

fn each_text<'a>(value: &'a Json, found: &mut dyn FnMut(&'a str)) {
    match value {
        Json::String(text) => found(text),
        Json::Array(items) => items.iter().for_each(|item| each_text(item, found)),
        Json::Object(fields) => fields.values().for_each(|field| each_text(field, found)),
        _ => {}
    }
}

/// `vault/1` of `vault/1/path/key`.
fn first_two(text: &str) -> Option<&str> {
    let (second, _) = text.match_indices('/').nth(1)?;
    Some(&text[..second])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(collection: &str, document: Json, expected: &[(&str, &str)]) {
        let mut all = Vec::new();
        each(collection, &document, &mut |reference, id| all.push((reference.target, id)));
        let all: Vec<(&str, &str)> = all.iter().map(|(target, id)| (*target, id.as_str())).collect();
        assert_eq!(all, expected, "{collection}: {document}");
    }

    #[test]
    fn references_are_found_where_they_are_written() {
        check(
            "routes",
            json!({ "upstream_id": 1, "service_id": "s", "group_id": "no" }),
            &[("upstreams", "1"), ("services", "s")],
        );
        check("upstreams", json!({ "tls": { "client_cert_id": 7.0 }, "upstream_id": "no" }), &[("ssls", "7")]);
        check("services", json!({ "upstream": { "tls": { "client_cert_id": "c" } } }), &[("ssls", "c")]);
        let split = json!([{ "weighted_upstreams": [
            { "upstream_id": "a" },
            { "weight": 1 },
            { "upstream": { "tls": { "client_cert_id": "c" } } },
        ] }, { "weighted_upstreams": [{ "upstream_id": "b" }] }]);
        check(
            "global_rules",
            json!({ "plugins": { "traffic-split": { "rules": split } } }),
            &[("upstreams", "a"), ("upstreams", "b"), ("ssls", "c")],
        );
        let several = json!([{ "key-auth": {} }, { "jwt-auth": { "anonymous_consumer": "x" } }]);
        let plugins = json!({ "hmac-auth": { "anonymous_consumer": "y" }, "multi-auth": { "auth_plugins": several } });
        check("plugin_configs", json!({ "plugins": plugins }), &[("consumers", "y"), ("consumers", "x")]);
        check(
            "credentials",
            json!({ "plugins": { "key-auth": { "key": "$SECRET://vault/1/a/b" } } }),
            &[("secrets", "vault/1")],
        );
        check(
            "ssls",
            json!({ "keys": ["$secret://vault/m/p/k", "$secret://vault", "$env://A/b/c"] }),
            &[("secrets", "vault/m")],
        );
        check("routes", json!({ "plugins": [], "upstream": "x", "upstream_id": ["1"] }), &[]);
    }

    #[test]
    fn users_are_searched_in_order_and_once() {
        assert_eq!(
            users_of("upstreams"),
            ["routes", "services", "stream_routes", "plugin_configs", "consumers", "consumer_groups", "global_rules"]
        );
        assert_eq!(users_of("ssls")[..3], ["upstreams", "routes", "services"]);
        assert!(users_of("routes").is_empty());
    }
}
