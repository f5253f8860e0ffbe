//! Texts with `$post_arg.NAME` and `$post_arg_NAME` beside other variables, for a plugin that waits for the body.
//!
//! `$post_arg.a.b`, or `${post_arg.a[0].b}`, reads a JSON body, a form or `multipart/form-data`; `$post_arg_a` reads a form. Of several values of a name
//! the first counts; one that is no text, number or flag is as if it were not there. Other JSONPaths are refused.

use crate::body_transformer::{add, form};
use crate::unknown::Unknown;
use serde_json::{Map, Value as Json};
use stillgate_plugin::{Request, Template};

/// A text, parsed.
#[derive(Debug)]
pub(crate) struct PostTemplate(Box<[Piece]>);

#[derive(Debug)]
enum Piece {
    /// Without arguments of the body.
    Other(Template),
    Argument {
        path: Box<[Step]>,
        is_of_forms: bool,
        /// In its place.
        default: Box<str>,
    },
}

#[derive(Debug)]
enum Step {
    Name(Box<str>),
    Index(usize),
}

/// What a body is read as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reading {
    Json,
    Form,
    /// With what stands between its parts.
    Multipart(Vec<u8>),
}

/// Parts of a multipart body that are looked at.
const PARTS_MAX: usize = 256;

impl PostTemplate {
    /// Parses a text. The error is for the author of the configuration; `unknown` learns of variables that are empty.
    pub(crate) fn parse(text: &str, unknown: &mut Unknown<'_>) -> Result<PostTemplate, String> {
        let mut other = |text: &str| Piece::Other(Template::parse_lenient(text, unknown));
        let (mut pieces, mut begin, mut at) = (Vec::new(), 0, 0);
        while let Some(found) = text[at..].find('$').map(|found| at + found) {
            at = found + 1;
            let is_escaped = text[..found].ends_with('\\');
            let Some((inner, end)) = variable(&text[at..]).filter(|_| !is_escaped) else { continue };
            let (name, default) = inner.split_once("??").unwrap_or((inner, ""));
            let name = name.trim();
            let (path, is_of_forms) = match (name.strip_prefix("post_arg."), name.strip_prefix("post_arg_")) {
                (Some(path), _) => (steps(path).ok_or_else(|| format!("{name:?}: write names and indexes"))?, false),
                (_, Some(name)) if !name.is_empty() => (Box::from([Step::Name(name.into())]), true),
                _ => continue,
            };
            if begin < found {
                pieces.push(other(&text[begin..found]));
            }
            pieces.push(Piece::Argument { path, is_of_forms, default: default.trim().into() });
            (begin, at) = (at + end, at + end);
        }
        if begin < text.len() {
            pieces.push(other(&text[begin..]));
        }
        Ok(PostTemplate(pieces.into()))
    }

    /// Whether it needs the body.
    pub(crate) fn reads_body(&self) -> bool {
        self.0.iter().any(|piece| matches!(piece, Piece::Argument { .. }))
    }

    /// Appends the text with the values of a request and of its body, as [`arguments`] reads it.
    pub(crate) fn write(
        &self,
        request: &Request<'_>,
        (reading, arguments): (Option<&Reading>, &Json),
        out: &mut Vec<u8>,
        buffer: &mut Vec<u8>,
    ) {
        for piece in &self.0 {
            match piece {
                Piece::Other(template) => drop(template.write(request, out, buffer)),
                Piece::Argument { is_of_forms: true, default, .. } if reading != Some(&Reading::Form) => {
                    out.extend_from_slice(default.as_bytes());
                }
                Piece::Argument { path, default, .. } => match value(arguments, path) {
                    Some(text) => out.extend_from_slice(text.as_bytes()),
                    None => out.extend_from_slice(default.as_bytes()),
                },
            }
        }
    }
}

/// What stands behind a dollar, without braces, and where it ends.
fn variable(text: &str) -> Option<(&str, usize)> {
    if let Some(braced) = text.strip_prefix('{') {
        let end = braced.find('}')?;
        return Some((&braced[..end], end + 2));
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
    let end = text.bytes().position(|byte| !is_name(byte)).unwrap_or(text.len());
    Some((&text[..end], end))
}

fn steps(path: &str) -> Option<Box<[Step]>> {
    let mut steps = Vec::new();
    for part in path.split('.') {
        let (name, mut indexes) = part.split_at(part.find('[').unwrap_or(part.len()));
        if name.is_empty() {
            return None;
        }
        steps.push(Step::Name(name.into()));
        while !indexes.is_empty() {
            let (index, rest) = indexes.strip_prefix('[')?.split_once(']')?;
            steps.push(Step::Index(index.parse().ok()?));
            indexes = rest;
        }
    }
    Some(steps.into())
}

fn value(arguments: &Json, path: &[Step]) -> Option<String> {
    let found = path.iter().try_fold(arguments, |json, step| match step {
        Step::Name(name) => json.get(&**name),
        Step::Index(index) => json.get(index),
    })?;
    match found {
        Json::String(text) => Some(text.clone()),
        Json::Number(number) => Some(number.to_string()),
        Json::Bool(flag) => Some(flag.to_string()),
        Json::Array(items) => items.first().and_then(|first| value(first, &[])),
        Json::Null | Json::Object(_) => None,
    }
}

impl Reading {
    /// By the media type; `None`: it has no arguments.
    pub(crate) fn of(content_type: &[u8]) -> Option<Reading> {
        let (kind, parameters) =
            content_type.split_at(memchr::memchr(b';', content_type).unwrap_or(content_type.len()));
        match &*kind.trim_ascii().to_ascii_lowercase() {
            b"application/json" => Some(Reading::Json),
            b"application/x-www-form-urlencoded" => Some(Reading::Form),
            b"multipart/form-data" => Some(Reading::Multipart(parameter(parameters, b"boundary")?.to_vec())),
            _ => None,
        }
    }

    /// The arguments in a body: an object, or null where it cannot be read.
    pub(crate) fn arguments(&self, body: &[u8]) -> Json {
        match self {
            Reading::Json => serde_json::from_slice(body).unwrap_or_default(),
            Reading::Form => form(body),
            Reading::Multipart(boundary) => multipart(body, boundary),
        }
    }
}

/// A parameter of a header field: `; name=value`, in quotes or without.
fn parameter<'a>(text: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    text.split(|byte| *byte == b';').find_map(|pair| {
        let (key, value) = pair.split_at(memchr::memchr(b'=', pair)?);
        let value = value[1..].trim_ascii();
        let value = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
        (key.trim_ascii().eq_ignore_ascii_case(name) && !value.is_empty()).then_some(value)
    })
}

/// The parts of a body (RFC 7578) by their names.
fn multipart(body: &[u8], boundary: &[u8]) -> Json {
    let mark = [b"--", boundary].concat();
    let marks: Vec<usize> = memchr::memmem::find_iter(body, &mark).take(PARTS_MAX + 1).collect();
    let mut fields = Map::new();
    for pair in marks.windows(2) {
        let part = &body[pair[0] + mark.len()..pair[1]];
        let Some(end) = memchr::memmem::find(part, b"\r\n\r\n") else { continue };
        let (head, content) = (&part[..end], &part[end + 4..]);
        let content = content.strip_suffix(b"\r\n").unwrap_or(content);
        let lines = head.split(|byte| *byte == b'\n');
        let mut names = lines.filter_map(|line| {
            const FIELD: &[u8] = b"content-disposition:";
            let (name, value) = line.trim_ascii().split_at_checked(FIELD.len())?;
            name.eq_ignore_ascii_case(FIELD).then(|| parameter(value, b"name")).flatten()
        });
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if let Some(name) = names.next() {
            add(&mut fields, text(name), Json::String(text(content)));
        }
    }
    Json::Object(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_parsed() {
        let shape = |text: &str| {
            let pieces = PostTemplate::parse(text, &mut |_| {})?.0;
            let one = |piece: &Piece| match piece {
                Piece::Other(_) => "other".to_owned(),
                Piece::Argument { path, is_of_forms, default } => format!("{} {is_of_forms} {default:?}", path.len()),
            };
            Ok::<_, String>(pieces.iter().map(one).collect::<Vec<_>>().join(", "))
        };
        assert_eq!(shape("a"), Ok("other".to_owned()));
        assert_eq!(shape("${post_arg.a.b[0][1]}"), Ok("4 false \"\"".to_owned()));
        assert_eq!(
            shape("x ${post_arg.a ?? none}$host$post_arg_b!"),
            Ok("other, 1 false \"none\", other, 1 true \"\", other".to_owned())
        );
        assert_eq!(shape("\\$post_arg.a"), Ok("other".to_owned()));
        assert_eq!(shape("$ ${"), Ok("other".to_owned()));
        assert!(shape("$post_arg.a..b").is_err() && shape("${post_arg.a[*]}").is_err() && shape("$nothing").is_ok());
    }

    #[test]
    fn bodies_are_read() {
        let check = |content_type: &str, body: &str, path: &str, expected: Option<&str>| {
            let reading = Reading::of(content_type.as_bytes()).unwrap();
            let value = value(&reading.arguments(body.as_bytes()), &steps(path).unwrap());
            assert_eq!(value.as_deref(), expected, "{content_type} {path}");
        };
        let json = r#"{"a":{"b":["x",{"c":1.5}]},"n":null,"t":true}"#;
        check("application/json", json, "a.b[1].c", Some("1.5"));
        check("Application/JSON; charset=utf-8", json, "a.b", Some("x"));
        check("application/json", json, "t", Some("true"));
        for path in ["a", "n", "b", "a.b[2]", "a.b.c"] {
            check("application/json", json, path, None);
        }
        check("application/json", "{", "a", None);
        check("application/x-www-form-urlencoded", "a=%20x&a=y", "a", Some(" x"));
        let parts = "--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\none\r\n\
                     --B\r\ncontent-type: text/plain\r\ncontent-disposition: form-data; name=f; filename=\"x\"\r\n\r\ntwo\r\nlines\r\n--B--\r\n";
        check("multipart/form-data; boundary=B", parts, "a", Some("one"));
        check("multipart/form-data; boundary=\"B\"", parts, "f", Some("two\r\nlines"));
        check("multipart/form-data; boundary=C", parts, "a", None);
        assert_eq!(Reading::of(b"multipart/form-data"), None);
        assert_eq!(Reading::of(b"text/plain"), None);
    }
}
