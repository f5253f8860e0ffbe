//! What is measured and where it is exposed, and what a family of the dialect's table comes to with all of it applied.

use super::dialect::{Dialect, FamilyKind, FamilySpec, Label, Measure};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use stillgate_metrics::{Buckets, Family, Kind, Native};
use stillgate_route::Variable;

/// `gateway.metrics`: what is measured and where it is exposed. Every name in it exists in its dialect.
#[derive(Debug, Clone, PartialEq)]
pub struct Metrics {
    /// Where the exposition is served beside the admin address; `None`: nowhere else, unless another process reads `shared`.
    pub address: Option<SocketAddr>,
    /// The exposition's path.
    pub path: String,
    /// Names under which it may be asked for over loopback, besides those it knows itself.
    pub hosts: Vec<String>,
    /// Whose names the families have.
    pub dialect: Dialect,
    /// Bytes that all series may take, index and caches included.
    pub memory_bytes: usize,
    /// Label sets of one family; at the bound the label with the most values collapses.
    pub series_per_family: usize,
    /// How long a series is idle before it goes; `None`: it stays.
    pub expire: Option<Duration>,
    /// The directory of the memory that other processes may read; `None`: it is anonymous.
    pub shared: Option<PathBuf>,
    /// Families that are not recorded, sorted.
    pub disabled_families: Vec<Measure>,
    /// Labels that families of requests do without, sorted.
    pub disabled_labels: Vec<Label>,
    /// Labels that families of requests have without a value, by the family of APISIX's exporter that measures the same; the
    /// metadata of the plugin `prometheus` names them.
    pub emptied_labels: Vec<(Measure, Label)>,
    /// Routes whose latency is also kept in fine buckets, for the dashboard; 0: no latency is. It follows from the rest of the
    /// section `gateway`.
    pub live_routes: u32,
    /// Labels that families of requests have beside their own because they are named, sorted.
    pub enabled_labels: Vec<Label>,
    /// Labels that families have beside their own, in the order of the file.
    pub extra_labels: Vec<(Measure, Vec<(String, Variable)>)>,
    /// Whether histograms have native buckets beside the classic ones.
    pub native_histograms: bool,
    /// Whether OpenMetrics tells when a series began.
    pub created: bool,
    /// Whether histograms of requests keep the trace of a request for each bucket.
    pub exemplars: bool,
}

/// Where the value of one label of a declared family comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum LabelSource {
    /// From what is measured.
    Label(Label),
    /// From the request; empty where it has none.
    Variable(Variable),
    /// From nowhere: it is empty.
    Nothing,
}

impl Metrics {
    /// The dialect's families but for those that are disabled.
    pub fn families(&self) -> impl Iterator<Item = &'static FamilySpec> {
        self.dialect.families().filter(|spec| !self.disabled_families.contains(&spec.measure))
    }

    /// The same with labels that have no value, by the names of APISIX's families, without their prefix, and of the labels.
    pub fn with_emptied<'a>(&self, names: impl Iterator<Item = (&'a str, &'a str)>) -> Metrics {
        let find = |(family, label): (&str, &str)| {
            let spec = Dialect::Apisix.find(family)?;
            let label = spec.labels.iter().find(|of| of.name() == label)?;
            Some((spec.measure, *label))
        };
        Metrics { emptied_labels: names.filter_map(find).collect(), ..self.clone() }
    }
}

impl FamilySpec {
    /// The family as it is declared to the metrics engine; `None`: it is disabled.
    pub fn family(&self, metrics: &Metrics) -> Option<Family> {
        if metrics.disabled_families.contains(&self.measure) {
            return None;
        }
        Some(Family {
            name: self.name.to_owned(),
            help: self.help.to_owned(),
            unit: self.unit.to_owned(),
            kind: self.kind.declared(metrics.native_histograms),
            labels: self.sources(metrics).map(|(name, _)| name.to_owned()).collect(),
            exemplars: metrics.exemplars && self.per_request && matches!(self.kind, FamilyKind::Histogram(_)),
        })
    }

    /// Where the value of each label of [`FamilySpec::family`] comes from, in the same order.
    pub fn label_plan(&self, metrics: &Metrics) -> Vec<LabelSource> {
        self.sources(metrics).map(|(_, source)| source).collect()
    }

    /// Its labels: its own that are not disabled, those that are enabled, and then those of the configuration.
    fn sources<'a>(&'a self, metrics: &'a Metrics) -> impl Iterator<Item = (&'a str, LabelSource)> {
        let kept = |label: &&Label| !self.per_request || !metrics.disabled_labels.contains(label);
        let optional = self.optional.iter().filter(|label| metrics.enabled_labels.contains(label));
        let source = |label: &Label| match metrics.emptied_labels.contains(&(self.measure.in_apisix(), *label)) {
            true => LabelSource::Nothing,
            false => LabelSource::Label(*label),
        };
        let own = self.labels.iter().filter(kept).chain(optional).map(move |label| (label.name(), source(label)));
        let extra = metrics.extra_labels.iter().filter(|(measure, _)| *measure == self.measure);
        let extra = extra.flat_map(|(_, labels)| labels);
        own.chain(extra.map(|(name, variable)| (name.as_str(), LabelSource::Variable(variable.clone()))))
    }
}

impl FamilyKind {
    fn declared(self, native: bool) -> Kind {
        match self {
            FamilyKind::Counter => Kind::Counter,
            FamilyKind::FloatCounter => Kind::FloatCounter,
            FamilyKind::Gauge(merge) => Kind::Gauge(merge),
            FamilyKind::Info => Kind::Info,
            FamilyKind::Histogram(bounds) => {
                Kind::Histogram(Buckets { classic: bounds.to_vec(), native: native.then(Native::default) })
            }
        }
    }
}
