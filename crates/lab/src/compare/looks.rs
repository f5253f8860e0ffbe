//! How much error each measure may spend, and when: one look at the end, or several that were fixed before the run.
//!
//! Looking after every few pairs and stopping at the first significant difference finds one sooner or later. A
//! group-sequential design spends the stated error over its looks (Lan & DeMets 1983; with Pocock's spending, because
//! the purpose of such a design is to stop early). The boundaries are those of a test that is normal at each look; the
//! signed-rank test's exact p-value is compared with the same nominal levels, which its discreteness makes
//! conservative.
//!
//! Over measures: Holm's correction with one look; with several, Bonferroni's, since Holm's order may change from look
//! to look. A measure that could not be judged still counts: the number of questions was fixed before the run.
//!
//! The boundaries are for the planned numbers of pairs. At an early look a measure that lacks a pair is therefore not
//! judged; at the last look fewer pairs only make it more conservative, because it then shares more with the earlier
//! looks.

use super::measures;
use crate::result::compare::CompareDesign;
use stillgate_stats::{SpendingFunction, boundaries, holm, nominal_p};

/// The approximate share of a measure's error that a look may spend; it only decides which looks are worth planning.
const LEVEL_SHARE: f64 = 0.5;

/// The level that a measure must reach at one look.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Look {
    /// Two-sided error that one measure may spend here, Bonferroni's share; also that of the intervals, so that all of
    /// them together hold with 1 - alpha.
    pub(crate) level: f64,
    /// Level of measures with a single look in any design: instructions.
    pub(crate) level_once: f64,
    /// Whether more looks are to come.
    pub(crate) is_early: bool,
    sequential: bool,
    family: usize,
    alpha: f64,
}

/// The look after `done` pairs of `design`, with as many measures as `family` judged together.
pub(crate) fn at(design: &CompareDesign, done: usize, family: usize) -> Look {
    let once = design.alpha / family.max(1) as f64;
    let alpha = design.alpha;
    if design.looks.is_empty() {
        return Look { level: once, level_once: once, is_early: false, sequential: false, family, alpha };
    }
    let spent = design.looks.iter().position(|&look| look >= done).and_then(|index| {
        let last = *design.looks.last()? as f64;
        let information: Vec<f64> = design.looks.iter().map(|&look| look as f64 / last).collect();
        let bounds = boundaries(&information, once, SpendingFunction::Pocock)?;
        nominal_p(&bounds).get(index).copied()
    });
    // A run that was not planned like this has nothing to spend.
    let is_early = done < design.pairs;
    Look { level: spent.unwrap_or(0.0), level_once: once, is_early, sequential: true, family, alpha }
}

impl Look {
    /// Corrected p-values: at most alpha means significant. `once` marks those with a single look in any design.
    pub(crate) fn adjust(&self, p_values: &[(f64, bool)]) -> Vec<f64> {
        if !self.sequential {
            let mut raw: Vec<f64> = p_values.iter().map(|(p_value, _)| *p_value).collect();
            raw.resize(raw.len().max(self.family), 1.0);
            let mut adjusted = holm(&raw);
            adjusted.truncate(p_values.len());
            return adjusted;
        }
        let scaled = |&(p_value, once): &(f64, bool)| {
            let level = if once { self.level_once } else { self.level };
            if level > 0.0 { (p_value * self.alpha / level).min(1.0) } else { 1.0 }
        };
        p_values.iter().map(scaled).collect()
    }
}

/// Whether the looks of a design are those that planning would give it, with or without instructions counted.
pub(crate) fn are_planned(design: &CompareDesign) -> bool {
    let comparisons = design.comparisons().len();
    let planned =
        |instructions| plan(design.pairs, design.alpha, measures::family(comparisons, instructions)) == design.looks;
    design.looks.is_empty() || planned(false) || planned(true)
}

/// Whether a design looks at the data after this many pairs.
pub(crate) fn is_look(design: &CompareDesign, done: usize) -> bool {
    if design.looks.is_empty() { done == design.pairs } else { design.looks.contains(&done) }
}

/// Whether the last look can find anything at all: a few pairs cannot give a small enough p-value.
pub(crate) fn can_decide(design: &CompareDesign, family: usize) -> bool {
    p_min(design.pairs) <= at(design, design.pairs, family).level
}

/// The fewest pairs with which a design like this one can find anything.
pub(crate) fn pairs_min(design: &CompareDesign, family: usize) -> usize {
    let possible = |pairs: &usize| {
        let looks = if design.looks.is_empty() { Vec::new() } else { plan(*pairs, design.alpha, family) };
        can_decide(&CompareDesign { pairs: *pairs, looks, ..design.clone() }, family)
    };
    (1..).find(possible).expect("the smallest p-value halves with each pair")
}

/// The looks of a sequential design of at most `pairs`: at half, three quarters and the end, leaving out those at which no
/// difference could be significant yet.
pub(crate) fn plan(pairs: usize, alpha: f64, family: usize) -> Vec<usize> {
    let once = alpha / family.max(1) as f64;
    let useful = |look: &usize| *look == pairs || p_min(*look) <= once * LEVEL_SHARE;
    let mut looks: Vec<usize> = [pairs / 2, pairs * 3 / 4, pairs].into_iter().filter(useful).collect();
    looks.dedup();
    looks
}

/// The smallest two-sided p-value that the signed-rank test can give.
fn p_min(pairs: usize) -> f64 {
    2.0 * 0.5f64.powi(i32::try_from(pairs).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::false_alarms::design;

    #[test]
    fn one_look_spends_all_and_several_share() {
        let single = at(&design(16, &[]), 16, 7);
        assert!((single.level - 0.01 / 7.0).abs() < 1e-12, "{single:?}");
        let sequential = design(32, &[16, 24, 32]);
        let levels = [16, 24, 32].map(|done| at(&sequential, done, 7).level);
        assert!(
            levels.iter().all(|level| *level < single.level) && levels.iter().sum::<f64>() > single.level,
            "{levels:?}"
        );
    }

    #[test]
    fn corrected_p_values_are_held_against_alpha() {
        let raw = [(0.001, false), (0.5, false), (0.002, false)];
        assert_eq!(at(&design(16, &[]), 16, 3).adjust(&raw), [0.003, 0.5, 0.004]);
        // One of the family that was not judged.
        assert_eq!(at(&design(16, &[]), 16, 4).adjust(&raw), [0.004, 1.0, 0.006]);
        let look = at(&design(32, &[16, 24, 32]), 16, 3);
        let adjusted = look.adjust(&[(look.level, false), (0.01 / 3.0, true), (1.0, false)]);
        assert!((adjusted[0] - 0.01).abs() < 1e-12 && (adjusted[1] - 0.01).abs() < 1e-12 && adjusted[2] == 1.0);
    }

    #[test]
    fn too_few_pairs_are_known_before_the_run() {
        for (pairs, looks, possible) in
            [(10, vec![], false), (11, vec![], true), (16, vec![16], true), (4, vec![2, 3, 4], false)]
        {
            assert_eq!(can_decide(&design(pairs, &looks), 7), possible, "{pairs} {looks:?}");
        }
        for (looks, planned) in [(vec![], true), (vec![16, 24, 32], true), (vec![8, 16, 32], false), (vec![16], false)]
        {
            assert_eq!(are_planned(&design(32, &looks)), planned, "{looks:?}");
        }
        assert_eq!(plan(32, 0.01, 7), [16, 24, 32]);
        assert_eq!(plan(16, 0.01, 7), [12, 16]);
        assert_eq!(plan(2, 0.01, 7), [2]);
    }
}
