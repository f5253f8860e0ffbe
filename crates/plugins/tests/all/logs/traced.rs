//! Propagation of trace contexts to the node. The random numbers begin with the same seed in each test.

use crate::harness::{OK, Plugins, plugins};
use expect_test::{Expect, expect};

const METADATA: &str = "collector: {address: \"127.0.0.1:1\"}";

fn w3c(sampler: &str, metadata: &str) -> Plugins {
    let plugin = plugins(&format!("opentelemetry: {{sampler: {sampler}}}")).unwrap();
    plugin.with_metadata("opentelemetry", metadata).unwrap()
}

/// The lines of the request's header about traces.
fn check(plugins: &Plugins, fields: &str, expected: Expect) {
    let text = plugins.run(&format!("GET /a HTTP/1.1\nHost: h\n{fields}"), OK);
    let is_it = |line: &&str| ["trace", "X-B3", "b3", "answers"].iter().any(|part| line.contains(part));
    let lines: Vec<&str> = text.lines().filter(is_it).collect();
    let shown = if lines.is_empty() { "nothing".to_owned() } else { lines.join("\n") };
    expected.assert_eq(&format!("{shown}\n"));
}

#[test]
fn w3c_contexts() {
    let parent = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0";
    check(
        &w3c("{name: always_on}", METADATA),
        "",
        expect![[r#"
        > traceparent: 00-47e4ce4b896cdd1dabcfa6a8e079651d-b9d10d8feb731f57-01
    "#]],
    );
    check(
        &w3c("{name: always_off}", METADATA),
        &format!("{parent}1\ntracestate: a=b\n"),
        expect![[r#"
        > tracestate: a=b
        > traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-47e4ce4b896cdd1d-00
    "#]],
    );
    check(
        &w3c("{name: parent_base}", METADATA),
        &format!("{parent}1\n"),
        expect![[r#"
        > traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-47e4ce4b896cdd1d-01
    "#]],
    );
    check(
        &w3c("{name: parent_base, options: {root: {name: always_on}}}", METADATA),
        &format!("{parent}0\n"),
        expect![[r#"
        > traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-47e4ce4b896cdd1d-00
    "#]],
    );
    check(
        &w3c("{name: parent_base, options: {root: {name: always_on}}}", METADATA),
        "traceparent: 00-x\ntracestate: a=b\n",
        expect![[r#"
        > traceparent: 00-47e4ce4b896cdd1dabcfa6a8e079651d-b9d10d8feb731f57-01
    "#]],
    );
    check(
        &w3c("{name: trace_id_ratio, options: {fraction: 0}}", METADATA),
        "",
        expect![[r#"
        > traceparent: 00-47e4ce4b896cdd1dabcfa6a8e079651d-b9d10d8feb731f57-00
    "#]],
    );
    let by_id = format!("{METADATA}\ntrace_id_source: x-request-id");
    check(
        &w3c("{name: always_on}", &by_id),
        "X-Request-Id: 4bf92f35-77b3-4da6-a3ce-929d0e0e4736\n",
        expect![[r#"
        > X-Request-Id: 4bf92f35-77b3-4da6-a3ce-929d0e0e4736
        > traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-47e4ce4b896cdd1d-01
    "#]],
    );
    check(
        &w3c("{name: always_on}", &by_id),
        "X-Request-Id: mine\n",
        expect![[r#"
        > traceparent: 00-47e4ce4b896cdd1dabcfa6a8e079651d-b9d10d8feb731f57-01
    "#]],
    );
    let without = plugins("opentelemetry: {sampler: {name: always_on}}").unwrap();
    check(
        &without,
        "",
        expect![[r#"
            nothing
        "#]],
    );
}

#[test]
fn b3_contexts() {
    let zipkin = |ratio: &str| plugins(&format!("zipkin: {{endpoint: \"http://a\", sample_ratio: {ratio}}}")).unwrap();
    let (trace, span) = ("80f198ee56343ba864fe8b2a57d3eff7", "e457b5a2e4d86bd1");
    check(
        &zipkin("1"),
        "",
        expect![[r#"
        > X-B3-TraceId: abcfa6a8e079651db9d10d8feb731f57
        > X-B3-ParentSpanId: 4db418a0bb1b019d
        > X-B3-SpanId: 0e6199b04d5aa600
        > X-B3-Sampled: 1
    "#]],
    );
    check(
        &zipkin("0.00001"),
        "",
        expect![[r#"
        > X-B3-TraceId: abcfa6a8e079651db9d10d8feb731f57
        > X-B3-SpanId: 4db418a0bb1b019d
        > X-B3-Sampled: 0
    "#]],
    );
    check(
        &zipkin("0.00001"),
        &format!("b3: {trace}-{span}-1\n"),
        expect![[r#"
        > X-B3-TraceId: 80f198ee56343ba864fe8b2a57d3eff7
        > X-B3-ParentSpanId: 47e4ce4b896cdd1d
        > X-B3-SpanId: abcfa6a8e079651d
        > X-B3-Sampled: 1
    "#]],
    );
    check(
        &zipkin("1"),
        &format!("b3: {trace}-{span}-0\n"),
        expect![[r#"
        > X-B3-TraceId: 80f198ee56343ba864fe8b2a57d3eff7
        > X-B3-ParentSpanId: e457b5a2e4d86bd1
        > X-B3-SpanId: 47e4ce4b896cdd1d
        > X-B3-Sampled: 0
    "#]],
    );
    check(
        &zipkin("0.00001"),
        &format!("b3: {trace}-{span}-d\n"),
        expect![[r#"
        > X-B3-Flags: 1
        > X-B3-TraceId: 80f198ee56343ba864fe8b2a57d3eff7
        > X-B3-ParentSpanId: 47e4ce4b896cdd1d
        > X-B3-SpanId: abcfa6a8e079651d
        > X-B3-Sampled: 1
    "#]],
    );
    check(
        &zipkin("1"),
        "b3: 0\n",
        expect![[r#"
        > X-B3-TraceId: 47e4ce4b896cdd1dabcfa6a8e079651d
        > X-B3-SpanId: b9d10d8feb731f57
        > X-B3-Sampled: 0
    "#]],
    );
    check(
        &zipkin("1"),
        "b3: nonsense\n",
        expect![[r#"
        > zipkin answers
    "#]],
    );
    check(
        &zipkin("1"),
        &format!("X-B3-TraceId: {}\nX-B3-SpanId: {span}\nX-B3-Sampled: 1\n", &trace[16..]),
        expect![[r#"
        > X-B3-TraceId: 64fe8b2a57d3eff7
        > X-B3-ParentSpanId: 47e4ce4b896cdd1d
        > X-B3-SpanId: abcfa6a8e079651d
        > X-B3-Sampled: 1
    "#]],
    );
    check(
        &zipkin("0.00001"),
        &format!("X-B3-TraceId: {trace}\nX-B3-SpanId: x\nX-B3-Flags: 1\n"),
        expect![[r#"
        > X-B3-Flags: 1
        > X-B3-TraceId: 47e4ce4b896cdd1dabcfa6a8e079651d
        > X-B3-ParentSpanId: b9d10d8feb731f57
        > X-B3-SpanId: 4db418a0bb1b019d
        > X-B3-Sampled: 1
    "#]],
    );
}
