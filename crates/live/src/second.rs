//! One second as text. Only this file knows the format of `GET /v1/live`.

use bytes::Bytes;
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Significant digits of a figure: more are noise, and nine hundred seconds are sent at once.
const DIGITS: i32 = 4;

/// The requests according to the metrics; empty if nothing is measured.
#[derive(Debug, Default)]
pub(super) struct SecondFigures {
    /// `None`: not known yet, or not measured.
    pub(super) all: Option<OfRequests>,
    /// The busiest routes and those with the most errors.
    pub(super) routes: Vec<(Arc<str>, OfRequests)>,
    /// Routes with requests: all of them, or the busiest where there are very many.
    pub(super) active: Vec<(Arc<str>, OfRequests)>,
    /// Whether `active` has all.
    pub(super) is_complete: bool,
    /// Whether errors are counted.
    pub(super) has_codes: bool,
    /// The time that the reading took.
    pub(super) took: Duration,
}

/// Requests that ended between two readings.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct OfRequests {
    pub(super) requests: u64,
    /// Responses with a status of 4xx; `None`: the metrics have no label `code`.
    pub(super) client_errors: Option<u64>,
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

#[derive(Serialize)]
struct SecondMessage<'a> {
    t: u64,
    requests: f64,
    client_errors: Option<f64>,
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
    client_errors: Option<f64>,
    errors: Option<f64>,
    timed: u64,
    p50: Option<f64>,
    p99: Option<f64>,
    max: Option<f64>,
}

/// The form in which a second is sent: JSON without the closing brace. `counted`: requests as the workers count them, used if
/// nothing is measured; `elapsed_s`: the time since the last second.
pub(super) fn second_text(known: &ProcessFigures, figures: &SecondFigures, counted: u64, elapsed_s: f64) -> Bytes {
    let counted = OfRequests { requests: counted, ..OfRequests::default() };
    let all = figures.all.as_ref().unwrap_or(&counted);
    let rate = |count| rate(count, elapsed_s);
    let sent = SecondMessage {
        t: known.t,
        requests: rate(all.requests),
        client_errors: all.client_errors.map(rate),
        errors: all.errors.map(rate),
        timed: all.timed,
        p50: all.p50.map(rounded),
        p99: all.p99.map(rounded),
        p999: all.p999.map(rounded),
        max: all.max.map(rounded),
        connections: known.connections,
        tunnels: known.tunnels,
        generation: known.generation,
        routes: figures.routes.iter().map(|(id, of)| SentRoute::new(id, of, elapsed_s)).collect(),
    };
    let mut text = json(&sent);
    text.pop();
    text.into()
}

/// A route's own figures of a second, as JSON.
pub(super) fn route_text(id: &str, of: &OfRequests, elapsed_s: f64) -> String {
    json(&SentRoute::new(id, of, elapsed_s))
}

impl<'a> SentRoute<'a> {
    fn new(id: &'a str, of: &OfRequests, elapsed_s: f64) -> SentRoute<'a> {
        SentRoute {
            id,
            requests: rate(of.requests, elapsed_s),
            client_errors: of.client_errors.map(|errors| rate(errors, elapsed_s)),
            errors: of.errors.map(|errors| rate(errors, elapsed_s)),
            timed: of.timed,
            p50: of.p50.map(rounded),
            p99: of.p99.map(rounded),
            max: of.max.map(rounded),
        }
    }
}

/// A clock before 1970 counts as 1970.
pub(super) fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns the rate per second.
pub(super) fn rate(count: u64, elapsed_s: f64) -> f64 {
    rounded(count as f64 / elapsed_s.max(0.001))
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("these shapes have string keys only")
}

/// Rounds to a few significant digits.
pub(super) fn rounded(value: f64) -> f64 {
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
            client_errors: Some(1),
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
            ..SecondFigures::default()
        };
        let text = second_text(&known, &figures, 0, 3.0);
        expect![[r#"{"t":1795220833,"requests":333.3,"client_errors":0.3333,"errors":6.667,"timed":1000,"p50":0.001235,"p99":0.25,"p999":1.0,"max":1.5,"connections":7,"tunnels":1,"generation":3,"routes":[{"id":"orders \"<b>\"","requests":111.0,"client_errors":0.3333,"errors":0.6667,"timed":333,"p50":0.001235,"p99":0.25,"max":1.5},{"id":"b","requests":0.0,"client_errors":null,"errors":null,"timed":0,"p50":null,"p99":null,"max":null}]"#]]
        .assert_eq(str::from_utf8(&text).unwrap());
        expect![[r#"{"id":"b","requests":0.3333,"client_errors":0.3333,"errors":0.0,"timed":1,"p50":0.001235,"p99":0.25,"max":1.5}"#]]
            .assert_eq(&route_text("b", &of(1, 0), 3.0));
        let without = second_text(&known, &SecondFigures::default(), 5, 1.0);
        expect![[r#"{"t":1795220833,"requests":5.0,"client_errors":null,"errors":null,"timed":0,"p50":null,"p99":null,"p999":null,"max":null,"connections":7,"tunnels":1,"generation":3,"routes":[]"#]]
        .assert_eq(str::from_utf8(&without).unwrap());
    }

    #[test]
    fn figures_have_few_digits() {
        let found = [0.0, 0.000_123_456, 1.0 / 3.0, 12_345.678, f64::NAN].map(rounded);
        assert_eq!(found, [0.0, 0.000_123_5, 0.3333, 12_350.0, 0.0]);
    }
}
