//! `cors`. Here the plugin answers every request with OPTIONS, in Kong only preflight requests: a filter says so.

use super::translation::{Translation, TranslationContext};
use crate::environment::is_marked;
use crate::expression::regex_problem;
use crate::kong_file::Plugin;
use crate::object::Object;
use serde_json::{Map, Value as Json, json};

const METHODS: &str = "GET,HEAD,PUT,PATCH,POST,DELETE,OPTIONS,TRACE,CONNECT";

pub(super) fn cors(plugin: &Plugin, _: &TranslationContext<'_>) -> Translation {
    let config = &plugin.config;
    let has_credentials = config.flag("credentials").unwrap_or(false);
    let mut keys = Map::new();
    origins(config, has_credentials, &mut keys);
    let methods = config.texts("methods");
    let methods = if methods.is_empty() { METHODS.to_owned() } else { methods.join(",") };
    keys.insert("allow_methods".to_owned(), methods.into());
    let headers = config.texts("headers");
    // Without names Kong repeats those that the preflight asks for.
    let headers =
        if headers.is_empty() || headers.iter().any(|name| name == "*") { "**".to_owned() } else { headers.join(",") };
    keys.insert("allow_headers".to_owned(), headers.into());
    let exposed = config.texts("exposed_headers");
    if has_credentials && exposed.iter().any(|name| name == "*") {
        config.lost("exposed_headers", "`*` has no meaning for browsers that send credentials; name the fields");
    } else if !exposed.is_empty() {
        keys.insert("expose_headers".to_owned(), exposed.join(",").into());
    }
    if has_credentials {
        keys.insert("allow_credential".to_owned(), true.into());
    }
    if let Some(age) = config.number("max_age") {
        keys.insert("max_age".to_owned(), (age as i64).into());
    }
    config.lost_if_set("preflight_continue", "preflight requests are answered here, and never reach a node");
    config.lost_if_set("private_network", "`Access-Control-Allow-Private-Network` is not sent");
    if config.flag("allow_origin_absent") == Some(false) {
        config.lost("allow_origin_absent", "responses to requests without `Origin` get the fields, too");
    }
    let filter = json!([
        "OR",
        ["request_method", "~=", "OPTIONS"],
        ["AND", ["http_origin", "~~", "."], ["http_access_control_request_method", "~~", "."]],
    ]);
    keys.insert("_meta".to_owned(), json!({"filter": filter}));
    Translation::Plain(vec![("cors", keys.into())])
}

/// Kong takes an origin for a regex if it has other characters than names and ports have.
fn origins(config: &Object, has_credentials: bool, keys: &mut Map<String, Json>) {
    let fields = config.items("origins");
    let texts: Vec<String> = fields.iter().filter_map(|field| field.text()).collect();
    let is_regex = |text: &str| {
        !is_marked(text) && !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".:/-".contains(&byte))
    };
    if texts.is_empty() || texts.iter().any(|text| text == "*") {
        // Kong repeats the request's origin where credentials are allowed.
        keys.insert("allow_origins".to_owned(), if has_credentials { "**" } else { "*" }.into());
    } else if texts.iter().any(|text| is_regex(text)) {
        let mut regexes = Vec::new();
        for (field, text) in fields.iter().zip(&texts) {
            if is_marked(text) {
                field.lost("beside regexes, an origin cannot come from a variable; it is not allowed");
                continue;
            }
            let regex = match is_regex(text) {
                false => format!("^{}$", regex_syntax::escape(text)),
                true => {
                    let inner = text.strip_prefix('^').unwrap_or(text);
                    let inner = inner.strip_suffix('$').unwrap_or(inner);
                    match text.contains(':') {
                        true => format!("^(?:{inner})$"),
                        // Without a colon Kong compares the host only.
                        false => format!("^[a-z]+://(?:{inner})(?::[0-9]+)?$"),
                    }
                }
            };
            match regex_problem(&regex) {
                None => regexes.push(regex),
                Some(problem) => {
                    field.lost(&format!("the regex cannot be used here ({problem}); its origins are not allowed"))
                }
            }
        }
        if regexes.is_empty() {
            regexes.push("^$".to_owned());
        }
        keys.insert("allow_origins_by_regex".to_owned(), regexes.into());
    } else {
        keys.insert("allow_origins".to_owned(), texts.join(",").into());
    }
}
