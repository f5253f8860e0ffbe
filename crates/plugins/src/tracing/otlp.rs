//! Encodes spans as OTLP (opentelemetry-proto 1.x, `trace/v1` and `collector/trace/v1`), from the compact form of
//! entries.
//!
//! A worker writes a span in a compact form, without memory besides the entry; the message is made on the sending
//! thread.

use prost::Message;
use stillgate_plugin_api::outbox::{Encode, Entries};

/// `opentelemetry.proto.collector.trace.v1.ExportTraceServiceRequest`
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportTraceServiceRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_spans: Vec<ResourceSpans>,
}

/// `opentelemetry.proto.collector.trace.v1.ExportTraceServiceResponse`
#[derive(Clone, PartialEq, Message)]
struct ExportTraceServiceResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<ExportTracePartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
struct ExportTracePartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_spans: i64,
    #[prost(string, tag = "2")]
    error_message: String,
}

/// Number of spans of an export that the collector refused; 0 if the answer is not OTLP's.
pub(super) fn rejected(body: &[u8]) -> u64 {
    let response = ExportTraceServiceResponse::decode(body).ok();
    let rejected = response.and_then(|response| response.partial_success).map_or(0, |partial| partial.rejected_spans);
    u64::try_from(rejected).unwrap_or(0)
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) spans: Vec<OtlpSpan>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct InstrumentationScope {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OtlpSpan {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    pub(super) trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    pub(super) parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub(super) name: String,
    #[prost(int32, tag = "6")]
    pub(super) kind: i32,
    #[prost(fixed64, tag = "7")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    pub(super) end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    pub(super) status: Option<SpanStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SpanStatus {
    #[prost(string, tag = "2")]
    pub(super) message: String,
    #[prost(int32, tag = "3")]
    pub(super) code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AnyValue {
    #[prost(oneof = "Any", tags = "1, 2, 3, 4")]
    pub(super) value: Option<Any>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Any {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Flag(bool),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(double, tag = "4")]
    Float(f64),
}

impl KeyValue {
    pub(super) fn new(key: &str, value: Any) -> KeyValue {
        KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
    }
}

/// `SPAN_KIND_SERVER`
const SERVER: i32 = 2;
/// `STATUS_CODE_ERROR`
const ERROR: i32 = 2;
/// The lowest status that counts as a failure of the node.
const FAILED_FROM: u16 = 500;

/// The part of a span with a fixed length.
pub(super) struct FixedPart {
    pub(super) trace_id: u128,
    pub(super) span_id: u64,
    /// Zero: none.
    pub(super) parent_id: u64,
    pub(super) start_us: u64,
    pub(super) end_us: u64,
    /// Status of the node's response; zero: no node has answered.
    pub(super) status: u16,
}

/// Writes a span: fixed parts, then texts, each with its length before it: the machine's name, the span's name,
/// `tracestate`, and names and values of attributes in turn.
pub(super) struct SpanWriter<'a>(&'a mut Vec<u8>);

impl<'a> SpanWriter<'a> {
    pub(super) fn begin(fixed: &FixedPart, out: &'a mut Vec<u8>) -> SpanWriter<'a> {
        out.extend_from_slice(&fixed.trace_id.to_be_bytes());
        for number in [fixed.span_id, fixed.parent_id, fixed.start_us, fixed.end_us] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.extend_from_slice(&fixed.status.to_be_bytes());
        SpanWriter(out)
    }

    pub(super) fn text(&mut self, text: &[u8]) {
        self.0.extend_from_slice(&(text.len() as u32).to_be_bytes());
        self.0.extend_from_slice(text);
    }

    /// Writes a text that `write` appends; `false`: it is dropped.
    pub(super) fn text_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let at = self.0.len();
        self.0.extend_from_slice(&[0; 4]);
        write(self.0);
        let length = (self.0.len() - at - 4) as u32;
        self.0[at..at + 4].copy_from_slice(&length.to_be_bytes());
    }

    pub(super) fn attribute(&mut self, name: &[u8], value: &[u8]) {
        self.text(name);
        self.text(value);
    }
}

/// Reads the output of [`SpanWriter`].
struct SpanReader<'a>(&'a [u8]);

impl<'a> SpanReader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn number(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let length = u32::from_be_bytes(self.take()?);
        let (text, rest) = self.0.split_at_checked(length as usize)?;
        self.0 = rest;
        Some(text)
    }

    fn string(&mut self) -> Option<String> {
        self.text().map(|text| String::from_utf8_lossy(text).into_owned())
    }
}

/// Attributes of the SDK that made the spans.
const SDK: [(&str, &str); 3] = [
    ("telemetry.sdk.language", "rust"),
    ("telemetry.sdk.name", "stillgate"),
    ("telemetry.sdk.version", env!("CARGO_PKG_VERSION")),
];

/// Encodes the request of a batch.
pub(super) struct Export {
    /// Attributes besides the machine's name.
    pub(super) resource: Vec<KeyValue>,
}

impl Encode for Export {
    fn encode(&self, entries: &Entries, out: &mut Vec<u8>) {
        let mut hostname = String::new();
        let spans = entries.iter().filter_map(|entry| {
            let (of, span) = span(&mut SpanReader(entry))?;
            hostname = of;
            Some(span)
        });
        let spans: Vec<OtlpSpan> = spans.collect();
        let mut attributes = vec![KeyValue::new("hostname", Any::Text(hostname))];
        // Names of OpenTelemetry's semantic conventions.
        attributes.extend(SDK.map(|(name, value)| KeyValue::new(name, Any::Text(value.to_owned()))));
        attributes.extend(self.resource.iter().cloned());
        let scope =
            InstrumentationScope { name: "stillgate".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
        let request = ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(Resource { attributes }),
                scope_spans: vec![ScopeSpans { scope: Some(scope), spans }],
            }],
        };
        out.reserve(request.encoded_len());
        request.encode_raw(out);
    }
}

/// Reads the machine's name and the span.
fn span(reader: &mut SpanReader<'_>) -> Option<(String, OtlpSpan)> {
    let trace_id: [u8; 16] = reader.take()?;
    let span_id: [u8; 8] = reader.take()?;
    let parent_id: [u8; 8] = reader.take()?;
    let (start_us, end_us) = (reader.number()?, reader.number()?);
    let status = u16::from_be_bytes(reader.take()?);
    let (hostname, name, trace_state) = (reader.string()?, reader.string()?, reader.string()?);
    let mut attributes = Vec::new();
    while let Some((name, value)) = reader.string().and_then(|name| Some((name, reader.string()?))) {
        attributes.push(KeyValue::new(&name, Any::Text(value)));
    }
    if status > 0 {
        for name in ["http.status_code", "http.response.status_code"] {
            attributes.push(KeyValue::new(name, Any::Int(status.into())));
        }
    }
    let failed = (status >= FAILED_FROM)
        .then(|| SpanStatus { message: format!("upstream response status: {status}"), code: ERROR });
    let span = OtlpSpan {
        trace_id: trace_id.to_vec(),
        span_id: span_id.to_vec(),
        trace_state,
        parent_span_id: if parent_id == [0; 8] { Vec::new() } else { parent_id.to_vec() },
        name,
        kind: SERVER,
        start_time_unix_nano: start_us * 1000,
        end_time_unix_nano: end_us * 1000,
        attributes,
        status: failed,
    };
    Some((hostname, span))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed(status: u16) -> FixedPart {
        FixedPart { trace_id: 1, span_id: 2, parent_id: 0, start_us: 3, end_us: 5, status }
    }

    #[test]
    fn a_span_is_read_as_it_was_written() {
        let (mut entries, mut entry) = (Entries::default(), Vec::new());
        let mut writer = SpanWriter::begin(&fixed(503), &mut entry);
        writer.text(b"host");
        writer.text_with(|out| out.extend_from_slice(b"GET /a"));
        writer.text(b"");
        writer.attribute(b"http.method", b"GET\xff");
        entries.push(&entry);
        // A truncated entry is skipped.
        entries.push(&entry[..20]);
        let mut out = Vec::new();
        Export { resource: vec![KeyValue::new("a", Any::Flag(true))] }.encode(&entries, &mut out);
        let request = ExportTraceServiceRequest::decode(&*out).unwrap();
        let [of] = &request.resource_spans[..] else { panic!("one resource") };
        let names: Vec<&str> = of.resource.as_ref().unwrap().attributes.iter().map(|of| &*of.key).collect();
        let sdk = ["telemetry.sdk.language", "telemetry.sdk.name", "telemetry.sdk.version"];
        assert_eq!(names, ["hostname", sdk[0], sdk[1], sdk[2], "a"]);
        let [span] = &of.scope_spans[0].spans[..] else { panic!("one span") };
        assert_eq!((span.trace_id.len(), span.span_id.len(), span.parent_span_id.len()), (16, 8, 0));
        assert_eq!((span.name.as_str(), span.kind), ("GET /a", SERVER));
        assert_eq!((span.start_time_unix_nano, span.end_time_unix_nano), (3000, 5000));
        assert_eq!(span.attributes.len(), 3);
        assert_eq!(span.attributes[0], KeyValue::new("http.method", Any::Text("GET\u{FFFD}".to_owned())));
        assert_eq!(span.status.as_ref().unwrap().code, ERROR);
    }
}
