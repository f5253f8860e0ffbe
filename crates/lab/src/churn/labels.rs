//! A label of a metric that never repeats: the raw URI. Memory must keep within its budget, and no request may be missing from the
//! sums. A label stays once it is there, so each block has a target of its own.

use super::{Change, ChangeOptions, Mode, Requests, only_of_stillgate, stillgate_with};
use crate::client::Client;
use crate::error::Result;
use crate::scraper;
use crate::target::{MetricsAddress, RunningTarget, Spec};
use serde_json::Value;
use std::sync::atomic::AtomicBool;

/// The metric, and its label with the raw URI.
const FAMILY: &str = "stillgate_http_requests_total";
const LABEL: &str = "uri";

/// How far memory may exceed its budget.
const BUDGET_SLACK: f64 = 1.05;
const KIB_PER_MIB: u64 = 1024;

struct NewLabels {
    budget_kib: u64,
    /// What the target had before the load.
    rss_kib: u64,
    mode: Mode,
}

pub(super) fn make(options: &ChangeOptions, spec: &mut Spec) -> Result<Box<dyn Change>> {
    only_of_stillgate(spec, "new-labels")?;
    let lines = format!(
        "  admin: {{address: \"{{admin}}\"}}\n  metrics:\n    address: \"{{metrics}}\"\n    memory: {}MiB\n    series_per_family: {}\n    \
         labels: {{http_requests_total: {{{LABEL}: $request_uri}}}}\n",
        options.memory_mib, options.series
    );
    spec.configuration.get_or_insert_with(|| stillgate_with(&lines));
    Ok(Box::new(NewLabels { budget_kib: options.memory_mib * KIB_PER_MIB, rss_kib: 0, mode: Mode::Without }))
}

impl Change for NewLabels {
    fn requests(&self) -> Requests {
        Requests::Mix(|mode| match mode {
            Mode::Without => "requests: [{path: /item/00000000?from=churn, expect: {status: [200]}}]\n",
            _ => {
                "variables: {number: {counter: 10000000}}\n\
                 requests: [{path: \"/item/${number}?from=churn\", expect: {status: [200]}}]\n"
            }
        })
    }

    fn needs_new_target(&self) -> bool {
        true
    }

    fn begin(&mut self, target: &mut RunningTarget) -> Result {
        // Allocations of the first scrape exist in every process.
        scraper::count_series(metrics(target)?)?;
        self.rss_kib = target.rss_kib()?;
        Ok(())
    }

    fn change_until_over(&mut self, _: &mut RunningTarget, mode: Mode, over: &AtomicBool) -> Result<u64> {
        self.mode = mode;
        super::wait_for_end(over);
        Ok(0)
    }

    fn faults(&mut self, target: &mut RunningTarget, sent: u64) -> Result<Vec<String>> {
        let counted = scraper::sum(metrics(target)?, &format!("{FAMILY}{{code=\"200\"}}"))?.unwrap_or(0.0);
        let mut faults = Vec::new();
        if counted != sent as f64 {
            faults.push(format!("{FAMILY} counts {counted} requests with code 200, and {sent} were sent"));
        }
        if self.mode == Mode::Without {
            return Ok(faults);
        }
        // The peak, because a scrape may need memory for a moment.
        let grown_kib = target.process()?.peak_rss_kib()?.saturating_sub(self.rss_kib);
        if grown_kib as f64 > self.budget_kib as f64 * BUDGET_SLACK {
            faults.push(format!("memory grew by {grown_kib} KiB, and the budget is {} KiB", self.budget_kib));
        }
        let admin = target.admin.ok_or("--new-labels needs {admin} in the configuration")?;
        let reply = Client::new(admin).get("/v1/metrics/cardinality")?.expect(200, "the cardinality")?;
        let cardinality = serde_json::from_slice(&reply.body).map_err(|error| format!("the cardinality: {error}"))?;
        faults.extend(unnamed(&cardinality));
        Ok(faults)
    }
}

fn metrics(target: &RunningTarget) -> Result<&MetricsAddress> {
    target.metrics.as_ref().ok_or_else(|| "--new-labels needs a target with metrics".into())
}

/// The admin interface must name the label whose values are too many.
fn unnamed(cardinality: &Value) -> Option<String> {
    let named = |list: &Value, name: &str| list.as_array()?.iter().find(|element| element["name"] == name).cloned();
    let label = named(&cardinality["families"], FAMILY).and_then(|family| named(&family["labels"], LABEL));
    match label {
        Some(label) if label["collapsed"] == true => None,
        Some(label) => Some(format!("/v1/metrics/cardinality: {LABEL} has not collapsed: {label}")),
        None => Some(format!("/v1/metrics/cardinality does not name {FAMILY}, {LABEL}: {cardinality}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_label_must_be_named() {
        let answer = |collapsed: bool| json!({"families": [{"name": FAMILY, "labels": [{"name": LABEL, "collapsed": collapsed}]}]});
        assert_eq!(unnamed(&answer(true)), None);
        assert!(unnamed(&answer(false)).is_some());
        assert!(unnamed(&json!({"families": []})).is_some());
    }
}
