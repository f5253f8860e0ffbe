//! Numbers in configurations.
//!
//! A number in a limit is a literal, or a text with variables that yields one for each request. Others are decimal numbers, which are
//! written in Lua's format.

use serde_json::json;
use stillgate_plugin_api::{Request, Template};
use stillgate_route::Variable;
use stillgate_schema::text::scalar::Meaning;
use stillgate_schema::{Definitions, Fault, Json, Kind, Node, Path, Sink, Value, report_expected};

/// Largest limit and window: the largest integer that Lua's numbers hold exactly.
const NUMBER_MAX: u64 = (1 << 53) - 1;

/// An integer, or a text that yields one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Number {
    /// A literal number.
    Plain(u64),
    /// A text with variables.
    Text(Template),
}

impl Number {
    /// The variables in it. A plugin waits for the body if they are in it.
    pub(crate) fn variables(&self) -> impl Iterator<Item = &Variable> {
        let text = match self {
            Number::Plain(_) => None,
            Number::Text(template) => Some(template),
        };
        text.into_iter().flat_map(Template::variables)
    }

    /// The number for a request; `None`: the text yields something else, or less than `least`.
    pub(crate) fn of(&self, least: u64, request: &Request<'_>) -> Option<u64> {
        match self {
            Number::Plain(number) => Some(*number),
            Number::Text(template) => request.worker.with_buffers(|text, buffer| {
                template.write(request, text, buffer);
                parse(text).filter(|number| *number >= least)
            }),
        }
    }
}

/// The type of a [`Number`].
pub(crate) struct NumberKind {
    least: u64,
    what: &'static str,
}

/// A number above 0.
pub(crate) const ABOVE_ZERO: NumberKind = NumberKind { least: 1, what: "a whole number above 0" };
/// A number of at least 0.
pub(crate) const FROM_ZERO: NumberKind = NumberKind { least: 0, what: "a whole number of at least 0" };

impl Kind for NumberKind {
    type Out = Number;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Number> {
        let Value::Scalar(scalar) = &node.value else {
            report_expected("a number, or a text with variables", node, path, sink);
            return None;
        };
        let parsed = Template::parse_with_body(&scalar.text).map_err(|error| Fault::new(error.to_string())).and_then(
            |template| match template.constant() {
                None => Ok(Number::Text(template)),
                Some(text) => parse(text).filter(|number| *number >= self.least).map(Number::Plain).ok_or_else(|| {
                    Fault::new(format!("expected {}, found {}", self.what, node.description()))
                        .hint("write a number, or variables such as \"$http_x_limit\"")
                }),
            },
        );
        parsed.map_err(|fault| sink.error(node.at, path, fault)).ok()
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        let number = json!({"type": "integer", "minimum": self.least, "maximum": NUMBER_MAX});
        json!({"anyOf": [number, {"type": "string"}]})
    }
}

/// Parses an integer up to [`NUMBER_MAX`], in any form that Lua reads as one: `10`, `1e1`, `10.0`, `0xA`.
fn parse(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?.trim_ascii();
    let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) if digits.starts_with('+') => return None,
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => text.parse().ok().or_else(|| {
            let number: f64 = text.parse().ok()?;
            (number.fract() == 0.0 && (0.0..=NUMBER_MAX as f64).contains(&number)).then_some(number as u64)
        })?,
    };
    (number <= NUMBER_MAX).then_some(number)
}

/// A decimal number within bounds.
pub(crate) struct Decimal {
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Kind for Decimal {
    type Out = f64;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<f64> {
        let number = match &node.value {
            Value::Scalar(scalar) => match scalar.meaning() {
                Meaning::Int(number) => Some(number as f64),
                Meaning::Float(number) => Some(number),
                _ => None,
            },
            _ => None,
        };
        let number = number.filter(|number| (self.min..=self.max).contains(number));
        if number.is_none() {
            report_expected(&format!("a number from {} to {}", self.min, self.max), node, path, sink);
        }
        number
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        json!({"type": "number", "minimum": self.min, "maximum": self.max})
    }

    fn show(&self, value: &f64) -> Json {
        json!(value)
    }
}

/// A number in Lua's format: with 14 digits (`%.14g`).
pub(crate) fn as_lua(number: f64) -> String {
    /// Number of significant digits.
    const DIGITS: i32 = 14;
    if number == 0.0 || !number.is_finite() {
        return if number == 0.0 { "0".to_owned() } else { number.to_string() };
    }
    let scientific = format!("{number:.*e}", DIGITS as usize - 1);
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    match (-4..DIGITS).contains(&exponent) {
        true => trimmed(&format!("{number:.*}", (DIGITS - 1 - exponent) as usize)),
        false => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{}e{sign}{:02}", trimmed(digits), exponent.abs())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_lua_reads_them() {
        let good = [("0", 0), ("1", 1), (" 7 ", 7), ("5.0", 5), ("1e3", 1000), ("0x1F", 31), ("+3", 3)];
        for (text, expected) in good.into_iter().chain([("9007199254740991", NUMBER_MAX)]) {
            assert_eq!(parse(text.as_bytes()), Some(expected), "{text}");
        }
        let bad = ["", "-1", "1.5", "x", "2x", "0x", "0x+1", "inf", "nan", "1e300", "9007199254740992"];
        for text in bad.into_iter().chain(["99999999999999999999"]) {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn numbers_as_lua_writes_them() {
        for (number, expected) in [
            (0.0, "0"),
            (1.0, "1"),
            (-2.5, "-2.5"),
            (1_795_220_833.0, "1795220833"),
            (0.1 + 0.2, "0.3"),
            (1.0 / 3.0, "0.33333333333333"),
            (0.000_123_456_789_012_345_67, "0.00012345678901235"),
            (0.000_012_5, "1.25e-05"),
            (99_999_999_999_999.0, "99999999999999"),
            (100_000_000_000_000.0, "1e+14"),
            (123_456_789_012_345_678.0, "1.2345678901235e+17"),
            (1e300, "1e+300"),
        ] {
            assert_eq!(as_lua(number), expected);
        }
    }
}
