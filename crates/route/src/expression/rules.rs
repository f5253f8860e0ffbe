//! Rules of types: which operators and values go with which fields, and the test that results.

use super::error::{ExpectedPart, ExpressionErrorKind as Kind};
use super::excerpt::quoted;
use super::literal::{LiteralValue, SpannedLiteral, source_offset};
use super::predicate::Operator;
use crate::condition::{Field, FieldKind, Test};
use crate::regex::Pattern;
use ipnet::IpNet;
use regex_syntax::ast::ErrorKind as RegexErrorKind;
use std::net::IpAddr;
use std::ops::Range;

/// An error that is not yet reported.
pub(super) struct Problem {
    pub(super) span: Range<usize>,
    pub(super) kind: Kind,
    pub(super) hint: Option<String>,
}

pub(super) fn is_text(field: &Field) -> bool {
    field.kind() == FieldKind::Text
}

/// The type of value that an operator requires; `None` where the operator cannot be used with the field.
pub(super) fn wanted(field: Option<&Field>, operator: Operator) -> Option<ExpectedPart> {
    let kind = field.map(Field::kind);
    let only = |only: FieldKind, expected: ExpectedPart| kind.is_none_or(|kind| kind == only).then_some(expected);
    match operator {
        Operator::Equal | Operator::NotEqual => Some(match kind {
            None => ExpectedPart::Value,
            Some(FieldKind::Text) => ExpectedPart::Text,
            Some(FieldKind::Int) => ExpectedPart::Number,
            Some(FieldKind::Ip) => ExpectedPart::Address,
        }),
        Operator::Regex | Operator::Prefix | Operator::Suffix | Operator::Contains => {
            only(FieldKind::Text, ExpectedPart::Text)
        }
        Operator::Greater | Operator::GreaterOrEqual | Operator::Less | Operator::LessOrEqual => {
            only(FieldKind::Int, ExpectedPart::Number)
        }
        Operator::In | Operator::NotIn => only(FieldKind::Ip, ExpectedPart::Network),
    }
}

/// The test of a predicate, if its parts go together. `left` is the field as it was written, with its functions.
pub(super) fn test(
    text: &str,
    left: &str,
    field: &Field,
    (operator, operator_span): (Operator, Range<usize>),
    literal: SpannedLiteral,
) -> Result<Test, Problem> {
    let Some(expected) = wanted(Some(field), operator) else {
        let kind = Kind::OperatorType { operator: operator.as_str(), field: field.clone() };
        let hint = Some(operators_of(left, field, operator));
        return Err(Problem { span: operator_span, kind, hint });
    };
    let SpannedLiteral { value, span } = literal;
    Ok(match (operator, expected, value) {
        (Operator::Regex, _, LiteralValue::Text(source)) => return regex(text, span, &source),
        (Operator::Equal, ExpectedPart::Text, LiteralValue::Text(value)) => Test::Equal(bytes(value)),
        (Operator::NotEqual, ExpectedPart::Text, LiteralValue::Text(value)) => Test::NotEqual(bytes(value)),
        (Operator::Prefix, _, LiteralValue::Text(value)) => Test::Prefix(bytes(value)),
        (Operator::Suffix, _, LiteralValue::Text(value)) => Test::Suffix(bytes(value)),
        (Operator::Contains, _, LiteralValue::Text(value)) => Test::Contains(bytes(value)),
        (Operator::Equal, ExpectedPart::Number, LiteralValue::Number(number)) => Test::IntEqual(number),
        (Operator::NotEqual, ExpectedPart::Number, LiteralValue::Number(number)) => Test::IntNotEqual(number),
        (Operator::Less, _, LiteralValue::Number(number)) => Test::Less(number),
        (Operator::LessOrEqual, _, LiteralValue::Number(number)) => Test::LessOrEqual(number),
        (Operator::Greater, _, LiteralValue::Number(number)) => Test::Greater(number),
        (Operator::GreaterOrEqual, _, LiteralValue::Number(number)) => Test::GreaterOrEqual(number),
        (Operator::Equal, ExpectedPart::Address, LiteralValue::Address(address)) => Test::IpEqual(address),
        (Operator::NotEqual, ExpectedPart::Address, LiteralValue::Address(address)) => Test::IpNotEqual(address),
        (Operator::In, _, LiteralValue::Network(network)) => Test::InNetwork(network),
        (Operator::NotIn, _, LiteralValue::Network(network)) => Test::NotInNetwork(network),
        (_, _, value) => {
            let written = &text[span.clone()];
            let hint = other_value(left, operator, expected, &value, written);
            let found = format!("the {} {}", value.type_name(), quoted(written));
            let kind = Kind::ValueType { expected, field: field.clone(), found };
            return Err(Problem { span, kind, hint });
        }
    })
}

fn bytes(text: String) -> Box<[u8]> {
    text.into_bytes().into()
}

fn operators_of(left: &str, field: &Field, operator: Operator) -> String {
    match (field.kind(), operator) {
        (FieldKind::Text, Operator::In | Operator::NotIn) => {
            let (equal, joint) = if operator == Operator::In { ("==", "||") } else { ("!=", "&&") };
            format!(
                "`{}` is for networks; write `({left} {equal} \"a\" {joint} {left} {equal} \"b\")`",
                operator.as_str()
            )
        }
        (FieldKind::Text, _) => "texts have `==`, `!=`, `^=`, `=^`, `contains` and `~`".to_owned(),
        (FieldKind::Int, _) => "numbers have `==`, `!=`, `<`, `<=`, `>` and `>=`".to_owned(),
        (FieldKind::Ip, _) => {
            format!("addresses have `==`, `!=`, `in` and `not in`, as in `{left} in 10.0.0.0/8`")
        }
    }
}

fn other_value(
    left: &str,
    operator: Operator,
    expected: ExpectedPart,
    value: &LiteralValue,
    written: &str,
) -> Option<String> {
    let single = if operator == Operator::NotIn { "!=" } else { "==" };
    let several = if operator == Operator::NotEqual { "not in" } else { "in" };
    match (expected, value) {
        (ExpectedPart::Text, _) => Some(format!("write `\"{written}\"`")),
        (ExpectedPart::Network, LiteralValue::Address(address)) => {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            Some(format!("write `{address}/{bits}`, or `{left} {single} {address}`"))
        }
        (ExpectedPart::Address, LiteralValue::Network(network)) => Some(format!("write `{left} {several} {network}`")),
        (_, LiteralValue::Text(text)) => {
            let fits = match expected {
                ExpectedPart::Number => text.parse::<i64>().is_ok(),
                ExpectedPart::Address if text.parse::<IpNet>().is_ok() => {
                    return Some(format!("write `{left} {several} {text}`"));
                }
                ExpectedPart::Address => text.parse::<IpAddr>().is_ok(),
                _ => text.parse::<IpNet>().is_ok(),
            };
            fits.then(|| format!("write it without quotes: `{text}`"))
        }
        _ => None,
    }
}

/// `span` is the literal's.
fn regex(text: &str, span: Range<usize>, source: &str) -> Result<Test, Problem> {
    let refused = match Pattern::unicode(source) {
        Ok(pattern) => return Ok(Test::Regex(pattern)),
        Err(refused) => refused,
    };
    // The parser that refused it also reports the position.
    let parsed = regex_syntax::ParserBuilder::new().utf8(false).build().parse(source);
    let (reason, inner, hint) = match parsed {
        Err(regex_syntax::Error::Parse(error)) => {
            let hint = match error.kind() {
                RegexErrorKind::UnsupportedLookAround => Some("use a second predicate, or `!( … ~ … )`"),
                RegexErrorKind::UnsupportedBackreference => {
                    Some("compare with each text that may come, joined by `||`")
                }
                RegexErrorKind::EscapeUnrecognized => Some("write the letter without `\\`"),
                _ => None,
            };
            (error.kind().to_string(), Some(error.span().start.offset..error.span().end.offset), hint)
        }
        Err(regex_syntax::Error::Translate(error)) => {
            (error.kind().to_string(), Some(error.span().start.offset..error.span().end.offset), None)
        }
        // It is well-formed, but exceeds the limits.
        _ => {
            let refused = refused.to_string();
            let line = refused.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it is too large");
            (line.trim_end_matches('.').to_owned(), None, None)
        }
    };
    let inner = inner.map(|inner| {
        let literal = &text[span.clone()];
        span.start + source_offset(literal, inner.start)..span.start + source_offset(literal, inner.end)
    });
    Err(Problem { span: inner.unwrap_or(span), kind: Kind::Regex { reason }, hint: hint.map(str::to_owned) })
}
