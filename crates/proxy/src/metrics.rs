//! What a request changes in the metrics, worked out once for each configuration.
//!
//! A [`MetricsPlan`] is part of the Plan: the families as declared, and where each of their labels comes from. What a
//! worker does with it for a request is in `recorder`, what is told of connections and nodes in `gauges`. What families
//! there are is the configuration's business, how values are kept that of `stillgate-metrics`.

mod gauges;
mod recorder;
mod streams;
mod table;
#[cfg(test)]
mod tests;
mod values;

pub(crate) use gauges::{Active, Busy, Listener};
pub(crate) use recorder::Recorder;
pub(crate) use values::{node_label, upstream_path};

use std::sync::Arc;
use stillgate_config::{FamilySpec, Label, Measure, Metrics, Source};
use stillgate_metrics::{Declared, Registry, RegistryError};

/// What a finished request adds to: one counter, three histograms and two counters of bytes, whatever the dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aspect {
    /// That it was answered.
    Count,
    /// From its first byte to the response's last.
    RequestTime,
    /// From choosing a node to the end of its response.
    NodeTime,
    /// What the gateway added.
    OwnTime,
    /// Bytes from the client.
    Received,
    /// Bytes to the client.
    Sent,
}

impl Aspect {
    pub(crate) const ALL: [Aspect; 6] =
        [Aspect::Count, Aspect::RequestTime, Aspect::NodeTime, Aspect::OwnTime, Aspect::Received, Aspect::Sent];

    /// What `type` or `direction` says where one family has several aspects.
    fn word(self) -> &'static str {
        match self {
            Aspect::Count => "",
            Aspect::RequestTime => "request",
            Aspect::NodeTime => "upstream",
            Aspect::OwnTime => "apisix",
            Aspect::Received => "ingress",
            Aspect::Sent => "egress",
        }
    }

    /// Its bit in a set of aspects.
    #[inline]
    pub(crate) fn bit(self) -> u8 {
        1 << self as u8
    }

    fn of(measure: Measure) -> &'static [Aspect] {
        match measure {
            Measure::HttpRequests | Measure::ApisixHttpStatus => &[Aspect::Count],
            Measure::HttpRequestDuration => &[Aspect::RequestTime],
            Measure::HttpUpstreamDuration => &[Aspect::NodeTime],
            Measure::HttpGatewayDuration => &[Aspect::OwnTime],
            Measure::ApisixHttpLatency => &[Aspect::RequestTime, Aspect::NodeTime, Aspect::OwnTime],
            Measure::HttpBytes | Measure::ApisixBandwidth => &[Aspect::Received, Aspect::Sent],
            _ => &[],
        }
    }
}

/// A declared family.
#[derive(Debug, Clone)]
pub(crate) struct PlanFamily {
    pub(crate) declared: Arc<Declared>,
    /// Where the value of each of its labels comes from.
    pub(crate) sources: Arc<[Source]>,
}

/// What is recorded under one configuration.
#[derive(Debug)]
pub struct MetricsPlan {
    /// By aspect; `None`: nobody wants it, and it costs nothing.
    aspects: [Option<PlanFamily>; Aspect::ALL.len()],
    /// The aspects that are there, as bits.
    pub(crate) wanted: u8,
    /// Those with labels from variables of the request, whose series have to be looked up each time.
    pub(crate) variable: u8,
    /// Of a nanosecond, in the unit of the families of times.
    pub(crate) nanosecond: f64,
    /// Whether labels tell which path and host of the route matched, as well as its id.
    pub(crate) tells_match: bool,
    /// Whether the node is told by its address without the port.
    pub(crate) node_is_ip: bool,
    connections: Option<PlanFamily>,
    health: Option<PlanFamily>,
    stream_sessions: Option<PlanFamily>,
    stream_bytes: Option<PlanFamily>,
}

impl MetricsPlan {
    /// Declares the families that requests, connections and nodes change.
    pub fn new(metrics: &Metrics, registry: &Registry) -> Result<MetricsPlan, RegistryError> {
        let is_apisix = metrics.dialect == stillgate_config::Dialect::Apisix;
        let mut plan = MetricsPlan {
            aspects: Default::default(),
            wanted: 0,
            variable: 0,
            nanosecond: if is_apisix { 1e-6 } else { 1e-9 },
            tells_match: false,
            node_is_ip: is_apisix,
            connections: None,
            health: None,
            stream_sessions: None,
            stream_bytes: None,
        };
        for spec in metrics.families() {
            let Some(family) = plan_family(spec, metrics, registry)? else { continue };
            match spec.measure {
                Measure::Connections | Measure::ApisixConnections => plan.connections = Some(family),
                Measure::UpstreamHealthy | Measure::ApisixUpstreamStatus => plan.health = Some(family),
                Measure::StreamSessions => plan.stream_sessions = Some(family),
                Measure::StreamBytes => plan.stream_bytes = Some(family),
                measure => Aspect::of(measure).iter().for_each(|aspect| plan.take(*aspect, family.clone())),
            }
        }
        Ok(plan)
    }

    fn take(&mut self, aspect: Aspect, family: PlanFamily) {
        let is = |label: Label| family.sources.contains(&Source::Label(label));
        self.tells_match |= is(Label::MatchedUri) || is(Label::MatchedHost);
        self.wanted |= aspect.bit();
        if family.sources.iter().any(|source| matches!(source, Source::Variable(_))) {
            self.variable |= aspect.bit();
        }
        self.aspects[aspect as usize] = Some(family);
    }

    pub(crate) fn aspect(&self, aspect: Aspect) -> Option<&PlanFamily> {
        self.aspects[aspect as usize].as_ref()
    }

    /// Whether somebody wants to know how long requests take.
    pub(crate) fn times_requests(&self) -> bool {
        self.wanted & (Aspect::RequestTime.bit() | Aspect::OwnTime.bit() | Aspect::NodeTime.bit()) != 0
    }

    /// Whether somebody wants to know how long nodes take.
    pub(crate) fn times_nodes(&self) -> bool {
        self.wanted & (Aspect::OwnTime.bit() | Aspect::NodeTime.bit()) != 0
    }
}

/// Several aspects of the same family share it: declaring is idempotent, and so is this.
fn plan_family(spec: &FamilySpec, metrics: &Metrics, registry: &Registry) -> Result<Option<PlanFamily>, RegistryError> {
    let is_ours = spec.per_request
        || matches!(
            spec.measure,
            Measure::Connections
                | Measure::ApisixConnections
                | Measure::UpstreamHealthy
                | Measure::ApisixUpstreamStatus
                | Measure::StreamSessions
                | Measure::StreamBytes
        );
    match spec.family(metrics) {
        Some(family) if is_ours => {
            let declared = registry.declare(family)?;
            Ok(Some(PlanFamily { declared, sources: spec.label_plan(metrics).into() }))
        }
        _ => Ok(None),
    }
}
