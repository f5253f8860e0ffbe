//! The analysis of a table: medians of the columns, and ratios to the first column within rounds.

use crate::result::{CellAnalysis, FiguresResult, LineAnalysis, Sample};
use stillgate_stats::{hodges_lehmann, median};

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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

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
}
