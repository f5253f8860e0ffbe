//! The verdict over all combinations in one sentence, for readers who read nothing else.
//!
//! It summarises the verdicts of the analysis, whose own sentence names the combinations.

use super::verdict::{ShownVerdict, percent};
use crate::result::tail::{CellAnalysis, TailResult, Verdict};

/// One sentence.
pub(crate) fn of(result: &TailResult) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Experiment;
    use crate::tail::synthetic;

    /// Checks two cells of these targets with these verdicts.
    fn check(cells: &[(&str, Verdict)], sentence: &str) {
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
        assert_eq!(of(&tail), sentence);
    }

    #[test]
    fn one_sentence_whatever_was_found() {
        use Verdict::{Failing, Faster, NoDifference, Slower, Void};
        check(&[], "No verdict: no combination was measured.");
        check(&[("a", Void)], "No verdict: the measurement is void.");
        check(&[("a", Void), ("b", Void)], "No verdict: all 2 combinations are void.");
        check(&[("a", Slower)], "Scrapes made the slowest requests of a slower.");
        check(
            &[("a", NoDifference), ("b", NoDifference), ("c", NoDifference)],
            "Scrapes made no significant difference to the slowest requests of a, b and c.",
        );
        check(
            &[("a", NoDifference), ("open", NoDifference), ("open", Slower)],
            "Scrapes made the slowest requests of open (1 of 2 combinations) slower, and no significant difference in 2 of 3; \
             more than 10% cannot be excluded for open (1 of 2 combinations).",
        );
        check(
            &[("a", NoDifference), ("b", Slower), ("b", NoDifference), ("b", Void)],
            "Scrapes made the slowest requests of b (1 of 3 combinations) slower, and no significant difference in 2 of 4; \
             1 of 4 are void.",
        );
        check(
            &[("a", Failing), ("b", Slower), ("c", Faster)],
            "Scrapes made the slowest requests of b slower, and made more requests of a fail, and came with faster slowest requests \
             of c.",
        );
    }
}
