//! Loggers and traces to receivers that refuse, stall, and accept a part: strict doubles, and a real Collector of OpenTelemetry.
//! Requests are not affected, and every entry is sent or counted as lost.

use crate::shared::logs;
use crate::shared::logs::strict::Strict;
use crate::shared::logs::{dropped, receiver, sent};
use crate::shared::measured::MeasuredGateway;
use std::path::Path;
use std::process::Command;
use stillgate_testkit::{Process, ReservedPort, Upstream, eventually};

/// The bound of what waits for one receiver, with what is being written to it.
const HELD_BYTES_MAX: f64 = 17.0 * 1024.0 * 1024.0;
/// Where `cargo xtask test` installs it, below cargo's folder.
const OTELCOL: &str = "peers/otelcol-0.165.0/otelcol";

/// Sends requests and waits until each entry of `plugin` is sent or lost; how many were.
fn settled(measured: &MeasuredGateway, plugin: &str, requests: u64) -> (u64, u64) {
    let mut client = measured.gateway.client();
    for number in 0..requests {
        assert_eq!(client.get(&format!("/a?number={number}")).head.status(), 200);
    }
    let mut counted = (0, 0);
    eventually("all to be counted", || {
        counted = (sent(measured, plugin), dropped(measured, plugin));
        counted.0 + counted.1 >= requests
    });
    counted
}

fn lost(measured: &MeasuredGateway, plugin: &str, reason: &str) -> f64 {
    measured.scrape().sum("stillgate_logger_dropped_total", &[("plugin", plugin), ("reason", reason)])
}

fn loki(server: &Strict, keys: &str) -> String {
    format!(
        "loki-logger: {{endpoint_addrs: [\"http://{}\"], log_labels: {{job: gw, method: $request_method, empty: $arg_none}}, \
         inactive_timeout: 1{keys}}}",
        server.upstream.addr()
    )
}

fn elasticsearch(server: &Strict, keys: &str) -> String {
    format!(
        "elasticsearch-logger: {{endpoint_addrs: [\"http://{}\"], field: {{index: \"gw-{{%Y.%m.%d}}\"}}, inactive_timeout: 1{keys}}}",
        server.upstream.addr()
    )
}

#[test]
fn loki_finds_no_fault() {
    let (node, server) = (Upstream::echo(), Strict::loki(|_| (204, "")));
    let measured = MeasuredGateway::start(logs::route(&node, &loki(&server, ", batch_max_size: 7"), ""), "");
    assert_eq!(settled(&measured, "loki-logger", 30), (30, 0));
    assert_eq!(server.faults(), [""; 0]);
    assert!(server.seen.requests() >= 5);
}

#[test]
fn what_loki_refuses_is_tried_again_or_lost() {
    let node = Upstream::echo();
    // The first batch is refused as too much.
    let server = Strict::loki(|number| if number < 2 { (429, "Ingestion rate limit exceeded") } else { (204, "") });
    let plugin = loki(&server, ", batch_max_size: 10, max_retry_count: 3, retry_delay: 0");
    let measured = MeasuredGateway::start(logs::route(&node, &plugin, ""), "");
    assert_eq!(settled(&measured, "loki-logger", 10), (10, 0));
    assert_eq!((server.seen.requests(), server.faults()), (3, Vec::new()));
    // Every batch is refused.
    let server = Strict::loki(|_| (400, "entry too far behind"));
    let measured = MeasuredGateway::start(logs::route(&node, &loki(&server, ", batch_max_size: 5"), ""), "");
    assert_eq!(settled(&measured, "loki-logger", 10), (0, 10));
    assert_eq!(lost(&measured, "loki-logger", "failed"), 10.0);
    assert!(measured.gateway.log().contains("the response has the status 400"));
}

#[test]
fn elasticsearch_finds_no_fault() {
    let (node, server) =
        (Upstream::echo(), Strict::elasticsearch(|_| (200, r#"{"took":3,"errors":false,"items":[]}"#)));
    let measured = MeasuredGateway::start(logs::route(&node, &elasticsearch(&server, ", batch_max_size: 7"), ""), "");
    assert_eq!(settled(&measured, "elasticsearch-logger", 30), (30, 0));
    assert_eq!(server.faults(), [""; 0]);
}

/// A bulk that was taken in part: what Elasticsearch did not write is lost, and counted so.
#[test]
fn what_elasticsearch_refuses_is_counted() {
    let node = Upstream::echo();
    let server = Strict::elasticsearch(|_| {
        let answer = r#"{"took":3,"errors":true,"items":[{"create":{"_index":"gw","status":201}},{"create":{"_index":"gw","status":429,"error":{"type":"es_rejected_execution_exception"}}},{"create":{"_index":"gw","status":400,"error":{"type":"mapper_parsing_exception"}}}]}"#;
        (200, answer)
    });
    let measured = MeasuredGateway::start(logs::route(&node, &elasticsearch(&server, ", batch_max_size: 3"), ""), "");
    assert_eq!(settled(&measured, "elasticsearch-logger", 3), (1, 2));
    assert_eq!(lost(&measured, "elasticsearch-logger", "refused"), 2.0);
    // The batch is refused as a whole: too many of all writers, and then accepted.
    let server = Strict::elasticsearch(|number| if number == 0 { (429, "{}") } else { (200, r#"{"errors":false}"#) });
    let plugin = elasticsearch(&server, ", batch_max_size: 3, max_retry_count: 1, retry_delay: 0");
    let measured = MeasuredGateway::start(logs::route(&node, &plugin, ""), "");
    assert_eq!(settled(&measured, "elasticsearch-logger", 3), (3, 0));
    // An invalid index name.
    let server = Strict::elasticsearch(|_| (200, "{}"));
    let plugin = elasticsearch(&server, ", batch_max_size: 1").replace("gw-", "Gw-$request_method");
    let measured = MeasuredGateway::start(logs::route(&node, &plugin, ""), "");
    assert_eq!(settled(&measured, "elasticsearch-logger", 1), (0, 1));
    assert!(matches!(&server.faults()[..], [fault] if fault.contains("invalid_index_name")), "{:?}", server.faults());
}

/// Whatever the receiver is: all requests are answered, what has no room is counted, and what waits has its bound.
#[test]
fn receivers_that_stall_cost_no_request() {
    // It accepts nothing: a receiver that reads takes what a socket gets.
    let (node, server) = (Upstream::echo(), Upstream::bind());
    let (addr, port) = (server.addr(), server.addr().port());
    let more = "batch_max_size: 10, include_resp_body: true";
    for (name, keys) in [
        ("tcp-logger", format!("host: 127.0.0.1, port: {port}, timeout: 3600000")),
        ("syslog", format!("host: 127.0.0.1, port: {port}, timeout: 3600000")),
        ("loki-logger", format!("endpoint_addrs: [\"http://{addr}\"], timeout: 60000")),
        ("elasticsearch-logger", format!("endpoint_addrs: [\"http://{addr}\"], field: {{index: i}}, timeout: 3600")),
    ] {
        let mut measured = MeasuredGateway::start(logs::route(&node, &format!("{name}: {{{keys}, {more}}}"), ""), "");
        let mut client = measured.gateway.client();
        let mut requests = 0;
        eventually(&format!("{name}: what has no room to be counted"), || {
            assert_eq!(client.get("/a?size=200000").head.status(), 200, "{name}");
            requests += 1;
            requests % 20 == 0 && dropped(&measured, name) > 0
        });
        let held = measured.scrape().one("stillgate_logger_bytes", &[("plugin", name)]);
        assert!(held <= HELD_BYTES_MAX, "{name}: {held}");
        measured.gateway.assert_healthy();
    }
}

fn collecting(addr: impl std::fmt::Display, batch: &str) -> String {
    format!(
        "plugin_metadata:\n  - id: opentelemetry\n    resource: {{service.name: shop}}\n    collector: {{address: \"{addr}\"}}\n    \
         batch_span_processor: {{inactive_timeout: 1, {batch}}}\n"
    )
}

const TRACED: &str = "opentelemetry: {sampler: {name: always_on}, additional_attributes: [arg_number]}";

#[test]
fn a_real_collector_takes_spans() {
    let (port, folder) = (ReservedPort::new(), tempfile::tempdir().expect("a temporary folder"));
    let config = folder.path().join("config.yaml");
    let text = format!(
        "receivers: {{otlp: {{protocols: {{http: {{endpoint: \"{}\"}}}}}}}}\n\
         exporters: {{debug: {{verbosity: detailed, use_internal_logger: false}}}}\n\
         service: {{pipelines: {{traces: {{receivers: [otlp], exporters: [debug]}}}}}}\n",
        port.addr()
    );
    std::fs::write(&config, text).expect("write a file");
    let program = Path::new(crate::shared::STILLGATE)
        .ancestors()
        .nth(2)
        .expect("the folder of the profile's folder")
        .join(OTELCOL);
    assert!(program.is_file(), "{} is missing; `cargo xtask test` builds it", program.display());
    let mut command = Command::new(program);
    command.arg("--config").arg(format!("file:{}", config.display()));
    let collector = Process::spawn("otelcol", &mut command, &folder.path().join("log"));
    eventually("the collector to listen", || std::net::TcpStream::connect(port.addr()).is_ok());

    let node = Upstream::echo();
    let measured =
        MeasuredGateway::start(logs::route(&node, TRACED, &collecting(port.addr(), "max_export_batch_size: 4")), "");
    let mut client = measured.gateway.client();
    client.send(
        "GET /a?number=first HTTP/1.1\r\nHost: h\r\ntraceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n\
         tracestate: a=b\r\n\r\n",
    );
    client.expect_response("GET");
    for number in 0..20 {
        client.get(&format!("/a?number={number}&status={}", 200 + 300 * (number % 2)));
    }
    eventually("all to be taken", || sent(&measured, "opentelemetry") == 21);
    assert_eq!(dropped(&measured, "opentelemetry"), 0);
    eventually("all spans to be shown", || collector.log().matches("\nSpan #").count() == 21);
    let log = collector.log();
    let shown = |text: &str| log.lines().filter(|line| line.split_whitespace().eq(text.split_whitespace())).count();
    for (line, count) in [
        ("Trace ID       : 4bf92f3577b34da6a3ce929d0e0e4736", 1),
        ("Parent ID      : 00f067aa0ba902b7", 1),
        ("TraceState : a=b", 1),
        ("Name           : GET /*", 21),
        ("Kind           : Server", 21),
        ("Status code    : Error", 10),
        ("-> apisix.route_id: Str(r)", 21),
        ("-> http.route: Str(/*)", 21),
        ("-> arg_number: Str(first)", 1),
        ("-> arg_number: Str(19)", 1),
    ] {
        assert_eq!(shown(line), count, "{line}\n{log}");
    }
    assert!(shown("-> service.name: Str(shop)") >= 6, "{log}");
}

/// The rules of OTLP for answers: 429 and 503 are tried again, and a partial success names what was not accepted.
#[test]
fn collectors_that_refuse_are_asked_again_and_partial_success_is_counted() {
    let node = Upstream::echo();
    let (busy, seen) = receiver(|number| [429, 503, 200][number.min(2)]);
    let more = collecting(busy.addr(), "max_export_batch_size: 5");
    let measured = MeasuredGateway::start(logs::route(&node, TRACED, &more), "");
    assert_eq!(settled(&measured, "opentelemetry", 5), (5, 0));
    assert_eq!(seen.requests(), 3);
    assert_eq!(logs::otlp::read(&seen.last().1).spans.len(), 5);

    // ExportTraceServiceResponse { partial_success { rejected_spans: 2, error_message: "no" } }
    const PARTIAL: &str = "\x0a\x06\x08\x02\x12\x02no";
    let partial = Upstream::serve(|connection| {
        while connection.read_request().is_ok() {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length";
            if connection.try_send(format!("{head}: {}\r\n\r\n{PARTIAL}", PARTIAL.len())).is_err() {
                return;
            }
        }
    });
    let more = collecting(partial.addr(), "max_export_batch_size: 5");
    let measured = MeasuredGateway::start(logs::route(&node, TRACED, &more), "");
    assert_eq!(settled(&measured, "opentelemetry", 5), (3, 2));
    assert_eq!(lost(&measured, "opentelemetry", "refused"), 2.0);
}
