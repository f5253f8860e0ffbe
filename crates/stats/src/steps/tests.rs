//! The posterior compared with brute force, and its answers for small planted rows.

use super::chain::Noise;
use super::*;
use crate::random::Random;

/// The posterior by its definition: the sum over each placement of none, one or two steps, each level and each noise.
fn enumerated(readings: &[Reading], prior: &StepPrior, grid: &Grid) -> (f64, f64, Vec<f64>) {
    let total: f64 = prior.weights.iter().sum();
    let weights: Vec<f64> = prior.weights.iter().map(|weight| weight / total).collect();
    let count = weights.len();
    let pairs: f64 =
        (0..count).flat_map(|k| (k + 1..count).map(move |l| (k, l))).map(|(k, l)| weights[k] * weights[l]).sum();
    let density = |value: f64, Noise { scale, degrees }: Noise| {
        let front = libm::lgamma((degrees + 1.0) / 2.0) - libm::lgamma(degrees / 2.0);
        front.exp() / ((degrees * std::f64::consts::PI).sqrt() * scale)
            * (1.0 + (value / scale).powi(2) / degrees).powf(-(degrees + 1.0) / 2.0)
    };
    let least = ((prior.step_min / grid.cell).round()).max(1.0);
    let jump = |from: usize, to: usize| {
        let over = to.abs_diff(from) as f64 - least;
        [(0.7, 0.03), (0.3, 0.25)]
            .iter()
            .map(|(share, length): &(f64, f64)| {
                let kept = (-grid.cell / length).exp();
                if over < 0.0 { 0.0 } else { share * (1.0 - kept) / 2.0 * kept.powf(over) }
            })
            .sum::<f64>()
    };
    let likelihood = |levels: &dyn Fn(usize) -> usize, noise: Noise| {
        readings
            .iter()
            .map(|reading| density(reading.value - grid.level(levels(reading.place)), noise))
            .product::<f64>()
    };
    let (mut none, mut several, mut steps) = (0.0, 0.0, vec![0.0; count]);
    let mut all = 0.0;
    for &noise in &grid.noises {
        for a in 0..grid.cells {
            let mass = prior.none * likelihood(&|_| a, noise);
            none += mass;
            all += mass;
            for b in 0..grid.cells {
                for k in 0..count {
                    let one = (1.0 - prior.none - prior.several) * weights[k] * jump(a, b);
                    let mass = one * likelihood(&|place| if place > k { b } else { a }, noise);
                    steps[k] += mass;
                    all += mass;
                    for l in k + 1..count {
                        for c in 0..grid.cells {
                            let two = prior.several * weights[k] * weights[l] / pairs * jump(a, b) * jump(b, c);
                            let level = |place: usize| {
                                if place > l {
                                    c
                                } else if place > k {
                                    b
                                } else {
                                    a
                                }
                            };
                            let mass = if two > 0.0 { two * likelihood(&level, noise) } else { 0.0 };
                            several += mass;
                            steps[k] += mass;
                            steps[l] += mass;
                            all += mass;
                        }
                    }
                }
            }
        }
    }
    (none / all, several / all, steps.iter().map(|step| step / all).collect())
}

fn reading(place: usize, value: f64) -> Reading {
    Reading { place, value }
}

fn prior(weights: &[f64]) -> StepPrior {
    StepPrior { weights: weights.to_vec(), step_min: 0.01, none: 0.3, several: 0.1 }
}

#[test]
fn posterior_is_that_of_brute_force() {
    let noises = [(0.02, 3.0), (0.035, 11.0)].map(|(scale, degrees)| Noise { scale, degrees });
    let grid = Grid { low: -0.08, cell: 0.012, cells: 14, noises: noises.to_vec() };
    let mut random = Random::new(5);
    for case in 0..12 {
        let weights: Vec<f64> = (0..2 + case % 4).map(|_| 1.0 + 3.0 * random.uniform().round()).collect();
        let places = weights.len() as u64 + 1;
        let mut readings = vec![reading(0, 0.0), reading(weights.len(), 0.03 * random.normal())];
        for _ in 0..4 + case % 3 {
            readings.push(reading(random.below(places) as usize, 0.01 + 0.03 * random.normal()));
        }
        let prior = prior(&weights);
        let got = on_grid(&readings, vec![0.0; readings.len()], &prior, grid.clone()).unwrap();
        let (none, several, steps) = enumerated(&readings, &prior, &grid);
        let close = |got: f64, want: f64| assert!((got - want).abs() < 1e-10, "{case}: {got}, not {want}");
        close(got.none, none);
        close(got.several, several);
        got.steps.iter().zip(&steps).for_each(|(got, want)| close(*got, *want));
        close(got.steps.iter().sum::<f64>(), 1.0 - none + several);
    }
}

/// Readings of places in turn, with a step of 3% after `step`.
fn rounds(rounds: usize, places: usize, step: Option<usize>, noise: f64, random: &mut Random) -> Vec<Reading> {
    let level = |place: usize| if step.is_some_and(|step| place > step) { 0.03 } else { 0.0 };
    (0..rounds * places).map(|at| reading(at % places, level(at % places) + noise * random.normal())).collect()
}

#[test]
fn a_clear_step_is_found_with_its_size() {
    let mut random = Random::new(1);
    let known = steps(&rounds(20, 6, Some(2), 0.01, &mut random), &prior(&[1.0; 5])).unwrap();
    assert!(known.steps[2] > 0.999 && known.none < 1e-6, "{:?}", known.steps);
    assert_eq!(conclude(&known, &[true; 6], 0.95), Conclusion::Found(vec![(2, 3)]));
    let size = known.size(2, 0.95).unwrap();
    assert!(size.interval.low < 0.03 && 0.03 < size.interval.high, "{size:?}");
    assert!((size.value - 0.03).abs() < 0.004 && (known.noise - 0.01).abs() < 0.002, "{size:?} {}", known.noise);
}

#[test]
fn no_step_is_said_so() {
    let mut random = Random::new(2);
    let known = steps(&rounds(60, 4, None, 0.01, &mut random), &prior(&[1.0; 3])).unwrap();
    assert_eq!(conclude(&known, &[true; 4], 0.95), Conclusion::None, "{}", known.none);
}

#[test]
fn two_steps_that_undo_each_other_are_both_found() {
    let mut random = Random::new(3);
    let readings: Vec<Reading> = rounds(25, 7, Some(1), 0.01, &mut random)
        .iter()
        .map(|read| reading(read.place, if read.place > 4 { read.value - 0.03 } else { read.value }))
        .collect();
    let known = steps(&readings, &prior(&[1.0; 6])).unwrap();
    assert!(known.several > 0.99, "{}", known.several);
    assert_eq!(conclude(&known, &[true; 7], 0.95), Conclusion::Found(vec![(1, 2), (4, 5)]));
}

#[test]
fn readings_without_scatter_are_a_plain_bisection() {
    // Instructions, for example, and a step of twice the value.
    let readings = [0.0, 0.0, 0.0, 0.0, 0.7, 0.7].iter().enumerate();
    let readings: Vec<Reading> = readings.flat_map(|(place, value)| [reading(place, *value); 2]).collect();
    let known = steps(&readings, &prior(&[1.0; 5])).unwrap();
    assert!(known.steps[3] > 0.99, "{:?}", known.steps);
    assert!((known.size(3, 0.9).unwrap().value - 0.7).abs() < 0.02);
}

#[test]
fn one_outlier_is_not_a_step() {
    let mut random = Random::new(4);
    let mut readings = rounds(10, 4, None, 0.005, &mut random);
    readings[6].value += 0.5;
    let known = steps(&readings, &prior(&[1.0; 3])).unwrap();
    assert!(known.none > 0.8 && known.noise < 0.01, "{} {}", known.none, known.noise);
}

#[test]
fn drift_is_taken_out() {
    let mut random = Random::new(6);
    // The machine slows down by twenty times the noise.
    let mut readings = rounds(12, 6, Some(3), 0.005, &mut random);
    let count = readings.len() as f64;
    for (at, reading) in readings.iter_mut().enumerate() {
        reading.value += 0.1 * at as f64 / count;
    }
    let known = steps(&readings, &prior(&[1.0; 5])).unwrap();
    assert!(known.drift[0] < -0.03 && known.drift[71] > 0.03, "{:?}", known.drift);
    assert!(known.noise < 0.01 && known.steps[3] > 0.99, "{} {:?}", known.noise, known.steps);
}

#[test]
fn what_says_nothing_gives_nothing() {
    let sound = [reading(0, 1.0), reading(2, 1.0), reading(2, 1.1)];
    assert!(steps(&sound, &prior(&[1.0, 1.0])).is_some());
    let check = |readings: &[Reading], prior: &StepPrior| assert!(steps(readings, prior).is_none(), "{readings:?}");
    check(&sound[..2], &prior(&[1.0, 1.0]));
    check(&sound, &prior(&[1.0, 1.0, 1.0]));
    check(&sound, &prior(&[0.0, 0.0]));
    check(&sound, &prior(&[1.0, f64::NAN]));
    check(&[sound[0], sound[1], reading(2, f64::NAN)], &prior(&[1.0, 1.0]));
    check(&[sound[0], sound[1], reading(3, 1.0)], &prior(&[1.0, 1.0]));
    check(&sound, &StepPrior { step_min: 0.0, ..prior(&[1.0, 1.0]) });
    check(&sound, &StepPrior { none: 0.95, ..prior(&[1.0, 1.0]) });
}

#[test]
fn the_costly_place_is_read_only_where_it_tells_more() {
    let readings = [(0, 0.0), (8, 0.03), (8, 0.031), (0, 0.001), (0, -0.01), (8, 0.02)].map(|(p, v)| reading(p, v));
    let known = steps(&readings, &prior(&[1.0; 8])).unwrap();
    assert_eq!(choose(&known, |_| Some(1.0)), Some(4));
    assert!(matches!(choose(&known, |place| (place != 4).then_some(1.0)), Some(3 | 5)));
    assert_eq!(choose(&known, |place| Some(if place == 2 { 1.0 } else { 5.0 })), Some(2));
    assert_eq!(choose(&known, |_| None), None);
}

#[test]
fn nothing_is_only_said_after_a_look_inside() {
    let mut random = Random::new(8);
    let ends: Vec<Reading> =
        (0..400).map(|at| reading(if at % 2 == 0 { 0 } else { 8 }, 0.01 * random.normal())).collect();
    let known = steps(&ends, &prior(&[1.0; 8])).unwrap();
    assert!(known.none > 0.95, "{}", known.none);
    assert_eq!(conclude(&known, &[true; 9], 0.95), Conclusion::Open);
    let read: Vec<usize> = ends.iter().map(|reading| reading.place).collect();
    assert_eq!(next_place(&read, Some(&known), 8, |_| Some(1.0)), Some(2));
    assert_eq!(next_place(&read, Some(&known), 8, |place| (place % 2 == 1).then_some(1.0)), Some(1));
    // If nothing between the ends can be read, there are only the ends.
    let mut readable = [false; 9];
    (readable[0], readable[8]) = (true, true);
    assert_eq!(conclude(&known, &readable, 0.95), Conclusion::None);
}
