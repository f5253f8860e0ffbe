//! Conditions under which a run counts as failed: `p99>20ms`, `errors>1%`, `rate<500`.
//!
//! They are judged from the run as a result file keeps it, so that `verify` can repeat that.

use crate::command_line;
use crate::error::Result;
use crate::result::histogram;
use crate::result::load::ConditionResult;
use crate::result::run::RunRecord;
use crate::tail::readable;
use std::time::Duration;

/// A condition as it was typed, and its meaning.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Condition {
    typed: String,
    comparison: Comparison,
    bound: MetricBound,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Above,
    AtLeast,
    Below,
    AtMost,
}

/// A metric and its bound.
#[derive(Debug, Clone, Copy, PartialEq)]
enum MetricBound {
    /// Requests without the expected answer.
    Errors(u64),
    /// As a share, 0 to 1.
    ErrorShare(f64),
    /// A percentile, as a share from 0 to 1, of the latency of good answers from the intended start.
    Latency(f64, Duration),
    /// Good answers per second.
    Rate(f64),
    /// Good answers.
    Requests(u64),
}

/// The longest first, because one is a prefix of another.
const COMPARISONS: [(&str, Comparison); 4] =
    [(">=", Comparison::AtLeast), ("<=", Comparison::AtMost), (">", Comparison::Above), ("<", Comparison::Below)];

const SHAPE: &str = "write METRIC>VALUE or METRIC<VALUE, for example errors>1%, p99>20ms, max>1s, rate<500";

/// A `value_parser` for clap.
pub(crate) fn condition(text: &str) -> Result<Condition, String> {
    let at = text.find(['<', '>']).ok_or(SHAPE)?;
    let (metric, rest) = text.split_at(at);
    let found = COMPARISONS.iter().find_map(|(sign, comparison)| Some((rest.strip_prefix(sign)?, *comparison)));
    let (value, comparison) = found.ok_or(SHAPE)?;
    let bound = bound(metric.trim(), value.trim())?;
    Ok(Condition { typed: text.trim().to_owned(), comparison, bound })
}

/// Added if there is no condition on errors: conditions on good answers must not pass a run that has few of them.
const ERRORS_IMPLIED: &str = "errors>1%";

/// The conditions of a run: the typed ones, and one on errors.
pub(crate) fn with_error_condition(typed: &[Condition]) -> Result<Vec<Condition>> {
    let is_of_errors =
        |condition: &Condition| matches!(condition.bound, MetricBound::Errors(_) | MetricBound::ErrorShare(_));
    let mut all = typed.to_vec();
    if !all.is_empty() && !all.iter().any(is_of_errors) {
        all.push(condition(ERRORS_IMPLIED)?);
    }
    Ok(all)
}

fn bound(metric: &str, value: &str) -> Result<MetricBound, String> {
    let wrong = |shape: String| format!("\"{value}\" after {metric}: {shape}");
    match metric {
        "errors" if value.ends_with('%') => command_line::percent(value).map(MetricBound::ErrorShare).map_err(wrong),
        "errors" => command_line::count(value)
            .map(MetricBound::Errors)
            .map_err(|_| wrong("write a number, or a share: 10, 1%".to_owned())),
        "rate" => command_line::rate(value).map(MetricBound::Rate).map_err(wrong),
        "requests" => command_line::count(value).map(MetricBound::Requests).map_err(wrong),
        _ => {
            let share = percentile(metric).ok_or_else(|| {
                format!(
                    "\"{metric}\" is not a metric; use errors, rate, requests, max or a percentile, for example p50, \
                    p99, p99.9"
                )
            })?;
            command_line::duration(value).map(|bound| MetricBound::Latency(share, bound)).map_err(wrong)
        }
    }
}

/// `p99.9` is 0.999, `max` is 1.
fn percentile(metric: &str) -> Option<f64> {
    if metric == "max" {
        return Some(1.0);
    }
    let share = command_line::percent(&format!("{}%", metric.strip_prefix('p')?)).ok()?;
    (share > 0.0).then_some(share)
}

/// Judges a run by conditions; a void run is not judged.
pub(crate) fn judge_run(conditions: &[Condition], run: &RunRecord) -> Result<Vec<ConditionResult>> {
    if conditions.is_empty() || !run.void.is_empty() {
        return Ok(Vec::new());
    }
    let corrected = histogram::decode(&run.corrected)?;
    let judged = conditions.iter().map(|condition| {
        let share_percent = run.failed_share() * 100.0;
        let (holds, found) = match condition.bound {
            MetricBound::Errors(bound) => {
                (condition.is(run.failed() as f64, bound as f64), readable::count(run.failed()))
            }
            MetricBound::ErrorShare(bound) => {
                let (failed, asked) = (readable::count(run.failed()), readable::count(run.requested()));
                (condition.is(run.failed_share(), bound), format!("{share_percent:.3}% ({failed} of {asked})"))
            }
            // A missing answer is later than any bound.
            MetricBound::Latency(..) if corrected.is_empty() => {
                (matches!(condition.comparison, Comparison::Above | Comparison::AtLeast), "no good answer".to_owned())
            }
            MetricBound::Latency(share, bound) => {
                let us = histogram::quantile_us(&corrected, share);
                (condition.is(us, bound.as_secs_f64() * 1e6), readable::time(us))
            }
            MetricBound::Rate(bound) => (condition.is(run.rate_achieved, bound), format!("{:.2}/s", run.rate_achieved)),
            MetricBound::Requests(bound) => {
                (condition.is(run.good() as f64, bound as f64), readable::count(run.good()))
            }
        };
        ConditionResult { condition: condition.typed.clone(), found, holds }
    });
    Ok(judged.collect())
}

/// Judges a file's run by its conditions again.
pub(crate) fn rejudge(judged: &[ConditionResult], run: &RunRecord) -> Result<Vec<ConditionResult>> {
    let conditions: Result<Vec<_>, String> = judged.iter().map(|judged| condition(&judged.condition)).collect();
    judge_run(&conditions?, run)
}

impl Condition {
    fn is(&self, found: f64, bound: f64) -> bool {
        match self.comparison {
            Comparison::Above => found > bound,
            Comparison::AtLeast => found >= bound,
            Comparison::Below => found < bound,
            Comparison::AtMost => found <= bound,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use stillgate_load::outcome;

    #[test]
    fn what_is_no_condition() {
        let check = |text: &str, words: &str| {
            let error = condition(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        };
        check("", "METRIC>VALUE");
        check("p99", "METRIC>VALUE");
        check("p99=20ms", "METRIC>VALUE");
        check(">20ms", "\"\" is not a metric");
        check("p99>", "a number and its unit");
        check("p99>20", "a number and its unit");
        check("p99>-20ms", "a number and its unit");
        check("p99>>20ms", "a number and its unit");
        check("p99=>20ms", "\"p99=\" is not a metric");
        check("p101>20ms", "\"p101\" is not a metric");
        check("p0>20ms", "\"p0\" is not a metric");
        check("pNaN>20ms", "is not a metric");
        check("p>20ms", "is not a metric");
        check("P99>20ms", "a percentile, for example p50");
        check("mean>20ms", "\"mean\" is not a metric");
        check("errors>1.5", "a number, or a share");
        check("errors>101%", "0% to 100%");
        check("errors>NaN", "a number, or a share");
        check("rate<fast", "requests per second");
        check("requests<0.5", "whole number");
    }

    #[test]
    fn errors_are_judged_even_where_no_condition_is_on_them() {
        let check = |typed: &[&str], expected: &[&str]| {
            let typed: Vec<Condition> = typed.iter().map(|text| condition(text).unwrap()).collect();
            let all = with_error_condition(&typed).unwrap();
            assert_eq!(all.iter().map(|condition| condition.typed.as_str()).collect::<Vec<_>>(), expected);
        };
        check(&[], &[]);
        check(&["p99>20ms"], &["p99>20ms", "errors>1%"]);
        check(&["rate<500", "requests<10"], &["rate<500", "requests<10", "errors>1%"]);
        check(&["p99>20ms", "errors>50%"], &["p99>20ms", "errors>50%"]);
        check(&["errors>3"], &["errors>3"]);
    }

    #[test]
    fn conditions_hold_or_do_not() {
        let mut histogram = outcome::histogram();
        histogram.record_n(1_000_000, 990).unwrap();
        histogram.record_n(50_000_000, 5).unwrap();
        let run = RunRecord {
            requests: 990,
            errors: 5,
            errors_by_kind: BTreeMap::from([("timeout".to_owned(), 5)]),
            missed_starts: Some(5),
            rate_achieved: 99.0,
            corrected: histogram::encode(&histogram).unwrap(),
            ..RunRecord::default()
        };
        let check = |text: &str, holds: bool| {
            let judged = judge_run(&[condition(text).unwrap()], &run).unwrap();
            assert_eq!(judged[0].holds, holds, "{judged:?}");
            assert_eq!(rejudge(&judged, &run).unwrap(), judged);
        };
        check("errors>9", true);
        check("errors>10", false);
        check("errors >= 10", true);
        check("errors>0.9%", true);
        check("errors>1%", false);
        check("errors>=1%", true);
        check("p99>20ms", false);
        check("p99.9>20ms", true);
        check("p50<=1ms", false);
        check("p50<1.1ms", true);
        check("max>49ms", true);
        check("p100>51ms", false);
        check("rate<100", true);
        check("rate<99", false);
        check("requests<990", false);
        check("requests<=990", true);
        // Answers that a check refused do not count as good.
        let refused = RunRecord {
            requests: 1090,
            errors: 105,
            errors_by_kind: BTreeMap::from([("timeout".to_owned(), 5), ("status".to_owned(), 100)]),
            refused: Some(String::new()),
            ..run.clone()
        };
        let judged =
            judge_run(&with_error_condition(&[condition("requests>=991").unwrap()]).unwrap(), &refused).unwrap();
        assert_eq!(judged.iter().map(|judged| judged.holds).collect::<Vec<_>>(), [false, true], "{judged:?}");
        let nothing = RunRecord { corrected: histogram::encode(&outcome::histogram()).unwrap(), ..refused };
        for (text, holds) in [("p99>20ms", true), ("p50>=1h", true), ("max<1h", false), ("p50<=1ms", false)] {
            let judged = judge_run(&[condition(text).unwrap()], &nothing).unwrap();
            assert_eq!((judged[0].holds, judged[0].found.as_str()), (holds, "no good answer"), "{text}");
        }
        let void = RunRecord { void: vec!["late".to_owned()], ..run.clone() };
        assert_eq!(judge_run(&[condition("errors>0").unwrap()], &void).unwrap(), []);
    }
}
