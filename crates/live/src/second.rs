//! One second as text. Only this file knows the format of `GET /v1/live`.

use bytes::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Significant digits of a figure: more are noise, and nine hundred seconds are sent at once.
const DIGITS: i32 = 4;

/// The requests according to the metrics; empty if nothing is measured.
#[derive(Debug, Default)]
pub(super) struct SecondFigures {
    /// `None`: not known yet, or not measured.
    pub(super) all: Option<OfRequests>,
    /// The busiest routes and those with the most errors.
    pub(super) routes: Vec<(Arc<str>, OfRequests)>,
    /// The followed routes.
    pub(super) followed: Vec<(Arc<str>, OfRequests)>,
    /// The time that the reading took.
    pub(super) took: Duration,
}

/// Requests that ended between two readings.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct OfRequests {
    pub(super) requests: u64,
    /// Responses with a status of 5xx; `None`: the metrics have no label `code`.
    pub(super) errors: Option<u64>,
    /// Requests with a known latency.
    pub(super) timed: u64,
    /// In seconds; `None`: no request ended, or latencies are not measured.
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
    pub(super) p999: Option<f64>,
    pub(super) max: Option<f64>,
}

/// Figures that are known without metrics.
#[derive(Debug)]
pub(super) struct ProcessFigures {
    /// Seconds since 1970.
    pub(super) t: u64,
    pub(super) connections: u64,
    pub(super) tunnels: u64,
    pub(super) generation: u64,
}

/// A second in the form in which it is sent.
pub(super) struct Second {
    /// JSON without the closing brace.
    pub(super) text: Bytes,
    /// The followed routes, as JSON.
    pub(super) routes: BTreeMap<Arc<str>, String>,
}

#[derive(Serialize)]
struct SecondMessage<'a> {
    t: u64,
    requests: f64,
    errors: Option<f64>,
    timed: u64,
    p50: Option<f64>,
    p99: Option<f64>,
    p999: Option<f64>,
    max: Option<f64>,
    connections: u64,
    tunnels: u64,
    generation: u64,
    routes: Vec<SentRoute<'a>>,
}

#[derive(Serialize)]
struct SentRoute<'a> {
    id: &'a str,
    requests: f64,
    errors: Option<f64>,
    timed: u64,
    p50: Option<f64>,
    p99: Option<f64>,
    max: Option<f64>,
}

impl Second {
    /// `counted`: requests as the workers count them, used if nothing is measured; `elapsed_s`: the time since the last second.
    pub(super) fn new(known: &ProcessFigures, figures: &SecondFigures, counted: u64, elapsed_s: f64) -> Second {
        let counted = OfRequests { requests: counted, ..OfRequests::default() };
        let all = figures.all.as_ref().unwrap_or(&counted);
        let rate = |count| rate(count, elapsed_s);
        let sent = SecondMessage {
            t: known.t,
            requests: rate(all.requests),
            errors: all.errors.map(rate),
            timed: all.timed,
            p50: all.p50.map(rounded),
            p99: all.p99.map(rounded),
            p999: all.p999.map(rounded),
            max: all.max.map(rounded),
            connections: known.connections,
            tunnels: known.tunnels,
            generation: known.generation,
            routes: figures.routes.iter().map(|of| SentRoute::new(of, elapsed_s)).collect(),
        };
        let mut text = json(&sent);
        text.pop();
        let routes = figures.followed.iter().map(|of| (of.0.clone(), json(&SentRoute::new(of, elapsed_s)))).collect();
        Second { text: text.into(), routes }
    }
}

impl<'a> SentRoute<'a> {
    fn new((id, of): &'a (Arc<str>, OfRequests), elapsed_s: f64) -> SentRoute<'a> {
        SentRoute {
            id,
            requests: rate(of.requests, elapsed_s),
            errors: of.errors.map(|errors| rate(errors, elapsed_s)),
            timed: of.timed,
            p50: of.p50.map(rounded),
            p99: of.p99.map(rounded),
            max: of.max.map(rounded),
        }
    }
}

/// Returns the rate per second.
fn rate(count: u64, elapsed_s: f64) -> f64 {
    rounded(count as f64 / elapsed_s.max(0.001))
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("these shapes have string keys only")
}

/// Rounds to a few significant digits.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let scale = 10f64.powi(DIGITS - 1 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn the_shape_is_a_contract() {
        let of = |requests, errors| OfRequests {
            requests,
            errors: Some(errors),
            timed: requests,
            p50: Some(0.001_234_56),
            p99: Some(0.25),
            p999: Some(1.0),
            max: Some(1.5),
        };
        let known = ProcessFigures { t: 1_795_220_833, connections: 7, tunnels: 1, generation: 3 };
        let figures = SecondFigures {
            all: Some(of(1000, 20)),
            routes: vec![("orders \"<b>\"".into(), of(333, 2)), ("b".into(), OfRequests::default())],
            followed: vec![("b".into(), of(1, 0))],
            took: Duration::ZERO,
        };
        let second = Second::new(&known, &figures, 0, 3.0);
        expect![[r#"{"t":1795220833,"requests":333.3,"errors":6.667,"timed":1000,"p50":0.001235,"p99":0.25,"p999":1.0,"max":1.5,"connections":7,"tunnels":1,"generation":3,"routes":[{"id":"orders \"<b>\"","requests":111.0,"errors":0.6667,"timed":333,"p50":0.001235,"p99":0.25,"max":1.5},{"id":"b","requests":0.0,"errors":null,"timed":0,"p50":null,"p99":null,"max":null}]"#]]
        .assert_eq(str::from_utf8(&second.text).unwrap());
        expect![[r#"{"id":"b","requests":0.3333,"errors":0.0,"timed":1,"p50":0.001235,"p99":0.25,"max":1.5}"#]]
            .assert_eq(&second.routes["b"]);
        let without = Second::new(&known, &SecondFigures::default(), 5, 1.0);
        expect![[r#"{"t":1795220833,"requests":5.0,"errors":null,"timed":0,"p50":null,"p99":null,"p999":null,"max":null,"connections":7,"tunnels":1,"generation":3,"routes":[]"#]]
        .assert_eq(str::from_utf8(&without.text).unwrap());
    }

    #[test]
    fn figures_have_few_digits() {
        let found = [0.0, 0.000_123_456, 1.0 / 3.0, 12_345.678, f64::NAN].map(rounded);
        assert_eq!(found, [0.0, 0.000_123_5, 0.3333, 12_350.0, 0.0]);
    }
}
