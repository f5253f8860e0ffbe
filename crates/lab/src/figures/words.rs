//! A table as text: the same for terminal and report.

use super::analysis::valid;
use crate::result::{CellAnalysis, Durations, FiguresResult, LineAnalysis};
use std::fmt::Write as _;
use stillgate_stats::quantile;

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
            let _ = write!(out, " {:>1$}{2:>3$}", value(cell.median), width(column), ratio(cell), ratio_width(column));
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
pub(crate) fn value(value: Option<f64>) -> String {
    match value {
        None => "–".to_owned(),
        Some(value) if value.abs() < 100.0 => format!("{value:.2}"),
        Some(value) if value.abs() < 10_000.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

/// `1.02 (0.97–1.08)`; empty in the first column.
pub(crate) fn ratio(cell: &CellAnalysis) -> String {
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
    use super::super::analysis::tests::table;
    use super::*;
    use expect_test::expect;

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
