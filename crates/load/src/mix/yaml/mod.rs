//! A mix written by hand, in YAML.
//!
//! ```yaml
//! variables:                             # each is drawn again for each request, and has one value within it
//!   id: {range: [1, 100000]}             # a whole number, both ends included
//!   n: {counter: 1}                      # 1, 2, 3…: each number once
//!   user: {values: [ann, bob]}           # one of them
//!   city: {file: cities.txt}             # one of its lines; paths are relative to this file
//!   trace: {hex: 32}                     # so many random hexadecimal digits
//!   key: {uuid: true}                    # a random UUID
//! requests:
//!   - path: /items/${id}?near=${city}    # GET, with weight 1; `$${` means `${`
//!     weight: 9
//!     expect: {status: [200, 404], body: {contains: '"id"'}}
//!   - name: order
//!     method: POST                       # what a request with a body is by default
//!     path: /orders
//!     headers: {Authorization: 'Bearer ${key}'}
//!     json: {user: '${user}', items: [{id: 7}]}    # or `body`: text, or `body_file`: sent as it is
//!     expect: {status: 201}
//! ```
//!
//! `expect` has statuses and a check of the body. A JSON body is written as YAML: a plain scalar that JSON would read
//! as a number, `true`, `false` or `null` has that type; everything else is a string. A plain `${name}` alone is a
//! number if its variable is one. Values are escaped, so that the body stays JSON.

mod variables;

use super::errors::{Findings, quoted};
use super::request::{Draft, ValueAt};
use super::template::{Escape, Template, Variable};
use super::{Entry, Mix, MixErrors};
use crate::mix::request::{BodyCheck, Expect, STATUSES_WANTED, StatusSet, status_range};
use crate::mix::template::Piece;
use crate::target::Target;
use regex::bytes::RegexBuilder;
use serde_json::Number;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use stillgate_yaml::scalar::{Scalar, Style};
use stillgate_yaml::{Entry as Pair, Node, Sink, Value, tree};
use variables::{Map, Reader, listed};

/// A minimal mix.
const LEAST: &str = "requests: [{path: /}]";

/// Largest weight of a request.
const WEIGHT_MAX: u32 = 1_000_000;

const REQUEST_KEYS: &[&str] =
    &["name", "weight", "method", "path", "url", "headers", "body", "body_file", "json", "expect"];
const BODY_KEYS: &[&str] = &["body", "body_file", "json"];

/// Reads a mix. Files it names are relative to the folder of `origin`.
pub(super) fn read(text: &str, origin: &Path, target: &Target) -> Result<Mix, MixErrors> {
    let mut findings = Findings::default();
    let (mut entries, mut variables) = (Vec::new(), Vec::new());
    let mut sink = Sink::default();
    // `${NAME}` is a variable of the mix, not of the environment.
    let tree = tree::parse(0, text, None, &mut sink).and_then(|tree| tree.unless_empty(LEAST, &mut sink));
    findings.append_yaml(sink);
    if let Some(tree::Tree { root, .. }) = tree {
        let folder = origin.parent().unwrap_or(Path::new(""));
        let mut reader = Reader { findings: &mut findings };
        if let Some(map) = reader.map(&root, &["variables", "requests"]) {
            variables = map.get("variables").map(|node| variables::read(node, folder, &mut reader)).unwrap_or_default();
            let requests = Requests { folder, target, variables: &variables };
            entries = requests.read(map, &root, &mut reader);
        }
    }
    findings.into_result(&origin.display().to_string(), text)?;
    Ok(Mix::new(entries, variables, Vec::new()))
}

/// The context for reading a request.
struct Requests<'a> {
    folder: &'a Path,
    target: &'a Target,
    variables: &'a [Variable],
}

impl Requests<'_> {
    fn read(&self, map: Map<'_>, root: &Node, reader: &mut Reader<'_>) -> Vec<(Entry, u32)> {
        let Some(node) = map.get("requests") else {
            let at = map.pair("requests").map_or(root.at, |pair| pair.key_at);
            reader.findings.add(at, format!("no requests; write at least `{LEAST}`"));
            return Vec::new();
        };
        let Some(items) = reader.list(node, "a list of requests, like [{path: /}]") else { return Vec::new() };
        if items.is_empty() {
            reader.wrong::<()>(node, "at least one request, like [{path: /}]");
        }
        let mut names = HashMap::new();
        items.iter().filter_map(|item| self.request(item, &mut names, reader)).collect()
    }

    fn request<'t>(
        &self,
        node: &'t Node,
        names: &mut HashMap<&'t str, u32>,
        reader: &mut Reader<'_>,
    ) -> Option<(Entry, u32)> {
        let map = reader.map(node, REQUEST_KEYS)?;
        let name = map.get("name").and_then(|node| reader.text(node, "a name").map(|name| (node, name)));
        if let Some((node, name)) = name
            && let Some(line) = names.insert(name, node.at.line)
        {
            let message = format!("{} is also the request of line {line}; give one another name", quoted(name));
            reader.findings.add(node.at, message);
        }
        let want = format!("a whole number of 1 to {WEIGHT_MAX}");
        let weight = match map.get("weight") {
            Some(node) => reader.number(node, |weight| (1..=WEIGHT_MAX).contains(weight), &want),
            None => Some(1),
        };
        let headers = map.get("headers").map(|node| self.headers(node, reader)).unwrap_or_default();
        let body = self.body(map, reader);
        let method = match map.get("method") {
            Some(node) => {
                let value = reader.text(node, "a method like GET").map(str::to_owned);
                value.map(|value| ValueAt { at: node.at.into(), value })
            }
            None => {
                let value = if body.is_some() { "POST" } else { "GET" }.to_owned();
                Some(ValueAt { at: node.at.into(), value })
            }
        };
        let expect = map.get("expect").map(|node| read_expectation(node, self.variables, reader));
        let path = self.path(map, node, reader);
        let draft = Draft {
            name: name.map(|(_, name)| name.to_owned()),
            method: method?,
            path: path?,
            headers,
            body,
            content_type: map.get("json").map(|_| "application/json".to_owned()),
            expect: expect.unwrap_or_default(),
        };
        if draft.method.value == "HEAD" && draft.expect.needs_body() {
            let message = "an answer to HEAD has no body; remove the check of it, or write `method: GET`";
            reader.findings.add(node.at, message);
        }
        let entry = draft.entry(&self.target.host, self.variables, reader.findings);
        Some((entry?, weight?))
    }

    /// `path`, or the path of a `url` of the target's host.
    fn path(&self, map: Map<'_>, request: &Node, reader: &mut Reader<'_>) -> Option<ValueAt<Template>> {
        let (node, path) = match map.present(&["path", "url"])[..] {
            [] if map.has_unknown => return None,
            [] => {
                reader.findings.add(request.at, "a request without `path`; add one like `path: /`");
                return None;
            }
            [Pair { key, value, .. }] if &**key == "path" => {
                (value, reader.text(value, "a path like /items/${id}")?.to_owned())
            }
            [Pair { value, .. }] => (value, self.path_of_url(value, reader)?),
            [_, second, ..] => {
                reader.findings.add(second.key_at, "a request has a `path` or a `url`; remove one of them");
                return None;
            }
        };
        let value = self.template(node, &path, Escape::Target, reader)?;
        Some(ValueAt { at: node.at.into(), value })
    }

    fn path_of_url(&self, node: &Node, reader: &mut Reader<'_>) -> Option<String> {
        let url = reader.text(node, "a URL of the target")?;
        if url.starts_with('/') {
            reader.findings.add(node.at, format!("{} is not a URL; write it as `path`", quoted(url)));
            return None;
        }
        match Target::parse(url) {
            Ok(target) if (&target.host, target.is_secure) == (&self.target.host, self.target.is_secure) => {
                Some(target.path_and_query)
            }
            Ok(target) => {
                let named = |target: &Target| match target.is_secure {
                    true => format!("https://{}", target.host),
                    false => target.host.clone(),
                };
                let message = format!(
                    "a URL of {}, but the target is {}; write `path`, and a Host header if it is to differ",
                    named(&target),
                    named(self.target)
                );
                reader.findings.add(node.at, message);
                None
            }
            Err(error) => {
                reader.findings.add(node.at, error.to_string());
                None
            }
        }
    }

    fn headers(&self, node: &Node, reader: &mut Reader<'_>) -> Vec<(ValueAt<String>, ValueAt<Template>)> {
        let pairs = reader.pairs(node, "a map of names and values, like {Accept: text/html}").unwrap_or_default();
        let mut headers = Vec::new();
        for Pair { key, key_at, value } in pairs {
            // A field may occur more than once, with several values.
            let values = match &value.value {
                Value::List(values) => values,
                _ => std::slice::from_ref(value),
            };
            for value in values {
                let Some(text) = reader.text(value, "a value, \"\" if it is to be empty") else { continue };
                let Some(template) = self.template(value, text, Escape::None, reader) else { continue };
                let name = ValueAt { at: (*key_at).into(), value: key.to_string() };
                headers.push((name, ValueAt { at: value.at.into(), value: template }));
            }
        }
        headers
    }

    fn body(&self, map: Map<'_>, reader: &mut Reader<'_>) -> Option<Template> {
        let present = map.present(BODY_KEYS);
        for second in present.iter().skip(1) {
            let message = format!("a request has one body, `{}` is another; remove one of them", second.key);
            reader.findings.add(second.key_at, message);
        }
        let Pair { key, value, .. } = present.first()?;
        match &**key {
            "json" if value.is_null() => reader.wrong(value, "a map, a list or a value"),
            "json" => Some(render_json(value, self.variables, reader)),
            "body" => {
                let text = reader.text(value, "a text; a map or list goes under `json`")?;
                self.template(value, text, Escape::None, reader)
            }
            _ => {
                let path = reader.text(value, "the path of a file")?;
                match super::read_file(&self.folder.join(path)) {
                    Ok(bytes) => Some(Template::literal(bytes)),
                    Err(message) => {
                        reader.findings.add(value.at, format!("{} {message}", quoted(path)));
                        None
                    }
                }
            }
        }
    }

    fn template(&self, node: &Node, text: &str, escape: Escape, reader: &mut Reader<'_>) -> Option<Template> {
        match Template::parse(text, escape, self.variables) {
            Ok(template) => Some(template),
            Err(message) => {
                reader.findings.add(node.at, message);
                None
            }
        }
    }
}

const BODY_CHECKS: &[&str] = &["equals", "contains", "matches"];

/// Largest automaton of a regex, to bound its memory.
const REGEX_BYTES_MAX: usize = 1 << 20;

fn read_expectation(node: &Node, variables: &[Variable], reader: &mut Reader<'_>) -> Expect {
    let Some(map) = reader.map(node, &["status", "body"]) else { return Expect::default() };
    Expect {
        statuses: map.get("status").map(|node| statuses(node, reader)).unwrap_or_default(),
        body: map.get("body").and_then(|node| body_check(node, variables, reader)),
    }
}

fn statuses(node: &Node, reader: &mut Reader<'_>) -> StatusSet {
    let mut statuses = StatusSet::EMPTY;
    let items = match &node.value {
        Value::List(items) => items,
        _ => std::slice::from_ref(node),
    };
    if items.is_empty() {
        reader.wrong::<()>(node, "at least one status, like [200, 4xx]");
    }
    for item in items {
        let Some(text) = reader.text(item, STATUSES_WANTED) else { continue };
        match status_range(text) {
            Some((from, to)) => statuses.add(from, to),
            None => {
                reader.wrong::<()>(item, STATUSES_WANTED);
            }
        }
    }
    statuses
}

fn body_check(node: &Node, variables: &[Variable], reader: &mut Reader<'_>) -> Option<BodyCheck> {
    let map = reader.map(node, BODY_CHECKS)?;
    let [Pair { key, value, .. }] = map.present(BODY_CHECKS)[..] else {
        if map.has_unknown {
            return None;
        }
        let message = format!("a body has one check; write one of {}", listed(BODY_CHECKS));
        reader.findings.add(node.at, message);
        return None;
    };
    let text = reader.text(value, "a text")?;
    if &**key == "matches" {
        // In a regex `$` and braces have another meaning, so variables are not supported.
        return match RegexBuilder::new(text).size_limit(REGEX_BYTES_MAX).build() {
            Ok(regex) => Some(BodyCheck::Matches(regex)),
            Err(regex::Error::CompiledTooBig(_)) => {
                reader
                    .findings
                    .add(value.at, "the regular expression needs too much memory; write smaller repetitions");
                None
            }
            Err(error) => {
                // The last line has the reason; those before draw the position.
                let error = error.to_string();
                let reason = error.lines().last().unwrap_or_default().trim_start_matches("error: ");
                reader.findings.add(value.at, format!("not a regular expression: {reason}"));
                None
            }
        };
    }
    let want: Arc<[u8]> = match Template::parse(text, Escape::None, variables) {
        Ok(template) => match template.as_literal() {
            Some(literal) => literal.into(),
            None => {
                let message = "variables are not filled in in a check; write `$${` for the characters `${`";
                reader.findings.add(value.at, message);
                return None;
            }
        },
        Err(message) => {
            reader.findings.add(value.at, message);
            return None;
        }
    };
    Some(if &**key == "equals" { BodyCheck::Equals(want) } else { BodyCheck::Contains(want) })
}

/// The text of the JSON value that the node means.
fn render_json(node: &Node, variables: &[Variable], reader: &mut Reader<'_>) -> Template {
    let mut out = Template::default();
    push_json(node, variables, reader, &mut out);
    out
}

fn push_json(node: &Node, variables: &[Variable], reader: &mut Reader<'_>, out: &mut Template) {
    match &node.value {
        Value::Refused => {}
        Value::Scalar(_) if node.is_null() => out.push_literal(b"null"),
        Value::Scalar(Scalar { text, style: Style::Plain, .. }) if is_bare(text) => out.push_literal(text.as_bytes()),
        Value::Scalar(Scalar { text, style, .. }) => {
            push_json_string(node, text, *style == Style::Plain, variables, reader, out);
        }
        Value::List(items) => {
            out.push_literal(b"[");
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push_literal(b",");
                }
                push_json(item, variables, reader, out);
            }
            out.push_literal(b"]");
        }
        Value::Map(pairs) => {
            out.push_literal(b"{");
            for (index, Pair { key, value, .. }) in pairs.iter().enumerate() {
                if index > 0 {
                    out.push_literal(b",");
                }
                push_json_string(node, key, false, variables, reader, out);
                out.push_literal(b":");
                push_json(value, variables, reader, out);
            }
            out.push_literal(b"}");
        }
    }
}

/// Whether JSON needs no quotes around it either.
fn is_bare(text: &str) -> bool {
    matches!(text, "true" | "false") || serde_json::from_str::<Number>(text).is_ok()
}

fn push_json_string(
    node: &Node,
    text: &str,
    plain: bool,
    variables: &[Variable],
    reader: &mut Reader<'_>,
    out: &mut Template,
) {
    let template = match Template::parse(text, Escape::Json, variables) {
        Ok(template) => template,
        Err(message) => return reader.findings.add(node.at, message),
    };
    if let ([Piece::Variable(index, _)], true) = (template.pieces.as_slice(), plain)
        && variables[*index].source.is_number()
    {
        return out.append(&template);
    }
    out.push_literal(b"\"");
    for piece in template.pieces {
        match piece {
            Piece::Literal(literal) => {
                let mut escaped = Vec::new();
                Escape::Json.push(&mut escaped, &literal);
                out.push_literal(&escaped);
            }
            variable => out.pieces.push(variable),
        }
    }
    out.push_literal(b"\"");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example in this module's documentation is valid.
    #[test]
    fn the_example_is_a_mix() {
        let lines = include_str!("mod.rs").lines().skip_while(|line| *line != "//! ```yaml").skip(1);
        let example: String = lines
            .take_while(|line| *line != "//! ```")
            .map(|line| format!("{}\n", line.trim_start_matches("//!").strip_prefix(' ').unwrap_or_default()))
            .collect();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("cities.txt"), "Berlin\n").unwrap();
        let target = Target::parse("http://127.0.0.1/").unwrap();
        let mix = read(&example, &folder.path().join("mix.yaml"), &target).unwrap_or_else(|errors| panic!("{errors}"));
        let names: Vec<&str> = mix.entries().iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["GET /items/${id}?near=${city}", "order"]);
    }
}
