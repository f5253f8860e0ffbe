//! Records tests that have passed and cannot have changed since: they need not run again.
//!
//! A test depends on everything it can read: its executable, the programs of the workspace that it starts, and every file of the
//! repository that is not Rust source (data, scripts, documents). Other programs do not count; `cargo xtask test --all` runs
//! everything.

use crate::junit::TestResult;
use crate::step::target_dir;
use crate::{Result, tree};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::PathBuf;
use std::time::SystemTime;

/// The programs of the workspace that a package's tests start.
const STARTED: &[(&str, &[&str])] =
    &[("stillgate-gateway", &["stillgate"]), ("stillgate-lab", &["stillgate", "stillgate-lab"])];

/// Executables in which only the tests with a prefix start all of those, and the programs that the others start.
const STARTING_LESS: &[(&str, &str, &[&str])] = &[
    ("stillgate-lab::all", "devices::", &["stillgate-lab"]),
    ("stillgate-lab::bin/stillgate-lab", "target::end_to_end::", &[]),
];

/// Tests with the same dependencies.
#[derive(Debug, Clone, PartialEq)]
struct TestGroup {
    binary: String,
    /// The prefix of its tests' names, and whether they have it or lack it.
    prefix: Option<(&'static str, bool)>,
    /// The digest of everything that they can read.
    digest: u64,
}

impl TestGroup {
    fn name(&self) -> String {
        match self.prefix {
            Some((prefix, true)) => format!("{} {prefix}", self.binary),
            _ => self.binary.clone(),
        }
    }

    /// In nextest's language.
    fn expression(&self) -> String {
        match self.prefix {
            None => format!("binary_id(={})", self.binary),
            Some((prefix, true)) => format!("binary_id(={}) and test(/^{prefix}/)", self.binary),
            Some((prefix, false)) => format!("binary_id(={}) and not test(/^{prefix}/)", self.binary),
        }
    }

    fn has(&self, case: &TestResult) -> bool {
        let is_in_part = |(prefix, begins): (&str, bool)| case.name.starts_with(prefix) == begins;
        case.binary == self.binary && self.prefix.is_none_or(is_in_part)
    }
}

/// The tests as they were built now.
#[derive(Default)]
pub(crate) struct Parts(Vec<TestGroup>);

impl Parts {
    /// From cargo's messages about executables.
    pub(crate) fn of(artifacts: &[Value]) -> Result<Self> {
        let files = files_digest()?;
        let program = |name: &str| {
            let is_it = |artifact: &&Value| artifact["target"]["name"] == name && artifact["profile"]["test"] == false;
            artifacts.iter().filter(is_it).find_map(stamp)
        };
        let mut parts = Vec::new();
        for artifact in artifacts.iter().filter(|artifact| artifact["profile"]["test"] == true) {
            let (Some((package, binary)), Some(own)) = (binary_id(artifact), stamp(artifact)) else { continue };
            let digest = |programs: &[&str]| {
                let mut hasher = DefaultHasher::new();
                // A program that was not built may change unnoticed: its tests are always run.
                let programs = programs.iter().map(|name| program(name)).collect::<Option<Vec<_>>>()?;
                (files, &own, programs).hash(&mut hasher);
                Some(hasher.finish())
            };
            let programs =
                STARTED.iter().find(|(starting, _)| *starting == package).map_or(&[][..], |(_, programs)| programs);
            let mut part = |prefix, programs| {
                parts.extend(digest(programs).map(|digest| TestGroup { binary: binary.clone(), prefix, digest }));
            };
            match STARTING_LESS.iter().find(|(special, ..)| *special == binary) {
                Some((_, prefix, less)) => {
                    part(Some((prefix, true)), programs);
                    part(Some((prefix, false)), less);
                }
                None => part(None, programs),
            }
        }
        Ok(Self(parts))
    }

    /// Starts with the assumption that nothing has passed before.
    pub(crate) fn without_memory(self) -> Self {
        // A missing file has the same effect as one that cannot be removed: the outcome replaces it.
        let _ = fs::remove_file(target_dir().join(REMEMBERED));
        self
    }

    /// Selects the tests that must run, in nextest's language; `None`: all.
    pub(crate) fn to_run(&self) -> Option<String> {
        let before = read();
        let passed: Vec<&TestGroup> =
            self.0.iter().filter(|part| before.get(&part.name()) == Some(&part.digest)).collect();
        if passed.is_empty() {
            return None;
        }
        println!(
            "{} of {} groups of tests have passed and not changed since; `cargo xtask test --all` runs them, too",
            passed.len(),
            self.0.len()
        );
        let passed: Vec<String> = passed.into_iter().map(|part| format!("({})", part.expression())).collect();
        Some(format!("not ({})", passed.join(" or ")))
    }

    /// Records the tests that passed; `failed` are all that did not.
    pub(crate) fn remember(&self, failed: &[&TestResult]) -> Result {
        let mut known = read();
        for part in &self.0 {
            match failed.iter().any(|case| part.has(case)) {
                true => known.remove(&part.name()),
                false => known.insert(part.name(), part.digest),
            };
        }
        let path = target_dir().join(REMEMBERED);
        fs::write(path, serde_json::to_vec(&known)?)?;
        Ok(())
    }
}

/// Whether a check of these programs has passed, and they have not been rebuilt since.
pub(crate) fn has_passed(check: &str, programs: &BTreeMap<String, PathBuf>) -> bool {
    program_digest(programs).is_some_and(|digest| read().get(check) == Some(&digest))
}

/// Records that it has passed.
pub(crate) fn remember(check: &str, programs: &BTreeMap<String, PathBuf>) -> Result {
    let mut known = read();
    known.extend(program_digest(programs).map(|digest| (check.to_owned(), digest)));
    fs::write(target_dir().join(REMEMBERED), serde_json::to_vec(&known)?)?;
    Ok(())
}

fn program_digest(programs: &BTreeMap<String, PathBuf>) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    files_digest().ok()?.hash(&mut hasher);
    for (name, path) in programs {
        let metadata = fs::metadata(path).ok()?;
        (name, path, metadata.len(), metadata.modified().ok()?).hash(&mut hasher);
    }
    Some(hasher.finish())
}

/// Digests of passed tests, by name; below the target folder, since they refer to its files.
const REMEMBERED: &str = "passed.json";

fn read() -> BTreeMap<String, u64> {
    let text = fs::read(target_dir().join(REMEMBERED)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// Package and name of an executable, as nextest names it.
fn binary_id(artifact: &Value) -> Option<(String, String)> {
    // "path+file:///…/crates/wire#stillgate-wire@0.1.0", or "path+file:///…/xtask#0.1.0".
    let (path, version) = artifact["package_id"].as_str()?.rsplit_once('#')?;
    let package = version.split_once('@').map_or(path.rsplit('/').next()?, |(name, _)| name);
    let target = artifact["target"]["name"].as_str()?;
    let id = match artifact["target"]["kind"][0].as_str()? {
        "lib" => package.to_owned(),
        "test" => format!("{package}::{target}"),
        kind @ ("bin" | "example") => format!("{package}::{kind}/{target}"),
        _ => return None,
    };
    Some((package.to_owned(), id))
}

/// Changes when cargo builds the executable again.
fn stamp(artifact: &Value) -> Option<(String, u64, SystemTime)> {
    let path = artifact["executable"].as_str()?;
    let metadata = fs::metadata(path).ok()?;
    Some((path.to_owned(), metadata.len(), metadata.modified().ok()?))
}

fn files_digest() -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    for file in tree::files()?.iter().filter(|file| !file.is_rust()) {
        (&file.path, &file.bytes).hash(&mut hasher);
    }
    Ok(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(prefix: Option<(&'static str, bool)>) -> TestGroup {
        TestGroup { binary: "a::all".to_owned(), prefix, digest: 7 }
    }

    #[test]
    fn executables_have_the_names_that_nextest_gives_them() {
        let id = |kind: &str, package: &str| {
            let target = serde_json::json!({"name": "golden", "kind": [kind]});
            binary_id(&serde_json::json!({"package_id": package, "target": target})).map(|(_, id)| id)
        };
        assert_eq!(id("lib", "path+file:///w/crates/wire#stillgate-wire@0.1.0").unwrap(), "stillgate-wire");
        assert_eq!(id("test", "path+file:///w/crates/wire#stillgate-wire@0.1.0").unwrap(), "stillgate-wire::golden");
        assert_eq!(id("bin", "path+file:///w/xtask#0.1.0").unwrap(), "xtask::bin/golden");
        assert_eq!(id("bench", "path+file:///w/xtask#0.1.0"), None);
    }

    #[test]
    fn a_part_has_its_own_tests_only() {
        let case =
            |name: &str| TestResult { binary: "a::all".to_owned(), name: name.to_owned(), ..TestResult::default() };
        let (whole, devices, others) = (part(None), part(Some(("devices::", true))), part(Some(("devices::", false))));
        assert!(whole.has(&case("x")) && whole.has(&case("devices::x")));
        assert!(devices.has(&case("devices::x")) && !devices.has(&case("x")));
        assert!(others.has(&case("x")) && !others.has(&case("devices::x")));
        assert!(!whole.has(&TestResult { binary: "b".to_owned(), ..TestResult::default() }));
        assert_eq!(others.expression(), "binary_id(=a::all) and not test(/^devices::/)");
    }

    #[test]
    fn an_executable_that_is_built_again_has_another_digest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("all");
        let digest = || {
            let artifact = serde_json::json!({
                "package_id": "path+file:///w/crates/wire#stillgate-wire@0.1.0", "executable": path, "profile": {"test": true},
                "target": {"name": "all", "kind": ["test"]},
            });
            Parts::of(&[artifact]).unwrap().0[0].digest
        };
        fs::write(&path, "one").unwrap();
        let first = digest();
        assert_eq!(digest(), first);
        fs::write(&path, "another").unwrap();
        assert_ne!(digest(), first);
    }
}
