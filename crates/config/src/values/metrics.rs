//! The settings of metrics, and the families of the dialect's table with all settings applied.

use super::dialect::{Dialect, FamilyKind, FamilySpec, Label, Measure};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use stillgate_metrics::{Buckets, Family, FamilyType, Native};
use stillgate_route::Variable;

/// `gateway.metrics`: the settings of recording and exposition. Every name in it exists in its dialect.
#[derive(Debug, Clone, PartialEq)]
pub struct Metrics {
    /// The address of the exposition in addition to the admin address; `None`: nowhere else, unless another process reads `shared`.
    pub address: Option<SocketAddr>,
    /// The exposition's path.
    pub path: String,
    /// Host names under which it may be requested over loopback, in addition to the built-in ones.
    pub hosts: Vec<String>,
    /// The dialect that names the families.
    pub dialect: Dialect,
    /// The most bytes of all series, index and caches included.
    pub memory_bytes: usize,
    /// The most label sets of one family; at the bound the label with the most values collapses.
    pub series_per_family: usize,
    /// The idle time after which a series is removed; `None`: it stays.
    pub expire: Option<Duration>,
    /// The directory of the memory that other processes may read; `None`: the memory is anonymous.
    pub shared: Option<PathBuf>,
    /// Disabled families, sorted.
    pub disabled_families: Vec<Measure>,
    /// Labels that families of requests omit, sorted.
    pub disabled_labels: Vec<Label>,
    /// Labels that families of requests have without a value, by the family of APISIX's exporter with the same measure; the
    /// metadata of the plugin `prometheus` names them.
    pub emptied_labels: Vec<(Measure, Label)>,
    /// Number of routes whose latency is also kept in fine buckets, for the dashboard; 0: no latency is. It follows from the rest
    /// of the section `gateway`.
    pub live_routes: u32,
    /// Further labels that families of requests have because they are named here, sorted.
    pub enabled_labels: Vec<Label>,
    /// Additional labels of families, in the order of the file.
    pub extra_labels: Vec<(Measure, Vec<(String, Variable)>)>,
    /// Whether histograms have native buckets in addition to the classic ones.
    pub native_histograms: bool,
    /// Whether OpenMetrics contains the creation times of series.
    pub created: bool,
    /// Whether histograms of requests keep the trace of one request per bucket.
    pub exemplars: bool,
}

/// The source of the value of one label of a declared family.
#[derive(Debug, Clone, PartialEq)]
pub enum LabelSource {
    /// The recording code.
    Label(Label),
    /// The request; empty if it does not have the value.
    Variable(Variable),
    /// None: the value is empty.
    Nothing,
}

impl Metrics {
    /// The dialect's families without the disabled ones.
    pub fn families(&self) -> impl Iterator<Item = &'static FamilySpec> {
        self.dialect.families().filter(|spec| !self.disabled_families.contains(&spec.measure))
    }

    /// Adds labels without a value, by the names of APISIX's families without their prefix, and of the labels.
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
    /// The family as declared to the metrics engine; `None`: it is disabled.
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

    /// The sources of the values of each label of [`FamilySpec::family`], in the same order.
    pub fn label_plan(&self, metrics: &Metrics) -> Vec<LabelSource> {
        self.sources(metrics).map(|(_, source)| source).collect()
    }

    /// Its labels: its own without the disabled ones, those that are enabled, and then those of the configuration.
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
    fn declared(self, native: bool) -> FamilyType {
        match self {
            FamilyKind::Counter => FamilyType::Counter,
            FamilyKind::FloatCounter => FamilyType::FloatCounter,
            FamilyKind::Gauge(merge) => FamilyType::Gauge(merge),
            FamilyKind::Info => FamilyType::Info,
            FamilyKind::Histogram(bounds) => {
                FamilyType::Histogram(Buckets { classic: bounds.to_vec(), native: native.then(Native::default) })
            }
        }
    }
}
