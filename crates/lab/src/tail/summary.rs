//! Sentences about all combinations: the verdict, the growth with the number of series, and notes.
//!
//! The verdict is one sentence, for readers who read nothing else. It summarises the verdicts of the analysis, whose
//! own sentence names the combinations.
//!
//! The growth of the slowest request is linear in the first reference text. It is recomputed from the raw data wherever
//! it is shown, as all sentences are.
//!
//! Notes are for comparisons between built-in targets: differences that are due to their setup or their requests, and
//! not to scrapes.

use super::verdict::{ShownVerdict, percent};
use super::{analysis, readable};
use crate::error::Result;
use crate::result::tail::{Cell, CellAnalysis, TailResult, Verdict};
use crate::target::TargetKind;
use stillgate_stats::theil_sen;

/// One sentence.
pub(crate) fn headline_of(result: &TailResult) -> String {
    let all = result.analysis.cells.len();
    let count = |verdict| result.analysis.cells.iter().filter(|cell| cell.verdict == verdict).count();
    let void = count(Verdict::Void);
    if all == 0 {
        return "No verdict: no combination was measured.".to_owned();
    }
    if void == all {
        return match all {
            1 => "No verdict: the measurement is void.".to_owned(),
            _ => format!("No verdict: all {all} combinations are void."),
        };
    }
    let found: Vec<String> = FINDINGS
        .iter()
        .filter(|(verdict, ..)| count(*verdict) > 0)
        .map(|(verdict, before, after)| format!("{before} {}{after}", targets(result, |cell| cell.verdict == *verdict)))
        .collect();
    let same = count(Verdict::NoDifference);
    let mut sentence = match (found.is_empty(), same) {
        (true, _) => {
            let targets = targets(result, |cell| cell.verdict == Verdict::NoDifference);
            format!("Scrapes made no significant difference to the slowest requests of {targets}")
        }
        (false, 0) => format!("Scrapes {}", found.join(", and ")),
        (false, some) => format!("Scrapes {}, and no significant difference in {some} of {all}", found.join(", ")),
    };
    let is_open = |cell: &CellAnalysis| ShownVerdict::of(cell, &result.design) == ShownVerdict::CannotSay;
    if result.analysis.cells.iter().any(is_open) {
        let (margin, targets) = (percent(result.design.margin), targets(result, is_open));
        sentence.push_str(&format!("; more than {margin} cannot be excluded for {targets}"));
    }
    if void > 0 {
        sentence.push_str(&format!("; {void} of {all} are void"));
    }
    sentence + "."
}

/// Verdicts that are findings, each with the words before its targets and after them.
const FINDINGS: [(Verdict, &str, &str); 3] = [
    (Verdict::Slower, "made the slowest requests of", " slower"),
    (Verdict::Failing, "made more requests of", " fail"),
    (Verdict::Faster, "came with faster slowest requests of", ""),
];

/// The targets for which this holds, and in how many of their combinations unless in all.
fn targets(result: &TailResult, is_so: impl Fn(&CellAnalysis) -> bool) -> String {
    let mut named: Vec<(&str, usize, usize)> = Vec::new();
    for (cell, analysis) in result.cells.iter().zip(&result.analysis.cells) {
        let name = cell.subject.name.as_str();
        let at = named.iter().position(|(known, ..)| *known == name).unwrap_or_else(|| {
            named.push((name, 0, 0));
            named.len() - 1
        });
        named[at].1 += usize::from(is_so(analysis));
        named[at].2 += 1;
    }
    let shown: Vec<String> = named
        .into_iter()
        .filter(|(_, with_it, _)| *with_it > 0)
        .map(|(name, with_it, all)| match with_it == all {
            true => name.to_owned(),
            false => format!("{name} ({with_it} of {all} combinations)"),
        })
        .collect();
    match shown.as_slice() {
        [rest @ .., last] if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        only => only.concat(),
    }
}

/// Fewer numbers of series do not define a line.
const NUMBERS_MIN: usize = 3;

/// Slopes are per this many series.
const SERIES: f64 = 100_000.0;

/// A sentence for each target and time between scrapes that was measured at several numbers of series.
pub(crate) fn growth_sentences(result: &TailResult) -> Result<Vec<String>> {
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

/// The notes that apply to the targets of this result, a sentence each.
pub(crate) fn fairness_notes(result: &TailResult) -> Vec<String> {
    let named = |kinds: &[TargetKind]| {
        let mut names: Vec<&str> = Vec::new();
        for cell in &result.cells {
            let name = cell.subject.name.as_str();
            if TargetKind::named(name).is_some_and(|kind| kinds.contains(&kind)) && !names.contains(&name) {
                names.push(name);
            }
        }
        names.join(", ")
    };
    let mut notes = Vec::new();
    let by_requests = named(&[TargetKind::Stillgate, TargetKind::NginxLua]);
    if !by_requests.is_empty() {
        notes.push(format!(
            "{by_requests}: each request of the load counts under a label of its own query, which costs a look-up; the other \
             targets count under fixed names."
        ));
    }
    let uncompressed = named(&[TargetKind::Haproxy]);
    if !uncompressed.is_empty() && result.design.gzip {
        notes.push(format!("{uncompressed}: sends its exposition uncompressed although gzip is requested."));
    }
    let apart = named(&[TargetKind::Stillgate]);
    let cpus = result.design.placement.target_cpus.len();
    if !apart.is_empty() && cpus != 1 {
        notes.push(format!(
            "{apart}: answers scrapes on a separate thread, which has its own CPU if the target has several; haproxy \
             and nginx run with one thread or worker."
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Experiment;
    use crate::tail::synthetic;

    /// Checks two cells of these targets with these verdicts.
    fn check_headline(cells: &[(&str, Verdict)], sentence: &str) {
        let file = synthetic::file(3, 8, 50_000.0);
        let Experiment::Tail(mut tail) = file.experiment else { panic!("synthetic files are of this kind") };
        let (cell, analysis) = (tail.cells[0].clone(), tail.analysis.cells[0].clone());
        (tail.cells, tail.analysis.cells) = (Vec::new(), Vec::new());
        for (name, verdict) in cells {
            let (mut cell, mut analysis) = (cell.clone(), analysis.clone());
            let reach = if name.starts_with("open") { 12.3 } else { 0.05 };
            for effect in &mut analysis.effects {
                (effect.low, effect.high) = (-0.05 * effect.without, reach * effect.without);
            }
            (cell.subject.name, analysis.verdict) = ((*name).to_owned(), *verdict);
            tail.cells.push(cell);
            tail.analysis.cells.push(analysis);
        }
        assert_eq!(headline_of(&tail), sentence);
    }

    #[test]
    fn one_sentence_whatever_was_found() {
        use Verdict::{Failing, Faster, NoDifference, Slower, Void};
        check_headline(&[], "No verdict: no combination was measured.");
        check_headline(&[("a", Void)], "No verdict: the measurement is void.");
        check_headline(&[("a", Void), ("b", Void)], "No verdict: all 2 combinations are void.");
        check_headline(&[("a", Slower)], "Scrapes made the slowest requests of a slower.");
        check_headline(
            &[("a", NoDifference), ("b", NoDifference), ("c", NoDifference)],
            "Scrapes made no significant difference to the slowest requests of a, b and c.",
        );
        check_headline(
            &[("a", NoDifference), ("open", NoDifference), ("open", Slower)],
            "Scrapes made the slowest requests of open (1 of 2 combinations) slower, and no significant difference in 2 of 3; \
             more than 10% cannot be excluded for open (1 of 2 combinations).",
        );
        check_headline(
            &[("a", NoDifference), ("b", Slower), ("b", NoDifference), ("b", Void)],
            "Scrapes made the slowest requests of b (1 of 3 combinations) slower, and no significant difference in 2 of 4; \
             1 of 4 are void.",
        );
        check_headline(
            &[("a", Failing), ("b", Slower), ("c", Faster)],
            "Scrapes made the slowest requests of b slower, and made more requests of a fail, and came with faster slowest requests \
             of c.",
        );
    }

    /// Cells of these numbers of series, with stalls of these lengths at each scrape.
    fn check_growth(cells: &[(u64, f64)], expected: &[&str]) {
        let Experiment::Tail(mut tail) = synthetic::file(3, 8, 0.0).experiment else { panic!("it is of this kind") };
        let make = |(number, (series, stall_us)): (usize, &(u64, f64))| Cell {
            series_shown: *series,
            ..synthetic::cell(&tail.design, number, *stall_us)
        };
        tail.cells = cells.iter().enumerate().map(make).collect();
        let found = growth_sentences(&tail).unwrap();
        assert_eq!(found.len(), expected.len().min(1), "{found:?}");
        expected.iter().for_each(|words| assert!(found[0].contains(words), "{found:?}"));
    }

    #[test]
    fn a_maximum_that_grows_is_said_with_its_slope() {
        // 200 ms per 100,000.
        let growing = [(1_000, 2e3), (10_000, 20e3), (100_000, 200e3), (1_000_000, 2e6)];
        check_growth(&growing, &["grows with the number of series: +2", " ms for each 100,000 series (95% interval +"]);
        check_growth(&[(1_000, 0.0), (10_000, 0.0), (100_000, 0.0)], &["does not certainly grow"]);
        check_growth(&growing[..2], &[]);
        check_growth(&[(1_000, 2e3), (1_000, 20e3), (1_000, 200e3)], &[]);
    }

    #[test]
    fn only_applicable_notes_are_given() {
        let check = |name: &str, gzip: bool, cpus: usize, told: &[&str]| {
            let Experiment::Tail(mut tail) = synthetic::file(1, 1, 0.0).experiment else {
                panic!("it is of this kind")
            };
            tail.cells[0].subject.name = name.to_owned();
            tail.design.gzip = gzip;
            tail.design.placement.target_cpus = (0..cpus).collect();
            let notes = fairness_notes(&tail);
            assert_eq!(notes.len(), told.len(), "{notes:?}");
            assert!(notes.iter().zip(told).all(|(note, told)| note.contains(told)), "{notes:?}");
        };
        check("nginx", true, 2, &[]);
        check("haproxy", true, 1, &["haproxy: sends its exposition uncompressed"]);
        check("haproxy", false, 1, &[]);
        check("stillgate", true, 1, &["a label of its own query"]);
        check("stillgate", true, 2, &["a label of its own query", "a separate thread"]);
        check("nginx-lua", true, 2, &["a label of its own query"]);
    }
}
