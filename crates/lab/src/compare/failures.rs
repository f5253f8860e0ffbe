//! Failed requests as a separate measure: zeros have no ratio, and failing quickly is not speed.
//!
//! The pairs in which the shares differ are counted by direction and judged by the exact sign test: requests of one
//! start fail together, so a start is one observation however many of its requests failed.

use super::duel::Duel;
use super::{measures, words};
use crate::result::compare::{BuildPair, Failures, MeasureVerdict};
use stillgate_stats::signed_rank;

/// The failed requests of one pair.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Shares {
    /// Share of its requests that failed, 0 to 1.
    pub(super) a: f64,
    pub(super) b: f64,
    /// Whether there are too many for other measures to be valid.
    pub(super) is_a_failing: bool,
    pub(super) is_b_failing: bool,
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
pub(super) fn of(pairs: &[Shares]) -> Failures {
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

pub(super) fn conclude(failures: &mut Failures, between: BuildPair, p_adjusted: f64, alpha: f64) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::compare::Side;

    /// With 16 pairs, B failed more in the first `b`, A in the next `a`, and neither in the others.
    fn check(b: usize, a: usize, p_value: f64, verdict: MeasureVerdict) {
        let pair = |number: usize| match number {
            number if number < b => Shares { b: 0.01, is_b_failing: true, ..Shares::default() },
            number if number < b + a => Shares { a: 0.0005, ..Shares::default() },
            _ => Shares::default(),
        };
        let mut failures = of(&(0..16).map(pair).collect::<Vec<_>>());
        assert!((failures.p_value - p_value).abs() < 1e-12, "{b} {a}: {failures:?}");
        assert_eq!((failures.pairs_b_more, failures.pairs_a_more, failures.pairs_b_failing), (b, a, b));
        let p_value = failures.p_value;
        conclude(&mut failures, BuildPair { one: Side::A, other: Side::B }, p_value, 0.01);
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
}
