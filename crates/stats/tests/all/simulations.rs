//! False alarms and findings over many simulated experiments, with fixed seeds.
//!
//! Each rate is checked against its binomial scatter: three and a half standard deviations, so that the tests also pass
//! with other seeds.

#[path = "simulated/nights.rs"]
mod nights;

use nights::{Noise, night};
use stillgate_stats::*;

/// How often `hit` holds over `runs` experiments.
fn rate(seed: u64, runs: u32, mut hit: impl FnMut(&mut Random) -> bool) -> f64 {
    let mut random = Random::new(seed);
    let hits = (0..runs).filter(|_| hit(&mut random)).count();
    hits as f64 / f64::from(runs)
}

/// How far a rate may be off by chance.
fn scatter(rate: f64, runs: u32) -> f64 {
    3.5 * (rate * (1.0 - rate) / f64::from(runs)).sqrt()
}

fn normals(n: usize, shift: f64, random: &mut Random) -> Vec<f64> {
    (0..n).map(|_| shift + random.normal()).collect()
}

/// Symmetric, and without a variance.
fn cauchys(n: usize, random: &mut Random) -> Vec<f64> {
    (0..n).map(|_| random.normal() / random.normal()).collect()
}

#[test]
fn signed_rank_alarms_as_often_as_stated() {
    let runs = 4000;
    for n in [6, 10, 25, 60] {
        for rounding in [1e-9, 1.0] {
            let alarms = rate(n as u64, runs, |random| {
                let diffs: Vec<f64> =
                    cauchys(n, random).iter().map(|diff| (diff / rounding).round() * rounding).collect();
                signed_rank(&diffs).unwrap().p_value <= 0.05
            });
            assert!(alarms <= 0.05 + scatter(0.05, runs), "{n} {rounding}: {alarms}");
            if n >= 25 && rounding < 1.0 {
                assert!(alarms >= 0.045 - scatter(0.05, runs), "{n}: {alarms}, too shy");
            }
        }
    }
}

#[test]
fn mann_whitney_alarms_as_often_as_stated() {
    let runs = 1500;
    for (m, n, rounding) in [(8, 8, 1e-9), (12, 20, 1.0), (60, 70, 1e-9)] {
        let alarms = rate(m as u64, runs, |random| {
            let mut draw = |n| -> Vec<f64> {
                cauchys(n, random).iter().map(|value| (value / rounding).round() * rounding).collect()
            };
            mann_whitney(&draw(m), &draw(n)).unwrap().p_value <= 0.05
        });
        assert!(alarms <= 0.05 + scatter(0.05, runs), "{m} {n}: {alarms}");
    }
}

#[test]
fn intervals_cover_as_often_as_stated() {
    let runs = 3000;
    let covers = |interval: Interval| interval.low <= 0.0 && 0.0 <= interval.high;
    for n in [10, 30, 70] {
        let walsh = rate(1, runs, |random| covers(hodges_lehmann(&cauchys(n, random), 0.9).unwrap().interval));
        assert!(walsh >= 0.9 - scatter(0.9, runs), "Hodges-Lehmann, {n}: {walsh}");
        let t = rate(2, runs, |random| covers(paired_t(&normals(n, 0.0, random), 0.9).unwrap().estimate.interval));
        assert!((t - 0.9).abs() <= scatter(0.9, runs), "t, {n}: {t}");
        let middle = rate(3, runs, |random| {
            let mut values = cauchys(n, random);
            values.sort_by(f64::total_cmp);
            covers(quantile_interval(&values, 0.5, 0.9).unwrap())
        });
        assert!(middle >= 0.9 - scatter(0.9, runs), "median, {n}: {middle}");
    }
}

#[test]
fn quantile_interval_covers_the_tail_of_latencies() {
    let (runs, true_p99) = (1500, -(0.01_f64.ln()));
    let covered = rate(5, runs, |random| {
        let mut values: Vec<f64> = (0..600).map(|_| random.exponential(1.0)).collect();
        values.sort_by(f64::total_cmp);
        let interval = quantile_interval(&values, 0.99, 0.95).unwrap();
        interval.low <= true_p99 && true_p99 <= interval.high
    });
    assert!(covered >= 0.95 - scatter(0.95, runs), "{covered}");
}

#[test]
fn bca_covers_the_mean_of_skewed_values() {
    let (runs, mean) = (400, |sample: &[f64]| sample.iter().sum::<f64>() / sample.len() as f64);
    let covered = rate(6, runs, |random| {
        let values: Vec<f64> = (0..40).map(|_| random.exponential(1.0)).collect();
        let interval = bca(&values, mean, 400, 0.9, random).unwrap().interval;
        interval.low <= 1.0 && 1.0 <= interval.high
    });
    // The bootstrap is exact for large samples only: a few percent are lost at 40.
    assert!(covered >= 0.86 - scatter(0.9, runs) && covered <= 0.9 + scatter(0.9, runs), "{covered}");
}

#[test]
fn looking_often_costs_no_more_than_alpha() {
    let runs = 6000;
    for spending in [SpendingFunction::OBrienFleming, SpendingFunction::Pocock] {
        let looks = [12_usize, 20, 40, 60];
        let information = looks.map(|look| look as f64);
        let bounds = boundaries(&information, 0.05, spending).unwrap();
        let stopped = |random: &mut Random, shift: f64, test: &dyn Fn(&[f64], usize) -> bool| {
            let diffs = normals(60, shift, random);
            looks.iter().enumerate().any(|(index, &look)| test(&diffs[..look], index))
        };
        let by_z = |diffs: &[f64], index: usize| {
            diffs.iter().sum::<f64>().abs() / (diffs.len() as f64).sqrt() >= bounds[index]
        };
        let alarms = rate(11, runs, |random| stopped(random, 0.0, &by_z));
        assert!((alarms - 0.05).abs() <= scatter(0.05, runs), "{spending:?}: {alarms}");
        let found = rate(12, runs, |random| stopped(random, 0.35, &by_z));
        let expected: f64 = crossing_probability(&information, &bounds, 0.35).unwrap().iter().sum();
        assert!((found - expected).abs() <= scatter(expected, runs), "{spending:?}: {found}, not {expected}");
        // As the laboratory uses it: the exact test's p-value compared with the look's own level.
        let levels = nominal_p(&bounds);
        let by_rank = |diffs: &[f64], index: usize| signed_rank(diffs).unwrap().p_value <= levels[index];
        let alarms = rate(13, runs / 3, |random| stopped(random, 0.0, &by_rank));
        assert!(alarms <= 0.05 + scatter(0.05, runs / 3), "{spending:?} of ranks: {alarms}");
    }
}

#[test]
fn e_divisive_alarms_as_often_as_stated() {
    let runs = 500;
    for (seed, rounding) in [(21, 1e-9), (22, 1.0)] {
        let alarms = rate(seed, runs, |random| {
            let series: Vec<f64> =
                normals(24, 0.0, random).iter().map(|value| (value / rounding).round() * rounding).collect();
            !e_divisive(&series, 0.05, 4, 59, random).unwrap().is_empty()
        });
        assert!(alarms <= 0.05 + scatter(0.05, runs), "{rounding}: {alarms}");
        assert!(alarms > 0.005, "{rounding}: {alarms}, too shy");
    }
}

#[test]
fn e_divisive_finds_a_step_near_where_it_is() {
    let runs = 100;
    let found = rate(23, runs, |random| {
        let series = [normals(20, 0.0, random), normals(20, 3.0, random)].concat();
        let changes = e_divisive(&series, 0.05, 4, 59, random).unwrap();
        changes.iter().any(|change| change.at.abs_diff(20) <= 1)
    });
    assert!(found >= 0.9, "{found}");
}

#[test]
fn the_minimum_detectable_effect_is_found_as_often_as_promised() {
    let runs = 3000;
    for n in [6, 8, 10, 20, 30, 60] {
        let effect = minimum_detectable_effect_signed_rank(n, 1.0, 0.05, 0.8).unwrap();
        let found = rate(n, runs, |random| signed_rank(&normals(n as usize, effect, random)).unwrap().p_value <= 0.05);
        // The efficiency holds for large samples; at small ones it is off by at most 3% here.
        assert!((found - 0.8).abs() <= 0.03 + scatter(0.8, runs), "signed rank, {n}: {found}");
        let effect = minimum_detectable_effect(n, 1.0, 0.05, 0.8).unwrap();
        let found =
            rate(n + 100, runs, |random| paired_t(&normals(n as usize, effect, random), 0.95).unwrap().p_value <= 0.05);
        assert!((found - 0.8).abs() <= scatter(0.8, runs), "t, {n}: {found}");
    }
}

#[test]
fn nights_without_a_change_are_quiet_and_a_step_is_found() {
    let quiet = rate(1, 300, |random| night(random, Noise::Outliers(0.02), [0.0, 0.0]) != [false, false]);
    assert!(quiet <= 0.01 + scatter(0.01, 300), "{quiet}");
    let step = rate(2, 60, |random| night(random, Noise::Outliers(0.02), [0.05, 0.05])[0]);
    assert!(step >= 0.95, "{step}");
    let small = rate(3, 60, |random| night(random, Noise::Outliers(0.01), [0.02, 0.02])[0]);
    assert!(small >= 0.9, "{small}");
}

#[test]
fn nights_of_measurements_with_states_are_quiet() {
    // The nightly job runs 2,000.
    let runs = std::env::var("STILLGATE_NIGHTS").map_or(300, |runs| runs.parse().unwrap());
    for noise in [Noise::States(0.5), Noise::States(0.15), Noise::LastingStates] {
        let quiet = rate(4, runs, |random| night(random, noise, [0.0, 0.0]) != [false, false]);
        println!("{noise:?}: {quiet}");
        assert!(quiet <= 0.01 + scatter(0.01, runs), "{noise:?}: {quiet}");
    }
}
