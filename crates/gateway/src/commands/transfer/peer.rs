//! Whether the server at an address is an Admin API, and what is said and advised where it is not.
//!
//! Any web server answers any path with something, often with 200. So each answer has to have the form that the Admin API gives
//! it, before a command says that it has read or changed anything.

use super::TransferFailure;
use super::remote::Remote;
use crate::admin::profiling::OFF;
use bytes::Bytes;
use hyper::header::SERVER;
use hyper::{Response, StatusCode};
use serde_json::Value as Json;
use stillgate_config::ResourceKind;

/// Characters of an answer that a message shows.
const SHOWN_CHARS_MAX: usize = 80;

/// Lists that every APISIX has; the others came with later versions.
const ALWAYS_THERE: [ResourceKind; 5] = [
    ResourceKind::Routes,
    ResourceKind::Services,
    ResourceKind::Upstreams,
    ResourceKind::Consumers,
    ResourceKind::GlobalRules,
];

/// Whether a 404 is the answer of an Admin API that has no such list, or nothing in it.
pub(super) fn is_empty_list(kind: ResourceKind, answer: &Response<Bytes>) -> bool {
    // What APISIX says of a list that is not in its etcd.
    !ALWAYS_THERE.contains(&kind) || json_of(answer)["message"] == "Key not found"
}

/// The items of a page of a list; `None`: the answer is not a page.
pub(super) fn page(answer: &Response<Bytes>) -> Option<Vec<Json>> {
    let mut page = json_of(answer);
    page["total"].as_u64()?;
    match page.get_mut("list")?.take() {
        Json::Array(items) => Some(items),
        // Lua does not distinguish an empty list from an empty object.
        Json::Object(fields) if fields.is_empty() => Some(Vec::new()),
        _ => None,
    }
}

/// Everything in one answer; `None`: it is not that.
pub(super) fn whole(answer: &Response<Bytes>) -> Option<Json> {
    let whole = json_of(answer);
    let has_versions = whole.as_object()?.keys().any(|key| key.ends_with("_conf_version"));
    has_versions.then_some(whole)
}

/// Whether this is what a batch of so many operations is answered with.
pub(super) fn is_batch(body: &Json, operations: usize) -> bool {
    let count = |name: &str| body[name].as_array().map(Vec::len);
    match body["dry_run"] == true {
        true => count("changes").is_some(),
        false => body["revision"].is_u64() && count("results") == Some(operations),
    }
}

/// The reason that the Admin API gives in an answer that reports a failure.
pub(super) fn reason(answer: &Response<Bytes>) -> Option<String> {
    let said = json_of(answer);
    ["description", "error_msg", "message"].iter().find_map(|name| said[*name].as_str()).map(str::to_owned)
}

/// Whether this is the gateway's answer where profiles are switched off.
pub(super) fn are_profiles_off(answer: &Response<Bytes>) -> bool {
    reason(answer).is_some_and(|said| said == OFF)
}

/// The failure for an answer that does not come from an Admin API. `asked`: the request, with its method.
pub(super) fn stranger(remote: &Remote, asked: &str, answer: &Response<Bytes>) -> TransferFailure {
    let server = answer.headers().get(SERVER).and_then(|server| server.to_str().ok());
    let server = server.map_or(String::new(), |server| format!(" by {}", shown(server)));
    let body = shown(&String::from_utf8_lossy(answer.body()));
    let body = if body.is_empty() { String::new() } else { format!(" ({body})") };
    let option = remote.option;
    let remedy = match remote.has_path {
        true => format!("leave the path out of {option}"),
        false => format!("name the address of gateway.admin with {option}"),
    };
    TransferFailure::Failed(format!(
        "{}: this is not the Admin API: {asked} was answered {}{server}{body}; {remedy}",
        remote.base,
        status(answer.status()),
    ))
}

/// A status, with its reason if it has one.
pub(super) fn status(status: StatusCode) -> String {
    match status.canonical_reason() {
        Some(reason) => format!("{} {reason}", status.as_u16()),
        None => status.as_u16().to_string(),
    }
}

/// Text of an unknown server: its beginning, on one line.
pub(super) fn shown(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let one_line = words.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c });
    let mut shown: String = one_line.clone().take(SHOWN_CHARS_MAX).collect();
    if one_line.count() > SHOWN_CHARS_MAX {
        shown.push('…');
    }
    shown
}

fn json_of(answer: &Response<Bytes>) -> Json {
    serde_json::from_slice(answer.body()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer(status: u16, body: &str) -> Response<Bytes> {
        Response::builder().status(status).body(Bytes::from(body.to_owned())).unwrap()
    }

    #[test]
    fn only_the_forms_of_the_admin_api_are_taken() {
        let items = |body: &str| page(&answer(200, body)).map(|items| items.len());
        assert_eq!(items(r#"{"total":1,"list":[{}]}"#), Some(1));
        assert_eq!(items(r#"{"total":0,"list":{}}"#), Some(0));
        for other in ["", "<html>", "{}", "[]", r#"{"list":[]}"#, r#"{"total":0}"#, r#"{"total":1,"list":{"a":1}}"#] {
            assert_eq!(items(other), None, "{other}");
        }
        assert!(whole(&answer(200, r#"{"routes_conf_version":0}"#)).is_some());
        for other in ["", "ok", "{}", "[]", r#"{"routes":[]}"#] {
            assert!(whole(&answer(200, other)).is_none(), "{other}");
        }
        assert!(is_batch(&json!({"revision": 7, "results": [{}, {}]}), 2));
        assert!(is_batch(&json!({"dry_run": true, "changes": []}), 2));
        assert!(!is_batch(&json!({"revision": 7, "results": [{}]}), 2));
        assert!(!is_batch(&json!({}), 0));
    }

    #[test]
    fn a_404_is_an_empty_list_where_an_older_apisix_has_none() {
        let (of_etcd, of_traffic) = (r#"{"message":"Key not found"}"#, r#"{"error_msg":"404 Route Not Found"}"#);
        assert!(is_empty_list(ResourceKind::Routes, &answer(404, of_etcd)));
        assert!(!is_empty_list(ResourceKind::Routes, &answer(404, of_traffic)));
        assert!(is_empty_list(ResourceKind::ConsumerGroups, &answer(404, "")));
    }

    #[test]
    fn what_is_shown_of_an_answer_is_short_and_on_one_line() {
        assert_eq!(shown(" <html>\r\n  <b>no\u{1b}[2J</b>"), "<html> <b>no\u{fffd}[2J</b>");
        assert_eq!(shown(&"x".repeat(200)).chars().count(), SHOWN_CHARS_MAX + 1);
    }
}
