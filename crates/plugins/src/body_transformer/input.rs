//! Parses bodies into fields: JSON, forms, multipart forms and XML. Memory is counted as it is used.
//!
//! A multipart form (RFC 7578) gives each part by its name, several of one name as a list. Only the names and contents of parts
//! count; file names and content types are ignored.

use super::xml;
use serde_json::{Map, Value as Json};
use stillgate_plugin_api::json::{self, Budget, BudgetExhausted};
use stillgate_plugin_api::query::decoded;

/// The format of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InputFormat {
    Json,
    Xml,
    /// A form in the body.
    Encoded,
    /// The query.
    Args,
    /// It is not parsed.
    Plain,
    /// A multipart form.
    Multipart,
}

impl InputFormat {
    /// The format for the value of `Content-Type`; `None`: the template is filled without fields.
    pub(super) fn of(content_type: Option<&[u8]>) -> Option<InputFormat> {
        let text = content_type?.to_ascii_lowercase();
        let has = |part: &str| memchr::memmem::find(&text, part.as_bytes()).is_some();
        match () {
            () if has("text/xml") => Some(InputFormat::Xml),
            () if has("application/json") => Some(InputFormat::Json),
            () if has("application/x-www-form-urlencoded") => Some(InputFormat::Encoded),
            () if has("multipart/") => Some(InputFormat::Multipart),
            () => None,
        }
    }

    /// Parses the fields of a body; the error says what is wrong with it.
    pub(super) fn read(
        self,
        body: &[u8],
        query: &[u8],
        content_type: &[u8],
        budget: &mut Budget,
    ) -> Result<Json, String> {
        let of_form = |text, budget| form(text, budget).map_err(|exhausted| exhausted.to_string());
        match self {
            InputFormat::Plain => Ok(Json::Object(Map::new())),
            InputFormat::Json => match json::read(body, budget) {
                Ok(json @ (Json::Object(_) | Json::Array(_))) => Ok(json),
                Ok(_) => Err("neither an object nor an array".to_owned()),
                Err(error) => Err(error.to_string()),
            },
            InputFormat::Encoded => of_form(body, budget),
            InputFormat::Args => of_form(query, budget),
            InputFormat::Xml => xml::fields(body, budget),
            InputFormat::Multipart => multipart_fields(body, content_type, budget),
        }
    }
}

/// The pairs of a form: several of one name become a list, one without `=` is `true`.
pub(crate) fn form(text: &[u8], budget: &mut Budget) -> Result<Json, BudgetExhausted> {
    let mut fields = Map::new();
    let lossy = |text: &[u8]| String::from_utf8_lossy(&decoded(text).collect::<Vec<u8>>()).into_owned();
    for pair in text.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()) {
        let mut parts = pair.splitn(2, |byte| *byte == b'=');
        let name = lossy(parts.next().unwrap_or_default());
        let value = parts.next().map_or(Json::Bool(true), |value| Json::String(lossy(value)));
        add_within(budget, &mut fields, name, value)?;
    }
    Ok(Json::Object(fields))
}

/// Like [`add`], within the budget. The content of the value has been counted.
pub(super) fn add_within(
    budget: &mut Budget,
    fields: &mut Map<String, Json>,
    name: String,
    value: Json,
) -> Result<(), BudgetExhausted> {
    if let Json::String(text) = &value {
        budget.take(text.len())?;
    }
    budget.take_value()?;
    if fields.is_empty() {
        budget.take_table()?;
    }
    budget.take_entry(&name)?;
    add_field(fields, name, value);
    Ok(())
}

/// Adds a field; several with one name become a list.
pub(crate) fn add_field(fields: &mut Map<String, Json>, name: String, value: Json) {
    match fields.get_mut(&name) {
        None => drop(fields.insert(name, value)),
        Some(Json::Array(items)) => items.push(value),
        Some(one) => *one = Json::Array(vec![one.take(), value]),
    }
}

/// Parses the fields of a body; the error says what is wrong with it.
fn multipart_fields(body: &[u8], content_type: &[u8], budget: &mut Budget) -> Result<Json, String> {
    let boundary = boundary(content_type).ok_or("Content-Type has no boundary")?;
    let delimiter = [b"--", boundary].concat();
    let mut fields = Map::new();
    // Bytes before the first delimiter and after the last are not parts.
    let mut starts = memchr::memmem::find_iter(body, &delimiter).map(|at| (at, at + delimiter.len())).peekable();
    while let Some((_, start)) = starts.next() {
        let Some((end, _)) = starts.peek() else { break };
        let part = &body[start..*end];
        if let Some((name, content)) = part_of(part) {
            let lossy = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
            let added = add_within(budget, &mut fields, lossy(name), Json::String(lossy(content)));
            added.map_err(|exhausted| exhausted.to_string())?;
        }
    }
    Ok(Json::Object(fields))
}

/// The parameter `boundary`, quoted or not.
fn boundary(content_type: &[u8]) -> Option<&[u8]> {
    parameter(content_type, b"boundary").filter(|boundary| !boundary.is_empty())
}

/// The name and the content of a part; `None`: it has no name.
fn part_of(part: &[u8]) -> Option<(&[u8], &[u8])> {
    let part = part.strip_prefix(b"\r\n").or_else(|| part.strip_prefix(b"\n"))?;
    let (head, content) = match memchr::memmem::find(part, b"\r\n\r\n") {
        Some(at) => (&part[..at], &part[at + 4..]),
        None => {
            let at = memchr::memmem::find(part, b"\n\n")?;
            (&part[..at], &part[at + 2..])
        }
    };
    let content = content.strip_suffix(b"\n").unwrap_or(content);
    let content = content.strip_suffix(b"\r").unwrap_or(content);
    let disposition = head.split(|byte| *byte == b'\n').find_map(|line| {
        let at = line.iter().position(|byte| *byte == b':')?;
        line[..at].trim_ascii().eq_ignore_ascii_case(b"content-disposition").then(|| line[at + 1..].trim_ascii())
    })?;
    Some((parameter(disposition, b"name")?, content))
}

/// A parameter of a header field's value.
fn parameter<'a>(value: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    value.split(|byte| *byte == b';').skip(1).find_map(|parameter| {
        let at = parameter.iter().position(|byte| *byte == b'=')?;
        let value = parameter[at + 1..].trim_ascii();
        let bare = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
        parameter[..at].trim_ascii().eq_ignore_ascii_case(name).then_some(bare)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_fields_by_their_names() {
        let check = |content_type: &str, body: &str, expected: &str| {
            let fields = multipart_fields(body.as_bytes(), content_type.as_bytes(), &mut Budget::of_body(0));
            let fields = fields.map(|fields| fields.to_string());
            assert_eq!(fields.as_deref().unwrap_or_else(|error| error), expected, "{body}");
        };
        let part = |name: &str, value: &str| {
            format!("--xY\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        };
        let body = format!("before\r\n{}{}{}--xY--\r\nafter", part("a", "1"), part("b", "2\r\n3"), part("a", ""));
        let expected = r#"{"a":["1",""],"b":"2\r\n3"}"#;
        check("multipart/form-data; boundary=xY", &body, expected);
        check("multipart/form-data; charset=utf-8; Boundary=\"xY\"", &body, expected);
        check("multipart/form-data; boundary=xY", &body.replace("\r\n", "\n"), &expected.replace("\\r", ""));
        check("multipart/form-data; boundary=other", &body, "{}");
        check("multipart/form-data; boundary=xY", "--xY\r\nContent-Type: a\r\n\r\nb\r\n--xY--", "{}");
        check("multipart/form-data; boundary=xY", "--xY", "{}");
        check("multipart/form-data", &body, "Content-Type has no boundary");
    }
}
