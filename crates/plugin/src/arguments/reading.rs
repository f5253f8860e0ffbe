//! What a body has under the names that are asked for.
//!
//! Several values of a name, and the items of a list, are one text with `, ` between them, as several lines of a header field are;
//! but `post_arg_NAME` is the first. A value that is no text, number, flag or list of those is as if it were not there.

use super::{VALUE_BYTES_MAX, Values};
use crate::json::{self, Budget, Exhausted};
use crate::query::decoded;
use serde_json::Value as Json;
use stillgate_route::{BodyPath, BodyStep, Variable};

/// What a body is read as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reading {
    Json,
    Form,
    /// With what stands between its parts.
    Multipart(Box<[u8]>),
}

/// Parts of a multipart body that are looked at.
const PARTS_MAX: usize = 256;

/// A value on its way: the texts it is put together from. `None`: it is too long.
type Joined = Option<Vec<u8>>;

impl Reading {
    /// By the value of `Content-Type`; `None`: such a body has no arguments.
    pub(super) fn of(content_type: &[u8]) -> Option<Reading> {
        let (kind, parameters) =
            content_type.split_at(memchr::memchr(b';', content_type).unwrap_or(content_type.len()));
        match &*kind.trim_ascii().to_ascii_lowercase() {
            b"application/json" => Some(Reading::Json),
            b"application/x-www-form-urlencoded" => Some(Reading::Form),
            b"multipart/form-data" => Some(Reading::Multipart(parameter(parameters, b"boundary")?.into())),
            _ => None,
        }
    }

    /// Whether such a body may have a value of the variable.
    pub(super) fn may_have(&self, variable: &Variable) -> bool {
        matches!(variable, Variable::BodyArg(_)) || *self == Reading::Form
    }

    /// The values of variables in a body.
    ///
    /// # Errors
    ///
    /// If the body says more than may be held at once. What is not JSON has no values; but this may be JSON, and have the values
    /// that a condition refuses.
    pub(super) fn values(&self, body: &[u8], variables: &[Variable], bytes_max: usize) -> Result<Values, Exhausted> {
        let json = match self {
            Reading::Json => match json::read(body, &mut Budget::of_body(bytes_max)) {
                Ok(json) => json,
                Err(error) if json::is_exhausted(&error) => return Err(Exhausted),
                Err(_) => Json::Null,
            },
            Reading::Form | Reading::Multipart(_) => Json::Null,
        };
        let value = |variable: &Variable| match (self, variable) {
            (Reading::Json, Variable::BodyArg(way)) => of_json(&json, way),
            (Reading::Form, Variable::PostArg(name)) => form(body, name).next().and_then(|first| joined([first])),
            (Reading::Form, Variable::BodyArg(way)) => chosen(form, body, way),
            (Reading::Multipart(boundary), Variable::BodyArg(way)) => {
                chosen(|body, name| parts(body, boundary, name), body, way)
            }
            _ => None,
        };
        Ok(variables.iter().map(|variable| value(variable).map(Vec::into_boxed_slice)).collect())
    }
}

/// Of the values of a name, those that a way leads to.
fn chosen<'a, T: AsRef<[u8]>, I: Iterator<Item = T>>(
    named: impl FnOnce(&'a [u8], &'a str) -> I,
    body: &'a [u8],
    way: &'a BodyPath,
) -> Joined {
    match way.steps() {
        [BodyStep::Name(name)] | [BodyStep::Name(name), BodyStep::Each] => joined(named(body, name)),
        [BodyStep::Name(name), BodyStep::Item(index)] => joined(named(body, name).nth(*index)),
        _ => None,
    }
}

/// One text of several; `None`: there is none, or it is too long.
fn joined<T: AsRef<[u8]>>(texts: impl IntoIterator<Item = T>) -> Joined {
    texts.into_iter().try_fold(None, |out: Joined, text| {
        let text = text.as_ref();
        let mut out = match out {
            None => Vec::new(),
            Some(mut out) => {
                out.extend_from_slice(b", ");
                out
            }
        };
        out.extend_from_slice(text);
        (out.len() <= VALUE_BYTES_MAX).then_some(Some(out))
    })?
}

fn of_json(json: &Json, way: &BodyPath) -> Joined {
    let mut found = Vec::new();
    walk(json, way.steps(), &mut found);
    let items = found.iter().flat_map(|json| match json {
        Json::Array(items) => items.iter().collect(),
        json => vec![*json],
    });
    joined(items.filter_map(|json| match json {
        Json::String(text) => Some(text.clone()),
        Json::Number(number) => Some(number.to_string()),
        Json::Bool(flag) => Some(flag.to_string()),
        Json::Null | Json::Object(_) | Json::Array(_) => None,
    }))
}

fn walk<'j>(json: &'j Json, steps: &[BodyStep], found: &mut Vec<&'j Json>) {
    let Some((step, rest)) = steps.split_first() else { return found.push(json) };
    match step {
        BodyStep::Name(name) => json.get(&**name).into_iter().for_each(|json| walk(json, rest, found)),
        BodyStep::Item(index) => json.get(index).into_iter().for_each(|json| walk(json, rest, found)),
        BodyStep::Each => json.as_array().into_iter().flatten().for_each(|json| walk(json, rest, found)),
    }
}

/// The values of a name in a form, decoded; empty for a name alone.
fn form<'a>(body: &'a [u8], name: &'a str) -> impl Iterator<Item = Vec<u8>> {
    let pairs = body.split(|byte| *byte == b'&').map(|pair| {
        let end = memchr::memchr(b'=', pair).unwrap_or(pair.len());
        (&pair[..end], pair.get(end + 1..).unwrap_or_default())
    });
    pairs.filter(move |(key, _)| decoded(key).eq(name.bytes())).map(|(_, value)| decoded(value).collect())
}

/// The contents of the parts of a name in a multipart body (RFC 7578).
fn parts<'a>(body: &'a [u8], boundary: &[u8], name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    let mark = [b"--", boundary].concat();
    let marks: Vec<usize> = memchr::memmem::find_iter(body, &mark).take(PARTS_MAX + 1).collect();
    let between: Vec<&[u8]> = marks.windows(2).map(|pair| &body[pair[0] + mark.len()..pair[1]]).collect();
    between.into_iter().filter_map(move |part| {
        let end = memchr::memmem::find(part, b"\r\n\r\n")?;
        let content = &part[end + 4..];
        let is_named = name_of(&part[..end]).is_some_and(|of| of == name.as_bytes());
        is_named.then(|| content.strip_suffix(b"\r\n").unwrap_or(content))
    })
}

/// The name of a part, by its header.
fn name_of(head: &[u8]) -> Option<&[u8]> {
    const FIELD: &[u8] = b"content-disposition:";
    head.split(|byte| *byte == b'\n').find_map(|line| {
        let (name, value) = line.trim_ascii().split_at_checked(FIELD.len())?;
        name.eq_ignore_ascii_case(FIELD).then(|| parameter(value, b"name")).flatten()
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn check(content_type: &str, body: &str, variable: &str, expected: Option<&str>) {
        let reading = Reading::of(content_type.as_bytes()).unwrap();
        let variables = [Variable::parse_with_body(variable).unwrap()];
        let value = reading.values(body.as_bytes(), &variables, 0).unwrap().remove(0);
        assert_eq!(value.map(|value| String::from_utf8(value.into()).unwrap()).as_deref(), expected, "{variable}");
    }

    #[test]
    fn json_is_read_along_a_way() {
        let json = r#"{"a":{"b":["x",{"c":1.5},2]},"n":null,"t":true,"messages":[{"content":[{"type":"text"},{"type":"image"}]},
            {"content":"plain"},{"content":[{"type":"audio"}]}]}"#;
        check("application/json", json, "post_arg.a.b[1].c", Some("1.5"));
        check("Application/JSON; charset=utf-8", json, "post_arg.a.b", Some("x, 2"));
        check("application/json", json, "post_arg.t", Some("true"));
        check("application/json", json, "post_arg.messages[*].content[*].type", Some("text, image, audio"));
        check("application/json", json, "post_arg.messages[1].content", Some("plain"));
        for way in ["a", "n", "b", "a.b[2].c", "a.b[3]", "a.b.c", "t[*]"] {
            check("application/json", json, &format!("post_arg.{way}"), None);
        }
        check("application/json", r#"{"a":"user","a":"admin"}"#, "post_arg.a", Some("admin"));
        check("application/json", r#"{"a":"ä\n"}"#, "post_arg.a", Some("ä\n"));
        check("application/json", json, "post_arg_t", None);
        for broken in ["{", "[1]", "", "\u{feff}{\"a\":1}"] {
            check("application/json", broken, "post_arg.a", None);
        }
    }

    #[test]
    fn forms_have_values_by_name() {
        let form = |variable: &str, expected| {
            check(
                "application/x-www-form-urlencoded; charset=utf-8",
                "a=%20x&b.c=1&a=y+z&%64=4&e&f=",
                variable,
                expected,
            );
        };
        form("post_arg_a", Some(" x"));
        form("post_arg.a", Some(" x, y z"));
        form("post_arg.a[*]", Some(" x, y z"));
        form("post_arg.a[1]", Some("y z"));
        form("post_arg_b.c", Some("1"));
        form("post_arg.d", Some("4"));
        form("post_arg_e", Some(""));
        form("post_arg_f", Some(""));
        for none in ["post_arg_g", "post_arg.b.c", "post_arg.a[2]", "post_arg.a[0].b"] {
            form(none, None);
        }
    }

    #[test]
    fn parts_have_names() {
        let parts = "--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\none\r\n\
                     --B\r\ncontent-type: text/plain\r\ncontent-disposition: form-data; name=f; filename=\"x\"\r\n\r\ntwo\r\nlines\r\n\
                     --B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--B--\r\n";
        check("multipart/form-data; boundary=B", parts, "post_arg.a", Some("one, 1"));
        check("multipart/form-data; boundary=\"B\"", parts, "post_arg.f", Some("two\r\nlines"));
        check("multipart/form-data; boundary=C", parts, "post_arg.a", None);
        check("multipart/form-data; boundary=B", parts, "post_arg_a", None);
        let many = "--B\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n".repeat(PARTS_MAX + 9) + "--B--";
        check("multipart/form-data; boundary=B", &many, "post_arg.a[255]", Some("1"));
        check("multipart/form-data; boundary=B", &many, "post_arg.a[256]", None);
        assert_eq!(Reading::of(b"multipart/form-data"), None);
        assert_eq!(Reading::of(b"text/plain"), None);
    }

    #[test]
    fn what_takes_too_much_memory_is_refused() {
        let body = format!("{{\"a\":[{}]}}", vec!["{}"; 600_000].join(","));
        let variables = [Variable::parse_with_body("post_arg.b").unwrap()];
        assert_eq!(Reading::Json.values(body.as_bytes(), &variables, 0), Err(Exhausted));
        assert!(Reading::Json.values(body.as_bytes(), &variables, 64 << 20).is_ok());
    }

    #[test]
    fn what_is_too_long_is_not_there() {
        let of = |length: usize| {
            serde_json::json!({"a": "x".repeat(length), "b": ["x".repeat(length / 2), "x".repeat(length / 2)]})
                .to_string()
        };
        let lengths = |length: usize| {
            let variables = ["post_arg.a", "post_arg.b"].map(|name| Variable::parse_with_body(name).unwrap());
            let values = Reading::Json.values(of(length).as_bytes(), &variables, 0).unwrap();
            values.into_iter().map(|value| value.map(|value| value.len())).collect::<Vec<_>>()
        };
        assert_eq!(lengths(VALUE_BYTES_MAX), [Some(VALUE_BYTES_MAX), None]);
        assert_eq!(lengths(VALUE_BYTES_MAX - 2), [Some(VALUE_BYTES_MAX - 2), Some(VALUE_BYTES_MAX)]);
        assert_eq!(lengths(VALUE_BYTES_MAX + 2), [None, None]);
    }
}
