//! Reads objects of the imported file: each key that is read is marked, and the rest is reported as lost.
//!
//! That makes silence impossible: a key that no code asks for becomes a loss by itself. Values that have another type
//! than Kong's schema says become losses, too, and count as absent.

use crate::environment;
use crate::losses::Losses;
use serde_json::{Map, Value as Json, json};
use std::cell::RefCell;
use std::rc::Rc;
use stillgate_yaml::scalar::Meaning;
use stillgate_yaml::{Entry, Node, Position, Value};

/// A map of the file. Clones share the marks.
#[derive(Debug, Clone)]
pub(crate) struct Object(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    path: String,
    at: Position,
    entries: Rc<[Entry]>,
    /// Values for keys that `entries` lacks, the first list that has a key first.
    defaults: Vec<Rc<[Entry]>>,
    used: RefCell<Vec<bool>>,
    losses: Losses,
}

/// A value of the file and its place.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    pub(crate) path: String,
    pub(crate) at: Position,
    node: Node,
    losses: Losses,
}

/// A number of the file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Count {
    Known(f64),
    /// A text with a variable, which the gateway reads.
    Variable(String),
}

/// Beginnings of texts that are references to secrets here, in any case.
const REFERENCES: [&str; 2] = ["$env://", "$secret://"];

impl Object {
    /// The map of a node; `None`, with a loss, if it is something else.
    pub(crate) fn of(node: &Node, path: String, losses: &Losses) -> Option<Object> {
        Field { path, at: node.at, node: node.clone(), losses: losses.clone() }.object()
    }

    /// A map without entries, for a place that has none.
    pub(crate) fn empty(path: String, at: Position, losses: &Losses) -> Object {
        Object::new(path, at, Rc::from([]), losses)
    }

    fn new(path: String, at: Position, entries: Rc<[Entry]>, losses: &Losses) -> Object {
        let used = RefCell::new(vec![false; entries.len()]);
        Object(Rc::new(Inner { path, at, entries, defaults: Vec::new(), used, losses: losses.clone() }))
    }

    /// A copy with another map's values for the keys that it lacks.
    pub(crate) fn with_defaults(&self, defaults: &Object) -> Object {
        let inner = &self.0;
        Object(Rc::new(Inner {
            path: inner.path.clone(),
            at: inner.at,
            entries: Rc::clone(&inner.entries),
            defaults: inner.defaults.iter().chain([&defaults.0.entries]).map(Rc::clone).collect(),
            used: RefCell::new(inner.used.borrow().clone()),
            losses: inner.losses.clone(),
        }))
    }

    /// The place of the map itself.
    pub(crate) fn path(&self) -> &str {
        &self.0.path
    }

    /// Its beginning.
    pub(crate) fn at(&self) -> Position {
        self.0.at
    }

    /// The list of all losses.
    pub(crate) fn losses(&self) -> &Losses {
        &self.0.losses
    }

    /// The value of a key that is there and not null.
    pub(crate) fn field(&self, key: &str) -> Option<Field> {
        let inner = &self.0;
        let own = inner.entries.iter().position(|entry| &*entry.key == key);
        if let Some(index) = own {
            inner.used.borrow_mut()[index] = true;
        }
        let node = match own {
            Some(index) => &inner.entries[index].value,
            None => &inner.defaults.iter().flat_map(|list| list.iter()).find(|entry| &*entry.key == key)?.value,
        };
        let is_there = !node.is_null() && !matches!(node.value, Value::Refused);
        let path = if inner.path.is_empty() { key.to_owned() } else { format!("{}.{key}", inner.path) };
        is_there.then(|| Field { path, at: node.at, node: node.clone(), losses: inner.losses.clone() })
    }

    /// Whether a key is there, with a value.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.field(key).is_some()
    }

    /// A text. Numbers and booleans count as the text that they are written with.
    pub(crate) fn text(&self, key: &str) -> Option<String> {
        self.field(key)?.text()
    }

    /// A whole number.
    pub(crate) fn whole(&self, key: &str) -> Option<i64> {
        self.field(key)?.whole()
    }

    /// A number.
    pub(crate) fn number(&self, key: &str) -> Option<f64> {
        self.field(key)?.number()
    }

    /// A boolean.
    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        self.field(key)?.flag()
    }

    /// A boolean as JSON, which may be a text with a variable.
    pub(crate) fn switch(&self, key: &str) -> Option<Json> {
        self.field(key)?.switch()
    }

    /// A map.
    pub(crate) fn object(&self, key: &str) -> Option<Object> {
        self.field(key)?.object()
    }

    /// The items of a list.
    pub(crate) fn items(&self, key: &str) -> Vec<Field> {
        self.field(key).map_or_else(Vec::new, |field| field.items())
    }

    /// The texts of a list. A text alone counts as a list of one.
    pub(crate) fn texts(&self, key: &str) -> Vec<String> {
        self.items(key).iter().filter_map(Field::text).collect()
    }

    /// The maps of a list.
    pub(crate) fn objects(&self, key: &str) -> Vec<Object> {
        self.items(key).iter().filter_map(Field::object).collect()
    }

    /// Keys and values in the order of the file, all marked.
    pub(crate) fn all(&self) -> Vec<(String, Field)> {
        let keys: Vec<Rc<str>> = self.0.entries.iter().map(|entry| Rc::clone(&entry.key)).collect();
        keys.iter().filter_map(|key| Some((key.to_string(), self.field(key)?))).collect()
    }

    /// Marks keys that have no meaning for requests.
    pub(crate) fn skip(&self, keys: &[&str]) {
        keys.iter().for_each(|key| drop(self.field(key)));
    }

    /// Reports a loss if a key has a value.
    pub(crate) fn lost(&self, key: &str, message: &str) {
        if let Some(field) = self.field(key) {
            field.lost(message);
        }
    }

    /// Reports a loss if a flag is set.
    pub(crate) fn lost_if_set(&self, key: &str, message: &str) {
        if let Some(field) = self.field(key)
            && field.flag() == Some(true)
        {
            field.lost(message);
        }
    }

    /// Reports a loss at the map itself.
    pub(crate) fn changed(&self, message: impl Into<String>) {
        self.0.losses.changed(self.path(), self.at(), message);
    }

    /// Reports each key that nothing has asked for.
    pub(crate) fn finish(&self) {
        let used = self.0.used.borrow();
        for (entry, _) in
            self.0.entries.iter().zip(used.iter()).filter(|(entry, used)| !**used && !entry.value.is_null())
        {
            let path =
                if self.path().is_empty() { entry.key.to_string() } else { format!("{}.{}", self.path(), entry.key) };
            self.0.losses.changed(path, entry.key_at, "the importer does not know this key; it is left out");
        }
    }

    /// Writes times and tags, which have no effect, under their names here.
    pub(crate) fn stamp(&self, document: &mut Map<String, Json>) {
        const SECONDS_MAX: i64 = 10_000_000_000;
        for (key, name) in [("created_at", "create_time"), ("updated_at", "update_time")] {
            let seconds = self.number(key).map(|number| number as i64);
            if let Some(seconds) = seconds.filter(|seconds| (0..SECONDS_MAX).contains(seconds)) {
                document.insert(name.to_owned(), seconds.into());
            }
        }
        let tags = self.texts("tags");
        if !tags.is_empty() {
            document.insert("labels".to_owned(), json!({"tags": tags.join(",")}));
        }
    }
}

impl Field {
    fn scalar(&self) -> Option<&stillgate_yaml::scalar::Scalar> {
        match &self.node.value {
            Value::Scalar(scalar) => Some(scalar),
            _ => None,
        }
    }

    /// See [`Object::text`].
    pub(crate) fn text(&self) -> Option<String> {
        let Some(scalar) = self.scalar() else { return self.wrong("a text") };
        let begins = |with: &&str| scalar.text.get(..with.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(with));
        if REFERENCES.iter().any(begins) {
            return self.unreadable(
                "in Kong this is a text like any other, and here it would be a reference to a secret; it counts as absent",
            );
        }
        Some(environment::marked(&scalar.text))
    }

    pub(crate) fn whole(&self) -> Option<i64> {
        match self.number()? {
            number if number.fract() == 0.0 && number.abs() < 9e15 => Some(number as i64),
            _ => self.wrong("a whole number"),
        }
    }

    pub(crate) fn number(&self) -> Option<f64> {
        match self.count()? {
            Count::Known(number) => Some(number),
            Count::Variable(_) => self.unknown(),
        }
    }

    /// A number, or the variable that it comes from.
    pub(crate) fn count(&self) -> Option<Count> {
        match self.scalar().map(|scalar| scalar.meaning()) {
            Some(Meaning::Int(number)) => Some(Count::Known(number as f64)),
            Some(Meaning::Float(number)) => Some(Count::Known(number)),
            _ => match self.variable() {
                Some(text) => Some(Count::Variable(text)),
                None => self.wrong("a number"),
            },
        }
    }

    pub(crate) fn flag(&self) -> Option<bool> {
        match self.switch()? {
            Json::Bool(flag) => Some(flag),
            _ => self.unknown(),
        }
    }

    /// See [`Object::switch`].
    pub(crate) fn switch(&self) -> Option<Json> {
        match self.scalar().map(|scalar| scalar.meaning()) {
            Some(Meaning::Bool(flag)) => Some(flag.into()),
            _ => match self.variable() {
                Some(text) => Some(text.into()),
                None => self.wrong("true or false"),
            },
        }
    }

    /// The text, if it has variables.
    fn variable(&self) -> Option<String> {
        let text = environment::marked(&self.scalar()?.text);
        environment::is_marked(&text).then_some(text)
    }

    pub(crate) fn object(&self) -> Option<Object> {
        match &self.node.value {
            Value::Map(entries) => Some(Object::new(self.path.clone(), self.at, Rc::clone(entries), &self.losses)),
            // Lua cannot tell an empty list from an empty map.
            Value::List(items) if items.is_empty() => Some(Object::empty(self.path.clone(), self.at, &self.losses)),
            _ => self.wrong("a map"),
        }
    }

    pub(crate) fn items(&self) -> Vec<Field> {
        let field = |(index, node): (usize, &Node)| Field {
            path: format!("{}{}", self.path, item_name(node, index)),
            at: node.at,
            node: node.clone(),
            losses: self.losses.clone(),
        };
        match (&self.node.value, self.node.items()) {
            (_, Some(items)) => items.iter().enumerate().map(field).collect(),
            (Value::Scalar(_), None) => vec![self.clone()],
            _ => {
                self.wrong::<()>("a list");
                Vec::new()
            }
        }
    }

    /// Whether it is a list.
    pub(crate) fn is_list(&self) -> bool {
        self.node.items().is_some()
    }

    /// Whether a variable is in it.
    pub(crate) fn is_variable(&self) -> bool {
        self.variable().is_some()
    }

    /// Whether it is a map.
    pub(crate) fn is_object(&self) -> bool {
        matches!(&self.node.value, Value::Map(_))
    }

    /// Reports a loss at this value.
    pub(crate) fn lost(&self, message: &str) {
        self.losses.changed(&self.path, self.at, message);
    }

    /// Reports a value that is there and cannot be used.
    pub(crate) fn wrong<T>(&self, expected: &str) -> Option<T> {
        self.unreadable(&format!("this is not {expected}; it counts as absent"))
    }

    /// See [`Losses::unreadable`].
    pub(crate) fn unreadable<T>(&self, message: &str) -> Option<T> {
        self.losses.unreadable(&self.path, self.at, message);
        None
    }

    /// The value of a variable would have to be known.
    fn unknown<T>(&self) -> Option<T> {
        self.unreadable("the value comes from an environment variable; write it into the result by hand")
    }
}

/// How the path names an item of a list: by its name if it has one.
fn item_name(node: &Node, index: usize) -> String {
    // No credential is named by a key that may be secret.
    const NAMES: [&str; 6] = ["name", "username", "custom_id", "target", "group", "id"];
    let entries = node.entries().unwrap_or_default();
    let named = NAMES.iter().find_map(|name| {
        let entry = entries.iter().find(|entry| &*entry.key == *name)?;
        match &entry.value.value {
            Value::Scalar(scalar) if !scalar.text.is_empty() => Some(&*scalar.text),
            _ => None,
        }
    });
    let is_plain = |text: &&str| text.chars().all(|c| c.is_alphanumeric() || "-_.:@".contains(c)) && text.len() <= 100;
    match named.filter(is_plain) {
        Some(name) => format!(".{name}"),
        None => format!("[{index}]"),
    }
}
