//! Values of expressions in templates: values of Lua, with its rules of comparison, arithmetic and concatenation.

use super::effort::Effort;
use super::expression::{Expression, Function, Operator, Step};
use super::template::Data;
use serde_json::Value as Json;
use std::borrow::Cow;
use std::cmp::Ordering;
use stillgate_plugin::record::written::json_string_bytes;

/// A value.
#[derive(Debug)]
pub(super) enum Value<'a> {
    /// Also JSON's null.
    Nil,
    Bool(bool),
    Number(f64),
    /// A number of the body, in its original form.
    Written(&'a serde_json::Number),
    Bytes(Cow<'a, [u8]>),
    /// An object or a list.
    Table(&'a Json),
}

/// The values of names.
pub(super) struct Scope<'a> {
    fields: &'a Json,
    body: &'a [u8],
    variables: &'a [Option<Vec<u8>>],
    /// Variables of loops, the innermost last.
    locals: Vec<Local<'a>>,
    /// Number of items that loops may still take.
    items_left: usize,
    pub(super) effort: Effort,
}

enum Local<'a> {
    Number(&'a str, usize),
    Item(&'a str, &'a Json),
}

impl<'a> Scope<'a> {
    pub(super) fn new(data: &Data<'a>, items_max: usize, effort: Effort) -> Scope<'a> {
        let Data { fields, body, variables } = *data;
        Scope { fields, body, variables, locals: Vec::new(), items_left: items_max, effort }
    }

    /// Counts an item of a loop.
    pub(super) fn take_item(&mut self) -> Result<(), String> {
        self.items_left = self.items_left.checked_sub(1).ok_or("the template goes through too many items")?;
        Ok(())
    }

    /// Calls `then` while the names of a loop have the values of an item and its number.
    pub(super) fn with<R>(
        &mut self,
        names: &'a [String; 2],
        (number, item): (usize, &'a Json),
        then: impl FnOnce(&mut Scope<'a>) -> R,
    ) -> R {
        self.locals.extend([Local::Number(&names[0], number), Local::Item(&names[1], item)]);
        let result = then(self);
        self.locals.truncate(self.locals.len() - 2);
        result
    }

    /// The value of an expression; the error is Lua's.
    pub(super) fn value(&self, expression: &'a Expression) -> Result<Value<'a>, String> {
        Ok(match expression {
            Expression::Nil => Value::Nil,
            Expression::Bool(value) => Value::Bool(*value),
            Expression::Number(number) => Value::Number(*number),
            Expression::Text(text) => Value::Bytes(Cow::Borrowed(text.as_bytes())),
            Expression::Body => Value::Bytes(Cow::Borrowed(self.body)),
            Expression::Variable(at) => match self.variables.get(*at) {
                Some(Some(value)) => Value::Bytes(Cow::Borrowed(value)),
                _ => Value::Nil,
            },
            Expression::Field(steps) => self.field(steps)?,
            Expression::CallOf(steps) => {
                return Err(format!("attempt to call a {} value", self.field(steps)?.kind()));
            }
            Expression::Call(function, argument) => self.call(*function, self.value(argument)?)?,
            Expression::Not(inner) => Value::Bool(!self.value(inner)?.is_true()),
            Expression::Negated(inner) => Value::Number(-self.operand(&self.value(inner)?)?),
            Expression::Length(inner) => match self.value(inner)? {
                Value::Bytes(text) => Value::Number(text.len() as f64),
                Value::Table(Json::Array(items)) => Value::Number(items.len() as f64),
                Value::Table(_) => Value::Number(0.0),
                other => return Err(format!("attempt to get length of a {} value", other.kind())),
            },
            Expression::Binary(operator, sides) => self.binary(*operator, &sides[0], &sides[1])?,
        })
    }

    fn binary(&self, operator: Operator, left: &'a Expression, right: &'a Expression) -> Result<Value<'a>, String> {
        let first = self.value(left)?;
        match operator {
            Operator::And if !first.is_true() => return Ok(first),
            Operator::Or if first.is_true() => return Ok(first),
            _ => {}
        }
        let second = self.value(right)?;
        if let (Value::Bytes(first), Value::Bytes(second)) = (&first, &second) {
            // The compared bytes.
            self.effort.work(first.len().min(second.len()))?;
        }
        let numbers = || Ok::<_, String>((self.operand(&first)?, self.operand(&second)?));
        Ok(match operator {
            Operator::And | Operator::Or => second,
            Operator::Equal => Value::Bool(first.equals(&second)),
            Operator::Different => Value::Bool(!first.equals(&second)),
            Operator::Less => Value::Bool(first.compared(&second)? == Some(Ordering::Less)),
            Operator::Greater => Value::Bool(first.compared(&second)? == Some(Ordering::Greater)),
            Operator::LessOrEqual => Value::Bool(first.compared(&second)?.is_some_and(Ordering::is_le)),
            Operator::GreaterOrEqual => Value::Bool(first.compared(&second)?.is_some_and(Ordering::is_ge)),
            Operator::Concatenate => {
                let (first, second) = (first.part()?, second.part()?);
                let mut joined = Vec::new();
                self.effort.append(&first, &mut joined)?;
                self.effort.append(&second, &mut joined)?;
                Value::Bytes(Cow::Owned(joined))
            }
            Operator::Add => numbers().map(|(a, b)| Value::Number(a + b))?,
            Operator::Subtract => numbers().map(|(a, b)| Value::Number(a - b))?,
            Operator::Multiply => numbers().map(|(a, b)| Value::Number(a * b))?,
            Operator::Divide => numbers().map(|(a, b)| Value::Number(a / b))?,
            // The result has the sign of the divisor.
            Operator::Modulo => numbers().map(|(a, b)| Value::Number(a - (a / b).floor() * b))?,
        })
    }

    /// Looks fields up like Lua: fields of a missing field are missing.
    fn field(&self, steps: &'a [Step]) -> Result<Value<'a>, String> {
        let mut steps = steps;
        let mut value = Some(self.fields);
        if let [Step::Name(first), rest @ ..] = steps {
            for local in self.locals.iter().rev() {
                match local {
                    Local::Number(name, number) if name == first && rest.is_empty() => {
                        return Ok(Value::Number(*number as f64));
                    }
                    Local::Item(name, item) if name == first => {
                        (value, steps) = (Some(*item), rest);
                        break;
                    }
                    _ => {}
                }
            }
        }
        for step in steps {
            value = match (value, step) {
                (Some(Json::Object(map)), Step::Name(name)) => map.get(name),
                (Some(Json::Array(items)), Step::Index(index)) => index.checked_sub(1).and_then(|at| items.get(at)),
                (Some(Json::Object(_) | Json::Array(_) | Json::String(_)), _) => None,
                (None | Some(_), Step::Name(name)) => {
                    return Err(format!("attempt to index a nil value at {name:?}"));
                }
                (None | Some(_), Step::Index(index)) => {
                    return Err(format!("attempt to index a nil value at [{index}]"));
                }
            };
        }
        Ok(match value {
            None | Some(Json::Null) => Value::Nil,
            Some(Json::Bool(value)) => Value::Bool(*value),
            Some(Json::Number(number)) => Value::Written(number),
            Some(Json::String(text)) => Value::Bytes(Cow::Borrowed(text.as_bytes())),
            Some(table) => Value::Table(table),
        })
    }

    fn call(&self, function: Function, argument: Value<'a>) -> Result<Value<'a>, String> {
        let effort = &self.effort;
        let owned = |text: Vec<u8>| Value::Bytes(Cow::Owned(text));
        Ok(match function {
            Function::EscapeJson => match argument {
                Value::Bytes(bytes) => {
                    let length = json_string_bytes(&bytes);
                    effort.check_length(length)?;
                    effort.work(length)?;
                    owned(Json::from(String::from_utf8_lossy(&bytes)).to_string().into_bytes())
                }
                Value::Nil => owned(b"null".to_vec()),
                other => self.text(other)?,
            },
            Function::EscapeXml => {
                let mut out = Vec::new();
                effort.append_escaped(&argument.into_bytes(), crate::xml::escape, &mut out)?;
                owned(out)
            }
            Function::ToNumber => {
                if let Value::Bytes(bytes) = &argument {
                    effort.work(bytes.len())?;
                }
                argument.number().map_or(Value::Nil, Value::Number)
            }
            Function::ToString => match argument {
                Value::Nil => Value::Bytes(Cow::Borrowed(b"nil")),
                other => self.text(other)?,
            },
        })
    }

    /// A value for arithmetic: a text may be a number.
    fn operand(&self, value: &Value<'_>) -> Result<f64, String> {
        if let Value::Bytes(text) = value {
            self.effort.work(text.len())?;
        }
        value.operand()
    }

    /// A value as a text.
    fn text(&self, value: Value<'a>) -> Result<Value<'a>, String> {
        let text = value.into_bytes();
        self.effort.check_length(text.len())?;
        self.effort.work(text.len())?;
        Ok(Value::Bytes(text))
    }
}

impl<'a> Value<'a> {
    pub(super) fn is_true(&self) -> bool {
        !matches!(self, Value::Nil | Value::Bool(false))
    }

    /// As Lua's `type`.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Nil => "nil",
            Value::Bool(_) => "boolean",
            Value::Number(_) | Value::Written(_) => "number",
            Value::Bytes(_) => "string",
            Value::Table(_) => "table",
        }
    }

    /// Its form in the output.
    pub(super) fn into_bytes(self) -> Cow<'a, [u8]> {
        match self {
            Value::Nil => Cow::Borrowed(&[]),
            Value::Bool(value) => Cow::Borrowed(if value { b"true" } else { b"false" }),
            Value::Number(number) => Cow::Owned(written(number).into_bytes()),
            // Lua does not distinguish 1 from 1.0.
            Value::Written(number) => {
                let text = number.to_string();
                Cow::Owned(text.strip_suffix(".0").unwrap_or(&text).as_bytes().to_vec())
            }
            Value::Bytes(bytes) => bytes,
            Value::Table(json) => Cow::Owned(json.to_string().into_bytes()),
        }
    }

    /// Like `tonumber`: a text may be a number.
    fn number(&self) -> Option<f64> {
        match self {
            Value::Number(number) => Some(*number),
            Value::Written(number) => number.as_f64(),
            Value::Bytes(text) => {
                let text = std::str::from_utf8(text).ok()?.trim();
                match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
                    Some(digits) => u64::from_str_radix(digits, 16).ok().map(|number| number as f64),
                    // Words such as "inf" are not numbers.
                    None if text.ends_with(|last: char| last.is_ascii_digit() || last == '.') => text.parse().ok(),
                    None => None,
                }
            }
            Value::Nil | Value::Bool(_) | Value::Table(_) => None,
        }
    }

    fn operand(&self) -> Result<f64, String> {
        self.number().ok_or_else(|| format!("attempt to perform arithmetic on a {} value", self.kind()))
    }

    /// A text for concatenation.
    fn part(&self) -> Result<Cow<'_, [u8]>, String> {
        match self {
            Value::Number(number) => Ok(Cow::Owned(written(*number).into_bytes())),
            Value::Written(number) => Ok(Value::Written(number).into_bytes()),
            Value::Bytes(bytes) => Ok(Cow::Borrowed(bytes)),
            other => Err(format!("attempt to concatenate a {} value", other.kind())),
        }
    }

    fn equals(&self, other: &Value<'_>) -> bool {
        match (self, other) {
            (Value::Nil, Value::Nil) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Bytes(a), Value::Bytes(b)) => a == b,
            (Value::Table(a), Value::Table(b)) => std::ptr::eq(*a, *b),
            (Value::Number(_) | Value::Written(_), Value::Number(_) | Value::Written(_)) => {
                self.number() == other.number()
            }
            _ => false,
        }
    }

    /// `None`: one is NaN.
    fn compared(&self, other: &Value<'_>) -> Result<Option<Ordering>, String> {
        match (self, other) {
            (Value::Bytes(a), Value::Bytes(b)) => Ok(Some(a.cmp(b))),
            (Value::Number(_) | Value::Written(_), Value::Number(_) | Value::Written(_)) => {
                Ok(self.number().zip(other.number()).and_then(|(a, b)| a.partial_cmp(&b)))
            }
            _ => Err(format!("attempt to compare {} with {}", self.kind(), other.kind())),
        }
    }
}

/// A number in Lua's format: `%.14g`.
fn written(number: f64) -> String {
    const DIGITS: i32 = 14;
    if !number.is_finite() {
        return number.to_string().to_ascii_lowercase();
    }
    let scientific = format!("{number:.*e}", DIGITS as usize - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-5..DIGITS).contains(&exponent) {
        return trimmed(&format!("{number:.*}", (DIGITS - 1 - exponent) as usize));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs())
}

/// Escapes a text for HTML, as lua-resty-template does.
pub(super) fn escape_html(text: &[u8], out: &mut Vec<u8>) {
    for byte in text {
        match byte {
            b'&' => out.extend_from_slice(b"&amp;"),
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'"' => out.extend_from_slice(b"&quot;"),
            b'\'' => out.extend_from_slice(b"&#39;"),
            b'/' => out.extend_from_slice(b"&#47;"),
            other => out.push(*other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_in_lua() {
        let check = |number: f64, expected: &str| assert_eq!(written(number), expected);
        check(0.0, "0");
        check(30.0, "30");
        check(-1.5, "-1.5");
        check(0.1 + 0.2, "0.3");
        check(1.0 / 3.0, "0.33333333333333");
        check(1e14, "1e+14");
        check(99_999_999_999_999.0, "99999999999999");
        check(1.5e-7, "1.5e-07");
        check(0.00012, "0.00012");
        check(f64::INFINITY, "inf");
        check(f64::NAN, "nan");
    }
}
