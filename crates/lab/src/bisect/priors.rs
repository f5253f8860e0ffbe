//! Priors from counted instructions: a commit that changed a count is more likely to have changed a time.
//!
//! Only more likely: in the third reference text the slow commit executes hardly more instructions, and a commit that
//! executes fewer may be slower. So counts never make a commit unlikely.

use crate::history::analysis::count_change;
use crate::result::bisect::CommitRecord;
use crate::store::StoreLine;
use std::collections::{BTreeMap, HashMap};

/// How much likelier a change of a count makes the commit that made it.
const FACTOR: f64 = 10.0;

/// A series by name, machine, command and unit: counts of another command are a different series.
type Key<'a> = (&'a str, &'a str, Option<&'a str>, Option<&'a str>);

/// Weighs the commits of a row by their counts; returns how many commits have one.
pub(crate) fn weigh_by_counts(commits: &mut [CommitRecord], lines: &[StoreLine], min_effect: f64) -> usize {
    let places: HashMap<&str, usize> =
        commits.iter().enumerate().map(|(place, record)| (record.commit.as_str(), place)).collect();
    // By place; later lines about the same commit replace earlier ones.
    let mut series: BTreeMap<Key<'_>, BTreeMap<usize, &[f64]>> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.counted.is_some()) {
        if let Some(place) = places.get(line.commit.as_str()) {
            let key = (line.series.as_str(), line.machine.as_str(), line.measure.as_deref(), line.unit.as_deref());
            series.entry(key).or_default().insert(*place, &line.values);
        }
    }
    let mut factors = vec![1.0_f64; commits.len()];
    for counts in series.values() {
        let counted: Vec<(&usize, &&[f64])> = counts.iter().collect();
        for pair in counted.windows(2) {
            let [(from, before), (to, after)] = pair else { continue };
            if count_change(before, after, min_effect).is_some() {
                // One of them made the change; which one was not counted.
                let each = FACTOR / (*to - *from) as f64;
                factors[*from + 1..=**to].iter_mut().for_each(|factor| *factor = factor.max(each));
            }
        }
    }
    let known: usize = places.values().filter(|place| series.values().any(|counts| counts.contains_key(place))).count();
    commits.iter_mut().zip(factors).for_each(|(record, factor)| record.weight *= factor);
    known
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::CountedCommit;

    #[test]
    fn a_commit_that_changed_a_count_is_likelier() {
        let record = |number: usize| CommitRecord {
            commit: format!("c{number}"),
            subject: String::new(),
            weight: if number == 2 { 0.5 } else { 1.0 },
            is_merge: false,
            artefact: None,
        };
        let line = |series: &str, number: usize, count: f64| {
            let mut line = StoreLine::new(series, "m", String::new(), &format!("c{number}"), vec![count]);
            line.counted =
                Some(CountedCommit { place: 1, committed: String::new(), subject: String::new(), same_as: None });
            line
        };
        let mut lines: Vec<StoreLine> =
            (0..8).map(|number| line("a", number, if number < 2 { 100.0 } else { 105.0 })).collect();
        // The other series changed between 3 and 7; a scattering series is not a count; one commit is not in the row.
        lines.extend([line("b", 3, 50.0), line("b", 7, 40.0), line("c", 90, 1.0)]);
        lines.push(StoreLine { counted: None, ..line("d", 4, 1.0) });
        lines.push(StoreLine { counted: None, ..line("d", 5, 9.0) });
        let mut commits: Vec<CommitRecord> = (0..9).map(record).collect();
        assert_eq!(weigh_by_counts(&mut commits, &lines, 0.01), 8);
        let weights: Vec<f64> = commits.iter().map(|record| record.weight).collect();
        assert_eq!(weights, [1.0, 1.0, 5.0, 1.0, 2.5, 2.5, 2.5, 2.5, 1.0]);
    }
}
