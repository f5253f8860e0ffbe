//! `prometheus`: sets how metrics label routes, and its metadata which labels stay empty. Requests are counted without
//! it, too.
//!
//! APISIX's metrics of calls of language models, families and labels, are refused by name in files, as they do not
//! exist here. A store may be APISIX's as well, and causes a warning.

use serde_json::json;
use stillgate_plugin_api::metadata::MetadataTable;
use stillgate_plugin_api::{Compile, Define, Metadata, Phases, Plugin};
use stillgate_schema::kind::{alternatives, list};
use stillgate_schema::object::Foreign;
use stillgate_schema::{Definitions, Fault, Flag, Json, Kind, Node, Path, Sink, Value, map, object, report_expected};

object! {
    /// Counts requests, which also happens without it.
    pub(crate) struct PrometheusKeys {
        /// Whether labels have the names of routes and services instead of their ids.
        prefer_name: bool = Flag => default(false);
    }
}

object! {
    /// Settings for all requests.
    pub(crate) struct PrometheusMetadata {
        /// Labels whose value is the empty text, by family. The labels stay, so that dashboards and rules find them.
        disabled_labels: DisabledLabels = map::<DisabledLabels>() => nested;
    }
}

object! {
    /// Labels that stay empty, by APISIX's families.
    pub(crate) struct DisabledLabels {
        /// For the answered requests: `route`, `matched_uri`, `matched_host`, `service`, `consumer` or `node`.
        http_status: Vec<&'static str> = list(OF_STATUS) => default(Vec::new());
        /// For the durations of requests: `route`, `service`, `consumer` or `node`.
        http_latency: Vec<&'static str> = list(OF_TYPES) => default(Vec::new());
        /// For the transferred bytes: `route`, `service`, `consumer` or `node`.
        bandwidth: Vec<&'static str> = list(OF_TYPES) => default(Vec::new());
        foreign: OF_MODELS;
    }
}

/// The name of a label that may stay empty.
struct LabelName {
    words: &'static [&'static str],
    /// Without it the family would add up unlike values.
    needed: &'static str,
}

const OF_STATUS: LabelName =
    LabelName { words: &["route", "matched_uri", "matched_host", "service", "consumer", "node"], needed: "code" };
const OF_TYPES: LabelName = LabelName { words: &["route", "service", "consumer", "node"], needed: "type" };

/// Labels of APISIX that the families here do not have.
const OF_OTHERS: [&str; 4] = ["request_type", "request_llm_model", "llm_model", "response_source"];

/// Families of calls of language models.
const OF_MODELS: Foreign = Foreign {
    keys: &[
        "ai_cache_bypasses_total",
        "ai_cache_embedding_latency",
        "ai_cache_hits_total",
        "ai_cache_misses_total",
        "llm_active_connections",
        "llm_completion_tokens",
        "llm_completion_tokens_dist",
        "llm_latency",
        "llm_prompt_tokens",
        "llm_prompt_tokens_dist",
    ],
    what: "this family does not exist here",
    hint: "leave it out",
};

impl Kind for LabelName {
    type Out = &'static str;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<&'static str> {
        let Value::Scalar(scalar) = &node.value else {
            report_expected("the name of a label", node, path, sink);
            return None;
        };
        let text = &*scalar.text;
        if let Some(word) = self.words.iter().find(|word| **word == text) {
            return Some(word);
        }
        let words = || alternatives(self.words.iter().copied());
        if OF_OTHERS.contains(&text) {
            sink.foreign(
                node.at,
                path,
                Fault::new(format!("the label {text:?} does not exist here")).hint("leave it out"),
            );
            return None;
        }
        let fault = match text == self.needed {
            true => Fault::new(format!("{text:?} separates values that cannot be added up"))
                .hint(format!("write {}", words())),
            false => {
                let fault = Fault::new(format!("expected {}, found {}", words(), node.description()));
                sink.guess(fault, text, self.words.iter().copied())
            }
        };
        sink.error(node.at, path, fault);
        None
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        json!({"enum": self.words})
    }

    fn show(&self, value: &&'static str) -> Json {
        json!(value)
    }
}

/// `prometheus`
pub(crate) struct Prometheus {
    prefers_names: bool,
}

impl Define for Prometheus {
    type Keys = PrometheusKeys;
    const NAME: &'static str = "prometheus";
    const PRIORITY: i32 = 500;
    const PHASES: Phases = Phases::NONE;

    fn compile(keys: PrometheusKeys, _: &mut Compile<'_>) -> Option<Prometheus> {
        Some(Prometheus { prefers_names: keys.prefer_name })
    }
}

impl Metadata for Prometheus {
    type Metadata = PrometheusMetadata;
}

impl Plugin for Prometheus {
    fn prefers_names(&self) -> bool {
        self.prefers_names
    }
}

/// The labels that stay empty: the family, with its name in APISIX's metadata, and the label.
pub fn disabled_labels(metadata: &MetadataTable) -> impl Iterator<Item = (&'static str, &'static str)> {
    let families = metadata.get::<PrometheusMetadata>(Prometheus::NAME).map(|metadata| {
        let DisabledLabels { http_status, http_latency, bandwidth, .. } = &metadata.disabled_labels;
        [("http_status", http_status), ("http_latency", http_latency), ("bandwidth", bandwidth)]
    });
    families.into_iter().flatten().flat_map(|(family, labels)| labels.iter().map(move |label| (family, *label)))
}
