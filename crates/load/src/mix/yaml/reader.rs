//! Reads typed values from the tree: the allowed values of each key, and the messages for others.

use crate::mix::errors::{Findings, quoted};
use std::str::FromStr;
use stillgate_yaml::nearest::nearest;
use stillgate_yaml::scalar::{Scalar, Style};
use stillgate_yaml::{Entry as Pair, Node, Value};

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
            self.findings.add(node.at, format!("{} is here; write {want}", node.found()));
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
