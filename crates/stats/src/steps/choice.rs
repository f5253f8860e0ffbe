//! Chooses the place whose next reading is the most informative for its cost, and decides when enough is known.

use super::Steps;
use super::chain::{Fates, Grid};
use crate::rank_tests::{mann_whitney, signed_rank};
use std::ops::RangeInclusive;

/// What can be concluded from the readings.
#[derive(Debug, Clone, PartialEq)]
pub enum Conclusion {
    /// One step within each of these ranges of places: after the first place, at or before the last.
    Found(Vec<(usize, usize)>),
    /// No step is large enough to count.
    None,
    /// Not decided yet.
    Open,
}

/// Readings of the two ends before anything else is read. More are taken, up to the second number, until the ends
/// differ; otherwise the search between them would follow a difference that is due to chance.
const OPENING_MIN: usize = 6;
const OPENING_MAX: usize = 16;

/// The ends differ if the probability of no step is below this.
const DIFFERENT: f64 = 0.02;

/// If the probability of no step is above this, places between the ends are read a few times: two steps that cancel
/// each other leave the ends alike.
const LIKELY_NONE: f64 = 0.5;

/// These readings are at the borders of this many parts of the row, or at the places nearest to them.
const PARTS: usize = 4;

/// "No step" is reported only after this many readings between the ends.
const INNER_MIN: usize = 6;

/// A step is reported only if the places right before and after it were read in alternation, this many readings in all:
/// fewer readings agree by luck more often than any estimate of the noise predicts, and a machine that changes between
/// them looks like a step.
const BORDER_TURNS: usize = 8;

/// As [`BORDER_TURNS`], for readings with states far apart. There the two places must also differ in pairs of
/// alternating readings, by themselves: no estimate of the noise predicts which state a reading will have, or how long
/// a state lasts. The places are read at most this often to reach that.
const BORDER_TURNS_OF_STATES: usize = 24;
const BORDER_TURNS_OF_STATES_MAX: usize = 120;

/// The readings of a pair have at most this many others between them.
const PAIR_APART_MAX: usize = 2;

/// A reading is near its level if it is closer than this, in scales of the noise: three in ten of the usual readings
/// are. For readings with states the level is either between the states, so that hardly any is near, or at one of them,
/// so that many are.
const NEAR_NOISES: f64 = 0.4;
const NEAR_SHARES: RangeInclusive<f64> = 0.12..=0.45;
const NEAR_SHARE_WITHOUT_NOISE: f64 = 0.97;

/// A reading is off its level if it is farther than this: 4% of the usual readings are, 14% where there are outliers.
const OFF_NOISES: f64 = 2.0;
const OFF_SHARE_MAX: f64 = 0.25;

/// Readings have states if more than this share is far from its level, or if the drift moves this far between two
/// readings, in scales of the noise.
const FAR_SHARE_MAX: f64 = 0.05;
const JUMP_NOISES: f64 = 1.0;

/// The borders of a step are read this often if its probability is at least this.
const LIKELY_STEP: f64 = 0.9;

/// A step is reported only if the readings before it and after it also differ by their ranks, whatever their
/// distribution, with a p-value this many times smaller than the stated error. The divisor pays for a look after each
/// reading, and for the choice of the place.
const LOOKS: f64 = 50.0;

/// Readings farther from their level than this, in scales of the noise, belong to another state or are outliers. Each
/// counts for at most this many smallest steps: a single extreme run must not lead to hundreds of further readings.
const FAR_NOISES: f64 = 5.0;
const FAR_STEPS_MAX: f64 = 30.0;
/// They may hide a change if they move the mean by more than this many smallest steps.
const STEPS_HIDDEN_MAX: f64 = 0.5;

/// Steps that are expected besides the reported ones, beyond the uncertainty of those: with more, the answer would name
/// one step and give it the size of two.
const OTHERS_MAX: f64 = 0.1;

/// One of the ends is read again after this many readings, so that drift is noticed.
const END_EVERY: usize = 10;

/// The share that counts of the information that a reading gives about a level.
const LEVEL_SHARE: f64 = 0.1;

/// Readings farther from their level than this are left out of the information, in scales of the noise.
const NOISES_MAX: f64 = 4.0;

/// Distinct values of a reading per scale of the noise.
const VALUES_PER_NOISE: f64 = 2.0;

/// Degrees of freedom of the noise, between those of the noise models.
const DEGREES: f64 = 6.0;

/// Levels less likely than this do not affect the choice.
const MASS_MIN: f64 = 1e-4;

/// The place to read next, after `read` was read in this order: first the ends in turn, in the order first, last, last,
/// first, so that drift favours neither; then the choice of [`choose`], and an end again at intervals. `None` where no
/// place can be read.
pub fn next_place(
    read: &[usize],
    known: Option<&Steps>,
    last: usize,
    mut cost: impl FnMut(usize) -> Option<f64>,
) -> Option<usize> {
    let count = read.len();
    let opens = count < OPENING_MIN || count < OPENING_MAX && known.is_none_or(|known| known.none > DIFFERENT);
    let turn = known.filter(|_| !opens).and_then(|known| next_turn(known, |place| cost(place).is_some()));
    if let Some(place) = turn.filter(|place| cost(*place).is_some()) {
        return Some(place);
    }
    match known {
        Some(known) if !opens && known.none > LIKELY_NONE && inner(known) < INNER_MIN => {
            let off = |place: usize| (1..PARTS).map(|part| place.abs_diff(last * part / PARTS)).min();
            let times = |place: usize| read.iter().filter(|other| **other == place).count();
            let inner = (1..last).filter(|place| cost(*place).is_some());
            inner.min_by_key(|place| (off(*place), times(*place))).or_else(|| choose(known, cost))
        }
        Some(known) if !opens && !count.is_multiple_of(END_EVERY) => choose(known, cost),
        Some(_) if !opens => {
            let ago = |end: usize| read.iter().rev().position(|place| *place == end);
            Some(if ago(0) >= ago(last) { 0 } else { last })
        }
        _ => Some(if count % 4 == 1 || count % 4 == 2 { last } else { 0 }),
    }
}

fn inner(known: &Steps) -> usize {
    known.counts[1..known.counts.len() - 1].iter().sum()
}

/// The places that were read right before a step and right after it.
fn borders(known: &Steps, step: usize) -> (usize, usize) {
    let read = |place: &usize| known.counts[*place] > 0;
    let last = known.counts.len() - 1;
    ((0..=step).rev().find(read).unwrap_or(0), (step + 1..=last).find(read).unwrap_or(last))
}

/// How often two places were read in alternation: readings of either, except those right after another reading of the
/// same place.
fn turns(known: &Steps, places: (usize, usize)) -> usize {
    let mut turns: Vec<usize> =
        known.order.iter().copied().filter(|place| [places.0, places.1].contains(place)).collect();
    turns.dedup();
    turns.len()
}

/// The border to read next of a likely step that has too few alternating readings. There may be two of these steps.
fn next_turn(known: &Steps, mut is_readable: impl FnMut(usize) -> bool) -> Option<usize> {
    let most = if known.has_states() { BORDER_TURNS_OF_STATES_MAX } else { BORDER_TURNS };
    let read: Vec<usize> = (0..known.counts.len()).filter(|place| known.counts[*place] > 0).collect();
    let (before, behind) = read.windows(2).map(|pair| (pair[0], pair[1])).find(|&(before, behind)| {
        let is_likely = known.steps[before..behind].iter().sum::<f64>() >= LIKELY_STEP;
        is_likely && {
            let turns = turns(known, (before, behind));
            turns < BORDER_TURNS || turns < most && !(before + 1..behind).any(&mut is_readable)
        }
    })?;
    let last = known.order.iter().rev().find(|place| [before, behind].contains(place));
    Some(if last == Some(&before) { behind } else { before })
}

/// The place to read next: the one whose reading is the most informative for its cost.
///
/// Its information is the mutual information (Lindley 1956) of the reading with the position of the step: none, before
/// the place, after it, or several. A share of its information about the place's level is added, because each later
/// reading is more informative when the two levels are better known. `cost` is `None` where a place cannot be read; of
/// equal places the first is chosen.
pub fn choose(known: &Steps, mut cost: impl FnMut(usize) -> Option<f64>) -> Option<usize> {
    let kernel = Kernel::new(known);
    let variance = known.noise * known.noise;
    let mut best: Option<(usize, f64)> = None;
    for (place, fates) in known.fates.iter().enumerate() {
        let Some(cost) = cost(place) else { continue };
        let level = (known.levels[place].variance / variance).ln_1p() / 2.0;
        let value = (kernel.information(fates) + LEVEL_SHARE * level) / cost;
        if best.is_none_or(|(_, most)| value > most) {
            best = Some((place, value));
        }
    }
    best.map(|(place, _)| place)
}

/// How likely each value of a reading is for each level.
struct Kernel {
    values: usize,
    /// Indexed by level, then by value.
    rows: Vec<Vec<f64>>,
}

impl Kernel {
    fn new(known: &Steps) -> Kernel {
        let Grid { low, cell, cells, .. } = &known.grid;
        let step = known.noise / VALUES_PER_NOISE;
        let margin = NOISES_MAX * known.noise;
        let values = ((cell * (*cells as f64) + 2.0 * margin) / step).ceil() as usize;
        let row = |level: f64| -> Vec<f64> {
            let density = |value: usize| {
                let z = (low - margin + step * value as f64 - level) / known.noise;
                (1.0 + z * z / DEGREES).powf(-(DEGREES + 1.0) / 2.0)
            };
            let row: Vec<f64> = (0..values).map(density).collect();
            let sum: f64 = row.iter().sum();
            row.iter().map(|density| density / sum).collect()
        };
        Kernel { values, rows: (0..*cells).map(|index| row(known.grid.level(index))).collect() }
    }

    /// The mutual information of a reading of the place with the place's fate.
    fn information(&self, fates: &Fates) -> f64 {
        let mut all = vec![0.0; self.values];
        let mut information = 0.0;
        for fate in fates {
            let share: f64 = fate.iter().sum();
            let mut values = vec![0.0; self.values];
            for (mass, row) in fate.iter().zip(&self.rows).filter(|(mass, _)| **mass > MASS_MIN) {
                for (value, density) in values.iter_mut().zip(row) {
                    *value += mass * density;
                }
            }
            information += entropy_like(&values) - if share > 0.0 { share * share.ln() } else { 0.0 };
            all.iter_mut().zip(&values).for_each(|(all, value)| *all += value);
        }
        information - entropy_like(&all)
    }
}

/// The sum of p ln p.
fn entropy_like(values: &[f64]) -> f64 {
    values.iter().filter(|value| **value > 0.0).map(|value| value * value.ln()).sum()
}

/// Whether enough is known.
///
/// `readable` marks the places that can be read: a step between two readable places, with none in between, counts as
/// found although it remains a range. A step is found if its probability is at least `confidence` and if the evidence
/// against "no step" holds under any number of looks. If another step is not unlikely, the search continues for that
/// one first.
pub fn conclude(known: &Steps, readable: &[bool], confidence: f64) -> Conclusion {
    // A few readings may agree by luck, and would then appear too certain.
    if known.drift.len() < OPENING_MIN {
        return Conclusion::Open;
    }
    let last = readable.len() - 1;
    let between = readable[1..last].iter().any(|readable| *readable);
    if known.none >= confidence && (inner(known) >= INNER_MIN || !between) {
        return if known.may_hide_a_change() { Conclusion::Open } else { Conclusion::None };
    }
    let (mut found, mut named) = (Vec::new(), 0.0);
    let mut from = 0;
    for (place, readable) in readable.iter().enumerate().skip(1) {
        if *readable {
            let is_likely = known.steps[from..place].iter().sum::<f64>() >= confidence;
            if is_likely && is_bordered(known, borders(known, from), from, confidence) {
                found.push((from, place));
                named += known.steps[from..place].iter().sum::<f64>();
            }
            from = place;
        }
    }
    if !(0..found.len()).all(|index| differ(known, &found, index, confidence)) {
        return Conclusion::Open;
    }
    let is_evident = known.log_evidence >= -(1.0 - confidence).ln();
    let others = known.steps.iter().sum::<f64>() - named;
    let is_all = !found.is_empty() && others <= OTHERS_MAX + (1.0 - confidence) * found.len() as f64;
    if is_evident && is_all { Conclusion::Found(found) } else { Conclusion::Open }
}

/// Whether the places next to a step were read in alternation often enough, and differ where that must be shown.
fn is_bordered(known: &Steps, places: (usize, usize), step: usize, confidence: f64) -> bool {
    match known.has_states() {
        false => turns(known, places) >= BORDER_TURNS,
        true => turns(known, places) >= BORDER_TURNS_OF_STATES && differ_in_pairs(known, places, step, confidence),
    }
}

/// Whether the second place is above the first, or below it, in the direction of the step, in pairs of readings of both
/// (signed ranks).
fn differ_in_pairs(known: &Steps, (before, behind): (usize, usize), step: usize, confidence: f64) -> bool {
    let mut diffs = Vec::new();
    let mut unpaired: Option<usize> = None;
    for (at, place) in known.order.iter().enumerate().filter(|(_, place)| [before, behind].contains(*place)) {
        match unpaired {
            Some(other) if known.order[other] != *place && at - other <= 1 + PAIR_APART_MAX => {
                let (first, second) = if *place == behind { (other, at) } else { (at, other) };
                diffs.push(known.values[second] - known.values[first]);
                unpaired = None;
            }
            _ => unpaired = Some(at),
        }
    }
    let Some(test) = signed_rank(&diffs) else { return false };
    let Some(size) = known.size(step, confidence) else { return false };
    let moved = diffs.iter().filter(|diff| **diff != 0.0).count() as f64;
    let is_rise = test.w_plus > moved * (moved + 1.0) / 4.0;
    test.p_value <= (1.0 - confidence) / LOOKS && is_rise == (size.value > 0.0)
}

impl Steps {
    /// Whether readings scatter about their levels in a way that noise with a single mode does not, or the machine
    /// jumps.
    fn has_states(&self) -> bool {
        let left = self.values.iter().zip(&self.order).map(|(value, place)| (value - self.levels[*place].mean).abs());
        let left: Vec<f64> = left.map(|left| left / self.noise).collect();
        let share = |is: &dyn Fn(f64) -> bool| left.iter().filter(|left| is(**left)).count() as f64 / left.len() as f64;
        let near = share(&|left| left < NEAR_NOISES);
        let jumps = self.drift.windows(2).any(|pair| (pair[1] - pair[0]).abs() > JUMP_NOISES * self.noise);
        // If all are near, neither noise nor a second state exists.
        let is_usual = NEAR_SHARES.contains(&near) || near > NEAR_SHARE_WITHOUT_NOISE;
        !is_usual
            || share(&|left| left > OFF_NOISES) > OFF_SHARE_MAX
            || share(&|left| left > FAR_NOISES) > FAR_SHARE_MAX
            || jumps
    }

    /// Whether readings far from their level move the mean by as much as a step. Levels do not include them, so they do
    /// not show a place after which these readings become more frequent either.
    pub fn may_hide_a_change(&self) -> bool {
        let left = self.values.iter().zip(&self.order).map(|(value, place)| (value - self.levels[*place].mean).abs());
        let far = left.filter(|left| *left > FAR_NOISES * self.noise);
        let moved: f64 = far.map(|left| (left / self.step_min).min(FAR_STEPS_MAX)).sum();
        moved > STEPS_HIDDEN_MAX * self.values.len() as f64
    }
}

/// Whether the readings between the step before and this one differ from those up to the next one, in the direction of the step.
fn differ(known: &Steps, found: &[(usize, usize)], index: usize, confidence: f64) -> bool {
    let (from, to) = found[index];
    let least = index.checked_sub(1).map_or(0, |before| found[before].1);
    let most = found.get(index + 1).map_or(known.counts.len() - 1, |next| next.0);
    let read = |places: std::ops::RangeInclusive<usize>| -> Vec<f64> {
        let of_places = known.order.iter().zip(&known.values).filter(|(place, _)| places.contains(place));
        of_places.map(|(_, value)| *value).collect()
    };
    let Some(test) = mann_whitney(&read(least..=from), &read(to..=most)) else { return false };
    let Some(size) = known.size(from, confidence) else { return false };
    test.p_value <= (1.0 - confidence) / LOOKS && (test.superiority > 0.5) == (size.value > 0.0)
}
