//! A gateway with metrics, and helpers that read them.

use crate::shared::STILLGATE;
use stillgate_testkit::{ACCEPT_TEXT, Gateway, ReservedPort, Setup, eventually, scrape};

/// A gateway with metrics.
pub(crate) struct MeasuredGateway {
    pub(crate) gateway: Gateway,
    pub(crate) metrics: ReservedPort,
}

impl MeasuredGateway {
    /// `keys` are further ones of `gateway.metrics`, each on a line.
    pub(crate) fn start(setup: Setup, keys: &str) -> MeasuredGateway {
        let metrics = ReservedPort::new();
        let gateway = Gateway::start(STILLGATE, &with(setup, &metrics, keys));
        MeasuredGateway { gateway, metrics }
    }

    pub(crate) fn reload(&self, setup: Setup, keys: &str) {
        self.gateway.reload(&with(setup, &self.metrics, keys));
    }

    pub(crate) fn scrape(&self) -> Exposition {
        Exposition(scrape(self.metrics.addr(), "/metrics", ACCEPT_TEXT, false).text().to_owned())
    }

    /// Scrapes until this many requests are counted; a request is counted after its response is out.
    pub(crate) fn scrape_with(&self, requests: f64) -> Exposition {
        let mut found = self.scrape();
        eventually("all requests to be counted", || {
            found = self.scrape();
            let counted = found.sum("stillgate_http_requests_total", &[]) + found.sum("apisix_http_status", &[]);
            assert!(counted <= requests, "{counted} > {requests}\n{}", found.0);
            counted == requests
        });
        // How long they took is recorded before that they were; a scrape that found the latter may have passed by the former.
        self.scrape()
    }

    /// Waits until these are what was received and sent, which is recorded last of a request.
    pub(crate) fn await_bytes(&self, family: &str, kind: &str, expected: (f64, f64)) {
        let mut found = (0.0, 0.0);
        let is_it = || {
            let exposition = self.scrape();
            let bytes = |of: &str| exposition.sum(family, &[(kind, of)]);
            found = (bytes("ingress"), bytes("egress"));
            found == expected
        };
        eventually(&format!("{family} of {expected:?}"), is_it);
    }
}

fn with(setup: Setup, metrics: &ReservedPort, keys: &str) -> Setup {
    let keys: String = keys.lines().map(|line| format!("  {line}\n")).collect();
    setup.gateway(&format!("metrics:\n  address: \"{}\"\n{keys}", metrics.addr()))
}

/// The text of a scrape.
#[derive(Debug)]
pub(crate) struct Exposition(pub(crate) String);

impl Exposition {
    /// The sum over all series of this name with these labels.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.values(name, labels).into_iter().sum()
    }

    /// The value of the one such series.
    #[track_caller]
    pub(crate) fn one(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let values = self.values(name, labels);
        assert_eq!(values.len(), 1, "{name} {labels:?}\n{}", self.0);
        values[0]
    }

    pub(crate) fn values(&self, name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
        let series = |line: &str| {
            let rest = line.strip_prefix(name)?;
            let (text, value) = match rest.strip_prefix('{') {
                Some(rest) => rest.rsplit_once("} ")?,
                None => ("", rest.strip_prefix(' ')?),
            };
            let text = format!(",{text},");
            let is_it = labels.iter().all(|(label, value)| text.contains(&format!(",{label}=\"{value}\",")));
            is_it.then(|| value.parse().expect("a number"))
        };
        self.0.lines().filter_map(series).collect()
    }

    pub(crate) fn has(&self, text: &str) -> bool {
        self.0.contains(text)
    }
}
