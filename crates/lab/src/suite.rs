//! Suites: tables of targets, cases and figures, in YAML, for `stillgate-lab measure FIGURES --suite FILE`.
//!
//! ```text
//!  file ──▶ targets × cases ──fill──▶ configurations, requests ──run──▶ rounds of a table (see `figures`)
//! ```
//!
//! [`read`] reads a suite; [`filled`] makes texts of its templates. `commands::measure` starts the targets of each
//! case, checks that they answer as expected, and measures their figures in the same rounds. A suite as it is written:
//!
//! ```yaml
//! fill: {routes: 1000}                    # texts of placeholders; `--set routes=1` replaces one
//! prepare: openssl req -x509 …            # sh, in the folder {files}; the texts above are its variables
//! beside: {sink: 'nc -kl {port}'}         # runs meanwhile; `{sink}` is its port
//! upstream: {kind: nginx, configuration: node.conf}     # default: a bare responder
//! targets:                                # columns, in this order; ratios are to the first
//!   nginx: {kind: nginx, configuration: gateways/nginx.conf, fill: {location: ""}}
//!   mine: {command: 'mine --listen {address} --to {upstream}'}
//! mix: 'requests: [{path: "{path}"}]'     # as for `load`
//! setups:                                 # parts that cases share
//!   tls: {secure: true, nginx: {listen: ssl}}
//! cases:                                  # rows
//!   - {name: small, fill: {path: /}}
//!   - name: header                        # only on targets with texts, if there are any
//!     against: small                      # also shows what it adds to this one
//!     nginx: {location: add_header X-A b;}
//! ```

use crate::command_line::{count, duration};
use crate::error::{Error, Result};
use crate::nightly::suite::{get, map, parsed, text};
use crate::target::TargetKind;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path as FilePath;
use std::time::Duration;
use stillgate_yaml::scalar::Meaning;
use stillgate_yaml::{Entry, Fault, Node, Path, Sink, Value};

// Texts with placeholders in braces: `{name}` stands for a text of the suite, `{include FILE}` for a prepared file.

/// Texts by the names of their placeholders.
pub(crate) type Texts = BTreeMap<String, String>;

/// Texts may contain further placeholders, this deep.
const DEPTH_MAX: usize = 8;

/// Placeholders that a start fills in later; see `target::Spec::configuration`.
const OF_A_START: [&str; 7] = ["address", "admin", "dir", "metrics", "port", "upstream", "upstream_port"];

const INCLUDE: &str = "include ";

/// Fills in all placeholders but those of a start. Files are in `folder`, which is also `{files}`.
pub(crate) fn filled(template: &str, texts: &[&Texts], folder: &FilePath) -> Result<String> {
    let mut text = template.to_owned();
    for _ in 0..DEPTH_MAX {
        let (next, has_changed) = once(&text, texts, folder)?;
        if !has_changed {
            return Ok(next);
        }
        text = next;
    }
    Err(Error::new("its placeholders contain each other"))
}

/// Replaces each placeholder once; the first of `texts` that has it counts.
fn once(template: &str, texts: &[&Texts], folder: &FilePath) -> Result<(String, bool)> {
    let (mut text, mut rest, mut has_changed) = (String::with_capacity(template.len()), template, false);
    while let Some((before, behind)) = rest.split_once('{') {
        text.push_str(before);
        let name = behind.split_once('}').map(|(name, _)| name).filter(|name| is_name(name));
        let Some(name) = name else {
            text.push('{');
            rest = behind;
            continue;
        };
        rest = &behind[name.len() + 1..];
        if OF_A_START.contains(&name) {
            text.push_str(&format!("{{{name}}}"));
            continue;
        }
        has_changed = true;
        match (name.strip_prefix(INCLUDE), texts.iter().find_map(|texts| texts.get(name))) {
            (Some(file), _) => {
                let path = folder.join(file);
                let read = fs::read_to_string(&path);
                text.push_str(&read.map_err(|error| Error::new(format!("{{{name}}}: {}: {error}", path.display())))?);
            }
            (None, Some(of)) => text.push_str(of),
            (None, None) if name == "files" => text.push_str(&folder.to_string_lossy()),
            (None, None) => return Err(Error::new(format!("the suite has no text for {{{name}}}"))),
        }
    }
    text.push_str(rest);
    Ok((text, has_changed))
}

fn is_name(text: &str) -> bool {
    let is_word = |text: &str| text.starts_with(|c: char| c.is_ascii_lowercase()) && text.bytes().all(is_of_word);
    text.strip_prefix(INCLUDE).map_or_else(|| is_word(text), |file| !file.is_empty() && file.bytes().all(is_of_file))
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'
}

fn is_of_file(byte: u8) -> bool {
    is_of_word(byte) || matches!(byte, b'.' | b'-')
}

/// The smallest suite.
const LEAST: &str = "{targets: {nginx: {kind: nginx}}, cases: [{name: small}]}";

const KEYS: [&str; 15] = [
    "rounds",
    "connections",
    "time",
    "warm_up",
    "rate",
    "requests",
    "fill",
    "prepare",
    "beside",
    "upstream",
    "targets",
    "mix",
    "setups",
    "judged",
    "cases",
];
const TARGET_KEYS: [&str; 4] = ["kind", "configuration", "command", "fill"];
const SETUP_KEYS: [&str; 8] = ["secure", "streams", "connections", "requests", "settle", "shows", "refuses", "fill"];
const CASE_KEYS: [&str; 4] = ["name", "setup", "with", "against"];

/// A whole suite.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Suite {
    pub(crate) rounds: Option<u64>,
    pub(crate) connections: Option<u64>,
    /// Requests of a count.
    pub(crate) requests: Option<u64>,
    pub(crate) time: Option<Duration>,
    pub(crate) warm_up: Option<Duration>,
    /// Requests per second, for latencies.
    pub(crate) rate: Option<u64>,
    pub(crate) fill: Texts,
    pub(crate) prepare: Option<String>,
    /// Commands that run meanwhile, by the placeholders of their ports; in them it is `{port}`.
    pub(crate) beside: Texts,
    pub(crate) upstream: Option<TargetPlan>,
    /// At least one, with different names.
    pub(crate) targets: Vec<TargetPlan>,
    /// The target whose additions are compared with the least of the others.
    pub(crate) judged: Option<String>,
    pub(crate) mix: Option<String>,
    /// At least one, with different names.
    pub(crate) cases: Vec<BenchmarkCase>,
}

/// How a target is started.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct TargetPlan {
    pub(crate) name: String,
    /// `None`: it has a command.
    pub(crate) kind: Option<TargetKind>,
    /// The file of its configuration's template, beside the suite.
    pub(crate) configuration: Option<String>,
    pub(crate) command: Option<String>,
    pub(crate) fill: Texts,
}

/// One row, with everything that it takes from its setup and from the cases that it is made of.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct BenchmarkCase {
    pub(crate) name: String,
    /// The case that it is also compared with, on each target.
    pub(crate) against: Option<String>,
    pub(crate) is_secure: bool,
    /// Streams of HTTP/2; `None`: HTTP/1.
    pub(crate) streams: Option<u64>,
    pub(crate) connections: Option<u64>,
    pub(crate) requests: Option<u64>,
    /// Time in which targets still work on the requests of a count.
    pub(crate) settle: Duration,
    /// A line in the head of each answer, or its beginning.
    pub(crate) shows: Vec<String>,
    /// Without its headers a request is refused.
    pub(crate) refuses: bool,
    pub(crate) fill: Texts,
    /// The texts of each target.
    pub(crate) parts: BTreeMap<String, Texts>,
    /// The targets that have it.
    pub(crate) targets: BTreeSet<String>,
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

fn suite(root: &Node, sink: &mut Sink) -> Suite {
    let entries = map(root, &KEYS, sink);
    let targets: Vec<TargetPlan> = match get(entries, "targets") {
        Some(node) => named_entries(node, sink).iter().map(|entry| target(entry, sink)).collect(),
        None => Vec::new(),
    };
    if targets.is_empty() {
        wrong(root, "no targets", sink);
    }
    let names: Vec<&str> = targets.iter().map(|target| target.name.as_str()).collect();
    let setups = get(entries, "setups").map(|node| named_entries(node, sink)).unwrap_or_default();
    let mut cases: Vec<BenchmarkCase> = Vec::new();
    match get(entries, "cases").map(|node| &node.value) {
        Some(Value::List(items)) if !items.is_empty() => {
            for item in items.iter() {
                let case = Cases { names: &names, setups, cases: &cases }.case(item, sink);
                cases.push(case);
            }
        }
        _ => wrong(root, "no cases", sink),
    }
    Suite {
        rounds: number(entries, "rounds", sink),
        connections: number(entries, "connections", sink),
        requests: number(entries, "requests", sink),
        time: time(entries, "time", sink),
        warm_up: time(entries, "warm_up", sink),
        rate: number(entries, "rate", sink),
        fill: texts(entries, "fill", sink),
        prepare: get(entries, "prepare").and_then(|node| text(node, sink)),
        beside: texts(entries, "beside", sink),
        upstream: get(entries, "upstream").map(|node| plan("upstream", node, sink)),
        judged: get(entries, "judged").and_then(|node| text(node, sink)),
        targets,
        mix: get(entries, "mix").and_then(|node| text(node, sink)),
        cases,
    }
}

fn target(entry: &Entry, sink: &mut Sink) -> TargetPlan {
    plan(&entry.key, &entry.value, sink)
}

fn plan(name: &str, node: &Node, sink: &mut Sink) -> TargetPlan {
    let entries = map(node, &TARGET_KEYS, sink);
    let mut written = |key: &str| get(entries, key).and_then(|node| text(node, sink));
    let (kind, configuration, command) = (written("kind"), written("configuration"), written("command"));
    let known = kind.as_deref().and_then(TargetKind::named);
    if known.is_none() == command.is_none() {
        let message = format!("{name} needs a `command`, or a `kind`: stillgate, nginx, nginx-lua, haproxy or envoy");
        wrong(node, &message, sink);
    }
    TargetPlan { name: name.to_owned(), kind: known, configuration, command, fill: texts(entries, "fill", sink) }
}

/// What a case is read with: what comes before it.
struct Cases<'a> {
    names: &'a [&'a str],
    setups: &'a [Entry],
    cases: &'a [BenchmarkCase],
}

impl Cases<'_> {
    fn case(&self, node: &Node, sink: &mut Sink) -> BenchmarkCase {
        let entries = map(node, &[&CASE_KEYS[..], &SETUP_KEYS[..], self.names].concat(), sink);
        let mut case = BenchmarkCase::default();
        let mut is_for: Vec<BTreeSet<String>> = Vec::new();
        if let Some(node) = get(entries, "setup") {
            match text(node, sink).and_then(|name| get(self.setups, &name)) {
                Some(setup) => self.add(map(setup, &[&SETUP_KEYS[..], self.names].concat(), sink), &mut case, sink),
                None => wrong(node, "there is no such setup", sink),
            }
        }
        for name in list(entries, "with", sink) {
            match self.cases.iter().find(|case| case.name == name) {
                Some(part) => {
                    case.take(part);
                    is_for.push(part.targets.clone());
                }
                None => wrong(node, &format!("no case {name:?} comes before it"), sink),
            }
        }
        self.add(entries, &mut case, sink);
        let own: BTreeSet<String> =
            self.names.iter().filter(|name| get(entries, name).is_some()).map(|name| (*name).to_owned()).collect();
        is_for.extend((!own.is_empty()).then_some(own));
        let all = self.names.iter().map(|name| (*name).to_owned()).collect();
        case.targets = is_for.iter().fold(all, |all: BTreeSet<String>, some| all.intersection(some).cloned().collect());
        case.name = get(entries, "name").and_then(|node| text(node, sink)).unwrap_or_default();
        if case.name.is_empty() || self.cases.iter().any(|other| other.name == case.name) {
            wrong(node, "a case needs a `name` that no other has", sink);
        }
        case.against = get(entries, "against").and_then(|node| text(node, sink));
        if case.against.as_ref().is_some_and(|name| !self.cases.iter().any(|case| case.name == *name)) {
            wrong(node, "`against` names no case before it", sink);
        }
        case
    }

    /// Adds the keys that setups and cases have.
    fn add(&self, entries: &[Entry], case: &mut BenchmarkCase, sink: &mut Sink) {
        case.is_secure |= is_true(entries, "secure", sink);
        case.refuses |= is_true(entries, "refuses", sink);
        case.streams = number(entries, "streams", sink).or(case.streams);
        case.connections = number(entries, "connections", sink).or(case.connections);
        case.requests = number(entries, "requests", sink).or(case.requests);
        case.settle = time(entries, "settle", sink).unwrap_or(case.settle);
        case.shows.extend(get(entries, "shows").and_then(|node| text(node, sink)));
        case.fill.extend(texts(entries, "fill", sink));
        for name in self.names {
            for (slot, text) in texts(entries, name, sink) {
                append(case.parts.entry((*name).to_owned()).or_default(), &slot, &text);
            }
        }
    }
}

impl BenchmarkCase {
    /// Adds all of another case: the texts of a target follow each other.
    fn take(&mut self, part: &BenchmarkCase) {
        self.refuses |= part.refuses;
        self.settle = self.settle.max(part.settle);
        self.shows.extend(part.shows.iter().cloned());
        self.fill.extend(part.fill.clone());
        for (target, texts) in &part.parts {
            let own = self.parts.entry(target.clone()).or_default();
            texts.iter().for_each(|(slot, text)| append(own, slot, text));
        }
    }
}

fn append(texts: &mut Texts, slot: &str, text: &str) {
    let own = texts.entry(slot.to_owned()).or_default();
    if !own.is_empty() && !own.ends_with('\n') {
        own.push(' ');
    }
    own.push_str(text);
}

/// The entries of a map with any keys.
fn named_entries<'t>(node: &'t Node, sink: &mut Sink) -> &'t [Entry] {
    match &node.value {
        Value::Map(entries) => entries,
        _ => {
            wrong(node, &format!("a map of names, not {}", node.description()), sink);
            &[]
        }
    }
}

/// Texts by name; they may be empty.
fn texts(entries: &[Entry], key: &str, sink: &mut Sink) -> Texts {
    let entries = get(entries, key).map(|node| named_entries(node, sink)).unwrap_or_default();
    let text = |entry: &Entry| match &entry.value.value {
        Value::Scalar(scalar) => scalar.text.to_string(),
        _ => {
            wrong(&entry.value, &format!("a text, not {}", entry.value.description()), sink);
            String::new()
        }
    };
    let names: Vec<String> = entries.iter().map(|entry| entry.key.to_string()).collect();
    names.into_iter().zip(entries.iter().map(text)).collect()
}

fn list(entries: &[Entry], key: &str, sink: &mut Sink) -> Vec<String> {
    match get(entries, key).map(|node| (node, &node.value)) {
        None => Vec::new(),
        Some((_, Value::List(items))) => items.iter().filter_map(|item| text(item, sink)).collect(),
        Some((node, _)) => {
            wrong(node, &format!("a list of names, not {}", node.description()), sink);
            Vec::new()
        }
    }
}

fn number(entries: &[Entry], key: &str, sink: &mut Sink) -> Option<u64> {
    read_by(entries, key, count, sink).filter(|number| *number > 0)
}

fn time(entries: &[Entry], key: &str, sink: &mut Sink) -> Option<Duration> {
    read_by(entries, key, duration, sink)
}

fn read_by<T>(entries: &[Entry], key: &str, read: fn(&str) -> Result<T, String>, sink: &mut Sink) -> Option<T> {
    let node = get(entries, key)?;
    match read(&text(node, sink)?) {
        Ok(value) => Some(value),
        Err(why) => {
            wrong(node, &why, sink);
            None
        }
    }
}

fn is_true(entries: &[Entry], key: &str, sink: &mut Sink) -> bool {
    match get(entries, key).map(|node| (node, &node.value)) {
        None => false,
        Some((_, Value::Scalar(scalar))) if matches!(scalar.meaning(), Meaning::Bool(_)) => {
            scalar.meaning() == Meaning::Bool(true)
        }
        Some((node, _)) => {
            wrong(node, &format!("true or false, not {}", node.description()), sink);
            false
        }
    }
}

fn wrong(node: &Node, message: &str, sink: &mut Sink) {
    sink.error(node.at, &Path::Root, Fault::new(message).hint(format!("as in `{LEAST}`")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(template: &str, expected: Result<&str, &str>) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("list"), "1, {a}").unwrap();
        let texts = |pairs: &[(&str, &str)]| -> Texts {
            pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
        };
        let (own, others) =
            (texts(&[("a", "A"), ("twice", "{a}{b}")]), texts(&[("a", "other"), ("b", "B"), ("c", "{c}")]));
        let text = filled(template, &[&own, &others], folder.path()).map_err(|error| error.to_string());
        assert_eq!(text.as_deref().map_err(String::as_str), expected, "{template}");
    }

    #[test]
    fn placeholders_are_filled_in() {
        check("server { listen {address}; x{1,3} {{a}} {twice}", Ok("server { listen {address}; x{1,3} {A} AB"));
        check("[{include list}]", Ok("[1, A]"));
        check("{", Ok("{"));
        check("{A} {_a} {a b} {}", Ok("{A} {_a} {a b} {}"));
    }

    #[test]
    fn what_cannot_be_filled_in_is_said() {
        check("{d}", Err("the suite has no text for {d}"));
        check("{c}", Err("its placeholders contain each other"));
        let folder = tempfile::tempdir().unwrap();
        let error = filled("{include no}", &[], folder.path()).unwrap_err().to_string();
        assert!(error.starts_with("{include no}: ") && error.contains("No such file"), "{error}");
    }

    const EXAMPLE: &str = "\
fill: {path: /}
targets:
  nginx: {kind: nginx, configuration: n.conf, fill: {location: ''}}
  mine: {command: 'mine {address}'}
setups:
  tls: {secure: true, streams: 32, nginx: {listen: ssl}}
cases:
  - {name: none}
  - {name: a, against: none, settle: 6s, nginx: {location: 'a;'}}
  - {name: b, setup: tls, shows: 'x-b: 1', nginx: {location: b;}, mine: {words: b}}
  - {name: both, with: [a, b], fill: {path: /both}}
";

    fn named(suite: &Suite, name: &str) -> BenchmarkCase {
        suite.cases.iter().find(|case| case.name == name).unwrap().clone()
    }

    #[test]
    fn a_suite_is_read() {
        let suite = parse(EXAMPLE).unwrap();
        assert_eq!(suite.targets.iter().map(|target| target.kind).collect::<Vec<_>>(), [Some(TargetKind::Nginx), None]);
        let targets = |name: &str| named(&suite, name).targets.into_iter().collect::<Vec<_>>();
        assert_eq!(targets("none"), ["mine", "nginx"], "a case that names none is for all");
        assert_eq!(targets("a"), ["nginx"]);
        let (a, b) = (named(&suite, "a"), named(&suite, "b"));
        assert_eq!((a.settle, a.against.as_deref()), (Duration::from_secs(6), Some("none")));
        assert!(b.is_secure && b.streams == Some(32) && b.shows == ["x-b: 1"]);
        assert_eq!(b.parts["nginx"]["listen"], "ssl", "from its setup");
    }

    #[test]
    fn the_example_of_the_manual_is_one() {
        let manual = include_str!("../../../docs/laboratory.md");
        let example = manual.split("```yaml table\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let suite = parse(example).unwrap();
        assert_eq!((suite.targets.len(), suite.cases.len(), suite.rounds), (2, 3, Some(5)));
    }

    #[test]
    fn a_case_is_made_of_others() {
        let both = named(&parse(EXAMPLE).unwrap(), "both");
        assert_eq!(both.parts["nginx"]["location"], "a; b;");
        assert_eq!((both.fill["path"].as_str(), both.settle), ("/both", Duration::from_secs(6)));
        assert_eq!(both.targets.into_iter().collect::<Vec<_>>(), ["nginx"], "only where all of them are");
    }

    #[test]
    fn what_is_wrong_is_said_at_its_place() {
        #[track_caller]
        fn check(change: (&str, &str), expected: &str) {
            let text = EXAMPLE.replacen(change.0, change.1, 1);
            assert_ne!(text, EXAMPLE, "{change:?}");
            let found = parse(&text).unwrap_err();
            assert!(found.iter().any(|line| line.contains(expected)), "{change:?}: {found:?}");
        }
        check(("fill:", "fil:"), "1:1: unknown key \"fil\"");
        check(("kind: nginx,", ""), "3:10: nginx needs a `command`, or a `kind`");
        check(("kind: nginx,", "kind: apache,"), "nginx needs a `command`, or a `kind`");
        check(("setup: tls", "setup: ssl"), "there is no such setup");
        check(("[a, b]", "[a, c]"), "no case \"c\" comes before it");
        check(("against: none", "against: both"), "`against` names no case before it");
        check(("name: b,", "name: a,"), "a case needs a `name` that no other has");
        check(("settle: 6s", "settle: 6"), "write a number and its unit");
        check(("secure: true", "secure: 7"), "true or false, not the number 7");
        check(("mine: {words: b}", "yours: {words: b}"), "unknown key \"yours\"");
        check(("mine: {words: b}", "mine: {words: [b]}"), "a text, not a list");
        let error = parse("cases: []").unwrap_err();
        assert!(
            error.iter().any(|line| line.contains("no targets")) && error.iter().any(|line| line.contains("no cases"))
        );
    }
}
