//! Checks the top-level figures of a load result against the run that is stored with it, and recomputes them from it.

use super::runs::{self, Rules};
use super::{Difference, compare_json, json};
use crate::commands::load::fail_if;
use crate::error::Result;
use crate::result::histogram;
use crate::result::load::{LoadResult, PartHistograms};
use crate::result::run::Percentiles;
use std::time::Duration;

/// Afterwards, all of it follows from the run.
pub(super) fn check(load: &mut LoadResult, found: &mut Vec<Difference>) -> Result {
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
        runs::check("run", &load.run, &rules, found)?;
        runs::check_points("", &load.run, &load.points, found)?;
    }
    let again = again(load)?;
    // Parts that are not recomputed are equal in both.
    compare_json("", &json(&*load)?, &json(&again)?, found);
    *load = again;
    Ok(())
}

fn again(load: &LoadResult) -> Result<LoadResult> {
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
        conditions: fail_if::again(&load.conditions, run)?,
        corrected: percentiles("run.corrected", &run.corrected)?,
        uncorrected: percentiles("run.uncorrected", &run.uncorrected)?,
        lateness: percentiles("run.lateness", &run.lateness)?,
        connect: part("parts.connect", |parts| &parts.connect, load.connect)?,
        send: part("parts.send", |parts| &parts.send, load.send)?,
        first_byte: part("parts.first_byte", |parts| &parts.first_byte, load.first_byte)?,
        ..load.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::verify::made_again;
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
            made_again(ResultFile::new(arguments, crate::result::run::Environment::default(), experiment)).unwrap();
        json(&made.result).unwrap()
    }

    fn found(file: &Value) -> Vec<String> {
        let verified = made_again(file::parse(&file.to_string()).unwrap()).unwrap();
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
