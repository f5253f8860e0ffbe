//! `stillgate-lab verify`: recomputes the analysis of result files from design and raw data alone.
//!
//! The histograms are trusted: measurements cannot be repeated. Everything that follows from them, or was decided
//! before them, is checked against them: the analysis, the order of the runs, which runs are void, the typed arguments.
//! Numbers are compared to the last digit but one: the logarithms and exponentials in some p-values come from the
//! system's library, and those of two systems may differ in the last bits.

mod arguments;
mod compare;
mod load;
mod runs;
mod store;
mod tail;

use crate::bisect::analysis as bisect_analysis;
use crate::compare::analysis as compare_analysis;
use crate::devices::analysis as devices_analysis;
use crate::error::{EXIT_FAILED, Error, Result};
use crate::explain::analysis as explain_analysis;
use crate::figures::analysis as figures_analysis;
use crate::result::devices::percentiles_again;
use crate::result::{Experiment, ResultFile, file};
use crate::stdout;
use crate::tail::analysis as tail_analysis;
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Exit code if a file does not match its raw data.
const EXIT_DIFFERENT: u8 = 1;

/// A smaller relative difference is due to the system's library.
const LIBRARY_DIFFERENCE_MAX: f64 = 1e-12;

/// The paths of sentences end in this.
const SENTENCE: &str = ".sentence";

/// Differences shown per file; more would not help a reader.
const SHOWN_MAX: usize = 50;

/// `stillgate-lab verify`.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// Result files, written with --json, and stores; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Returns 0 if all files match their data; 1 if one does not; 2 if one cannot be read.
pub(crate) fn run(arguments: &Verify) -> Result<u8> {
    let mut worst = 0;
    for path in &arguments.files {
        if path.is_dir() {
            let (said, code) = store::verify(path)?;
            stdout::show(&said)?;
            worst = worst.max(code);
            continue;
        }
        let (said, code) = match verify(path) {
            Ok(verified) if verified.differences.is_empty() => (same(&file::called(path), &verified), 0),
            Ok(verified) => (listed(&file::called(path), &verified.differences), EXIT_DIFFERENT),
            Err(error) => {
                eprintln!("stillgate-lab: {error}");
                (String::new(), EXIT_FAILED)
            }
        };
        stdout::show(&said)?;
        worst = worst.max(code);
    }
    Ok(worst)
}

/// A recomputed result.
#[derive(Debug)]
pub(crate) struct Verification {
    /// As it was stored, but with the analysis that the raw data give, in this version's words.
    pub(crate) result: ResultFile,
    /// Stored figures that do not follow from the raw data.
    pub(crate) differences: Vec<Difference>,
    /// Whether sentences were compared: another version may put the same figures into other words.
    pub(crate) words_compared: bool,
}

/// A figure that the raw data do not give.
#[derive(Debug, PartialEq)]
pub(crate) struct Difference {
    /// JSON pointer in the file.
    path: String,
    stored: String,
    recomputed: String,
}

fn verify(path: &Path) -> Result<Verification> {
    let result = file::read(path)?;
    made_again(result).map_err(|error| error.context(file::called(path)))
}

/// Recomputes a result, and finds everything in it that does not follow from its raw data.
pub(crate) fn made_again(mut result: ResultFile) -> Result<Verification> {
    let mut found = Vec::new();
    arguments::check(&result, &mut found);
    match &mut result.experiment {
        Experiment::Tail(tail) => {
            let analysis = tail_analysis::analyse(&tail.design, &tail.cells)?;
            compare_json("analysis", &json(&tail.analysis)?, &json(&analysis)?, &mut found);
            tail.analysis = analysis;
            tail::check(tail, &mut found)?;
        }
        Experiment::Compare(compared) => {
            let analysis = compare_analysis::again(compared)?;
            compare_json("analysis", &json(&compared.analysis)?, &json(&analysis)?, &mut found);
            compared.analysis = analysis;
            compare::check(compared, &mut found)?;
        }
        Experiment::Bisect(bisected) => {
            let answer = bisect_analysis::answer(bisected);
            compare_json("", &json(&bisected.answer)?, &json(&answer)?, &mut found);
            bisected.answer = answer;
        }
        Experiment::Devices(played) => {
            if let Some(analysis) = &mut played.analysis {
                let again = devices_analysis::analyse(&played.design, &played.rounds);
                compare_json("analysis", &json(analysis)?, &json(&again)?, &mut found);
                *analysis = again;
            }
            if let Some(messages) = played.run.as_mut().and_then(|run| run.messages.as_mut()) {
                let again = percentiles_again(messages)?;
                compare_json("run.messages.corrected", &json(&messages.corrected)?, &json(&again)?, &mut found);
                messages.corrected = again;
            }
        }
        Experiment::Explain(explained) => {
            let analysis = explain_analysis::analyse(explained);
            compare_json("analysis", &json(&explained.analysis)?, &json(&analysis)?, &mut found);
            explained.analysis = analysis;
        }
        Experiment::Figures(table) => {
            let analysis = figures_analysis::analyse(table);
            compare_json("analysis", &json(&table.analysis)?, &json(&analysis)?, &mut found);
            table.analysis = analysis;
        }
        Experiment::Load(load) => load::check(load, &mut found)?,
    }
    let words_compared = result.lab_version == env!("CARGO_PKG_VERSION");
    if !words_compared {
        found.retain(|difference| !difference.path.ends_with(SENTENCE));
    }
    Ok(Verification { result, differences: found, words_compared })
}

fn json(value: &impl Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(|error| Error::new(format!("an analysis cannot be written as JSON: {error}")))
}

fn compare_json(path: &str, stored: &Value, recomputed: &Value, found: &mut Vec<Difference>) {
    match (stored, recomputed) {
        (Value::Object(a), Value::Object(b)) => {
            for (key, recomputed) in b {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                compare_json(&path, a.get(key).unwrap_or(&Value::Null), recomputed, found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (stored, recomputed)) in a.iter().zip(b).enumerate() {
                compare_json(&format!("{path}[{index}]"), stored, recomputed, found);
            }
        }
        (Value::Array(a), Value::Array(b)) => found.push(Difference {
            path: path.to_owned(),
            stored: format!("{} entries", a.len()),
            recomputed: format!("{} entries", b.len()),
        }),
        (Value::Number(a), Value::Number(b)) if is_same(a.as_f64(), b.as_f64()) => {}
        (stored, recomputed) if stored == recomputed => {}
        (stored, recomputed) => found.push(Difference {
            path: path.to_owned(),
            stored: stored.to_string(),
            recomputed: recomputed.to_string(),
        }),
    }
}

fn is_same(a: Option<f64>, b: Option<f64>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a == b || (a - b).abs() <= LIBRARY_DIFFERENCE_MAX * a.abs().max(b.abs()),
        _ => false,
    }
}

fn difference(path: impl Into<String>, stored: impl ToString, recomputed: impl ToString) -> Difference {
    Difference { path: path.into(), stored: stored.to_string(), recomputed: recomputed.to_string() }
}

fn same(file: &str, verified: &Verification) -> String {
    let words = match verified.words_compared {
        true => String::new(),
        false => format!(
            "; words were not compared: they are those of stillgate-lab {}, this is {}",
            verified.result.lab_version,
            env!("CARGO_PKG_VERSION")
        ),
    };
    format!("{file}: verified: same verdict{words}\n")
}

fn listed(file: &str, differences: &[Difference]) -> String {
    let mut out = format!("{file}: {} figures do not follow from the raw data:\n", differences.len());
    for Difference { path, stored, recomputed } in differences.iter().take(SHOWN_MAX) {
        // Writing to a `String` does not fail.
        let _ = writeln!(out, "  {path}: stored {stored}, recomputed {recomputed}");
    }
    if differences.len() > SHOWN_MAX {
        let _ = writeln!(out, "  and {} more", differences.len() - SHOWN_MAX);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::histogram;
    use crate::tail::synthetic;
    use proptest::prelude::*;

    /// The differences found in a file in which one figure was changed by hand.
    fn tampered(pointer: &str, change: fn(&mut Value)) -> Vec<String> {
        let file = synthetic::file(7, 9, 50_000.0);
        let mut value = json(&file).unwrap();
        change(value.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")));
        let found = made_again(file::parse(&value.to_string()).unwrap()).unwrap().differences;
        found.into_iter().map(|difference| difference.path).collect()
    }

    #[test]
    fn a_changed_figure_is_found() {
        let check = |pointer: &str, change: fn(&mut Value), path: &str| {
            let found = tampered(pointer, change);
            assert!(found.iter().any(|difference| difference == path), "{pointer}: {found:?}");
        };
        let last_digits: fn(&mut Value) = |value| *value = Value::from(value.as_f64().unwrap() * (1.0 + 1e-9));
        // In the analysis.
        let analysed = "analysis.cells[1]";
        check("/analysis/cells/1/with/p99_9", last_digits, &format!("{analysed}.with.p99_9"));
        check("/analysis/cells/1/effects/2/low", last_digits, &format!("{analysed}.effects[2].low"));
        check("/analysis/cells/1/effects/0/p_value", last_digits, &format!("{analysed}.effects[0].p_value"));
        check("/analysis/cells/1/verdict", |value| *value = "no_difference".into(), &format!("{analysed}.verdict"));
        check("/analysis/cells/1/sentence", |value| *value = "All is well.".into(), &format!("{analysed}.sentence"));
        check("/analysis/sentence", |value| *value = "".into(), "analysis.sentence");
        check("/analysis/cells", |value| drop(value.as_array_mut().unwrap().pop()), "analysis.cells");
        // In the design.
        check("/design/confidence", |value| *value = 0.9.into(), &format!("{analysed}.effects[0].low"));
        check("/design/seed", |value| *value = 8.into(), "cells[1].blocks[0]");
        // In the raw data.
        let other = |value: &mut Value| {
            *value = json(&histogram::encode(&stillgate_load::outcome::histogram()).unwrap()).unwrap()
        };
        check("/cells/1/blocks/3/run/corrected", other, &format!("{analysed}.effects[3].minimum_detectable"));
        check(
            "/cells/1/blocks/3/cpu_us_per_request",
            last_digits,
            &format!("{analysed}.effects[4].minimum_detectable"),
        );
        check("/cells/1/blocks/3/run/void", |value| *value = vec!["late"].into(), &format!("{analysed}.void_pairs"));
        let swapped: fn(&mut Value) = |arm| *arm = if *arm == "with" { "without" } else { "with" }.into();
        check("/cells/0/blocks/1/arm", swapped, "cells[0].blocks[1]");
        // In what decides which data count.
        check("/cells/1/blocks/3/run/void", |value| *value = vec!["late"].into(), "cells[1].blocks[3].run.void");
        let late = |value: &mut Value| {
            let mut lateness = stillgate_load::outcome::histogram();
            lateness.record_n(2_000_000, 100).unwrap();
            *value = json(&histogram::encode(&lateness).unwrap()).unwrap();
        };
        check("/cells/1/blocks/3/run/lateness", late, "cells[1].blocks[3].run.void");
        check("/cells/1/blocks/3/run/requests", |value| *value = 4_999.into(), "cells[1].blocks[3].run.requests");
        check("/cells/1/blocks/3/run/errors", |value| *value = 1.into(), "cells[1].blocks[3].run.errors");
        check("/cells/1/blocks/3/points", |value| *value = Value::Array(Vec::new()), "cells[1].blocks[3].points");
        check("/cells/1/blocks/3/points/7/max_us", |value| *value = 9e9.into(), "cells[1].blocks[3].points");
        // In the plan.
        check("/cells", |value| drop(value.as_array_mut().unwrap().remove(0)), "cells");
        check("/cells", |value| drop(value.as_array_mut().unwrap().pop()), "analysis.cells");
        check("/cells/1/number", |value| *value = 0.into(), "cells[1].number");
        check("/cells/1/series_asked", |value| *value = 1.into(), "cells[1]");
        check("/design/plan", |value| drop(value.as_array_mut().unwrap().pop()), "cells[1]");
        check("/cells/1/blocks/3/run/begun_unix_s", |value| *value = 1e9.into(), "cells[1].blocks[3].run.begun_unix_s");
        check("/design/pairs", |value| *value = 8.into(), "cells[0].blocks[16]");
    }

    #[test]
    fn what_was_typed_holds() {
        let check = |words: &[&str], path: Option<&str>| {
            let mut file = synthetic::file(7, 9, 0.0);
            file.arguments = words.iter().map(|word| (*word).to_owned()).collect();
            let found = made_again(file).unwrap().differences;
            assert_eq!(found.first().map(|difference| difference.path.as_str()), path, "{words:?}: {found:?}");
        };
        check(&["tail", "nginx", "--pairs", "9", "--seed", "7", "--rate", "1k", "--block", "5s"], None);
        check(&["tail", "nginx", "--pairs", "50"], Some("design.pairs"));
        check(&["tail", "nginx", "--seed", "8"], Some("design.seed"));
        check(&["tail", "nginx", "--block", "1s"], Some("design.block"));
        check(&["load", "http://127.0.0.1/"], Some("arguments"));
        // Written by another version.
        check(&["tail", "nginx", "--pears", "50"], None);
    }

    #[test]
    fn files_of_the_first_layout_verify() {
        for (kind, text) in [
            ("tail", include_str!("../../tests/data/tail-schema-1.json")),
            ("compare", include_str!("../../tests/data/compare-schema-1.json")),
            ("load", include_str!("../../tests/data/load-schema-1.json")),
        ] {
            let verified = made_again(file::parse(text).unwrap()).unwrap();
            assert_eq!(verified.differences, vec![], "{kind}");
        }
    }

    #[test]
    fn what_another_library_may_round_otherwise_is_the_same() {
        let check = |a: f64, b: f64, same: bool| assert_eq!(is_same(Some(a), Some(b)), same, "{a} {b}");
        check(0.1, 0.1 + f64::EPSILON / 8.0, true);
        check(0.0, 0.0, true);
        check(1e-300, -1e-300, false);
        check(0.05, 0.05 * (1.0 + 1e-11), false);
    }

    #[test]
    fn other_words_of_another_version_are_no_difference_and_are_not_shown() {
        let check = |version: &str, found: usize, said: &str| {
            let mut file = synthetic::file(1, 1, 0.0);
            file.lab_version = version.to_owned();
            let Experiment::Tail(tail) = &mut file.experiment else { panic!("synthetic files are of this kind") };
            tail.analysis.sentence = "All is well.".to_owned();
            let verified = made_again(file).unwrap();
            assert_eq!(verified.differences.len(), found);
            let Experiment::Tail(again) = &verified.result.experiment else { panic!("it stays one") };
            assert!(again.analysis.sentence.starts_with("The slowest requests: "), "{}", again.analysis.sentence);
            assert!(same("a.json", &verified).contains(said));
        };
        check(env!("CARGO_PKG_VERSION"), 1, "verified: same verdict\n");
        check("0.0.1", 0, "same verdict; words were not compared: they are those of stillgate-lab 0.0.1, this is");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(6))]
        #[test]
        fn what_was_written_verifies(seed: u64, pairs in 1usize..6, stall_us in 0.0..2e5) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("result.json");
            file::ResultWriter::open(&path).unwrap().finish(&synthetic::file(seed, pairs, stall_us)).unwrap();
            prop_assert_eq!(verify(&path).unwrap().differences, vec![]);
        }
    }
}
