//! Decimal numbers in configurations, and Lua's format of numbers.

use serde_json::json;
use stillgate_schema::text::scalar::Meaning;
use stillgate_schema::{Definitions, Json, Kind, Node, Path, Sink, Value, expected};

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
            expected(&format!("a number from {} to {}", self.min, self.max), node, path, sink);
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
pub(crate) fn lua(number: f64) -> String {
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
            assert_eq!(lua(number), expected);
        }
    }
}
