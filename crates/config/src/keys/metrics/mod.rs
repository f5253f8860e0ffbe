//! The keys of `gateway.metrics`, which say what is measured and where it is exposed.
//!
//! Families and labels are looked up in their dialect's table here, once, so that nothing behind this can meet a name
//! that does not exist: that is `names`.

mod names;

use crate::values::{Dialect, Metrics};
use names::{LabelNames, disabled_families, disabled_labels, enabled_labels, extra_labels};
use serde_json::{Value as Json, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use stillgate_metrics::family::LABELS_MAX;
use stillgate_route::Variable;
use stillgate_schema::description::Definitions;
use stillgate_schema::kind::{
    ADDRESS, At, Choice, Flag, Kind, LocatedKind, TEXT, Text, Then, int, list, read, report_expected, text, unplaced,
};
use stillgate_schema::matching::{OWN_NAME, parse_recorded};
use stillgate_schema::object;
use stillgate_schema::object::{Map, map};
use stillgate_schema::quantity::{DurationRange, Size, size, span};
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink, shortened};
use stillgate_schema::text::tree::{Entry, Node, Value};

/// Labels from variables of the request that one family may have.
pub const EXTRA_LABELS_MAX: usize = 16;
/// The largest `gateway.metrics.series_per_family`.
pub const SERIES_PER_FAMILY_MAX: usize = 10_000_000;
/// The longest `gateway.metrics.path`.
pub const METRICS_PATH_BYTES_MAX: usize = 1024;

// No family has more labels of its own than this leaves room for; a test checks each.
const _: () = assert!(EXTRA_LABELS_MAX < LABELS_MAX);

const MEMORY: Size = size(4 << 20, 64 << 30);
const EXPIRE_MIN: Duration = Duration::from_secs(1);
const EXPIRE: DurationRange = span(Duration::ZERO, Duration::from_secs(30 * 24 * 3600));

object! {
    /// What to measure and where to expose it; [metrics.md](metrics.md) lists the families and their labels.
    pub(crate) struct MetricsKeys {
        /// Whether to record metrics. `false` disables them, whatever the other keys are.
        enabled: bool = Flag => default(true);
        /// Listen address for scrapes, besides `/metrics` on the admin address: `IP:PORT`.
        address: SocketAddr = ADDRESS => optional;
        /// Path to scrape.
        path: String = METRICS_PATH => default("/metrics".to_owned());
        /// Host names accepted if `address` is a loopback address, besides `localhost`, IP addresses and the machine's
        /// own name; any other gets 403 (DNS rebinding).
        hosts: Vec<String> = list(OWN_NAME) => default(Vec::new());
        /// `native`: Prometheus' conventions; `apisix`: names, labels, units and buckets of APISIX's exporter.
        dialect: Dialect = DIALECT => default(Dialect::Native);
        /// Maximum memory of all series, including index and caches.
        memory: usize = MEMORY => default(256 << 20);
        /// Maximum label sets per family; near it, the label with the most values collapses to `__other__`
        /// ([how large](monitoring.md#labels-that-explode)).
        series_per_family: usize = int(100, SERIES_PER_FAMILY_MAX as i64) => default(100_000);
        /// Idle time after which counters and histograms are removed (gauges stay valid and are kept); `0s`: never.
        expire: At<Duration> = LocatedKind(EXPIRE) => default(unplaced(Duration::ZERO));
        /// Absolute path of an in-memory directory such as `/dev/shm/stillgate`, readable by `stillgate exporter`. If
        /// absent, metrics are in private memory.
        shared: PathBuf = SHARED => optional;
        /// What is not recorded.
        disable: MetricsDisableKeys = map::<MetricsDisableKeys>() => nested;
        /// Labels to add that are off by default.
        enable: MetricsEnableKeys = map::<MetricsEnableKeys>() => nested;
        /// Labels from request variables, for families that count requests: `{FAMILY: {LABEL: $variable}}`, at most 16
        /// per family.
        labels: Vec<FamilyLabels> = ExtraLabels => default(Vec::new());
        /// Whether histograms have native (exponential) buckets besides the classic ones; protobuf format only.
        native_histograms: bool = Flag => default(false);
        /// Whether OpenMetrics has `_created` lines for counters and histograms (always with `stillgate exporter`).
        created: bool = Flag => default(true);
        /// Whether each bucket of request histograms has the last sampled request's trace as an exemplar, in
        /// OpenMetrics and protobuf; costs 192 bytes per bucket and series.
        exemplars: bool = Flag => default(false);
    }
}

object! {
    /// Labels that are off by default.
    pub(crate) struct MetricsEnableKeys {
        /// Labels to add to families that count requests: `method`.
        labels: Vec<At<String>> = list(LocatedKind(TEXT)) => default(Vec::new());
    }
}

object! {
    /// Families and labels that are not recorded, and so cost nothing.
    pub(crate) struct MetricsDisableKeys {
        /// Names, with or without the dialect's prefix: `http_requests_total` is `stillgate_http_requests_total`.
        families: Vec<At<String>> = list(LocatedKind(TEXT)) => default(Vec::new());
        /// Labels to drop from families that count requests.
        labels: Vec<At<String>> = list(LocatedKind(TEXT)) => default(Vec::new());
    }
}

/// The kind of `gateway.metrics`; `None`: nothing is measured.
pub(crate) const METRICS: Then<Map<MetricsKeys>, Option<Metrics>> = Then {
    kind: map::<MetricsKeys>(),
    make: |keys, _, path, sink| {
        let is_on = keys.enabled;
        // What is off is checked, too, so that it can be switched on.
        let metrics = resolve(keys, path, sink);
        Some(is_on.then_some(metrics))
    },
};

const DIALECT: Choice<Dialect> = Choice { words: &Dialect::ALL, unbuilt: &[] };

const METRICS_PATH: Text<String> = text("a path", |text| match text {
    _ if !text.starts_with('/') => {
        let fault = Fault::new(format!("the path {:?} does not begin with a slash", shortened(text)));
        Err(fault.hint(format!("write {:?}", format!("/{}", shortened(text)))))
    }
    _ if text.len() > METRICS_PATH_BYTES_MAX => {
        Err(Fault::new(format!("the path has more than {METRICS_PATH_BYTES_MAX} bytes")).hint("write a shorter one"))
    }
    _ if !text.bytes().all(|b| b.is_ascii_graphic() && b != b'?' && b != b'#') => {
        let fault = Fault::new(format!("the path {:?} cannot be sent in a request", shortened(text)));
        Err(fault.hint("use printable ASCII without spaces, \"?\" and \"#\""))
    }
    _ => Ok(text.to_owned()),
})
.shown();

const SHARED: Text<PathBuf> = text("a directory", |text| match text.starts_with('/') && !text.contains('\0') {
    true => Ok(PathBuf::from(text)),
    false => {
        let fault = Fault::new(format!("{:?} is not an absolute path", shortened(text)));
        Err(fault.hint("write one like \"/dev/shm/stillgate\""))
    }
});

/// One entry of `labels`, as written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FamilyLabels {
    at: Position,
    family: String,
    labels: Vec<(At<String>, Variable)>,
}

/// A map of families to maps of labels to variables.
struct ExtraLabels;

const VARIABLE: Text<Variable> = text("a variable such as $host", parse_recorded);

impl Kind for ExtraLabels {
    type Out = Vec<FamilyLabels>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Vec<FamilyLabels>> {
        let families = entries(node, "a map of families to labels", path, sink)?;
        let mut out = Vec::with_capacity(families.len());
        for family in families {
            let path = path.key(&family.key);
            let Some(labels) = entries(&family.value, "a map of labels to variables", &path, sink) else { continue };
            if labels.len() > EXTRA_LABELS_MAX {
                let message = format!("{} labels are more than {EXTRA_LABELS_MAX}", labels.len());
                sink.error(family.value.at, &path, Fault::new(message).hint("leave some out"));
                continue;
            }
            let read_label = |label: &Entry| {
                let variable = read(&VARIABLE, &label.value, &path.key(&label.key), sink)?;
                Some((At { at: label.key_at, value: label.key.to_string() }, variable))
            };
            let labels = labels.iter().filter_map(read_label).collect();
            out.push(FamilyLabels { at: family.key_at, family: family.key.to_string(), labels });
        }
        Some(out)
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        let of = |values: Json| json!({"type": ["object", "null"], "additionalProperties": values});
        let mut labels = of(json!({"type": "string"}));
        labels["maxProperties"] = json!(EXTRA_LABELS_MAX);
        of(labels)
    }
}

/// The entries of a map; a key with nothing behind it has none.
fn entries<'a>(node: &'a Node, what: &str, path: &Path<'_>, sink: &mut Sink) -> Option<&'a [Entry]> {
    match &node.value {
        Value::Map(entries) => Some(entries),
        Value::Refused => None,
        _ if node.is_null() => Some(&[]),
        _ => {
            report_expected(what, node, path, sink);
            None
        }
    }
}

fn resolve(keys: MetricsKeys, path: &Path<'_>, sink: &mut Sink) -> Metrics {
    let dialect = keys.dialect;
    let expire = keys.expire.value;
    if !expire.is_zero() && expire < EXPIRE_MIN {
        let fault = Fault::new("a series cannot go after less than 1s").hint("write at least 1s, or 0s for never");
        sink.error(keys.expire.at, &path.key("expire"), fault);
    }
    let disable = path.key("disable");
    let disabled_families = disabled_families(dialect, &keys.disable.families, &disable.key("families"), sink);
    let enabled_labels = enabled_labels(dialect, &keys.enable.labels, &path.key("enable").key("labels"), sink);
    let named = LabelNames { dialect, disabled: &disabled_families, enabled: &enabled_labels };
    let extra_labels = extra_labels(named, keys.labels, &path.key("labels"), sink);
    let disabled_labels = disabled_labels(dialect, &keys.disable.labels, &extra_labels, &disable.key("labels"), sink);
    Metrics {
        address: keys.address,
        path: keys.path,
        hosts: keys.hosts,
        dialect,
        memory_bytes: keys.memory,
        series_per_family: keys.series_per_family,
        expire: Some(expire).filter(|expire| !expire.is_zero()),
        shared: keys.shared,
        disabled_families,
        disabled_labels,
        emptied_labels: Vec::new(),
        live_routes: 0,
        enabled_labels,
        extra_labels,
        native_histograms: keys.native_histograms,
        created: keys.created,
        exemplars: keys.exemplars,
    }
}
