//! CPU time of the steps of `cargo xtask test`, compared with the committed figures.
//!
//! CPU time, because elapsed time on a shared machine means little. It causes a warning and not a failure, because processors
//! differ.

use crate::Result;
use crate::step::root;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::time::Duration;
use stillgate_rig::proc;

/// The committed figures: from an empty target folder, on two cores.
const RECORDED: &str = "docs/internals/test-costs.toml";

/// The increase above the recorded figure that is reported.
const EXCESS_PERCENT: f64 = 20.0;

/// Variation between runs of any step.
const NOISE_SECONDS: f64 = 5.0;

/// CPU time of this process and of all processes that it has started and waited for.
pub(crate) fn cpu_used() -> Duration {
    proc::self_and_children().map(|(own, children)| own + children).unwrap_or_default()
}

/// Reports the steps that cost more than recorded, and the duration of a run.
pub(crate) fn compared(steps: &BTreeMap<String, f64>, took: Duration) -> Vec<String> {
    match recorded() {
        Err(error) => vec![format!("not compared: {error}")],
        Ok(recorded) => against(&recorded, steps, took),
    }
}

fn against(recorded: &toml::Table, steps: &BTreeMap<String, f64>, took: Duration) -> Vec<String> {
    let mut notes = Vec::new();
    let before = recorded.get("cpu_seconds").and_then(toml::Value::as_table);
    for (name, seconds) in steps {
        let Some(before) = before.and_then(|before| number(before.get(name)?)) else { continue };
        let percent = (seconds / before - 1.0) * 100.0;
        if percent > EXCESS_PERCENT && seconds - before > NOISE_SECONDS {
            notes.push(format!(
                "costs more than recorded: {name}: {seconds:.0} CPU s, {before:.0} before ({percent:+.0}%)"
            ));
        }
    }
    let last = recorded.get("seconds").and_then(number);
    let last = last.map_or_else(String::new, |last| format!("; recorded from an empty folder: {last:.0} s"));
    notes.push(format!("took {:.0} s{last}", took.as_secs_f64()));
    notes
}

/// Records the figures of this run.
pub(crate) fn record(steps: &BTreeMap<String, f64>, took: Duration) -> Result<Vec<String>> {
    let mut text = format!(
        "# CPU seconds of each step of `cargo xtask test` from an empty target folder, on two cores; written by\n\
         # `cargo xtask test --record`. A later run names the steps that cost {EXCESS_PERCENT}% more.\n\
         seconds = {:.0}\n\n[cpu_seconds]\n",
        took.as_secs_f64()
    );
    for (name, seconds) in steps {
        writeln!(text, "\"{name}\" = {seconds:.0}")?;
    }
    fs::write(root().join(RECORDED), text)?;
    Ok(vec![format!("written to {RECORDED}")])
}

fn recorded() -> Result<toml::Table> {
    let text = fs::read_to_string(root().join(RECORDED)).map_err(|error| format!("{RECORDED}: {error}"))?;
    Ok(text.parse().map_err(|error| format!("{RECORDED}: {error}"))?)
}

fn number(value: &toml::Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_costs_a_fifth_more_is_named() {
        let recorded = "seconds = 1000\n[cpu_seconds]\nbuild = 100\ntests = 200\ntidy = 1\n".parse().unwrap();
        let steps = [("build", 121.0), ("tests", 239.0), ("tidy", 4.0), ("new", 50.0)];
        let steps = steps.into_iter().map(|(name, seconds)| (name.to_owned(), seconds)).collect();
        let notes = against(&recorded, &steps, Duration::from_secs(900));
        let expected = [
            "costs more than recorded: build: 121 CPU s, 100 before (+21%)",
            "took 900 s; recorded from an empty folder: 1000 s",
        ];
        assert_eq!(notes, expected);
    }
}
