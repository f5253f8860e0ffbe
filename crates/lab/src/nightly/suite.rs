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
//! each_commit:                          # counts that do not scatter
//!   build: cargo build --example count
//!   series: [{name: parser, measure: ./count parser}]
//! ```

use super::analysis::MARGIN;
use crate::command_line::percent;
use crate::error::{Error, Result};
use std::collections::BTreeSet;
use std::path::Path as FilePath;
use stillgate_yaml::scalar::Meaning;
use stillgate_yaml::{Entry, Fault, Node, Path, Sink, Value, tree};

/// The smallest valid suite.
const LEAST: &str = "series: [{name: size, measure: wc -c < Cargo.lock}]";

const KEYS: [&str; 3] = ["build", "series", "each_commit"];
const EACH_COMMIT_KEYS: [&str; 3] = ["build", "series", "depends_on"];
const SERIES_KEYS: [&str; 4] = ["name", "measure", "higher_is_better", "margin"];

/// Everything that is measured.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Suite {
    pub(crate) build: Option<String>,
    /// At least one, unless something is counted; names differ.
    pub(crate) series: Vec<SeriesSpec>,
    pub(crate) each_commit: Option<EachCommit>,
}

/// Series that are counted for every commit since the last night.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EachCommit {
    pub(crate) build: Option<String>,
    /// Paths of everything that the counts depend on; empty: the whole commit.
    pub(crate) depends_on: Vec<String>,
    /// At least one; names differ from all others.
    pub(crate) series: Vec<SeriesSpec>,
}

/// One series.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SeriesSpec {
    pub(crate) name: String,
    pub(crate) measure: String,
    pub(crate) higher_is_better: bool,
    /// A larger difference must not be missed.
    pub(crate) margin: f64,
}

/// Reads a suite; reports all errors at once.
pub(crate) fn read(path: &FilePath) -> Result<Suite> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::new(format!("{}: cannot be read: {error}", path.display())))?;
    parse(&text).map_err(|lines| {
        let lines: Vec<String> = lines.iter().map(|line| format!("{}:{line}", path.display())).collect();
        Error::new(lines.join("\n"))
    })
}

fn parse(text: &str) -> Result<Suite, Vec<String>> {
    parsed(text, LEAST, suite)
}

/// Parses a text with `read`, or reports all its errors. `least` is the smallest valid text.
pub(crate) fn parsed<T>(
    text: &str,
    least: &'static str,
    read: impl FnOnce(&Node, &mut Sink) -> T,
) -> Result<T, Vec<String>> {
    let mut sink = Sink::default();
    let tree = tree::parse(0, text, None, &mut sink).and_then(|tree| tree.unless_empty(least, &mut sink));
    let read = tree.map(|tree| read(&tree.root, &mut sink));
    match read {
        Some(read) if !sink.has_errors() => Ok(read),
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
    let counted = get(entries, "each_commit");
    let has_series = get(entries, "series").is_some();
    let series = if has_series || counted.is_none() { list(root, entries, &mut names, sink) } else { Vec::new() };
    let each_commit = counted.map(|node| {
        let entries = map(node, &EACH_COMMIT_KEYS, sink);
        let build = get(entries, "build").and_then(|node| text(node, sink));
        let depends_on = get(entries, "depends_on").map(|node| paths(node, sink)).unwrap_or_default();
        EachCommit { build, depends_on, series: list(node, entries, &mut names, sink) }
    });
    Suite { build, series, each_commit }
}

fn paths(node: &Node, sink: &mut Sink) -> Vec<String> {
    match &node.value {
        Value::List(items) if !items.is_empty() => items.iter().filter_map(|item| text(item, sink)).collect(),
        _ => {
            sink.error(node.at, &Path::Root, Fault::new(format!("a list of paths, not {}", node.description())));
            Vec::new()
        }
    }
}

fn list(parent: &Node, entries: &[Entry], names: &mut BTreeSet<String>, sink: &mut Sink) -> Vec<SeriesSpec> {
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
            let at = found.map_or(parent.at, |(node, _)| node.at);
            sink.error(at, &Path::Root, Fault::new("no series").hint(format!("write at least `{LEAST}`")));
        }
    }
    series
}

fn one(node: &Node, sink: &mut Sink) -> Option<SeriesSpec> {
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
            sink.error(node.at, &Path::Root, Fault::new(format!("true or false, not {}", node.description())));
            false
        }
    };
    let margin = get(entries, "margin").map_or(MARGIN, |node| {
        let margin = text(node, sink).ok_or_else(String::new).and_then(|text| percent(&text));
        margin.unwrap_or_else(|why| {
            sink.error(node.at, &Path::Root, Fault::new(format!("no margin: {why}")).hint("write for example 5%"));
            MARGIN
        })
    });
    Some(SeriesSpec { name: name?, measure: measure?, higher_is_better, margin })
}

/// The entries of a map, with errors for unknown keys.
pub(crate) fn map<'t>(node: &'t Node, keys: &[&str], sink: &mut Sink) -> &'t [Entry] {
    let Value::Map(entries) = &node.value else {
        sink.error(
            node.at,
            &Path::Root,
            Fault::new(format!("a map of {}, not {}", keys.join(", "), node.description())),
        );
        return &[];
    };
    for entry in entries.iter().filter(|entry| !keys.contains(&&*entry.key)) {
        let fault = Fault::new(format!("unknown key {:?}", entry.key)).hint(format!("known are {}", keys.join(", ")));
        sink.error(entry.key_at, &Path::Root, fault);
    }
    entries
}

/// The value of a key.
pub(crate) fn get<'t>(entries: &'t [Entry], key: &str) -> Option<&'t Node> {
    entries.iter().find(|entry| &*entry.key == key).map(|entry| &entry.value).filter(|node| !node.is_null())
}

/// A text that is not empty.
pub(crate) fn text(node: &Node, sink: &mut Sink) -> Option<String> {
    if let Value::Scalar(scalar) = &node.value
        && !scalar.text.trim().is_empty()
    {
        return Some(scalar.text.to_string());
    }
    sink.error(node.at, &Path::Root, Fault::new(format!("a text, not {}", node.description())));
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_is_read() {
        let suite =
            parse("build: make\nseries:\n- {name: a, measure: ./a}\n- {name: b, measure: ./b, higher_is_better: true}");
        let measured = |name: &str, higher_is_better| SeriesSpec {
            name: name.to_owned(),
            measure: format!("./{name}"),
            higher_is_better,
            margin: MARGIN,
        };
        let series = vec![measured("a", false), measured("b", true)];
        assert_eq!(suite, Ok(Suite { build: Some("make".to_owned()), series, each_commit: None }));
        assert!(parse(LEAST).is_ok());
        let counted =
            parse("each_commit: {build: make, depends_on: [src, lib/x y], series: [{name: a, measure: ./a}]}").unwrap();
        let (build, depends_on) = (Some("make".to_owned()), vec!["src".to_owned(), "lib/x y".to_owned()]);
        let each_commit = EachCommit { build, depends_on, series: vec![measured("a", false)] };
        assert_eq!(counted, Suite { build: None, series: Vec::new(), each_commit: Some(each_commit) });
    }

    #[test]
    fn the_example_of_the_manual_is_one() {
        let manual = include_str!("../../../../docs/laboratory.md");
        let example = manual.split("```yaml suite\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let suite = parse(example).unwrap();
        assert_eq!((suite.series.len(), suite.series[2].margin, suite.each_commit.is_some()), (3, 0.3, true));
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
        check("build: x", &["1:1: no series"]);
        check("series: []", &["1:9: no series"]);
        check("series:\n- name: a\n  mesure: x", &["3:3: unknown key \"mesure\"", "2:3: a series needs \"measure\""]);
        check("series: [{name: a, measure: x}, {name: a, measure: y}]", &["1:33: a second series \"a\""]);
        check("series: [{name: a, measure: x, margin: 5}]", &["1:40: no margin: write the sign"]);
        check("each_commit: {}", &["1:14: no series"]);
        check("each_commit: {series: 7, bild: x}", &["1:23: no series", "1:26: unknown key \"bild\""]);
        check("each_commit: [a]", &["1:14: a map of build, series, depends_on"]);
        check("each_commit: {depends_on: src, series: [{name: a, measure: x}]}", &["1:27: a list of paths"]);
        let twice = "series: [{name: a, measure: x}]\neach_commit: {series: [{name: a, measure: x}]}";
        check(twice, &["2:24: a second series \"a\""]);
        check("series: [{name: a, measure: [x], higher_is_better: 7}]", &["1:29: a text", "1:52: true or false"]);
    }
}
