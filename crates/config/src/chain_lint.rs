//! Lints the plugins of a configuration: authentication that admits nobody or never runs, and plugins that can have no effect.
//!
//! Chains that routes share are checked once, and an entry is reported once, at the place where it is written.

use crate::model::Config;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use stillgate_plugin_api::{Chain, ChainEntry, DeviceSettings};
use stillgate_route::Variable;

/// Maximum number of findings that are reported; the others are counted.
const FINDINGS_MAX: usize = 1000;

/// The findings.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ChainLint {
    /// The first ones.
    pub findings: Vec<ChainFinding>,
    /// Number of further findings.
    pub omitted: usize,
}

/// One finding.
#[derive(Debug, PartialEq, Eq)]
pub struct ChainFinding {
    /// Line of the entry; 0: the file as a whole.
    pub line: u32,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub hint: &'static str,
    /// The first route that it is about, by its index.
    pub route: Option<usize>,
}

/// What is wrong with an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum LintKind {
    LetsNobodyIn,
    SecondToAuthenticate,
    NeedsConsumer,
    NeverRuns,
    LetsAnyDeviceIn,
    ServesNoDevices,
    MakesASeriesEach,
}

impl LintKind {
    fn hint(self) -> &'static str {
        match self {
            LintKind::LetsNobodyIn => "add credentials to consumers, or remove the plugin",
            LintKind::SecondToAuthenticate => "keep one of them, or disable one with `_meta: {disable: true}`",
            LintKind::NeedsConsumer => "add a plugin that authenticates, or use something else than the consumer",
            LintKind::LetsAnyDeviceIn => "add a plugin that authenticates, such as jwt-auth or key-auth",
            LintKind::ServesNoDevices => "add gateway.devices with an address",
            LintKind::MakesASeriesEach => {
                "take the label out, or give it a variable with few values: $uri is the path without the query"
            }
            LintKind::NeverRuns => "correct the filter, or remove the plugin",
        }
    }
}

/// Checks all chains.
pub fn chain_lint(config: &Config) -> ChainLint {
    let credentials = config.plugins.consumers.plugins_with_credentials();
    let has_devices = config.gateway.devices.is_some();
    let labels = labels(config);
    let mut looker = ChainInspector { credentials, has_devices, labels, ..ChainInspector::default() };
    let global = &config.plugins.global;
    looker.look_at(&[], global, None);
    let mut seen: HashSet<*const Chain> = HashSet::new();
    for (index, route) in config.routes.iter().enumerate() {
        if let Some(chain) = route.chain.as_ref().filter(|chain| seen.insert(Arc::as_ptr(chain))) {
            looker.look_at(global.entries(), chain, Some(index));
        }
    }
    for consumer in config.plugins.consumers.iter() {
        consumer.plugins.iter().for_each(|entry| looker.look_at_filter(entry, None));
    }
    looker.look_for_unasked();
    looker.lint
}

/// Labels of metrics that the configuration adds.
fn labels(config: &Config) -> Vec<(&'static str, String, Variable)> {
    let Some(metrics) = &config.gateway.metrics else { return Vec::new() };
    let name = |measure| metrics.dialect.families().find(|spec| spec.measure == measure).map(|spec| spec.name);
    let of_family = |(measure, labels): &(_, Vec<(String, Variable)>)| {
        let family = name(*measure).unwrap_or_default();
        labels.iter().map(|(label, variable)| (family, label.clone(), variable.clone())).collect::<Vec<_>>()
    };
    metrics.extra_labels.iter().flat_map(of_family).collect()
}

#[derive(Default)]
struct ChainInspector {
    lint: ChainLint,
    /// The plugins for which some consumer has a credential.
    credentials: BTreeSet<&'static str>,
    /// Whether `gateway.devices` is configured.
    has_devices: bool,
    /// Labels of metrics that the configuration adds: family, label, and the variable it is of.
    labels: Vec<(&'static str, String, Variable)>,
    /// The ones that occur in some chain.
    asked: HashSet<&'static str>,
    /// Entries by their address, and the kinds of findings reported about them.
    told: HashSet<(usize, LintKind)>,
}

impl ChainInspector {
    /// Checks one chain, behind the global rules.
    fn look_at(&mut self, global: &[Arc<ChainEntry>], chain: &Chain, route: Option<usize>) {
        let mut first: Option<&ChainEntry> = global.iter().map(|entry| &**entry).find(|entry| entry.authenticates);
        for entry in chain.entries() {
            self.look_at_filter(entry, route);
            if !entry.authenticates {
                continue;
            }
            let asked = match entry.plugin.asks_for() {
                [] => &[entry.name][..],
                others => others,
            };
            self.asked.extend(asked);
            if !asked.iter().any(|name| self.credentials.contains(name)) {
                let message = "no consumer has a credential for it: requests are refused, unless it names an `anonymous_consumer`";
                self.report(entry, LintKind::LetsNobodyIn, message, route);
            }
            match first {
                None => first = Some(entry),
                Some(first) => {
                    let message = format!(
                        "authenticates a second time, after {} of {} (line {}): a request must satisfy both",
                        first.name, first.origin, first.at.line
                    );
                    self.report(entry, LintKind::SecondToAuthenticate, &message, route);
                }
            }
        }
        for (entry, settings) in chain.entries().iter().filter_map(|entry| Some((entry, entry.plugin.devices()?))) {
            self.look_at_labels(entry, settings, route);
            if first.is_none() {
                let message = "lets any device in, under any id: no plugin before it authenticates";
                self.report(entry, LintKind::LetsAnyDeviceIn, message, route);
            }
            if !self.has_devices {
                let message = "answers 503: gateway.devices is not configured";
                self.report(entry, LintKind::ServesNoDevices, message, route);
            }
        }
        // Routes may provide what a global rule needs, but its own phases come before theirs.
        if first.is_none() {
            for entry in chain.entries().iter().filter(|entry| entry.plugin.reads_consumer()) {
                let message = "depends on the consumer, and no plugin before it authenticates";
                self.report(entry, LintKind::NeedsConsumer, message, route);
            }
        }
    }

    fn look_at_filter(&mut self, entry: &ChainEntry, route: Option<usize>) {
        if entry.meta.filter.as_ref().is_some_and(|filter| filter.never_holds()) {
            // The reason that it cannot hold is not reported: its values may come from secrets.
            self.report(entry, LintKind::NeverRuns, "never runs, since no request can satisfy its _meta.filter", route);
        }
    }

    /// A label with a value for each device: the cost of every connect then grows with the number of devices ever seen.
    fn look_at_labels(&mut self, entry: &ChainEntry, settings: &DeviceSettings, route: Option<usize>) {
        let has_query = settings.id_variables.iter().any(|variable| matches!(variable, Variable::Arg(_)));
        let is_each = |variable: &Variable| {
            let is_whole_query = matches!(variable, Variable::RequestUri | Variable::Args);
            settings.id_variables.contains(variable) || has_query && is_whole_query
        };
        let found = self.labels.iter().find(|(.., variable)| is_each(variable));
        let message = found.map(|(family, label, variable)| {
            format!("each device makes a series of its own in {family}: its label {label} is of ${variable}, which holds the id")
        });
        if let Some(message) = message {
            self.report(entry, LintKind::MakesASeriesEach, &message, route);
        }
    }

    fn look_for_unasked(&mut self) {
        for plugin in self.credentials.clone() {
            if !self.asked.contains(plugin) {
                let message = format!("consumers have credentials of {plugin}, which no route and no global rule uses");
                let hint = "add the plugin to what the consumers may use";
                self.add(ChainFinding { line: 0, message, hint, route: None });
            }
        }
    }

    fn report(&mut self, entry: &ChainEntry, kind: LintKind, message: &str, route: Option<usize>) {
        if self.told.insert((std::ptr::from_ref(entry).addr(), kind)) {
            let message = format!("{} of {}: {message}", entry.name, entry.origin);
            self.add(ChainFinding { line: entry.at.line, message, hint: kind.hint(), route });
        }
    }

    fn add(&mut self, finding: ChainFinding) {
        match self.lint.findings.len() < FINDINGS_MAX {
            true => self.lint.findings.push(finding),
            false => self.lint.omitted += 1,
        }
    }
}
