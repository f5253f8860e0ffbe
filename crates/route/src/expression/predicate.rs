//! Predicates: a field, perhaps in functions, an operator and a value; and the rules of types: which operators and values go
//! with which fields, and the test that results.

use super::cursor::{is_blank, is_name};
use super::error::{ExpectedPart, ExpressionErrorKind as Kind, is_invisible, quoted};
use super::literal::{LiteralValue, SpannedLiteral, begins_number, source_offset};
use super::parse::{ErrorExtent, Parsed, Parser};
use super::{PREDICATES_MAX, foreign};
use crate::condition::{Condition, Field, FieldError, FieldKind, Predicate, PredicateOrigin, Test, nearest};
use crate::regex::{Pattern, RegexTotal};
use ipnet::IpNet;
use regex_syntax::ast::ErrorKind as RegexErrorKind;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

/// An operator that compares a field with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Equal,
    NotEqual,
    Regex,
    Prefix,
    Suffix,
    GreaterOrEqual,
    Greater,
    LessOrEqual,
    Less,
    In,
    NotIn,
    Contains,
}

/// Operators made of signs, in the grammar's order: a prefix of another comes behind it.
const SIGNS: [Operator; 9] = [
    Operator::Equal,
    Operator::NotEqual,
    Operator::Regex,
    Operator::Prefix,
    Operator::Suffix,
    Operator::GreaterOrEqual,
    Operator::Greater,
    Operator::LessOrEqual,
    Operator::Less,
];

impl Operator {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Operator::Equal => "==",
            Operator::NotEqual => "!=",
            Operator::Regex => "~",
            Operator::Prefix => "^=",
            Operator::Suffix => "=^",
            Operator::GreaterOrEqual => ">=",
            Operator::Greater => ">",
            Operator::LessOrEqual => "<=",
            Operator::Less => "<",
            Operator::In => "in",
            Operator::NotIn => "not in",
            Operator::Contains => "contains",
        }
    }

    /// The operator with which a text begins, and its length.
    pub(super) fn from_prefix(text: &str) -> Option<(Operator, usize)> {
        if let Some(sign) = SIGNS.into_iter().find(|sign| text.starts_with(sign.as_str())) {
            return Some((sign, sign.as_str().len()));
        }
        // The grammar has no words, so a value may follow without a blank.
        let ends = |rest: &str| !rest.starts_with(is_name) || begins_value(rest);
        if let Some(rest) = text.strip_prefix("not") {
            let spaced = rest.trim_start_matches(is_blank);
            let rest = spaced.strip_prefix("in").filter(|_| spaced.len() < rest.len())?;
            return ends(rest).then_some((Operator::NotIn, text.len() - rest.len()));
        }
        let word = |operator: Operator| {
            let rest = text.strip_prefix(operator.as_str())?;
            ends(rest).then_some((operator, operator.as_str().len()))
        };
        word(Operator::In).or_else(|| word(Operator::Contains))
    }
}

fn begins_value(text: &str) -> bool {
    text.starts_with('"') || text.starts_with("r#\"") || begins_number(text)
}

/// The left side of a comparison.
struct LeftSide {
    /// `None` for an unknown field, which has been reported.
    field: Option<Field>,
    lower: Option<Range<usize>>,
    any: bool,
}

impl Parser<'_> {
    /// Reads a predicate; the cursor is at a letter.
    pub(super) fn predicate(&mut self) -> Parsed<Condition> {
        let begin = self.cursor.at();
        self.predicates += 1;
        if self.predicates > PREDICATES_MAX {
            let hint = "make it several routes, or one regex".to_owned();
            return Err(self.lose_rest(self.cursor.word(), Kind::TooManyPredicates, Some(hint)));
        }
        let at = self.cursor.locate(begin);
        let left = self.left_side()?;
        let left_text = &self.cursor.text()[begin..self.cursor.at()];
        let errors = self.error_count();
        let (operator, operator_span) = match self.operator(left_text, left.field.as_ref()) {
            // An unknown field needs no operator.
            Err(ErrorExtent::Condition) if left.field.is_none() => {
                self.discard_errors(errors);
                return Err(ErrorExtent::Condition);
            }
            operator => operator?,
        };
        self.cursor.blanks();
        let Some(literal) = self.literal(left.field.as_ref(), left_text, operator)? else {
            return if self.condition_ends() { Ok(Condition::False) } else { Err(ErrorExtent::Condition) };
        };
        let Some(field) = left.field else { return Ok(Condition::False) };
        if let Some(span) = left.lower.clone().filter(|_| !is_text(&field)) {
            self.report(span, Kind::Lower { field: field.clone() }, Some("leave `lower` out".to_owned()));
        }
        let (text, operator) = (self.cursor.text(), (operator, operator_span));
        match typed_test(text, left_text, &field, operator, literal, &mut self.regexes) {
            Ok(test) => {
                let text = &self.cursor.text()[begin..self.cursor.at()];
                let source = PredicateOrigin { text: text.into(), at: Some(at) };
                let (lower, any) = (left.lower.is_some(), left.any);
                Ok(Condition::Is(Arc::new(Predicate { field, lower, any, test, source })))
            }
            Err(problem) => {
                self.report(problem.span, problem.kind, problem.hint);
                Ok(Condition::False)
            }
        }
    }

    fn left_side(&mut self) -> Parsed<LeftSide> {
        let (mut lower, mut any) = (None, false);
        loop {
            self.cursor.blanks();
            let begin = self.cursor.at();
            if !self.cursor.peek().is_some_and(|c| c.is_ascii_alphabetic()) {
                return Err(self.report_expected(ExpectedPart::Field, Some("such as `lower(http.path)`".to_owned())));
            }
            let name = self.cursor.take_while(is_name);
            let end = self.cursor.at();
            self.cursor.blanks();
            if !self.cursor.sees("(") {
                self.cursor.go_to(begin);
                break;
            }
            match name {
                "any" => any = true,
                "lower" => lower = Some(begin..end),
                name => {
                    let (function, hint) = foreign::function(name, self.cursor.rest());
                    let kind = Kind::UnknownFunction { found: quoted(name) };
                    self.report(begin..end, kind, Some(hint));
                    if function.is_none() {
                        return Err(ErrorExtent::Condition);
                    }
                }
            }
            self.count_nesting()?;
            self.cursor.eat("(");
            self.calls += 1;
        }
        let field = self.field();
        while self.calls > 0 {
            self.cursor.blanks();
            if !self.cursor.eat(")") {
                let hint =
                    "a function takes one field; write the value after the operator: `lower(http.path) == \"/a\"`";
                return Err(self.report_expected(ExpectedPart::Closing, Some(hint.to_owned())));
            }
            self.calls -= 1;
        }
        Ok(LeftSide { field, lower, any })
    }

    /// Reads a field. `None` for an unknown name, which is reported.
    fn field(&mut self) -> Option<Field> {
        let begin = self.cursor.at();
        let name = self.cursor.take_while(is_name);
        let mut behind = self.cursor.rest().chars();
        let (kind, hint) = match (behind.next(), behind.next()) {
            (Some('-'), Some(next)) if is_name(next) => {
                self.cursor.take_while(|c| is_name(c) || c == '-');
                let whole = &self.cursor.text()[begin..self.cursor.at()];
                let (reason, hint) = match name.starts_with("http.queries.") {
                    true => {
                        ("names have no `-`", "a query argument with a `-` in its name cannot be tested".to_owned())
                    }
                    false => {
                        let write = whole.to_ascii_lowercase().replace('-', "_");
                        ("names have `_` where headers have `-`", format!("write `{write}`"))
                    }
                };
                (Kind::FieldName { found: quoted(whole), reason }, hint)
            }
            (Some('['), _) => {
                let rest = self.cursor.rest();
                let length = rest.find(']').map_or(1, |at| at + 1);
                let key = rest[1..length].trim_matches(|c| matches!(c, ']' | '"' | '\'')).replace('-', "_");
                self.cursor.go_to(self.cursor.at() + length);
                let whole = format!("{name}.{key}");
                let hint = match key.chars().all(is_name) && Field::parse(&whole).is_ok() {
                    true => format!("write `{whole}`"),
                    false => "the name, without brackets, follows a dot, as in `http.headers.x_beta`".to_owned(),
                };
                let found = quoted(&self.cursor.text()[begin..self.cursor.at()]);
                (Kind::FieldName { found, reason: "brackets are not supported" }, hint)
            }
            (Some(c), _) if !c.is_ascii() && (!c.is_whitespace() || is_invisible(c)) && !foreign::is_quote(c) => {
                self.cursor.take_while(|c| is_name(c) || !c.is_ascii() && !c.is_whitespace());
                let found = quoted(&self.cursor.text()[begin..self.cursor.at()]);
                let hint = match is_invisible(c) {
                    true => format!("leave out the character U+{:04X}, which is invisible", u32::from(c)),
                    false => "headers and query arguments with other names cannot be tested".to_owned(),
                };
                (Kind::FieldName { found, reason: "names are of ASCII letters, digits, `_` and dots" }, hint)
            }
            _ => match Field::parse(name) {
                Ok(field) => return Some(field),
                Err(FieldError::Name { reason, write }) => {
                    (Kind::FieldName { found: quoted(name), reason }, format!("write `{write}`"))
                }
                Err(FieldError::Unknown) => {
                    let nearest = nearest(name);
                    let hint = foreign::field(name, nearest);
                    let kind = Kind::UnknownField { found: quoted(name) };
                    // The whole list is shown only once.
                    let listed = hint.is_none() && std::mem::replace(&mut self.fields_listed, true);
                    self.report(begin..self.cursor.at(), kind, hint.or((!listed).then(|| foreign::FIELDS.to_owned())));
                    return None;
                }
            },
        };
        self.report(begin..self.cursor.at(), kind, Some(hint));
        None
    }

    fn operator(&mut self, left: &str, field: Option<&Field>) -> Parsed<(Operator, Range<usize>)> {
        self.cursor.blanks();
        let begin = self.cursor.at();
        let foreign = foreign::longer_operator(self.cursor.rest());
        if let (None, Some((operator, length))) = (&foreign, Operator::from_prefix(self.cursor.rest())) {
            self.cursor.go_to(begin + length);
            return Ok((operator, begin..begin + length));
        }
        if let Some(foreign) = foreign.or_else(|| foreign::operator(self.cursor.rest())) {
            let span = begin..begin + foreign.length;
            let found = quoted(&self.cursor.text()[span.clone()]);
            self.cursor.go_to(span.end);
            let hint = foreign.hint(left);
            self.report(span.clone(), Kind::Foreign { found }, Some(hint));
            return Ok((foreign.operator, span));
        }
        let hint = foreign::no_operator(left, field, self.cursor.rest());
        Err(self.report_expected(ExpectedPart::Operator, hint))
    }
}

/// An error that is not yet reported.
struct Problem {
    pub(super) span: Range<usize>,
    pub(super) kind: Kind,
    pub(super) hint: Option<String>,
}

pub(super) fn is_text(field: &Field) -> bool {
    field.kind() == FieldKind::Text
}

/// The type of value that an operator requires; `None` where the operator cannot be used with the field.
pub(super) fn wanted_part(field: Option<&Field>, operator: Operator) -> Option<ExpectedPart> {
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
fn typed_test(
    text: &str,
    left: &str,
    field: &Field,
    (operator, operator_span): (Operator, Range<usize>),
    literal: SpannedLiteral,
    regexes: &mut RegexTotal,
) -> Result<Test, Problem> {
    let Some(expected) = wanted_part(Some(field), operator) else {
        let kind = Kind::OperatorType { operator: operator.as_str(), field: field.clone() };
        let hint = Some(operators_of(left, field, operator));
        return Err(Problem { span: operator_span, kind, hint });
    };
    let SpannedLiteral { value, span } = literal;
    Ok(match (operator, expected, value) {
        (Operator::Regex, _, LiteralValue::Text(source)) => return regex(text, span, &source, regexes),
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
fn regex(text: &str, span: Range<usize>, source: &str, regexes: &mut RegexTotal) -> Result<Test, Problem> {
    let refused = match Pattern::unicode(source).and_then(|pattern| regexes.add(pattern)) {
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
