//! What is compared: the measures, and how each is read from the record of one start.

use crate::error::{Error, Result};
use crate::result::compare::{Pair, Side, SideRecord};
use crate::result::histogram;
use crate::result::run::RunRecord;

/// A run with more failed requests than this share is not one of the work that was asked for.
pub(crate) const FAILED_SHARE_MAX: f64 = 0.001;

/// One measure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measure {
    /// As in result files and in `--deciding`.
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) higher_is_better: bool,
    /// What B is where it is worse.
    pub(crate) worse: &'static str,
    /// What B is where it is better.
    pub(crate) better: &'static str,
    /// A smaller effect is not one, however certain. For what has next to no noise: every change of a program moves its
    /// instructions by a few and its memory by a page.
    pub(crate) effect_min: f64,
}

const fn latency(name: &'static str) -> Measure {
    Measure { name, unit: LATENCY_UNIT, higher_is_better: false, worse: "slower", better: "faster", effect_min: 0.0 }
}

/// The measures of every pair, in the order of the tables.
pub(crate) const PAIRED: [Measure; 6] = [
    Measure {
        name: "throughput",
        unit: "requests/s",
        higher_is_better: true,
        worse: "lower",
        better: "higher",
        effect_min: 0.0,
    },
    Measure {
        name: "cpu",
        unit: "us/request",
        higher_is_better: false,
        worse: "slower",
        better: "faster",
        effect_min: 0.0,
    },
    latency("p50"),
    latency("p99"),
    latency("p99.9"),
    Measure {
        name: "rss",
        unit: "KiB",
        higher_is_better: false,
        worse: "larger",
        better: "smaller",
        effect_min: EFFECT_MIN,
    },
];

/// Counted apart, over repetitions and not in the pairs.
pub(crate) const INSTRUCTIONS: Measure = Measure {
    name: "instructions",
    unit: "instructions/request",
    higher_is_better: false,
    worse: "more",
    better: "fewer",
    effect_min: EFFECT_MIN,
};

/// See [`Measure::effect_min`].
pub(crate) const EFFECT_MIN: f64 = 0.01;

/// One start's figure for each of [`PAIRED`]; none where it was not measured.
pub(crate) type Reading = [Option<f64>; PAIRED.len()];

/// Of what is read from the open loop.
pub(crate) const LATENCY_UNIT: &str = "us";

/// Whether there is a measure of this name.
pub(crate) fn is_known(name: &str) -> bool {
    PAIRED.iter().chain([&INSTRUCTIONS]).any(|measure| measure.name == name)
}

/// Why a pair cannot be used; none: it can.
pub(crate) fn void(pair: &Pair) -> Option<String> {
    [(Side::A, &pair.a), (Side::B, &pair.b)].into_iter().find_map(|(side, record)| {
        let generator = record.saturation.void.first().cloned();
        let failed = || [&record.saturation, &record.rated].into_iter().find_map(failing);
        let reason = generator.or_else(failed).or_else(|| unmeasured(record))?;
        Some(format!("{side:?}: {reason}"))
    })
}

/// Why a pair tells nothing of latencies: the generator was late in an open loop. What was measured before that loop, with
/// the generator never waiting for a clock, is as good as any.
pub(crate) fn late(pair: &Pair) -> Option<String> {
    [(Side::A, &pair.a), (Side::B, &pair.b)]
        .into_iter()
        .find_map(|(side, record)| Some(format!("{side:?}: {}", record.rated.void.first()?)))
}

/// Both sides' figures.
pub(crate) fn read(pair: &Pair) -> Result<(Reading, Reading)> {
    let late = late(pair).is_some();
    Ok((read_side(&pair.a, late).map_err(of_side(Side::A))?, read_side(&pair.b, late).map_err(of_side(Side::B))?))
}

fn of_side(side: Side) -> impl Fn(Error) -> Error {
    move |error| error.context(format!("the latencies of {side:?}"))
}

/// There is no ratio to nothing.
fn unmeasured(side: &SideRecord) -> Option<String> {
    let nothing = [
        (side.saturation.rate_achieved <= 0.0 || side.rated.requests == 0, "no request was answered in time"),
        (side.cpu_us_per_request <= 0.0, "its CPU time is below what the system's clock tells; measure for longer"),
        (side.rss_kib == 0, "its memory is not told"),
    ];
    nothing.into_iter().find_map(|(is, reason)| is.then(|| reason.to_owned()))
}

fn failing(run: &RunRecord) -> Option<String> {
    let asked = run.requests + run.errors;
    let failed = run.errors as f64 / asked.max(1) as f64;
    (failed > FAILED_SHARE_MAX).then(|| {
        let example = run.error_examples.first().map_or("no example was kept", String::as_str);
        format!("{} of {asked} requests failed, such as: {example}", run.errors)
    })
}

fn read_side(side: &SideRecord, late: bool) -> Result<Reading> {
    let latencies = histogram::decode(&side.rated.corrected)?;
    let us = |quantile: f64| (!late).then(|| latencies.value_at_quantile(quantile) as f64 / 1e3);
    let throughput = Some(side.saturation.rate_achieved);
    Ok([throughput, Some(side.cpu_us_per_request), us(0.5), us(0.99), us(0.999), Some(side.rss_kib as f64)])
}
