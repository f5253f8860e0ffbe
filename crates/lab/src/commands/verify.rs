//! `stillgate-lab verify`: recomputes the analysis of result files from design and raw data alone.
//!
//! The histograms are trusted: measurements cannot be repeated. Everything that follows from them, or was decided
//! before them, is checked against them: the analysis, the order of the runs, which runs are void, the typed arguments.
//! Numbers are compared to the last digit but one: the logarithms and exponentials in some p-values come from the
//! system's library, and those of two systems may differ in the last bits.
//!
//! Typed arguments are checked against the design: the figures that decide how large a difference counts must be those
//! that were requested. Only typed options are compared, and only those that this version understands: another one may
//! have had other options.
//!
//! A store is checked against the rules of `nightly`: both looks are as large as they should be, a second one was taken
//! where the first requires it, and raw data are there, complete, and give the measured values. Verdicts are not
//! stored: they are computed from the measurements each time.

mod decided;
mod load;

use super::Cli;
use crate::bisect::analysis as bisect_analysis;
use crate::compare::alone::RawReading;
use crate::compare::analysis as compare_analysis;
use crate::devices::analysis as devices_analysis;
use crate::error::{EXIT_FAILED, Error, Result};
use crate::explain::analysis as explain_analysis;
use crate::nightly::analysis::contradictions;
use crate::result::devices::recompute_percentiles;
use crate::result::tail::TailDesign;
use crate::result::{Experiment, ResultFile, file};
use crate::store::{self, StoreLine, raw};
use crate::tail::analysis as tail_analysis;
use crate::tail::design::block_s;
use crate::{figures as figures_analysis, output};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory as _};
use serde::Serialize;
use serde_json::Value;
use std::fmt::{Debug, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

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
            let (said, code) = verify_store(path)?;
            output::show(&said)?;
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
        output::show(&said)?;
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
    verify_recomputed(result).map_err(|error| error.context(file::called(path)))
}

/// Recomputes a result, and finds everything in it that does not follow from its raw data.
pub(crate) fn verify_recomputed(mut result: ResultFile) -> Result<Verification> {
    let mut found = Vec::new();
    check_arguments(&result, &mut found);
    match &mut result.experiment {
        Experiment::Tail(tail) => {
            let analysis = tail_analysis::analyse(&tail.design, &tail.cells)?;
            compare_json("analysis", &json(&tail.analysis)?, &json(&analysis)?, &mut found);
            tail.analysis = analysis;
            decided::check_blocks(tail, &mut found)?;
        }
        Experiment::Compare(compared) => {
            let analysis = compare_analysis::recompute(compared)?;
            compare_json("analysis", &json(&compared.analysis)?, &json(&analysis)?, &mut found);
            compared.analysis = analysis;
            decided::check_pairs(compared, &mut found)?;
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
                let again = recompute_percentiles(messages)?;
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
        Experiment::Load(load) => load::check_load(load, &mut found)?,
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

fn check_arguments(result: &ResultFile, found: &mut Vec<Difference>) {
    if result.lab_version != env!("CARGO_PKG_VERSION") {
        return;
    }
    let words = std::iter::once("stillgate-lab").chain(result.arguments.iter().map(String::as_str));
    let Ok(matches) = Cli::command().try_get_matches_from(words) else { return };
    let Some((command, matches)) = matches.subcommand() else { return };
    let mut typed = TypedArguments { matches, found };
    match &result.experiment {
        Experiment::Tail(tail) if command == "tail" => {
            let design = &tail.design;
            typed.one("pairs", &(design.pairs as u64));
            typed.one("spares", &(design.spares as u64));
            typed.one("seed", &design.seed);
            typed.one("rate", &design.rate);
            typed.one("connections", &design.connections);
            typed.one("block", &Duration::from_secs_f64(design.block_s));
            typed.hours(design);
            typed.one("late_share", &design.late_share_max);
        }
        Experiment::Compare(compared) if command == "compare" => {
            let design = &compared.design;
            typed.one("pairs", &design.pairs);
            typed.one("seed", &design.seed);
            typed.one("alpha", &design.alpha);
            typed.one("power", &design.power);
            typed.one("margin", &design.margin);
            typed.one("connections", &design.connections);
            typed.many("deciding", &design.deciding);
        }
        Experiment::Bisect(bisected) if command == "bisect" => {
            let design = &bisected.design;
            typed.one("confidence", &design.confidence);
            typed.one("min_effect", &design.min_effect);
            typed.one("measure", &design.measure);
            typed.one("higher_is_better", &design.higher_is_better);
            typed.many("prior_paths", &design.prior_paths);
        }
        Experiment::Devices(played) if command == "devices" => {
            let design = &played.design;
            typed.one("count", &design.devices);
            typed.one("connect_rate", &design.connect_rate);
            typed.one("churn", &design.churn);
            typed.one("alpha", &design.alpha);
            typed.one("margin", &design.margin);
        }
        Experiment::Explain(explained) if command == "explain" => {
            let design = &explained.design;
            typed.one("slices", &design.slices);
            typed.one("hz", &design.hz);
            typed.one("seed", &design.seed);
            typed.one("confidence", &design.confidence);
        }
        Experiment::Figures(table) if command == table.experiment => typed.one("rounds", &table.planned),
        Experiment::Load(load) if command == "load" => {
            typed.one("seed", &load.seed);
            typed.one("connections", &load.connections);
            if let Some(design) = &load.design {
                typed.one("requests", &(design.requests.unwrap_or(0) as usize));
                typed.one("streams", &design.streams.unwrap_or(1));
            }
        }
        _ => found.push(difference("arguments", command, "those of the experiment that is in the file")),
    }
}

struct TypedArguments<'a> {
    matches: &'a ArgMatches,
    found: &'a mut Vec<Difference>,
}

impl TypedArguments<'_> {
    fn one<T: Clone + Debug + PartialEq + Send + Sync + 'static>(&mut self, id: &str, kept: &T) {
        if !self.is_typed(id) {
            return;
        }
        if let Ok(Some(typed)) = self.matches.try_get_one::<T>(id)
            && typed != kept
        {
            self.found.push(difference(format!("design.{id}"), format!("{kept:?}"), format!("{typed:?}, as typed")));
        }
    }

    fn many<T: Clone + Debug + PartialEq + Send + Sync + 'static>(&mut self, id: &str, kept: &[T]) {
        if !self.is_typed(id) {
            return;
        }
        if let Ok(Some(typed)) = self.matches.try_get_many::<T>(id) {
            let typed: Vec<T> = typed.cloned().collect();
            if typed != kept {
                self.found.push(difference(
                    format!("design.{id}"),
                    format!("{kept:?}"),
                    format!("{typed:?}, as typed"),
                ));
            }
        }
    }

    /// Blocks are as long as the hours make them. Files of the first versions have no plan and no hours.
    fn hours(&mut self, design: &TailDesign) {
        if let Ok(Some(hours)) = self.matches.try_get_one::<f64>("hours")
            && let Ok(block_s) = block_s(design, design.plan.len(), *hours)
            && block_s != design.block_s
        {
            self.found.push(difference("design.block_s", design.block_s, format!("{block_s}, by --hours {hours}")));
        }
    }

    fn is_typed(&self, id: &str) -> bool {
        self.matches.try_contains_id(id).is_ok_and(|is| is)
            && self.matches.value_source(id) == Some(ValueSource::CommandLine)
    }
}

/// The report about a store, with the exit code.
fn verify_store(path: &Path) -> Result<(String, u8)> {
    let contents = store::read(path)?;
    let left = raw::unreferred(path, &contents)?.len();
    let of_rules = contents.lines.iter().flat_map(contradictions);
    let of_raw = contents.lines.iter().flat_map(|line| raw_contradictions(path, line));
    let found: Vec<String> = of_rules.chain(of_raw).chain(contents.left_out.iter().cloned()).collect();
    let shown = path.display();
    let mut out = match found.len() {
        0 => {
            let raw: usize = contents.lines.iter().map(|line| raw::referred(line).count()).sum();
            let raw = if raw > 0 { format!(", {raw} measurements their raw data") } else { String::new() };
            format!("{shown}: verified: {} lines follow the rules{raw}\n", contents.lines.len())
        }
        count => format!("{shown}: {count} lines do not follow the rules:\n"),
    };
    for line in &found {
        // Writing to a `String` does not fail.
        let _ = writeln!(out, "  {line}");
    }
    if left > 0 {
        let _ = writeln!(out, "note: {left} files of raw data belong to no line; the next night removes them");
    }
    Ok((out, if found.is_empty() { 0 } else { EXIT_DIFFERENT }))
}

fn raw_contradictions(store: &Path, line: &StoreLine) -> Vec<String> {
    let wrong = |(name, value): (&str, f64)| {
        let bytes = match raw::read(store, &line.machine, name) {
            Ok(bytes) => bytes,
            Err(why) => return Some(why),
        };
        let again = RawReading::parse(&bytes)?.figure();
        match again {
            Ok(figure) if is_same(Some(figure), Some(value)) => None,
            Ok(figure) => Some(format!("its raw data {name} give {figure}, not {value}")),
            Err(error) => Some(format!("its raw data {name} give no figure: {error}")),
        }
    };
    let of_line = |why: String| format!("{} of {}: {why}", line.series, line.at);
    raw::referred(line).filter_map(wrong).map(of_line).collect()
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
        let found = verify_recomputed(file::parse(&value.to_string()).unwrap()).unwrap().differences;
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
            let found = verify_recomputed(file).unwrap().differences;
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
            let verified = verify_recomputed(file::parse(text).unwrap()).unwrap();
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
            let verified = verify_recomputed(file).unwrap();
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
