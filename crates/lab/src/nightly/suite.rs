//! The suite: what is measured every night, in YAML.
//!
//! ```yaml
//! build: cargo build --release        # once a commit
//! series:
//!   - name: router
//!     measure: ./bench router         # prints a number; see `bisect`
//!   - name: throughput
//!     measure: ./bench throughput
//!     higher_is_better: true
//! ```

use crate::error::{Error, Result};
use std::collections::BTreeSet;
use std::path::Path as FilePath;
use stillgate_yaml::scalar::Meaning;
use stillgate_yaml::{Entry, Fault, Node, Path, Sink, Value, tree};

/// What a suite has at least.
const LEAST: &str = "series: [{name: size, measure: wc -c < Cargo.lock}]";

const KEYS: [&str; 2] = ["build", "series"];
const SERIES_KEYS: [&str; 3] = ["name", "measure", "higher_is_better"];

/// Everything that is measured.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Suite {
    pub(crate) build: Option<String>,
    /// At least one; names differ.
    pub(crate) series: Vec<Measured>,
}

/// One series.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Measured {
    pub(crate) name: String,
    pub(crate) measure: String,
    pub(crate) higher_is_better: bool,
}

/// Reads a suite; all that is wrong with it is said at once.
pub(crate) fn read(path: &FilePath) -> Result<Suite> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::new(format!("{}: cannot be read: {error}", path.display())))?;
    parse(&text).map_err(|lines| {
        let lines: Vec<String> = lines.iter().map(|line| format!("{}:{line}", path.display())).collect();
        Error::new(lines.join("\n"))
    })
}

fn parse(text: &str) -> Result<Suite, Vec<String>> {
    let mut sink = Sink::default();
    let tree = tree::parse(0, text, None, &mut sink).and_then(|tree| tree.unless_empty(LEAST, &mut sink));
    let suite = tree.map(|tree| suite(&tree.root, &mut sink));
    match suite {
        Some(suite) if !sink.has_errors() => Ok(suite),
        _ => Err(sink
            .into_errors()
            .diagnostics
            .iter()
            .map(|found| {
                let hint = found.hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
                format!("{}:{}: {}{hint}", found.line, found.column, found.message)
            })
            .collect()),
    }
}

fn suite(root: &Node, sink: &mut Sink) -> Suite {
    let entries = map(root, &KEYS, sink);
    let build = get(entries, "build").and_then(|node| text(node, sink));
    let mut names = BTreeSet::new();
    let mut series = Vec::new();
    match get(entries, "series").map(|node| (node, &node.value)) {
        Some((_, Value::List(items))) if !items.is_empty() => {
            for item in items.iter() {
                if let Some(one) = one(item, sink) {
                    if !names.insert(one.name.clone()) {
                        sink.error(item.at, &Path::Root, Fault::new(format!("a second series {:?}", one.name)));
                    }
                    series.push(one);
                }
            }
        }
        found => {
            let at = found.map_or(root.at, |(node, _)| node.at);
            sink.error(at, &Path::Root, Fault::new("there are no series").hint(format!("write at least `{LEAST}`")));
        }
    }
    Suite { build, series }
}

fn one(node: &Node, sink: &mut Sink) -> Option<Measured> {
    let entries = map(node, &SERIES_KEYS, sink);
    let mut needed = |key: &str| match get(entries, key) {
        Some(node) => text(node, sink),
        None => {
            sink.error(
                node.at,
                &Path::Root,
                Fault::new(format!("a series needs {key:?}")).hint(format!("as in `{LEAST}`")),
            );
            None
        }
    };
    let (name, measure) = (needed("name"), needed("measure"));
    let higher_is_better = match get(entries, "higher_is_better").map(|node| (node, &node.value)) {
        None => false,
        Some((_, Value::Scalar(scalar))) if matches!(scalar.meaning(), Meaning::Bool(_)) => {
            scalar.meaning() == Meaning::Bool(true)
        }
        Some((node, _)) => {
            sink.error(node.at, &Path::Root, Fault::new(format!("true or false, not {}", node.found())));
            false
        }
    };
    Some(Measured { name: name?, measure: measure?, higher_is_better })
}

fn map<'t>(node: &'t Node, keys: &[&str], sink: &mut Sink) -> &'t [Entry] {
    let Value::Map(entries) = &node.value else {
        sink.error(node.at, &Path::Root, Fault::new(format!("a map of {}, not {}", keys.join(", "), node.found())));
        return &[];
    };
    for entry in entries.iter().filter(|entry| !keys.contains(&&*entry.key)) {
        let fault = Fault::new(format!("unknown key {:?}", entry.key)).hint(format!("known are {}", keys.join(", ")));
        sink.error(entry.key_at, &Path::Root, fault);
    }
    entries
}

fn get<'t>(entries: &'t [Entry], key: &str) -> Option<&'t Node> {
    entries.iter().find(|entry| &*entry.key == key).map(|entry| &entry.value).filter(|node| !node.is_null())
}

fn text(node: &Node, sink: &mut Sink) -> Option<String> {
    if let Value::Scalar(scalar) = &node.value
        && !scalar.text.trim().is_empty()
    {
        return Some(scalar.text.to_string());
    }
    sink.error(node.at, &Path::Root, Fault::new(format!("a text, not {}", node.found())));
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_is_read() {
        let suite =
            parse("build: make\nseries:\n- {name: a, measure: ./a}\n- {name: b, measure: ./b, higher_is_better: true}");
        let measured = |name: &str, higher_is_better| Measured {
            name: name.to_owned(),
            measure: format!("./{name}"),
            higher_is_better,
        };
        let series = vec![measured("a", false), measured("b", true)];
        assert_eq!(suite, Ok(Suite { build: Some("make".to_owned()), series }));
        assert!(parse(LEAST).is_ok());
    }

    #[test]
    fn the_example_of_the_manual_is_one() {
        let manual = include_str!("../../../../docs/laboratory.md");
        let example = manual.split("```yaml suite\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        assert_eq!(parse(example).unwrap().series.len(), 2);
    }

    #[test]
    fn the_projects_own_suite_is_one() {
        let suite = parse(include_str!("../../../../xtask/nightly/suite.yaml")).unwrap();
        assert!(suite.series.iter().any(|series| series.higher_is_better) && suite.build.is_some());
    }

    #[test]
    fn what_is_wrong_is_said_at_its_place() {
        let check = |text: &str, expected: &[&str]| {
            let found = parse(text).unwrap_err();
            for expected in expected {
                assert!(found.iter().any(|line| line.starts_with(expected)), "{text:?}: {found:?}");
            }
        };
        check("", &["1:1: the file is empty"]);
        check("build: x", &["1:1: there are no series"]);
        check("series: []", &["1:9: there are no series"]);
        check("series:\n- name: a\n  mesure: x", &["3:3: unknown key \"mesure\"", "2:3: a series needs \"measure\""]);
        check("series: [{name: a, measure: x}, {name: a, measure: y}]", &["1:33: a second series \"a\""]);
        check("series: [{name: a, measure: [x], higher_is_better: 7}]", &["1:29: a text", "1:52: true or false"]);
    }
}
