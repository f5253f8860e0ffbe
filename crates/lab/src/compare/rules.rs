//! Rules of judgement: for measures that are not judged like latencies, which are failed requests and instructions per
//! request; and for the error that each measure may spend, and when.
//!
//! Failed requests are a separate measure: zeros have no ratio, and failing quickly is not speed.
//!
//! The pairs in which the shares differ are counted by direction and judged by the exact sign test: requests of one
//! start fail together, so a start is one observation however many of its requests failed.
//!
//! Instructions per request have hardly any noise, and are judged from a few repetitions a side. Three repetitions a
//! side show how little noise there is: Student's test of two samples with pooled variance, on logarithms, with a noise
//! of at least [`NOISE_MIN`]. A difference below 1% does not count, however certain
//! ([`Measure::effect_min`](super::measures::Measure::effect_min)).
//!
//! They cannot prove a difference. Counts may have two states, for example a table that grows in one start and not in
//! another, and in 3% of comparisons all of A are in one and all of B in the other, without any noise around them. So
//! if the three differ, more are counted, as many as [`repetitions_needed`], and a difference must then also show in
//! the ranks of all of them (Mann and Whitney), whatever their distribution. The error is then that of the ranks, since
//! the first three only decide whether to continue. `false_alarms` checks the stated error of this rule with heavy
//! tails and with states.

use super::measures::{self, Duel};
use super::words;
use crate::result::compare::{BuildPair, CompareDesign, Failures, MeasureVerdict};
use stillgate_stats::{
    SpendingFunction, boundaries, effect_beyond, holm, mann_whitney, minimum_detectable_effect_two_sample, nominal_p,
    signed_rank, two_sample_t,
};

/// The failed requests of one pair.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Shares {
    /// Share of its requests that failed, 0 to 1.
    pub(super) a: f64,
    pub(super) b: f64,
    /// Whether there are too many for other measures to be valid.
    is_a_failing: bool,
    is_b_failing: bool,
}

pub(super) fn shares(pair: &Duel<'_>) -> Shares {
    Shares {
        a: measures::failed_share(pair.a),
        b: measures::failed_share(pair.b),
        is_a_failing: measures::is_failing(pair.a),
        is_b_failing: measures::is_failing(pair.b),
    }
}

/// Everything that does not depend on the other measures.
pub(super) fn failures_of(pairs: &[Shares]) -> Failures {
    // If all values have the same size, the signed-rank test is the sign test.
    let signs: Vec<f64> = pairs.iter().filter(|pair| pair.a != pair.b).map(|pair| (pair.b - pair.a).signum()).collect();
    let count = |is: fn(&Shares) -> bool| pairs.iter().filter(|pair| is(pair)).count();
    let mean = |share: fn(&Shares) -> f64| pairs.iter().map(share).sum::<f64>() / pairs.len().max(1) as f64;
    Failures {
        a: mean(|pair| pair.a),
        b: mean(|pair| pair.b),
        pairs_a_more: count(|pair| pair.a > pair.b),
        pairs_b_more: count(|pair| pair.b > pair.a),
        pairs_a_failing: count(|pair| pair.is_a_failing),
        pairs_b_failing: count(|pair| pair.is_b_failing),
        p_value: signed_rank(&signs).map_or(1.0, |test| test.p_value),
        p_adjusted: 1.0,
        verdict: MeasureVerdict::NoDifference,
        sentence: None,
    }
}

pub(super) fn conclude_failures(failures: &mut Failures, between: BuildPair, p_adjusted: f64, alpha: f64) {
    failures.p_adjusted = p_adjusted;
    failures.verdict = match p_adjusted <= alpha {
        false => MeasureVerdict::NoDifference,
        true if failures.pairs_b_more > failures.pairs_a_more => MeasureVerdict::Slower,
        true => MeasureVerdict::Faster,
    };
    failures.sentence = (failures.a + failures.b > 0.0).then(|| words::failures(failures, between));
}

/// Adds the first failure as an example, if there were many.
pub(super) fn add_example(failures: &mut Failures, pairs: &[Duel<'_>]) {
    let example = pairs.iter().find_map(|pair| measures::failing(pair));
    if let Some((sentence, example)) = failures.sentence.as_mut().zip(example) {
        sentence.push_str("; ");
        sentence.push_str(&example);
    }
}

/// Smallest assumed standard deviation of a repetition's logarithm.
const NOISE_MIN: f64 = 1e-4;

/// Fewer repetitions per side leave the noise unknown.
const REPETITIONS_MIN: usize = 2;

/// The difference between the repetitions, on a logarithmic scale, B over A.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Difference {
    pub(crate) effect: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// Two-sided: the larger p-value of both tests.
    pub(crate) p_value: f64,
    /// The p-value of Student's test.
    by_noise: f64,
    pub(crate) minimum_detectable: f64,
}

/// `None` if a side has fewer than two repetitions or a figure is not above zero. `level` is the two-sided error of the
/// interval and of the minimum detectable difference, `power` that of the latter; a difference below `effect_min` does
/// not count.
pub(crate) fn difference_of_repetitions(
    a: &[f64],
    b: &[f64],
    level: f64,
    power: f64,
    effect_min: f64,
) -> Option<Difference> {
    let positive = |values: &[f64]| values.iter().all(|value| *value > 0.0 && value.is_finite());
    if a.len().min(b.len()) < REPETITIONS_MIN || !positive(a) || !positive(b) {
        return None;
    }
    let logs = |values: &[f64]| values.iter().map(|value| value.ln()).collect::<Vec<_>>();
    let test = two_sample_t(&logs(a), &logs(b), NOISE_MIN, 1.0 - level)?;
    let seen = minimum_detectable_effect_two_sample(a.len() as u64, b.len() as u64, test.sd, level, power);
    // The difference is one value, with the scatter of its standard error.
    let error = test.sd * (1.0 / a.len() as f64 + 1.0 / b.len() as f64).sqrt();
    let counts = effect_beyond(effect_min, 1, error, power).unwrap_or(effect_min);
    Some(Difference {
        effect: test.estimate.value,
        low: test.estimate.interval.low,
        high: test.estimate.interval.high,
        p_value: mann_whitney(a, b).map_or(1.0, |ranks| ranks.p_value).max(test.p_value),
        by_noise: test.p_value,
        minimum_detectable: seen.unwrap_or(f64::INFINITY).max(counts),
    })
}

/// Whether this many repetitions seem to differ enough for more of them to decide.
pub(crate) fn seem_to_differ(a: &[f64], b: &[f64], error: f64, effect_min: f64) -> bool {
    let found = difference_of_repetitions(a, b, error, 0.5, effect_min);
    found.is_some_and(|found| found.by_noise <= error && found.effect.abs() >= effect_min)
}

/// Repetitions per side with which all of one side above all of the other have a p-value by ranks of at most `level`
/// (above 0): two of all possible arrangements.
pub(crate) fn repetitions_needed(level: f64) -> usize {
    let (mut count, mut ways) = (1, 2.0);
    while 2.0 / ways > level {
        count += 1;
        // C(2n, n) from the one before.
        ways *= 2.0 * (2.0 * count as f64 - 1.0) / count as f64;
    }
    count
}

// How much error each measure may spend, and when: one look at the end, or several that were fixed before the run.
//
// Looking after every few pairs and stopping at the first significant difference finds one sooner or later. A
// group-sequential design spends the stated error over its looks (Lan & DeMets 1983; with Pocock's spending, because
// the purpose of such a design is to stop early). The boundaries are those of a test that is normal at each look; the
// signed-rank test's exact p-value is compared with the same nominal levels, which its discreteness makes
// conservative.
//
// Over measures: Holm's correction with one look; with several, Bonferroni's, since Holm's order may change from look
// to look. A measure that could not be judged still counts: the number of questions was fixed before the run.
//
// The boundaries are for the planned numbers of pairs. At an early look a measure that lacks a pair is therefore not
// judged; at the last look fewer pairs only make it more conservative, because it then shares more with the earlier
// looks.

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
pub(crate) fn look_after(design: &CompareDesign, done: usize, family: usize) -> Look {
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
pub(crate) fn looks_are_planned(design: &CompareDesign) -> bool {
    let comparisons = design.comparisons().len();
    let planned = |instructions| {
        planned_looks(design.pairs, design.alpha, measures::family(comparisons, instructions)) == design.looks
    };
    design.looks.is_empty() || planned(false) || planned(true)
}

/// Whether a design looks at the data after this many pairs.
pub(crate) fn is_look(design: &CompareDesign, done: usize) -> bool {
    if design.looks.is_empty() { done == design.pairs } else { design.looks.contains(&done) }
}

/// Whether the last look can find anything at all: a few pairs cannot give a small enough p-value.
pub(crate) fn can_decide(design: &CompareDesign, family: usize) -> bool {
    p_min(design.pairs) <= look_after(design, design.pairs, family).level
}

/// The fewest pairs with which a design like this one can find anything.
pub(crate) fn pairs_min(design: &CompareDesign, family: usize) -> usize {
    let possible = |pairs: &usize| {
        let looks = if design.looks.is_empty() { Vec::new() } else { planned_looks(*pairs, design.alpha, family) };
        can_decide(&CompareDesign { pairs: *pairs, looks, ..design.clone() }, family)
    };
    (1..).find(possible).expect("the smallest p-value halves with each pair")
}

/// The looks of a sequential design of at most `pairs`: at half, three quarters and the end, leaving out those at which no
/// difference could be significant yet.
pub(crate) fn planned_looks(pairs: usize, alpha: f64, family: usize) -> Vec<usize> {
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
    use crate::result::compare::Side;

    /// With 16 pairs, B failed more in the first `b`, A in the next `a`, and neither in the others.
    fn check(b: usize, a: usize, p_value: f64, verdict: MeasureVerdict) {
        let pair = |number: usize| match number {
            number if number < b => Shares { b: 0.01, is_b_failing: true, ..Shares::default() },
            number if number < b + a => Shares { a: 0.0005, ..Shares::default() },
            _ => Shares::default(),
        };
        let mut failures = failures_of(&(0..16).map(pair).collect::<Vec<_>>());
        assert!((failures.p_value - p_value).abs() < 1e-12, "{b} {a}: {failures:?}");
        assert_eq!((failures.pairs_b_more, failures.pairs_a_more, failures.pairs_b_failing), (b, a, b));
        let p_value = failures.p_value;
        conclude_failures(&mut failures, BuildPair { one: Side::A, other: Side::B }, p_value, 0.01);
        assert_eq!(failures.verdict, verdict, "{b} {a}");
        assert_eq!(failures.sentence.is_some(), b + a > 0);
    }

    /// The values of R: `binom.test(b, a + b)$p.value`.
    #[test]
    fn pairs_that_differ_are_counted_by_direction() {
        check(0, 0, 1.0, MeasureVerdict::NoDifference);
        check(3, 0, 0.25, MeasureVerdict::NoDifference);
        check(3, 3, 1.0, MeasureVerdict::NoDifference);
        check(8, 0, 0.0078125, MeasureVerdict::Slower);
        check(9, 1, 0.021484375, MeasureVerdict::NoDifference);
        check(0, 12, 0.00048828125, MeasureVerdict::Faster);
    }

    #[test]
    fn a_clear_difference_is_certain_and_none_is_none() {
        let around = |middle: f64| [0.0, 1.0, -1.0, 0.5, -0.5, 0.2, -0.2].map(|off| middle + off);
        let clear = difference_of_repetitions(&around(1000.0), &around(1050.0), 0.001, 0.9, 0.0).unwrap();
        assert!(clear.p_value < 0.001 && clear.low > 0.04 && clear.high < 0.06, "{clear:?}");
        assert!(clear.minimum_detectable < 0.02, "{clear:?}");
        // The ranks of three cannot show it; those of more could.
        let (a, b) = (&around(1000.0)[..3], &around(1050.0)[..3]);
        assert!(
            difference_of_repetitions(a, b, 0.001, 0.9, 0.0).unwrap().p_value >= 0.1
                && seem_to_differ(a, b, 0.01, 0.01)
        );
        assert!(!seem_to_differ(a, b, 0.01, 0.06) && !seem_to_differ(a, a, 0.01, 0.0));
        let none =
            difference_of_repetitions(&[1000.0, 1001.0, 999.0], &[1001.0, 999.0, 1000.0], 0.001, 0.9, 0.0).unwrap();
        assert!(none.p_value > 0.5 && none.low < 0.0 && none.high > 0.0, "{none:?}");
    }

    #[test]
    fn as_many_are_needed_as_ranks_take() {
        // C(14, 7) = 3432, C(12, 6) = 924.
        assert_eq!([2.0 / 3432.0, 2.0 / 3433.0, 2.0 / 924.0, 0.5, 1.0].map(repetitions_needed), [7, 8, 6, 2, 1]);
        assert_eq!(repetitions_needed(0.01 / 8.0), 7);
        let apart = |count: usize| {
            difference_of_repetitions(&vec![1.0; count], &vec![2.0; count], 0.01, 0.9, 0.01).unwrap().p_value
        };
        assert!(apart(7) <= 0.01 / 8.0 && apart(6) > 0.01 / 8.0);
    }

    #[test]
    fn what_counts_as_none_is_not_detectable() {
        let detectable = |effect_min| {
            difference_of_repetitions(&[7.0; 3], &[7.0; 3], 0.01, 0.9, effect_min).unwrap().minimum_detectable
        };
        assert!(detectable(0.0) < 0.001, "{}", detectable(0.0));
        // An estimate of a true 1% is below 1% half of the time.
        assert!(detectable(0.01) > 0.01 && detectable(0.01) < 0.011, "{}", detectable(0.01));
    }

    #[test]
    fn figures_that_say_nothing_give_nothing() {
        for (a, b) in [(&[1.0][..], &[1.0][..]), (&[1.0, 2.0], &[1.0]), (&[0.0, 1.0], &[1.0, 1.0]), (&[], &[])] {
            assert_eq!(difference_of_repetitions(a, b, 0.01, 0.9, 0.01), None);
        }
        let same = difference_of_repetitions(&[7.0; 3], &[7.0; 3], 0.01, 0.9, 0.01).unwrap();
        assert!(same.p_value == 1.0 && same.effect == 0.0);
    }

    #[test]
    fn one_look_spends_all_and_several_share() {
        let single = look_after(&design(16, &[]), 16, 7);
        assert!((single.level - 0.01 / 7.0).abs() < 1e-12, "{single:?}");
        let sequential = design(32, &[16, 24, 32]);
        let levels = [16, 24, 32].map(|done| look_after(&sequential, done, 7).level);
        assert!(
            levels.iter().all(|level| *level < single.level) && levels.iter().sum::<f64>() > single.level,
            "{levels:?}"
        );
    }

    #[test]
    fn corrected_p_values_are_held_against_alpha() {
        let raw = [(0.001, false), (0.5, false), (0.002, false)];
        assert_eq!(look_after(&design(16, &[]), 16, 3).adjust(&raw), [0.003, 0.5, 0.004]);
        // One of the family that was not judged.
        assert_eq!(look_after(&design(16, &[]), 16, 4).adjust(&raw), [0.004, 1.0, 0.006]);
        let look = look_after(&design(32, &[16, 24, 32]), 16, 3);
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
            assert_eq!(looks_are_planned(&design(32, &looks)), planned, "{looks:?}");
        }
        assert_eq!(planned_looks(32, 0.01, 7), [16, 24, 32]);
        assert_eq!(planned_looks(16, 0.01, 7), [12, 16]);
        assert_eq!(planned_looks(2, 0.01, 7), [2]);
    }
}
