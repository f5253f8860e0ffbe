//! JSON as `cjson` reads and writes it: between Lua's values and text.
//!
//! An empty table is an object, unless it has `array_mt`; a table with the keys 1 to n is an array; `null` is `ngx.null`.

use mlua::{Error, Lua, Result, Table, Value};
use serde_json::Value as Json;

/// Tables within one another; cjson's bound is 1000.
const DEPTH_MAX: usize = 200;
/// The longest text that is written.
const TEXT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Where an array has holes, its length may be this much, or twice as many as there are values.
const SPARSE_LENGTH_MAX: i64 = 10;

/// Makes Lua's values of JSON.
pub(crate) fn to_lua(lua: &Lua, json: &Json, array_mt: &Table) -> Result<Value> {
    Ok(match json {
        Json::Null => Value::NULL,
        Json::Bool(value) => Value::Boolean(*value),
        Json::Number(number) => Value::Number(number.as_f64().unwrap_or(f64::NAN)),
        Json::String(text) => Value::String(lua.create_string(text)?),
        Json::Array(items) => {
            let table = lua.create_table_with_capacity(items.len(), 0)?;
            for (at, item) in items.iter().enumerate() {
                table.raw_set(at + 1, to_lua(lua, item, array_mt)?)?;
            }
            table.set_metatable(Some(array_mt.clone()))?;
            Value::Table(table)
        }
        Json::Object(entries) => {
            let table = lua.create_table_with_capacity(0, entries.len())?;
            for (key, value) in entries {
                table.raw_set(key.as_str(), to_lua(lua, value, array_mt)?)?;
            }
            Value::Table(table)
        }
    })
}

/// Writes a value as JSON. With `forced`, what has no form in JSON becomes `null` or a text, as with `core.json.encode(…, true)`;
/// with `sorted`, keys are in order.
pub(crate) fn write(value: &Value, array_mt: &Table, forced: bool, sorted: bool) -> Result<Vec<u8>> {
    let mut writer = Writer { out: Vec::new(), array_mt, forced, sorted, depth: 0 };
    writer.value(value)?;
    Ok(writer.out)
}

struct Writer<'a> {
    out: Vec<u8>,
    array_mt: &'a Table,
    forced: bool,
    sorted: bool,
    depth: usize,
}

/// What a table is written as.
enum Form {
    Array(i64),
    Object,
}

fn bad(reason: impl Into<String>) -> Error {
    Error::RuntimeError(reason.into())
}

impl Writer<'_> {
    fn value(&mut self, value: &Value) -> Result<()> {
        if self.out.len() > TEXT_BYTES_MAX {
            return Err(bad("Cannot serialise, the text is longer than 16 MiB"));
        }
        match value {
            Value::Nil => self.out.extend_from_slice(b"null"),
            Value::LightUserData(pointer) if pointer.0.is_null() => self.out.extend_from_slice(b"null"),
            Value::Boolean(value) => self.out.extend_from_slice(if *value { b"true" } else { b"false" }),
            Value::Integer(number) => self.number(*number as f64)?,
            Value::Number(number) => self.number(*number)?,
            Value::String(text) => self.text(&text.as_bytes()),
            Value::Table(table) => self.table(table)?,
            other if self.forced => self.text(format!("{}: (a value)", other.type_name()).as_bytes()),
            other => return Err(bad(format!("Cannot serialise {}: type not supported", other.type_name()))),
        }
        Ok(())
    }

    fn number(&mut self, number: f64) -> Result<()> {
        if !number.is_finite() {
            if self.forced {
                self.out.extend_from_slice(b"null");
                return Ok(());
            }
            return Err(bad("Cannot serialise number: must not be NaN or Infinity"));
        }
        self.out.extend_from_slice(&decimal(number));
        Ok(())
    }

    fn text(&mut self, text: &[u8]) {
        self.out.push(b'"');
        for byte in text {
            match byte {
                b'"' => self.out.extend_from_slice(b"\\\""),
                b'\\' => self.out.extend_from_slice(b"\\\\"),
                b'/' => self.out.extend_from_slice(b"\\/"),
                b'\n' => self.out.extend_from_slice(b"\\n"),
                b'\r' => self.out.extend_from_slice(b"\\r"),
                b'\t' => self.out.extend_from_slice(b"\\t"),
                8 => self.out.extend_from_slice(b"\\b"),
                12 => self.out.extend_from_slice(b"\\f"),
                0..32 | 127 => self.out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
                plain => self.out.push(*plain),
            }
        }
        self.out.push(b'"');
    }

    fn table(&mut self, table: &Table) -> Result<()> {
        if self.depth >= DEPTH_MAX {
            return Err(bad(format!("Cannot serialise, excessive depth ({DEPTH_MAX})")));
        }
        self.depth += 1;
        match self.form(table)? {
            Form::Array(length) => {
                self.out.push(b'[');
                for at in 1..=length {
                    if at > 1 {
                        self.out.push(b',');
                    }
                    self.value(&table.raw_get(at)?)?;
                }
                self.out.push(b']');
            }
            Form::Object => self.object(table)?,
        }
        self.depth -= 1;
        Ok(())
    }

    fn object(&mut self, table: &Table) -> Result<()> {
        let mut entries = Vec::new();
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair?;
            let key = match &key {
                Value::String(text) => text.as_bytes().to_vec(),
                Value::Integer(number) => decimal(*number as f64),
                Value::Number(number) => decimal(*number),
                _ if self.forced => continue,
                _ => return Err(bad("Cannot serialise table: table key must be a number or string")),
            };
            entries.push((key, value));
        }
        if self.sorted {
            entries.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        }
        self.out.push(b'{');
        for (at, (key, value)) in entries.iter().enumerate() {
            if at > 0 {
                self.out.push(b',');
            }
            self.text(key);
            self.out.push(b':');
            self.value(value)?;
        }
        self.out.push(b'}');
        Ok(())
    }

    fn form(&self, table: &Table) -> Result<Form> {
        if table.metatable().is_some_and(|metatable| metatable == *self.array_mt) {
            return Ok(Form::Array(table.raw_len() as i64));
        }
        let (mut most, mut count) = (0, 0);
        for pair in table.pairs::<Value, Value>() {
            match pair?.0 {
                Value::Integer(at) if at > 0 => most = most.max(at),
                Value::Number(at) if at > 0.0 && at.fract() == 0.0 && at < 1e9 => most = most.max(at as i64),
                _ => return Ok(Form::Object),
            }
            count += 1;
        }
        if count == 0 {
            return Ok(Form::Object);
        }
        if most > SPARSE_LENGTH_MAX && most > count * 2 {
            return match self.forced {
                true => Ok(Form::Object),
                false => Err(bad("Cannot serialise table: excessively sparse array")),
            };
        }
        Ok(Form::Array(most))
    }
}

/// A number as C's `%.14g` writes it.
pub(crate) fn decimal(number: f64) -> Vec<u8> {
    if number.fract() == 0.0 && number.abs() < 1e14 {
        return format!("{}", number as i64).into_bytes();
    }
    let scientific = format!("{number:.13e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..14).contains(&exponent) {
        let places = usize::try_from(13 - exponent).unwrap_or_default();
        return trimmed(&format!("{number:.places$}")).into_bytes();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(digits), exponent.abs()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_c_does() {
        for (number, expected) in [
            (0.0, "0"),
            (-3.0, "-3"),
            (0.1, "0.1"),
            (1.5e-5, "1.5e-05"),
            (0.00015, "0.00015"),
            (1e14, "1e+14"),
            (123_456_789_012_345_680.0, "1.2345678901235e+17"),
            (std::f64::consts::PI, "3.1415926535898"),
            (99_999_999_999_999.0, "99999999999999"),
        ] {
            assert_eq!(String::from_utf8(decimal(number)).unwrap(), expected);
        }
    }
}
