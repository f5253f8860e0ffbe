//! What a request changes in the metrics, computed once for each configuration.
//!
//! A [`MetricsPlan`] is part of the Plan: the families as declared, and where each of their labels comes from. `telemetry` is how a
//! worker uses it. Which families exist is determined by the configuration, and how values are kept by `stillgate-metrics`.

use std::fmt::Write;
use std::sync::Arc;
use stillgate_config::{FamilySpec, Label, LabelSource, Measure, Metrics, Upstream};
use stillgate_metrics::{Buckets, DeclaredFamily, Family, FamilyType, Registry, RegistryError};
use stillgate_upstream::Endpoint;

/// The internal family from which the dashboard computes percentiles: seconds that requests took, by route, whatever the dialect
/// and its classic buckets are.
pub const LIVE_DURATION: &str = "__live_request_duration_seconds";

/// Its bounds are powers of two, from 15 microseconds to 512 seconds, each octave in 16: a bucket is 4.4% wide.
const LIVE_OCTAVES: std::ops::Range<i32> = -16..9;
const LIVE_BUCKETS_PER_OCTAVE: i32 = 16;

/// Approximate size of one of its series in bytes.
pub const LIVE_SERIES_BYTES: usize =
    (LIVE_OCTAVES.end - LIVE_OCTAVES.start) as usize * LIVE_BUCKETS_PER_OCTAVE as usize * 8 + 128;

/// What a finished request adds to: one counter, three histograms and two counters of bytes, whatever the dialect; and the
/// histogram of the dashboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestMetric {
    /// Number of requests answered.
    Count,
    /// From its first byte to the response's last, or to the tunnel's end.
    RequestTime,
    /// From choosing a node to the end of its response.
    UpstreamTime,
    /// What the gateway added.
    GatewayTime,
    /// Bytes from the client.
    Received,
    /// Bytes to the client.
    Sent,
    /// Same as `RequestTime`, for the dashboard.
    DashboardTime,
}

impl RequestMetric {
    pub(crate) const ALL: [RequestMetric; 7] = [
        RequestMetric::Count,
        RequestMetric::RequestTime,
        RequestMetric::UpstreamTime,
        RequestMetric::GatewayTime,
        RequestMetric::Received,
        RequestMetric::Sent,
        RequestMetric::DashboardTime,
    ];

    /// Value of `type` or `direction` if one family has several metrics.
    pub(crate) fn label_value(self) -> &'static str {
        match self {
            RequestMetric::Count | RequestMetric::DashboardTime => "",
            RequestMetric::RequestTime => "request",
            RequestMetric::UpstreamTime => "upstream",
            RequestMetric::GatewayTime => "apisix",
            RequestMetric::Received => "ingress",
            RequestMetric::Sent => "egress",
        }
    }

    /// Its bit in a set of request metrics.
    #[inline]
    pub(crate) fn bit(self) -> u8 {
        1 << self as u8
    }

    fn of(measure: Measure) -> &'static [RequestMetric] {
        match measure {
            Measure::HttpRequests | Measure::ApisixHttpStatus => &[RequestMetric::Count],
            Measure::HttpRequestDuration | Measure::HttpTunnelDuration => &[RequestMetric::RequestTime],
            Measure::HttpUpstreamDuration => &[RequestMetric::UpstreamTime],
            Measure::HttpGatewayDuration => &[RequestMetric::GatewayTime],
            Measure::ApisixHttpLatency => {
                &[RequestMetric::RequestTime, RequestMetric::UpstreamTime, RequestMetric::GatewayTime]
            }
            Measure::HttpBytes | Measure::ApisixBandwidth => &[RequestMetric::Received, RequestMetric::Sent],
            _ => &[],
        }
    }
}

/// A declared family.
#[derive(Debug, Clone)]
pub(crate) struct PlanFamily {
    pub(crate) declared: Arc<DeclaredFamily>,
    /// Where the value of each of its labels comes from.
    pub(crate) sources: Arc<[LabelSource]>,
}

/// The families to which one kind of request adds.
#[derive(Debug, Clone, Default)]
pub(crate) struct CountedFamilies {
    /// Families by request metric; `None`: it is not recorded, and costs nothing.
    families: [Option<PlanFamily>; RequestMetric::ALL.len()],
    /// The request metrics that are present, as bits.
    pub(crate) wanted: u8,
    /// Request metrics with labels from variables of the request, whose series have to be looked up each time.
    pub(crate) variable: u8,
}

impl CountedFamilies {
    fn add(&mut self, metric: RequestMetric, family: PlanFamily) {
        self.wanted |= metric.bit();
        if family.sources.iter().any(|source| matches!(source, LabelSource::Variable(_))) {
            self.variable |= metric.bit();
        }
        self.families[metric as usize] = Some(family);
    }

    pub(crate) fn family(&self, metric: RequestMetric) -> Option<&PlanFamily> {
        self.families[metric as usize].as_ref()
    }
}

/// What is recorded under one configuration.
#[derive(Debug)]
pub struct MetricsPlan {
    pub(crate) requests: CountedFamilies,
    /// Requests that became tunnels: the native dialect has another family for their duration, APISIX has none.
    pub(crate) tunnels: CountedFamilies,
    /// A nanosecond, in the unit of the families of times.
    pub(crate) nanosecond: f64,
    /// Whether labels include which path and host of the route matched, as well as its id.
    pub(crate) tells_match: bool,
    /// Whether a label contains the method.
    pub(crate) tells_method: bool,
    /// Whether a label contains the consumer.
    pub(crate) tells_consumer: bool,
    /// Whether histograms keep traces.
    pub(crate) exemplars: bool,
    /// Whether a label shows the node by its address without the port.
    pub(crate) node_is_ip: bool,
    /// Kept apart from the others, as it is read at every turn.
    pub(crate) turns: Option<PlanFamily>,
    /// Everything else that workers record.
    others: Vec<(Measure, PlanFamily)>,
}

impl MetricsPlan {
    /// Declares the families that requests, connections and nodes change.
    pub fn new(metrics: &Metrics, registry: &Registry) -> Result<MetricsPlan, RegistryError> {
        let is_apisix = metrics.dialect == stillgate_config::Dialect::Apisix;
        let mut plan = MetricsPlan {
            requests: CountedFamilies::default(),
            tunnels: CountedFamilies::default(),
            nanosecond: if is_apisix { 1e-6 } else { 1e-9 },
            tells_match: false,
            tells_method: false,
            tells_consumer: false,
            exemplars: metrics.exemplars,
            node_is_ip: is_apisix,
            turns: None,
            others: Vec::new(),
        };
        for spec in metrics.families() {
            let Some(family) = plan_family(spec, metrics, registry)? else { continue };
            match spec.measure {
                Measure::WorkerTurns => plan.turns = Some(family),
                measure if measure.is_of_workers() => plan.others.push((measure, family)),
                measure => plan.add(measure, &family),
            }
        }
        if let Some(declared) = declare_live(metrics, registry)? {
            plan.requests.add(
                RequestMetric::DashboardTime,
                PlanFamily { declared, sources: [LabelSource::Label(Label::Route)].into() },
            );
        }
        Ok(plan)
    }

    fn add(&mut self, measure: Measure, family: &PlanFamily) {
        let is = |label: Label| family.sources.contains(&LabelSource::Label(label));
        self.tells_match |= is(Label::MatchedUri) || is(Label::MatchedHost);
        self.tells_method |= is(Label::Method);
        self.tells_consumer |= is(Label::Consumer);
        let is_of_tunnels = measure == Measure::HttpTunnelDuration;
        let is_native_time = matches!(
            measure,
            Measure::HttpRequestDuration | Measure::HttpUpstreamDuration | Measure::HttpGatewayDuration
        );
        for metric in RequestMetric::of(measure) {
            if !is_of_tunnels {
                self.requests.add(*metric, family.clone());
            }
            if !is_native_time {
                self.tunnels.add(*metric, family.clone());
            }
        }
    }

    /// A family that is not about requests, if it is wanted.
    pub(crate) fn family(&self, measure: Measure) -> Option<&PlanFamily> {
        self.others.iter().find(|(of, _)| *of == measure).map(|(_, family)| family)
    }

    /// Family of open connections, whatever the dialect calls it.
    pub(crate) fn connections(&self) -> Option<&PlanFamily> {
        self.family(Measure::Connections).or_else(|| self.family(Measure::ApisixConnections))
    }

    /// Family of nodes' health.
    pub(crate) fn health(&self) -> Option<&PlanFamily> {
        self.family(Measure::UpstreamHealthy).or_else(|| self.family(Measure::ApisixUpstreamStatus))
    }

    /// The same, if nodes of this upstream are in it: in APISIX's dialect those with health checks, as in its exporter.
    pub(crate) fn health_of(&self, upstream: &Upstream) -> Option<&PlanFamily> {
        self.health().filter(|_| !self.node_is_ip || upstream.checks.is_some())
    }

    /// Whether anything needs the duration of requests, or of tunnels.
    pub(crate) fn times_requests(&self) -> bool {
        self.wants(RequestMetric::RequestTime) || self.wants(RequestMetric::DashboardTime) || self.times_nodes()
    }

    /// Whether anything needs the duration of nodes' responses.
    pub(crate) fn times_nodes(&self) -> bool {
        self.wants(RequestMetric::GatewayTime) || self.wants(RequestMetric::UpstreamTime)
    }

    fn wants(&self, metric: RequestMetric) -> bool {
        (self.requests.wanted | self.tunnels.wanted) & metric.bit() != 0
    }
}

/// Several request metrics of the same family share it: declaring is idempotent, and so is this.
fn plan_family(spec: &FamilySpec, metrics: &Metrics, registry: &Registry) -> Result<Option<PlanFamily>, RegistryError> {
    match spec.family(metrics) {
        Some(family) if spec.per_request || spec.measure.is_of_workers() => {
            let declared = registry.declare(family)?;
            Ok(Some(PlanFamily { declared, sources: spec.label_plan(metrics).into() }))
        }
        _ => Ok(None),
    }
}

/// The internal family of the dashboard, where it is wanted. With more routes than it has room for, it does not distinguish them.
pub fn declare_live(metrics: &Metrics, registry: &Registry) -> Result<Option<Arc<DeclaredFamily>>, RegistryError> {
    let octaves = LIVE_OCTAVES.start * LIVE_BUCKETS_PER_OCTAVE..=LIVE_OCTAVES.end * LIVE_BUCKETS_PER_OCTAVE;
    let bound = |step| (f64::from(step) / f64::from(LIVE_BUCKETS_PER_OCTAVE)).exp2();
    let family = Family {
        name: LIVE_DURATION.to_owned(),
        help: "Seconds that requests took, in fine buckets for the dashboard.".to_owned(),
        unit: "seconds".to_owned(),
        kind: FamilyType::Histogram(Buckets { classic: octaves.map(bound).collect(), native: None }),
        labels: vec![Label::Route.name().to_owned()],
        exemplars: false,
    };
    // A part of the bound is reserved for when the label collapses.
    let sets_max = metrics.live_routes.saturating_add(metrics.live_routes / 8);
    let declare = || registry.declare_bounded(family, sets_max);
    (metrics.live_routes > 0).then(declare).transpose()
}

/// The node as configured: its address or name with the port, whatever the port is; or only its address.
pub(crate) fn node_label<'a>(endpoint: &'a Endpoint, is_ip: bool, text: &'a mut String) -> &'a str {
    match (is_ip, endpoint.address.port()) {
        (true, _) => {
            text.clear();
            write_text(text, &endpoint.address.ip());
            text
        }
        // The host as in a `Host` field, which leaves this port out.
        (false, 80) => {
            text.clear();
            write_text(text, &format_args!("{}:80", endpoint.host));
            text
        }
        (false, _) => &endpoint.host,
    }
}

/// An upstream by its key, as APISIX's exporter shows it.
pub(crate) fn upstream_path(key: &str) -> String {
    match key.contains('/') {
        true => format!("/apisix/{key}"),
        false => format!("/apisix/upstreams/{key}"),
    }
}

/// Appends a value to a label's text.
pub(crate) fn write_text(text: &mut String, value: &dyn std::fmt::Display) {
    write!(text, "{value}").expect("writing to a String does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_reported_as_configured() {
        let check = |address: &str, host: &str, native: &str, apisix: &str| {
            let address = address.parse().unwrap();
            let endpoint = Endpoint { address, weight: 1, priority: 0, host: host.into(), verdict: None };
            let mut text = String::new();
            assert_eq!(node_label(&endpoint, false, &mut text), native);
            assert_eq!(node_label(&endpoint, true, &mut text), apisix);
        };
        check("10.0.0.1:8080", "10.0.0.1:8080", "10.0.0.1:8080", "10.0.0.1");
        check("10.0.0.1:80", "10.0.0.1", "10.0.0.1:80", "10.0.0.1");
        check("[::1]:80", "[::1]", "[::1]:80", "::1");
        check("10.0.0.1:80", "shop.internal", "shop.internal:80", "10.0.0.1");
        check("10.0.0.1:81", "shop.internal:81", "shop.internal:81", "10.0.0.1");
    }
}
