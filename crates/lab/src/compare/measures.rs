//! The measures of a comparison, how each is read from the record of one start, and which pairs are usable.
//!
//! A pair is void for reasons of the generator alone, or if the system does not report figures. Failed requests are due
//! to the programs and void nothing: they are judged by themselves, and a pair with many of them is not used for other
//! measures.
//!
//! Every comparison sees two builds of a round as a [`Duel`]: A is the first, B the second, whatever their names.

use crate::error::{Error, Result};
use crate::result::compare::{BuildPair, CompareResult, Pair, Side, SideRecord};
use crate::result::histogram;
use crate::result::run::RunRecord;
use stillgate_load::Void;

/// A run with a larger share of failed requests did not do the requested work.
pub(crate) const FAILED_SHARE_MAX: f64 = 0.001;

/// A generator thread that used, or waited for, more than this share of its CPU was the bottleneck of a closed loop.
const GENERATOR_SHARE_MAX: f64 = 0.9;

/// With fewer requests p99.9 has no upper bound at 95%: it is hardly more than the slowest request.
const REQUESTS_P99_9_MIN: u64 = 3_688;

/// One measure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measure {
    /// As in result files and in `--deciding`.
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) higher_is_better: bool,
    /// The word for a worse B.
    pub(crate) worse: &'static str,
    /// The word for a better B.
    pub(crate) better: &'static str,
    /// A smaller effect does not count, however certain it is. For measures with next to no noise: every change of a
    /// program changes its instructions by a few and its memory by a page.
    pub(crate) effect_min: f64,
}

const fn latency(name: &'static str) -> Measure {
    Measure { name, unit: LATENCY_UNIT, higher_is_better: false, worse: "slower", better: "faster", effect_min: 0.0 }
}

/// The measure of the closed loop's answers.
pub(crate) const THROUGHPUT: &str = "throughput";

/// The measures of every pair, in the order of the tables.
pub(crate) const PAIRED: [Measure; 6] = [
    Measure {
        name: THROUGHPUT,
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

/// Counted separately, over repetitions and not in the pairs.
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

/// One start's figure for each of [`PAIRED`]; `None` where it was not measured.
pub(crate) type Reading = [Option<f64>; PAIRED.len()];

/// Unit of the measures of the open loop.
pub(crate) const LATENCY_UNIT: &str = "us";

/// Whether there is a measure of this name.
pub(crate) fn is_known(name: &str) -> bool {
    PAIRED.iter().chain([&INSTRUCTIONS]).any(|measure| measure.name == name)
}

/// The index of the measure of this name in tables.
pub(crate) fn place(name: &str) -> usize {
    PAIRED.iter().position(|measure| measure.name == name).unwrap_or(PAIRED.len())
}

/// The smallest effect that counts for a measure of this name.
pub(crate) fn effect_min(name: &str) -> f64 {
    PAIRED.iter().chain([&INSTRUCTIONS]).find(|measure| measure.name == name).map_or(0.0, |measure| measure.effect_min)
}

/// The measure of this name.
pub(crate) fn named(name: &str) -> Option<&'static Measure> {
    PAIRED.iter().chain([&INSTRUCTIONS]).find(|measure| measure.name == name)
}

/// The figure of one start by itself, or the reason why there is none.
pub(crate) fn of_one(measure: &Measure, record: &SideRecord) -> Result<f64> {
    let is_latency = measure.unit == LATENCY_UNIT;
    let run = if is_latency { &record.rated } else { &record.saturation };
    let too_few = measure.name == "p99.9" && run.requests < REQUESTS_P99_9_MIN;
    let why = failed(run)
        .or_else(|| generators_reason(run))
        .or_else(|| {
            let is_nothing = run.good() == 0 || measure.name == THROUGHPUT && run.rate_achieved <= 0.0;
            is_nothing.then(|| "no request was answered in the measured time".to_owned())
        })
        .or_else(|| {
            let is_limit = measure.name == THROUGHPUT && generator_was_the_limit(record);
            is_limit.then(|| "the generator had no CPU left: the rate is its own".to_owned())
        })
        .or_else(|| too_few.then(|| format!("{} requests, where {REQUESTS_P99_9_MIN} are needed", run.requests)));
    if let Some(why) = why {
        return Err(why.into());
    }
    let at = PAIRED.iter().position(|of| of.name == measure.name);
    let figures = match is_latency {
        true => read_side(record, [true; PAIRED.len()])?,
        // There may have been no open loop.
        false => read_side(&SideRecord { rated: record.saturation.clone(), ..record.clone() }, [true; PAIRED.len()])?,
    };
    at.and_then(|at| figures[at]).ok_or_else(|| format!("{} is not measured per start", measure.name).into())
}

/// The number of hypotheses that are judged together: in each comparison the pairs' measures, failed requests, and
/// instructions if they are counted.
pub(crate) fn family(comparisons: usize, instructions: bool) -> usize {
    comparisons * (PAIRED.len() + 1 + usize::from(instructions))
}

/// The reason why a pair cannot be used at all, if any.
pub(crate) fn void(pair: &Duel<'_>) -> Option<String> {
    of_either(pair, |record| {
        generators_reason(&record.saturation).or_else(|| unmeasured(record).filter(|_| failing_side(record).is_none()))
    })
}

/// The reason why a pair did other work than was requested: failed requests.
pub(crate) fn failing(pair: &Duel<'_>) -> Option<String> {
    of_either(pair, failing_side)
}

/// Whether one side failed too many requests for its other measures to be valid.
pub(crate) fn is_failing(record: &SideRecord) -> bool {
    failing_side(record).is_some()
}

/// The share of requests of one side that failed, over both loops.
pub(crate) fn failed_share(record: &SideRecord) -> f64 {
    if unanswered(record).is_some() {
        return 1.0;
    }
    let (closed, open) = (&record.saturation, &record.rated);
    (closed.failed() + open.failed()) as f64 / (closed.requested() + open.requested()).max(1) as f64
}

/// The reason why a pair is not valid for latencies: the generator was late in an open loop. Measurements before that
/// loop, in which the generator never waits for a clock, are not affected.
pub(crate) fn late(pair: &Duel<'_>) -> Option<String> {
    of_either(pair, |record| generators_reason(&record.rated))
}

/// The reason why a pair that is not void has no value for a measure, if any.
pub(crate) fn missing(pair: &Duel<'_>, measure: &Measure) -> Option<String> {
    let failed = failing(pair);
    if failed.is_some() || measure.unit == LATENCY_UNIT && late(pair).is_some() {
        return failed.or_else(|| late(pair));
    }
    match measure.name {
        // If it was the limit on one side only, the other is slower by at least the measured difference.
        "throughput" if generator_was_the_limit(pair.a) && generator_was_the_limit(pair.b) => Some(
            "the generator, which had no CPU left: the rates are its own; give it more CPUs (--load-cpus)".to_owned(),
        ),
        "p99.9" => {
            let requests = pair.a.rated.requests.min(pair.b.rated.requests);
            (requests < REQUESTS_P99_9_MIN).then(|| {
                format!(
                    "{requests} requests a run, where {REQUESTS_P99_9_MIN} are needed; measure for longer (--latency)"
                )
            })
        }
        _ => None,
    }
}

/// Both sides' figures.
pub(crate) fn read(pair: &Duel<'_>) -> Result<(Reading, Reading)> {
    let is_read = PAIRED.each_ref().map(|measure| missing(pair, measure).is_none());
    let side =
        |side, record| read_side(record, is_read).map_err(|error| error.context(format!("the latencies of {side:?}")));
    Ok((side(pair.between.one, pair.a)?, side(pair.between.other, pair.b)?))
}

/// The first side with a reason, and the reason.
fn of_either(pair: &Duel<'_>, reason: impl Fn(&SideRecord) -> Option<String>) -> Option<String> {
    [(pair.between.one, pair.a), (pair.between.other, pair.b)]
        .into_iter()
        .find_map(|(side, record)| Some(format!("{side:?}: {}", reason(record)?)))
}

/// The reason why a run shows the generator rather than its target. No answers at all are the target's doing.
fn generators_reason(run: &RunRecord) -> Option<String> {
    let of_target = Void::NoAnswers.to_string();
    run.void.iter().find(|reason| **reason != of_target).cloned()
}

fn generator_was_the_limit(record: &SideRecord) -> bool {
    let run = &record.saturation;
    let wait = run.generator_cpu_wait_share.unwrap_or(0.0);
    run.generator_cpu_share_max.is_some_and(|share| share + wait > GENERATOR_SHARE_MAX)
}

/// A ratio to nothing does not exist.
fn unmeasured(side: &SideRecord) -> Option<String> {
    let nothing = [
        (
            side.cpu_us_per_request <= 0.0,
            "the system reports no CPU time for it; start it in the foreground, or measure for longer (--saturation)",
        ),
        (side.rss_kib == 0, "the system does not report its memory"),
    ];
    nothing.into_iter().find_map(|(is, reason)| is.then(|| reason.to_owned()))
}

fn failed(run: &RunRecord) -> Option<String> {
    (run.failed_share() > FAILED_SHARE_MAX).then(|| {
        let example = run.error_examples.first().map_or("no connection became free in time", String::as_str);
        format!("{} of {} requests failed, for example: {example}", run.failed(), run.requested())
    })
}

fn failing_side(record: &SideRecord) -> Option<String> {
    [&record.saturation, &record.rated].into_iter().find_map(failed).or_else(|| unanswered(record))
}

fn unanswered(record: &SideRecord) -> Option<String> {
    let nothing = record.saturation.rate_achieved <= 0.0 || record.rated.requests == 0;
    nothing.then(|| {
        "no request was answered in the measured time; measure for longer (--saturation, --latency)".to_owned()
    })
}

fn read_side(side: &SideRecord, is_read: [bool; PAIRED.len()]) -> Result<Reading> {
    let latencies = histogram::decode(&side.rated.corrected)?;
    let us = |quantile: f64| latencies.value_at_quantile(quantile) as f64 / 1e3;
    let (throughput, rss_kib) = (side.saturation.rate_achieved, side.rss_kib as f64);
    let mut is_read = is_read.into_iter();
    let figures = [throughput, side.cpu_us_per_request, us(0.5), us(0.99), us(0.999), rss_kib];
    Ok(figures.map(|figure| Some(figure).filter(|_| is_read.next() == Some(true))))
}

/// Two starts of one round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Duel<'a> {
    pub(crate) between: BuildPair,
    /// The one of the two that went first.
    pub(crate) first: Side,
    pub(crate) a: &'a SideRecord,
    pub(crate) b: &'a SideRecord,
}

impl<'a> Duel<'a> {
    /// A single start, for measures of each side by itself.
    pub(crate) fn alone(side: Side, record: &'a SideRecord) -> Duel<'a> {
        Duel { between: BuildPair { one: side, other: side }, first: side, a: record, b: record }
    }

    fn of(pair: &'a Pair, between: BuildPair) -> Result<Duel<'a>> {
        let record = |side| {
            pair.record(side)
                .ok_or_else(|| Error::new(format!("a round has no record of {side:?}; the file is damaged")))
        };
        let is_one = |side: &&Side| **side == between.one || **side == between.other;
        let first = pair.order.iter().find(is_one).copied().unwrap_or(pair.first);
        Ok(Duel { between, first, a: record(between.one)?, b: record(between.other)? })
    }
}

/// All rounds, reduced to two builds.
pub(crate) fn duels(pairs: &[Pair], between: BuildPair) -> Result<Vec<Duel<'_>>> {
    pairs.iter().map(|pair| Duel::of(pair, between)).collect()
}

impl CompareResult {
    /// All rounds of a result, reduced to two builds.
    pub(crate) fn duels(&self, between: BuildPair) -> Result<Vec<Duel<'_>>> {
        duels(&self.pairs, between)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_stats::quantile_ranks;

    #[test]
    fn p99_9_needs_as_many_requests_as_bound_it() {
        assert!(quantile_ranks(REQUESTS_P99_9_MIN, 0.999, 0.95).is_some());
        assert_eq!(quantile_ranks(REQUESTS_P99_9_MIN - 1, 0.999, 0.95), None);
    }

    #[test]
    fn nothing_answered_is_not_the_generators_doing() {
        let nothing = Void::NoAnswers.to_string();
        let check = |void: &[&str], expected: Option<&str>| {
            let void = void.iter().map(|reason| (*reason).to_owned()).collect();
            let run = RunRecord { void, ..RunRecord::default() };
            assert_eq!(generators_reason(&run).as_deref(), expected, "{run:?}");
        };
        check(&[], None);
        check(&["late"], Some("late"));
        check(&[&nothing, &nothing], None);
        check(&[&nothing, "stood still"], Some("stood still"));
    }
}
