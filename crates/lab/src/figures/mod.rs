//! Experiments whose outcome is a table: columns measured in turn, round after round, and one line for each figure.
//!
//! ```text
//!  rounds of samples ──▶ analysis (pure) ──▶ words, result file, page of the report
//! ```
//!
//! An experiment names its columns and lines and fills in rounds; everything after that is here and is the same for all.

pub(crate) mod analysis;
pub(crate) mod words;

use crate::cli::typed::typed;
use crate::environment;
use crate::error::Result;
use crate::result::file::ResultWriter;
use crate::result::{Experiment, FigureLine, FiguresResult, ResultFile, Setting};
use crate::stdout::show;
use crate::stop::EXIT_INTERRUPTED;
use std::path::{Path, PathBuf};

/// The exit code of a table whose requirements were not met.
pub(crate) const EXIT_FAULT: u8 = 1;
/// The exit code of a table without a valid round.
pub(crate) const EXIT_VOID: u8 = 3;

impl FiguresResult {
    /// A table that has no rounds yet.
    pub(crate) fn new(
        experiment: &str,
        title: String,
        columns: Vec<String>,
        lines: &[(&str, &str)],
        planned: usize,
    ) -> FiguresResult {
        let line = |(name, unit): &(&str, &str)| FigureLine { name: (*name).to_owned(), unit: (*unit).to_owned() };
        FiguresResult {
            experiment: experiment.to_owned(),
            title,
            settings: Vec::new(),
            columns,
            lines: lines.iter().map(line).collect(),
            subjects: Vec::new(),
            planned,
            rounds: Vec::new(),
            durations: Vec::new(),
            notes: Vec::new(),
            faults: Vec::new(),
            analysis: Vec::new(),
        }
    }

    /// Adds an argument to those that are shown.
    pub(crate) fn set(&mut self, name: &str, value: impl ToString) {
        self.settings.push(Setting { name: name.to_owned(), value: value.to_string() });
    }

    fn exit_code(&self) -> u8 {
        let is_valid = |round: &Vec<Option<_>>| round.iter().all(|sample| analysis::valid(sample).is_some());
        match self.rounds.iter().any(is_valid) {
            _ if self.rounds.len() < self.planned => EXIT_INTERRUPTED,
            _ if !self.faults.is_empty() => EXIT_FAULT,
            true => 0,
            false => EXIT_VOID,
        }
    }
}

/// The place of the result, tried before the experiment.
pub(crate) fn writer(json: Option<&PathBuf>) -> Result<Option<ResultWriter>> {
    json.map(|path| ResultWriter::open(path)).transpose()
}

/// Analyses, writes and shows a result; returns the exit code.
pub(crate) fn finish(mut result: FiguresResult, writer: Option<ResultWriter>) -> Result<u8> {
    result.analysis = analysis::analyse(&result);
    let (text, code) = (words::text(&result), result.exit_code());
    let on_stdout = writer.as_ref().is_some_and(|writer| writer.path() == Path::new("-"));
    if let Some(writer) = writer {
        writer.finish(&ResultFile::new(typed(), environment::gather(), Experiment::Figures(Box::new(result))))?;
    }
    match on_stdout {
        true => eprint!("{text}"),
        false => show(text)?,
    }
    Ok(code)
}
