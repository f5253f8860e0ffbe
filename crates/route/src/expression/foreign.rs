//! Syntax of other languages that people write by habit, and its equivalent in this one.

use super::cursor::{is_blank, is_name};
use super::error::{ExpectedPart, quoted};
use super::literal::word_length;
use super::parse::Parser;
use super::predicate::Operator;
use crate::condition::{Field, FieldKind};
use std::ops::Range;

/// An operator of another language.
pub(super) struct Foreign {
    pub(super) length: usize,
    /// Its meaning, or at least the type of its value.
    pub(super) operator: Operator,
    native_form: NativeForm,
}

/// How this language writes it.
#[derive(Clone, Copy)]
enum NativeForm {
    /// With the operator.
    Same,
    /// With the operator, within `!( … )`.
    Negated,
    /// With a regex that begins with `(?i)`.
    AnyCase,
    /// With both.
    NegatedAnyCase,
}

impl Foreign {
    /// `left` is the left side of the comparison.
    pub(super) fn hint(&self, left: &str) -> String {
        let operator = self.operator.as_str();
        match self.native_form {
            NativeForm::Same => format!("write `{operator}`"),
            NativeForm::Negated => format!("write `!({left} {operator} …)`"),
            NativeForm::AnyCase => "write `~ \"(?i)…\"`".to_owned(),
            NativeForm::NegatedAnyCase => format!("write `!({left} ~ \"(?i)…\")`"),
        }
    }
}

/// Operators that begin with one of ours, so that they must be looked for first.
const LONGER_SIGNS: [(&str, Operator, NativeForm); 7] = [
    ("===", Operator::Equal, NativeForm::Same),
    ("!==", Operator::NotEqual, NativeForm::Same),
    ("~~*", Operator::Regex, NativeForm::AnyCase),
    ("~~", Operator::Regex, NativeForm::Same),
    ("~*", Operator::Regex, NativeForm::AnyCase),
    ("~=", Operator::NotEqual, NativeForm::Same),
    ("<>", Operator::NotEqual, NativeForm::Same),
];

const SIGNS: [(&str, Operator, NativeForm); 14] = [
    ("!~~", Operator::Regex, NativeForm::Negated),
    ("!~*", Operator::Regex, NativeForm::NegatedAnyCase),
    ("!~", Operator::Regex, NativeForm::Negated),
    ("!^=", Operator::Prefix, NativeForm::Negated),
    ("=~*", Operator::Regex, NativeForm::AnyCase),
    ("=~", Operator::Regex, NativeForm::Same),
    ("=>", Operator::GreaterOrEqual, NativeForm::Same),
    ("=<", Operator::LessOrEqual, NativeForm::Same),
    ("^~", Operator::Prefix, NativeForm::Same),
    ("$=", Operator::Suffix, NativeForm::Same),
    ("*=", Operator::Contains, NativeForm::Same),
    (":=", Operator::Equal, NativeForm::Same),
    ("=", Operator::Equal, NativeForm::Same),
    (":", Operator::Equal, NativeForm::Same),
];

/// In lower case; two words may have any blanks between them. Longer ones first.
const WORDS: [(&str, Operator, NativeForm); 38] = [
    ("not contains", Operator::Contains, NativeForm::Negated),
    ("not matches", Operator::Regex, NativeForm::Negated),
    ("not like", Operator::Regex, NativeForm::Negated),
    ("not ~", Operator::Regex, NativeForm::Negated),
    ("not ^=", Operator::Prefix, NativeForm::Negated),
    ("not =^", Operator::Suffix, NativeForm::Negated),
    ("not in", Operator::NotIn, NativeForm::Same),
    ("! in", Operator::NotIn, NativeForm::Same),
    ("!in", Operator::NotIn, NativeForm::Same),
    ("notin", Operator::NotIn, NativeForm::Same),
    ("is not", Operator::NotEqual, NativeForm::Same),
    ("starts with", Operator::Prefix, NativeForm::Same),
    ("ends with", Operator::Suffix, NativeForm::Same),
    ("in", Operator::In, NativeForm::Same),
    ("contains", Operator::Contains, NativeForm::Same),
    ("contain", Operator::Contains, NativeForm::Same),
    ("has", Operator::Contains, NativeForm::Same),
    ("includes", Operator::Contains, NativeForm::Same),
    ("is", Operator::Equal, NativeForm::Same),
    ("eq", Operator::Equal, NativeForm::Same),
    ("equals", Operator::Equal, NativeForm::Same),
    ("ne", Operator::NotEqual, NativeForm::Same),
    ("gt", Operator::Greater, NativeForm::Same),
    ("ge", Operator::GreaterOrEqual, NativeForm::Same),
    ("gte", Operator::GreaterOrEqual, NativeForm::Same),
    ("lt", Operator::Less, NativeForm::Same),
    ("le", Operator::LessOrEqual, NativeForm::Same),
    ("lte", Operator::LessOrEqual, NativeForm::Same),
    ("matches", Operator::Regex, NativeForm::Same),
    ("match", Operator::Regex, NativeForm::Same),
    ("like", Operator::Regex, NativeForm::Same),
    ("starts_with", Operator::Prefix, NativeForm::Same),
    ("startswith", Operator::Prefix, NativeForm::Same),
    ("prefix", Operator::Prefix, NativeForm::Same),
    ("ends_with", Operator::Suffix, NativeForm::Same),
    ("endswith", Operator::Suffix, NativeForm::Same),
    ("suffix", Operator::Suffix, NativeForm::Same),
    ("ipmatch", Operator::In, NativeForm::Same),
];

pub(super) fn longer_operator(text: &str) -> Option<Foreign> {
    sign(&LONGER_SIGNS, text)
}

pub(super) fn operator(text: &str) -> Option<Foreign> {
    let word = WORDS.iter().find_map(|(word, operator, write)| {
        let length = leading_words(text, word)?;
        Some(Foreign { length, operator: *operator, native_form: *write })
    });
    word.or_else(|| sign(&SIGNS, text))
}

fn sign(signs: &[(&str, Operator, NativeForm)], text: &str) -> Option<Foreign> {
    let (sign, operator, write) = signs.iter().find(|(sign, ..)| text.starts_with(sign))?;
    Some(Foreign { length: sign.len(), operator: *operator, native_form: *write })
}

/// The length of `words` if a text begins with them, in any case, and the last one ends there.
fn leading_words(text: &str, words: &str) -> Option<usize> {
    let mut rest = text;
    for (index, word) in words.split(' ').enumerate() {
        let begin = if index == 0 { rest } else { rest.trim_start_matches(is_blank) };
        if index > 0 && begin.len() == rest.len() {
            return None;
        }
        let (head, tail) = begin.split_at_checked(word.len())?;
        if !head.eq_ignore_ascii_case(word) {
            return None;
        }
        rest = tail;
    }
    let is_whole = !words.ends_with(|c: char| c.is_ascii_alphabetic()) || !rest.starts_with(is_name);
    is_whole.then_some(text.len() - rest.len())
}

/// A `not` before a condition.
pub(super) fn leading_not(text: &str) -> Option<&str> {
    let length = leading_words(text, "not")?;
    let rest = text[length..].trim_start_matches(is_blank);
    let begins = rest.starts_with('(') || rest.starts_with(|c: char| c.is_ascii_alphabetic());
    (begins && leading_words(rest, "in").is_none()).then_some(&text[..length])
}

/// An operator that joins conditions in other languages, and whether it means `&&`. The text does not begin with
/// `&&` or `||`.
pub(super) fn logical_operator(text: &str) -> Option<(&str, bool)> {
    let words = [("and", true), ("or", false)];
    let word = words.into_iter().find_map(|(word, and)| Some((leading_words(text, word)?, and)));
    let sign = || [('&', true), (',', true), ('|', false)].into_iter().find(|(sign, _)| text.starts_with(*sign));
    word.or_else(|| sign().map(|(_, and)| (1, and))).map(|(length, and)| (&text[..length], and))
}

/// A hint where neither a joining operator nor the end follows a condition.
pub(super) fn missing_logical_operator(text: &str, literal: Range<usize>, at: usize) -> Option<String> {
    let rest = &text[at..];
    let is_text = literal.end == at && text[literal.clone()].ends_with('"');
    if is_text && rest.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '"' | '/' | '\\' | '-' | '.' | '_')) {
        let before = quoted(&text[literal]);
        return Some(format!("the text before it is {before}; a `\"` within a text is written `\\\"`"));
    }
    let hint = if ["#", "//", "/*", "--"].iter().any(|comment| rest.starts_with(comment)) {
        "comments are not supported"
    } else if rest.starts_with(|c: char| c == '(' || c == '!' || c.is_ascii_alphabetic()) && !rest.starts_with("!=") {
        "write `&&` or `||` between two conditions"
    } else if operator(rest).is_some() || Operator::from_prefix(rest).is_some() {
        "a condition has one operator; write two, joined by `&&`"
    } else {
        return None;
    };
    Some(hint.to_owned())
}

/// The meaning of a function of another language: its name here, if it has one, and a hint. `behind` is the text
/// that follows, from the parenthesis on.
pub(super) fn function(name: &str, behind: &str) -> (Option<&'static str>, String) {
    let plain = name.to_ascii_lowercase().replace(['_', '.'], "");
    let ours = match plain.as_str() {
        "lower" | "lowercase" | "tolower" | "tolowercase" | "downcase" | "lcase" | "casefold" => Some("lower"),
        "any" | "anyof" | "some" => Some("any"),
        _ => None,
    };
    if let Some(ours) = ours {
        return (Some(ours), format!("write `{ours}(…)`"));
    }
    let hint = match plain.as_str() {
        "startswith" | "hasprefix" | "beginswith" | "prefix" => "write `FIELD ^= \"…\"`",
        "endswith" | "hassuffix" | "suffix" => "write `FIELD =^ \"…\"`",
        "contains" | "includes" | "has" => "write `FIELD contains \"…\"`",
        "matches" | "match" | "regex" | "regexp" => "write `FIELD ~ \"…\"`",
        "pathprefix" => "write `http.path ^= \"…\"`",
        "pathregexp" => "write `http.path ~ \"…\"`",
        "hostregexp" => "write `http.host ~ \"…\"`",
        "host" => "write `http.host == \"…\"`",
        "path" | "uri" => "write `http.path == \"…\"`",
        "method" => "write `http.method == \"…\"`",
        "header" | "headers" => "write `http.headers.NAME == \"…\"`",
        "query" | "queries" | "arg" => "write `http.queries.NAME == \"…\"`",
        "clientip" | "cidr" | "ipmatch" => "write `net.src.ip in 10.0.0.0/8`",
        "exists" | "present" | "defined" | "isset" => "write `FIELD ^= \"\"`, which holds if the field is present",
        "all" | "every" => "leave it out: all values must pass unless `any(…)` is written",
        "upper" | "toupper" | "uppercase" => "write `lower(…)`, and the text in lower case",
        _ => "there are `lower(…)` and `any(…)`",
    };
    let argument = behind.trim_start_matches(|c| c == '(' || is_blank(c));
    let argument = &argument[..argument.find(|c| !is_name(c)).unwrap_or(argument.len())];
    let field = if Field::parse(argument).is_ok() { argument } else { "FIELD" };
    (None, hint.replace("FIELD", field))
}

/// The list of fields, for an unknown field that resembles none of them.
pub(super) const FIELDS: &str = "there are http.{method, host, path, path.segments.N, headers.NAME, queries.NAME}, \
                                 net.{protocol, src.ip, src.port, dst.ip, dst.port} and tls.sni";

/// A hint for an unknown field, if a known one resembles it.
pub(super) fn field(name: &str, nearest: Option<String>) -> Option<String> {
    let plain = name.to_ascii_lowercase();
    let plain = ["http.", "req.", "request.", "net.", "tls."]
        .iter()
        .find_map(|head| plain.strip_prefix(head))
        .unwrap_or(&plain);
    let known = match plain {
        "uri" | "request_uri" | "path" | "url" => Some("http.path"),
        "host" | "server_name" => Some("http.host"),
        "method" | "request_method" => Some("http.method"),
        "remote_addr" | "client_ip" | "ip" | "src_ip" => Some("net.src.ip"),
        "remote_port" => Some("net.src.port"),
        "server_addr" => Some("net.dst.ip"),
        "server_port" | "port" => Some("net.dst.port"),
        "scheme" | "protocol" => Some("net.protocol"),
        "ssl_server_name" | "sni" => Some("tls.sni"),
        "true" => return Some("`http.path ^= \"/\"` holds for every request".to_owned()),
        "false" => return Some("`http.path == \"\"` holds for no request".to_owned()),
        "any" | "lower" => return Some(format!("a function has parentheses: write `{plain}(…)`")),
        _ => None,
    };
    let parts = [("arg_", "http.queries."), ("http_", "http.headers."), ("query_", "http.queries.")];
    let named = || {
        let (part, prefix) = parts.iter().find_map(|(from, to)| Some((plain.strip_prefix(from)?, to)))?;
        (!part.is_empty() && !part.contains('.')).then(|| format!("{prefix}{part}"))
    };
    known.map(str::to_owned).or_else(named).or(nearest).map(|write| format!("did you mean `{write}`?"))
}

/// A hint where no operator follows a field.
pub(super) fn no_operator(left: &str, field: Option<&Field>, rest: &str) -> Option<String> {
    let ends = rest.is_empty() || rest.starts_with([')', '&', '|']) || logical_operator(rest).is_some();
    if ends {
        return match field?.kind() {
            FieldKind::Text => Some(format!("`{left} ^= \"\"` holds if it is present")),
            FieldKind::Int => Some(format!("write `{left} == 443`, say")),
            FieldKind::Ip => Some(format!("write `{left} in 10.0.0.0/8`, say")),
        };
    }
    let operators = match field.map(Field::kind) {
        Some(FieldKind::Int) => "numbers have `==`, `!=`, `<`, `<=`, `>` and `>=`",
        Some(FieldKind::Ip) => "addresses have `==`, `!=`, `in` and `not in`",
        _ => "texts have `==`, `!=`, `^=`, `=^`, `contains` and `~`",
    };
    Some(operators.to_owned())
}

/// A text in quotes that this language does not have: its content, and its length.
pub(super) fn quotes(text: &str) -> Option<(&str, usize)> {
    let pairs =
        [("'", "'"), ("“", "”"), ("„", "“"), ("‘", "’"), ("`", "`"), ("r\"", "\""), ("r##\"", "\"##"), ("r'", "'")];
    let (open, close) = pairs.into_iter().find(|(open, _)| text.starts_with(open))?;
    let content = &text[open.len()..];
    let length = content.find(close)?;
    Some((&content[..length], open.len() + length + close.len()))
}

pub(super) fn is_quote(c: char) -> bool {
    matches!(c, '\'' | '`' | '“' | '”' | '„' | '‘' | '’')
}

/// A hint where no value follows an operator.
pub(super) fn no_value(rest: &str, expected: ExpectedPart, left: &str, operator: Operator) -> Option<String> {
    let word = &rest[..word_length(rest)];
    let operator = operator.as_str();
    if rest.starts_with(['(', '[', '{']) {
        let joint = if matches!(operator, "!=" | "not in") { "&&" } else { "||" };
        return Some(format!("lists are not supported; write `({left} {operator} … {joint} {left} {operator} …)`"));
    }
    if rest.is_empty() || rest.starts_with([')', '&', '|']) {
        return None;
    }
    if matches!(word.to_ascii_lowercase().as_str(), "null" | "nil" | "none" | "undefined") {
        return Some(format!("`!({left} ^= \"\")` holds where it is absent"));
    }
    if Field::parse(word).is_ok() {
        return Some("a field is compared with a value, never with another field".to_owned());
    }
    if let Some(regex) = word.strip_prefix('/').and_then(|word| word.strip_suffix('/')).filter(|_| operator == "~") {
        return Some(format!("write `r#\"{regex}\"#`"));
    }
    if let Some(number) = word.strip_prefix('+') {
        return Some(format!("write `{number}`"));
    }
    if word.starts_with(['=', '!', '<', '>', '~', '^']) {
        return Some("a condition has one operator".to_owned());
    }
    if word.starts_with(is_quote) {
        return Some("quotes are `\"`, on both sides".to_owned());
    }
    match expected {
        ExpectedPart::Text | ExpectedPart::Value if !word.contains(['"', '\\']) => Some(format!("write `\"{word}\"`")),
        ExpectedPart::Text | ExpectedPart::Value => Some(format!("write `r#\"{word}\"#`")),
        _ => None,
    }
}

impl Parser<'_> {
    /// A hint where a condition does not begin with a field: perhaps with a value, which should be on the right.
    pub(super) fn value_on_the_left(&self) -> String {
        let rest = self.cursor.rest();
        let swapped = || {
            let quoted = rest.strip_prefix('"').and_then(|text| Some(text.find('"')? + 2));
            let (value, behind) = rest.split_at(quoted.unwrap_or(word_length(rest)));
            let behind = behind.trim_start_matches(is_blank);
            let (operator, length) = Operator::from_prefix(behind)?;
            let behind = behind[length..].trim_start_matches(is_blank);
            let field = &behind[..behind.find(|c| !is_name(c)).unwrap_or(behind.len())];
            Field::parse(field).ok()?;
            let operator = match operator {
                Operator::Less => Operator::Greater,
                Operator::LessOrEqual => Operator::GreaterOrEqual,
                Operator::Greater => Operator::Less,
                Operator::GreaterOrEqual => Operator::LessOrEqual,
                Operator::In if value.starts_with('"') => Operator::Contains,
                Operator::Equal if value.contains('/') && !value.starts_with('"') => Operator::In,
                same => same,
            };
            Some(format!("the field must be on the left: write `{field} {} {value}`", operator.as_str()))
        };
        swapped().unwrap_or_else(|| match rest.starts_with('$') {
            true => "fields have no `$`: write `http.path`, `http.headers.x_beta`".to_owned(),
            false => "a condition is a field, an operator and a value: `http.path == \"/a\"`".to_owned(),
        })
    }
}
