//! Predicates: a field, perhaps in functions, an operator and a value.

use super::cursor::{is_blank, is_name};
use super::error::{ExpectedPart, ExpressionErrorKind as Kind};
use super::excerpt::{is_invisible, quoted};
use super::literal::begins_number;
use super::parse::{ErrorExtent, Parsed, Parser};
use super::{PREDICATES_MAX, foreign, rules};
use crate::condition::{Condition, Field, FieldError, Predicate, PredicateOrigin, nearest};
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
    pub(super) fn leading(text: &str) -> Option<(Operator, usize)> {
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
        let left = self.left()?;
        let left_text = &self.cursor.text()[begin..self.cursor.at()];
        let errors = self.error_count();
        let (operator, operator_span) = match self.operator(left_text, left.field.as_ref()) {
            // An unknown field needs no operator.
            Err(ErrorExtent::Condition) if left.field.is_none() => {
                self.take_back(errors);
                return Err(ErrorExtent::Condition);
            }
            operator => operator?,
        };
        self.cursor.blanks();
        let Some(literal) = self.literal(left.field.as_ref(), left_text, operator)? else {
            return if self.condition_ends() { Ok(Condition::False) } else { Err(ErrorExtent::Condition) };
        };
        let Some(field) = left.field else { return Ok(Condition::False) };
        if let Some(span) = left.lower.clone().filter(|_| !rules::is_text(&field)) {
            self.report(span, Kind::Lower { field: field.clone() }, Some("leave `lower` out".to_owned()));
        }
        match rules::test(self.cursor.text(), left_text, &field, (operator, operator_span), literal) {
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

    fn left(&mut self) -> Parsed<LeftSide> {
        let (mut lower, mut any) = (None, false);
        loop {
            self.cursor.blanks();
            let begin = self.cursor.at();
            if !self.cursor.peek().is_some_and(|c| c.is_ascii_alphabetic()) {
                return Err(self.expected(ExpectedPart::Field, Some("such as `lower(http.path)`".to_owned())));
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
            self.deeper()?;
            self.cursor.eat("(");
            self.calls += 1;
        }
        let field = self.field();
        while self.calls > 0 {
            self.cursor.blanks();
            if !self.cursor.eat(")") {
                let hint =
                    "a function takes one field; write the value after the operator: `lower(http.path) == \"/a\"`";
                return Err(self.expected(ExpectedPart::Closing, Some(hint.to_owned())));
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
        if let (None, Some((operator, length))) = (&foreign, Operator::leading(self.cursor.rest())) {
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
        Err(self.expected(ExpectedPart::Operator, hint))
    }
}
