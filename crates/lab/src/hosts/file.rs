//! The hosts file: the machines of target and upstream, and the commands that bring them up and down.
//!
//! ```yaml
//! up: ./rent.sh
//! target: {ssh: 'root@{TARGET}', address: '{TARGET}'}
//! down: ./give-back.sh
//! ```

use crate::error::{Error, Result};
use crate::nightly::suite::{get, map, parsed, text};
use std::collections::BTreeMap;
use std::path::Path as FilePath;
use stillgate_yaml::{Entry, Fault, Node, Path, Sink};

/// The smallest valid file.
const LEAST: &str = "target: {ssh: root@192.0.2.7, address: 192.0.2.7}";

const KEYS: [&str; 4] = ["up", "down", "target", "upstream"];
const MACHINE_KEYS: [&str; 2] = ["ssh", "address"];

/// A hosts file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Hosts {
    /// Prints `NAME=VALUE` lines, which replace `{NAME}` in the other values.
    pub(super) up: Option<String>,
    /// Has these values in its environment.
    pub(super) down: Option<String>,
    /// `None`: this machine.
    pub(super) target: Option<Machine>,
    /// `None`: this machine.
    pub(super) upstream: Option<Machine>,
}

/// One machine.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Machine {
    /// Arguments of `ssh`.
    pub(super) ssh: String,
    /// An IP address at which the others reach it.
    pub(super) address: String,
}

impl Hosts {
    /// Reports all errors at once.
    pub(super) fn read(path: &FilePath) -> Result<Hosts> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::new(format!("--hosts {}: cannot be read: {error}", path.display())))?;
        Hosts::parse(&text).map_err(|lines| {
            let lines: Vec<String> = lines.iter().map(|line| format!("{}:{line}", path.display())).collect();
            Error::new(lines.join("\n"))
        })
    }

    fn parse(content: &str) -> Result<Hosts, Vec<String>> {
        parsed(content, LEAST, |root, sink| {
            let entries = map(root, &KEYS, sink);
            let mut command = |key: &str| get(entries, key).and_then(|node| text(node, sink));
            let (up, down) = (command("up"), command("down"));
            let (target, upstream) = (machine(entries, "target", sink), machine(entries, "upstream", sink));
            if target.is_none() && upstream.is_none() {
                let fault = Fault::new("neither target nor upstream is on another machine");
                sink.error(root.at, &Path::Root, fault.hint(format!("write at least `{LEAST}`")));
            }
            Hosts { up, down, target, upstream }
        })
    }
}

fn machine(entries: &[Entry], key: &str, sink: &mut Sink) -> Option<Machine> {
    let node: &Node = get(entries, key)?;
    let entries = map(node, &MACHINE_KEYS, sink);
    let mut needed = |key: &str| {
        let found = get(entries, key).and_then(|node| text(node, sink));
        if found.is_none() {
            let fault = Fault::new(format!("a machine needs {key:?}"));
            sink.error(node.at, &Path::Root, fault.hint(format!("as in `{LEAST}`")));
        }
        found.unwrap_or_default()
    };
    Some(Machine { ssh: needed("ssh"), address: needed("address") })
}

/// Replaces names in braces by their values.
pub(super) fn fill(text: &str, values: &BTreeMap<String, String>) -> Result<String> {
    let mut filled = text.to_owned();
    for (name, value) in values {
        filled = filled.replace(&format!("{{{name}}}"), value);
    }
    match filled.split_once('{') {
        None => Ok(filled),
        Some((_, rest)) => {
            let name = rest.split('}').next().unwrap_or_default();
            Err(Error::new(format!("`up` has printed no line {name}=…, which {text:?} needs")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_and_commands_are_read() {
        let hosts = Hosts::parse(
            "up: rent\ndown: give back\ntarget: {ssh: '-p 2222 root@{T}', address: '{T}'}\nupstream: {ssh: u, address: 192.0.2.1}",
        );
        let machine = |ssh: &str, address: &str| Some(Machine { ssh: ssh.to_owned(), address: address.to_owned() });
        let (up, down) = (Some("rent".to_owned()), Some("give back".to_owned()));
        let (target, upstream) = (machine("-p 2222 root@{T}", "{T}"), machine("u", "192.0.2.1"));
        assert_eq!(hosts, Ok(Hosts { up, down, target, upstream }));
        assert!(Hosts::parse(LEAST).is_ok());
    }

    #[test]
    fn the_manuals_example_is_one() {
        let manual = include_str!("../../../../docs/laboratory.md");
        let example = manual.split("```yaml hosts\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        assert!(Hosts::parse(example).unwrap().target.is_some());
    }

    #[test]
    fn what_is_wrong_is_said() {
        let check = |text: &str, expected: &str| {
            let lines = Hosts::parse(text).unwrap_err().join("\n");
            assert!(lines.contains(expected), "{text}: {lines}");
        };
        check("", "target");
        check("up: a", "neither target nor upstream");
        check("target: {ssh: a}", "a machine needs \"address\"");
        check("target: here", "a map of ssh, address");
        check("taget: {ssh: a, address: b}", "unknown key \"taget\"");
    }

    #[test]
    fn names_stand_for_what_was_printed() {
        let values = BTreeMap::from([("T".to_owned(), "192.0.2.7".to_owned())]);
        assert_eq!(fill("root@{T}", &values).unwrap(), "root@192.0.2.7");
        assert!(fill("{U}", &values).unwrap_err().to_string().contains("no line U=…"));
    }
}
