//! The growth of the slowest request with the number of series; it is linear in the first reference text.
//!
//! Recomputed from the raw data wherever it is shown, as all sentences are.

use super::{analysis, readable};
use crate::error::Result;
use crate::result::tail::{Cell, TailResult};
use stillgate_stats::theil_sen;

/// Fewer numbers of series do not define a line.
const NUMBERS_MIN: usize = 3;

/// Slopes are per this many series.
const SERIES: f64 = 100_000.0;

/// A sentence for each target and time between scrapes that was measured at several numbers of series.
pub(crate) fn sentences(result: &TailResult) -> Result<Vec<String>> {
    let mut groups: Vec<Vec<&Cell>> = Vec::new();
    for cell in &result.cells {
        let is_alike = |group: &&mut Vec<&Cell>| {
            group[0].subject.name == cell.subject.name && group[0].scrape_every_s == cell.scrape_every_s
        };
        match groups.iter_mut().find(is_alike) {
            Some(group) => group.push(cell),
            None => groups.push(vec![cell]),
        }
    }
    groups.iter().filter_map(|cells| sentence(cells, result.design.confidence).transpose()).collect()
}

/// `None` if there are too few numbers of series, or pairs.
fn sentence(cells: &[&Cell], confidence: f64) -> Result<Option<String>> {
    let (mut series, mut differences) = (Vec::new(), Vec::new());
    let mut numbers: Vec<u64> = Vec::new();
    for cell in cells {
        let of_cell = analysis::max_differences(cell)?;
        series.extend(of_cell.iter().map(|_| cell.series_shown as f64 / SERIES));
        if !of_cell.is_empty() && !numbers.contains(&cell.series_shown) {
            numbers.push(cell.series_shown);
        }
        differences.extend(of_cell);
    }
    if numbers.len() < NUMBERS_MIN {
        return Ok(None);
    }
    let Some(slope) = theil_sen(&series, &differences, confidence) else { return Ok(None) };
    let (low, high) = (slope.interval.low, slope.interval.high);
    let [value, low_us, high_us] = [slope.value, low, high].map(readable::change);
    let says = match () {
        () if low > 0.0 => "grows with the number of series",
        () if high < 0.0 => "falls with the number of series, which needs an explanation",
        () => "does not certainly grow with the number of series",
    };
    Ok(Some(format!(
        "The time that scrapes add to the slowest request of {} (scraped every {}) {says}: {value} for each 100,000 series ({:.0}% \
         interval {low_us} to {high_us}).",
        cells[0].subject.name,
        readable::seconds(cells[0].scrape_every_s),
        confidence * 100.0,
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Experiment;
    use crate::tail::synthetic;

    /// Cells of these numbers of series, with stalls of these lengths at each scrape.
    fn check(cells: &[(u64, f64)], expected: &[&str]) {
        let Experiment::Tail(mut tail) = synthetic::file(3, 8, 0.0).experiment else { panic!("it is of this kind") };
        let make = |(number, (series, stall_us)): (usize, &(u64, f64))| Cell {
            series_shown: *series,
            ..synthetic::cell(&tail.design, number, *stall_us)
        };
        tail.cells = cells.iter().enumerate().map(make).collect();
        let found = sentences(&tail).unwrap();
        assert_eq!(found.len(), expected.len().min(1), "{found:?}");
        expected.iter().for_each(|words| assert!(found[0].contains(words), "{found:?}"));
    }

    #[test]
    fn a_maximum_that_grows_is_said_with_its_slope() {
        // 200 ms per 100,000.
        let growing = [(1_000, 2e3), (10_000, 20e3), (100_000, 200e3), (1_000_000, 2e6)];
        check(&growing, &["grows with the number of series: +2", " ms for each 100,000 series (95% interval +"]);
        check(&[(1_000, 0.0), (10_000, 0.0), (100_000, 0.0)], &["does not certainly grow"]);
        check(&growing[..2], &[]);
        check(&[(1_000, 2e3), (1_000, 20e3), (1_000, 200e3)], &[]);
    }
}
