//! Properties that hold for every input, and the results of inputs without an answer.

use proptest::prelude::*;
use stillgate_stats::*;

/// Values of few kinds, so that ties and zeros occur.
fn coarse(len: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec((-6_i32..=6).prop_map(f64::from), len)
}

fn smooth(len: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(-1e6_f64..1e6, len)
}

fn mean(sample: &[f64]) -> f64 {
    sample.iter().sum::<f64>() / sample.len() as f64
}

/// The two-sided p-value by trying every combination of signs.
fn signed_rank_by_enumeration(diffs: &[f64]) -> f64 {
    let moved: Vec<f64> = diffs.iter().copied().filter(|&diff| diff != 0.0).collect();
    let rank = |value: f64| {
        let below = moved.iter().filter(|other| other.abs() < value.abs()).count();
        let equal = moved.iter().filter(|other| other.abs() == value.abs()).count();
        2 * below + equal + 1
    };
    let ranks: Vec<usize> = moved.iter().map(|&value| rank(value)).collect();
    let sum = |positive: &dyn Fn(usize) -> bool| -> usize {
        ranks.iter().enumerate().filter(|&(index, _)| positive(index)).map(|(_, rank)| rank).sum()
    };
    let observed = sum(&|index| moved[index] > 0.0);
    let (mut low, mut high) = (0_u32, 0_u32);
    for signs in 0_u32..1 << moved.len() {
        let one = sum(&|index| signs >> index & 1 == 1);
        low += u32::from(one <= observed);
        high += u32::from(one >= observed);
    }
    (2.0 * f64::from(low.min(high)) / f64::from(1_u32 << moved.len())).min(1.0)
}

proptest! {
    #[test]
    fn signed_rank_is_the_enumeration(diffs in coarse(1..=10)) {
        let got = signed_rank(&diffs).unwrap();
        prop_assert!(got.exact);
        prop_assert!((got.p_value - signed_rank_by_enumeration(&diffs)).abs() < 1e-12);
    }

    #[test]
    fn signed_rank_does_not_mind_the_sign_or_the_scale(diffs in coarse(1..=80)) {
        let got = signed_rank(&diffs).unwrap();
        let other: Vec<f64> = diffs.iter().map(|diff| -8.0 * diff).collect();
        let mirrored = signed_rank(&other).unwrap();
        prop_assert!((got.p_value - mirrored.p_value).abs() < 1e-12);
        let moved = diffs.iter().filter(|&&diff| diff != 0.0).count() as f64;
        prop_assert_eq!(got.w_plus + mirrored.w_plus, moved * (moved + 1.0) / 2.0);
    }

    #[test]
    fn hodges_lehmann_is_the_median_of_the_means(diffs in prop_oneof![coarse(6..=30), smooth(6..=30)]) {
        let got = hodges_lehmann(&diffs, 0.9).unwrap();
        let means: Vec<f64> = (0..diffs.len())
            .flat_map(|i| (i..diffs.len()).map(move |j| (i, j)))
            .map(|(i, j)| 0.5 * diffs[i] + 0.5 * diffs[j])
            .collect();
        prop_assert!((got.value - median(&means).unwrap()).abs() <= 1e-9);
        prop_assert!(means.contains(&got.interval.low) && means.contains(&got.interval.high));
        prop_assert!(got.interval.low <= got.value && got.value <= got.interval.high);
    }

    #[test]
    fn hodges_lehmann_excludes_what_signed_rank_rejects(diffs in smooth(6..=40), shift in -1e6_f64..1e6) {
        let shifted: Vec<f64> = diffs.iter().map(|diff| diff - shift).collect();
        let interval = hodges_lehmann(&shifted, 0.95).unwrap().interval;
        let rejected = signed_rank(&shifted).unwrap().p_value <= 0.05;
        prop_assert_eq!(rejected, interval.low > 0.0 || interval.high < 0.0);
    }

    #[test]
    fn mann_whitney_is_symmetric(a in coarse(1..=60), b in coarse(1..=60)) {
        let (there, back) = (mann_whitney(&a, &b).unwrap(), mann_whitney(&b, &a).unwrap());
        prop_assert_eq!(there.u + back.u, (a.len() * b.len()) as f64);
        prop_assert!((there.p_value - back.p_value).abs() < 1e-12);
        prop_assert!((there.superiority + back.superiority - 1.0).abs() < 1e-12);
        let above = a.iter().flat_map(|x| b.iter().map(move |y| if y > x { 1.0 } else if y == x { 0.5 } else { 0.0 }));
        prop_assert_eq!(there.u, above.sum::<f64>());
        prop_assert!(there.p_value > 0.0 && there.p_value <= 1.0);
    }

    #[test]
    fn holm_is_monotone_and_conservative(mut p in prop::collection::vec(0.0_f64..=1.0, 0..20)) {
        let adjusted = holm(&p);
        prop_assert_eq!(adjusted.len(), p.len());
        for (raw, adjusted) in p.iter().zip(&adjusted) {
            prop_assert!(adjusted >= raw && *adjusted <= 1.0);
            prop_assert!(*adjusted <= raw * p.len() as f64 * (1.0 + 1e-12));
        }
        p.sort_by(f64::total_cmp);
        prop_assert!(holm(&p).is_sorted());
    }

    #[test]
    fn quantile_ranks_cover(count in 1_u64..150, q in 0.01_f64..0.99, confidence in 0.5_f64..0.999) {
        // Plain sums of the binomial by its recurrence, which is precise enough for counts so small.
        let mut mass = (1.0 - q).powi(count as i32);
        let mut below = vec![0.0];
        for k in 0..=count {
            below.push(below[k as usize] + mass);
            mass *= (count - k) as f64 / (k + 1) as f64 * q / (1.0 - q);
        }
        let tail = (1.0 - confidence) / 2.0;
        match quantile_ranks(count, q, confidence) {
            Some((low, high)) => {
                prop_assert!(1 <= low && low < high && high <= count);
                let coverage = below[high as usize] - below[low as usize];
                prop_assert!(coverage >= confidence - 1e-10, "{} of {}", coverage, confidence);
                // One rank further inside would err too often on either side.
                prop_assert!(below[low as usize + 1] > tail - 1e-10);
                prop_assert!(1.0 - below[high as usize - 1] > tail - 1e-10);
            }
            None => prop_assert!(below[1] > tail - 1e-10 || 1.0 - below[count as usize] > tail - 1e-10),
        }
    }

    #[test]
    fn quantiles_rise_and_stay_inside(mut values in smooth(1..=40), q in 0.0_f64..=1.0, p in 0.0_f64..=1.0) {
        values.sort_by(f64::total_cmp);
        let at = |q: f64| quantile(&values, q).unwrap();
        prop_assert!(at(q.min(p)) <= at(q.max(p)) + 1e-9);
        prop_assert!(at(q) >= values[0] && at(q) <= values[values.len() - 1]);
        prop_assert_eq!(at(0.5), median(&values).unwrap());
    }

    #[test]
    fn bca_is_the_seeds(values in smooth(2..=20), seed: u64) {
        let one = bca(&values, mean, 99, 0.9, &mut Random::new(seed));
        prop_assert_eq!(one, bca(&values, mean, 99, 0.9, &mut Random::new(seed)));
        if let Some(one) = one {
            prop_assert!(one.interval.low <= one.interval.high);
            prop_assert_eq!(one.value, mean(&values));
        }
    }

    #[test]
    fn log_ratios_turn_with_the_order(a in prop::collection::vec(1e-300_f64..1e300, 1..10)) {
        let b: Vec<f64> = a.iter().map(|value| value * 1.05).collect();
        let (there, back) = (log_ratios(&a, &b).unwrap(), log_ratios(&b, &a).unwrap());
        for (there, back) in there.iter().zip(back) {
            prop_assert!((there - 1.05_f64.ln()).abs() < 1e-10 && *there == -back);
        }
    }

    #[test]
    fn power_and_effect_are_inverse(n in 2_u64..300, sd in 0.001_f64..100.0, alpha in 0.001_f64..0.2, more in 0.1_f64..0.9) {
        let goal = alpha + (0.999 - alpha) * more;
        let effect = minimum_detectable_effect(n, sd, alpha, goal).unwrap();
        prop_assert!((power(n, sd, effect, alpha) - goal).abs() < 1e-8);
        prop_assert!(power(n, sd, effect * 1.5, alpha) > goal);
        prop_assert!(power(n + 1, sd, effect, alpha) > goal);
        if let Some(signed) = minimum_detectable_effect_signed_rank(n, sd, alpha, goal) {
            prop_assert!(signed > effect);
        }
    }

    #[test]
    fn pairs_needed_are_the_fewest(effect in 0.05_f64..5.0, goal in 0.1_f64..0.99) {
        let pairs = pairs_needed(1.0, effect, 0.05, goal).unwrap();
        prop_assert!(power(pairs, 1.0, effect, 0.05) >= goal);
        prop_assert!(pairs == 2 || power(pairs - 1, 1.0, effect, 0.05) < goal);
    }

    #[test]
    fn bounds_spend_alpha(gaps in prop::collection::vec(0.1_f64..3.0, 1..8), alpha in 0.001_f64..0.2, pocock: bool) {
        let information: Vec<f64> = gaps
            .iter()
            .scan(0.0, |sum, gap| {
                *sum += gap;
                Some(*sum)
            })
            .collect();
        let spending = if pocock { SpendingFunction::Pocock } else { SpendingFunction::OBrienFleming };
        let bounds = boundaries(&information, alpha, spending).unwrap();
        let spent: f64 = crossing_probability(&information, &bounds, 0.0).unwrap().iter().sum();
        prop_assert!((spent - alpha).abs() < 1e-9, "{} of {}", spent, alpha);
        // The unit of information does not matter.
        let other: Vec<f64> = information.iter().map(|information| information * 1e6).collect();
        for (one, two) in bounds.iter().zip(boundaries(&other, alpha, spending).unwrap()) {
            prop_assert!((one - two).abs() < 1e-8 || one == &two);
        }
        for (bound, p) in bounds.iter().zip(nominal_p(&bounds)) {
            prop_assert!(p <= alpha + 1e-12 && (p == 0.0) == (*bound > 38.0));
        }
    }
}

#[test]
fn what_is_not_finite_has_no_answer() {
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let sample = [1.0, bad, 2.0, 3.0, 4.0, 5.0, 6.0];
        let good = [1.0, 2.0, 3.0];
        assert_eq!(median(&sample), None);
        assert_eq!(signed_rank(&sample), None);
        assert_eq!(hodges_lehmann(&sample, 0.9), None);
        assert_eq!(paired_t(&sample, 0.9), None);
        assert_eq!(log_ratios(&sample, &sample), None);
        assert_eq!(mann_whitney(&sample, &good), None);
        assert_eq!(mann_whitney(&good, &sample), None);
        assert_eq!(bca(&sample, mean, 100, 0.9, &mut Random::new(1)), None);
        assert_eq!(bca(&good, |_| bad, 100, 0.9, &mut Random::new(1)), None);
        assert_eq!(quantile(&[1.0, bad], 1.0), None);
        assert_eq!((quantile(&[bad, 1.0], 0.5), quantile(&[1.0, bad], 0.5)), (None, None));
        assert_eq!(quantile(&[1.0, bad], 0.0), Some(1.0), "read from the first value alone");
        assert_eq!(quantile(&good, bad), None);
        assert!(power(5, bad, 1.0, 0.05).is_nan() && power(5, 1.0, bad, 0.05).is_nan());
        assert!(power(5, 1.0, 1.0, bad).is_nan());
        assert_eq!(minimum_detectable_effect(5, bad, 0.05, 0.8), None);
        assert_eq!(minimum_detectable_effect_signed_rank(9, bad, 0.05, 0.8), None);
        assert_eq!(pairs_needed(1.0, bad, 0.05, 0.8), None);
        assert_eq!(boundaries(&[1.0, bad], 0.05, SpendingFunction::Pocock), None);
        assert_eq!(crossing_probability(&[1.0, 2.0], &[2.0, 2.0], bad), None);
    }
    assert_eq!(crossing_probability(&[1.0, 2.0], &[2.0, f64::NAN], 0.0), None);
    assert_eq!(holm(&[0.01, f64::NAN, -1.0, 2.0]), [0.04, 1.0, 1.0, 1.0]);
}

#[test]
fn levels_outside_their_range_have_no_answer() {
    let diffs = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
    for level in [0.0, 1.0, -0.1, 1.1, f64::NAN] {
        assert_eq!(hodges_lehmann(&diffs, level), None);
        assert_eq!(paired_t(&diffs, level), None);
        assert_eq!(bca(&diffs, mean, 1000, level, &mut Random::new(1)), None);
        assert_eq!(quantile_ranks(100, level, 0.9), None);
        assert_eq!(quantile_ranks(100, 0.5, level), None);
        assert_eq!(minimum_detectable_effect(9, 1.0, level, 0.8), None);
        assert_eq!(minimum_detectable_effect(9, 1.0, 0.05, level), None);
        assert_eq!(pairs_needed(1.0, 1.0, level, 0.8), None);
        assert_eq!(boundaries(&[1.0], level, SpendingFunction::Pocock), None);
    }
}

#[test]
fn too_little_to_say() {
    assert_eq!((median(&[]), quantile(&[], 0.5)), (None, None));
    assert_eq!((signed_rank(&[]), paired_t(&[], 0.9), mann_whitney(&[], &[1.0])), (None, None, None));
    assert_eq!((paired_t(&[1.0], 0.9), log_ratios(&[], &[]), log_ratios(&[1.0], &[1.0, 2.0])), (None, None, None));
    assert_eq!(log_ratios(&[0.0], &[1.0]), None);
    assert_eq!(holm(&[]), [0.0; 0]);
    assert_eq!(bca(&[1.0], mean, 1000, 0.9, &mut Random::new(1)), None);
    assert_eq!(bca(&[1.0, 2.0, 4.0], mean, 39, 0.95, &mut Random::new(1)), None);
    assert!(bca(&[1.0, 2.0, 4.0], mean, 40, 0.95, &mut Random::new(1)).is_some());
    // All signs alike have the chance 2 in 2^n.
    assert_eq!(hodges_lehmann(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.95), None);
    assert!(hodges_lehmann(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.95).is_some());
    assert_eq!(minimum_detectable_effect_signed_rank(5, 1.0, 0.05, 0.8), None);
    assert!(minimum_detectable_effect_signed_rank(6, 1.0, 0.05, 0.8).is_some());
    assert_eq!(minimum_detectable_effect(1, 1.0, 0.05, 0.8), None);
    assert!(power(1, 1.0, 1.0, 0.05).is_nan());
    assert_eq!(pairs_needed(1.0, 0.0, 0.05, 0.8), None);
    assert_eq!(pairs_needed(1.0, 1e-9, 0.05, 0.8), None);
    assert_eq!(boundaries(&[], 0.05, SpendingFunction::Pocock), None);
    assert_eq!(boundaries(&[1.0, 1.0], 0.05, SpendingFunction::Pocock), None);
    assert_eq!(boundaries(&[0.0001, 1.0], 0.05, SpendingFunction::Pocock), None);
    assert_eq!(quantile_ranks(0, 0.5, 0.9), None);
    assert_eq!(quantile_ranks(u64::MAX, 0.5, 0.9), None);
    assert_eq!((quantile_ranks(3687, 0.999, 0.95), quantile_ranks(3688, 0.999, 0.95).is_some()), (None, true));
}

#[test]
fn constants_and_extremes() {
    let test = signed_rank(&[0.0; 9]).unwrap();
    assert_eq!((test.w_plus, test.p_value), (0.0, 1.0));
    let constant = paired_t(&[2.0; 5], 0.95).unwrap();
    assert_eq!((constant.t, constant.p_value, constant.sd), (f64::INFINITY, 0.0, 0.0));
    assert_eq!((constant.estimate.interval.low, constant.estimate.interval.high), (2.0, 2.0));
    assert_eq!(paired_t(&[0.0; 5], 0.95).unwrap().p_value, 1.0);
    assert_eq!(paired_t(&[1e300, -1e300], 0.95), None);
    let still = bca(&[3.0; 8], mean, 100, 0.9, &mut Random::new(1)).unwrap();
    assert_eq!((still.value, still.interval), (3.0, Interval { low: 3.0, high: 3.0 }));
    let same = mann_whitney(&[1.0; 100], &[1.0; 70]).unwrap();
    assert_eq!((same.p_value, same.superiority), (1.0, 0.5));
    let apart: Vec<f64> = (0..100_000).map(f64::from).collect();
    let above: Vec<f64> = apart.iter().map(|value| value + 1e6).collect();
    let far = mann_whitney(&apart, &above).unwrap();
    assert_eq!((far.p_value, far.superiority), (0.0, 1.0));
    let center = hodges_lehmann(&apart, 0.99).unwrap();
    assert!((center.value - 49_999.5).abs() < 1e-6 && center.interval.low > 49_000.0);
    assert_eq!(quantile(&[-f64::MAX, f64::MAX], 0.5), Some(0.0));
    assert_eq!(quantile(&[0.1; 9], 0.3), Some(0.1));
    // Half of 2^40 values; the normal approximation there is right to the tenth digit.
    let (low, high) = quantile_ranks(1 << 40, 0.5, 0.95).unwrap();
    assert_eq!(low + high, (1 << 40) + 1);
    assert!(((high - low) as f64 / 2.0 / 2_f64.powi(19) - 1.959964).abs() < 1e-4);
    assert_eq!(power(10, 0.0, 0.1, 0.05), 1.0);
    assert_eq!(power(10, 1.0, 0.0, 0.05), 0.05);
    assert_eq!(minimum_detectable_effect(10, 0.0, 0.05, 0.8), Some(0.0));
    assert_eq!(pairs_needed(0.0, 0.1, 0.05, 0.8), Some(2));
    assert_eq!(boundaries(&[0.001, 1.0], 0.05, SpendingFunction::OBrienFleming).unwrap()[0], f64::INFINITY);
}
