//! Conditions on requests: the value that they compare with a client's header, cookie or argument may be a credential, whatever its
//! name is.
//!
//! The fields that cannot contain a credential are listed; any unknown field may contain one. A condition shows its field and its
//! operator. An unreadable expression is hidden as a whole if it could contain the name of a secret field.

use super::Each;
use super::possible::{SECRET_WORDS, each_below, each_in_object};
use serde_json::Value as Json;
use std::ops::Range;
use stillgate_route::condition::{Condition, Field};
use stillgate_route::{Expression, HeaderName, RECORDED, Variable};

/// Keys whose values are conditions, in documents of all kinds and in plugins.
pub(super) const KEYS: [&str; 6] =
    ["vars", "filter", "match", "case", "include_req_body_expr", "include_resp_body_expr"];

/// Operators of conditions in lists; `!` negates the following one.
const OPERATORS: [&str; 12] = ["==", "~=", ">", ">=", "<", "<=", "~~", "~*", "in", "has", "ipmatch", "!"];

/// Words that combine conditions in a list.
const JOINTS: [&str; 4] = ["and", "or", "!and", "!or"];

/// Header fields that never contain a credential.
const OPEN_HEADERS: [&str; 27] = [
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "connection",
    "content-encoding",
    "content-language",
    "content-length",
    "content-type",
    "date",
    "expect",
    "host",
    "if-modified-since",
    "if-none-match",
    "origin",
    "pragma",
    "range",
    "te",
    "upgrade",
    "user-agent",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-real-ip",
];

/// Substrings of every expression that may read a header, a cookie or an argument, whether it can be parsed or not.
const SECRET_FIELDS: [&str; 7] = ["header", "quer", "cookie", "arg", "http_", "auth", "body"];

/// Whether the value that is compared with a variable, or with a field of expressions, may be a secret.
pub fn is_secret_field(name: &str) -> bool {
    if RECORDED.contains(&name) {
        return false;
    }
    match (Field::parse(name), Variable::parse_with_body(name)) {
        (Ok(field), _) => is_secret(&field),
        (_, Ok(variable)) => is_secret_variable(&variable),
        (Err(_), Err(_)) => true,
    }
}

fn is_secret(field: &Field) -> bool {
    match field {
        Field::Header(name) => is_secret_header(name),
        Field::Query(_) => true,
        Field::Variable(variable) => is_secret_variable(variable),
        Field::Method
        | Field::Host
        | Field::Path
        | Field::Segment(_)
        | Field::Segments(..)
        | Field::SegmentCount
        | Field::Protocol
        | Field::SourceIp
        | Field::SourcePort
        | Field::DestinationIp
        | Field::DestinationPort
        | Field::Sni => false,
    }
}

fn is_secret_variable(variable: &Variable) -> bool {
    match variable {
        Variable::Header(name) | Variable::SentHeader(name) | Variable::UpstreamHeader(name) => is_secret_header(name),
        Variable::RequestUri
        | Variable::Args
        | Variable::Arg(_)
        | Variable::Cookie(_)
        | Variable::PathParam(_)
        | Variable::RouteParam(_)
        | Variable::RemoteUser
        | Variable::PostArg(_)
        | Variable::BodyArg(_) => true,
        Variable::Uri
        | Variable::IsArgs
        | Variable::Host
        | Variable::RequestMethod
        | Variable::Scheme
        | Variable::ServerProtocol
        | Variable::RemoteAddr
        | Variable::RemotePort
        | Variable::PeerAddr
        | Variable::ServerAddr
        | Variable::ServerPort
        | Variable::SslServerName
        | Variable::Ssl(_)
        | Variable::RouteId
        | Variable::ServiceId
        | Variable::ConsumerName
        | Variable::ConsumerGroupId
        | Variable::Status
        | Variable::RouteName
        | Variable::ServiceName
        | Variable::Recorded(_) => false,
    }
}

fn is_secret_header(name: &HeaderName) -> bool {
    !OPEN_HEADERS.contains(&name.as_str())
}

/// Whether a word may occur in a condition without being a secret: an operator, a combining word, or a field.
pub(crate) fn is_known_word(word: &str) -> bool {
    let lower = word.to_ascii_lowercase();
    OPERATORS.contains(&lower.as_str())
        || JOINTS.contains(&lower.as_str())
        || ["any", "lower", "not", "contains"].contains(&lower.as_str())
        || Field::parse(word).is_ok()
        || Variable::parse_with_body(word).is_ok()
}

/// Visits possible secrets in the value of one of [`KEYS`].
/// `within`: the place of the key.
pub(super) fn each_in_conditions(within: &str, value: &mut Json, each: Each<'_>) {
    match value {
        Json::Array(items) => match items.first().and_then(Json::as_str) {
            None => items.iter_mut().for_each(|item| each_in_conditions(within, item, each)),
            Some(first) if JOINTS.contains(&first.to_ascii_lowercase().as_str()) => {
                items.iter_mut().skip(1).for_each(|item| each_in_conditions(within, item, each));
            }
            Some(_) => each_in_condition(items, each),
        },
        // The conditions of a rule are within an object.
        Json::Object(rule) => each_in_object(within, rule, each),
        other => each_below(other, each),
    }
}

/// Whether a list elsewhere looks like a condition: `["http_x_key", "==", "…"]`.
pub(super) fn is_condition(items: &[Json]) -> bool {
    items.len() >= 3 && items[0].is_string() && is_operator(&items[1])
}

/// Visits a single condition.
pub(super) fn each_in_condition(items: &mut [Json], each: Each<'_>) {
    let name = items.first().and_then(Json::as_str).unwrap_or_default();
    let is_negated = items.get(1).is_some_and(|item| item == "!");
    // A value that is compared with an open field.
    let is_open = !is_secret_field(name) && items.len() <= 3 + usize::from(is_negated);
    let is_name = is_field_like(name) && !items[1..].iter().any(|item| item.as_str().is_some_and(is_field));
    for (index, item) in items.iter_mut().enumerate() {
        let is_shown = match index {
            0 => is_name || is_field(item.as_str().unwrap_or_default()),
            1 => is_operator(item),
            2 if is_negated => is_operator(item),
            _ => is_open && is_plain(item),
        };
        if !is_shown {
            each_below(item, each);
        }
    }
}

/// Whether a text is the field of a condition.
fn is_field(text: &str) -> bool {
    Field::parse(text).is_ok() || Variable::parse_with_body(text).is_ok() || RECORDED.contains(&text)
}

/// Whether a text may be meant as a field. Otherwise it may be a whole condition, or the value in the wrong place.
fn is_field_like(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-.*[]$".contains(c))
}

/// Whether a value contains no key of an object.
fn is_plain(value: &Json) -> bool {
    match value {
        Json::Array(items) => items.iter().all(is_plain),
        other => !other.is_object(),
    }
}

fn is_operator(item: &Json) -> bool {
    item.as_str().is_some_and(|text| OPERATORS.contains(&text.to_ascii_lowercase().as_str()))
}

/// Visits possible secrets in the text of an expression.
pub(super) fn each_in_expression(text: &mut String, each: Each<'_>) {
    if !may_read_secret(text) {
        return;
    }
    match Expression::parse(text) {
        Ok(expression) => each_literal(text, expression.condition(), each),
        Err(_) => each(text),
    }
}

/// Whether an expression may compare something with a secret; there are false positives, but no false negatives.
pub(crate) fn may_read_secret(expression: &str) -> bool {
    let text = expression.to_ascii_lowercase();
    SECRET_FIELDS.iter().any(|part| text.contains(part)) || SECRET_WORDS.iter().any(|word| text.contains(word))
}

/// The text of an expression with a mask in place of each possible secret.
pub fn masked_expression(expression: &Expression, mask: &str) -> String {
    let mut text = expression.text().to_owned();
    each_literal(&mut text, expression.condition(), &mut |secret| mask.clone_into(secret));
    text
}

fn each_literal(text: &mut String, condition: &Condition, each: Each<'_>) {
    let mut places = Vec::new();
    let mut is_found = true;
    condition.each_predicate(&mut |predicate| {
        if is_secret(&predicate.field) {
            let place = predicate.source.at.and_then(|at| literal_of(text, at, &predicate.source.text));
            is_found &= place.is_some();
            places.extend(place);
        }
    });
    if !is_found {
        return each(text);
    }
    // From the end, so that earlier positions stay valid.
    places.sort_unstable_by_key(|place| std::cmp::Reverse(place.start));
    for place in places {
        let mut literal = text[place.clone()].to_owned();
        each(&mut literal);
        if text[place.clone()] != literal {
            text.replace_range(place, &literal);
        }
    }
}

/// The position of a predicate's value in an expression, without its quotes. Fields that may contain secrets are texts.
fn literal_of(text: &str, (line, column): (u32, u32), predicate: &str) -> Option<Range<usize>> {
    let before: usize = text.split_inclusive('\n').take(line as usize - 1).map(str::len).sum();
    let (in_line, _) = text[before..].char_indices().nth(column as usize - 1)?;
    let begin = before + in_line;
    if !text[begin..].starts_with(predicate) {
        return None;
    }
    let quote = predicate.find('"')?;
    let closing = if predicate[..quote].ends_with("r#") { "\"#" } else { "\"" };
    let end = predicate.len().checked_sub(closing.len()).filter(|end| *end > quote && predicate.ends_with(closing))?;
    Some(begin + quote + 1..begin + end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_field_is_secret_unless_it_is_known_to_be_open() {
        for name in [
            "http_x_key",
            "http_authorization",
            "http_x_canary",
            "cookie_a",
            "arg_sig",
            "args",
            "request_uri",
            "post_arg_pin",
            "post_arg.a.b",
            "remote_user",
            "uri_param_id",
            "sent_http_set_cookie",
            "http.headers.x_key",
            "http.queries.sig",
            "http.header.x",
            "unknown",
            "",
        ] {
            assert!(is_secret_field(name), "{name}");
        }
        for name in [
            "uri",
            "host",
            "request_method",
            "remote_addr",
            "http_host",
            "http_user_agent",
            "content_type",
            "status",
            "http.path",
            "http.path.segments.0",
            "http.headers.accept",
            "net.src.ip",
            "tls.sni",
            "request_time",
        ] {
            assert!(!is_secret_field(name), "{name}");
        }
    }

    #[test]
    fn values_of_expressions_are_found() {
        let check = |text: &str, expected: &str| {
            let mut masked = text.to_owned();
            each_in_expression(&mut masked, &mut |secret| "*".clone_into(secret));
            assert_eq!(masked, expected);
            if let Ok(expression) = Expression::parse(text) {
                assert_eq!(masked_expression(&expression, "*"), expected);
                assert!(Expression::parse(&masked).is_ok(), "{masked}");
            }
        };
        check(r#"http.path ^= "/in/""#, r#"http.path ^= "/in/""#);
        check(
            "http.path ^= \"/é\" &&\n  (http.headers.authorization == \"S3CRET\" || http.host == \"a\")",
            "http.path ^= \"/é\" &&\n  (http.headers.authorization == \"*\" || http.host == \"a\")",
        );
        check(
            r##"any(lower(http.queries.sig)) =^ "a\"b" && !(http.headers.x == r#"c"d"#)"##,
            r##"any(lower(http.queries.sig)) =^ "*" && !(http.headers.x == r#"*"#)"##,
        );
        check(
            r#"http.headers.user_agent ~ "curl" && net.src.port == 3"#,
            r#"http.headers.user_agent ~ "curl" && net.src.port == 3"#,
        );
        // Expressions that cannot be parsed.
        check("http.headers.authorization == S3CRET", "*");
        check("http_x == \"S\"", "*");
        check("arg[sig] = \"S\"", "*");
        check("http.path == /a", "http.path == /a");
    }

    #[test]
    fn values_of_conditions_are_found() {
        let check = |value: Json, expected: Json| {
            let mut masked = value.clone();
            each_in_conditions("routes", &mut masked, &mut |secret| "*".clone_into(secret));
            assert_eq!(masked, expected, "{value}");
        };
        check(
            json!([["http_x", "==", "S"], ["arg_pin", "!", "in", ["S", 1234]], ["host", "==", "a"]]),
            json!([["http_x", "==", "*"], ["arg_pin", "!", "in", ["*", "*"]], ["host", "==", "a"]]),
        );
        check(
            json!(["OR", ["and", ["cookie_a", "~~", "S"], ["uri", "==", "/"]], ["http_a", "has", "S"]]),
            json!(["OR", ["and", ["cookie_a", "~~", "*"], ["uri", "==", "/"]], ["http_a", "has", "*"]]),
        );
        // Malformed conditions.
        check(json!([["http_x", "S"]]), json!([["http_x", "*"]]));
        check(json!([["http_x", "=", "S"]]), json!([["http_x", "*", "*"]]));
        check(json!([["http_x == S"]]), json!([["*"]]));
        check(json!("http_x == S"), json!("*"));
        check(json!(["OR", "http_x == S"]), json!(["OR", "*"]));
        check(json!([["http_x", "==", {"a": ["S"]}]]), json!([["http_x", "==", {"*": ["*"]}]]));
        check(json!([{"vars": [["http_x", "==", "S"]]}]), json!([{"vars": [["http_x", "==", "*"]]}]));
        check(json!([["S3CRET", "==", "arg_x"]]), json!([["*", "==", "*"]]));
        check(json!([["host", "==", {"S": 1}]]), json!([["host", "==", {"*": "*"}]]));
        check(json!([{"http_x": "S"}]), json!([{"http_x": "*"}]));
        check(json!({"http_x": {"==": "S"}}), json!({"http_x": {"*": "*"}}));
        check(json!([]), json!([]));
        check(json!(7), json!("*"));
    }
}
