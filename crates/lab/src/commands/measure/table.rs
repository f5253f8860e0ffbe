//! `measure --suite`: the options of a table, and its result.

use crate::cli::values::positive;
use crate::compare::alone::Figure;
use crate::compare::side::generator_cpus;
use crate::error::{Error, Result};
use crate::figures;
use crate::result::compare::CompareDesign;
use crate::stop::stop_flag;
use crate::suite::file::Suite;
use crate::suite::run::{Bench, Plan, judge};
use clap::Args;
use std::path::PathBuf;
use stillgate_rig::cpus;

/// Rounds, unless the suite has another number.
const ROUNDS: usize = 5;

#[derive(Debug, Args)]
pub(super) struct TableArguments {
    /// Measure a table of targets and cases instead of one program; see the manual
    #[arg(long, value_name = "FILE")]
    pub(super) suite: Option<PathBuf>,
    /// Only the cases of a suite with this in their names
    #[arg(long, value_name = "TEXT", requires = "suite")]
    case: Option<String>,
    /// Only these targets of a suite; ratios are to the first
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', requires = "suite")]
    targets: Vec<String>,
    /// Rounds of a suite [default: 5, or the suite's]
    #[arg(long, value_name = "N", value_parser = positive, requires = "suite")]
    rounds: Option<usize>,
    /// Another text for a placeholder of a suite
    #[arg(long, value_name = "NAME=TEXT", value_parser = pair, requires = "suite")]
    set: Vec<(String, String)>,
    /// Binary of a target, or of all targets of a kind
    #[arg(long, value_name = "NAME=PATH", value_parser = pair, requires = "suite")]
    binary: Vec<(String, String)>,
    /// File for design, raw data and analysis of a suite
    #[arg(long, value_name = "FILE", requires = "suite")]
    json: Option<PathBuf>,
}

impl TableArguments {
    pub(super) fn run(&self, mut suite: Suite, of: &[Figure], design: &CompareDesign) -> Result<u8> {
        for (name, text) in &self.set {
            match suite.fill.get_mut(name) {
                Some(own) => own.clone_from(text),
                None => {
                    let names: Vec<&str> = suite.fill.keys().map(String::as_str).collect();
                    return Err(Error::new(format!("--set {name}: the suite has {}", names.join(", "))));
                }
            }
        }
        let path = self.suite.as_deref().unwrap_or_else(|| unreachable!("it was read"));
        let (stop, writer) = (stop_flag()?, figures::writer(self.json.as_ref())?);
        let suites = usize::try_from(suite.rounds.unwrap_or(ROUNDS as u64)).unwrap_or(ROUNDS);
        let programs = self.binary.iter().map(|(name, path)| (name.clone(), PathBuf::from(path))).collect();
        let plan = Plan {
            figures: of,
            case: self.case.as_deref(),
            targets: &self.targets,
            rounds: self.rounds.unwrap_or(suites),
            programs: &programs,
            design,
            stop: &stop,
        };
        let bench = Bench::new(&suite, path, &plan)?;
        cpus::pin(generator_cpus(&design.placement))?;
        let mut result = bench.measure(path.file_stem().unwrap_or_default().to_string_lossy().into_owned())?;
        for (name, value) in
            [("connections", design.connections.to_string()), ("time", format!("{} s", design.saturation_s))]
        {
            result.set(name, value);
        }
        for (name, text) in &suite.fill {
            result.set(name, text);
        }
        if let Some(judged) = &suite.judged {
            result.analysis = figures::analysis::analyse(&result);
            let (more, compared) = judge(&result, judged);
            eprintln!(
                "{judged} adds no more than the least of the others in {} of {compared} rows",
                compared - more.len()
            );
            more.iter().for_each(|line| eprintln!("  more: {line}"));
        }
        figures::finish(result, writer)
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}
