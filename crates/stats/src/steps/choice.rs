//! Where the next reading tells most for its cost, and whether enough is known.

use super::Steps;
use super::chain::Fates;
use super::grid::Grid;
use crate::mann_whitney::mann_whitney;
use crate::signed_rank::signed_rank;
use std::ops::RangeInclusive;

/// What may be said.
#[derive(Debug, Clone, PartialEq)]
pub enum Conclusion {
    /// A step in each of these ranges of places: after the first, at or before the last.
    Found(Vec<(usize, usize)>),
    /// No step that is large enough to count.
    None,
    /// Neither yet.
    Open,
}

/// Readings of the two ends before anything else: so many, and up to so many until the ends differ or the place between
/// them would be sought by a difference that chance has made.
const OPENING_MIN: usize = 6;
const OPENING_MAX: usize = 16;

/// Probability of no step below which the ends differ.
const DIFFERENT: f64 = 0.02;

/// Probability of no step above which places between the ends are read, some times: two steps that undo each other leave
/// the ends alike.
const LIKELY_NONE: f64 = 0.5;

/// Parts of the row whose borders, or what is nearest to them, are then read.
const PARTS: usize = 4;

/// No step is only said after so many readings between the ends.
const INNER_MIN: usize = 6;

/// A step is only said to be found where the places right before and behind it were read in turns, so many in all: fewer readings
/// agree by luck more often than any estimate of the noise knows, and a machine that changes between them looks like a step.
const BORDER_TURNS: usize = 8;

/// The same where readings have states far apart. There the two must also differ in pairs of readings that were taken in turns, by
/// themselves: what no estimate of the noise knows is which state a reading will have, and how long a state lasts. They are read
/// so often at most, until they do.
const BORDER_TURNS_OF_STATES: usize = 24;
const BORDER_TURNS_OF_STATES_MAX: usize = 120;

/// A pair is of two readings with at most so many others between them.
const PAIR_APART_MAX: usize = 2;

/// Near is closer than this, in scales of the noise: of usual readings three in ten. Those with states have their level between the
/// states, so that hardly one is near, or at one of them, so that many are.
const NEAR_NOISES: f64 = 0.4;
const NEAR_SHARES: RangeInclusive<f64> = 0.12..=0.45;
const NEAR_SHARE_WITHOUT_NOISE: f64 = 0.97;

/// Off the level is farther than this: of usual readings 4%, and 14% where there are outliers.
const OFF_NOISES: f64 = 2.0;
const OFF_SHARE_MAX: f64 = 0.25;

/// More than this share is far, or the drift moves by as much between two readings, in scales of the noise.
const FAR_SHARE_MAX: f64 = 0.05;
const JUMP_NOISES: f64 = 1.0;

/// Probability of a step from which its borders are read so often.
const LIKELY_STEP: f64 = 0.9;

/// A step is only said to be found where the readings before it and behind it also differ by their ranks, whatever they scatter like:
/// with a probability that is so many times smaller than the stated error. The divisor is for looking after each reading, and
/// for choosing where.
const LOOKS: f64 = 50.0;

/// Readings farther from their level than this, in scales of the noise, are of another state, or outliers. One counts for at most so
/// many of the least steps: a single wild run is not to ask for hundreds of others.
const FAR_NOISES: f64 = 5.0;
const FAR_STEPS_MAX: f64 = 30.0;
/// A change may be hidden where they move the mean by more than this many of the least steps.
const STEPS_HIDDEN_MAX: f64 = 0.5;

/// Steps that are expected besides those that are said to be found, beyond the doubt about these: with more, the answer would
/// name one and give it the size of two.
const OTHERS_MAX: f64 = 0.1;

/// One of the ends is read again after so many readings, lest drift between them goes unseen.
const END_EVERY: usize = 10;

/// Of what a reading tells about a level, the share that counts.
const LEVEL_SHARE: f64 = 0.1;

/// Readings farther from their level than this are left out of the information, in scales of the noise.
const NOISES_MAX: f64 = 4.0;

/// Values of a reading that are told apart, per scale of the noise.
const VALUES_PER_NOISE: f64 = 2.0;

/// Degrees of freedom of the noise, taken for the one in between.
const DEGREES: f64 = 6.0;

/// Levels less likely than this change no choice.
const MASS_MIN: f64 = 1e-4;

/// The place to read next, after `read` was read in this order: first the ends in turn, in the order first, last, last,
/// first, so that drift favours neither; then what [`choose`] says, and now and then an end again. None where no place
/// can be read.
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

/// The places that were read right before a step and behind it.
fn borders(known: &Steps, step: usize) -> (usize, usize) {
    let read = |place: &usize| known.counts[*place] > 0;
    let last = known.counts.len() - 1;
    ((0..=step).rev().find(read).unwrap_or(0), (step + 1..=last).find(read).unwrap_or(last))
}

/// How often two places were read in turns: readings of either, but for those right after another of the same place.
fn turns(known: &Steps, places: (usize, usize)) -> usize {
    let mut turns: Vec<usize> =
        known.order.iter().copied().filter(|place| [places.0, places.1].contains(place)).collect();
    turns.dedup();
    turns.len()
}

/// The border to read next of a step that is likely, where there were too few turns. There may be two such steps.
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

/// The place to read next: the one whose reading tells most for its cost.
///
/// What it tells is the mutual information (Lindley 1956) of the reading with where the step is: none, before the place,
/// after it, or several. A share of what it tells about the place's level comes on top: whoever knows the two levels
/// better learns more from each later reading. `cost` is none where a place cannot be read; of equal places the first
/// is chosen.
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
    /// Of each level, of each value.
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

    /// Between a reading of the place and its fate.
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
/// `readable` says of each place whether it can be read: a step between two places that can, with none in between, is
/// found though it remains a range. Found is a step whose probability is at least `confidence`, and only where the
/// evidence against no step at all holds however often one looks. Where another step is not unlikely, it is sought first.
pub fn conclude(known: &Steps, readable: &[bool], confidence: f64) -> Conclusion {
    // Few readings may agree by luck, and then say too much.
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

/// Whether the places next to a step were read in turns often enough, and differ where that must be shown.
fn is_bordered(known: &Steps, places: (usize, usize), step: usize, confidence: f64) -> bool {
    match known.has_states() {
        false => turns(known, places) >= BORDER_TURNS,
        true => turns(known, places) >= BORDER_TURNS_OF_STATES && differ_in_pairs(known, places, step, confidence),
    }
}

/// Whether the second place is above the first, or below it, as the step is, in pairs of readings of both (signed ranks).
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
    /// Whether readings lie otherwise about their levels than noise with one hump does, or the machine jumps.
    fn has_states(&self) -> bool {
        let left = self.values.iter().zip(&self.order).map(|(value, place)| (value - self.levels[*place].mean).abs());
        let left: Vec<f64> = left.map(|left| left / self.noise).collect();
        let share = |is: &dyn Fn(f64) -> bool| left.iter().filter(|left| is(**left)).count() as f64 / left.len() as f64;
        let near = share(&|left| left < NEAR_NOISES);
        let jumps = self.drift.windows(2).any(|pair| (pair[1] - pair[0]).abs() > JUMP_NOISES * self.noise);
        // Where all are near there is no noise, and nothing beside it.
        let is_usual = NEAR_SHARES.contains(&near) || near > NEAR_SHARE_WITHOUT_NOISE;
        !is_usual
            || share(&|left| left > OFF_NOISES) > OFF_SHARE_MAX
            || share(&|left| left > FAR_NOISES) > FAR_SHARE_MAX
            || jumps
    }

    /// Whether readings far from their level move the mean by as much as a step. Levels do not see them, and so do not see a
    /// place from which on they are more frequent either.
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
