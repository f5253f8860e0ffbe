//! The `variables` of a mix file.

use super::{Reader, listed, meant};
use crate::mix::errors::quoted;
use crate::mix::files;
use crate::mix::{HEX_DIGITS_MAX, ValueSource, Variable};
use std::path::Path;
use stillgate_yaml::{Entry as Pair, Node};

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
        "range" => range(value, reader),
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
            match files::lines(&folder.join(path)) {
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

fn range(node: &Node, reader: &mut Reader<'_>) -> Option<ValueSource> {
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
