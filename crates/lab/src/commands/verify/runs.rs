//! Checks a run's claims against its histograms: whether it is void decides which data count, so the claim alone is not
//! trusted.

use super::{Difference, difference};
use crate::error::{Error, Result};
use crate::result::histogram;
use crate::result::run::RunRecord;
use crate::result::tail::Point;
use hdrhistogram::Histogram;
use std::time::Duration;
use stillgate_load::ErrorKind;
use stillgate_load::outcome::{LATENCY_NS_MAX, PAUSE_CLOSED};
use stillgate_load::verdict::{CPU_SHARE_FULL, late_max};

/// Histograms keep three digits, and points are read from other histograms than the run's.
const HISTOGRAM_DIFFERENCE_MAX: f64 = 2e-3;

/// The rules by which a run was void when it was done.
pub(super) struct Rules {
    /// A start later than this is late.
    pub(super) late: Duration,
    /// The share that may be late.
    pub(super) late_share_max: f64,
    /// The planned measured time.
    pub(super) duration: Duration,
}

/// Checks whether it is void, and whether it counts as many as its histograms.
pub(super) fn check(path: &str, run: &RunRecord, rules: &Rules, found: &mut Vec<Difference>) -> Result {
    let decoded = |what: &str, text: &str| {
        histogram::decode(text).map_err(|error: Error| error.context(format_args!("{path}.{what}")))
    };
    let lateness = decoded("lateness", &run.lateness)?;
    if let (true, Some(must)) = (run.void.is_empty(), must_be_void(run, &lateness, rules)) {
        found.push(difference(format!("{path}.void"), "it is valid", must));
    }
    if !run.void.is_empty() && !may_be_void(run, &lateness, rules) {
        found.push(difference(format!("{path}.void"), run.void.join("; "), "it is valid"));
    }
    // Read even where nothing follows from them: an unreadable histogram means damage.
    let counted = decoded("uncorrected", &run.uncorrected)?.len();
    let corrected = decoded("corrected", &run.corrected)?.len();
    // Files of the first versions count differently.
    if run.missed_starts.is_none() {
        return Ok(());
    }
    if let Some(text) = &run.refused {
        let refused = decoded("refused", text)?.len();
        if refused != run.refusals() {
            found.push(difference(format!("{path}.refused"), run.refusals(), refused));
        }
    }
    let told = run.good() + run.failed_by(ErrorKind::Timeout);
    if counted != told {
        found.push(difference(
            format!("{path}.requests"),
            format!("{told} good ones and time-outs"),
            format!("{counted} good ones and time-outs"),
        ));
    }
    if corrected < told {
        found.push(difference(
            format!("{path}.corrected"),
            format!("{corrected} latencies"),
            format!("{told} at least"),
        ));
    }
    let errors: u64 = run.errors_by_kind.values().sum();
    if errors != run.errors {
        found.push(difference(format!("{path}.errors"), run.errors, errors));
    }
    Ok(())
}

/// Checks that the points of a run belong to this run.
pub(super) fn check_points(path: &str, run: &RunRecord, points: &[Point], found: &mut Vec<Difference>) -> Result {
    if run.missed_starts.is_none() {
        return Ok(());
    }
    let path = if path.is_empty() { "points".to_owned() } else { format!("{path}.points") };
    let requests: u64 = points.iter().map(|point| point.requests).sum();
    if requests != run.requests {
        found.push(difference(path.clone(), format!("{requests} requests"), format!("{} requests", run.requests)));
    }
    // In a closed loop both are equal.
    let text = if run.rate_intended.is_some() { &run.corrected } else { &run.uncorrected };
    let histogram = histogram::decode(text)?;
    let slowest_us = histogram::max_us(&histogram);
    let told_us = points.iter().map(|point| point.max_us).fold(0.0, f64::max);
    // Requests that never started or were cut off may be after the last reported interval.
    let slack_us = HISTOGRAM_DIFFERENCE_MAX * slowest_us;
    let all_told = histogram.len() == run.good() + run.failed_by(ErrorKind::Timeout);
    if told_us > slowest_us + slack_us || (all_told && told_us < slowest_us - slack_us) {
        found.push(difference(path.clone(), format!("at most {told_us} us"), format!("at most {slowest_us} us")));
    }
    Ok(())
}

/// The reason why it must be void, where that is certain.
fn must_be_void(run: &RunRecord, lateness: &Histogram<u64>, rules: &Rules) -> Option<String> {
    let bound_ns = nanos(rules.late);
    let late = lateness.count_between(lateness.highest_equivalent(bound_ns) + 1, LATENCY_NS_MAX);
    if late as f64 > late_max(rules.late_share_max, lateness.len()) {
        return Some(format!("void: {late} of {} starts are late", lateness.len()));
    }
    if run.requests == 0 {
        return Some("void: nothing was answered".to_owned());
    }
    let (sum_s, longest_s) = (run.generator_pauses_s?, run.generator_pause_longest_s?);
    let paused = sum_s > pauses_max_s(rules) && longest_s > PAUSE_CLOSED.max(rules.late * 10).as_secs_f64();
    paused.then(|| format!("void: the generator stood still for {sum_s} s"))
}

/// Whether something in the file explains it. A value at the bound may have been on either side.
fn may_be_void(run: &RunRecord, lateness: &Histogram<u64>, rules: &Rules) -> bool {
    let bound_ns = nanos(rules.late);
    let late = lateness.count_between(lateness.lowest_equivalent(bound_ns), LATENCY_NS_MAX);
    let paused = run.generator_pauses_s.is_none_or(|sum_s| sum_s > pauses_max_s(rules));
    let full = run.generator_cpu_share_max.is_some_and(|share| share > CPU_SHARE_FULL);
    is_late(late, lateness, rules) || run.requests == 0 || paused || full
}

/// The rule of the first versions, which did not allow for chance.
fn is_late(late: u64, lateness: &Histogram<u64>, rules: &Rules) -> bool {
    late > 1 && late as f64 > rules.late_share_max * lateness.len() as f64
}

fn pauses_max_s(rules: &Rules) -> f64 {
    rules.duration.as_secs_f64() * rules.late_share_max.clamp(0.0, 1.0)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(LATENCY_NS_MAX).min(LATENCY_NS_MAX)
}
