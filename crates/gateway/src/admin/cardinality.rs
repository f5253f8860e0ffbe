//! What `GET /v1/metrics/cardinality` answers; the only owner of this JSON shape.

use serde::Serialize;
use stillgate_metrics::reader::FamilyCardinality;

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
}

impl From<Vec<FamilyCardinality>> for Cardinality {
    fn from(families: Vec<FamilyCardinality>) -> Cardinality {
        let family = |family: FamilyCardinality| FamilyUsage {
            name: family.name,
            series: family.series,
            bytes: family.bytes,
            labels: family
                .labels
                .into_iter()
                .map(|label| LabelUsage {
                    name: label.name,
                    distinct: label.distinct,
                    collapsed: label.collapsed,
                    samples: label.samples,
                })
                .collect(),
        };
        Cardinality { families: families.into_iter().map(family).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use stillgate_metrics::reader::LabelCardinality;

    #[test]
    fn the_shape_is_a_contract() {
        let label = LabelCardinality {
            name: "uri".into(),
            distinct: 300_000,
            collapsed: true,
            samples: vec!["/a".into(), "__other__".into()],
        };
        let name = "stillgate_http_requests_total".into();
        let families = vec![FamilyCardinality { name, series: 1234, bytes: 56789, labels: vec![label] }];
        expect![[r#"{"families":[{"name":"stillgate_http_requests_total","series":1234,"bytes":56789,"labels":[{"name":"uri","distinct":300000,"collapsed":true,"samples":["/a","__other__"]}]}]}"#]]
        .assert_eq(&serde_json::to_string(&Cardinality::from(families)).unwrap());
    }
}
