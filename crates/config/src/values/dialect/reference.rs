//! `docs/metrics.md`, written from the tables so that it cannot be stale.

use super::{Dialect, FamilyKind, FamilySpec, Label, device_tables, lua_tables, plugin_tables, source_tables, tables};
use std::collections::BTreeMap;

const INTRODUCTION: &str = "\
# Metrics

What the gateway exposes, by dialect, at `/metrics` of the admin address and on `gateway.metrics.address`
([where to scrape](monitoring.md#where-to-scrape)). How to switch families and labels off, how to add labels
from variables of the request and how to bound memory is said in [configuration.md](configuration.md#metrics).

Every peer that reaches `gateway.metrics.address` may scrape; there is no key. On a loopback address a scraper
must ask for an IP address, `localhost`, the machine's own name or one of `gateway.metrics.hosts`
(see [admin.md](admin.md#access)); on other addresses any name works.

A route with the plugin [public-api](plugins/public-api.md#metrics) serves the same to clients of the
gateway.

Formats, by the scraper's `Accept`: text 0.0.4, OpenMetrics 1.0.0, and Prometheus' delimited protobuf. With
`native_histograms: true` histograms have native buckets as well, in the protobuf format.

A label whose values become too many takes the value `__other__`, in existing series, too; the other labels stay exact, and so do
sums ([monitoring.md](monitoring.md#labels-that-explode)). `stillgate_metrics_collapsed_observations_total{family,label}` counts
what came in after that.

Where several processes count at a time (during an upgrade, or with `gateway.metrics.shared`), an exposition shows what all of
them have counted. Of gauges it shows the sum where they tell how much there is (connections, tunnels), and otherwise what was
set last, during an upgrade by the new process: its start, its memory, its configuration. When a process ends its counters and
histograms stay in the totals, and so does `apisix_http_requests_total`; its gauges go. An upgrade hands the totals over in
memory, which takes some beyond `gateway.metrics.memory`: what the former processes' series need, of each family at most twice
`series_per_family`. After a start of any other kind totals start at zero, unless they are in a folder. They also start at zero where
an upgrade changes `gateway.metrics.shared`, and those of a family whose type, unit or buckets the next release changes.
";

/// Every family of every dialect, its labels and its buckets, as Markdown.
pub(crate) fn families_as_markdown() -> String {
    let mut out = INTRODUCTION.to_owned();
    let sections = [
        ("Dialect `native`", "Families of the gateway by Prometheus' conventions. The default.", tables::NATIVE),
        (
            "Dialect `apisix`",
            "The families of APISIX's `prometheus` plugin, for dashboards and alerts that were made for it. What has \
             nothing to measure here is left out: shared dictionaries, xRPC, batch processors, AI. \
             `apisix_nginx_metric_errors_total` counts what could not be recorded at all.",
            tables::APISIX,
        ),
        (
            "In both dialects",
            "The process, its workers, its configuration, upstreams, streams and the metrics themselves.\n\n\
             Counters with the label `upstream` start at 0 if the upstream's configuration uses what they count,\n\
             so that an alert on their rate sees the first event. With `gateway.metrics.expire` an idle counter\n\
             is removed, and its next event starts it at 1: a rate misses that event. Histograms and\n\
             `stillgate_upstream_requests_waiting` appear with their first value.",
            tables::COMMON,
        ),
        (
            "Where resources come from, in both dialects",
            "Of the store or etcd: [control-plane.md](control-plane.md#monitoring).",
            source_tables::SOURCE,
        ),
        (
            "Devices, in both dialects",
            "Those about the directory are there on nodes that share one: [devices.md](devices.md#several-nodes).",
            device_tables::DEVICES,
        ),
        ("Plugins, in both dialects", "Of each plugin that is used.", plugin_tables::PLUGINS),
        (
            "Functions in Lua, in both dialects",
            "What LuaJIT compiles: [jit-health.md](jit-health.md). There are none until a worker has run a function.",
            lua_tables::LUA,
        ),
    ];
    for (title, about, families) in sections {
        out +=
            &format!("\n## {title}\n\n{about}\n\n| family | type | unit | labels | meaning |\n|---|---|---|---|---|\n");
        families.iter().for_each(|spec| write_family(&mut out, spec));
    }
    write_labels(&mut out);
    write_buckets(&mut out);
    out
}

fn write_family(out: &mut String, spec: &FamilySpec) {
    let labels: Vec<String> = spec.labels.iter().map(|label| format!("`{}`", label.name())).collect();
    let (name, kind, help) = (spec.name, spec.kind.word(), spec.help);
    *out += &format!("| `{name}` | {kind} | {} | {} | {help} |\n", spec.unit, labels.join(", "));
}

fn write_labels(out: &mut String) {
    let all = Dialect::ALL
        .iter()
        .flat_map(|(_, dialect)| dialect.families())
        .flat_map(|spec| spec.labels.iter().chain(spec.optional));
    let labels: BTreeMap<&str, &Label> = all.map(|label| (label.name(), label)).collect();
    *out += "\n## Labels\n\n";
    *out += "`disable.labels` takes labels of families that count requests, except `type`;\nelsewhere a label separates \
        values that cannot be added up.\n`enable.labels: [method]` adds the label `method` to families that count requests.\n\n| label | values |\n|---|---|\n";
    for label in labels.values() {
        let (name, values) = label.described();
        *out += &format!("| `{name}` | {values} |\n");
    }
}

fn write_buckets(out: &mut String) {
    *out += "\n## Buckets\n\nUpper bounds of the classic buckets, in the family's unit (`apisix_http_latency`: \
             milliseconds); `+Inf` follows.\n\n| family | bounds |\n|---|---|\n";
    let all = tables::NATIVE.iter().chain(tables::APISIX).chain(tables::COMMON).chain(plugin_tables::PLUGINS);
    for spec in all {
        if let FamilyKind::Histogram(bounds) = spec.kind {
            let bounds: Vec<String> = bounds.iter().map(f64::to_string).collect();
            *out += &format!("| `{}` | {} |\n", spec.name, bounds.join(", "));
        }
    }
}
