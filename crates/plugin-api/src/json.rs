//! Parses bodies into JSON values within a memory budget: a short text can become much memory.
//!
//! ```text
//!  [1,1,1,…]      2 bytes a value, which takes 72        [{"":1},{"":1},…]   7 bytes an object, which takes 450
//! ```
//!
//! The budget counts the approximate memory of the values while they are built. Every parser of a body uses one.

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// Smallest budget of one body.
const BYTES_MIN: usize = 64 * 1024 * 1024;
/// Budget of a longer body, for each byte of the plugin's limit.
const BYTES_PER_BYTE: usize = 16;

/// A memory budget for values.
#[derive(Debug)]
pub struct Budget {
    left: usize,
}

/// The budget is exhausted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetExhausted;

impl fmt::Display for BudgetExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the content of the body needs more memory than allowed")
    }
}

impl Budget {
    /// The budget for a body of at most so many bytes.
    pub fn of_body(bytes_max: usize) -> Budget {
        Budget { left: bytes_max.saturating_mul(BYTES_PER_BYTE).max(BYTES_MIN) }
    }

    /// A budget of so many bytes of memory.
    pub fn of_memory(bytes: usize) -> Budget {
        Budget { left: bytes }
    }

    /// Takes so many bytes.
    ///
    /// # Errors
    ///
    /// If there is not enough left.
    pub fn take(&mut self, bytes: usize) -> Result<(), BudgetExhausted> {
        self.left = self.left.checked_sub(bytes).ok_or(BudgetExhausted)?;
        Ok(())
    }

    /// Takes the memory of a value without its text and its items. A list has spare capacity.
    ///
    /// # Errors
    ///
    /// If there is not enough left.
    pub fn take_value(&mut self) -> Result<(), BudgetExhausted> {
        self.take(2 * size_of::<Value>())
    }

    /// Takes the memory of a copy of a value.
    ///
    /// # Errors
    ///
    /// If there is not enough left.
    pub fn take_copy(&mut self, value: &Value) -> Result<(), BudgetExhausted> {
        self.take_value()?;
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
            Value::String(text) => self.take(text.len()),
            Value::Array(items) => items.iter().try_for_each(|item| self.take_copy(item)),
            Value::Object(entries) if entries.is_empty() => Ok(()),
            Value::Object(entries) => {
                self.take_table()?;
                entries.iter().try_for_each(|(name, value)| {
                    self.take_entry(name)?;
                    self.take_copy(value)
                })
            }
        }
    }

    /// Takes the memory of an object with entries, without these: the first entry allocates room for three, and for
    /// their index.
    ///
    /// # Errors
    ///
    /// If there is not enough left.
    pub fn take_table(&mut self) -> Result<(), BudgetExhausted> {
        const TABLE_BYTES: usize = 256;
        self.take(TABLE_BYTES)
    }

    /// Takes the memory of an object's entry with its name, without its value.
    ///
    /// # Errors
    ///
    /// If there is not enough left.
    pub fn take_entry(&mut self, name: &str) -> Result<(), BudgetExhausted> {
        /// Hash, index and the name's own memory.
        const ENTRY_BYTES: usize = 2 * (size_of::<String>() + 2 * size_of::<usize>()) + 32;
        self.take(ENTRY_BYTES + name.len())
    }
}

/// Parses JSON.
///
/// # Errors
///
/// If it is invalid, or exceeds the budget: [`is_exhausted`] distinguishes these.
pub fn read(text: &[u8], budget: &mut Budget) -> Result<Value, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = BudgetReader(budget).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// Whether parsing failed because of the budget, whatever the text is.
pub fn is_exhausted(error: &serde_json::Error) -> bool {
    error.is_data()
}

struct BudgetReader<'b>(&'b mut Budget);

impl BudgetReader<'_> {
    fn value<E: serde::de::Error>(self, value: Value) -> Result<Value, E> {
        self.0.take_value().map_err(E::custom)?;
        Ok(value)
    }
}

impl<'de> DeserializeSeed<'de> for BudgetReader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BudgetReader<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Value, E> {
        self.value(Value::Bool(value))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Value, E> {
        self.value(value.into())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Value, E> {
        self.value(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        self.value(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        self.0.take(value.len()).map_err(E::custom)?;
        self.value(Value::String(value.to_owned()))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Value, E> {
        self.value(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        self.0.take_value().map_err(A::Error::custom)?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(BudgetReader(self.0))? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        self.0.take_value().map_err(A::Error::custom)?;
        let mut object = Map::new();
        while let Some(name) = entries.next_key::<String>()? {
            if object.is_empty() {
                self.0.take_table().map_err(A::Error::custom)?;
            }
            self.0.take_entry(&name).map_err(A::Error::custom)?;
            let value = entries.next_value_seed(BudgetReader(self.0))?;
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(text: &str) {
        let ours = read(text.as_bytes(), &mut Budget::of_body(0));
        let theirs = serde_json::from_str::<Value>(text);
        match (ours, theirs) {
            (Ok(ours), Ok(theirs)) => assert_eq!(ours.to_string(), theirs.to_string(), "{text}"),
            (Err(ours), Err(theirs)) => assert_eq!(ours.to_string(), theirs.to_string(), "{text}"),
            (ours, theirs) => panic!("{text}: {ours:?}, {theirs:?}"),
        }
    }

    #[test]
    fn values_are_read_as_serde_json_reads_them() {
        for text in [
            r#"{"b":[1,-2,3.5,1e300,18446744073709551615,true,false,null,"x\n\u00e4"],"a":{"b":{}},"b":[]}"#,
            "[]",
            "1e999",
            "-0",
            "\"\"",
            "",
            "{",
            "[1,]",
            "{\"a\" 1}",
            "1 2",
            "{\"a\":1}x",
            "\u{feff}1",
        ] {
            check(text);
        }
        check(&"[".repeat(200));
        check(&("[".repeat(127) + &"]".repeat(127)));
    }

    #[test]
    fn a_short_text_does_not_become_much_memory() {
        let many = |item: &str| format!("[{}]", vec![item; 100_000].join(","));
        for item in ["1", "\"\"", "[]", "{}", r#"{"":1}"#, r#"{"a":{"a":{"a":1}}}"#] {
            let text = many(item);
            let error = read(text.as_bytes(), &mut Budget::of_memory(1024 * 1024)).unwrap_err();
            assert!(is_exhausted(&error), "{item}: {error}");
        }
        assert!(!is_exhausted(&read(b"[1,", &mut Budget::of_memory(1024)).unwrap_err()));
        assert_eq!(read(b"[1,2]", &mut Budget::of_memory(1024)).unwrap(), json!([1, 2]));
    }

    /// The budget counts no less than the memory of a value: lists and objects of one level, and of several.
    #[test]
    fn what_is_counted_is_what_is_taken() {
        fn taken(value: &Value) -> usize {
            match value {
                Value::Array(items) => {
                    (items.capacity() - items.len()) * size_of::<Value>()
                        + items.iter().map(|item| size_of::<Value>() + taken(item)).sum::<usize>()
                }
                // With a hash for each entry, and the capacity of the index: 3, 7, 14, 28, …
                Value::Object(entries) if entries.is_empty() => 0,
                Value::Object(entries) => {
                    let places = (entries.len() * 8).div_ceil(7).next_power_of_two().max(4);
                    let room = if places < 8 { places - 1 } else { places / 8 * 7 };
                    let of_entry = |(name, value): (&String, &Value)| name.len().max(8) + taken(value);
                    let table = places * (size_of::<usize>() + 1) + 16 + room * (size_of::<Value>() + 24 + 8);
                    table + entries.iter().map(of_entry).sum::<usize>()
                }
                Value::String(text) => text.len(),
                _ => 0,
            }
        }
        for text in [
            format!("[{}]", vec![r#"{"":1}"#; 1000].join(",")),
            format!("[{}]", vec![r#"{"a":1,"b":2,"c":3,"d":4}"#; 1000].join(",")),
            format!("[{}]", vec!["1"; 1000].join(",")),
            format!("[{}]", vec![r#"{"a":1,"b":"text"}"#; 1000].join(",")),
            format!("{{{}}}", (0..1000).map(|n| format!("\"n{n}\":{{\"x\":[]}}")).collect::<Vec<_>>().join(",")),
        ] {
            let mut budget = Budget::of_body(0);
            let before = budget.left;
            let value = read(text.as_bytes(), &mut budget).unwrap();
            let (counted, taken) = (before - budget.left, taken(&value));
            assert!(counted >= taken && counted < 4 * taken, "{counted} for {taken}");
            // A copy has no spare capacity, and is counted alike.
            let mut copied = Budget::of_body(0);
            copied.take_copy(&value).unwrap();
            assert_eq!(before - copied.left, counted, "{text}");
        }
    }

    /// Measures the real memory of the process, which nothing else changes: each test is a process.
    #[test]
    fn small_objects_take_no_more_than_is_counted() {
        const COUNT: usize = 200_000;
        let resident = || -> usize {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
        };
        for item in
            [r#"{"":1}"#, r#"{"key":"text"}"#, r#"{"a":{"b":{"c":1}}}"#, "{}", "[]", r#"{"a":1,"b":2,"c":3,"d":4}"#]
        {
            let text = format!("[{}]", vec![item; COUNT].join(","));
            let mut budget = Budget::of_memory(usize::MAX);
            let before = resident();
            let value = read(text.as_bytes(), &mut budget).unwrap();
            let (taken, counted) = (resident().saturating_sub(before) / COUNT, (usize::MAX - budget.left) / COUNT);
            assert!(counted >= taken, "{item}: {counted} bytes are counted, {taken} taken");
            println!("{item}: {counted} bytes are counted, {taken} taken");
            // Memory that was freed is reused, and would not be seen.
            std::mem::forget(value);
        }
    }
}
