//! A period of the machine: every third reading is slow, for example, whatever is read.
//!
//! The place to read next follows from the readings, so the choice falls into step with a period: a slow reading makes
//! its place suspicious, and the places beside it are read until the next slow reading comes. Then one place has most of
//! the slow readings, and looks like a step. Therefore a period is estimated and subtracted before anything else.
//!
//! The model has one level for each place and one effect for each phase of the period, by least squares. So a step is
//! never taken for a period, wherever it is: only readings of the same place tell the phases apart.

use super::Reading;
use std::ops::RangeInclusive;

/// Periods that are looked for, in readings.
const PERIODS: RangeInclusive<usize> = 2..=12;

/// A period is subtracted if it explains the readings a thousand times better than none does, as a logarithm.
const EVIDENCE_MIN: f64 = 6.9;

/// Readings closer to their level than this have no noise, only rounding, in the unit of the values.
const DEVIATION_MIN: f64 = 1e-7;

/// A phase's effect is determined by at least this much, in readings of a known level: one reading in the phase and one
/// in another, of the same place, count for a half.
const PIVOT_MIN: f64 = 0.1;

/// The readings, in the order they were taken, without the period that explains them best; as they are if none does.
pub(super) fn without_period(readings: &[Reading]) -> Vec<Reading> {
    let count = readings.len() as f64;
    let rounding = count * DEVIATION_MIN * DEVIATION_MIN;
    let places = ReadPlaces::of(readings);
    let still = places.squares(readings, &[0.0]);
    let mut best = (EVIDENCE_MIN, vec![0.0]);
    for period in PERIODS.filter(|_| still > rounding) {
        let added = (period - 1) as f64;
        let free = count - places.read() - added;
        if free < 1.0 {
            break;
        }
        let Some(effects) = places.effects(readings, period) else { continue };
        let left = places.squares(readings, &effects).max(rounding);
        // As the criterion of Schwarz 1978, "Estimating the Dimension of a Model", but without the readings that only
        // determine levels and effects: there are few readings for each place.
        let evidence = (free * (still / left).ln() - added * count.ln()) / 2.0;
        if evidence > best.0 {
            best = (evidence, effects);
        }
    }
    let effect = |at: usize| best.1[at % best.1.len()];
    let mean = (0..readings.len()).map(effect).sum::<f64>() / count;
    let without = |(at, reading): (usize, &Reading)| Reading { value: reading.value - effect(at) + mean, ..*reading };
    readings.iter().enumerate().map(without).collect()
}

/// Number of readings of each place.
struct ReadPlaces(Vec<f64>);

impl ReadPlaces {
    fn of(readings: &[Reading]) -> ReadPlaces {
        let mut counts = vec![0.0; readings.iter().map(|reading| reading.place + 1).max().unwrap_or(0)];
        readings.iter().for_each(|reading| counts[reading.place] += 1.0);
        ReadPlaces(counts)
    }

    /// Number of places that have readings.
    fn read(&self) -> f64 {
        self.0.iter().filter(|count| **count > 0.0).count() as f64
    }

    /// The sum of the squared distances of the readings from the means of their places, without the effects of the
    /// phases.
    fn squares(&self, readings: &[Reading], effects: &[f64]) -> f64 {
        let value = |(at, reading): (usize, &Reading)| reading.value - effects[at % effects.len()];
        let mut sums = vec![0.0; self.0.len()];
        readings.iter().enumerate().for_each(|read| sums[read.1.place] += value(read));
        let mean = |place: usize| sums[place] / self.0[place];
        readings.iter().enumerate().map(|read| (value(read) - mean(read.1.place)).powi(2)).sum()
    }

    /// The effect of each phase relative to the first; `None` if the readings do not determine them.
    fn effects(&self, readings: &[Reading], period: usize) -> Option<Vec<f64>> {
        // For each place the number of its readings in each phase, and the sum of all.
        let mut places = vec![(vec![0.0; period], 0.0); self.0.len()];
        let mut phases = vec![(0.0, 0.0); period];
        for (at, reading) in readings.iter().enumerate() {
            let (phase, (of_place, sum)) = (at % period, &mut places[reading.place]);
            of_place[phase] += 1.0;
            *sum += reading.value;
            phases[phase] = (phases[phase].0 + 1.0, phases[phase].1 + reading.value);
        }
        // The normal equations without the levels, and without the first phase; the last column is the right side.
        let equation = |phase: usize| -> Vec<f64> {
            let mut row = vec![0.0; period];
            (row[phase - 1], row[period - 1]) = phases[phase];
            for ((of_place, sum), count) in
                places.iter().zip(&self.0).filter(|((of_place, _), _)| of_place[phase] > 0.0)
            {
                let share = of_place[phase] / count;
                row.iter_mut().zip(of_place[1..].iter().chain([sum])).for_each(|(cell, other)| *cell -= share * other);
            }
            row
        };
        let relative = solution((1..period).map(equation).collect())?;
        Some([0.0].into_iter().chain(relative).collect())
    }
}

/// Solves symmetric, positive definite equations by elimination (Gauss & Jordan); the last column is the right side.
fn solution(mut rows: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    for pivot in 0..rows.len() {
        let own = rows[pivot].clone();
        if own[pivot] < PIVOT_MIN {
            return None;
        }
        for row in rows.iter_mut().enumerate().filter(|(index, _)| *index != pivot).map(|(_, row)| row) {
            let factor = row[pivot] / own[pivot];
            row.iter_mut().zip(&own).for_each(|(cell, own)| *cell -= factor * own);
        }
    }
    rows.iter().enumerate().map(|(index, row)| Some(row.last()? / row[index])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Readings of these places, with a scatter of 0.005; each `period`th value is higher by 0.05.
    fn read(places: &[usize], period: usize) -> Vec<Reading> {
        let mut random = Random::new(period as u64);
        let slow = |at: usize| if at.is_multiple_of(period) { 0.05 } else { 0.0 };
        let reading =
            |(at, place): (usize, &usize)| Reading { place: *place, value: slow(at) + 0.005 * random.normal() };
        places.iter().enumerate().map(reading).collect()
    }

    fn scatter(readings: &[Reading]) -> f64 {
        (ReadPlaces::of(readings).squares(readings, &[0.0]) / readings.len() as f64).sqrt()
    }

    #[test]
    fn a_period_is_subtracted() {
        for period in PERIODS {
            let mut random = Random::new(7);
            let places: Vec<usize> = (0..60).map(|_| random.below(4) as usize).collect();
            let readings = read(&places, period);
            let left = without_period(&readings);
            assert!(scatter(&readings) > 0.012 && scatter(&left) < 0.006, "{period}: {}", scatter(&left));
            let mean = |readings: &[Reading]| readings.iter().map(|reading| reading.value).sum::<f64>() / 60.0;
            assert!((mean(&readings) - mean(&left)).abs() < 1e-12);
        }
    }

    #[test]
    fn a_step_is_no_period() {
        // Two places in alternation, of which the second is slower, with an end in between now and then.
        let places: Vec<usize> = (0..60).map(|at| if at % 10 == 9 { 0 } else { 2 + at % 2 }).collect();
        let mut readings = read(&places, 1000);
        readings.iter_mut().filter(|reading| reading.place == 3).for_each(|reading| reading.value += 0.03);
        assert_eq!(without_period(&readings), readings);
    }

    #[test]
    fn phases_that_share_no_place_are_not_told_apart() {
        let places: Vec<usize> = (0..60).map(|at| usize::from(at % 3 == 0)).collect();
        let readings = read(&places, 3);
        assert_eq!(without_period(&readings), readings);
    }

    #[test]
    fn rounding_is_no_period() {
        let value = |at: usize| if at.is_multiple_of(3) { 0.1 + 0.2 } else { 0.3 };
        let readings: Vec<Reading> = (0..60).map(|at| Reading { place: at % 2, value: value(at) }).collect();
        assert_eq!(without_period(&readings), readings);
        assert_eq!(without_period(&[]), []);
    }
}
