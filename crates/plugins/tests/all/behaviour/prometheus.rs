//! `prometheus` and its metadata.

use super::harness;
use expect_test::expect;
use harness::{plugins, refusal};
use std::sync::Arc;
use stillgate_plugin_api::Identity;
use stillgate_plugin_api::metadata::{MetadataItem, MetadataTable};
use stillgate_plugins::{TABLE, disabled_labels};
use stillgate_schema::text::tree;
use stillgate_schema::{Path, Sink};

/// The compiled metadata, and the messages about it; for a store that others write to, too.
fn of_store(yaml: &str) -> (Vec<String>, String) {
    let mut sink = Sink::default().passing_unknown();
    let node = tree::parse(0, yaml, Some(&|_| None), &mut sink).unwrap().root;
    let part = TABLE.find("prometheus").unwrap().1.metadata.unwrap();
    let mut table = MetadataTable::default();
    let value = sink.allowing_unknown(|sink| (part.read)(&node, &Path::Root, sink)).unwrap();
    let (plugin, identity, written) = ("prometheus", Identity(0), Arc::default());
    table.insert(MetadataItem { plugin, identity, value, written });
    let labels = disabled_labels(&table).map(|(family, label)| format!("{family}.{label}"));
    (labels.collect(), sink.into_warnings().iter().map(|warning| format!("{warning}\n")).collect())
}

#[test]
fn labels_are_named_by_family() {
    let (labels, said) = of_store("disabled_labels: {http_status: [node, matched_uri], bandwidth: [route]}");
    assert_eq!(
        (labels.join(" "), said),
        ("http_status.node http_status.matched_uri bandwidth.route".to_owned(), String::new())
    );
    for nothing in ["{}", "disabled_labels: {}", "disabled_labels: {http_latency: []}"] {
        assert_eq!(of_store(nothing), (Vec::new(), String::new()), "{nothing}");
    }
    assert_eq!(disabled_labels(&MetadataTable::default()).count(), 0);
}

#[test]
fn what_is_not_here_is_refused_by_name() {
    let refused = |yaml: &str| plugins("{}").unwrap().with_metadata("prometheus", yaml).err().unwrap() + "\n";
    let all = [
        "disabled_labels: {http_status: [code]}",
        "disabled_labels: {http_latency: [type, matched_uri]}",
        "disabled_labels: {bandwidth: [nodes]}",
        "disabled_labels: {http_status: [request_type, llm_model]}",
        "disabled_labels: {llm_latency: [node]}",
        "disabled_labels: {http_status: node}",
        "disabled_labels: {http_status: [{}]}",
        "disabled_label: {}",
    ];
    let text: String = all.into_iter().map(refused).collect();
    expect![[r#"
        1:33: disabled_labels.http_status[0]: "code" separates values that cannot be added up; write route, matched_uri, matched_host, service, consumer or node
        1:34: disabled_labels.http_latency[0]: "type" separates values that cannot be added up; write route, service, consumer or node
        1:40: disabled_labels.http_latency[1]: expected route, service, consumer or node, found the text "matched_uri"
        1:31: disabled_labels.bandwidth[0]: expected route, service, consumer or node, found the text "nodes"; did you mean "node"?
        1:33: disabled_labels.http_status[0]: the label "request_type" does not exist here; leave it out
        1:47: disabled_labels.http_status[1]: the label "llm_model" does not exist here; leave it out
        1:19: disabled_labels.llm_latency: this family does not exist here; leave it out
        1:32: disabled_labels.http_status: expected a list, found a text
        1:33: disabled_labels.http_status[0]: expected the name of a label, found an empty map
        1:1: disabled_label: unknown key "disabled_label"; did you mean "disabled_labels"?
    "#]].assert_eq(&text);
    let of_route = refusal("prometheus: {prefer_name: 1}");
    assert_eq!(of_route, "1:27: prometheus.prefer_name: expected true or false, found the number 1\n");
}

#[test]
fn a_store_that_apisix_shares_is_not_refused_for_what_is_not_here() {
    let yaml = "disabled_labels: {http_status: [node, request_type], llm_latency: [node]}";
    let (labels, said) = of_store(yaml);
    assert_eq!(labels, ["http_status.node"]);
    expect![[r#"
        1:39: warning: disabled_labels.http_status[1]: the label "request_type" does not exist here; leave it out
        1:54: warning: disabled_labels.llm_latency: this family does not exist here; leave it out
    "#]]
    .assert_eq(&said);
}
