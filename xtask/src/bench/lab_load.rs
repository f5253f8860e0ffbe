//! The laboratory's open-loop load as a command: `stillgate-lab load`, with its result as JSON.
//!
//! A command instead of a library call, since the benches measure with the shipped program, and this crate must stay quick to
//! build. It sends only requests with many paths at a constant rate.

use super::OTHER_CPU;
use crate::Result;
use crate::step;
use serde_json::Value;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use stillgate_rig::schedule;

/// Kinds of failure with a response: those requests also count as answered.
const REFUSED_ANSWERS: [&str; 2] = ["status", "body"];

/// The requests to send.
pub(super) struct Load {
    /// The program.
    pub(super) lab: PathBuf,
    pub(super) address: SocketAddr,
    /// Requests per second, over all connections.
    pub(super) rate: f64,
    pub(super) connections: u32,
    /// See [`write_mix`].
    pub(super) mix: PathBuf,
    /// Load before the measured time, so that connections and caches exist.
    pub(super) lead_in: Duration,
    /// Whether it has priority on its CPU.
    pub(super) goes_first: bool,
}

/// The result of the measured time.
#[derive(Debug, PartialEq)]
pub(super) struct Outcome {
    /// Intended requests: answered, failed or never sent.
    pub(super) requests: u64,
    /// Requests without a 200, or never sent because no connection became free.
    pub(super) failed: u64,
    /// The first few failures as text.
    pub(super) failures: Vec<String>,
    /// Why the run shows the limits of the generator rather than of the gateway; empty: it does not.
    pub(super) void: Vec<String>,
    /// Measured from the intended start of a request.
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p99_9_us: f64,
    pub(super) max_us: f64,
}

/// Writes a mix into `dir` that requests one of the paths at random, and accepts only 200; returns its path.
pub(super) fn write_mix(dir: &Path, paths: &[String]) -> Result<PathBuf> {
    let mix = dir.join("mix.yaml");
    let relative: Vec<&str> = paths.iter().map(|path| path.trim_start_matches('/')).collect();
    fs::write(dir.join("paths.txt"), relative.join("\n"))?;
    fs::write(
        &mix,
        "variables:\n  path: {file: paths.txt}\nrequests:\n  - {name: fixed, path: \"/${path}\", expect: {status: [200]}}\n",
    )?;
    Ok(mix)
}

impl Load {
    /// Runs the load for `duration` after its lead-in, on separate connections.
    pub(super) fn run(&self, duration: Duration) -> Result<Outcome> {
        let (_, out, err) = step::capture(&mut self.command(duration))?;
        // A void run has a failure status, too, but it has a result.
        let result = serde_json::from_str(&out).map_err(|_| format!("{}: no result\n{err}", self.lab.display()))?;
        Outcome::of(&result)
    }

    fn command(&self, duration: Duration) -> Command {
        let mut command = if self.goes_first { schedule::first_command(&self.lab) } else { Command::new(&self.lab) };
        let milliseconds = |time: Duration| format!("{}ms", time.as_millis());
        command.args(["load", &format!("http://{}/", self.address), "--rate", &self.rate.to_string()]);
        command.args(["--connections", &self.connections.to_string(), "--cpus", &OTHER_CPU.to_string()]);
        command.args(["--duration", &milliseconds(duration), "--warm-up", &milliseconds(self.lead_in)]);
        command.arg("--mix").arg(&self.mix).args(["--json", "-", "--quiet"]);
        command
    }
}

impl Outcome {
    fn of(result: &Value) -> Result<Self> {
        let missing = |name: &str| format!("the result of stillgate-lab has no {name}; is --lab of this version?");
        let count = |name: &str| result[name].as_u64().ok_or_else(|| missing(name));
        let us = |histogram: &str, part: &str| {
            result[histogram][part].as_f64().ok_or_else(|| missing(&format!("{histogram}.{part}")))
        };
        let texts = |list: &Value| -> Vec<String> {
            list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let (answered, errors) = (count("requests")?, count("errors")?);
        // Neither was answered before the run was stopped.
        let missed = count("missed_starts")? + count("cut_off")?;
        let refused: u64 = REFUSED_ANSWERS.iter().filter_map(|kind| result["errors_by_kind"][kind].as_u64()).sum();
        let mut failures = texts(&result["run"]["error_examples"]);
        if missed > 0 {
            failures.push(format!("{missed} requests were due and never answered"));
        }
        let mut void = texts(&result["void_reasons"]);
        if result["void"].as_bool().ok_or_else(|| missing("void"))? && void.is_empty() {
            void.push("it does not say why".to_owned());
        }
        Ok(Self {
            requests: answered + errors.saturating_sub(refused) + missed,
            failed: errors + missed,
            failures,
            void,
            p50_us: us("corrected", "p50")?,
            p99_us: us("corrected", "p99")?,
            p99_9_us: us("corrected", "p99_9")?,
            max_us: us("corrected", "max")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn result() -> Value {
        json!({
            "requests": 100, "errors": 0, "errors_by_kind": {}, "missed_starts": 0, "cut_off": 0, "void": false, "void_reasons": [],
            "corrected": {"p50": 1.5, "p99": 2.5, "p99_9": 3.5, "max": 4.5},
            "run": {"error_examples": []},
        })
    }

    #[test]
    fn a_run_without_failures() {
        let outcome = Outcome::of(&result()).unwrap();
        assert_eq!((outcome.requests, outcome.failed), (100, 0));
        assert_eq!((outcome.p50_us, outcome.p99_us, outcome.p99_9_us, outcome.max_us), (1.5, 2.5, 3.5, 4.5));
        assert_eq!((outcome.void, outcome.failures), (vec![], vec![]));
    }

    #[test]
    fn each_request_counts_once() {
        let mut result = result();
        result["errors"] = json!(5);
        result["errors_by_kind"] = json!({"status": 2, "closed": 3});
        result["missed_starts"] = json!(4);
        result["run"]["error_examples"] = json!(["status: 404 to fixed"]);
        let outcome = Outcome::of(&result).unwrap();
        assert_eq!((outcome.requests, outcome.failed, outcome.failures.len()), (107, 9, 2));
    }

    #[test]
    fn a_void_run_is_one_though_it_gives_no_reason() {
        let mut result = result();
        result["void"] = json!(true);
        assert_eq!(Outcome::of(&result).unwrap().void.len(), 1);
        result["void_reasons"] = json!(["late", "starved"]);
        assert_eq!(Outcome::of(&result).unwrap().void, ["late", "starved"]);
    }

    #[test]
    fn what_a_result_lacks_is_named() {
        for name in ["requests", "errors", "missed_starts", "void", "corrected"] {
            let mut result = result();
            result.as_object_mut().unwrap().remove(name);
            let error = Outcome::of(&result).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
