//! Plugins that answer in place of a node.

use super::translation::{Translation, TranslationContext, close, is_variable_name, without_variables};
use crate::kong_file::Plugin;
use serde_json::json;

/// Kong's texts for statuses without a message.
const MESSAGES: [(i64, &str); 7] = [
    (400, "Bad request"),
    (401, "Unauthorized"),
    (404, "Not found"),
    (405, "Method not allowed"),
    (500, "Internal server error"),
    (502, "Bad gateway"),
    (503, "Service unavailable"),
];

/// `request-termination` as `mocking`, behind limits and other guards as in Kong.
pub(super) fn request_termination(plugin: &Plugin, _: &TranslationContext<'_>) -> Translation {
    const PRIORITY: i64 = 2;
    const TYPES: [&str; 5] = ["application/json", "application/xml", "text/plain", "text/html", "text/xml"];
    let config = &plugin.config;
    let written = config.whole("status_code").unwrap_or(503);
    let status = if (200..600).contains(&written) { written } else { 503 };
    if status != written {
        config.lost("status_code", "a response cannot have this status here; it is 503");
    }
    let (body, content_type, message) = (config.text("body"), config.text("content_type"), config.text("message"));
    config.lost_if_set("echo", "the answer does not repeat the request here");
    let default = MESSAGES.iter().find(|(known, _)| *known == status).map(|(_, text)| (*text).to_owned());
    let (text, content_type) = match (body, message.or(default)) {
        (Some(body), _) => (body, content_type.unwrap_or_else(|| "text/plain".to_owned())),
        (None, Some(message)) => {
            (json!({"message": message}).to_string(), "application/json; charset=utf-8".to_owned())
        }
        (None, None) => ("\n".to_owned(), "text/plain".to_owned()),
    };
    let mut keys =
        json!({"response_status": status, "response_example": without_variables(&text), "with_mock_header": false});
    match TYPES.contains(&content_type.split(';').next().unwrap_or_default().trim()) {
        true => keys["content_type"] = content_type.into(),
        false => {
            config.lost("content_type", "the answer is text/plain here");
            keys["content_type"] = "text/plain".into();
        }
    }
    keys["_meta"] = json!({"priority": PRIORITY});
    if let Some(trigger) = config.text("trigger") {
        if !is_variable_name(&trigger) {
            return close(plugin, "no variable has the value of the header field that `trigger` names");
        }
        let header = format!("http_{}", trigger.to_lowercase().replace('-', "_"));
        keys["_meta"]["filter"] = json!(["OR", [header, "~~", ""], [format!("arg_{trigger}"), "~~", ""]]);
    }
    Translation::Plain(vec![("mocking", keys)])
}

pub(super) fn redirect(plugin: &Plugin, _: &TranslationContext<'_>) -> Translation {
    let config = &plugin.config;
    let status = config.whole("status_code").unwrap_or(301);
    if !(200..600).contains(&status) {
        config.lost("status_code", "a response cannot have this status here; it is 301");
    }
    let keeps_path = config.flag("keep_incoming_path").unwrap_or(false);
    let Some(location) = config.text("location") else {
        return close(plugin, "the redirection has no location");
    };
    let uri = match keeps_path {
        false => without_variables(&location),
        true => {
            let authority = location.find("://").map_or(0, |at| at + 3);
            let end = location[authority..].find(['/', '?', '#']).map_or(location.len(), |at| authority + at);
            format!("{}$request_uri", without_variables(&location[..end]))
        }
    };
    let status = if (200..600).contains(&status) { status } else { 301 };
    Translation::Plain(vec![("redirect", json!({"uri": uri, "ret_code": status}))])
}

pub(super) fn grpc_web(plugin: &Plugin, _: &TranslationContext<'_>) -> Translation {
    let config = &plugin.config;
    config.lost("proto", "JSON is not translated to gRPC here; gRPC-Web is");
    config.lost_if_set("pass_stripped_path", "the plugin leaves the path as the route makes it");
    if config.text("allow_origin_header").is_some_and(|origin| origin != "*") {
        config.lost(
            "allow_origin_header",
            "the plugin allows all origins here; add the plugin `cors` to the route for another one",
        );
    }
    Translation::Plain(vec![("grpc-web", json!({}))])
}
