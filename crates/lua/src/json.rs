//! JSON as `cjson` reads and writes it: converts between Lua's values and text.
//!
//! An empty table is an object, unless it has `array_mt`; a table with the keys 1 to n is an array; `null` is
//! `ngx.null`.
//!
//! A text becomes tables of the VM directly: an intermediate tree would be many times as large as the text, and not
//! limited by the VM. LuaJIT's hook cannot interrupt this code, so both directions check the time themselves.

use crate::watchdog::is_doomed;
use mlua::ffi::{self, lua_State};
use mlua::{Error, Lua, Result, Table, Value};
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value as Json;
use std::cell::Cell;
use std::ffi::c_int;
use std::fmt;

/// Most levels of nested tables; cjson's limit is 1000.
pub(crate) const DEPTH_MAX: usize = 200;
/// Longest text that is written.
const TEXT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Most significant digits of a number that cjson supports.
pub(crate) const DIGITS_MAX: usize = 16;

const POWERS_OF_TEN: [f64; 16] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];

/// Converts JSON to Lua's values.
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

/// Converts a text to Lua's values directly: they are in the VM's memory, which is limited. `None`: it took too long,
/// and the function is being stopped.
pub(crate) fn read(lua: &Lua, text: &[u8], array_mt: &Table) -> std::result::Result<Option<Value>, serde_json::Error> {
    let mut build = TableBuilder {
        lua,
        array_mt,
        open: None,
        levels: Levels::default(),
        tokens: Tokens::default(),
        values: Cell::new(0),
    };
    let mut json = serde_json::Deserializer::from_slice(text);
    let read = JsonReader(&mut build).deserialize(&mut json).and_then(|()| json.end());
    match read.and_then(|()| build.finish().map_err(|error| to_serde_error(&error))) {
        Ok(value) => Ok(Some(value)),
        Err(_) if is_doomed() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Passes an error of the VM, such as one for want of memory, through serde.
fn to_serde_error<E: de::Error>(error: &Error) -> E {
    E::custom(format_args!("{VM_ERROR}{error}"))
}

/// Prefix of errors of the VM in those of [`read`].
pub(crate) const VM_ERROR: &str = "VM: ";

/// Whether a function has used up its time, which is checked now and then: LuaJIT's hook cannot interrupt this code.
fn is_late(values: &Cell<u32>) -> bool {
    values.set(values.get().wrapping_add(1));
    values.get().is_multiple_of(VALUES_A_LOOK) && is_doomed()
}

/// Number of values between two checks of the time.
const VALUES_A_LOOK: u32 = 256;

// Each call into the VM that may fail has a price of its own, which is many times that of a small table. So what is read becomes
// tokens first, and one call makes tables of many of them.

/// Tokens that are collected before the VM is called.
const TOKENS_MAX: usize = 1024;
/// Bytes of their texts, but for the last one.
const TEXTS_BYTES_MAX: usize = 64 * 1024;
/// Deepest nesting that serde_json reads, and one more.
const LEVELS_MAX: usize = 129;

#[derive(Debug, Clone, Copy)]
enum Token {
    Null,
    Boolean(bool),
    Number(f64),
    /// A text or key of this length, after those before it.
    Text(usize),
    OpenArray,
    OpenObject,
    /// The innermost container ends.
    Close,
}

#[derive(Debug, Default)]
struct Tokens {
    list: Vec<Token>,
    texts: Vec<u8>,
}

/// A container that has not ended.
#[derive(Debug, Clone, Copy)]
enum Level {
    /// With this many items.
    Array(c_int),
    Object {
        /// Its next token is a value.
        has_key: bool,
    },
}

/// Containers that have not ended, the outermost first.
#[derive(Debug)]
struct Levels {
    list: [Level; LEVELS_MAX],
    count: usize,
}

impl Default for Levels {
    fn default() -> Levels {
        Levels { list: [Level::Array(0); LEVELS_MAX], count: 0 }
    }
}

/// Makes tables of tokens.
struct TableBuilder<'a> {
    lua: &'a Lua,
    array_mt: &'a Table,
    /// The containers of `levels`, with a key behind an object that has one, between two calls.
    open: Option<Table>,
    levels: Levels,
    tokens: Tokens,
    /// Number of values read so far.
    values: Cell<u32>,
}

impl TableBuilder<'_> {
    fn push(&mut self, token: Token) -> Result<()> {
        self.tokens.list.push(token);
        match self.tokens.list.len() < TOKENS_MAX && self.tokens.texts.len() < TEXTS_BYTES_MAX {
            true => Ok(()),
            false => self.build(),
        }
    }

    fn push_text(&mut self, text: &str) -> Result<()> {
        self.tokens.texts.extend_from_slice(text.as_bytes());
        self.push(Token::Text(text.len()))
    }

    /// Makes tables of the tokens so far, and keeps those that have not ended.
    fn build(&mut self) -> Result<()> {
        let open = match &self.open {
            Some(open) => open.clone(),
            None => self.open.insert(self.lua.create_table()?).clone(),
        };
        let Tokens { list, texts } = &self.tokens;
        let levels = &mut self.levels;
        // SAFETY: `stack_tokens` needs the two tables on an otherwise empty stack; it owns nothing that an error of the VM, which
        // leaves it at once, would have to drop.
        unsafe {
            self.lua.exec_raw::<()>((open, self.array_mt), |state| stack_tokens(state, list, texts, levels, false))
        }?;
        self.tokens.list.clear();
        self.tokens.texts.clear();
        Ok(())
    }

    /// The value, once all of it was read.
    fn finish(mut self) -> Result<Value> {
        let open = match self.open.take() {
            Some(open) => open,
            None => self.lua.create_table()?,
        };
        let Tokens { list, texts } = &self.tokens;
        let levels = &mut self.levels;
        // SAFETY: as above.
        unsafe { self.lua.exec_raw((open, self.array_mt), |state| stack_tokens(state, list, texts, levels, true)) }
    }
}

/// The place of the table of open containers on the stack.
const OPEN: c_int = 1;
/// The place of the metatable of arrays.
const ARRAY_MT: c_int = 2;

/// Turns tokens into values: open containers are on the stack, each in the field of the one before it once it has ended. Leaves
/// nothing on the stack, or the value if this is the end.
///
/// # Safety
/// The stack holds a table with the containers of `levels`, and the metatable of arrays. Errors of the VM leave this function
/// without unwinding: it must not own anything.
unsafe fn stack_tokens(state: *mut lua_State, tokens: &[Token], texts: &[u8], levels: &mut Levels, is_end: bool) {
    // SAFETY: there is room for two values a level and those that are handled; each index is of a value that was pushed.
    unsafe {
        ffi::luaL_checkstack(state, 2 * LEVELS_MAX as c_int + 8, std::ptr::null());
        for at in 1..=ffi::lua_rawlen(state, OPEN) {
            ffi::lua_rawgeti(state, OPEN, at as _);
        }
        let mut text_at = 0;
        for token in tokens {
            match *token {
                Token::Null => ffi::lua_pushlightuserdata(state, std::ptr::null_mut()),
                Token::Boolean(value) => ffi::lua_pushboolean(state, c_int::from(value)),
                Token::Number(value) => ffi::lua_pushnumber(state, value),
                Token::Text(length) => {
                    ffi::lua_pushlstring(state, texts.as_ptr().add(text_at).cast(), length);
                    text_at += length;
                }
                Token::OpenArray | Token::OpenObject => {
                    ffi::lua_createtable(state, 0, 0);
                    levels.list[levels.count] = match token {
                        Token::OpenArray => Level::Array(0),
                        _ => Level::Object { has_key: false },
                    };
                    levels.count += 1;
                    continue;
                }
                Token::Close => {
                    levels.count -= 1;
                    if let Level::Array(_) = levels.list[levels.count] {
                        ffi::lua_pushvalue(state, ARRAY_MT);
                        ffi::lua_setmetatable(state, -2);
                    }
                }
            }
            // The value on top is an item, a key, the value of a key, or all.
            match levels.list[..levels.count].last_mut() {
                Some(Level::Array(items)) => {
                    *items += 1;
                    ffi::lua_rawseti(state, -2, (*items).into());
                }
                Some(Level::Object { has_key: has_key @ false }) => *has_key = true,
                Some(Level::Object { has_key }) => {
                    *has_key = false;
                    ffi::lua_rawset(state, -3);
                }
                None => {}
            }
        }
        if is_end {
            ffi::lua_replace(state, OPEN);
            ffi::lua_settop(state, OPEN);
            return;
        }
        for at in (1..=ffi::lua_rawlen(state, OPEN)).rev() {
            ffi::lua_pushnil(state);
            ffi::lua_rawseti(state, OPEN, at as _);
        }
        for at in (1..=ffi::lua_gettop(state) - ARRAY_MT).rev() {
            ffi::lua_rawseti(state, OPEN, at.into());
        }
        ffi::lua_settop(state, 0);
    }
}

/// Reads one value into tokens.
struct JsonReader<'a, 'b>(&'a mut TableBuilder<'b>);

impl JsonReader<'_, '_> {
    fn push<E: de::Error>(self, token: Token) -> std::result::Result<(), E> {
        self.0.push(token).map_err(|error| to_serde_error(&error))
    }
}

impl<'de> DeserializeSeed<'de> for JsonReader<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<(), D::Error> {
        if is_late(&self.0.values) {
            return Err(de::Error::custom("it took too long"));
        }
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for JsonReader<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> std::result::Result<(), E> {
        self.push(Token::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> std::result::Result<(), E> {
        self.push(Token::Boolean(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> std::result::Result<(), E> {
        self.push(Token::Number(value as f64))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> std::result::Result<(), E> {
        self.push(Token::Number(value as f64))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> std::result::Result<(), E> {
        self.push(Token::Number(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> std::result::Result<(), E> {
        self.0.push_text(value).map_err(|error| to_serde_error(&error))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> std::result::Result<(), A::Error> {
        let JsonReader(build) = self;
        JsonReader(build).push(Token::OpenArray)?;
        while items.next_element_seed(JsonReader(build))?.is_some() {}
        JsonReader(build).push(Token::Close)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> std::result::Result<(), A::Error> {
        let JsonReader(build) = self;
        JsonReader(build).push(Token::OpenObject)?;
        while entries.next_key_seed(JsonReader(build))?.is_some() {
            entries.next_value_seed(JsonReader(build))?;
        }
        JsonReader(build).push(Token::Close)
    }
}

/// How a value is written: the settings of cjson and `core.json`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    /// Values that JSON cannot represent become `null` or a text, as with `core.json.encode(…, true)`.
    pub(crate) forced: bool,
    /// Sort the keys.
    pub(crate) sorted: bool,
    /// Write an empty table as an array.
    pub(crate) empty_is_array: bool,
    /// Write an array with too many holes as an object, rather than fail.
    pub(crate) sparse_is_object: bool,
    /// An array is too sparse with more than this many places per value; zero: no limit.
    pub(crate) sparse_ratio: i64,
    /// Up to this length an array may have any number of holes.
    pub(crate) sparse_safe: i64,
    /// Most levels of nested tables.
    pub(crate) depth_max: usize,
    /// Significant digits of numbers.
    pub(crate) digits: usize,
    /// Write `/` as `\/`.
    pub(crate) escapes_slash: bool,
    /// How to write infinite numbers and NaN.
    pub(crate) invalid: Invalid,
    /// Longest text in bytes.
    pub(crate) bytes_max: usize,
}

/// `encode_invalid_numbers`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Invalid {
    Refused,
    /// Write `NaN`, `Infinity` and `-Infinity`, which is not JSON.
    Written,
    Null,
}

impl Default for Style {
    fn default() -> Style {
        Style {
            forced: false,
            sorted: false,
            empty_is_array: false,
            sparse_is_object: false,
            sparse_ratio: 2,
            sparse_safe: 10,
            depth_max: DEPTH_MAX,
            digits: 14,
            escapes_slash: true,
            invalid: Invalid::Refused,
            bytes_max: TEXT_BYTES_MAX,
        }
    }
}

/// Writes a value as JSON.
pub(crate) fn write(value: &Value, array_mt: &Table, style: Style) -> Result<Vec<u8>> {
    let mut writer = JsonWriter { out: Vec::new(), array_mt, style, depth: 0, values: Cell::new(0) };
    writer.value(value)?;
    Ok(writer.out)
}

struct JsonWriter<'a> {
    out: Vec<u8>,
    array_mt: &'a Table,
    style: Style,
    depth: usize,
    values: Cell<u32>,
}

/// The JSON form of a table.
enum TableForm {
    Array(i64),
    Object,
}

fn bad(reason: impl Into<String>) -> Error {
    Error::RuntimeError(reason.into())
}

impl JsonWriter<'_> {
    fn value(&mut self, value: &Value) -> Result<()> {
        if is_late(&self.values) {
            return Err(bad("Cannot serialise, it took too long"));
        }
        match value {
            Value::Nil => self.out.extend_from_slice(b"null"),
            Value::LightUserData(pointer) if pointer.0.is_null() => self.out.extend_from_slice(b"null"),
            Value::Boolean(value) => self.out.extend_from_slice(if *value { b"true" } else { b"false" }),
            Value::Integer(number) => self.number(*number as f64)?,
            Value::Number(number) => self.number(*number)?,
            Value::String(text) => {
                let text = text.as_bytes();
                self.check_room(text.len())?;
                self.text(&text);
            }
            Value::Table(table) => self.table(table)?,
            other if self.style.forced => self.text(format!("{}: (a value)", other.type_name()).as_bytes()),
            other => return Err(bad(format!("Cannot serialise {}: type not supported", other.type_name()))),
        }
        self.check_room(0)
    }

    /// Whether so many more bytes are within the limit.
    fn check_room(&self, bytes: usize) -> Result<()> {
        match self.out.len() + bytes <= self.style.bytes_max {
            true => Ok(()),
            false => Err(bad(format!("Cannot serialise, the text is longer than {} MiB", self.style.bytes_max >> 20))),
        }
    }

    fn number(&mut self, number: f64) -> Result<()> {
        if number.is_finite() {
            self.out.extend_from_slice(&digits(number, self.style.digits));
            return Ok(());
        }
        let invalid = if self.style.forced { Invalid::Null } else { self.style.invalid };
        let text: &[u8] = match (invalid, number.is_nan(), number > 0.0) {
            (Invalid::Refused, ..) => return Err(bad("Cannot serialise number: must not be NaN or Infinity")),
            (Invalid::Null, ..) => b"null",
            (Invalid::Written, true, _) => b"NaN",
            (Invalid::Written, false, true) => b"Infinity",
            (Invalid::Written, false, false) => b"-Infinity",
        };
        self.out.extend_from_slice(text);
        Ok(())
    }

    fn text(&mut self, text: &[u8]) {
        self.out.push(b'"');
        for byte in text {
            match byte {
                b'"' => self.out.extend_from_slice(b"\\\""),
                b'\\' => self.out.extend_from_slice(b"\\\\"),
                b'/' if self.style.escapes_slash => self.out.extend_from_slice(b"\\/"),
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
        if self.depth >= self.style.depth_max {
            return Err(bad(format!("Cannot serialise, excessive depth ({})", self.depth + 1)));
        }
        self.depth += 1;
        match self.form(table)? {
            TableForm::Array(length) => {
                self.out.push(b'[');
                for at in 1..=length {
                    if at > 1 {
                        self.out.push(b',');
                    }
                    self.value(&table.raw_get(at)?)?;
                }
                self.out.push(b']');
            }
            TableForm::Object => self.object(table)?,
        }
        self.depth -= 1;
        Ok(())
    }

    fn object(&mut self, table: &Table) -> Result<()> {
        self.out.push(b'{');
        let start = self.out.len();
        if self.style.sorted {
            let mut entries = Vec::new();
            let mut bytes = 0;
            for pair in table.pairs::<Value, Value>() {
                let (key, value) = pair?;
                let Some(key) = self.key(&key)? else { continue };
                // Data kept for sorting counts like the text.
                bytes += key.len() + size_of::<(Vec<u8>, Value)>();
                self.check_room(bytes)?;
                entries.push((key, value));
            }
            entries.sort_unstable_by(|one, other| one.0.cmp(&other.0));
            entries.iter().try_for_each(|(key, value)| self.entry(start, key, value))?;
        } else {
            for pair in table.pairs::<Value, Value>() {
                let (key, value) = pair?;
                if let Some(key) = self.key(&key)? {
                    self.entry(start, &key, &value)?;
                }
            }
        }
        self.out.push(b'}');
        Ok(())
    }

    /// `None`: the entry is left out.
    fn key(&self, key: &Value) -> Result<Option<Vec<u8>>> {
        Ok(match key {
            Value::String(text) => Some(text.as_bytes().to_vec()),
            Value::Integer(number) => Some(digits(*number as f64, self.style.digits)),
            Value::Number(number) => Some(digits(*number, self.style.digits)),
            _ if self.style.forced => None,
            _ => return Err(bad("Cannot serialise table: table key must be a number or string")),
        })
    }

    fn entry(&mut self, start: usize, key: &[u8], value: &Value) -> Result<()> {
        if self.out.len() > start {
            self.out.push(b',');
        }
        self.check_room(key.len())?;
        self.text(key);
        self.out.push(b':');
        self.value(value)
    }

    fn form(&self, table: &Table) -> Result<TableForm> {
        if table.metatable().is_some_and(|metatable| metatable == *self.array_mt) {
            return Ok(TableForm::Array(table.raw_len() as i64));
        }
        let (mut most, mut count) = (0, 0);
        for pair in table.pairs::<Value, Value>() {
            match pair?.0 {
                Value::Integer(at) if at > 0 => most = most.max(at),
                Value::Number(at) if at > 0.0 && at.fract() == 0.0 && at < 1e9 => most = most.max(at as i64),
                _ => return Ok(TableForm::Object),
            }
            count += 1;
            if is_late(&self.values) {
                return Err(bad("Cannot serialise, it took too long"));
            }
        }
        let Style { empty_is_array, sparse_ratio, sparse_safe, sparse_is_object, forced, .. } = self.style;
        if count == 0 {
            return Ok(if empty_is_array { TableForm::Array(0) } else { TableForm::Object });
        }
        if sparse_ratio > 0 && most > sparse_safe && most > count * sparse_ratio {
            return match forced || sparse_is_object {
                true => Ok(TableForm::Object),
                false => Err(bad("Cannot serialise table: excessively sparse array")),
            };
        }
        // Each place takes five bytes as `null`.
        self.check_room(usize::try_from(most).unwrap_or(usize::MAX).saturating_mul(2))?;
        Ok(TableForm::Array(most))
    }
}

/// A number as C's `%.NUMBERg` writes it, with so many significant digits.
fn digits(number: f64, significant: usize) -> Vec<u8> {
    let significant = significant.clamp(1, DIGITS_MAX);
    if number.fract() == 0.0 && number.abs() < POWERS_OF_TEN[significant.min(15)] {
        return format!("{}", number as i64).into_bytes();
    }
    let last = significant - 1;
    let scientific = format!("{number:.last$e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    let below = i32::try_from(significant).unwrap_or(i32::MAX);
    if (-4..below).contains(&exponent) {
        let places = usize::try_from(below - 1 - exponent).unwrap_or_default();
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
            assert_eq!(String::from_utf8(digits(number, 14)).unwrap(), expected);
        }
        for (number, significant, expected) in [
            (0.1, 16, "0.1"),
            (0.1 + 0.2, 16, "0.3"),
            (2.0 / 3.0, 3, "0.667"),
            (123_456.0, 3, "1.23e+05"),
            (1e15, 16, "1000000000000000"),
            (9_007_199_254_740_993.0, 16, "9007199254740992"),
            (5.0, 0, "5"),
        ] {
            assert_eq!(String::from_utf8(digits(number, significant)).unwrap(), expected, "{number} {significant}");
        }
    }

    /// Whether two values are the same, with the metatables of arrays.
    fn is_same(a: &Value, b: &Value) -> bool {
        let (Value::Table(a), Value::Table(b)) = (a, b) else { return a == b };
        let entries = |table: &Table| table.pairs::<Value, Value>().map(|pair| pair.unwrap()).collect::<Vec<_>>();
        let (of_a, of_b) = (entries(a), entries(b));
        a.metatable().is_some() == b.metatable().is_some()
            && of_a.len() == of_b.len()
            && of_a.iter().all(|(key, value)| is_same(value, &b.raw_get(key.clone()).unwrap()))
    }

    /// A document of about so many values, from a number.
    fn document(seed: &mut u64, values: &mut usize, depth: usize) -> Json {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let drawn = (*seed >> 33) as usize;
        *values = values.saturating_sub(1);
        match (drawn % 8, depth) {
            (0, _) => Json::Null,
            (1, _) => Json::Bool(drawn.is_multiple_of(3)),
            (2, _) => Json::from(drawn as f64 / 7.0),
            (3, _) => Json::from("ä".repeat(drawn % 200)),
            (_, 0) => Json::from(drawn),
            (4 | 5, _) => {
                (0..drawn % 40).map_while(|_| (*values > 0).then(|| document(seed, values, depth - 1))).collect()
            }
            _ => {
                let mut entries = serde_json::Map::new();
                for at in 0..drawn % 40 {
                    if *values > 0 {
                        entries.insert(format!("{at}"), document(seed, values, depth - 1));
                    }
                }
                Json::Object(entries)
            }
        }
    }

    #[test]
    fn a_text_becomes_the_tables_of_its_document() {
        let lua = Lua::new();
        let array_mt = lua.create_table().unwrap();
        let check = |json: &Json| {
            let text = json.to_string();
            let read = read(&lua, text.as_bytes(), &array_mt).unwrap().unwrap();
            // Read again, as texts of numbers are not exact.
            let json: Json = serde_json::from_str(&text).unwrap();
            assert!(is_same(&read, &to_lua(&lua, &json, &array_mt).unwrap()), "{}", &text[..text.len().min(2000)]);
        };
        let mut seed = 1;
        for _ in 0..200 {
            let made: Vec<Json> = (0..4).map(|_| document(&mut seed, &mut 2_000, 6)).collect();
            check(&Json::from(made));
        }
        // Around the number of tokens and bytes after which the VM is called, with a key before the border or behind it.
        for items in TOKENS_MAX - 4..TOKENS_MAX + 4 {
            check(&Json::from(vec![1; items]));
            let entries = (0..items).map(|at| (at.to_string(), Json::from(format!("{at}"))));
            check(&Json::Object(entries.collect()));
            check(
                &serde_json::json!({ "a": vec![Json::Null; items], "b": [[], {}, { "c": "d".repeat(TEXTS_BYTES_MAX) }, {}] }),
            );
        }
        let deepest = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
        assert!(read(&lua, deepest(127).as_bytes(), &array_mt).is_ok());
        for text in [deepest(128), "[1,2".into(), "{\"a\":1,}".into(), "[1] 2".into(), String::new(), deepest(100_000)]
        {
            assert!(read(&lua, text.as_bytes(), &array_mt).is_err(), "{}", &text[..text.len().min(100)]);
        }
        // If a key is repeated, its last value counts, as in cjson.
        let Some(Value::Table(table)) = read(&lua, br#"{"a":1,"a":2}"#, &array_mt).unwrap() else { panic!() };
        assert_eq!(table.get::<f64>("a").unwrap(), 2.0);
    }

    #[test]
    fn memory_that_runs_out_is_an_error_and_returns() {
        let lua = Lua::new();
        let array_mt = lua.create_table().unwrap();
        let before = lua.used_memory();
        lua.set_memory_limit(before + 4 * 1024 * 1024).unwrap();
        let text = format!("[{}1]", "{\"a\":[]},".repeat(100_000));
        let error = read(&lua, text.as_bytes(), &array_mt).unwrap_err();
        assert!(error.to_string().starts_with(VM_ERROR), "{error}");
        lua.gc_collect().unwrap();
        assert!(lua.used_memory() < before + 256 * 1024, "{} of {before}", lua.used_memory());
        assert!(read(&lua, b"[1,[2]]", &array_mt).is_ok());
    }
}
