//! The stated error, held against simulated comparisons: a program with itself, and with a slower one.
//!
//! The noise is what machines make of such figures: a speed that drifts over the run, common to both sides of a pair; the
//! luck of each start; and now and then a start that went quite differently (Student's t with three degrees of freedom).
//! The tests have fixed seeds, so they say the same each time.

use super::analysis::{Figures, judge};
use super::failures::Shares;
use super::looks;
use super::measures::{self, PAIRED, Reading};
use crate::result::compare::{CompareAnalysis, CompareDesign, Decision, Instructions, MeasureVerdict};
use crate::result::run::Placement;
use stillgate_stats::Random;

const COMPARISONS: u64 = 200;

/// Of 200 comparisons with an error of 1%; more have a probability of 0.4% (binomial).
const ALARMS_MAX: usize = 6;

/// Of 200 that should be found, "nearly all".
const FOUND_MIN: usize = 195;

/// Scale of the noise of a start, by [`PAIRED`]: per cents of throughput and CPU, more of the tail, steps of a page in memory.
const NOISE: [f64; PAIRED.len()] = [0.012, 0.012, 0.02, 0.05, 0.15, 0.002];

const SLOWED: f64 = 1.05;

pub(super) fn design(pairs: usize, looks: &[usize]) -> CompareDesign {
    CompareDesign {
        pairs,
        looks: looks.to_vec(),
        alpha: 0.01,
        power: 0.9,
        margin: 0.05,
        deciding: vec!["cpu".to_owned()],
        warm_up_s: 0.15,
        saturation_s: 0.4,
        rate_s: 0.5,
        rate: 10_000.0,
        connections: 32,
        late_s: 0.001,
        mix: None,
        seed: 1,
        placement: Placement::default(),
    }
}

/// A machine with its mood.
struct Machine {
    random: Random,
    speed: f64,
}

impl Machine {
    fn new(seed: u64) -> Machine {
        Machine { random: Random::new(seed), speed: 0.0 }
    }

    fn heavy_tailed(&mut self) -> f64 {
        let squares: f64 = (0..3).map(|_| self.random.normal().powi(2)).sum();
        self.random.normal() / (squares / 3.0).sqrt()
    }

    /// One start; `slowed` is the factor of its work.
    fn start(&mut self, slowed: f64) -> Reading {
        // What a start gains in CPU it gains in throughput and latency, too.
        let luck = self.random.normal() * 0.008 + self.speed;
        let mut reading = [50_000.0, 18.0, 300.0, 900.0, 2500.0, 12_000.0];
        for (index, value) in reading.iter_mut().enumerate() {
            let noise = self.heavy_tailed() * NOISE[index];
            *value *= match PAIRED[index].name {
                "throughput" => (noise - luck).exp() / slowed,
                "rss" => noise.exp(),
                _ => (noise + luck).exp() * slowed,
            };
        }
        reading.map(Some)
    }

    fn pair(&mut self, slowed: f64) -> (Reading, Reading) {
        self.speed += self.random.normal() * 0.02 + 0.002;
        (self.start(1.0), self.start(slowed))
    }

    fn instructions(&mut self, slowed: f64) -> Instructions {
        let mut counts =
            |factor: f64| (0..3).map(|_| 20_000.0 * factor * (self.heavy_tailed() * 0.002).exp()).collect();
        Instructions { counted_by: "callgrind".to_owned(), a: counts(1.0), b: counts(slowed) }
    }
}

/// Runs one comparison as `run` would: up to the first look that finds B worse.
fn compare(
    design: &CompareDesign,
    levels: &[(usize, looks::Look)],
    seed: u64,
    slowed: f64,
    counted: bool,
) -> CompareAnalysis {
    let mut machine = Machine::new(seed);
    let instructions = counted.then(|| machine.instructions(slowed));
    let pairs: Vec<_> = (0..design.pairs).map(|_| machine.pair(slowed)).collect();
    let failed = vec![Shares::default(); design.pairs];
    let figures = |done: usize| Figures {
        readings: &pairs[..done],
        failed: &failed[..done],
        instructions: instructions.as_ref(),
    };
    let mut analyses = levels.iter().map(|(done, look)| judge(design, look, &figures(*done)));
    let last = design.pairs;
    let mut analysis = analyses.next().unwrap();
    for next in analyses {
        if analysis.decision == Decision::Worse {
            break;
        }
        analysis = next;
    }
    assert!(levels.last().unwrap().0 == last);
    analysis
}

/// Of so many comparisons: those that saw any difference, and those that found B worse.
fn check(design: &CompareDesign, slowed: f64, counted: bool) -> (usize, usize) {
    let looks = if design.looks.is_empty() { vec![design.pairs] } else { design.looks.clone() };
    let family = measures::family(counted);
    let levels: Vec<_> = looks.iter().map(|&done| (done, looks::at(design, done, family))).collect();
    let analyses: Vec<_> = (0..COMPARISONS).map(|seed| compare(design, &levels, seed, slowed, counted)).collect();
    let differs = |analysis: &&CompareAnalysis| {
        analysis.measures.iter().any(|measure| measure.verdict != MeasureVerdict::NoDifference)
    };
    let worse = |analysis: &&CompareAnalysis| analysis.decision == Decision::Worse;
    (analyses.iter().filter(differs).count(), analyses.iter().filter(worse).count())
}

#[test]
fn a_program_is_seldom_found_to_differ_from_itself() {
    for counted in [false, true] {
        let (alarms, _) = check(&design(16, &[]), 1.0, counted);
        assert!(alarms <= ALARMS_MAX, "{alarms} false alarms, instructions counted: {counted}");
    }
}

#[test]
fn nor_where_it_is_looked_at_several_times() {
    let (alarms, _) = check(&design(32, &[16, 24, 32]), 1.0, true);
    assert!(alarms <= ALARMS_MAX, "{alarms} false alarms");
}

#[test]
fn a_slowdown_of_a_twentieth_is_found_without_counting_instructions() {
    let (_, found) = check(&design(16, &[]), SLOWED, false);
    assert!(found >= FOUND_MIN, "{found} found");
}

#[test]
fn and_found_where_it_is_looked_at_several_times() {
    let (_, found) = check(&design(32, &[16, 24, 32]), SLOWED, false);
    assert!(found >= FOUND_MIN, "{found} found");
}

#[test]
fn instructions_alone_find_it() {
    let alone = |slowed: f64| {
        let found = |seed: &u64| {
            let instructions = Machine::new(*seed).instructions(slowed);
            let figures = Figures { readings: &[], failed: &[], instructions: Some(&instructions) };
            let look = looks::at(&design(16, &[]), 16, measures::family(true));
            let analysis = judge(&design(16, &[]), &look, &figures);
            analysis.decision == Decision::Worse
        };
        (0..COMPARISONS).filter(found).count()
    };
    assert!(alone(1.0) <= ALARMS_MAX && alone(SLOWED) >= FOUND_MIN, "{} {}", alone(1.0), alone(SLOWED));
}
