//! Formats one request as a line of the access log.
//!
//! Whatever a client sends ends up inside a quoted value that it cannot escape from: JSON strings are escaped by RFC 8259, with
//! U+FFFD for invalid UTF-8; the combined format escapes as nginx does (`\x22`). So a line is always one line, and always parses.
//! How values are written is in `stillgate_plugin_api::record`; chunks and threads are in the parent module.

use super::{LogLine, VALUE_BYTES_MAX};
use stillgate_config::{AccessFormat, AccessValue};
use stillgate_plugin_api::record::written::{push_combined, push_ip, push_json_string, push_number};
use stillgate_plugin_api::record::{Record, RecordScratch, push_value};
use stillgate_route::{Lookup, Variable};

/// A line's layout, with everything precomputed that does not depend on the request.
#[derive(Debug, Clone)]
pub(super) enum LineLayout {
    /// The two header fields are looked up like any other variable. The user is unknown: `-`.
    Combined { referer: Variable, user_agent: Variable },
    /// For each field `{"name":` or `,"name":`, escaped, and the value that follows it.
    Json(Vec<(Vec<u8>, AccessValue)>),
}

impl LineLayout {
    pub(super) fn new(format: &AccessFormat) -> LineLayout {
        match format {
            AccessFormat::Combined => {
                LineLayout::Combined { referer: variable("http_referer"), user_agent: variable("http_user_agent") }
            }
            AccessFormat::Json(fields) => LineLayout::Json(
                fields
                    .iter()
                    .enumerate()
                    .map(|(position, field)| {
                        let mut key = vec![if position == 0 { b'{' } else { b',' }];
                        push_json_string(field.name.as_bytes(), VALUE_BYTES_MAX, &mut key);
                        key.push(b':');
                        (key, field.value.clone())
                    })
                    .collect(),
            ),
        }
    }

    /// Appends the line and its newline.
    pub(super) fn push(&self, told: &LogLine<'_>, scratch: &mut RecordScratch, line: &mut Vec<u8>) {
        let record = &told.record;
        match self {
            LineLayout::Combined { referer, user_agent } => {
                push_ip(record.client, line);
                line.extend_from_slice(b" - - [");
                scratch.stamp.push_common(record.end_unix_ms, line);
                line.extend_from_slice(b"] \"");
                push_request_line(record, line);
                line.extend_from_slice(b"\" ");
                push_number(record.status, line);
                line.push(b' ');
                push_number(record.body_bytes_sent, line);
                line.extend_from_slice(b" \"");
                push_combined_variable(record.vars, referer, &mut scratch.value, line);
                line.extend_from_slice(b"\" \"");
                push_combined_variable(record.vars, user_agent, &mut scratch.value, line);
                line.push(b'"');
            }
            LineLayout::Json(fields) => {
                if fields.is_empty() {
                    line.push(b'{');
                }
                // Number of header fields of the response in the line so far.
                let mut noted = 0;
                for (key, value) in fields {
                    line.extend_from_slice(key);
                    let is_there = match value {
                        AccessValue::SentHeader(_) | AccessValue::UpstreamHeader(_) => {
                            let text = told.fields.and_then(|fields| fields.get(noted));
                            noted += 1;
                            text.map(|text| push_json_string(text, VALUE_BYTES_MAX, line)).is_some()
                        }
                        _ => push_value(value, record, VALUE_BYTES_MAX, scratch, line),
                    };
                    if !is_there {
                        line.extend_from_slice(b"null");
                    }
                }
                line.push(b'}');
            }
        }
        line.push(b'\n');
    }
}

fn variable(name: &str) -> Variable {
    Variable::parse(name).expect("only names of request variables are asked for")
}

/// A request that could not be read has no method, and its whole first line is written as `-`.
fn push_request_line(record: &Record<'_>, line: &mut Vec<u8>) {
    if record.method.is_empty() {
        return line.push(b'-');
    }
    push_combined(record.method, line);
    line.push(b' ');
    push_combined(record.target, line);
    line.push(b' ');
    push_combined(record.version.as_bytes(), line);
}

fn push_combined_variable(vars: &dyn Lookup, variable: &Variable, buffer: &mut Vec<u8>, line: &mut Vec<u8>) {
    match vars.value(variable, buffer) {
        Some(value) if !value.is_empty() => push_combined(value, line),
        _ => line.push(b'-'),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{NO_TRIES, SEED, Vars, line_of, record};
    use super::super::{ResponseFields, WantedFields};
    use super::*;
    use expect_test::{Expect, expect};
    use stillgate_config::AccessField;
    use stillgate_plugin_api::record::{NodeTries, RequestId};
    use stillgate_route::HeaderName;

    fn check(format: &AccessFormat, record: &Record<'_>, expected: Expect) {
        let mut line = Vec::new();
        LineLayout::new(format).push(&line_of(*record), &mut RecordScratch::new(SEED), &mut line);
        expected.assert_eq(&String::from_utf8(line).expect("a line is UTF-8"));
    }

    fn json(values: &[(&str, AccessValue)]) -> AccessFormat {
        AccessFormat::Json(
            values.iter().map(|(name, value)| AccessField { name: (*name).into(), value: value.clone() }).collect(),
        )
    }

    fn all_fields() -> AccessFormat {
        json(&[
            ("time", AccessValue::Time),
            ("status", AccessValue::Status),
            ("sent", AccessValue::BytesSent),
            ("received", AccessValue::BytesReceived),
            ("took", AccessValue::RequestTime),
            ("upstream_took", AccessValue::UpstreamTime),
            ("upstream", AccessValue::UpstreamAddr),
            ("route", AccessValue::RouteId),
            ("agent \"x\"", AccessValue::Variable(variable("http_user_agent"))),
        ])
    }

    #[test]
    fn a_plain_request() {
        let vars = Vars(vec![("http_user_agent", b"curl/8.5.0")]);
        check(
            &AccessFormat::Combined,
            &record(&vars),
            expect![[r#"
            192.0.2.7 - - [21/Nov/2026:00:27:13 +0000] "GET /orders/7?a=b HTTP/1.1" 200 1000 "-" "curl/8.5.0"
        "#]],
        );
        check(
            &all_fields(),
            &record(&vars),
            expect![[r#"
            {"time":"2026-11-21T00:27:13.042Z","status":200,"sent":1234,"received":78,"took":1.002003,"upstream_took":0.000999,"upstream":"10.0.0.1:8080","route":"orders","agent \"x\"":"curl/8.5.0"}
        "#]],
        );
        check(
            &json(&[]),
            &record(&vars),
            expect![[r#"
            {}
        "#]],
        );
    }

    /// A request with this `traceparent`, looked up without allocating.
    struct TraceparentLookup<'t>(&'t [u8]);

    impl Lookup for TraceparentLookup<'_> {
        fn value<'a>(&'a self, variable: &Variable, _: &'a mut Vec<u8>) -> Option<&'a [u8]> {
            matches!(variable, Variable::Header(name) if name.as_str() == "traceparent").then_some(self.0)
        }

        fn each_header(&self, _: &mut dyn FnMut(&[u8], &[u8])) {}
    }

    #[test]
    fn what_became_of_the_tries_and_what_a_request_is_known_by() {
        let name = |name: &str| HeaderName::from_variable(name).unwrap();
        let format = json(&[
            ("id", AccessValue::RequestId),
            ("addr", AccessValue::UpstreamAddr),
            ("status", AccessValue::UpstreamStatus),
            ("tries", AccessValue::UpstreamTries),
            ("connect", AccessValue::UpstreamConnectTime),
            ("sent", AccessValue::SentHeader(name("x_a"))),
            ("service", AccessValue::ServiceId),
            ("trace", AccessValue::TraceId),
            ("came", AccessValue::UpstreamHeader(name("x_a"))),
            ("body", AccessValue::BodyBytesSent),
        ]);
        let trace = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let vars = TraceparentLookup(trace);
        let (mut tries, mut fields, wanted) =
            (NodeTries::default(), ResponseFields::default(), WantedFields::new(&format));
        for node in ["10.0.0.1:80", "[::1]:81", "10.0.0.2:82"] {
            tries.begin(node.parse().unwrap());
            tries.on_answered(502);
        }
        tries.on_connected(12);
        tries.on_answered(0);
        let (layout, mut scratch, none) = (LineLayout::new(&format), RecordScratch::new(SEED), Vars(vec![]));
        let mut line = Vec::new();
        let base = record(&none);
        let mut push = |line: &mut Vec<u8>| {
            line.clear();
            fields.clear();
            fields.note_answer(&wanted, b"HTTP/1.1 200 OK\r\nX-A: \"b\"\r\n\r\n");
            let id = RequestId::new();
            let record = Record { tries: &tries, vars: &vars, id: &id, ..base };
            layout.push(&LogLine { record, fields: Some(&fields) }, &mut scratch, line);
        };
        push(&mut line);
        let counted = allocation_counter::measure(|| push(&mut line));
        assert_eq!(counted.count_total, 0);
        let shown = String::from_utf8(line).unwrap();
        let (id, rest) = shown.strip_prefix("{\"id\":\"").unwrap().split_at(32);
        assert!(id.bytes().all(|digit| digit.is_ascii_hexdigit()), "{shown}");
        expect![[r#"
            ","addr":"10.0.0.1:80, [::1]:81, 10.0.0.2:82","status":"502, 502, -","tries":3,"connect":0.000012,"sent":"\"b\"","service":"shop","trace":"4bf92f3577b34da6a3ce929d0e0e4736","came":null,"body":1000}
        "#]]
        .assert_eq(rest);
    }

    #[test]
    fn hostile_bytes_stay_inside_their_value() {
        let vars = Vars(vec![
            ("http_user_agent", b"a\"b\\c\r\nd\te\x00\x1B[31m\x7F\xFF\xE2\x82\xC3\xA9\xED\xA0\x80"),
            ("http_referer", b"\" 200 0 \"-\" \"x"),
        ]);
        let mut hostile = record(&vars);
        hostile.method = b"G\"T";
        hostile.target = b"/\"\\\n\xC3\xA9";
        check(
            &AccessFormat::Combined,
            &hostile,
            expect![[r#"
            192.0.2.7 - - [21/Nov/2026:00:27:13 +0000] "G\x22T /\x22\x5C\x0A\xC3\xA9 HTTP/1.1" 200 1000 "\x22 200 0 \x22-\x22 \x22x" "a\x22b\x5Cc\x0D\x0Ad\x09e\x00\x1B[31m\x7F\xFF\xE2\x82\xC3\xA9\xED\xA0\x80"
        "#]],
        );
        check(
            &all_fields(),
            &hostile,
            expect![[r#"
            {"time":"2026-11-21T00:27:13.042Z","status":200,"sent":1234,"received":78,"took":1.002003,"upstream_took":0.000999,"upstream":"10.0.0.1:8080","route":"orders","agent \"x\"":"a\"b\\c\r\nd\te\u0000\u001B[31m��é���"}
        "#]],
        );
    }

    #[test]
    fn every_byte_gives_one_parsable_line() {
        for first in 0..=255_u8 {
            let value = [first, b'x', first];
            let vars = Vars(vec![("http_user_agent", &value)]);
            let mut line = Vec::new();
            LineLayout::new(&all_fields()).push(&line_of(record(&vars)), &mut RecordScratch::new(SEED), &mut line);
            assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1);
            let parsed: serde_json::Value = serde_json::from_slice(&line).expect("the line is JSON");
            assert_eq!(parsed["agent \"x\""].as_str().expect("a string"), String::from_utf8_lossy(&value));
        }
    }

    #[test]
    fn a_long_value_is_cut_visibly() {
        let long = vec![b'a'; VALUE_BYTES_MAX + 1];
        let vars = Vars(vec![("http_user_agent", &long)]);
        let mut line = Vec::new();
        LineLayout::new(&AccessFormat::Combined).push(
            &line_of(record(&vars)),
            &mut RecordScratch::new(SEED),
            &mut line,
        );
        assert!(line.ends_with(b"aaa...\"\n"));
        assert!(line.len() < VALUE_BYTES_MAX + 200);
    }

    #[test]
    fn what_there_is_not_is_null_or_a_dash() {
        let vars = Vars(vec![]);
        let mut refused = record(&vars);
        refused.tries = &NO_TRIES;
        refused.upstream_time_us = None;
        refused.route_id = None;
        refused.status = 400;
        refused.method = b"";
        check(
            &all_fields(),
            &refused,
            expect![[r#"
            {"time":"2026-11-21T00:27:13.042Z","status":400,"sent":1234,"received":78,"took":1.002003,"upstream_took":null,"upstream":null,"route":null,"agent \"x\"":null}
        "#]],
        );
        check(
            &AccessFormat::Combined,
            &refused,
            expect![[r#"
            192.0.2.7 - - [21/Nov/2026:00:27:13 +0000] "-" 400 1000 "-" "-"
        "#]],
        );
    }
}
