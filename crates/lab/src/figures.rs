//! Experiments whose outcome is a table: columns measured in turn, round after round, and one line for each figure.
//!
//! ```text
//!  rounds of samples ──▶ analysis (pure) ──▶ words, result file, page of the report
//! ```
//!
//! An experiment names its columns and lines and fills in rounds; everything after that is here and is the same for
//! all. The analysis has medians of the columns, and ratios to the first column within rounds. The text is the same for
//! terminal and report.

use crate::command_line::own_arguments;
use crate::environment;
use crate::error::{EXIT_INTERRUPTED, Result};
use crate::output::show;
use crate::result::file::ResultWriter;
use crate::result::{
    CellAnalysis, Durations, Experiment, FigureLine, FiguresResult, LineAnalysis, ResultFile, Sample, Setting,
};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use stillgate_stats::{hodges_lehmann, median, quantile};

/// The exit code of a table whose requirements were not met.
const EXIT_FAULT: u8 = 1;
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
        let is_valid = |round: &Vec<Option<_>>| round.iter().all(|sample| valid(sample).is_some());
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
    result.analysis = analyse(&result);
    let (text, code) = (text(&result), result.exit_code());
    let on_stdout = writer.as_ref().is_some_and(|writer| writer.path() == Path::new("-"));
    if let Some(writer) = writer {
        writer.finish(&ResultFile::new(
            own_arguments(),
            environment::gather(),
            Experiment::Figures(Box::new(result)),
        ))?;
    }
    match on_stdout {
        true => eprint!("{text}"),
        false => show(text)?,
    }
    Ok(code)
}

/// Confidence of the intervals.
const CONFIDENCE: f64 = 0.95;

/// A sample that shows its target.
pub(crate) fn valid(sample: &Option<Sample>) -> Option<&Sample> {
    sample.as_ref().filter(|sample| sample.void.is_empty())
}

/// The analysis of all lines, from valid samples only.
pub(crate) fn analyse(result: &FiguresResult) -> Vec<LineAnalysis> {
    let cells = |line| (0..result.columns.len()).map(|column| cell(&result.rounds, line, column)).collect();
    (0..result.lines.len()).map(|line| LineAnalysis { cells: cells(line) }).collect()
}

fn cell(rounds: &[Vec<Option<Sample>>], line: usize, column: usize) -> CellAnalysis {
    let value = |round: &Vec<Option<Sample>>, column: usize| *round.get(column).and_then(valid)?.values.get(line)?;
    let values: Vec<f64> = rounds.iter().filter_map(|round| value(round, column)).collect();
    let median_of_column = median(&values);
    if column == 0 {
        return CellAnalysis { median: median_of_column, ..CellAnalysis::default() };
    }
    // A ratio to nothing does not exist.
    let ratio =
        |round| Some(value(round, column)? / value(round, 0)?).filter(|ratio| ratio.is_finite() && *ratio > 0.0);
    let logs: Vec<f64> = rounds.iter().filter_map(ratio).map(f64::ln).collect();
    let estimate = hodges_lehmann(&logs, CONFIDENCE);
    CellAnalysis {
        median: median_of_column,
        ratio: estimate.map(|estimate| estimate.value).or_else(|| median(&logs)).map(f64::exp),
        interval: estimate.map(|estimate| (estimate.interval.low.exp(), estimate.interval.high.exp())),
    }
}

/// Reasons and faults that are shown; all are in the result file.
const SHOWN_MAX: usize = 5;

/// The least width of a column.
const WIDTH_MIN: usize = 12;

/// The table, and everything that its reader must know.
pub(crate) fn text(result: &FiguresResult) -> String {
    let mut out = format!("{}\n\n", result.title);
    let name = |line: usize| format!("{}, {}", result.lines[line].name, result.lines[line].unit);
    let widest = (0..result.lines.len()).map(|line| name(line).chars().count()).max().unwrap_or(0);
    let width = |column: usize| result.columns[column].chars().count().max(WIDTH_MIN);
    // Writing to a `String` cannot fail.
    let _ = write!(out, "{:widest$}", "");
    for (at, column) in result.columns.iter().enumerate() {
        let _ = write!(out, " {column:>0$}{1:>2$}", width(at), if at > 0 { "ratio" } else { "" }, ratio_width(at));
    }
    out.push('\n');
    for (at, analysis) in result.analysis.iter().enumerate().filter(|(_, analysis)| is_measured(analysis)) {
        let _ = write!(out, "{:widest$}", name(at));
        for (column, cell) in analysis.cells.iter().enumerate() {
            let _ = write!(
                out,
                " {:>1$}{2:>3$}",
                median_text(cell.median),
                width(column),
                ratio_text(cell),
                ratio_width(column)
            );
        }
        out.push('\n');
    }
    let rounds = match result.rounds.len() {
        run if run < result.planned => format!("{run} of {}", result.planned),
        run => run.to_string(),
    };
    let _ = writeln!(
        out,
        "\nMedians of {rounds} rounds; a ratio is the median of the ratios to the first column within rounds."
    );
    for line in notes(result) {
        let _ = writeln!(out, "{line}");
    }
    out
}

/// Whether any column has a value.
pub(crate) fn is_measured(line: &LineAnalysis) -> bool {
    line.cells.iter().any(|cell| cell.median.is_some())
}

/// The lines below the table.
pub(crate) fn notes(result: &FiguresResult) -> Vec<String> {
    let mut lines: Vec<String> = result.notes.clone();
    lines.extend(result.durations.iter().filter(|durations| !durations.us.is_empty()).map(durations));
    let samples = || result.rounds.iter().flatten().flatten();
    let void = result.rounds.iter().filter(|round| !round.iter().all(|sample| valid(sample).is_some())).count();
    if void > 0 {
        lines.push(format!(
            "VOID: {void} of {} rounds are not complete, and their columns do not count.",
            result.rounds.len()
        ));
    }
    lines.extend(samples().flat_map(|sample| &sample.void).take(SHOWN_MAX).map(|reason| format!("  {reason}")));
    lines.extend(result.faults.iter().take(SHOWN_MAX).map(|fault| format!("FAULT: {fault}")));
    if let Some(more) = result.faults.len().checked_sub(SHOWN_MAX + 1) {
        lines.push(format!("and {} more", more + 1));
    }
    lines
}

/// `from written to served: median 4.1 ms, p99 9.0 ms, longest 12.0 ms (500)`
fn durations(durations: &Durations) -> String {
    let mut ms: Vec<f64> = durations.us.iter().map(|us| *us as f64 / 1e3).collect();
    ms.sort_by(f64::total_cmp);
    let part = |part: f64| quantile(&ms, part).map_or_else(|| "–".to_owned(), |ms| format!("{ms:.1} ms"));
    let (median, p99, longest) = (part(0.5), part(0.99), part(1.0));
    format!("{}: median {median}, p99 {p99}, longest {longest} (of {})", durations.of, ms.len())
}

/// A median in its cell.
pub(crate) fn median_text(value: Option<f64>) -> String {
    match value {
        None => "–".to_owned(),
        Some(value) if value.abs() < 100.0 => format!("{value:.2}"),
        Some(value) if value.abs() < 10_000.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

/// `1.02 (0.97–1.08)`; empty in the first column.
pub(crate) fn ratio_text(cell: &CellAnalysis) -> String {
    match (cell.ratio, cell.interval) {
        (Some(ratio), Some((low, high))) => format!("{ratio:.3} ({low:.3}–{high:.3})"),
        (Some(ratio), None) => format!("{ratio:.3}"),
        (None, _) => String::new(),
    }
}

fn ratio_width(column: usize) -> usize {
    if column == 0 { 0 } else { 22 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    /// A table of one line and two columns with these values.
    pub(crate) fn table(rounds: &[(f64, f64)]) -> FiguresResult {
        let columns = ["without", "with"].map(str::to_owned).to_vec();
        let sample = |value: f64| Some(Sample { values: vec![Some(value)], void: Vec::new() });
        let mut result =
            FiguresResult::new("churn", "reloads of nginx".to_owned(), columns, &[("p99", "us")], rounds.len());
        result.rounds = rounds.iter().map(|(a, b)| vec![sample(*a), sample(*b)]).collect();
        result.analysis = analyse(&result);
        result
    }

    #[test]
    fn ratios_are_those_within_rounds() {
        let result = table(&[(1.0, 2.0), (10.0, 20.0), (4.0, 8.0)]);
        let [without, with] = [result.analysis[0].cells[0], result.analysis[0].cells[1]];
        assert_eq!((without.median, without.ratio), (Some(4.0), None));
        assert!(with.median == Some(8.0) && (with.ratio.unwrap() - 2.0).abs() < 1e-9);
        assert_eq!(with.interval, None, "three rounds are too few for one");
        let many = table(&[(1.0, 2.0); 8]);
        let (low, high) = many.analysis[0].cells[1].interval.unwrap();
        assert!((low - 2.0).abs() < 1e-9 && (high - 2.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_void_or_missing_counts_for_nothing() {
        let mut result = table(&[(1.0, 2.0), (1.0, 100.0), (1.0, 2.0), (0.0, 3.0)]);
        result.rounds[1][1].as_mut().unwrap().void.push("late".to_owned());
        result.rounds.push(vec![None, None]);
        let cells = &analyse(&result)[0].cells;
        assert_eq!((cells[0].median, cells[1].median), (Some(1.0), Some(2.0)));
        assert!((cells[1].ratio.unwrap() - 2.0).abs() < 1e-9);
        assert_eq!(analyse(&table(&[]))[0].cells, vec![CellAnalysis::default(); 2]);
    }

    #[test]
    fn a_table_with_all_that_speaks_against_it() {
        let mut result = table(&[(1.0, 2.0), (1000.0, 2000.0), (40_000.0, 80_000.0)]);
        result.durations = vec![Durations { of: "from written to served".to_owned(), us: vec![3000, 1000, 2000] }];
        result.rounds[0][0].as_mut().unwrap().void.push("the generator was late".to_owned());
        result.faults = (1..=7).map(|number| format!("fault {number}")).collect();
        expect![[r#"
            reloads of nginx

                         without         with                 ratio
            p99, us       1000.0       2000.0                 2.000

            Medians of 3 rounds; a ratio is the median of the ratios to the first column within rounds.
            from written to served: median 2.0 ms, p99 3.0 ms, longest 3.0 ms (of 3)
            VOID: 1 of 3 rounds are not complete, and their columns do not count.
              the generator was late
            FAULT: fault 1
            FAULT: fault 2
            FAULT: fault 3
            FAULT: fault 4
            FAULT: fault 5
            and 2 more
        "#]]
        .assert_eq(&text(&result));
    }
}
