//! Writes the values of a [`Record`] as JSON.
//!
//! Everything that a client sends is inside a JSON string that it cannot leave: strings are escaped by RFC 8259, with
//! U+FFFD for invalid UTF-8.

use super::stamp::Stamp;
use super::tries::NodeTry;
use super::value::{AccessValue, access_value};
use super::written::{push_address, push_hex_number, push_ip, push_json_string, push_number, push_seconds};
use super::{Ids, Record, Trace, Tracer, trace_id};
use crate::query::{raw_argument, raw_cookie};
use std::io::Write;
use stillgate_route::{HeaderName, Variable};

/// Buffers for writing, reused so that a line allocates nothing.
#[derive(Debug)]
pub struct RecordScratch {
    /// The text of the current second.
    pub stamp: Stamp,
    /// The value of a variable that is not stored in the request.
    pub value: Vec<u8>,
    /// Generator of request ids.
    pub ids: Ids,
    traceparent: Variable,
}

impl RecordScratch {
    /// Creates it with a random seed for ids.
    pub fn new(seed: [u64; 2]) -> RecordScratch {
        let traceparent = HeaderName::from_variable("traceparent").expect("a good name");
        let traceparent = Variable::Header(traceparent);
        RecordScratch { stamp: Stamp::new(), value: Vec::new(), ids: Ids::new(seed), traceparent }
    }
}

/// Writes a value. At most `text_bytes_max` bytes of a text are written. Returns whether it exists; if not, nothing is
/// written.
///
/// Header fields of the response are not in the record: nothing is written for them.
pub fn push_value(
    value: &AccessValue,
    record: &Record<'_>,
    text_bytes_max: usize,
    scratch: &mut RecordScratch,
    line: &mut Vec<u8>,
) -> bool {
    match value {
        AccessValue::Time => in_quotes(line, |line| scratch.stamp.push_rfc3339(record.end_unix_ms, line)),
        AccessValue::TimeIso8601 => in_quotes(line, |line| scratch.stamp.push_iso8601(record.end_unix_ms, line)),
        AccessValue::TimeLocal => in_quotes(line, |line| scratch.stamp.push_common(record.end_unix_ms, line)),
        AccessValue::Msec => {
            push_number(record.end_unix_ms / 1000, line);
            write!(line, ".{:03}", record.end_unix_ms % 1000).expect("writing to a Vec cannot fail");
        }
        AccessValue::RequestLine => return push_request_line(record, text_bytes_max, scratch, line),
        AccessValue::Status => push_number(record.status, line),
        AccessValue::BytesSent => push_number(record.bytes_sent, line),
        AccessValue::BodyBytesSent => push_number(record.body_bytes_sent, line),
        AccessValue::BytesReceived => push_number(record.bytes_received, line),
        AccessValue::RequestTime => push_seconds(record.request_time_us, line),
        AccessValue::UpstreamTries => push_number(record.tries.count(), line),
        AccessValue::UpstreamTime => return push_some_seconds(record.upstream_time_us, line),
        AccessValue::UpstreamConnectTime => {
            return push_some_seconds(record.tries.last().and_then(|last| last.connect_us), line);
        }
        AccessValue::UpstreamAddr => return push_tries(record, line, |tried, line| push_address(tried.node, line)),
        AccessValue::UpstreamStatus => {
            return push_tries(record, line, |tried, line| match tried.status {
                0 => line.push(b'-'),
                status => push_number(status, line),
            });
        }
        AccessValue::BalancerIp => {
            let Some(last) = record.tries.last() else { return false };
            in_quotes(line, |line| push_ip(last.node.ip(), line));
        }
        AccessValue::BalancerPort => {
            let Some(last) = record.tries.last() else { return false };
            push_number(last.node.port(), line);
        }
        AccessValue::RouteId => return push_text(record.route_id.map(str::as_bytes), text_bytes_max, line),
        AccessValue::ServiceId => return push_text(record.service_id.map(str::as_bytes), text_bytes_max, line),
        AccessValue::Hostname => push_json_string(record.process.hostname.as_bytes(), text_bytes_max, line),
        AccessValue::Pid => push_number(record.process.pid, line),
        AccessValue::GivenId if !record.given_id.is_empty() => push_json_string(record.given_id, text_bytes_max, line),
        AccessValue::RequestId | AccessValue::GivenId => {
            push_json_string(record.id.get_or_init(|| scratch.ids.next_id()), text_bytes_max, line);
        }
        AccessValue::TraceId
        | AccessValue::TraceContext(_)
        | AccessValue::TraceOfPlugin(_)
        | AccessValue::SpanOfPlugin(_) => {
            return push_trace(value, record, scratch, line);
        }
        AccessValue::SentHeader(_) | AccessValue::UpstreamHeader(_) => return false,
        AccessValue::RawArgument(_) | AccessValue::RawCookie(_) => {
            return push_raw(value, record, text_bytes_max, scratch, line);
        }
        AccessValue::Variable(variable) => {
            return push_text(record.vars.value(variable, &mut scratch.value), text_bytes_max, line);
        }
    }
    true
}

/// Writes an argument or a cookie as nginx has it. Returns whether it exists.
fn push_raw(
    value: &AccessValue,
    record: &Record<'_>,
    text_bytes_max: usize,
    scratch: &mut RecordScratch,
    line: &mut Vec<u8>,
) -> bool {
    let mut is_there = false;
    match value {
        AccessValue::RawArgument(name) => {
            let query = record.vars.value(&Variable::Args, &mut scratch.value);
            is_there = push_text(query.and_then(|query| raw_argument(query, name)), text_bytes_max, line);
        }
        AccessValue::RawCookie(name) => record.vars.each_header(&mut |of, value| {
            if !is_there && of.eq_ignore_ascii_case(b"cookie") {
                is_there = push_text(raw_cookie(value, name), text_bytes_max, line);
            }
        }),
        _ => {}
    }
    is_there
}

/// Writes a value as a text, without the quotes of JSON; nothing for an unknown one. `name`: one of
/// [`stillgate_route::RECORDED`]. Returns whether it exists.
pub fn push_recorded(name: &str, record: &Record<'_>, seed: [u64; 2], out: &mut Vec<u8>) -> bool {
    if name == "request" {
        for part in [record.method, b" ", record.target, b" ", record.version.as_bytes()] {
            out.extend_from_slice(part);
        }
        return true;
    }
    let Ok(value) = access_value(name, false) else { return false };
    let start = out.len();
    if !push_value(&value, record, usize::MAX, &mut RecordScratch::new(seed), out) {
        return false;
    }
    if out.get(start) == Some(&b'"') {
        out.pop();
        out.remove(start);
    }
    true
}

fn in_quotes(line: &mut Vec<u8>, push: impl FnOnce(&mut Vec<u8>)) {
    line.push(b'"');
    push(line);
    line.push(b'"');
}

fn push_text(text: Option<&[u8]>, bytes_max: usize, line: &mut Vec<u8>) -> bool {
    match text {
        Some(text) => push_json_string(text, bytes_max, line),
        None => return false,
    }
    true
}

fn push_some_seconds(time_us: Option<u64>, line: &mut Vec<u8>) -> bool {
    match time_us {
        Some(time_us) => push_seconds(time_us, line),
        None => return false,
    }
    true
}

/// Writes a value of each attempt, with nginx's separators.
fn push_tries(record: &Record<'_>, line: &mut Vec<u8>, push: impl Fn(&NodeTry, &mut Vec<u8>)) -> bool {
    let tries = record.tries.shown();
    if tries.is_empty() {
        return false;
    }
    in_quotes(line, |line| {
        for (index, tried) in tries.iter().enumerate() {
            if index > 0 {
                line.extend_from_slice(b", ");
            }
            push(tried, line);
        }
    });
    true
}

/// A request that could not be read has no request line.
fn push_request_line(record: &Record<'_>, bytes_max: usize, scratch: &mut RecordScratch, line: &mut Vec<u8>) -> bool {
    if record.method.is_empty() {
        return false;
    }
    let text = &mut scratch.value;
    text.clear();
    for (index, part) in [record.method, record.target, record.version.as_bytes()].into_iter().enumerate() {
        if index > 0 {
            text.push(b' ');
        }
        text.extend_from_slice(part);
    }
    push_json_string(text, bytes_max, line);
    true
}

fn push_trace(value: &AccessValue, record: &Record<'_>, scratch: &mut RecordScratch, line: &mut Vec<u8>) -> bool {
    let shown = |by: &Tracer| record.trace.filter(|trace| trace.shown_by == Some(*by));
    match (value, record.trace) {
        (AccessValue::TraceId, Some(trace)) => in_quotes(line, |line| push_hex_number(trace.trace_id, 32, line)),
        (AccessValue::TraceId, None) => {
            let traceparent = record.vars.value(&scratch.traceparent, &mut scratch.value);
            return push_text(traceparent.and_then(trace_id), usize::MAX, line);
        }
        (AccessValue::TraceContext(by), _) => {
            let Some(trace) = shown(by) else { return false };
            in_quotes(line, |line| push_traceparent(&trace, line));
        }
        (AccessValue::TraceOfPlugin(by), _) => {
            let Some(trace) = shown(by) else { return false };
            in_quotes(line, |line| push_hex_number(trace.trace_id, 32, line));
        }
        (AccessValue::SpanOfPlugin(by), _) => {
            let Some(trace) = shown(by) else { return false };
            in_quotes(line, |line| push_hex_number(trace.span_id.into(), 16, line));
        }
        _ => return false,
    }
    true
}

/// Formats `traceparent` (W3C Trace Context, section 3.2).
pub fn push_traceparent(trace: &Trace, out: &mut Vec<u8>) {
    out.extend_from_slice(b"00-");
    push_hex_number(trace.trace_id, 32, out);
    out.push(b'-');
    push_hex_number(trace.span_id.into(), 16, out);
    out.extend_from_slice(if trace.is_sampled { b"-01" } else { b"-00" });
}
