//! What `GET /v1/metrics/cardinality` answers; the only owner of this JSON shape.

use serde::Serialize;
use serde_json::{Map, Value as Json};
use stillgate_config::Metrics;
use stillgate_metrics::reader::{FamilyCardinality, LabelCardinality};

/// The answer.
#[derive(Debug, Serialize)]
pub(crate) struct Cardinality {
    /// Families, the one with the most series first.
    families: Vec<FamilyUsage>,
}

#[derive(Debug, Serialize)]
struct FamilyUsage {
    name: String,
    /// Number of series, over all writers.
    series: usize,
    /// Bytes of the writers' memory.
    bytes: usize,
    labels: Vec<LabelUsage>,
    /// Some of the newest series, as labels with their values.
    examples: Vec<Map<String, Json>>,
}

#[derive(Debug, Serialize)]
struct LabelUsage {
    name: String,
    /// About how many different values it has had.
    distinct: u64,
    /// Whether values that are new are counted as `__other__`.
    collapsed: bool,
    /// Some of the values.
    samples: Vec<String>,
    /// Whether it is the label that takes the family to its bound.
    exploding: bool,
    /// What to write into the configuration to be without it; null: it cannot be left out.
    key: Option<String>,
}

/// A family is near its bound from one part in so many on.
const NEAR: usize = 2;

impl Cardinality {
    pub(crate) fn new(families: Vec<FamilyCardinality>, metrics: &Metrics) -> Cardinality {
        Cardinality { families: families.into_iter().map(|family| FamilyUsage::new(family, metrics)).collect() }
    }
}

impl FamilyUsage {
    fn new(family: FamilyCardinality, metrics: &Metrics) -> FamilyUsage {
        let widest = family.labels.iter().map(|label| label.distinct).max().unwrap_or(0);
        let is_near = family.series.saturating_mul(NEAR) >= metrics.series_per_family;
        let label = |label: LabelCardinality| LabelUsage {
            exploding: label.collapsed || (is_near && widest > 1 && label.distinct == widest),
            key: remedy(metrics, &family.name, &label.name),
            name: label.name,
            distinct: label.distinct,
            collapsed: label.collapsed,
            samples: label.samples,
        };
        let example = |labels: Vec<(String, String)>| labels.into_iter().map(|(name, value)| (name, value.into()));
        FamilyUsage {
            labels: family.labels.into_iter().map(label).collect(),
            examples: family.examples.into_iter().map(|labels| example(labels).collect()).collect(),
            name: family.name,
            series: family.series,
            bytes: family.bytes,
        }
    }
}

/// The line of `gateway.metrics` that leaves a label out.
fn remedy(metrics: &Metrics, family: &str, label: &str) -> Option<String> {
    let spec = metrics.dialect.families().find(|spec| spec.name == family && spec.per_request)?;
    let extra = metrics.extra_labels.iter().find(|(measure, _)| *measure == spec.measure);
    if let Some((_, labels)) = extra.filter(|(_, labels)| labels.iter().any(|(name, _)| name == label)) {
        let others = labels.iter().filter(|(name, _)| name != label);
        let others: Vec<String> = others.map(|(name, variable)| format!("{name}: ${variable}")).collect();
        return Some(format!("gateway.metrics.labels.{}: {{{}}}", metrics.dialect.short(spec), others.join(", ")));
    }
    let others = metrics.disabled_labels.iter().map(|label| label.name());
    let all: Vec<&str> = others.chain([label]).collect();
    Some(format!("gateway.metrics.disable.labels: [{}]", all.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn the_shape_is_a_contract() {
        let label = LabelCardinality {
            name: "uri".into(),
            distinct: 300_000,
            collapsed: true,
            samples: vec!["/a".into(), "__other__".into()],
        };
        let name = "stillgate_http_requests_total".into();
        let examples = vec![vec![("uri".to_owned(), "/a".to_owned())]];
        let families = vec![FamilyCardinality { name, series: 1234, bytes: 56789, labels: vec![label], examples }];
        let text = "gateway: {metrics: {labels: {http_requests_total: {uri: $uri, host: $host}}}}\n";
        let metrics = stillgate_config::load(text, &|_| None).unwrap().config.gateway.metrics.unwrap();
        expect![[r#"{"families":[{"name":"stillgate_http_requests_total","series":1234,"bytes":56789,"labels":[{"name":"uri","distinct":300000,"collapsed":true,"samples":["/a","__other__"],"exploding":true,"key":"gateway.metrics.labels.http_requests_total: {host: $host}"}],"examples":[{"uri":"/a"}]}]}"#]]
        .assert_eq(&serde_json::to_string(&Cardinality::new(families, &metrics)).unwrap());
    }
}
