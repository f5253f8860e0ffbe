//! Finds a key's place in a configuration's text, for findings that are made after parsing.

use crate::diagnostic::{Position, Sink};
use crate::environment::Lookup;
use crate::tree::{self, Node, Value};

/// Line and column, both from 1, of the value at a path such as `gateway.listeners[1].address`, or of the nearest value
/// above it that is in the text. `None` if the text is not a configuration.
pub fn locate(text: &[u8], environment: Lookup<'_>, path: &str) -> Option<(u32, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let tree = tree::parse(0, text, Some(environment), &mut Sink::default()).filter(|tree| !tree.root.is_null())?;
    let Position { line, column } = within(&tree.root, path);
    Some((line, column))
}

/// Finds the place in a tree, or in the part of one in which the path begins.
pub fn within(root: &Node, path: &str) -> Position {
    let mut node = root;
    for step in path.split(['.', '[']) {
        let below = match (&node.value, step.strip_suffix(']')) {
            (Value::List(items), Some(index)) => index.parse().ok().and_then(|index: usize| items.get(index)),
            (Value::Map(entries), None) => entries.iter().find(|entry| &*entry.key == step).map(|entry| &entry.value),
            _ => None,
        };
        match below {
            Some(below) => node = below,
            None => break,
        }
    }
    node.at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_value_is_found() {
        let text =
            "gateway:\n  listeners:\n    - address: \"a\"\n    - {address: \"b\"}\n  access_log:\n    path: /x\n";
        let check = |path: &str, expected| assert_eq!(locate(text.as_bytes(), &|_| None, path), expected, "{path}");
        check("gateway.listeners[0].address", Some((3, 16)));
        check("gateway.listeners[1].address", Some((4, 17)));
        check("gateway.access_log.path", Some((6, 11)));
        check("gateway.access_log.format", Some((6, 5)));
        check("gateway.metrics.shared", Some((2, 3)));
        check("elsewhere", Some((1, 1)));
        assert_eq!(locate(b"", &|_| None, "gateway"), None);
    }
}
