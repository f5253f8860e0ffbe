//! `request-transformer` and `response-transformer`: header fields, the method and the path. Bodies and arguments of
//! the query stay as they are.

use super::header_edits::{Of, header_edits, plain};
use super::translation::{Translation, TranslationContext, without_variables};
use crate::kong_file::Plugin;
use crate::object::{Field, Object};
use serde_json::{Value as Json, json};

/// Changes of requests.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rewrite {
    pub(crate) method: Option<String>,
    /// What is made of the request's header fields.
    open: NodeRequest,
    /// What is made of it on routes that authenticate, where [`IDENTITY_FIELDS`] of the client do not count.
    behind_auth: NodeRequest,
}

/// What nodes get in place of a part of the request.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeRequest {
    /// The path for the node, which replaces that of the route.
    pub(crate) uri: Option<String>,
    /// `headers` of `proxy-rewrite`.
    pub(crate) headers: Option<Json>,
}

impl Rewrite {
    pub(crate) fn node_request(&self, is_authenticated: bool) -> &NodeRequest {
        if is_authenticated { &self.behind_auth } else { &self.open }
    }
}

/// Fields in which Kong tells nodes who the consumer is, and that no authentication here sets or removes. A client
/// could write what it likes into them.
pub(crate) const IDENTITY_FIELDS: [&str; 3] = ["X-Consumer-ID", "X-Anonymous-Consumer", "X-Consumer-Groups"];

const STEPS: [&str; 5] = ["remove", "rename", "replace", "add", "append"];
const METHODS: [&str; 14] = [
    "GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "MKCOL", "COPY", "MOVE", "PROPFIND", "LOCK", "UNLOCK", "PATCH",
    "TRACE",
];

pub(super) fn request_transformer(plugin: &Plugin, _: &TranslationContext<'_>) -> Translation {
    let config = &plugin.config;
    let method = config.text("http_method").map(|method| method.to_uppercase());
    let method = method.filter(|method| {
        let is_known = METHODS.contains(&&**method);
        if !is_known {
            config.lost("http_method", "the method cannot be set here; it stays as it is");
        }
        is_known
    });
    let replace = config.object("replace");
    let uri = replace.and_then(|replace| replace.field("uri"));
    let derived = |cleared: &[&str]| {
        let value = |field: &Field, text: &str| template(field, text, cleared);
        let uri = uri.as_ref().and_then(|field| value(field, &field.text()?));
        NodeRequest { uri, headers: header_edits(config, Of::Request, cleared, value) }
    };
    let (open, behind_auth) = (derived(&[]), derived(&IDENTITY_FIELDS));
    for step in STEPS {
        let Some(object) = config.object(step) else { continue };
        object.skip(&["headers", "uri"]);
        lost_list(&object, "body", "bodies are not changed here; see `body-transformer`");
        lost_list(
            &object,
            "querystring",
            "arguments of the query are not changed here; a function in Lua can (docs/lua.md)",
        );
        object.finish();
    }
    Translation::Rewrite(Rewrite { method, open, behind_auth })
}

pub(super) fn response_transformer(plugin: &Plugin, _: &TranslationContext<'_>) -> Translation {
    let config = &plugin.config;
    let headers = header_edits(config, Of::Response, &[], plain);
    for step in STEPS {
        let Some(object) = config.object(step) else { continue };
        object.skip(&["headers", "json_types"]);
        lost_list(&object, "json", "JSON in bodies is not changed here; see `body-transformer`");
        object.finish();
    }
    match headers {
        Some(headers) => Translation::Plain(vec![("response-rewrite", json!({"headers": headers}))]),
        None => Translation::Nothing,
    }
}

fn lost_list(object: &Object, key: &str, message: &str) {
    if !object.items(key).is_empty() {
        object.lost(key, message);
    }
}

/// A text with Kong's `$(headers.x)` and the like, as one with variables. `None`, with a loss, if it has others, or a
/// field that is `cleared`.
fn template(field: &Field, text: &str, cleared: &[&str]) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(begin) = rest.find("$(") {
        out.push_str(&without_variables(&rest[..begin]));
        let inner = &rest[begin + 2..];
        let end = inner.find(')');
        let variable = end.and_then(|end| variable(inner[..end].trim()));
        let (Some(end), Some(variable)) = (end, variable) else {
            field.lost("the template has an expression that does not exist here; it is left out, and a function in Lua can take its place (docs/lua.md)");
            return None;
        };
        let is_it = |name: &&str| variable == format!("http_{}", name.to_lowercase().replace('-', "_"));
        if cleared.iter().any(is_it) {
            field.lost("on routes that authenticate, the template reads a header field that is set later here, or not at all; it is left out there");
            return None;
        }
        out.push_str(&format!("${{{variable}}}"));
        rest = &inner[end + 1..];
    }
    out.push_str(&without_variables(rest));
    Some(out)
}

fn variable(expression: &str) -> Option<String> {
    let (table, key) = match expression.split_once('[') {
        Some((table, key)) => (table, key.strip_suffix(']')?.trim_matches(['"', '\''])),
        None => expression.split_once('.')?,
    };
    let is_name = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    let is_number = key.bytes().all(|byte| byte.is_ascii_digit());
    match table.trim() {
        _ if !is_name || is_number => None,
        "headers" => Some(format!("http_{}", key.to_lowercase().replace('-', "_"))),
        "query_params" if !key.contains('-') => Some(format!("arg_{key}")),
        "uri_captures" if !key.contains('-') => Some(format!("uri_param_{key}")),
        _ => None,
    }
}
