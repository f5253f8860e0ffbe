//! The view of the request and of the response's head for functions in `body_filter`: a copy from the moment when the
//! head was final.
//!
//! Bodies are filtered after the request's state is gone, so this is a copy. It has all of both heads, and the
//! variables whose names are in the functions' text: copying all would cost each request more than its functions do.

use super::hosts::{consumer_of, document_of, metadata_of, pattern_of};
use super::variables;
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use stillgate_lua::{MessageSide, RequestDocument};
use stillgate_plugin_api::facts::Documents;
use stillgate_plugin_api::{MetadataTable, Response};
use stillgate_route::{Lookup, Variable};

/// Variables that functions of the API use, whatever the text says.
const ALWAYS: [&str; 14] = [
    "uri",
    "host",
    "scheme",
    "request_method",
    "request_uri",
    "server_port",
    "server_protocol",
    "remote_addr",
    "remote_port",
    "realip_remote_addr",
    "upstream_status",
    "route_id",
    "service_id",
    "consumer_name",
];
/// Most variables of one text; the others raise an error that says so.
const NAMES_MAX: usize = 128;

/// The variables that a text needs.
pub(super) struct Wishes {
    /// Sorted.
    names: Box<[(Box<str>, Variable)]>,
    wants_claims: bool,
    wants_metadata: bool,
}

impl Wishes {
    /// The variables that a text names: `var.NAME`, `var["NAME"]`, `curr_req_matched.NAME`.
    pub(super) fn of(texts: &[&str]) -> Wishes {
        let mut names: BTreeSet<String> = ALWAYS.iter().map(ToString::to_string).collect();
        for text in texts {
            each_name(text, "var", &mut |name| _ = names.insert(name.to_owned()));
            each_name(text, "curr_req_matched", &mut |name| _ = names.insert(format!("uri_param_{name}")));
        }
        // `ngx.var.arg_NAME` is read from the query.
        if names.iter().any(|name| name.get(..4).is_some_and(|prefix| prefix.eq_ignore_ascii_case("arg_"))) {
            names.insert("args".to_owned());
        }
        let parsed = names.into_iter().filter_map(|name| Some((name.as_str().into(), variables::parse(&name)?)));
        let names_any = |word: &str| texts.iter().any(|text| text.contains(word));
        let (wants_claims, wants_metadata) = (names_any("jwt_auth_payload"), names_any("plugin_metadata"));
        Wishes { names: parsed.take(NAMES_MAX).collect(), wants_claims, wants_metadata }
    }
}

/// Calls `visit` with each name after `table.`, and in `table["…"]`.
fn each_name<'t>(text: &'t str, table: &str, visit: &mut dyn FnMut(&'t str)) {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for (at, _) in text.match_indices(table) {
        let behind = &text[at + table.len()..];
        let name = match behind.as_bytes() {
            [b'.', ..] => behind[1..].split(|c| !is_of_name(c)).next(),
            [b'[', quote @ (b'"' | b'\''), ..] => behind[2..].split(char::from(*quote)).next(),
            _ => None,
        };
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            visit(name);
        }
    }
}

/// Names and values.
#[derive(Default)]
struct CopiedFields {
    text: Vec<u8>,
    list: Vec<(Range<usize>, Range<usize>)>,
}

impl CopiedFields {
    fn push(&mut self, name: &[u8], value: &[u8]) {
        let start = self.text.len();
        self.text.extend_from_slice(name);
        let middle = self.text.len();
        self.text.extend_from_slice(value);
        self.list.push((start..middle, middle..self.text.len()));
    }

    fn each(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        self.list.iter().for_each(|(name, value)| visit(&self.text[name.clone()], &self.text[value.clone()]));
    }
}

/// The copy.
pub(super) struct RequestCopy {
    request: CopiedFields,
    response: CopiedFields,
    status: u16,
    target: Vec<u8>,
    rewritten: Vec<u8>,
    forwarded_for: Vec<u8>,
    /// In the order of [`Wishes::names`]; `None`: the variable has no value.
    values: Vec<Option<Box<[u8]>>>,
    matched: Option<String>,
    documents: Option<Arc<Documents>>,
    claims: Option<Json>,
    consumer: Option<Json>,
    /// `None`: the text does not name it.
    metadata: Option<MetadataTable>,
}

impl RequestCopy {
    pub(super) fn of(response: &Response<'_>, wishes: &Wishes) -> RequestCopy {
        let facts = &response.facts;
        let (mut request, mut of_response, mut rewritten) =
            (CopiedFields::default(), CopiedFields::default(), Vec::new());
        response.request_edits.each(&facts.request.fields, facts.head, &mut |name, value| request.push(name, value));
        let edits = &response.edits.fields;
        edits.each(response.fields, response.head, &mut |name, value| of_response.push(name, value));
        let mut buffer = Vec::new();
        let value = |(_, variable): &(Box<str>, Variable)| response.value(variable, &mut buffer).map(Into::into);
        let values = wishes.names.iter().map(value).collect();
        variables::append_rewritten(response, &mut rewritten);
        let (is_named, mut forwarded_for) = (response.settled.client.is_some(), Vec::new());
        variables::append_forwarded_for(response.request_edits, facts, is_named, &mut forwarded_for);
        RequestCopy {
            request,
            response: of_response,
            status: response.status(),
            target: facts.path_and_query().to_vec(),
            rewritten,
            forwarded_for,
            values,
            matched: facts.route.and_then(pattern_of),
            documents: facts.route.and_then(|route| route.documents.cloned()),
            claims: wishes
                .wants_claims
                .then(|| document_of(facts, response.settled, RequestDocument::Claims).cloned())
                .flatten(),
            consumer: response.consumer.map(|found| consumer_of(found, response.consumers)),
            metadata: wishes.wants_metadata.then(|| response.metadata.clone()),
        }
    }

    pub(super) fn status(&self) -> u16 {
        self.status
    }

    pub(super) fn target(&self) -> &[u8] {
        &self.target
    }

    pub(super) fn rewritten_path(&self) -> &[u8] {
        &self.rewritten
    }

    pub(super) fn matched_path(&self) -> Option<&str> {
        self.matched.as_deref()
    }

    pub(super) fn consumer(&self) -> Option<&Json> {
        self.consumer.as_ref()
    }

    pub(super) fn document(&self, of: RequestDocument) -> Option<&Json> {
        match of {
            RequestDocument::Route => self.documents.as_ref().map(|documents| &documents.route),
            RequestDocument::Service => self.documents.as_ref()?.service.as_ref(),
            RequestDocument::Claims => self.claims.as_ref(),
        }
    }

    /// The metadata of a plugin. It is copied like variables.
    pub(super) fn metadata(&self, plugin: &str) -> Result<Option<(u64, &Json)>, String> {
        match &self.metadata {
            Some(table) => Ok(metadata_of(table, plugin)),
            None => {
                Err("plugin_metadata exists in the phase body_filter only if the functions' text names it".to_owned())
            }
        }
    }

    pub(super) fn each_field(&self, side: MessageSide, visit: &mut dyn FnMut(&[u8], &[u8])) {
        match side {
            MessageSide::Request => self.request.each(visit),
            MessageSide::Response => self.response.each(visit),
        }
    }

    /// Appends the value of a variable; `false`: it has none. An error: it was not copied.
    pub(super) fn variable(&self, wishes: &Wishes, name: &str, out: &mut Vec<u8>) -> Result<bool, String> {
        if name == "proxy_add_x_forwarded_for" {
            out.extend_from_slice(&self.forwarded_for);
            return Ok(true);
        }
        let spelled = variables::spelled(name);
        if let Ok(at) = wishes.names.binary_search_by(|(known, _)| (**known).cmp(&*spelled)) {
            let value = self.values[at].as_deref();
            return Ok(value.map(|value| out.extend_from_slice(value)).is_some());
        }
        if let Some(field) = spelled.strip_prefix("http_") {
            return Ok(self.joined(MessageSide::Request, field, out));
        }
        if let Some(field) = spelled.strip_prefix("sent_http_") {
            return Ok(self.joined(MessageSide::Response, field, out));
        }
        match variables::parse(&spelled) {
            None => Ok(false),
            Some(_) => Err(format!(
                "{name}: in the phase body_filter there are the variables that the functions' text names as ctx.var.NAME; \
                 read it in header_filter and keep it in ctx"
            )),
        }
    }

    /// Appends the values of a field in the form of variables: several are joined by `, `.
    fn joined(&self, side: MessageSide, variable: &str, out: &mut Vec<u8>) -> bool {
        let (mut is_there, name) = (false, variable.replace('_', "-"));
        self.each_field(side, &mut |of, value| {
            if of.eq_ignore_ascii_case(name.as_bytes()) {
                if is_there {
                    out.extend_from_slice(b", ");
                }
                out.extend_from_slice(value);
                is_there = true;
            }
        });
        is_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_found_in_texts() {
        let text = "local a, b = ctx.var.arg_name, ngx.var['cookie_x'] local v = ctx.var v.host = 1 \
                    local c = ngx.var[\"http_x_a\"] .. ctx.curr_req_matched.id .. vars.request_id .. ctx.var.nothing";
        let names = |wishes: &Wishes| wishes.names.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>();
        let found = names(&Wishes::of(&[text]));
        for name in ["arg_name", "cookie_x", "http_x_a", "uri_param_id", "uri", "consumer_name"] {
            assert!(found.contains(&name.to_owned()), "{name}: {found:?}");
        }
        assert!(!found.contains(&"nothing".to_owned()) && found.is_sorted());
        assert_eq!(names(&Wishes::of(&["no names"])).len(), ALWAYS.len());
        let many: String = (0..200).map(|at| format!("ctx.var.arg_{at} ")).collect();
        assert_eq!(names(&Wishes::of(&[&many])).len(), NAMES_MAX);
    }
}
