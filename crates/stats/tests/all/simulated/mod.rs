//! Bisections over planted commits, on machines that are as bad as real ones: ours, Pinpoint's and plain binary search.
//!
//! Shared by the test, which runs a few, and by the bench, which runs enough to state rates. Everything follows from the
//! seed.

// The test and the bench each use a part of this.
#![allow(dead_code, clippy::unwrap_used)]

pub(crate) mod states;

use states::States;
use std::collections::HashMap;
use std::rc::Rc;
use stillgate_stats::*;

/// Standard deviation of a measurement, and the step in most of the tables: both 3%.
pub(crate) const NOISE: f64 = 0.03;

/// The smallest step that counts for our method.
pub(crate) const STEP_MIN: f64 = 0.01;

/// Measurements after which our method gives up.
const READINGS_MAX: usize = 500;

/// Pinpoint does 30 runs of a commit for a change of one interquartile range. Here the change is 0.74 of one (the
/// noise has one of 1.35 standard deviations), so the same power takes 30 / 0.74^2.
const PINPOINT_RUNS: usize = 55;
const PINPOINT_SIGNIFICANCE: f64 = 0.01;

/// Runs of a commit in plain binary search; their median counts.
const PLAIN_RUNS: usize = 5;

/// How a machine scatters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scatter {
    Normal,
    /// One measurement in ten scatters four times as much.
    Heavy,
    /// Normal, on a random walk of some 3% over 50 measurements.
    Drifting,
    /// Three starts in ten are slow.
    Bimodal,
    /// CPU time per request of a real gateway, started for each run, while nothing else ran on a shared virtual
    /// machine. It has two levels, some 25% apart, and stays at one for many runs.
    Quiet,
    /// As [`Scatter::Quiet`], but with compilers and tests running at the same time: one level, with rare extreme runs.
    Compilers,
    /// 100 or 150 with equal probability, each with a scatter of 1%.
    TwoStates,
    /// 100 or 150 with equal probability, without scatter.
    TwoValues,
    /// One of three levels, 20% apart.
    ThreeStates,
    /// 100, and 150 in one of seven.
    RareState,
    /// 100 or 150; a state lasts for 12 runs on average.
    Sticky,
    /// [`Scatter::TwoStates`] on the walk of [`Scatter::Drifting`].
    WalkingStates,
    /// 100 or 150, with a probability that drifts over time.
    DriftingChance,
    /// Two or three states, with random distances, probabilities and scatter.
    DrawnStates,
    /// 100 or 150; one in ten is 150 before the step and nine in ten after it, which is the only change.
    MoreOften,
    /// As [`Scatter::MoreOften`], with 4 and 7 in ten.
    SomewhatMoreOften,
    /// As [`Scatter::MoreOften`], with none and 3 in ten.
    Appearing,
    /// One in so many is slow, at equal distances, whatever is measured.
    Periodic(usize),
}

pub(crate) const SCATTERS: [Scatter; 6] =
    [Scatter::Normal, Scatter::Heavy, Scatter::Drifting, Scatter::Bimodal, Scatter::Quiet, Scatter::Compilers];

/// The scatters with states far apart.
pub(crate) const OF_STATES: [Scatter; 11] = [
    Scatter::TwoStates,
    Scatter::TwoValues,
    Scatter::ThreeStates,
    Scatter::RareState,
    Scatter::Sticky,
    Scatter::WalkingStates,
    Scatter::DriftingChance,
    Scatter::DrawnStates,
    Scatter::MoreOften,
    Scatter::SomewhatMoreOften,
    Scatter::Appearing,
];

/// Readings of a bisection whose states are far apart.
const READINGS_OF_STATES_MAX: usize = 150;

/// By how much the logarithm of a slow measurement of [`Scatter::Periodic`] is higher, and the scatter of each.
const PERIODIC_SLOW: f64 = 0.05;
const PERIODIC_NOISE: f64 = 0.005;

/// The recording of `data/record.py`, in the order of the runs.
const RECORDED: &str = include_str!("../../data/recorded.json");

/// Commits with steps between some of them, on a machine.
pub(crate) struct PlantedHistory {
    pub(crate) commits: usize,
    /// The last commit before each step, and by how much the logarithm grows.
    pub(crate) steps: Vec<(usize, f64)>,
    /// Commits that cannot be built, neither the first nor the last.
    pub(crate) unbuildable: Vec<usize>,
    pub(crate) scatter: Scatter,
    pub(crate) random: Random,
    /// Readings so far.
    taken: usize,
    walk: f64,
    /// `None` for a scatter without states.
    states: Option<States>,
    /// The bisection gives up after this many readings.
    pub(crate) readings_max: usize,
    recording: ReplayedRuns,
}

/// Recorded runs, replayed in order from a random start and then from the beginning, so that their drift is kept.
struct ReplayedRuns {
    /// Logarithms around the median, scaled so that their interquartile range is that of [`Scatter::Normal`].
    values: Rc<[f64]>,
    next: usize,
}

impl ReplayedRuns {
    /// Empty unless the scatter was recorded.
    fn of(scatter: Scatter, random: &mut Random) -> ReplayedRuns {
        thread_local! {
            static QUIET: Rc<[f64]> = recorded("quiet");
            static COMPILERS: Rc<[f64]> = recorded("compilers");
        }
        let values = match scatter {
            Scatter::Quiet => QUIET.with(Rc::clone),
            Scatter::Compilers => COMPILERS.with(Rc::clone),
            _ => return ReplayedRuns { values: Rc::default(), next: 0 },
        };
        let next = random.below(values.len() as u64) as usize;
        ReplayedRuns { values, next }
    }

    fn next(&mut self) -> f64 {
        self.next = (self.next + 1) % self.values.len();
        self.values[self.next]
    }
}

/// Scaled by the interquartile range: a few extreme runs would dominate the standard deviation.
fn recorded(name: &str) -> Rc<[f64]> {
    let recorded: HashMap<String, Vec<f64>> = serde_json::from_str(RECORDED).unwrap();
    let logs: Vec<f64> = recorded[name].iter().map(|value| value.ln()).collect();
    let mut sorted = logs.clone();
    sorted.sort_unstable_by(f64::total_cmp);
    let quartile = |number: usize| sorted[sorted.len() * number / 4];
    let deviation = (quartile(3) - quartile(1)) / 1.349;
    logs.iter().map(|log| (log - quartile(2)) / deviation * NOISE).collect()
}

impl PlantedHistory {
    pub(crate) fn new(
        commits: usize,
        steps: impl IntoIterator<Item = (usize, f64)>,
        scatter: Scatter,
        seed: u64,
    ) -> PlantedHistory {
        let mut random = Random::new(seed);
        let recording = ReplayedRuns::of(scatter, &mut random);
        let states = States::of(scatter, &mut random);
        let readings_max = if states.is_some() { READINGS_OF_STATES_MAX } else { READINGS_MAX };
        let (steps, unbuildable) = (steps.into_iter().collect(), Vec::new());
        PlantedHistory {
            commits,
            steps,
            unbuildable,
            scatter,
            random,
            taken: 0,
            walk: 0.0,
            states,
            readings_max,
            recording,
        }
    }

    /// Makes five commits unbuildable: two before the commit that has the step, three after it.
    pub(crate) fn surround(&mut self) {
        let culprit = self.steps[0].0 + 1;
        let near = culprit.saturating_sub(2)..=culprit + 3;
        self.unbuildable = near.filter(|place| (1..self.commits).contains(place) && *place != culprit).collect();
    }

    /// The logarithm of one measurement.
    pub(crate) fn read(&mut self, place: usize) -> f64 {
        let is_behind = self.steps.first().is_some_and(|(before, _)| place > *before);
        let level: f64 = match self.scatter.shares() {
            Some(_) => 0.0,
            None => self.steps.iter().filter(|(before, _)| place > *before).map(|(_, size)| size).sum(),
        };
        self.taken += 1;
        level
            + match self.scatter {
                Scatter::Normal => self.normal(),
                Scatter::Heavy => self.normal() * if self.random.below(10) == 0 { 4.0 } else { 0.8 },
                Scatter::Drifting => {
                    let normal = self.normal();
                    self.walk += NOISE / 7.0 * self.random.normal();
                    self.walk + normal
                }
                Scatter::Bimodal => self.normal() * 0.5 + if self.random.below(10) < 3 { 1.8 * NOISE } else { 0.0 },
                Scatter::Quiet | Scatter::Compilers => self.recording.next(),
                Scatter::Periodic(period) => {
                    let slow = if self.taken % period == 1 { PERIODIC_SLOW } else { 0.0 };
                    slow + PERIODIC_NOISE * self.random.normal()
                }
                _ => self.of_states(is_behind),
            }
    }

    fn of_states(&mut self, is_behind: bool) -> f64 {
        if self.scatter == Scatter::WalkingStates {
            self.walk += NOISE / 7.0 * self.random.normal();
        }
        let states = self.states.as_mut().expect("every other scatter has states");
        self.walk + states.read(is_behind, &mut self.random)
    }

    fn normal(&mut self) -> f64 {
        NOISE * self.random.normal()
    }
}

impl Scatter {
    /// For a step of shares, the share of high readings before it and after it.
    pub(crate) fn shares(self) -> Option<[f64; 2]> {
        match self {
            Scatter::MoreOften => Some([0.1, 0.9]),
            Scatter::SomewhatMoreOften => Some([0.4, 0.7]),
            Scatter::Appearing => Some([0.0, 0.3]),
            _ => None,
        }
    }
}

/// The result of a bisection.
pub(crate) struct Outcome {
    /// The last buildable commit before the step; `Some(None)` means no step, `None` undecided.
    pub(crate) said: Option<Option<usize>>,
    /// The stated probability of the answer.
    pub(crate) stated: f64,
    /// Whether it names more than one step; there are never two.
    pub(crate) names_more: bool,
    /// Size of the step with the stated interval; `None` for methods that do not state one.
    pub(crate) size: Option<Estimate>,
    pub(crate) readings: usize,
}

impl Outcome {
    /// Whether the step is at the stated place, if there is one, and in that direction.
    pub(crate) fn is_right(&self, planted: &PlantedHistory) -> bool {
        let is_readable = |place: &usize| !planted.unbuildable.contains(place);
        let step = planted.steps.first();
        let is_place = self.said == Some(step.and_then(|(before, _)| (0..=*before).rev().find(is_readable)));
        let is_rise = match planted.scatter.shares() {
            Some([before, behind]) => behind > before,
            None => step.is_some_and(|(_, size)| *size > 0.0),
        };
        is_place && !self.names_more && (step.is_none() || self.size.is_none_or(|size| (size.value > 0.0) == is_rise))
    }
}

/// Bisects as `stillgate-lab bisect` does, with the same cost for each commit: the final belief, the conclusion, and
/// the number of readings.
pub(crate) fn search(planted: &mut PlantedHistory, confidence: f64) -> (Steps, Conclusion, usize) {
    let last = planted.commits;
    let prior = StepPrior { weights: vec![1.0; last], step_min: STEP_MIN, none: 0.25, several: 0.1 };
    let readable: Vec<bool> = (0..=last).map(|place| !planted.unbuildable.contains(&place)).collect();
    let (mut readings, mut read): (Vec<Reading>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut known = None;
    loop {
        let place = next_place(&read, known.as_ref(), last, |place| readable[place].then_some(1.0)).unwrap();
        readings.push(Reading { place, value: planted.read(place) });
        read.push(place);
        known = steps(&readings, &prior);
        let Some(known) = &known else { continue };
        let said = conclude(known, &readable, confidence);
        if said != Conclusion::Open || readings.len() >= planted.readings_max {
            return (known.clone(), said, readings.len());
        }
    }
}

/// For commits with at most one step.
pub(crate) fn ours(planted: &mut PlantedHistory, confidence: f64) -> Outcome {
    let (known, said, readings) = search(planted, confidence);
    let names_more = matches!(&said, Conclusion::Found(found) if found.len() > 1);
    let (said, stated, size) = match said {
        Conclusion::Found(found) => {
            let before = found[0].0;
            (Some(Some(before)), known.steps[before], known.size(before, confidence))
        }
        Conclusion::None => (Some(None), known.none, None),
        Conclusion::Open => (None, 0.0, None),
    };
    Outcome { said, stated, names_more, size, readings }
}

/// Chromium's Pinpoint: a commit in the middle is measured and compared with both sides, by the smaller p-value of
/// Mann-Whitney's and Kolmogorov-Smirnov's tests.
pub(crate) fn pinpoint(planted: &mut PlantedHistory) -> Outcome {
    let (mut low, mut high) = (0, planted.commits);
    let sample =
        |planted: &mut PlantedHistory, place| -> Vec<f64> { (0..PINPOINT_RUNS).map(|_| planted.read(place)).collect() };
    let mut sides = [sample(planted, low), sample(planted, high)];
    let mut readings = 2 * PINPOINT_RUNS;
    let mut said = differ(&sides[0], &sides[1]);
    while said && high - low > 1 {
        let middle = low.midpoint(high);
        let between = sample(planted, middle);
        readings += PINPOINT_RUNS;
        if differ(&sides[0], &between) {
            (high, sides[1]) = (middle, between);
        } else if differ(&between, &sides[1]) {
            (low, sides[0]) = (middle, between);
        } else {
            said = false;
        }
    }
    Outcome { said: said.then_some(Some(low)), stated: 1.0, names_more: false, size: None, readings }
}

/// Follows the nearer end, by the median of a few runs, however uncertain that is.
pub(crate) fn plain(planted: &mut PlantedHistory) -> Outcome {
    let middle_of = |planted: &mut PlantedHistory, place| {
        let mut values: Vec<f64> = (0..PLAIN_RUNS).map(|_| planted.read(place)).collect();
        values.sort_unstable_by(f64::total_cmp);
        median(&values).unwrap()
    };
    let (mut low, mut high) = (0, planted.commits);
    let threshold = f64::midpoint(middle_of(planted, low), middle_of(planted, high));
    let is_up = middle_of(planted, high) > threshold;
    let mut readings = 3 * PLAIN_RUNS;
    while high - low > 1 {
        let middle = low.midpoint(high);
        readings += PLAIN_RUNS;
        if (middle_of(planted, middle) > threshold) == is_up {
            high = middle;
        } else {
            low = middle;
        }
    }
    Outcome { said: Some(Some(low)), stated: 1.0, names_more: false, size: None, readings }
}

fn differ(a: &[f64], b: &[f64]) -> bool {
    mann_whitney(a, b).unwrap().p_value.min(kolmogorov_smirnov(a, b)) <= PINPOINT_SIGNIFICANCE
}

/// The approximate two-sided p-value of the two-sample test (Stephens 1970).
fn kolmogorov_smirnov(a: &[f64], b: &[f64]) -> f64 {
    let share = |of: &[f64], to: f64| of.iter().filter(|value| **value <= to).count() as f64 / of.len() as f64;
    let distance = a.iter().chain(b).map(|&to| (share(a, to) - share(b, to)).abs()).fold(0.0, f64::max);
    let size = (a.len() * b.len()) as f64 / (a.len() + b.len()) as f64;
    let scaled = (size.sqrt() + 0.12 + 0.11 / size.sqrt()) * distance;
    let terms = (1..=100).map(f64::from).map(|k| {
        let sign = if k % 2.0 == 1.0 { 1.0 } else { -1.0 };
        sign * (-2.0 * k * k * scaled * scaled).exp()
    });
    (2.0 * terms.sum::<f64>()).clamp(0.0, 1.0)
}

/// A random place and size: none in one of five, otherwise from 1.5% to 8%, up or down.
pub(crate) fn drawn(seed: u64) -> (usize, Option<(usize, f64)>) {
    let mut random = Random::new(seed ^ 0x5eed);
    let commits = 16 << random.below(4);
    let size = (0.015_f64.ln() + random.uniform() * (0.08_f64 / 0.015).ln()).exp();
    let signed = if random.below(2) == 0 { size } else { -size };
    let before = random.below(commits as u64) as usize;
    (commits, (random.below(5) != 0).then_some((before, signed)))
}

/// The results of many bisections.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) runs: u64,
    pub(crate) right: u64,
    pub(crate) wrong: u64,
    /// Wrong ones that name a commit although nothing changed.
    pub(crate) invented: u64,
    /// Wrong ones that report no change.
    pub(crate) missed: u64,
    /// Runs without a change.
    pub(crate) unchanged: u64,
    /// Right ones that state the size of a step, and how many of their intervals hold it.
    pub(crate) sized: u64,
    pub(crate) held: u64,
    /// Sum of the probabilities that the answers stated.
    stated: f64,
}

impl Tally {
    fn add(&mut self, planted: &PlantedHistory, outcome: &Outcome) {
        let is_right = outcome.is_right(planted);
        let is_wrong = outcome.said.is_some() && !is_right;
        let one = |is: bool| u64::from(u8::from(is));
        self.runs += 1;
        self.right += one(is_right);
        self.wrong += one(is_wrong);
        self.invented += one(is_wrong && planted.steps.is_empty());
        self.missed += one(is_wrong && outcome.said == Some(None));
        self.unchanged += one(planted.steps.is_empty());
        // If the share of a state changes, no size exists that an interval could hold.
        if let (true, None, Some(size), Some((_, step))) =
            (is_right, planted.scatter.shares(), outcome.size, planted.steps.first())
        {
            self.sized += 1;
            self.held += one(size.interval.low <= *step && *step <= size.interval.high);
        }
        self.stated += outcome.stated;
    }

    pub(crate) fn plus(self, other: Tally) -> Tally {
        Tally {
            runs: self.runs + other.runs,
            right: self.right + other.right,
            wrong: self.wrong + other.wrong,
            invented: self.invented + other.invented,
            missed: self.missed + other.missed,
            unchanged: self.unchanged + other.unchanged,
            sized: self.sized + other.sized,
            held: self.held + other.held,
            stated: self.stated + other.stated,
        }
    }

    pub(crate) fn undecided(&self) -> u64 {
        self.runs - self.right - self.wrong
    }

    /// Over all decided ones, the mean stated probability and the share that was right.
    pub(crate) fn of_decided(&self) -> [f64; 2] {
        let decided = (self.right + self.wrong).max(1) as f64;
        [self.stated / decided, self.right as f64 / decided]
    }
}

/// Bisections of a machine with states: no change in every third, otherwise one of shares, or of 10% to 40% up or down.
/// `readings` replaces the number of readings of the scatter, if given.
pub(crate) fn of_states(scatter: Scatter, readings: Option<usize>, seeds: std::ops::Range<u64>) -> Tally {
    let mut tally = Tally::default();
    for seed in seeds {
        let mut random = Random::new(seed ^ 0x57a7e);
        let commits = 12 << random.below(3);
        let size = (0.1 * 4.0_f64.powf(random.uniform())).ln_1p();
        let signed = if random.below(2) == 0 { size } else { -size };
        let before = random.below(commits) as usize;
        let step = (seed % 3 != 0).then_some((before, signed));
        let mut planted = PlantedHistory::new(commits as usize, step, scatter, seed);
        planted.readings_max = readings.unwrap_or(planted.readings_max);
        let outcome = ours(&mut planted, 0.95);
        tally.add(&planted, &outcome);
    }
    tally
}

/// Bisections with random sizes and places.
pub(crate) fn calibration(scatter: Scatter, confidence: f64, seeds: std::ops::Range<u64>) -> Tally {
    let mut tally = Tally::default();
    for seed in seeds {
        let (commits, step) = drawn(seed);
        let mut planted = PlantedHistory::new(commits, step, scatter, seed);
        let outcome = ours(&mut planted, confidence);
        tally.add(&planted, &outcome);
    }
    tally
}
