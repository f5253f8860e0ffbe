//! What a night says: a pure function of its lines.
//!
//! A first look at every series asks for a second, larger one where something seems to have changed; one error holds for
//! all series and comparisons of the night together.

use crate::store::Line;
use stillgate_stats::{
    SCREEN_LEVEL, hodges_lehmann, is_suspicious, log_ratios, minimum_detectable_effect_signed_rank, screened,
    standard_deviation,
};

/// Share of false ones among all that are called changed; where nothing changed, the probability of any.
pub(crate) const ERROR: f64 = 0.01;

/// Of the intervals shown.
const CONFIDENCE: f64 = 0.95;

/// Of the smallest difference that would have been seen.
const POWER: f64 = 0.9;

/// Where a larger difference could have been missed, a comparison is undecided; a suite may set another one.
pub(crate) const MARGIN: f64 = 0.05;

/// One series beside one other commit.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Judged {
    pub(crate) series: String,
    /// `yesterday` or `release`.
    pub(crate) role: String,
    pub(crate) beside: String,
    /// Today's relative difference, with its interval.
    pub(crate) effect: [f64; 3],
    /// The smallest that would have been called changed.
    pub(crate) detectable: Option<f64>,
    /// What must not be missed.
    pub(crate) margin: f64,
    /// Adjusted over the night.
    pub(crate) p_value: f64,
    pub(crate) pairs: usize,
    pub(crate) verdict: Verdict,
}

/// What is said of a comparison, in the order of what a reader asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    Worse,
    Better,
    Undecided,
    Unchanged,
}

/// All comparisons of a night.
pub(crate) fn judge(night: &[&Line]) -> Vec<Judged> {
    let all: Vec<(&Line, usize, Vec<f64>)> = night
        .iter()
        .flat_map(|line| (0..line.beside.len()).map(move |index| (*line, index)))
        .filter_map(|(line, index)| {
            let diffs = log_ratios(&line.beside[index].values, &line.values)?;
            (line.first_look <= diffs.len()).then_some((line, index, diffs))
        })
        .collect();
    let seconds: Vec<Option<&[f64]>> = all
        .iter()
        .map(|(line, _, diffs)| {
            let (first, second) = diffs.split_at(line.first_look);
            (is_suspicious(first) && !second.is_empty()).then_some(second)
        })
        .collect();
    let p_values = screened(&seconds);
    let tests = all.len() as f64;
    all.iter()
        .zip(p_values)
        .map(|((line, index, diffs), p_value)| {
            let (first, second) = diffs.split_at(line.first_look);
            let looked = if second.is_empty() { first } else { second };
            let estimate = hodges_lehmann(looked, CONFIDENCE);
            let effect = estimate.map_or([0.0; 3], |e| [e.value, e.interval.low, e.interval.high].map(f64::exp_m1));
            let detectable = standard_deviation(diffs).and_then(|sd| {
                // What passes the first look, and what would pass a second one of the usual size.
                let least = |pairs: usize, level| minimum_detectable_effect_signed_rank(pairs as u64, sd, level, POWER);
                let first = least(first.len(), SCREEN_LEVEL)?;
                let alone = ERROR / tests / SCREEN_LEVEL;
                let second = least(super::run::PAIRS_SECOND, alone)?;
                Some(first.max(second).exp_m1())
            });
            let verdict = match p_value <= ERROR {
                true if (effect[0] < 0.0) == line.higher_is_better => Verdict::Worse,
                true => Verdict::Better,
                false if detectable.is_some_and(|least| least <= line.margin.unwrap_or(MARGIN)) => Verdict::Unchanged,
                false => Verdict::Undecided,
            };
            let beside = &line.beside[*index];
            Judged {
                series: line.series.clone(),
                role: beside.role.clone(),
                beside: beside.commit.clone(),
                effect,
                detectable,
                margin: line.margin.unwrap_or(MARGIN),
                p_value,
                pairs: diffs.len(),
                verdict,
            }
        })
        .collect()
}

/// What in a line does not follow from the rules: second looks where there should be none, or the other way round.
pub(crate) fn contradictions(line: &Line) -> Vec<String> {
    let count = line.values.len();
    if line.first_look > count || line.beside.iter().any(|beside| beside.values.len() != count) {
        return vec![format!("{} {}: its sides have different numbers of measurements", line.at, line.series)];
    }
    let asked = line.beside.iter().any(|beside| {
        let first = log_ratios(&beside.values[..line.first_look], &line.values[..line.first_look]);
        first.is_some_and(|first| is_suspicious(&first))
    });
    let is_there = line.first_look < count;
    match (asked, is_there) {
        (true, false) => vec![format!("{} {}: the second look is missing", line.at, line.series)],
        (false, true) => vec![format!("{} {}: a second look that nothing asked for", line.at, line.series)],
        _ => Vec::new(),
    }
}
