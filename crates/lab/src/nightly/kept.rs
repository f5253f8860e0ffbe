//! The release's large sample: all its measurements ever taken on this machine, to which every night adds.
//!
//! Compared with a night's small sample by ranks, as the third reference text does it. The fresh pairs decide: only the
//! large sample contains the machine's states of all those nights. So it is shown next to them, where a difference too
//! small for the pairs stands out, and so does a release that was measured on a bad night.

use crate::store::StoreLine;
use stillgate_stats::{mann_whitney, median};

/// Fewer measurements from other nights are not a large sample.
const COUNT_MIN: usize = 20;

/// Tonight's measurements compared with those of all other nights.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SampleComparison {
    pub(crate) count: usize,
    /// Relative difference of the medians.
    pub(crate) effect: f64,
    /// P-value of Mann and Whitney's test, unadjusted.
    pub(crate) p_value: f64,
}

/// `None` without a release, or if it has too few measurements.
pub(crate) fn beside_kept(tonight: &StoreLine, before: &[StoreLine]) -> Option<SampleComparison> {
    let release = &tonight.beside.iter().find(|beside| beside.role == "release")?.commit;
    let comparable = before.iter().filter(|line| {
        line.series == tonight.series
            && line.machine == tonight.machine
            && line.measure == tonight.measure
            && line.is_in_unit_of(tonight)
            && line.counted.is_none()
    });
    let mut kept: Vec<f64> = Vec::new();
    for line in comparable {
        // It was the commit of a day, too.
        let own = (line.commit == *release).then_some(&line.values);
        let beside = line.beside.iter().find(|beside| beside.commit == *release).map(|beside| &beside.values);
        kept.extend(own.into_iter().chain(beside).flatten());
    }
    if kept.len() < COUNT_MIN {
        return None;
    }
    let effect = median(&tonight.values)? / median(&kept)? - 1.0;
    Some(SampleComparison { count: kept.len(), effect, p_value: mann_whitney(&kept, &tonight.values)?.p_value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Beside;
    use stillgate_stats::Random;

    fn night(commit: &str, level: f64, release: &str, seed: u64) -> StoreLine {
        let mut random = Random::new(seed);
        let mut draw = |level: f64| (0..10).map(|_| level * (0.02 * random.normal()).exp()).collect::<Vec<f64>>();
        let mut line = StoreLine::new("proxy", "m", format!("2026-01-{seed:02}"), commit, draw(level));
        line.beside = vec![Beside {
            role: "release".to_owned(),
            commit: release.to_owned(),
            values: draw(100.0),
            raw: Vec::new(),
        }];
        line
    }

    #[test]
    fn a_small_sample_is_held_against_all_nights_of_the_release() {
        let mut before: Vec<StoreLine> =
            (1..8).map(|number| night(&format!("c{number}"), 103.0, "r", number)).collect();
        // The day on which the release was the day's commit counts; nights of another release, series or machine do
        // not.
        before.push(night("r", 100.0, "older", 10));
        before.push(night("c11", 50.0, "older", 11));
        before.push(StoreLine { series: "other".to_owned(), ..night("c12", 50.0, "r", 12) });
        before.push(StoreLine { machine: "n".to_owned(), ..night("c13", 50.0, "r", 13) });
        before.push(StoreLine { measure: Some("otherwise".to_owned()), ..night("c14", 50.0, "r", 14) });
        before.push(StoreLine { unit: Some("us".to_owned()), ..night("c15", 50.0, "r", 15) });
        let kept = beside_kept(&night("c20", 103.0, "r", 20), &before).unwrap();
        assert_eq!(kept.count, 80);
        assert!((kept.effect - 0.03).abs() < 0.02 && kept.p_value < 0.01, "{kept:?}");
        let same = beside_kept(&night("c20", 100.0, "r", 20), &before).unwrap();
        assert!(same.p_value > 0.01, "{same:?}");
        assert_eq!(beside_kept(&night("c20", 100.0, "r", 20), &before[..1]), None);
        assert_eq!(beside_kept(&StoreLine { beside: Vec::new(), ..before[0].clone() }, &before), None);
    }
}
