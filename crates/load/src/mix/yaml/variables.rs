//! The `variables` of a mix file.

use crate::mix;
use crate::mix::errors::{Findings, quoted};
use crate::mix::template::{HEX_DIGITS_MAX, ValueSource, Variable};
use std::path::Path;
use std::str::FromStr;
use stillgate_yaml::diagnostic::nearest;
use stillgate_yaml::scalar::{Scalar, Style};
use stillgate_yaml::{Entry as Pair, Node, Value};

const KINDS: &[&str] = &["range", "counter", "values", "file", "uuid", "hex"];

/// All variables. An invalid one is kept with some source, so that its uses are not reported as
/// well.
pub(super) fn read(node: &Node, folder: &Path, reader: &mut Reader<'_>) -> Vec<Variable> {
    let Some(pairs) = reader.pairs(node, "a map of names, like `id: {range: [1, 100]}`") else { return Vec::new() };
    let mut variables = Vec::new();
    for pair in pairs {
        let named = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
        if pair.key.is_empty() || !pair.key.bytes().all(named) {
            let message =
                format!("{} is not a name for a variable; write letters, digits, `_`, `-` and `.`", quoted(&pair.key));
            reader.findings.add(pair.key_at, message);
        }
        let source = source(pair, folder, reader).unwrap_or_else(|| ValueSource::Values(vec![b"/".as_slice().into()]));
        variables.push(Variable { name: pair.key.to_string(), source });
    }
    variables
}

fn source(pair: &Pair, folder: &Path, reader: &mut Reader<'_>) -> Option<ValueSource> {
    let want = format!("one of {} with its value, like `range: [1, 100]`", listed(KINDS));
    let pairs = reader.pairs(&pair.value, &format!("a map with {want}"))?;
    let [Pair { key, key_at, value }] = pairs else {
        let found = format!("a variable has one source of values, but this one has {}; write {want}", pairs.len());
        reader.findings.add(pair.value.at, found);
        return None;
    };
    match &**key {
        "range" => parse_range(value, reader),
        "counter" => reader.number(value, |_| true, "the first number, like 1").map(ValueSource::Counter),
        "values" => {
            let want = "a list of values, like [ann, bob]";
            let items = reader.list(value, want)?;
            if items.is_empty() {
                return reader.wrong(value, "at least one value");
            }
            let item = |item: &Node| {
                reader.text(item, "a value, in quotes if it is to be empty").map(|text| text.as_bytes().into())
            };
            // All items are checked, so that all errors are reported.
            let values: Vec<Option<Box<[u8]>>> = items.iter().map(item).collect();
            values.into_iter().collect::<Option<Vec<_>>>().map(ValueSource::Values)
        }
        "file" => {
            let path = reader.text(value, "the path of a file with one value per line")?;
            match mix::lines_of_file(&folder.join(path)) {
                Ok(values) => Some(ValueSource::Values(values)),
                Err(message) => {
                    reader.findings.add(value.at, format!("{} {message}", quoted(path)));
                    None
                }
            }
        }
        "uuid" => reader.number(value, |&yes: &bool| yes, "`uuid: true`").map(|_| ValueSource::Uuid),
        "hex" => {
            let want = format!("a number of digits, 1 to {HEX_DIGITS_MAX}");
            reader.number(value, |digits| (1..=HEX_DIGITS_MAX).contains(digits), &want).map(ValueSource::Hex)
        }
        _ => {
            let message = format!("unknown source of values {}; {}", quoted(key), meant(key, KINDS));
            reader.findings.add(*key_at, message);
            None
        }
    }
}

fn parse_range(node: &Node, reader: &mut Reader<'_>) -> Option<ValueSource> {
    let want = "the lowest and the highest number, like [1, 100]";
    let [from, to] = reader.list(node, want)? else { return reader.wrong(node, want) };
    let mut bound = |node| reader.number::<i64>(node, |_| true, "a whole number of at most 18 digits");
    let (from, to) = (bound(from), bound(to));
    let (from, to) = (from?, to?);
    if from > to {
        let message = format!("the range ends at {to}, before it begins at {from}; write [{to}, {from}]");
        reader.findings.add(node.at, message);
        return None;
    }
    Some(ValueSource::Range(from, to))
}

// Reads typed values from the tree: the allowed values of each key, and the messages for others.

/// Reads values and gathers errors. A method that returns `None` has reported why.
pub(super) struct Reader<'a> {
    pub(super) findings: &'a mut Findings,
}

/// A map that was checked for unknown keys.
#[derive(Clone, Copy)]
pub(super) struct Map<'t> {
    pairs: &'t [Pair],
    /// It had unknown keys, one of which may be a misspelling of a missing one.
    pub(super) has_unknown: bool,
}

impl<'t> Map<'t> {
    /// The value of a key; a key without a value counts as absent.
    pub(super) fn get(self, key: &str) -> Option<&'t Node> {
        self.pair(key).map(|pair| &pair.value).filter(|node| !node.is_null())
    }

    pub(super) fn pair(self, key: &str) -> Option<&'t Pair> {
        self.pairs.iter().find(|pair| &*pair.key == key)
    }

    /// The keys that are present, in the order of the file.
    pub(super) fn present(self, keys: &[&str]) -> Vec<&'t Pair> {
        self.pairs.iter().filter(|pair| keys.contains(&&*pair.key)).collect()
    }
}

impl Reader<'_> {
    /// A map of these keys.
    pub(super) fn map<'t>(&mut self, node: &'t Node, keys: &[&str]) -> Option<Map<'t>> {
        let pairs = self.pairs(node, &format!("a map of {}", listed(keys)))?;
        let mut has_unknown = false;
        for Pair { key, key_at, .. } in pairs {
            if keys.contains(&&**key) {
                continue;
            }
            has_unknown = true;
            self.findings.add(*key_at, format!("unknown key {}; {}", quoted(key), meant(key, keys)));
        }
        Some(Map { pairs, has_unknown })
    }

    /// A map of any keys.
    pub(super) fn pairs<'t>(&mut self, node: &'t Node, want: &str) -> Option<&'t [Pair]> {
        match &node.value {
            Value::Map(pairs) => Some(pairs),
            _ => self.wrong(node, want),
        }
    }

    /// A list.
    pub(super) fn list<'t>(&mut self, node: &'t Node, want: &str) -> Option<&'t [Node]> {
        match &node.value {
            Value::List(items) => Some(items),
            _ => self.wrong(node, want),
        }
    }

    /// Text, which numbers are too.
    pub(super) fn text<'t>(&mut self, node: &'t Node, want: &str) -> Option<&'t str> {
        match &node.value {
            Value::Scalar(scalar) if !node.is_null() => Some(&scalar.text),
            _ => self.wrong(node, want),
        }
    }

    /// A whole number that `allowed` accepts.
    pub(super) fn number<T: FromStr>(&mut self, node: &Node, allowed: impl Fn(&T) -> bool, want: &str) -> Option<T> {
        match &node.value {
            Value::Scalar(Scalar { text, style: Style::Plain, .. }) => match text.parse().ok().filter(allowed) {
                Some(number) => Some(number),
                None => self.wrong(node, want),
            },
            _ => self.wrong(node, want),
        }
    }

    /// Reports the actual value and the expected one; `want` follows "write".
    pub(super) fn wrong<T>(&mut self, node: &Node, want: &str) -> Option<T> {
        if !matches!(node.value, Value::Refused) {
            self.findings.add(node.at, format!("{} is here; write {want}", node.description()));
        }
        None
    }
}

/// The known name that was probably meant.
pub(super) fn meant(name: &str, known: &[&str]) -> String {
    match nearest(name, known.iter().copied()) {
        Some(known) => format!("did you mean `{known}`?"),
        None => format!("known here: {}", listed(known)),
    }
}

/// `a`, `b` and `c`
pub(super) fn listed(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => String::new(),
    }
}
