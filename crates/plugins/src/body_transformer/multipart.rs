//! Parses multipart forms (RFC 7578) into fields: each part by its name, several of one name as a list.
//!
//! Only the names and contents of parts count; file names and content types are ignored.

use super::input::add_within;
use serde_json::{Map, Value as Json};
use stillgate_plugin_api::json::Budget;

/// Parses the fields of a body; the error says what is wrong with it.
pub(super) fn fields(body: &[u8], content_type: &[u8], budget: &mut Budget) -> Result<Json, String> {
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
            let fields = fields(body.as_bytes(), content_type.as_bytes(), &mut Budget::of_body(0));
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
