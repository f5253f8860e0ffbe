//! Checks runs of the load generator: a run's claims against its histograms, since whether it is void decides which data
//! count, so that the claim alone is not trusted; and the top-level figures of a load result, recomputed from the run that is
//! stored with it.

use super::{Difference, compare_json, difference, json};
use crate::commands::load::fail_if;
use crate::error::{Error, Result};
use crate::result::histogram;
use crate::result::load::{LoadResult, PartHistograms};
use crate::result::run::{Percentiles, RunRecord};
use crate::result::tail::Point;
use hdrhistogram::Histogram;
use std::time::Duration;
use stillgate_load::ErrorKind;
use stillgate_load::outcome::{LATENCY_NS_MAX, PAUSE_CLOSED};
use stillgate_load::verdict::{CPU_SHARE_FULL, late_max};

/// Afterwards, all of it follows from the run.
pub(super) fn check_load(load: &mut LoadResult, found: &mut Vec<Difference>) -> Result {
    if let Some(design) = &load.design {
        let duration = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let rules = Rules {
            late: duration(design.late_s),
            late_share_max: design.late_share_max,
            // If requests are counted, the time that they took is the planned duration.
            duration: duration(match (design.requests, design.duration_s) {
                (None, Some(seconds)) => seconds,
                _ => load.run.elapsed_s,
            }),
        };
        check_run("run", &load.run, &rules, found)?;
        check_points("", &load.run, &load.points, found)?;
    }
    let again = recomputed(load)?;
    // Parts that are not recomputed are equal in both.
    compare_json("", &json(&*load)?, &json(&again)?, found);
    *load = again;
    Ok(())
}

fn recomputed(load: &LoadResult) -> Result<LoadResult> {
    let run = &load.run;
    let percentiles = |what: &str, text: &str| -> Result<Percentiles> {
        let decoded = histogram::decode(text).map_err(|error| error.context(what))?;
        Ok(histogram::percentiles(&decoded))
    };
    let part = |what: &str, of: fn(&PartHistograms) -> &String, stored: Percentiles| match &load.parts {
        Some(parts) => percentiles(what, of(parts)),
        None => Ok(stored),
    };
    Ok(LoadResult {
        duration_s: run.elapsed_s,
        requests: run.requests,
        errors: run.errors,
        errors_by_kind: run.errors_by_kind.clone(),
        void: !run.void.is_empty(),
        void_reasons: run.void.clone(),
        rate_intended: run.rate_intended,
        rate_achieved: run.rate_achieved,
        // In older files it is the only other trace of the rate.
        answered_in_time: match (run.answered_in_time, &load.design) {
            (Some(answered), _) => answered,
            (None, Some(_)) => (run.rate_achieved * run.elapsed_s).round() as u64,
            (None, None) => load.answered_in_time,
        },
        good: run.refused.as_ref().map(|_| run.good()),
        refused: match &run.refused {
            Some(text) if run.refusals() > 0 => Some(percentiles("run.refused", text)?),
            _ => None,
        },
        cpu_share_max: run.generator_cpu_share_max.unwrap_or(load.cpu_share_max),
        realtime: run.generator_realtime.unwrap_or(load.realtime),
        missed_starts: run.missed_starts.unwrap_or(load.missed_starts),
        conditions: fail_if::rejudge(&load.conditions, run)?,
        corrected: percentiles("run.corrected", &run.corrected)?,
        uncorrected: percentiles("run.uncorrected", &run.uncorrected)?,
        lateness: percentiles("run.lateness", &run.lateness)?,
        connect: part("parts.connect", |parts| &parts.connect, load.connect)?,
        send: part("parts.send", |parts| &parts.send, load.send)?,
        first_byte: part("parts.first_byte", |parts| &parts.first_byte, load.first_byte)?,
        ..load.clone()
    })
}

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
pub(super) fn check_run(path: &str, run: &RunRecord, rules: &Rules, found: &mut Vec<Difference>) -> Result {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::verify::verify_recomputed;
    use crate::result::{Experiment, ResultFile, file};
    use serde_json::{Value, json};
    use stillgate_load::outcome;

    fn encoded(us: u64, count: u64) -> String {
        let mut histogram = outcome::histogram();
        histogram.record_n(us * 1_000, count).unwrap();
        histogram::encode(&histogram).unwrap()
    }

    /// A run of a thousand requests, ten of which timed out, as a file would have it.
    fn load_file(arguments: &[&str]) -> Value {
        let nothing = Percentiles::default();
        let result = json!({
            "url": "http://127.0.0.1/", "pace": "open", "connections": 4, "threads": 1, "seed": 3,
            "design": {"rate": 1_000.0, "rate_end": 1_000.0, "arrivals": "uniform", "duration_s": 1.0, "warm_up_s": 0.0,
                "timeout_s": 1.0, "interval_s": 0.5, "late_s": 0.001, "late_share_max": 0.001, "cpus": [], "sources": [],
                "mix_sha256": null},
            "corrected": nothing, "uncorrected": nothing,
            "run": {"begun_unix_s": 1.8e9, "elapsed_s": 1.0, "requests": 990, "errors": 10, "errors_by_kind": {"timeout": 10},
                "error_examples": ["timeout: no complete answer in 1000 ms"], "rate_intended": 1_000.0, "rate_achieved": 990.0,
                "missed_starts": 5, "corrected": encoded(300, 1_005), "uncorrected": encoded(200, 1_000),
                "refused": encoded(40, 0), "answered_in_time": 990,
                "lateness": encoded(1, 1_000), "generator_cpu_cores": 0.1, "generator_cpu_wait_share": null,
                "generator_pauses_s": 0.0, "generator_pause_longest_s": 0.0, "void": []},
            "parts": {"connect": encoded(50, 4), "send": encoded(5, 1_000), "first_byte": encoded(190, 990)},
            "points": [
                {"at_s": 0.0, "length_s": 0.5, "requests": 500, "errors": 0, "p50_us": 300.0, "p99_us": 300.0, "max_us": 300.0},
                {"at_s": 0.5, "length_s": 0.5, "requests": 490, "errors": 10, "p50_us": 300.0, "p99_us": 300.0, "max_us": 300.0},
            ],
        });
        let experiment = Experiment::Load(Box::new(serde_json::from_value(result).unwrap()));
        let arguments = arguments.iter().map(|word| (*word).to_owned()).collect();
        // Its top-level figures are those of its run.
        let made =
            verify_recomputed(ResultFile::new(arguments, crate::result::run::Environment::default(), experiment))
                .unwrap();
        json(&made.result).unwrap()
    }

    fn found(file: &Value) -> Vec<String> {
        let verified = verify_recomputed(file::parse(&file.to_string()).unwrap()).unwrap();
        verified.differences.into_iter().map(|difference| difference.path).collect()
    }

    #[test]
    fn a_changed_load_is_found() {
        let typed = ["load", "http://127.0.0.1/", "--rate", "1k", "--seed", "3", "--connections", "4"];
        assert_eq!(found(&load_file(&typed)), Vec::<String>::new());
        let check = |pointer: &str, change: fn(&mut Value), path: &str| {
            let mut file = load_file(&typed);
            change(file.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")));
            let found = found(&file);
            assert!(found.iter().any(|difference| difference == path), "{pointer}: {found:?}");
        };
        let half: fn(&mut Value) = |value| *value = Value::from(value.as_f64().unwrap() / 2.0);
        for (pointer, path) in [
            ("/corrected/p99", "corrected.p99"),
            ("/uncorrected/max", "uncorrected.max"),
            ("/lateness/max", "lateness.max"),
            ("/connect/p50", "connect.p50"),
            ("/send/p50", "send.p50"),
            ("/first_byte/p99_9", "first_byte.p99_9"),
            ("/rate_achieved", "rate_achieved"),
            ("/duration_s", "duration_s"),
        ] {
            check(pointer, half, path);
        }
        check("/requests", |value| *value = 1.into(), "requests");
        check("/errors", |value| *value = 0.into(), "errors");
        check("/missed_starts", |value| *value = 0.into(), "missed_starts");
        check("/void", |value| *value = true.into(), "void");
        check("/seed", |value| *value = 4.into(), "design.seed");
        // In the run itself.
        check("/run/requests", |value| *value = 995.into(), "run.requests");
        check("/run/errors_by_kind/timeout", |value| *value = 1.into(), "run.errors");
        check("/run/void", |value| *value = json!(["late"]), "run.void");
        check("/run/refused", |value| *value = encoded(40, 7).into(), "run.refused");
        check("/run/lateness", |value| *value = encoded(5_000, 1_000).into(), "run.void");
        check("/points", |value| *value = json!([]), "points");
        check("/points/1/max_us", |value| *value = 600.into(), "points");
    }
}
