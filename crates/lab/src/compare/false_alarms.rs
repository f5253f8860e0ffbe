//! Checks the stated error with simulated comparisons: a program with itself, and with a slower one.
//!
//! The noise is like that of real machines: a speed that drifts over the run, common to both sides of a pair; the luck
//! of each start; and occasionally a start that differs strongly (Student's t with three degrees of freedom). Some
//! machines also have states that are far apart, for example a layout of memory that only some starts have. The tests
//! have fixed seeds, so their results are reproducible.

use super::analysis::{Figures, analyse_comparisons};
use super::instructions::{self, REPETITIONS};
use super::measures::{self, PAIRED, Reading};
use super::rules::{self, Shares};
use crate::compare;
use crate::result::compare::{BuildPair, CompareAnalysis, CompareDesign, Decision, MeasureVerdict, Side};
use crate::result::run::Placement;
use stillgate_stats::Random;

const COMPARISONS: u64 = 200;

/// Out of 200 comparisons with an error of 1%; more have a probability of 0.4% (binomial).
const ALARMS_MAX: usize = 6;

/// "Nearly all" of 200 that should be found.
const FOUND_MIN: usize = 195;

/// Scale of the noise of a start, by [`PAIRED`]: per cents of throughput and CPU, more of the tail, steps of a page in memory.
const NOISE: [f64; PAIRED.len()] = [0.012, 0.012, 0.02, 0.05, 0.15, 0.002];

const SLOWED: f64 = 1.05;

pub(super) fn design(pairs: usize, looks: &[usize]) -> CompareDesign {
    CompareDesign {
        builds: 2,
        every_pair: false,
        pairs,
        looks: looks.to_vec(),
        alpha: 0.01,
        power: 0.9,
        margin: 0.05,
        deciding: vec!["cpu".to_owned()],
        warm_up_s: 0.15,
        saturation_s: 0.4,
        slice_s: None,
        rate_s: 0.5,
        rate: 10_000.0,
        connections: 32,
        late_s: 0.001,
        mix: None,
        seed: 1,
        placement: Placement::default(),
    }
}

/// How a start gets its state.
#[derive(Debug, Clone, Copy, PartialEq)]
enum States {
    /// There is only one state.
    One,
    /// Each start takes half as long again with this probability.
    Two(f64),
    /// Every start takes longer for a while, and then none for a while: 12 starts on average.
    Lasting,
}

/// Distance of the slower state, as a logarithm.
const STATES_APART: f64 = 0.405;

const LASTING: u64 = 12;

const ALL_STATES: [States; 3] = [States::Two(0.5), States::Two(0.15), States::Lasting];

/// A simulated machine.
struct Machine {
    random: Random,
    speed: f64,
    states: States,
    is_slow: bool,
}

impl Machine {
    fn new(states: States, seed: u64) -> Machine {
        Machine { random: Random::new(seed), speed: 0.0, states, is_slow: false }
    }

    /// The addition to the logarithm of the cost by the state of one more start.
    fn state(&mut self) -> f64 {
        match self.states {
            States::One => return 0.0,
            States::Two(share) => self.is_slow = self.random.uniform() < share,
            States::Lasting => self.is_slow ^= self.random.below(LASTING) == 0,
        }
        if self.is_slow { STATES_APART } else { 0.0 }
    }

    fn heavy_tailed(&mut self) -> f64 {
        let squares: f64 = (0..3).map(|_| self.random.normal().powi(2)).sum();
        self.random.normal() / (squares / 3.0).sqrt()
    }

    /// One start; `slowed` is the factor of its work.
    fn start(&mut self, slowed: f64) -> Reading {
        // A start that gains in CPU also gains in throughput and latency.
        let luck = self.random.normal() * 0.008 + self.speed + self.state();
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

    /// All builds, in this order; each factor applies to the work of one.
    fn round(&mut self, factors: &[f64], order: &[Side]) -> Vec<Reading> {
        self.speed += self.random.normal() * 0.02 + 0.002;
        let mut readings = vec![Reading::default(); factors.len()];
        for side in order {
            readings[*side as usize] = self.start(factors[*side as usize]);
        }
        readings
    }

    /// Counts of all builds, as `count` would take them.
    fn instructions(&mut self, design: &CompareDesign, factors: &[f64]) -> Vec<Vec<f64>> {
        let mut counts = vec![Vec::new(); factors.len()];
        let mut wanted = REPETITIONS;
        while counts[0].len() < wanted {
            for (factor, counts) in factors.iter().zip(&mut counts) {
                let count = 20_000.0 * factor * (self.heavy_tailed() * 0.002 + self.state()).exp();
                counts.push(count);
            }
            if counts[0].len() == REPETITIONS {
                wanted = instructions::wanted_of(design, &counts);
            }
        }
        counts
    }
}

/// Runs one comparison as `run` would: up to the first look at which everything that is compared is worse.
fn compare(
    design: &CompareDesign,
    levels: &[(usize, rules::Look)],
    (states, seed): (States, u64),
    factors: &[f64],
    counted: bool,
) -> Vec<CompareAnalysis> {
    let mut machine = Machine::new(states, seed);
    let instructions: Option<Vec<_>> = counted.then(|| machine.instructions(design, factors));
    let orders = compare::round_orders(&CompareDesign { seed, ..design.clone() });
    let rounds: Vec<_> = orders.iter().map(|order| machine.round(factors, order)).collect();
    let failed = vec![Shares::default(); design.pairs];
    let comparisons = design.comparisons();
    let sees = |between: &BuildPair| -> Vec<(Reading, Reading)> {
        rounds.iter().map(|round| (round[between.one as usize], round[between.other as usize])).collect()
    };
    let readings: Vec<_> = comparisons.iter().map(sees).collect();
    let figures = |done: usize| -> Vec<Figures<'_>> {
        comparisons
            .iter()
            .zip(&readings)
            .map(|(between, readings)| {
                let counts = |side: Side| Some(instructions.as_ref()?[side as usize].as_slice());
                Figures {
                    between: *between,
                    readings: &readings[..done],
                    failed: &failed[..done],
                    instructions: counts(between.one).zip(counts(between.other)),
                }
            })
            .collect()
    };
    let is_worse = |analysis: &CompareAnalysis| analysis.decision == Decision::Worse;
    let mut analyses = Vec::new();
    for (done, look) in levels {
        analyses = analyse_comparisons(design, look, &figures(*done));
        if analyses.iter().all(is_worse) {
            break;
        }
    }
    assert!(levels.last().unwrap().0 == design.pairs);
    analyses
}

/// The results of `comparisons` comparisons.
fn simulated(
    design: &CompareDesign,
    states: States,
    comparisons: u64,
    factors: &[f64],
    counted: bool,
) -> Vec<Vec<CompareAnalysis>> {
    let looks = if design.looks.is_empty() { vec![design.pairs] } else { design.looks.clone() };
    let family = measures::family(design.comparisons().len(), counted);
    let levels: Vec<_> = looks.iter().map(|&done| (done, rules::look_after(design, done, family))).collect();
    (0..comparisons).map(|seed| compare(design, &levels, (states, seed), factors, counted)).collect()
}

fn differs(analysis: &CompareAnalysis) -> bool {
    analysis.measures.iter().any(|measure| measure.verdict != MeasureVerdict::NoDifference)
}

/// Counts the comparisons that found any difference, and those that found B worse.
fn check(design: &CompareDesign, slowed: f64, counted: bool) -> (usize, usize) {
    let all = simulated(design, States::One, COMPARISONS, &[1.0, slowed], counted);
    let worse = |analysis: &CompareAnalysis| analysis.decision == Decision::Worse;
    let count = |is: &dyn Fn(&CompareAnalysis) -> bool| all.iter().filter(|all| all.iter().any(is)).count();
    (count(&differs), count(&worse))
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

/// Number of comparisons of a machine with states; the nightly job runs 1,000.
fn comparisons_of_states() -> u64 {
    std::env::var("STILLGATE_COMPARISONS").map_or(COMPARISONS, |count| count.parse().unwrap())
}

#[test]
fn states_are_not_taken_for_differences() {
    let comparisons = comparisons_of_states();
    let most = 0.01 * comparisons as f64 + 3.0 * (0.01 * 0.99 * comparisons as f64).sqrt();
    for states in ALL_STATES {
        for (pairs, looks) in [(16, &[][..]), (32, &[16, 24, 32])] {
            let all = simulated(&design(pairs, looks), states, comparisons, &[1.0; 2], true);
            let alarms = all.iter().filter(|all| all.iter().any(differs)).count();
            println!("{states:?}, {pairs} pairs: {alarms} of {comparisons}");
            assert!(alarms as f64 <= most, "{states:?}, {pairs} pairs: {alarms} false alarms");
        }
    }
}

/// A difference of a twentieth is found among states half as large again, as long as both sides have them equally
/// often; and it is never found in the opposite direction.
#[test]
fn a_slowdown_among_states_is_found_or_left_open() {
    for states in ALL_STATES {
        let all = simulated(&design(32, &[16, 24, 32]), states, COMPARISONS, &[1.0, SLOWED], true);
        let with = |decision: Decision| all.iter().filter(|all| all[0].decision == decision).count();
        let better = |analysis: &CompareAnalysis| {
            analysis.measures.iter().any(|measure| measure.verdict == MeasureVerdict::Faster)
        };
        let (worse, not_worse) = (with(Decision::Worse), with(Decision::NotWorse));
        println!("{states:?}: worse {worse}, not worse {not_worse}, of {COMPARISONS}");
        assert!(all.iter().filter(|all| all.iter().any(better)).count() <= ALARMS_MAX, "{states:?}");
        // The margin is a twentieth, too.
        assert!(not_worse <= ALARMS_MAX, "{states:?}: {not_worse}");
    }
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
            let mut machine = Machine::new(States::One, *seed);
            let counts = machine.instructions(&design(16, &[]), &[1.0, slowed]);
            let between = BuildPair { one: Side::A, other: Side::B };
            let figures = Figures { between, readings: &[], failed: &[], instructions: Some((&counts[0], &counts[1])) };
            let look = rules::look_after(&design(16, &[]), 16, measures::family(1, true));
            let analyses = analyse_comparisons(&design(16, &[]), &look, &[figures]);
            analyses[0].decision == Decision::Worse
        };
        (0..COMPARISONS).filter(found).count()
    };
    assert!(alone(1.0) <= ALARMS_MAX && alone(SLOWED) >= FOUND_MIN, "{} {}", alone(1.0), alone(SLOWED));
}

#[test]
fn six_builds_have_one_error_together() {
    for every_pair in [false, true] {
        let all = CompareDesign { builds: 6, every_pair, ..design(20, &[]) };
        let alarms = simulated(&all, States::One, COMPARISONS, &[1.0; 6], false)
            .iter()
            .filter(|all| all.iter().any(differs))
            .count();
        assert!(alarms <= ALARMS_MAX, "{alarms} false alarms, every pair: {every_pair}");
    }
}

/// With A to D, C is a twentieth slower and D a twentieth faster.
#[test]
fn of_four_builds_those_that_differ_are_found_and_no_others() {
    let four = CompareDesign { builds: 4, every_pair: true, ..design(24, &[]) };
    let found = simulated(&four, States::One, COMPARISONS, &[1.0, 1.0, SLOWED, 1.0 / SLOWED], false);
    let count = |one: Side, other: Side, verdict: MeasureVerdict| {
        let at = four.comparisons().iter().position(|between| *between == BuildPair { one, other }).unwrap();
        let cpu =
            |all: &&Vec<CompareAnalysis>| all[at].measures.iter().any(|m| m.measure == "cpu" && m.verdict == verdict);
        found.iter().filter(cpu).count()
    };
    let (slower, faster, same) = (MeasureVerdict::Slower, MeasureVerdict::Faster, MeasureVerdict::NoDifference);
    for (one, other, verdict, least) in [
        (Side::A, Side::B, same, COMPARISONS as usize - ALARMS_MAX),
        (Side::A, Side::C, slower, FOUND_MIN),
        (Side::A, Side::D, faster, FOUND_MIN),
        (Side::B, Side::C, slower, FOUND_MIN),
        (Side::B, Side::D, faster, FOUND_MIN),
        (Side::C, Side::D, faster, FOUND_MIN),
    ] {
        let found = count(one, other, verdict);
        assert!(found >= least, "{one:?} {other:?}: {found}");
    }
}
