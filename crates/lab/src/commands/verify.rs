//! `stillgate-lab verify`: makes the analysis of result files again from design and raw data alone.
//!
//! The raw data are taken at their word: what was measured nobody can measure again. Numbers are compared to the last digit
//! but one: the logarithms and exponentials in some p-values come from the system's library, and those of two systems may
//! differ in the last bits.

use crate::compare;
use crate::error::{EXIT_FAILED, Error, Result};
use crate::result::load::LoadResult;
use crate::result::tail::{Arm, TailResult};
use crate::result::{Experiment, ResultFile, file, histogram};
use crate::stdout;
use crate::tail;
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Exit code where a file does not say what its raw data say.
const EXIT_DIFFERENT: u8 = 1;

/// A relative difference below this is one of the system's library.
const LIBRARY_DIFFERENCE_MAX: f64 = 1e-12;

/// How the paths of what is said in words end.
const SENTENCE: &str = ".sentence";

/// Differences shown of a file; a reader of these has seen enough.
const SHOWN_MAX: usize = 50;

/// `stillgate-lab verify`.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// Result files, written with --json
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// 0: all files say what their data say; 1: one does not; 2: one cannot be read.
pub(crate) fn run(arguments: &Verify) -> Result<u8> {
    let mut worst = 0;
    for path in &arguments.files {
        let (said, code) = match verify(path) {
            Ok(differences) if differences.is_empty() => (format!("{}: verified: same verdict\n", path.display()), 0),
            Ok(differences) => (listed(path, &differences), EXIT_DIFFERENT),
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

/// A figure that is not what the raw data give.
#[derive(Debug, PartialEq)]
pub(crate) struct Difference {
    /// Where in the file.
    path: String,
    stored: String,
    recomputed: String,
}

fn verify(path: &Path) -> Result<Vec<Difference>> {
    let result = file::read(path)?;
    differences(&result).map_err(|error| error.context(path.display()))
}

/// Everything in a result that does not follow from its raw data.
pub(crate) fn differences(result: &ResultFile) -> Result<Vec<Difference>> {
    let mut found = Vec::new();
    match &result.experiment {
        Experiment::Tail(tail) => {
            let analysis = tail::analysis::analyse(&tail.design, &tail.cells)?;
            compare_json("analysis", &json(&tail.analysis)?, &json(&analysis)?, &mut found);
            check_order(tail, &mut found);
        }
        Experiment::Compare(compared) => {
            let analysis =
                compare::analysis::analyse(&compared.design, &compared.pairs, compared.instructions.as_ref())?;
            compare_json("analysis", &json(&compared.analysis)?, &json(&analysis)?, &mut found);
        }
        Experiment::Load(load) => check_load(load, &mut found)?,
    }
    if result.lab_version != env!("CARGO_PKG_VERSION") {
        // Another version may put the same figures into other words.
        found.retain(|difference| !difference.path.ends_with(SENTENCE));
    }
    Ok(found)
}

/// The blocks must have been run in the order that the seed gives: another one could have been chosen with the data in view.
fn check_order(tail: &TailResult, found: &mut Vec<Difference>) {
    let words = |(pair, arm): (usize, Arm)| format!("pair {pair} {arm:?}").to_lowercase();
    for (index, cell) in tail.cells.iter().enumerate() {
        let planned = tail::design::order(tail.design.seed, cell.number, tail.design.pairs);
        for (number, block) in cell.blocks.iter().enumerate() {
            let drawn = planned.get(number).copied();
            if drawn != Some((block.pair, block.arm)) {
                found.push(Difference {
                    path: format!("cells[{index}].blocks[{number}]"),
                    stored: words((block.pair, block.arm)),
                    recomputed: drawn.map_or("no such block is in the design".to_owned(), words),
                });
            }
        }
    }
}

/// The figures at the top follow from the run that is kept with them.
fn check_load(load: &LoadResult, found: &mut Vec<Difference>) -> Result {
    let run = &load.run;
    let percentiles = |what: &str, text: &str| {
        let decoded = histogram::decode(text).map_err(|error| error.context(format_args!("run.{what}")))?;
        json(&histogram::percentiles(&decoded))
    };
    let figures = [
        ("corrected", json(&load.corrected)?, percentiles("corrected", &run.corrected)?),
        ("uncorrected", json(&load.uncorrected)?, percentiles("uncorrected", &run.uncorrected)?),
        ("lateness", json(&load.lateness)?, percentiles("lateness", &run.lateness)?),
        ("requests", json(&load.requests)?, json(&run.requests)?),
        ("errors", json(&load.errors)?, json(&run.errors)?),
        ("errors_by_kind", json(&load.errors_by_kind)?, json(&run.errors_by_kind)?),
        ("rate_intended", json(&load.rate_intended)?, json(&run.rate_intended)?),
        ("rate_achieved", json(&load.rate_achieved)?, json(&run.rate_achieved)?),
        ("duration_s", json(&load.duration_s)?, json(&run.elapsed_s)?),
        ("void", json(&load.void)?, json(&!run.void.is_empty())?),
        ("void_reasons", json(&load.void_reasons)?, json(&run.void)?),
    ];
    for (what, stored, recomputed) in &figures {
        compare_json(what, stored, recomputed, found);
    }
    Ok(())
}

fn json(value: &impl Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(|error| Error::new(format!("an analysis cannot be written as JSON: {error}")))
}

fn compare_json(path: &str, stored: &Value, recomputed: &Value, found: &mut Vec<Difference>) {
    match (stored, recomputed) {
        (Value::Object(a), Value::Object(b)) => {
            for (key, recomputed) in b {
                compare_json(&format!("{path}.{key}"), a.get(key).unwrap_or(&Value::Null), recomputed, found);
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

fn listed(path: &Path, differences: &[Difference]) -> String {
    let mut out = format!("{}: {} figures are not what the raw data give:\n", path.display(), differences.len());
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
    use crate::tail::synthetic;
    use proptest::prelude::*;

    /// What is said of a file in which one figure was changed by hand.
    fn tampered(pointer: &str, change: fn(&mut Value)) -> Vec<String> {
        let file = synthetic::file(7, 9, 50_000.0);
        let mut value = json(&file).unwrap();
        change(value.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")));
        let found = differences(&file::parse(&value.to_string()).unwrap()).unwrap();
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
    fn other_words_of_another_version_are_no_difference() {
        let check = |version: &str, found: usize| {
            let mut file = synthetic::file(1, 1, 0.0);
            file.lab_version = version.to_owned();
            let Experiment::Tail(tail) = &mut file.experiment else { panic!("synthetic files are of this kind") };
            tail.analysis.sentence = "In older words.".to_owned();
            assert_eq!(differences(&file).unwrap().len(), found);
        };
        check(env!("CARGO_PKG_VERSION"), 1);
        check("0.0.1", 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(6))]
        #[test]
        fn what_was_written_verifies(seed: u64, pairs in 1usize..6, stall_us in 0.0..2e5) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("result.json");
            file::ResultWriter::open(&path).unwrap().finish(&synthetic::file(seed, pairs, stall_us)).unwrap();
            prop_assert_eq!(verify(&path).unwrap(), vec![]);
        }
    }
}
