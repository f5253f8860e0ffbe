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
//! keys. A text without an object, such as YAML, is a document of which nothing can be read. The work grows with the length of the text, and no value of it is ever in a message.

use crate::lenient_json::{escaped, without_values};
use serde_json::{Map, Value as Json, json};

/// The key of an object that represents an unreadable value, with the reason as its value. Next to other keys of a
/// document, it represents further keys that the document may have; null means that the reason is at the value before.
pub const UNREADABLE: &str = "$unreadable";

/// Deepest nesting of lists and maps that are read; the limit of serde_json.
const DEPTH_MAX: usize = 127;

/// Values that are not resources: an empty one, and the marker of a directory that APISIX writes.
const MARKERS: [&str; 2] = ["", "init_dir"];

/// What editors and shells of Windows write before a text.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// A document of a datastore, as far as it can be read.
#[derive(Debug, PartialEq)]
pub struct PartialDocument<'t> {
    /// For a value that is not UTF-8, the text that the datastore puts before its readable part: `(no text: REASON) `.
    pub prefix: &'t str,
    /// The content: always an object. That of a text in which none is found has only the key [`UNREADABLE`].
    pub json: Json,
    form: DocumentForm<'t>,
}

/// How a text contains the object of a document.
#[derive(Debug, PartialEq)]
enum DocumentForm<'t> {
    Object,
    /// Behind a byte order mark.
    Marked,
    /// Encoded twice: in a string.
    Text,
    /// As the only item of a list.
    List,
    /// Not at all; with the whole text, and the reason.
    Absent(&'t str, String),
}

impl<'t> PartialDocument<'t> {
    /// Reads a text, in parts if necessary; `None`: it is a marker, not a resource. Any other text must not be taken for
    /// nothing: it may be a resource that keeps clients out, and that its author believes to be in use.
    pub fn read(text: &'t str) -> Option<PartialDocument<'t>> {
        if MARKERS.contains(&text) {
            return None;
        }
        let behind = text.strip_prefix("(no text: ").and_then(|rest| rest.split_once(')'));
        let value = behind.map_or(text, |(_, rest)| rest.trim_start());
        let prefix = &text[..text.len() - value.len()];
        let (form, json) =
            found_in(value).unwrap_or_else(|why| (DocumentForm::Absent(value, why), json!({ UNREADABLE: null })));
        Some(PartialDocument { prefix, json, form })
    }

    /// What is wrong with the text as a whole; its values may have errors of their own.
    pub fn faults(&self) -> Vec<String> {
        let no_text = self.prefix.strip_prefix("(no text: ").and_then(|rest| rest.rsplit_once(')'));
        let form = match &self.form {
            DocumentForm::Object => None,
            DocumentForm::Marked => Some("a byte order mark precedes the object; write it without one".to_owned()),
            DocumentForm::Text => Some("the object is inside a string; write the object itself".to_owned()),
            DocumentForm::List => Some("the object is inside a list; write the object itself".to_owned()),
            DocumentForm::Absent(_, why) => Some(why.clone()),
        };
        no_text.map(|(why, _)| format!("not JSON: {why}")).into_iter().chain(form).collect()
    }

    /// A text that is read as an equal document.
    pub fn text(&self) -> String {
        let (prefix, json) = (self.prefix, &self.json);
        match self.form {
            DocumentForm::Object => format!("{prefix}{json}"),
            DocumentForm::Marked => format!("{prefix}{BYTE_ORDER_MARK}{json}"),
            DocumentForm::Text => format!("{prefix}{}", Json::String(json.to_string())),
            DocumentForm::List => format!("{prefix}[{json}]"),
            DocumentForm::Absent(text, _) => format!("{prefix}{text}"),
        }
    }
}

/// The object in a text; an error says why there is none.
fn found_in(text: &str) -> Result<(DocumentForm<'static>, Json), String> {
    let absent = |what: &str| Err(format!("expected a JSON object, found {what}"));
    let found = match serde_json::from_str(&escaped(text)) {
        Ok(object @ Json::Object(_)) => return Ok((DocumentForm::Object, object)),
        Ok(Json::String(inner)) => {
            return object(&inner).map_or_else(|| absent("a string"), |json| Ok((DocumentForm::Text, json)));
        }
        Ok(Json::Array(items)) => match <[Json; 1]>::try_from(items) {
            Ok([object @ Json::Object(_)]) => return Ok((DocumentForm::List, object)),
            _ => return absent("a list"),
        },
        Ok(Json::Number(_)) => return absent("a number"),
        Ok(Json::Bool(_)) => return absent("a boolean"),
        Ok(Json::Null) => return absent("null"),
        Err(error) => error,
    };
    if let Some(json) = in_parts(text) {
        return Ok((DocumentForm::Object, json));
    }
    let marked = text.strip_prefix(BYTE_ORDER_MARK).and_then(object);
    marked.map_or_else(|| Err(format!("not JSON: {found}")), |json| Ok((DocumentForm::Marked, json)))
}

/// The object that a text is, in parts if necessary.
fn object(text: &str) -> Option<Json> {
    let whole: Option<Json> = serde_json::from_str(&escaped(text)).ok();
    whole.filter(Json::is_object).or_else(|| in_parts(text))
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
type ParseFailure = String;

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
    fn value(&mut self, depth: usize) -> Result<Json, ParseFailure> {
        match self.peek() {
            Some(b'{' | b'[') if depth == 0 => self.skip(),
            Some(b'{') => self.object(depth - 1),
            Some(b'[') => self.list(depth - 1),
            Some(b'"') => Ok(text(self.raw_string()?).unwrap_or_else(|why| unreadable(&why))),
            _ => Ok(self.word()),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, ParseFailure> {
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

    fn list(&mut self, depth: usize) -> Result<Json, ParseFailure> {
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
    fn skip(&mut self) -> Result<Json, ParseFailure> {
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
    fn name(&mut self) -> Result<String, ParseFailure> {
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
    fn goes_on(&mut self, closing: u8) -> Result<bool, ParseFailure> {
        if self.takes(b',') {
            return Ok(true);
        }
        match self.takes(closing) {
            true => Ok(false),
            false => Err(self.here("expected `,` or a closing bracket")),
        }
    }

    /// A string with its quotes, as written.
    fn raw_string(&mut self) -> Result<&'t str, ParseFailure> {
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

    fn here(&self, what: &str) -> ParseFailure {
        format!("{what} at byte {}", self.at + 1)
    }
}

/// The value of a string.
fn text(raw: &str) -> Result<Json, ParseFailure> {
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
        for text in [r#"{"a": [1, {"b": null}], "c": "\u00e4"}"#, "{}"] {
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
    }

    /// Whatever is not a marker is a resource, which may keep clients out.
    #[test]
    fn a_text_without_an_object_is_unreadable() {
        let check = |text: &str, expected: Json, fault: &str| {
            let document = PartialDocument::read(text).unwrap();
            assert_eq!((&document.json, document.faults()), (&expected, vec![fault.to_owned()]), "{text:?}");
            assert_eq!(PartialDocument::read(&document.text()).unwrap(), document, "{text:?}");
        };
        for text in ["", "init_dir"] {
            assert_eq!(PartialDocument::read(text), None, "{text:?}");
        }
        let none = || json!({ UNREADABLE: null });
        let syntax = "not JSON: expected value at line 1 column 1";
        for text in
            ["plain text", "\u{feff}", "\u{feff}[{}]", "// a\n{\"a\": 1}", "/* {} */{\"a\": 1}", "'{}'", "init_dir/"]
        {
            check(text, none(), syntax);
        }
        check("a: 1\nb: 2", none(), syntax);
        check(" ", none(), "not JSON: EOF while parsing a value at line 1 column 1");
        check(" init_dir", none(), "not JSON: expected value at line 1 column 2");
        check("010", none(), "not JSON: invalid number at line 1 column 2");
        check("[{\"a\": 010}]", none(), "not JSON: invalid number at line 1 column 9");
        for (text, what) in [
            ("7", "a number"),
            ("null", "null"),
            ("false", "a boolean"),
            ("\"\"", "a string"),
            ("\"init_dir\"", "a string"),
            ("\"[{}]\"", "a string"),
            ("[]", "a list"),
            ("[7]", "a list"),
            ("[[{}]]", "a list"),
            ("[{}, {}]", "a list"),
        ] {
            check(text, none(), &format!("expected a JSON object, found {what}"));
        }
        let object = || json!({"a": [1, "\u{e4}\""], "b": {}});
        let in_text = "the object is inside a string; write the object itself";
        check(&Json::String(object().to_string()).to_string(), object(), in_text);
        let in_parts = json!({"a": 1, "b": {UNREADABLE: "invalid number"}});
        check(r#""{\"a\": 1, \"b\": 010}""#, in_parts.clone(), in_text);
        check(&format!(" [{}]\n", object()), object(), "the object is inside a list; write the object itself");
        let marked = "a byte order mark precedes the object; write it without one";
        check(&format!("\u{feff}\n{}", object()), object(), marked);
        check("\u{feff}{\"a\": 1, \"b\": 010}", in_parts, marked);
        let document = PartialDocument::read("(no text: byte 1 is not UTF-8) \u{feff}{\"a\": \"\u{fffd}\"}").unwrap();
        assert_eq!(document.faults(), ["not JSON: byte 1 is not UTF-8", marked]);
        assert_eq!(PartialDocument::read(&document.text()).unwrap(), document);
    }

    #[test]
    fn bytes_that_are_not_text_leave_a_prefix() {
        let text = "(no text: byte 9 is not UTF-8; write JSON) {\"a\": \"\u{fffd}\", \"b\": 010}";
        let document = PartialDocument::read(text).unwrap();
        assert_eq!(document.faults(), ["not JSON: byte 9 is not UTF-8; write JSON"]);
        assert_eq!(document.json, json!({"a": "\u{fffd}", "b": {UNREADABLE: "invalid number"}}));
        assert_eq!(PartialDocument::read(&document.text()).unwrap(), document);
        let document = PartialDocument::read("{ }").unwrap();
        assert_eq!((document.faults(), document.text()), (Vec::new(), "{}".to_owned()));
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
