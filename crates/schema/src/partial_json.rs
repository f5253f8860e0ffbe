//! Reads the valid parts of a stored document whose text as a whole is not JSON.
//!
//! lua-cjson, by which APISIX reads documents, accepts more than the standard: `010`, `0x10`, `-.5`, `nan`, `1e999`, a
//! thousand lists inside one another, anything behind a NUL. A document with such a value serves requests there, so
//! here each unreadable value is refused by itself, and the others are read:
//!
//! ```text
//!  {"uri": "/a/*", "priority": 010}        ──▶  {"uri": "/a/*", "priority": {"$unreadable": "invalid number"}}
//!  {"uri": "/a/*", "upstream": {"no        ──▶  {"uri": "/a/*", "upstream": {"$unreadable": "…"}, "$unreadable": null}
//! ```
//!
//! In the second, [`UNREADABLE`] represents keys that may have followed: the text behind a break cannot be assigned to
//! keys. The work grows with the length of the text, and no value of it is ever in a message.

use crate::lenient_json::{escaped, without_values};
use serde_json::{Map, Value as Json, json};

/// The key of an object that represents an unreadable value, with the reason as its value. Next to other keys of a
/// document, it represents further keys that the document may have; null means that the reason is at the value before.
pub const UNREADABLE: &str = "$unreadable";

/// Deepest nesting of lists and maps that are read; the limit of serde_json.
const DEPTH_MAX: usize = 127;

/// A document of a datastore, as far as it can be read.
#[derive(Debug, PartialEq)]
pub struct PartialDocument<'t> {
    /// For a value that is not UTF-8, the text that the datastore puts before its readable part: `(no text: REASON) `.
    pub prefix: &'t str,
    /// The content.
    pub json: Json,
}

impl<'t> PartialDocument<'t> {
    /// Reads a text. An object is always read, in parts if necessary.
    ///
    /// # Errors
    ///
    /// If it is neither JSON nor a truncated object.
    pub fn read(text: &'t str) -> serde_json::Result<PartialDocument<'t>> {
        let behind = text.strip_prefix("(no text: ").and_then(|rest| rest.split_once(')'));
        let object = behind.map_or(text, |(_, rest)| rest.trim_start());
        let prefix = &text[..text.len() - object.len()];
        let json = serde_json::from_str(&escaped(object)).or_else(|error| in_parts(object).ok_or(error))?;
        Ok(PartialDocument { prefix, json })
    }

    /// Why its value is not UTF-8, if it is not.
    pub fn no_text(&self) -> Option<&'t str> {
        let (why, _) = self.prefix.strip_prefix("(no text: ")?.rsplit_once(')')?;
        Some(why)
    }

    /// A text that is read as an equal document.
    pub fn text(&self) -> String {
        format!("{}{}", self.prefix, self.json)
    }
}

/// The readable parts of an object; `None` if the text does not begin like one.
fn in_parts(text: &str) -> Option<Json> {
    let mut scan = Scan { text, at: 0 };
    scan.takes(b'{').then(|| scan.document())
}

fn unreadable(why: &str) -> Json {
    json!({ UNREADABLE: why })
}

fn is_marked(json: &Json) -> bool {
    match json {
        Json::Array(items) => items.iter().any(is_marked),
        Json::Object(keys) => keys.contains_key(UNREADABLE) || keys.values().any(is_marked),
        _ => false,
    }
}

/// A position in a text.
struct Scan<'t> {
    text: &'t str,
    /// In bytes; always between characters.
    at: usize,
}

/// Why the text cannot be parsed beyond some position.
type Broken = String;

impl<'t> Scan<'t> {
    /// The keys of the outermost object, behind its bracket. Among equal ones the last counts, as in lua-cjson.
    fn document(&mut self) -> Json {
        let mut keys = Map::new();
        let broken = self.keys(&mut keys).and_then(|()| match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.here("trailing characters").into()),
        });
        if let Err(why) = broken {
            keys.insert(UNREADABLE.to_owned(), why);
        } else if !keys.values().any(is_marked) {
            // The invalid value belongs to a name that is repeated later.
            keys.insert(UNREADABLE.to_owned(), "a key is there twice, once with an invalid value".into());
        }
        keys.into()
    }

    /// `Err` if more may follow, with the reason, or null if the value of the last key has it.
    fn keys(&mut self, keys: &mut Map<String, Json>) -> Result<(), Json> {
        let mut goes_on = !self.takes(b'}');
        while goes_on {
            let name = self.name()?;
            match self.value(DEPTH_MAX) {
                Ok(value) => drop(keys.insert(name, value)),
                Err(why) => {
                    keys.insert(name, unreadable(&why));
                    return Err(Json::Null);
                }
            }
            goes_on = self.goes_on(b'}')?;
        }
        Ok(())
    }

    /// `depth` is the nesting of lists and maps that is allowed here.
    fn value(&mut self, depth: usize) -> Result<Json, Broken> {
        match self.peek() {
            Some(b'{' | b'[') if depth == 0 => self.skip(),
            Some(b'{') => self.object(depth - 1),
            Some(b'[') => self.list(depth - 1),
            Some(b'"') => Ok(text(self.raw_string()?).unwrap_or_else(|why| unreadable(&why))),
            _ => Ok(self.word()),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, Broken> {
        self.at += 1;
        let mut keys = Map::new();
        let mut goes_on = !self.takes(b'}');
        while goes_on {
            let name = self.name()?;
            keys.insert(name, self.value(depth)?);
            goes_on = self.goes_on(b'}')?;
        }
        Ok(keys.into())
    }

    fn list(&mut self, depth: usize) -> Result<Json, Broken> {
        self.at += 1;
        let mut items = Vec::new();
        let mut goes_on = !self.takes(b']');
        while goes_on {
            items.push(self.value(depth)?);
            goes_on = self.goes_on(b']')?;
        }
        Ok(items.into())
    }

    /// Skips a list or map that is too deep to be read.
    fn skip(&mut self) -> Result<Json, Broken> {
        let mut open = 0;
        loop {
            match self.text.as_bytes().get(self.at) {
                None => return Err(self.here("end of the text")),
                Some(b'"') => drop(self.raw_string()?),
                Some(b'{' | b'[') => (open, self.at) = (open + 1, self.at + 1),
                Some(b'}' | b']') => (open, self.at) = (open - 1, self.at + 1),
                Some(_) => self.at += 1,
            }
            if open == 0 {
                return Ok(unreadable("too many lists and maps inside one another"));
            }
        }
    }

    /// A name and its colon.
    fn name(&mut self) -> Result<String, Broken> {
        if self.peek() != Some(b'"') {
            return Err(self.here("expected a key"));
        }
        let Json::String(name) = text(self.raw_string()?)? else { return Err(self.here("expected a key")) };
        match self.takes(b':') {
            true => Ok(name),
            false => Err(self.here("expected `:`")),
        }
    }

    /// Takes a comma, or else the closing bracket; returns whether it was a comma.
    fn goes_on(&mut self, closing: u8) -> Result<bool, Broken> {
        if self.takes(b',') {
            return Ok(true);
        }
        match self.takes(closing) {
            true => Ok(false),
            false => Err(self.here("expected `,` or a closing bracket")),
        }
    }

    /// A string with its quotes, as written.
    fn raw_string(&mut self) -> Result<&'t str, Broken> {
        let (text, from) = (self.text, self.at);
        let mut is_escaped = false;
        for (length, byte) in text.as_bytes()[from + 1..].iter().enumerate() {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => is_escaped = true,
                b'"' => {
                    self.at = from + length + 2;
                    return Ok(&text[from..self.at]);
                }
                _ => {}
            }
        }
        self.at = text.len();
        Err(self.here("end of the text in a string"))
    }

    /// A number or a word, up to the next character that can follow one.
    fn word(&mut self) -> Json {
        let rest = &self.text[self.at..];
        let is_behind = |byte: &u8| matches!(byte, b',' | b']' | b'}' | b' ' | b'\t' | b'\r' | b'\n');
        let word = &rest[..rest.as_bytes().iter().position(is_behind).unwrap_or(rest.len())];
        self.at += word.len();
        serde_json::from_str(word).unwrap_or_else(|error| {
            let why = without_values(&error);
            unreadable(match word.as_bytes().first() {
                _ if why == "number out of range" => &why,
                None => "expected a value",
                Some(b'0'..=b'9' | b'+' | b'-' | b'.') => "invalid number",
                Some(_) => "invalid word",
            })
        })
    }

    /// Whether this byte comes next; if so, skips it.
    fn takes(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// The next byte behind blanks.
    fn peek(&mut self) -> Option<u8> {
        let rest = &self.text.as_bytes()[self.at..];
        let is_blank = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        self.at += rest.iter().take_while(is_blank).count();
        self.text.as_bytes().get(self.at).copied()
    }

    fn here(&self, what: &str) -> Broken {
        format!("{what} at byte {}", self.at + 1)
    }
}

/// The value of a string.
fn text(raw: &str) -> Result<Json, Broken> {
    serde_json::from_str(&escaped(raw)).map_err(|error| without_values(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Json) {
        assert_eq!(PartialDocument::read(text).unwrap().json, expected, "{text:?}");
    }

    #[track_caller]
    fn check_value(value: &str, why: &str) {
        check(&format!("{{\"a\": {value}, \"b\": 1}}"), json!({"a": {UNREADABLE: why}, "b": 1}));
        check(&format!("{{\"a\": [1, {value}]}}"), json!({"a": [1, {UNREADABLE: why}]}));
        check(&format!("{{\"a\":{{\"c\":{value}}}}}"), json!({"a": {"c": {UNREADABLE: why}}}));
    }

    #[test]
    fn json_is_what_it_is() {
        for text in [r#"{"a": [1, {"b": null}], "c": "\u00e4"}"#, "7", "[]", "null", "{}"] {
            check(text, serde_json::from_str(text).unwrap());
        }
        check("{\"a\": \"x\ny\"}", json!({"a": "x\ny"}));
    }

    /// Each value that lua-cjson accepts is refused by itself.
    #[test]
    fn a_value_that_cannot_be_read_stands_alone() {
        for number in ["010", "-010", "0x10", "0x1p4", "1.", "1.e5", "-.5", "-inf", "-nan", "+1", "+0x10", "1a"] {
            check_value(number, "invalid number");
        }
        for word in ["inf", "Infinity", "NaN", "nan", "nan(1)", "INF", "True", "x"] {
            check_value(word, "invalid word");
        }
        check_value("", "expected a value");
        check_value("1e999", "number out of range");
        check_value(r#""\ud800""#, "unexpected end of hex escape");
        check_value(r#""\x""#, "invalid escape");
        check_value("\"a\0b\"", "control character (\\u0000-\\u001F) found while parsing a string");
        let deep = |depth: usize| "[".repeat(depth) + "\"]\\\"\"" + &"]".repeat(depth);
        let text = format!("{{\"a\": {}, \"b\": 010}}", deep(1000));
        let json = PartialDocument::read(&text).unwrap().json;
        assert_eq!(json["b"], json!({UNREADABLE: "invalid number"}));
        assert_eq!(json.to_string().matches(UNREADABLE).count(), 2);
        check(&format!("{{\"a\": {}}}", deep(100)), serde_json::from_str(&format!("{{\"a\":{}}}", deep(100))).unwrap());
        // Among equal names the last counts.
        check(r#"{"a": 1, "a": 010}"#, json!({"a": {UNREADABLE: "invalid number"}}));
        let twice = "a key is there twice, once with an invalid value";
        check(r#"{"a": 010, "\u0061": 1}"#, json!({"a": 1, UNREADABLE: twice}));
        check(r#"{"a": {"b": nan, "b": 1}}"#, json!({"a": {"b": 1}, UNREADABLE: twice}));
    }

    #[test]
    fn what_comes_behind_a_break_may_be_anything() {
        let broken = |text: &str, json: Json| check(text, json);
        broken(
            r#"{"a": 1, "b": [2, "c"#,
            json!({"a": 1, "b": {UNREADABLE: "end of the text in a string at byte 21"}, UNREADABLE: null}),
        );
        broken(
            r#"{"a": {"b": 1]"#,
            json!({"a": {UNREADABLE: "expected `,` or a closing bracket at byte 14"}, UNREADABLE: null}),
        );
        broken(r#"{"a": 1 "b": 2}"#, json!({"a": 1, UNREADABLE: "expected `,` or a closing bracket at byte 9"}));
        broken(r#"{"a" 1}"#, json!({UNREADABLE: "expected `:` at byte 6"}));
        broken(r#"{"a": 1,}"#, json!({"a": 1, UNREADABLE: "expected a key at byte 9"}));
        broken(r#"{"a": 1, "\ud800": 2}"#, json!({"a": 1, UNREADABLE: "unexpected end of hex escape"}));
        broken("{", json!({UNREADABLE: "expected a key at byte 2"}));
        broken("{not JSON", json!({UNREADABLE: "expected a key at byte 2"}));
        broken("{\"a\": 1}\0{\"b\": 2}", json!({"a": 1, UNREADABLE: "trailing characters at byte 9"}));
        for none in ["", "not JSON", "[{\"a\": 010}]", "\"{", "\u{feff}{}", "010"] {
            assert!(PartialDocument::read(none).is_err(), "{none:?}");
        }
    }

    #[test]
    fn bytes_that_are_not_text_leave_a_prefix() {
        let text = "(no text: byte 9 is not UTF-8; write JSON) {\"a\": \"\u{fffd}\", \"b\": 010}";
        let document = PartialDocument::read(text).unwrap();
        assert_eq!(document.no_text(), Some("byte 9 is not UTF-8; write JSON"));
        assert_eq!(document.json, json!({"a": "\u{fffd}", "b": {UNREADABLE: "invalid number"}}));
        assert_eq!(PartialDocument::read(&document.text()).unwrap(), document);
        let document = PartialDocument::read("{ }").unwrap();
        assert_eq!((document.no_text(), document.text()), (None, "{}".to_owned()));
    }

    /// Twice the text is twice the work, whatever its content.
    #[test]
    fn long_texts_are_read_in_one_pass() {
        for part in ["{\"a\":", "[", "\"", "\"\\", "010,", "\"a\":010,", " ", "}", "\"a\":[nan],", "\"\u{1}"] {
            let text = format!("{{\"x\": 010, {}", part.repeat(1_000_000 / part.len()));
            let json = PartialDocument::read(&text).unwrap().json;
            assert_eq!(json["x"], json!({UNREADABLE: "invalid number"}), "{part:?}");
        }
    }
}
