//! Rules of APISIX's schemas that the gateway does not need: long names, labels with blanks, duplicate values in lists, hashing by
//! an unnamed header. If such a document were written here, an APISIX that reads it later would refuse it.
//!
//! Messages are APISIX's, which clients look for. Everything else is checked when documents are compiled.

use super::references::text_of;
use crate::collections::Collection;
use serde_json::Value as Json;
use std::collections::HashMap;
use std::net::Ipv6Addr;

/// The most characters of a name, a description or a label.
const TEXT_CHARS_MAX: usize = 256;

/// Times that only the server sets.
const TIMES: [&str; 2] = ["create_time", "update_time"];

/// Fields with the id of another document.
const REFERENCES: [&str; 5] = ["upstream_id", "service_id", "plugin_config_id", "group_id", "script_id"];

/// Lists of documents of any kind whose values must be unique.
const UNIQUE: [&[&str]; 6] =
    [&["uris"], &["hosts"], &["methods"], &["remote_addrs"], &["ssl_protocols"], &["client", "skip_mtls_uri_regex"]];

/// Lists of an upstream whose values must be unique.
const UNIQUE_OF_UPSTREAMS: [&[&str]; 4] = [
    &["checks", "active", "healthy", "http_statuses"],
    &["checks", "active", "unhealthy", "http_statuses"],
    &["checks", "passive", "healthy", "http_statuses"],
    &["checks", "passive", "unhealthy", "http_statuses"],
];

/// Lists in the configuration of a plugin whose values must be unique.
const UNIQUE_OF_PLUGINS: [(&str, &[&str]); 7] = [
    ("api-breaker", &["healthy", "http_statuses"]),
    ("api-breaker", &["unhealthy", "http_statuses"]),
    ("cors", &["allow_origins_by_regex"]),
    ("cors", &["allow_origins_by_metadata"]),
    ("cors", &["timing_allow_origins_by_regex"]),
    ("jwt-auth", &["claims_to_verify"]),
    ("uri-blocker", &["block_rules"]),
];

/// Whether a client sets no times in a document that it writes as a whole.
pub(crate) fn reject_times(document: &Json) -> Result<(), String> {
    for place in ["", "upstream", "plugins"] {
        let part = if place.is_empty() { Some(document) } else { document.get(place) };
        for time in TIMES {
            if part.and_then(|part| part.get(time)).is_some_and(|time| !time.is_null()) {
                let dot = if place.is_empty() { "" } else { "." };
                return Err(format!("the property is forbidden:  {place}{dot}{time}"));
            }
        }
    }
    Ok(())
}

/// Whether an id in a document is a number from 1 or a string; the string itself is checked with the whole id.
pub(crate) fn is_good_id(id: &Json) -> bool {
    match id {
        Json::Number(number) => number.as_f64().is_some_and(|number| number >= 1.0 && number.fract() == 0.0),
        id => id.is_string(),
    }
}

/// Validates a document; `Err`: its error.
pub(crate) fn check(collection: &Collection, document: &Json) -> Result<(), String> {
    if collection.name == "plugin_metadata" || collection.name == "secrets" {
        return Ok(());
    }
    for field in REFERENCES {
        let is_good = |id: &Json| is_good_id(id) && text_of(id).is_some_and(|id| super::address::is_id(&id));
        if document.get(field).is_some_and(|id| !id.is_null() && !is_good(id)) {
            return Err(of_property(field, "object matches none of the required"));
        }
    }
    check_texts(document)?;
    UNIQUE.iter().try_for_each(|path| check_unique_at(document, path))?;
    if collection.name == "upstreams" {
        lists_of_upstream(document).and_then(|()| check_upstream(document))?;
    } else if let Some(inner) = document.get("upstream") {
        check_texts(inner).and_then(|()| lists_of_upstream(inner)).map_err(|why| of_property("upstream", &why))?;
        check_upstream(inner)?;
    }
    check_plugins(document)
}

fn check_plugins(document: &Json) -> Result<(), String> {
    let of_plugin = |name: &str, why: &str| format!("failed to check the configuration of plugin {name} err: {why}");
    for (name, path) in UNIQUE_OF_PLUGINS {
        check_unique_at(&document["plugins"][name], path).map_err(|why| of_plugin(name, &why))?;
    }
    for split in super::references::split_upstreams(document) {
        if let Some(inner) = split.get("upstream") {
            let checked =
                check_texts(inner).and_then(|()| lists_of_upstream(inner)).and_then(|()| check_upstream(inner));
            checked.map_err(|why| of_plugin("traffic-split", &why))?;
        }
    }
    Ok(())
}

fn lists_of_upstream(upstream: &Json) -> Result<(), String> {
    UNIQUE_OF_UPSTREAMS.iter().try_for_each(|path| check_unique_at(upstream, path))
}

/// Checks that no schema expresses.
fn check_upstream(upstream: &Json) -> Result<(), String> {
    let nodes = upstream["nodes"].as_array().into_iter().flatten();
    if nodes.filter_map(|node| node["host"].as_str()).any(|host| host.parse::<Ipv6Addr>().is_ok()) {
        return Err("IPv6 address must be enclosed with '[' and ']'".to_owned());
    }
    let hash_on = upstream["hash_on"].as_str().unwrap_or("vars");
    if upstream["type"] != "chash" || hash_on == "consumer" {
        return Ok(());
    }
    match &upstream["key"] {
        Json::Null => Err("missing key".to_owned()),
        Json::String(key) if matches!(hash_on, "header" | "cookie") => {
            let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            match !key.is_empty() && key.bytes().all(is_good) {
                true => Ok(()),
                false => Err(format!("failed to match pattern \"^[a-zA-Z0-9-_]+$\" with \"{key}\"")),
            }
        }
        _ => Ok(()),
    }
}

/// The fields that describe a document.
fn check_texts(document: &Json) -> Result<(), String> {
    for (field, chars_min) in [("name", 1), ("desc", 0), ("service_name", 1)] {
        if let Some(text) = document[field].as_str() {
            check_length(text, chars_min).map_err(|why| of_property(field, &why))?;
        }
    }
    for (name, value) in document["labels"].as_object().into_iter().flatten() {
        let Some(value) = value.as_str() else { continue };
        let is_in_one_piece = !value.contains(|c: char| c.is_ascii_whitespace() || c == '\u{b}');
        let checked = check_length(value, 1).and_then(|()| match is_in_one_piece {
            true => Ok(()),
            false => Err(format!("failed to match pattern \"^\\S+$\" with \"{value}\"")),
        });
        checked.map_err(|why| of_property("labels", &format!("failed to validate {name} (matching \".*\"): {why}")))?;
    }
    Ok(())
}

fn check_length(text: &str, chars_min: usize) -> Result<(), String> {
    match text.chars().count() {
        got if got > TEXT_CHARS_MAX => Err(format!("string too long, expected at most {TEXT_CHARS_MAX}, got {got}")),
        got if got < chars_min => Err(format!("string too short, expected at least {chars_min}, got {got}")),
        _ => Ok(()),
    }
}

/// Whether the list at a path has no duplicates.
fn check_unique_at(document: &Json, path: &[&str]) -> Result<(), String> {
    let Some((field, rest)) = path.split_first() else { return check_unique_items(document) };
    match document.get(field) {
        Some(value) => check_unique_at(value, rest).map_err(|why| of_property(field, &why)),
        None => Ok(()),
    }
}

fn check_unique_items(list: &Json) -> Result<(), String> {
    let mut places = HashMap::new();
    for (index, item) in list.as_array().into_iter().flatten().enumerate() {
        if let Some(first) = places.insert(item.to_string(), index) {
            return Err(format!("expected unique items but items {} and {} are equal", first + 1, index + 1));
        }
    }
    Ok(())
}

fn of_property(name: &str, why: &str) -> String {
    format!("property \"{name}\" validation failed: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn wrong(collection: &str, document: Json) -> String {
        let collection = crate::collections::Collection::named(collection).unwrap();
        check(collection, &document).expect_err(&document.to_string())
    }

    fn good(collection: &str, document: Json) {
        let collection = crate::collections::Collection::named(collection).unwrap();
        assert_eq!(check(collection, &document), Ok(()), "{document}");
    }

    #[test]
    fn texts_are_short() {
        let long = "é".repeat(257);
        for collection in ["routes", "services", "upstreams", "consumers", "ssls", "stream_routes", "plugin_configs"] {
            let too_long = "property \"name\" validation failed: string too long, expected at most 256, got 257";
            assert_eq!(wrong(collection, json!({ "name": long })), too_long);
            good(collection, json!({ "name": "é".repeat(256), "desc": "", "labels": {"a b": "c"} }));
        }
        assert_eq!(
            wrong("routes", json!({"labels": {"env": "a b"}})),
            "property \"labels\" validation failed: failed to validate env (matching \".*\"): failed to match pattern \
             \"^\\S+$\" with \"a b\""
        );
        let empty = wrong("routes", json!({"upstream": {"name": ""}}));
        let expected = "property \"upstream\" validation failed: property \"name\" validation failed: string too short, \
                        expected at least 1, got 0";
        assert_eq!(empty, expected);
    }

    #[test]
    fn lists_have_each_value_once() {
        let twice = "expected unique items but items 1 and 3 are equal";
        let of = |field: &str| format!("property \"{field}\" validation failed: {twice}");
        assert_eq!(wrong("routes", json!({"uris": ["/a", "/b", "/a"]})), of("uris"));
        assert_eq!(wrong("services", json!({"hosts": ["a", "b", "a"]})), of("hosts"));
        assert!(
            wrong("upstreams", json!({"checks": {"active": {"healthy": {"http_statuses": [1, 2, 1]}}}}))
                .ends_with(twice)
        );
        assert_eq!(
            wrong("global_rules", json!({"plugins": {"uri-blocker": {"block_rules": ["a", "b", "a"]}}})),
            format!("failed to check the configuration of plugin uri-blocker err: {}", of("block_rules"))
        );
        good("ssls", json!({"snis": ["a", "a"], "ssl_protocols": ["TLSv1.2", "TLSv1.3"]}));
    }

    #[test]
    fn hashing_names_its_key() {
        for hash_on in ["vars", "header", "cookie", "vars_combinations"] {
            assert_eq!(wrong("upstreams", json!({"type": "chash", "hash_on": hash_on})), "missing key");
        }
        let inner = json!({"upstream": {"type": "chash", "hash_on": "header", "key": "a b"}});
        assert!(wrong("routes", inner).contains("failed to match pattern \"^[a-zA-Z0-9-_]+$\" with \"a b\""));
        good("upstreams", json!({"type": "chash", "hash_on": "header", "key": "X-Tenant"}));
        good("upstreams", json!({"type": "chash", "hash_on": "consumer"}));
        good("upstreams", json!({"type": "roundrobin", "hash_on": "header"}));
    }

    #[test]
    fn addresses_of_version_6_have_brackets() {
        let nodes = |host: &str| json!({"nodes": [{"host": host, "port": 80, "weight": 1}]});
        assert_eq!(wrong("upstreams", nodes("::1")), "IPv6 address must be enclosed with '[' and ']'");
        let split = json!({"rules": [{"weighted_upstreams": [{"upstream": nodes("::1")}]}]});
        assert!(wrong("routes", json!({"plugins": {"traffic-split": split}})).ends_with("enclosed with '[' and ']'"));
        good("upstreams", nodes("[::1]"));
        good("upstreams", nodes("127.0.0.1"));
    }

    #[test]
    fn ids_of_others_are_ids() {
        for id in [json!(0), json!(-1), json!(1.5), json!("a b"), json!("a/b"), json!(""), json!([1])] {
            let why = wrong("routes", json!({ "upstream_id": id }));
            assert_eq!(why, "property \"upstream_id\" validation failed: object matches none of the required");
        }
        good("routes", json!({"upstream_id": 1, "service_id": "a.b-c_d", "plugin_config_id": null}));
    }

    #[test]
    fn times_are_the_servers() {
        let no = |document: Json| reject_times(&document).unwrap_err();
        assert_eq!(no(json!({"create_time": 1})), "the property is forbidden:  create_time");
        assert_eq!(no(json!({"upstream": {"update_time": 1}})), "the property is forbidden:  upstream.update_time");
        assert_eq!(no(json!({"plugins": {"create_time": {}}})), "the property is forbidden:  plugins.create_time");
        assert_eq!(reject_times(&json!({"uri": "/", "upstream": {}})), Ok(()));
    }
}
