//! Axes: from a quantity to a place between 0 and 1, with ticks that a reader can name.
//!
//! Every axis is built from the values it must hold, and holds whatever it is given: a result file may have any number in
//! it, so bounds are clamped and the number of ticks is bounded. It draws nothing.

use super::number;

/// More ticks do not fit next to each other on a phone.
const TICKS_MAX: usize = 9;

/// Latencies over a larger ratio are shown on a logarithmic axis.
const LOG_FROM_RATIO: f64 = 8.0;

/// Decades of a difference that are distinguished; below, its axis is linear. Fewer if both sides of zero need room.
const DIFFERENCE_DECADES_ONE_SIDE: i32 = 4;
const DIFFERENCE_DECADES_BOTH_SIDES: i32 = 3;

/// A side that reaches this share of the other counts as a side.
const SIDE_FROM: f64 = 0.01;

/// Width of the label of a difference on a phone, as a share of the total width.
const LABEL_WIDTH: f64 = 0.15;

/// Share of the width that is left free beyond the outermost value.
const MARGIN: f64 = 0.04;

/// Largest logarithm of a ratio that has a place, and the least that an axis of ratios reaches beyond its values.
const RATIO_REACH_MAX: f64 = 12.0;
const RATIO_REACH_MIN: f64 = 0.0025;

/// An axis of ratios shorter than this, as a logarithm, has ticks at even distances: this many or fewer, about.
const RATIO_LINEAR_MAX: f64 = 1.1;
const RATIO_STEPS: f64 = 6.0;

/// Ticks of a longer one.
const RATIO_TICKS: [f64; 18] =
    [-0.9999, -0.999, -0.99, -0.9, -0.75, -0.5, -0.25, -0.1, 0.0, 0.1, 0.25, 0.5, 1.0, 3.0, 9.0, 99.0, 999.0, 9999.0];

/// Values farther from the middle half of all than this many times its width are outliers.
const OUTLIER_WIDTHS: f64 = 3.0;

/// No clock or counter gives larger figures.
const VALUE_MAX: f64 = 1e15;
const VALUE_MIN: f64 = 1e-6;

/// Smallest and largest number of nines on the tail axis.
const TAIL_DECADES_MIN: f64 = 3.0;
const TAIL_DECADES_MAX: f64 = 9.0;

/// A labelled position.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tick {
    /// From 0 to 1.
    pub(crate) place: f64,
    pub(crate) label: String,
}

/// An end of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AxisEnd {
    Low,
    High,
}

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    pub(crate) ticks: Vec<Tick>,
    /// A remark on the scale.
    pub(crate) note: &'static str,
}

#[derive(Debug, Clone, Copy)]
enum Scale {
    Linear,
    Logarithmic,
    /// Linear around zero up to this size, logarithmic beyond, on both sides.
    Symmetric(f64),
    /// For ratios less one, so that half and double are equally far from zero.
    Ratio,
}

impl Scale {
    fn transform(self, value: f64) -> f64 {
        let value = if value.is_nan() { 0.0 } else { value.clamp(-VALUE_MAX, VALUE_MAX) };
        match self {
            Scale::Linear => value,
            Scale::Logarithmic => value.max(VALUE_MIN).log10(),
            Scale::Symmetric(linear) => (value / linear).asinh(),
            Scale::Ratio => value.max(VALUE_MIN - 1.0).ln_1p(),
        }
    }
}

impl Axis {
    /// The position of `value`; values beyond an end are placed on it.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let span = self.high - self.low;
        let place = (self.scale.transform(value) - self.low) / span;
        if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Microseconds from the least to the most of `values`: logarithmic where they span much, else from zero.
    pub(crate) fn latency(values: impl IntoIterator<Item = f64>) -> Axis {
        let (low, high) = bounds(values.into_iter().filter(|value| *value > 0.0)).unwrap_or((1.0, 10.0));
        if high / low < LOG_FROM_RATIO {
            return Axis::linear(high, number::round_time);
        }
        let (first, last) = (step_125_below(low), step_125_above(high));
        let steps: &[f64] = if last / first > 500.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let ticks = logarithmic_ticks(first, last, steps);
        Axis::new(
            Scale::Logarithmic,
            first,
            last,
            "logarithmic",
            ticks.into_iter().map(|at| (at, number::round_time(at))),
        )
    }

    /// Counts from the least to the most of `values`, logarithmic.
    pub(crate) fn count(values: impl IntoIterator<Item = f64>) -> Axis {
        let (low, high) = bounds(values.into_iter().map(|value| value.max(1.0))).unwrap_or((1.0, 10.0));
        let ticks = logarithmic_ticks(low / 1.5, high * 1.5, &[1.0]);
        let ticks = ticks.into_iter().map(|at| (at, number::short_count(at)));
        // Leaves room beyond the outermost counts, for markers next to each other.
        Axis::new(Scale::Logarithmic, low / 1.8, high * 1.8, "logarithmic", ticks)
    }

    /// Nines: 0%, 90%, 99%… up to the slowest of `requests`; see [`nines`].
    pub(crate) fn tail(requests: u64) -> Axis {
        let decades = (requests as f64).log10().clamp(TAIL_DECADES_MIN, TAIL_DECADES_MAX);
        let ticks = (0..=decades.floor() as usize).map(|nines| (nines as f64, percentile(nines)));
        Axis::new(Scale::Linear, 0.0, decades, "logarithmic in the tail", ticks)
    }

    /// From zero to `high`, with labels by `label`.
    pub(crate) fn linear(high: f64, label: impl Fn(f64) -> String) -> Axis {
        let high = if high.is_finite() { high.clamp(VALUE_MIN, VALUE_MAX) } else { 1.0 };
        let step = nice_step(high / 5.0);
        let top = (high / step).ceil() * step;
        let ticks = (0..TICKS_MAX).map(|at| at as f64 * step).filter(|at| *at <= top * 1.000_001);
        Axis::new(Scale::Linear, 0.0, top, "linear", ticks.map(|at| (at, label(at))))
    }

    /// From zero to exactly `high`, for a total time.
    pub(crate) fn elapsed(high_s: f64) -> Axis {
        let axis = Axis::linear(high_s, number::seconds);
        let high = if high_s.is_finite() { high_s.clamp(VALUE_MIN, VALUE_MAX) } else { 1.0 };
        let step = nice_step(high / 5.0);
        let ticks = (0..TICKS_MAX).map(|at| at as f64 * step).filter(|at| *at <= high);
        Axis::new(axis.scale, 0.0, high, "linear", ticks.map(|at| (at, number::seconds(at))))
    }

    /// 1, 2, 3… up to `count`, with half a place free on either side.
    pub(crate) fn ordinal(count: usize) -> Axis {
        let step = (1..).map(|power| [1, 2, 5][(power - 1) % 3] * 10usize.pow(((power - 1) / 3) as u32));
        let step = step.take(18).find(|step| count / step < TICKS_MAX).unwrap_or(count.max(1));
        let ticks = (step..=count).step_by(step).map(|at| (at as f64, at.to_string()));
        Axis::new(Scale::Linear, 0.5, count as f64 + 0.5, "linear", ticks)
    }

    /// Differences around zero, of any size.
    pub(crate) fn difference(values: impl IntoIterator<Item = f64>, label: impl Fn(f64) -> String) -> Axis {
        let (low, high) = bounds(values).unwrap_or((-1.0, 1.0));
        // Zero alone needs an axis, too.
        let (low, high) = if low == high && low == 0.0 { (-1.0, 1.0) } else { (low.min(0.0), high.max(0.0)) };
        let largest = high.max(-low).clamp(VALUE_MIN, VALUE_MAX);
        let top = largest.log10().ceil() as i32;
        let both = high.min(-low) > largest * SIDE_FROM;
        let decades = if both { DIFFERENCE_DECADES_BOTH_SIDES } else { DIFFERENCE_DECADES_ONE_SIDE };
        let linear = 10f64.powi(top - decades);
        let scale = Scale::Symmetric(linear);
        let sizes = (top - decades..=top).map(|decade| 10f64.powi(decade));
        let sizes: Vec<f64> = sizes.filter(|size| *size > linear).collect();
        let span = scale.transform(high) - scale.transform(low);
        // The side without values stays wide enough to be seen as a side.
        let pad = |value: f64| scale.transform(value).abs().max(span * 0.08) + span * MARGIN;
        let (from, to) = (-pad(low), pad(high));
        let all = sizes.iter().rev().map(|size| -size).chain([0.0]).chain(sizes.iter().copied());
        let inside = all.filter(|at| (from..=to).contains(&scale.transform(*at)));
        let ticks = inside.map(|at| Tick {
            place: (scale.transform(at) - from) / (to - from),
            label: if at == 0.0 { "0".to_owned() } else { label(at) },
        });
        let ticks = apart(ticks.collect());
        Axis { scale, low: from, high: to, ticks, note: "linear around zero, logarithmic beyond" }
    }

    /// Numbered columns, of which as many are named as have room; those of `always` before the others.
    pub(crate) fn columns(names: &[String], always: &[usize]) -> Axis {
        let count = names.len() as f64;
        let mut axis = Axis::new(Scale::Linear, 0.5, count + 0.5, "linear", std::iter::empty());
        let every = names.len().div_ceil(TICKS_MAX).max(1);
        let order = always.iter().copied().chain((0..names.len()).step_by(every));
        for index in order.filter(|index| *index < names.len()) {
            let place = axis.place((index + 1) as f64);
            if axis.ticks.iter().all(|other| (other.place - place).abs() >= 0.8 / TICKS_MAX as f64) {
                axis.ticks.push(Tick { place, label: names[index].clone() });
            }
        }
        axis.ticks.sort_by(|a, b| a.place.total_cmp(&b.place));
        axis
    }

    /// Ratios less one, with zero.
    pub(crate) fn ratio(values: impl IntoIterator<Item = f64>) -> Axis {
        let (low, high) = bounds(values).unwrap_or((-0.1, 0.1));
        let scale = Scale::Ratio;
        let end = |value: f64| scale.transform(value).clamp(-RATIO_REACH_MAX, RATIO_REACH_MAX);
        let (from, to) = (end(low.min(0.0)), end(high.max(0.0)));
        // The side without values stays wide enough to be seen as a side.
        let pad = ((to - from) * 2.0 * MARGIN).max(RATIO_REACH_MIN);
        let (from, to) = (from - pad, to + pad);
        let (least, most) = (from.exp_m1(), to.exp_m1());
        let at: Vec<f64> = if to - from < RATIO_LINEAR_MAX {
            let step = nice_step((most - least) / RATIO_STEPS);
            (0..=2 * TICKS_MAX).map(|number| ((least / step).ceil() + number as f64) * step).collect()
        } else {
            RATIO_TICKS.to_vec()
        };
        let inside = at.into_iter().filter(|at| (least..=most).contains(at));
        // Not quite zero is a rounding error.
        let exact = inside.map(|at| if at.abs() < 1e-9 { 0.0 } else { at });
        let tick = |at: f64| Tick { place: (scale.transform(at) - from) / (to - from), label: ratio_label(at) };
        let ticks = apart(exact.map(tick).collect());
        Axis { scale, low: from, high: to, ticks, note: "logarithmic in the ratio" }
    }

    /// Ratios less one, as far to one side of zero as to the other.
    pub(crate) fn ratio_around_zero(values: impl IntoIterator<Item = f64>) -> Axis {
        let reach = values.into_iter().filter(|value| value.is_finite()).map(|value| value.ln_1p().abs());
        let reach = reach.filter(|reach| reach.is_finite()).fold(0.0, f64::max);
        Axis::ratio([(-reach).exp_m1(), reach.exp_m1()])
    }

    /// Whether `value` has no place of its own: the end it lies beyond.
    pub(crate) fn beyond(&self, value: f64) -> Option<AxisEnd> {
        let at = self.scale.transform(value);
        match () {
            () if at > self.high => Some(AxisEnd::High),
            () if at < self.low => Some(AxisEnd::Low),
            () => None,
        }
    }

    fn new(scale: Scale, low: f64, high: f64, note: &'static str, ticks: impl Iterator<Item = (f64, String)>) -> Axis {
        let (low, high) = (scale.transform(low), scale.transform(high));
        let mut axis = Axis { scale, low, high: if high > low { high } else { low + 1.0 }, ticks: Vec::new(), note };
        axis.ticks = ticks.map(|(at, label)| Tick { place: axis.place(at), label }).collect();
        axis
    }
}

/// How many nines a share has: 0 at 0%, 1 at 90%, 2 at 99%.
pub(crate) fn nines(share: f64) -> f64 {
    -(1.0 - share).max(VALUE_MIN * VALUE_MIN).log10()
}

fn percentile(nines: usize) -> String {
    match nines {
        0 => "0%".to_owned(),
        1 => "90%".to_owned(),
        2 => "99%".to_owned(),
        more => format!("99.{}%", "9".repeat(more - 2)),
    }
}

fn ratio_label(at: f64) -> String {
    if at == 0.0 {
        return "0%".to_owned();
    }
    let sign = if at > 0.0 { "+" } else { "\u{2212}" };
    let percent = (at.abs() * 1e4).round() / 100.0;
    if percent >= 300.0 { format!("×{}", number::short_count(1.0 + at)) } else { format!("{sign}{percent}%") }
}

/// Zero, the outermost, and those of the others that have room for their label.
fn apart(mut ticks: Vec<Tick>) -> Vec<Tick> {
    let mut kept: Vec<Tick> = Vec::new();
    // The outermost of the side with more room comes first.
    ticks.sort_by(|a, b| {
        let rank = |tick: &Tick| if matches!(tick.label.as_str(), "0" | "0%") { 2.0 } else { (tick.place - 0.5).abs() };
        rank(b).total_cmp(&rank(a))
    });
    for tick in ticks {
        if kept.iter().all(|other| (other.place - tick.place).abs() >= LABEL_WIDTH) {
            kept.push(tick);
        }
    }
    kept.sort_by(|a, b| a.place.total_cmp(&b.place));
    kept
}

fn bounds(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let finite = values.into_iter().filter(|value| value.is_finite()).map(|value| value.clamp(-VALUE_MAX, VALUE_MAX));
    finite.fold(None, |seen, value| match seen {
        None => Some((value, value)),
        Some((low, high)) => Some((value.min(low), value.max(high))),
    })
}

/// The values that an axis should show: all but outliers, by Tukey's fences. Of few, or of mostly equal ones, all.
pub(crate) fn without_outliers(values: &[f64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return sorted };
    let (low, high) = (sorted[last / 4], sorted[last - last / 4]);
    let reach = (high - low) * OUTLIER_WIDTHS;
    if reach > 0.0 {
        sorted.retain(|value| (low - reach..=high + reach).contains(value));
    }
    sorted
}

/// 1, 2 or 5 times a power of ten, thinned until they fit.
fn logarithmic_ticks(low: f64, high: f64, steps: &[f64]) -> Vec<f64> {
    let (low, high) = (low.clamp(VALUE_MIN, VALUE_MAX), high.clamp(VALUE_MIN, VALUE_MAX));
    let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let all = decades.flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)));
    let inside: Vec<f64> = all.filter(|at| (low * 0.999..=high * 1.001).contains(at)).collect();
    let every = inside.len().div_ceil(TICKS_MAX).max(1);
    inside.into_iter().step_by(every).collect()
}

fn step_125_below(value: f64) -> f64 {
    let value = value.max(VALUE_MIN);
    let decade = 10f64.powi(value.log10().floor() as i32);
    [5.0, 2.0, 1.0].into_iter().map(|step| step * decade).find(|at| *at <= value).unwrap_or(decade)
}

fn step_125_above(value: f64) -> f64 {
    let value = value.max(VALUE_MIN);
    let decade = 10f64.powi(value.log10().floor() as i32);
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * decade).find(|at| *at >= value).unwrap_or(10.0 * decade)
}

/// 1, 2, 2.5 or 5 times a power of ten, at least `rough`.
fn nice_step(rough: f64) -> f64 {
    let rough = rough.max(VALUE_MIN);
    let decade = 10f64.powi(rough.log10().floor() as i32);
    [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|step| step * decade).find(|at| *at >= rough).unwrap_or(10.0 * decade)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(axis: &Axis, labels: &str) {
        let shown: Vec<&str> = axis.ticks.iter().map(|tick| tick.label.as_str()).collect();
        assert_eq!(shown.join(" | "), labels);
        let places: Vec<f64> = axis.ticks.iter().map(|tick| tick.place).collect();
        assert!(places.is_sorted() && places.iter().all(|place| (0.0..=1.0).contains(place)), "{places:?}");
    }

    #[test]
    fn ticks_are_round() {
        check(&Axis::latency([900.0, 1_500.0]), "0 µs | 500 µs | 1 ms | 1.5 ms");
        let wide = "50 µs | 100 µs | 200 µs | 500 µs | 1 ms | 2 ms | 5 ms | 10 ms | 20 ms";
        check(&Axis::latency([90.0, 12_000.0]), wide);
        check(&Axis::latency([90.0, 934_910.0]), "100 µs | 1 ms | 10 ms | 100 ms | 1 s");
        check(&Axis::count([1e3, 1e6]), "1k | 10k | 100k | 1M");
        check(&Axis::tail(1_000_000), "0% | 90% | 99% | 99.9% | 99.99% | 99.999% | 99.9999%");
        check(&Axis::ordinal(16), "2 | 4 | 6 | 8 | 10 | 12 | 14 | 16");
        check(&Axis::ordinal(3), "1 | 2 | 3");
        check(&Axis::elapsed(12.0), "0 s | 2.5 s | 5 s | 7.5 s | 10 s");
    }

    #[test]
    fn differences_show_zero_and_both_sides() {
        let axis = Axis::difference([-20.0, 800_000.0], number::round_time_difference);
        check(&axis, "0 | +1 ms | +10 ms | +100 ms | +1 s");
        assert!(axis.place(-20.0) < axis.place(0.0));
        assert!(axis.place(0.0) > 0.0);
        check(&Axis::ratio([-0.03, 0.08]), "\u{2212}2.5% | 0% | +2.5% | +5% | +7.5%");
        check(&Axis::ratio([0.0, 2.0]), "0% | +25% | +100%");
        check(&Axis::ratio_around_zero([0.01, 0.2]), "\u{2212}10% | 0% | +10% | +20%");
        check(&Axis::ratio([0.0]), "\u{2212}0.2% | \u{2212}0.1% | 0% | +0.1% | +0.2%");
    }

    #[test]
    fn an_outlier_is_beyond_the_axis_of_the_others() {
        let values = [0.01, 0.02, 0.03, 0.04, 0.02, 9.0, -0.9, f64::INFINITY];
        let axis = Axis::ratio(without_outliers(&values));
        let beyond: Vec<_> = values.iter().map(|value| axis.beyond(*value)).collect();
        let (low, high) = (Some(AxisEnd::Low), Some(AxisEnd::High));
        assert_eq!(beyond, [None, None, None, None, None, high, low, high]);
        assert_eq!(without_outliers(&[1.0, 1.0, 1.0, 9.0]), [1.0, 1.0, 1.0, 9.0]);
        assert!(without_outliers(&[]).is_empty());
    }

    #[test]
    fn columns_are_named_where_there_is_room() {
        let names: Vec<String> = (0..40).map(|number| number.to_string()).collect();
        check(&Axis::columns(&names, &[22]), "0 | 5 | 10 | 15 | 22 | 30 | 35");
        check(&Axis::columns(&names[..3], &[7]), "0 | 1 | 2");
        check(&Axis::columns(&[], &[]), "");
    }

    #[test]
    fn any_number_has_a_place() {
        let odd = [f64::NAN, f64::INFINITY, -f64::INFINITY, 0.0, -0.0, 1e300, -1e300, 1e-300, 1.0];
        for a in odd {
            for b in odd {
                for axis in [
                    Axis::latency([a, b]),
                    Axis::count([a, b]),
                    Axis::difference([a, b], number::time),
                    Axis::ratio([a, b]),
                    Axis::ratio_around_zero([a, b]),
                    Axis::elapsed(a),
                    Axis::linear(b, number::time),
                    Axis::tail(a as u64),
                ] {
                    assert!(axis.ticks.len() <= 2 * TICKS_MAX, "{a} {b} {axis:?}");
                    assert!(axis.ticks.iter().all(|tick| tick.place.is_finite()), "{a} {b} {axis:?}");
                    assert!((0.0..=1.0).contains(&axis.place(a)), "{a} {b} {axis:?}");
                }
            }
        }
    }
}
