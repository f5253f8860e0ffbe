//! The kinds of values that a key can have: how each is read, described in the schema and shown as a default.
//!
//! A kind is a small value such as `int(1, 256)` or `list(HOST)`; the tables of keys are written with them. Checks that
//! need more than one value (references, keys that exclude one another) are in `stillgate-config`.

use crate::description::{Definitions, or_environment};
use crate::text::diagnostic::{Fault, Path, Position, Sink, login_of, shortened};
use crate::text::scalar::Meaning;
use crate::text::tree::{Node, Value};
use serde_json::{Value as Json, json};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::PathBuf;

/// One kind of value.
pub trait Kind {
    /// The type of the values.
    type Out;

    /// `None` if the value is invalid, which was reported to the sink.
    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Self::Out>;

    /// Its JSON Schema.
    fn schema(&self, definitions: &mut Definitions) -> Json;

    /// A default in YAML's notation; null if there is nothing to show.
    fn show(&self, _value: &Self::Out) -> Json {
        Json::Null
    }
}

/// Reads a value, unless it has already been reported as broken.
pub fn read<K: Kind>(kind: &K, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<K::Out> {
    match node.value {
        Value::Refused => None,
        _ => kind.read(node, path, sink),
    }
}

/// The schema of a kind, given the type of its values: the key's type selects that of an `Int`.
pub fn schema<T>(kind: &impl Kind<Out = T>, definitions: &mut Definitions) -> Json {
    kind.schema(definitions)
}

/// Reports that something else was expected. A scalar is quoted, unless `what` names a list or a map: that may hold a
/// secret, and then the scalar in its place may be one.
pub fn report_expected(what: &str, node: &Node, path: &Path<'_>, sink: &mut Sink) {
    let found = match ["a list", "a map", "an object", "[", "{"].iter().any(|word| what.contains(word)) {
        true => node.type_description().to_owned(),
        false => found(node, sink),
    };
    sink.error(node.at, path, format!("expected {what}, found {found}"));
}

/// Reports the fault of a text, which it may quote, without the login in the text.
pub fn report_of_text(text: &str, fault: Fault, at: Position, path: &Path<'_>, sink: &mut Sink) {
    sink.with_hidden_scope(|sink| {
        if let Some(login) = login_of(text) {
            sink.hide(login);
        }
        sink.error(at, path, fault);
    });
}

/// A description of a value that is refused.
fn found(node: &Node, sink: &Sink) -> String {
    match sink.is_hiding() {
        true => node.type_description().to_owned(),
        false => node.description(),
    }
}

/// A map that holds secrets, or a list of such: messages about it, and below it, quote nothing.
pub struct SecretHolder<K>(pub K);

impl<K: Kind> Kind for SecretHolder<K> {
    type Out = K::Out;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<K::Out> {
        sink.with_hidden_scope(|sink| self.0.read(node, path, sink))
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        self.0.schema(definitions)
    }

    fn show(&self, value: &K::Out) -> Json {
        self.0.show(value)
    }
}

/// `true` or `false`.
pub struct Flag;

impl Kind for Flag {
    type Out = bool;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<bool> {
        if let Value::Scalar(scalar) = &node.value
            && let Meaning::Bool(value) = scalar.meaning()
        {
            return Some(value);
        }
        report_expected("true or false", node, path, sink);
        None
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        or_environment(json!({"type": "boolean"}))
    }

    fn show(&self, value: &bool) -> Json {
        json!(value)
    }
}

/// A whole number within bounds.
pub struct Int<T> {
    min: i64,
    max: i64,
    out: PhantomData<T>,
}

/// A whole number within these bounds.
pub const fn int<T>(min: i64, max: i64) -> Int<T> {
    Int { min, max, out: PhantomData }
}

/// A whole number in any notation: `1.0` is one, as in JSON Schema and in what APISIX stores.
fn whole(meaning: Meaning) -> Option<i64> {
    /// Up to here a float has every whole number.
    const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;
    match meaning {
        Meaning::Int(number) => Some(number),
        Meaning::Float(number) if number.fract() == 0.0 && number.abs() <= WHOLE_MAX => Some(number as i64),
        _ => None,
    }
}

impl<T: TryFrom<i64> + TryInto<i64> + Copy> Kind for Int<T> {
    type Out = T;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<T> {
        if let Value::Scalar(scalar) = &node.value
            && let Some(number) = whole(scalar.meaning())
            && (self.min..=self.max).contains(&number)
            && let Ok(number) = T::try_from(number)
        {
            return Some(number);
        }
        let bounds = match (self.min, self.max) {
            (i64::MIN, i64::MAX) => String::new(),
            (min, i64::MAX) => format!(", {min} or more"),
            (min, max) => format!(" from {min} to {max}"),
        };
        report_expected(&format!("a whole number{bounds}"), node, path, sink);
        None
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        let mut schema = json!({"type": "integer"});
        // The ends of the type are not intended as bounds.
        if self.min > i64::MIN {
            schema["minimum"] = json!(self.min);
        }
        if self.max < i64::MAX {
            schema["maximum"] = json!(self.max);
        }
        or_environment(schema)
    }

    fn show(&self, value: &T) -> Json {
        (*value).try_into().map_or(Json::Null, |n| json!(n))
    }
}

/// A text that is parsed into something.
pub struct Text<T> {
    what: &'static str,
    parse: fn(&str) -> Result<T, Fault>,
    show: fn(&T) -> Json,
    pattern: Option<&'static str>,
    numbers: bool,
    is_secret: bool,
}

/// `what` is the description with its article: `an IP address`.
pub const fn text<T>(what: &'static str, parse: fn(&str) -> Result<T, Fault>) -> Text<T> {
    Text { what, parse, show: |_| Json::Null, pattern: None, numbers: false, is_secret: false }
}

impl<T> Text<T> {
    /// A regular expression for the schema that all valid texts match.
    pub const fn pattern(mut self, pattern: &'static str) -> Text<T> {
        self.pattern = Some(pattern);
        self
    }

    /// Messages do not quote it. What `parse` says must not, either.
    pub const fn secret(mut self) -> Text<T> {
        self.is_secret = true;
        self
    }

    /// Also accepts a bare whole number, as its digits.
    pub const fn or_number(mut self) -> Text<T> {
        self.numbers = true;
        self
    }
}

impl Text<String> {
    /// The text can be shown as a default.
    pub const fn shown(mut self) -> Text<String> {
        self.show = |text| json!(text);
        self
    }
}

impl Text<PathBuf> {
    /// The path can be shown as a default.
    pub const fn shown(mut self) -> Text<PathBuf> {
        self.show = |path| json!(path);
        self
    }
}

/// Any text, unchanged.
pub const TEXT: Text<String> = text("a text", |text| Ok(text.to_owned()));

/// Where something listens.
pub const ADDRESS: Text<SocketAddr> = text("an address as IP:PORT", |text| {
    text.parse().map_err(|_| {
        let fault = Fault::new(format!("expected an address as IP:PORT, found {:?}", shortened(text)));
        match text.rsplit_once(':') {
            Some(("" | "*", port)) => fault.hint(format!("write \"0.0.0.0:{port}\"")),
            Some(("localhost", port)) => fault.hint(format!("write \"127.0.0.1:{port}\"")),
            _ => fault.hint("write it like \"0.0.0.0:9080\" or \"[::]:9080\""),
        }
    })
});

impl<T> Kind for Text<T> {
    type Out = T;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<T> {
        let Value::Scalar(scalar) = &node.value else {
            report_expected(self.what, node, path, sink);
            return None;
        };
        let digits;
        let text = match (scalar.as_text(), scalar.meaning()) {
            (Some(text), _) => text,
            (None, Meaning::Int(number)) if self.numbers => {
                digits = number.to_string();
                &digits
            }
            (None, Meaning::Null) => {
                report_expected(self.what, node, path, sink);
                return None;
            }
            (None, _) if self.is_secret || sink.is_hiding() => {
                let fault = Fault::new(format!("expected {}, found {}", self.what, node.type_description()));
                sink.error(node.at, path, fault.hint("write it in quotes"));
                return None;
            }
            (None, _) => {
                let fault = Fault::new(format!("expected {}, found {}", self.what, node.description()));
                sink.error(node.at, path, fault.hint(format!("write it in quotes: \"{}\"", shortened(&scalar.text))));
                return None;
            }
        };
        match (self.parse)(text) {
            Ok(value) => Some(value),
            Err(fault) => {
                report_of_text(text, fault, node.at, path, sink);
                None
            }
        }
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        let mut schema = match self.numbers {
            true => json!({"type": ["string", "integer"]}),
            false => json!({"type": "string"}),
        };
        match self.pattern {
            None => schema,
            Some(pattern) => {
                schema["pattern"] = json!(pattern);
                or_environment(schema)
            }
        }
    }

    fn show(&self, value: &T) -> Json {
        (self.show)(value)
    }
}

/// One word of a fixed list.
pub struct Choice<T: 'static> {
    /// Each word with its meaning.
    pub words: &'static [(&'static str, T)],
    /// Words that are known but not implemented.
    pub unbuilt: &'static [&'static str],
}

impl<T: Copy + PartialEq> Kind for Choice<T> {
    type Out = T;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<T> {
        let words = || self.words.iter().map(|(word, _)| *word);
        let Value::Scalar(scalar) = &node.value else {
            report_expected(&alternatives(words()), node, path, sink);
            return None;
        };
        if let Some((_, value)) = self.words.iter().find(|(word, _)| **word == *scalar.text) {
            return Some(*value);
        }
        if let Some(word) = self.unbuilt.iter().find(|word| ***word == *scalar.text) {
            let fault = Fault::new(format!("{word:?} is not supported yet"));
            sink.error(node.at, path, fault.hint(format!("write {}", alternatives(words()))));
            return None;
        }
        let fault = Fault::new(format!("expected {}, found {}", alternatives(words()), found(node, sink)));
        let fault = sink.guess(fault, &scalar.text, words());
        sink.error(node.at, path, fault);
        None
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        // `status: 1` is a word here and a number in YAML.
        let words = self.words.iter().map(|(word, _)| word.parse::<i64>().map_or(json!(word), |n| json!(n)));
        or_environment(json!({"enum": words.collect::<Vec<_>>()}))
    }

    fn show(&self, value: &T) -> Json {
        let word = self.words.iter().find(|(_, v)| v == value).map(|(word, _)| *word);
        word.map_or(Json::Null, |word| word.parse::<i64>().map_or(json!(word), |n| json!(n)))
    }
}

/// `a, b or c`.
pub fn alternatives<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let words: Vec<&str> = words.collect();
    match words.split_last() {
        None => String::new(),
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
    }
}

/// A list of values of one kind. Unreadable items are left out, having been reported.
pub struct List<K> {
    item: K,
    min: usize,
}

/// A list, which may be empty.
pub const fn list<K>(item: K) -> List<K> {
    List { item, min: 0 }
}

/// A list with at least one item.
pub const fn some<K>(item: K) -> List<K> {
    List { item, min: 1 }
}

/// A list of another kind, which has at least one item.
pub struct NonEmptyList<K>(pub K);

impl<K: Kind> Kind for NonEmptyList<K> {
    type Out = K::Out;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<K::Out> {
        if node.items().is_some_and(<[Node]>::is_empty) {
            empty_list(node, path, sink);
            return None;
        }
        read(&self.0, node, path, sink)
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        let mut schema = self.0.schema(definitions);
        schema["minItems"] = json!(1);
        schema
    }

    fn show(&self, value: &K::Out) -> Json {
        self.0.show(value)
    }
}

fn empty_list(node: &Node, path: &Path<'_>, sink: &mut Sink) {
    sink.error(node.at, path, Fault::new("an empty list").hint("name at least one, or remove the key"));
}

impl<K: Kind> Kind for List<K> {
    type Out = Vec<K::Out>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Vec<K::Out>> {
        let Some(items) = node.items() else {
            report_expected("a list", node, path, sink);
            return None;
        };
        if items.len() < self.min {
            empty_list(node, path, sink);
            return None;
        }
        let read_item = |(i, item)| read(&self.item, item, &path.index(i), sink);
        Some(items.iter().enumerate().filter_map(read_item).collect())
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        let mut schema = json!({"type": "array", "items": self.item.schema(definitions)});
        if self.min > 0 {
            schema["minItems"] = json!(self.min);
        }
        schema
    }

    fn show(&self, value: &Vec<K::Out>) -> Json {
        value.iter().map(|v| self.item.show(v)).collect()
    }
}

/// A list without duplicate items.
pub struct Unique<K>(List<K>);

/// Refuses duplicate items in a list.
pub const fn unique<K>(list: List<K>) -> Unique<K> {
    Unique(list)
}

impl<K: Kind<Out: PartialEq>> Kind for Unique<K> {
    type Out = Vec<K::Out>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Vec<K::Out>> {
        let items = self.0.read(node, path, sink)?;
        match (1..items.len()).find(|at| items[..*at].contains(&items[*at])) {
            None => Some(items),
            Some(at) => {
                sink.error(node.at, &path.index(at), Fault::new("a duplicate item").hint("remove it"));
                None
            }
        }
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        let mut schema = self.0.schema(definitions);
        schema["uniqueItems"] = json!(true);
        schema
    }

    fn show(&self, value: &Vec<K::Out>) -> Json {
        self.0.show(value)
    }
}

/// A value with its position.
#[derive(Debug, Clone, PartialEq)]
pub struct At<T> {
    /// Its position.
    pub at: Position,
    /// The value itself.
    pub value: T,
}

/// A value without a position, such as a default.
pub fn unplaced<T>(value: T) -> At<T> {
    At { at: Position::NOWHERE, value }
}

/// A kind whose values have positions.
pub struct LocatedKind<K>(pub K);

impl<K: Kind> Kind for LocatedKind<K> {
    type Out = At<K::Out>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<At<K::Out>> {
        let value = read(&self.0, node, path, sink)?;
        Some(At { at: node.at, value })
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        self.0.schema(definitions)
    }

    fn show(&self, value: &At<K::Out>) -> Json {
        self.0.show(&value.value)
    }
}

/// A kind whose values are converted, or checked further.
pub struct Then<K: Kind, T> {
    /// The kind to read.
    pub kind: K,
    /// The conversion; `None` if the value is invalid, which was reported to the sink.
    pub make: fn(K::Out, &Node, &Path<'_>, &mut Sink) -> Option<T>,
}

impl<K: Kind, T> Kind for Then<K, T> {
    type Out = T;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<T> {
        let value = read(&self.kind, node, path, sink)?;
        (self.make)(value, node, path, sink)
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        self.kind.schema(definitions)
    }
}

/// Names and texts without meaning for the gateway; APISIX's `labels`.
pub struct Labels;

impl Kind for Labels {
    type Out = ();

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<()> {
        let Some(entries) = node.entries() else {
            report_expected("a map of names and texts", node, path, sink);
            return None;
        };
        for entry in entries.iter() {
            read(&TEXT, &entry.value, &path.key(&entry.key), sink);
        }
        Some(())
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        json!({"type": "object", "additionalProperties": {"type": "string"}})
    }
}
