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

    /// Ratios less one, around zero.
    pub(crate) fn ratio(values: impl IntoIterator<Item = f64>) -> Axis {
        let (low, high) = bounds(values).unwrap_or((-0.1, 0.1));
        let scale = Scale::Ratio;
        let reach = scale.transform(high).max(-scale.transform(low)).clamp(0.005, 12.0) * (1.0 + 2.0 * MARGIN);
        let steps: [f64; 14] = [0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0, 9.0, 99.0, 999.0, 9999.0];
        let mut sizes: Vec<f64> = steps.into_iter().filter(|size| size.ln_1p() <= reach).collect();
        // The outermost, and those far enough inside to have room.
        let mut kept = vec![sizes.pop().unwrap_or(0.0025)];
        while let Some(size) = sizes.pop() {
            if kept.len() < 2 && size.ln_1p() <= kept[0].ln_1p() * 0.6 && size.ln_1p() > reach * 0.25 {
                kept.push(size);
            }
        }
        let below = kept.iter().map(|size| 1.0 / (1.0 + size) - 1.0);
        // A round percentage where the scale is nearly linear; the inverse ratio where it is not.
        let below = below.zip(&kept).map(|(inverse, size)| if *size <= 0.2 { -size } else { inverse });
        let all: Vec<f64> = below.chain([0.0]).chain(kept.iter().rev().copied()).collect();
        let inside = all.into_iter().filter(|at| scale.transform(*at).abs() <= reach * 1.000_001);
        let ticks =
            inside.map(|at| Tick { place: (scale.transform(at) + reach) / (2.0 * reach), label: ratio_label(at) });
        Axis { scale, low: -reach, high: reach, ticks: ticks.collect(), note: "logarithmic in the ratio" }
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
        let rank = |tick: &Tick| if tick.label == "0" { 2.0 } else { (tick.place - 0.5).abs() };
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
        check(&Axis::ratio([-0.03, 0.08]), "\u{2212}5% | 0% | +5%");
        check(&Axis::ratio([0.0, 2.0]), "\u{2212}50% | \u{2212}33.33% | 0% | +50% | +100%");
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
