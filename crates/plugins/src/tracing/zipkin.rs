//! `zipkin`: propagates B3 contexts, and sends spans of each sampled request to a Zipkin server.

use super::sampling::{SampledShare, ShareKind, number};
use crate::loggers::{URL, UrlText, write_array};
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;
use stillgate_plugin_api::outbox::{BatchPolicy, Encode, Entries, HttpReceiver, Outlet, PENDING_BYTES_MAX, Receiver};
use stillgate_plugin_api::record::Tracer;
use stillgate_plugin_api::record::written::{push_hex_number, push_ip, push_json_string, push_number};
use stillgate_plugin_api::{
    Answer, Compile, Define, Flow, Identity, Metadata, OpenSpan, Phase, Phases, Plugin, Record, Request, Response,
    Trace,
};
use stillgate_schema::{
    Definitions, Fault, Flag, Json, Kind, Node, Path, Sink, TEXT, Text, Value, object, report_expected, text,
};
use stillgate_wire::{FieldName, FieldValue};

const NAME: &str = "zipkin";
const B3: FieldName<'static> = FieldName::constant("b3");
const TRACE_ID: FieldName<'static> = FieldName::constant("X-B3-TraceId");
const SPAN_ID: FieldName<'static> = FieldName::constant("X-B3-SpanId");
const PARENT_ID: FieldName<'static> = FieldName::constant("X-B3-ParentSpanId");
const SAMPLED: FieldName<'static> = FieldName::constant("X-B3-Sampled");
const FLAGS: FieldName<'static> = FieldName::constant("X-B3-Flags");

/// APISIX's batch processor of spans.
const BATCHING: BatchPolicy = BatchPolicy {
    entries_max: 1000,
    inactive_timeout: Duration::from_secs(5),
    buffer_duration: Duration::from_secs(60),
    retries_max: 0,
    retry_delay: Duration::from_secs(1),
    pending_bytes_max: PENDING_BYTES_MAX,
    pending_entries_max: usize::MAX,
};
const TIMEOUT: Duration = Duration::from_secs(60);
const KEEPALIVE: Duration = Duration::from_secs(5);

object! {
    /// Sends spans to a Zipkin server.
    pub(crate) struct ZipkinKeys {
        /// The server's address, such as `http://127.0.0.1:9411/api/v2/spans`.
        endpoint: UrlText = URL => required;
        /// The share of requests that are sampled, if the caller does not decide.
        sample_ratio: SampledShare = RATIO => required;
        /// The gateway's name in spans.
        service_name: String = TEXT.shown() => default("APISIX".to_owned());
        /// Its address in spans, instead of the connection's.
        server_addr: Ipv4Addr = ADDRESS => optional;
        /// The spans of a request: 2: the request, the node's part, the response; 1: also rewrite and access, and the
        /// response below the node's part.
        span_version: u8 = Version => default(2);
    }
}

object! {
    /// Settings of all configurations; `plugin_attr.zipkin` in APISIX.
    pub(crate) struct ZipkinMetadata {
        /// Whether the variables `zipkin_context_traceparent`, `zipkin_trace_id` and `zipkin_span_id` are set.
        set_ngx_var: bool = Flag => default(false);
    }
}

impl Metadata for Zipkin {
    type Metadata = ZipkinMetadata;
}

const RATIO: ShareKind = ShareKind { min: 0.00001, is_lenient: false };

const ADDRESS: Text<Ipv4Addr> =
    text("an IPv4 address", |text| text.parse().map_err(|_| Fault::new("not an IPv4 address")));

/// 1 or 2.
struct Version;

impl Kind for Version {
    type Out = u8;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<u8> {
        let version = match &node.value {
            Value::Scalar(scalar) => scalar.text.parse().ok().filter(|version| matches!(version, 1..=2)),
            _ => None,
        };
        if version.is_none() {
            report_expected("1 or 2", node, path, sink);
        }
        version
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        json!({"enum": [1, 2]})
    }

    fn show(&self, version: &u8) -> Json {
        json!(version)
    }
}

/// The plugin.
pub(crate) struct Zipkin {
    share: SampledShare,
    service: Box<str>,
    address: Option<Ipv4Addr>,
    version: u8,
    outlet: Arc<Outlet>,
    identity: Identity,
}

impl Define for Zipkin {
    type Keys = ZipkinKeys;
    const NAME: &'static str = NAME;
    const PRIORITY: i32 = 12011;
    const PHASES: Phases = Phases::of(&[Phase::Rewrite, Phase::Log]);

    fn compile(keys: ZipkinKeys, cx: &mut Compile<'_>) -> Option<Zipkin> {
        let receiver = Receiver::Http(Box::new(HttpReceiver {
            urls: vec![keys.endpoint.0],
            headers: vec![("Content-Type".to_owned(), "application/json".to_owned())],
            verifies: true,
            timeout: TIMEOUT,
            keepalive: Some(KEEPALIVE),
            status_below: 300,
            question: None,
            refused: None,
        }));
        let outlet = Outlet::new((NAME, "zipkin_report".to_owned()), cx.identity, BATCHING, receiver, Box::new(Array));
        Some(Zipkin {
            share: keys.sample_ratio,
            service: keys.service_name.into(),
            address: keys.server_addr,
            version: keys.span_version,
            outlet: Arc::new(outlet),
            identity: cx.identity,
        })
    }
}

/// Each entry is the spans of a request, separated by commas.
struct Array;

impl Encode for Array {
    fn encode(&self, entries: &Entries, out: &mut Vec<u8>) {
        write_array(entries, out);
    }
}

impl Plugin for Zipkin {
    fn rewrite(&self, request: &mut Request<'_>) -> Flow {
        let context = match request.first_header(B3).map(Context::single) {
            None => {
                Context::several([TRACE_ID, SPAN_ID, PARENT_ID, SAMPLED, FLAGS].map(|name| request.first_header(name)))
            }
            Some(Ok(context)) => {
                request.remove_header(B3);
                context
            }
            Some(Err(_)) => return Flow::Answer(Answer::page(400)),
        };
        if context.is_debug {
            set(request, FLAGS, b"1");
        }
        let worker = request.worker;
        let is_sampled = context.is_sampled.unwrap_or_else(|| self.share.takes(worker.random()));
        let new_trace = || (u128::from(worker.random()) << 64 | u128::from(worker.random())).max(1);
        let trace_id = context.ids.map_or_else(new_trace, |ids| ids.trace);
        let (id, node_id) = (worker.random().max(1), worker.random().max(1));
        let is_short = context.ids.is_some_and(|ids| ids.is_short);
        let parent = context.ids.map_or(0, |ids| ids.span);
        // Without sampling no span is recorded here, so the node's parent is the caller's span.
        let (parent_of_node, of_node) = if is_sampled { (id, node_id) } else { (parent, id) };
        let mut text = Vec::with_capacity(32);
        for (name, number, digits) in [
            (TRACE_ID, trace_id, if is_short { 16 } else { 32 }),
            (PARENT_ID, parent_of_node.into(), 16),
            (SPAN_ID, of_node.into(), 16),
        ] {
            if number == 0 {
                request.remove_header(name);
                continue;
            }
            text.clear();
            push_hex_number(number, digits, &mut text);
            set(request, name, &text);
        }
        set(request, SAMPLED, if is_sampled { b"1" } else { b"0" });
        if is_sampled {
            request.settled.spans.push(OpenSpan { plugin: self.identity, trace_id, id, parent, node_id, is_sampled });
        }
        let is_shown = request.metadata::<ZipkinMetadata>(NAME).is_some_and(|metadata| metadata.set_ngx_var);
        let trace = Trace { trace_id, span_id: id, is_sampled, shown_by: is_shown.then_some(Tracer::Zipkin) };
        request.settled.trace.get_or_insert(trace);
        Flow::Continue
    }

    fn log(&self, response: &mut Response<'_>) {
        let Some(span) = response.settled.span(self.identity) else { return };
        let (Some(ended), response) = (response.ended, &*response) else { return };
        response.worker.send(&self.outlet, |_, out| self.write(span, response, &ended.record, out));
    }
}

fn set(request: &mut Request<'_>, name: FieldName<'_>, value: &[u8]) {
    request.set_header(name, FieldValue::new(value).expect("digits and letters"));
}

/// A span to write.
struct ZipkinSpan {
    name: &'static str,
    id: u64,
    parent: u64,
    /// Microseconds since the request began.
    from_us: u64,
    to_us: u64,
}

impl Zipkin {
    fn write(&self, span: OpenSpan, response: &Response<'_>, record: &Record<'_>, out: &mut Vec<u8>) {
        let end_us = record.request_time_us;
        let request =
            ZipkinSpan { name: "apisix.request", id: span.id, parent: span.parent, from_us: 0, to_us: end_us };
        self.write_part(&span, &request, response, record, out);
        let Some(asked_us) = record.asked_us.map(|asked_us| asked_us.min(end_us)) else { return };
        let answered_us = (asked_us + record.upstream_time_us.unwrap_or(end_us)).min(end_us);
        let below = |name: &'static str, number: u64, parent: u64, from_us: u64, to_us: u64| {
            // Ids derived from the span's own: as good as random ones, and different in each request.
            let id = (span.node_id ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15)).max(1);
            ZipkinSpan { name, id, parent, from_us, to_us }
        };
        let node =
            |to_us| ZipkinSpan { name: "apisix.proxy", id: span.node_id, parent: span.id, from_us: asked_us, to_us };
        let parts = match self.version {
            1 => vec![
                below("apisix.rewrite", 1, span.id, 0, asked_us),
                below("apisix.access", 2, span.id, asked_us, asked_us),
                node(end_us),
                below("apisix.body_filter", 3, span.node_id, answered_us, end_us),
            ],
            _ => vec![node(answered_us), below("apisix.response_span", 3, span.id, answered_us, end_us)],
        };
        for part in &parts {
            out.push(b',');
            self.write_part(&span, part, response, record, out);
        }
    }

    fn write_part(
        &self,
        span: &OpenSpan,
        part: &ZipkinSpan,
        response: &Response<'_>,
        record: &Record<'_>,
        out: &mut Vec<u8>,
    ) {
        let facts = &response.facts;
        let is_request = part.id == span.id;
        let hex = |name: &[u8], number: u128, digits: u32, out: &mut Vec<u8>| {
            out.extend_from_slice(name);
            push_hex_number(number, digits, out);
            out.push(b'"');
        };
        let digits = if span.trace_id >> 64 == 0 { 16 } else { 32 };
        hex(b"{\"traceId\":\"", span.trace_id, digits, out);
        out.extend_from_slice(b",\"name\":\"");
        out.extend_from_slice(part.name.as_bytes());
        out.push(b'"');
        if part.parent != 0 {
            hex(b",\"parentId\":\"", part.parent.into(), 16, out);
        }
        hex(b",\"id\":\"", part.id.into(), 16, out);
        if is_request {
            out.extend_from_slice(b",\"kind\":\"SERVER\"");
        }
        out.extend_from_slice(b",\"timestamp\":");
        push_number(record.start_unix_us() + part.from_us, out);
        out.extend_from_slice(b",\"duration\":");
        push_number(part.to_us - part.from_us, out);
        out.extend_from_slice(b",\"localEndpoint\":{\"serviceName\":");
        push_json_string(self.service.as_bytes(), usize::MAX, out);
        push_endpoint(self.address.map_or_else(|| facts.local.ip(), IpAddr::V4), facts.local.port(), true, out);
        out.push(b'}');
        if is_request {
            out.extend_from_slice(b",\"remoteEndpoint\":{");
            push_endpoint(facts.client, facts.peer.port(), false, out);
            out.push(b'}');
        }
        out.extend_from_slice(b",\"tags\":{");
        if is_request {
            out.extend_from_slice(b"\"component\":\"apisix\",\"http.method\":");
            push_json_string(facts.method(), usize::MAX, out);
            out.extend_from_slice(b",\"http.url\":");
            push_json_string(response.settled.redacted_target(facts), usize::MAX, out);
            if let Some(status) = record.tries.last().map(|last| last.status).filter(|status| *status != 0) {
                out.extend_from_slice(b",\"http.status_code\":\"");
                push_number(status, out);
                out.push(b'"');
            }
        }
        out.extend_from_slice(b"}}");
    }
}

fn push_endpoint(ip: IpAddr, port: u16, follows: bool, out: &mut Vec<u8>) {
    let ip = ip.to_canonical();
    out.extend_from_slice(if follows { b"," } else { b"" });
    out.extend_from_slice(if ip.is_ipv4() { b"\"ipv4\":\"" } else { b"\"ipv6\":\"" });
    push_ip(ip, out);
    out.extend_from_slice(b"\",\"port\":");
    push_number(port, out);
}

// B3, the context of Zipkin: several header fields, or one.

/// The trace context of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Context {
    /// `None`: it is absent or invalid.
    pub(super) ids: Option<Ids>,
    /// Whether it is sampled; `None`: we decide.
    pub(super) is_sampled: Option<bool>,
    /// The debug flag: it is always sampled, and so are its children.
    pub(super) is_debug: bool,
}

/// The ids of a trace and of the caller's span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ids {
    pub(super) trace: u128,
    /// The trace id has 64 bits, and is passed on as such.
    pub(super) is_short: bool,
    pub(super) span: u64,
}

/// The field `b3` is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Invalid;

impl Context {
    /// Parses the field `b3`: `TRACE-SPAN`, `TRACE-SPAN-SAMPLED` or `TRACE-SPAN-SAMPLED-PARENT`; or `0` alone.
    pub(super) fn single(value: &[u8]) -> Result<Context, Invalid> {
        if value == b"0" {
            return Ok(Context { is_sampled: Some(false), ..Context::default() });
        }
        let mut parts = value.splitn(4, |byte| *byte == b'-');
        let (trace, span) = (parts.next().unwrap_or_default(), parts.next().ok_or(Invalid)?);
        let sampled = parts.next();
        let parent_is_good = parts.next().is_none_or(|parent| id(parent).is_some());
        let ids = ids(trace, span).filter(|_| parent_is_good);
        let is_debug = sampled == Some(b"d");
        Ok(Context { ids, is_sampled: if is_debug { Some(true) } else { sampled.and_then(decision) }, is_debug })
    }

    /// Parses the fields `X-B3-TraceId`, `X-B3-SpanId`, `X-B3-ParentSpanId`, `X-B3-Sampled` and `X-B3-Flags`.
    pub(super) fn several([trace, span, parent, sampled, flags]: [Option<&[u8]>; 5]) -> Context {
        let parent_is_good = parent.is_none_or(|parent| id(parent).is_some());
        let ids = trace.zip(span).and_then(|(trace, span)| ids(trace, span)).filter(|_| parent_is_good);
        let is_debug = flags == Some(b"1");
        let is_sampled = sampled.and_then(decision).or(is_debug.then_some(true));
        Context { ids, is_sampled, is_debug }
    }
}

fn decision(value: &[u8]) -> Option<bool> {
    match value {
        b"1" | b"true" => Some(true),
        b"0" | b"false" => Some(false),
        _ => None,
    }
}

fn ids(trace: &[u8], span: &[u8]) -> Option<Ids> {
    let is_short = match trace.len() {
        16 => true,
        32 => false,
        _ => return None,
    };
    Some(Ids { trace: number(trace)?, is_short, span: id(span)? })
}

/// Parses the id of a span.
fn id(text: &[u8]) -> Option<u64> {
    let number = number(text).filter(|_| text.len() == 16)?;
    u64::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &[u8] = b"80f198ee56343ba864fe8b2a57d3eff7";
    const SPAN: &[u8] = b"e457b5a2e4d86bd1";

    #[test]
    fn one_field() {
        let ids = Ids { trace: 0x80f198ee56343ba864fe8b2a57d3eff7, is_short: false, span: 0xe457b5a2e4d86bd1 };
        let of = |rest: &str| {
            Context::single(&[TRACE, b"-", SPAN, rest.as_bytes()].concat()).map(|context| {
                assert_eq!(context.ids, Some(ids), "{rest}");
                (context.is_sampled, context.is_debug)
            })
        };
        assert_eq!(of(""), Ok((None, false)));
        assert_eq!(of("-1"), Ok((Some(true), false)));
        assert_eq!(of("-0-05e3ac9a4f6e3b90"), Ok((Some(false), false)));
        assert_eq!(of("-d"), Ok((Some(true), true)));
        assert_eq!(Context::single(b"0"), Ok(Context { is_sampled: Some(false), ..Context::default() }));
        assert_eq!(Context::single(b"1"), Err(Invalid));
        assert_eq!(Context::single(TRACE), Err(Invalid));
        for bad in ["x-y", "80f1-e457b5a2e4d86bd1-1", "80f198ee56343ba8-e457b5a2e4d86bd1-1-x"] {
            assert_eq!(Context::single(bad.as_bytes()).unwrap().ids, None, "{bad}");
        }
    }

    #[test]
    fn several_fields() {
        let short = Ids { trace: 0x64fe8b2a57d3eff7, is_short: true, span: 0xe457b5a2e4d86bd1 };
        let context = Context::several([Some(&TRACE[16..]), Some(SPAN), None, Some(b"1"), None]);
        assert_eq!(context, Context { ids: Some(short), is_sampled: Some(true), is_debug: false });
        let check = |parts, expected| assert_eq!(Context::several(parts), expected);
        let none = Context::default();
        check([Some(TRACE), None, None, None, None], none);
        check([Some(TRACE), Some(SPAN), Some(b"x"), None, None], none);
        check([None, None, None, Some(b"maybe"), Some(b"2")], none);
        check([None, None, None, None, Some(b"1")], Context { is_sampled: Some(true), is_debug: true, ..none });
        check([None, None, None, Some(b"0"), Some(b"1")], Context { is_sampled: Some(false), is_debug: true, ..none });
    }
}
