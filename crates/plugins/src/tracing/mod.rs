//! The tracing plugins: they propagate contexts, and send spans to a collector.
//!
//! A request's context is read and propagated in `rewrite`, whether it is sampled or not. A span is written when the
//! response is finished, from what is known then.

mod otlp;
mod sampling;
mod zipkin;

pub(crate) use zipkin::Zipkin;

use crate::loggers::{HeaderSecret, UrlText};
use otlp::{Any, Export, FixedPart, KeyValue, SpanWriter, rejected};
use sampling::{Parent, SampledShare, ShareKind, number};
use serde_json::json;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use stillgate_plugin_api::outbox::{BatchPolicy, HttpReceiver, Outlet, PENDING_BYTES_MAX, Receiver, Url};
use stillgate_plugin_api::record::Tracer;
use stillgate_plugin_api::record::write::push_traceparent;
use stillgate_plugin_api::secrets::VeiledKind;
use stillgate_plugin_api::{
    Compile, Define, Flow, Identity, Metadata, OpenSpan, Phase, Phases, Plugin, Request, Response, Secret, Trace,
};
use stillgate_route::{Lookup, RouteMatch, Variable};
use stillgate_schema::description::KeyDescription;
use stillgate_schema::text::scalar::Meaning;
use stillgate_schema::{
    Choice, Definitions, Entry, Fault, Flag, Json, Kind, Node, Object, Path, Position, Sink, Text, Value, int, list,
    map, object, read, report_expected, text,
};
use stillgate_wire::{FieldName, FieldValue};

// `opentelemetry`: propagates the W3C context, and sends a span of each sampled request to a collector.
//
// Without metadata it does nothing, as in APISIX: the metadata has the collector's address.

const NAME: &str = "opentelemetry";
const TRACEPARENT: FieldName<'static> = FieldName::constant("traceparent");
const TRACESTATE: FieldName<'static> = FieldName::constant("tracestate");
const X_REQUEST_ID: FieldName<'static> = FieldName::constant("X-Request-Id");

/// Number of retries of a batch that the collector refused.
const RETRIES: u32 = 4;
/// How long a connection is kept for the next batch.
const KEEPALIVE: Duration = Duration::from_secs(60);

object! {
    /// Sends spans to an OpenTelemetry collector.
    pub(crate) struct OpenTelemetryKeys {
        /// Which requests are sampled.
        sampler: OpenTelemetrySampler = map::<OpenTelemetrySampler>() => nested;
        /// Variables that become attributes of the span.
        additional_attributes: Vec<Attribute> = list(ATTRIBUTE) => default(Vec::new());
        /// Header fields of the request that become attributes: names, or prefixes of names followed by `*`.
        additional_header_prefix_attributes: Vec<String> = list(PREFIX) => default(Vec::new());
    }
}

object! {
    /// Which requests are sampled.
    pub(crate) struct OpenTelemetrySampler {
        /// `always_on`, `always_off`, `trace_id_ratio`: a share of all; `parent_base`: those whose caller is sampled,
        /// and for requests without a caller the sampler in `root`.
        name: SamplerName = SAMPLER => default(SamplerName::AlwaysOff);
        /// Options of the sampler.
        options: OpenTelemetrySamplerOptions = map::<OpenTelemetrySamplerOptions>() => nested;
    }
}

object! {
    /// Options of a sampler.
    pub(crate) struct OpenTelemetrySamplerOptions {
        /// The share of `trace_id_ratio`.
        fraction: SampledShare = FRACTION => default(SampledShare(0.0));
        /// The sampler of `parent_base` for requests without a caller.
        root: OpenTelemetryRoot = map::<OpenTelemetryRoot>() => nested;
    }
}

object! {
    /// The sampler of `parent_base` for requests without a caller.
    pub(crate) struct OpenTelemetryRoot {
        /// `always_on`, `always_off` or `trace_id_ratio`.
        name: RootName = ROOT => default(RootName::AlwaysOff);
        /// Options of the sampler.
        options: OpenTelemetryRootOptions = map::<OpenTelemetryRootOptions>() => nested;
    }
}

object! {
    /// Options of the sampler for requests without a caller.
    pub(crate) struct OpenTelemetryRootOptions {
        /// The share of `trace_id_ratio`.
        fraction: SampledShare = FRACTION => default(SampledShare(0.0));
    }
}

const FRACTION: ShareKind = ShareKind { min: 0.0, is_lenient: true };

/// A sampler's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SamplerName {
    /// Samples all requests.
    AlwaysOn,
    /// Samples none.
    AlwaysOff,
    /// Samples a share.
    Ratio,
    /// Follows the caller.
    ParentBase,
}

/// The name of a sampler that ignores the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RootName {
    /// Samples all requests.
    AlwaysOn,
    /// Samples none.
    AlwaysOff,
    /// Samples a share.
    Ratio,
}

const SAMPLER: Choice<SamplerName> = Choice {
    words: &[
        ("always_off", SamplerName::AlwaysOff),
        ("always_on", SamplerName::AlwaysOn),
        ("trace_id_ratio", SamplerName::Ratio),
        ("parent_base", SamplerName::ParentBase),
    ],
    unbuilt: &[],
};

const ROOT: Choice<RootName> = Choice {
    words: &[
        ("always_off", RootName::AlwaysOff),
        ("always_on", RootName::AlwaysOn),
        ("trace_id_ratio", RootName::Ratio),
    ],
    unbuilt: &[],
};

/// A variable that becomes an attribute.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Attribute {
    name: Box<str>,
    variable: Variable,
}

const ATTRIBUTE: Text<Attribute> = text("the name of a variable", |text| {
    let variable = Variable::parse_late(text).map_err(|error| Fault::new(error.to_string()))?;
    Ok(Attribute { name: text.into(), variable })
});

const PREFIX: Text<String> = text("the name of a header field, or its beginning and *", |text| {
    let name = text.strip_suffix('*').filter(|name| !name.is_empty()).unwrap_or(text);
    match FieldName::new(name.as_bytes()) {
        Ok(_) => Ok(text.to_ascii_lowercase()),
        Err(error) => Err(Fault::new(error.to_string())),
    }
});

object! {
    /// The collector of spans, and their common attributes.
    pub(crate) struct OpenTelemetryMetadata {
        /// The source of new trace ids: `random`, or `x-request-id`, the request's id if it has one of 32 hexadecimal
        /// digits.
        trace_id_source: IdSource = ID_SOURCE => default(IdSource::Random);
        /// Attributes of the resource; the default of `service.name` is `APISIX`.
        resource: Vec<(String, Any)> = ResourceKind => optional;
        /// The collector.
        collector: OpenTelemetryCollector = map::<OpenTelemetryCollector>() => nested;
        /// When spans are sent.
        batch_span_processor: OpenTelemetryBatch = map::<OpenTelemetryBatch>() => nested;
        /// Whether the variables `opentelemetry_context_traceparent`, `opentelemetry_trace_id` and
        /// `opentelemetry_span_id` are set.
        set_ngx_var: bool = Flag => default(false);
    }
}

object! {
    /// The collector.
    pub(crate) struct OpenTelemetryCollector {
        /// Its host and port, with the prefix `https://` for TLS.
        address: UrlText = ADDRESS => default(UrlText(collector("127.0.0.1:4318").expect("a good address")));
        /// Timeout of one request, in seconds.
        request_timeout: u64 = int(1, 3600) => default(3);
        /// Header fields of requests.
        request_headers: Vec<(String, Option<Secret>)> = VeiledKind(HeadersKind) => default(Vec::new());
    }
}

object! {
    /// When spans are sent.
    pub(crate) struct OpenTelemetryBatch {
        /// No effect: spans without room are dropped and counted, and requests never wait.
        drop_on_queue_full: bool = Flag => default(true);
        /// Most spans that wait.
        max_queue_size: usize = int(1, 1_000_000) => default(1024);
        /// Seconds after the first span by which the batch is sent.
        batch_timeout: Seconds = SECONDS => default(Seconds(5.0));
        /// Seconds without a new span after which the batch is sent.
        inactive_timeout: Seconds = SECONDS => default(Seconds(2.0));
        /// Number of spans that are sent at once.
        max_export_batch_size: usize = int(1, 1_000_000) => default(256);
    }
}

/// The source of new trace ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdSource {
    /// Random numbers.
    Random,
    /// The request's id.
    RequestId,
}

const ID_SOURCE: Choice<IdSource> =
    Choice { words: &[("random", IdSource::Random), ("x-request-id", IdSource::RequestId)], unbuilt: &[] };

const ADDRESS: Text<UrlText> = text("a host and port", |text| {
    collector(text).map(UrlText).map_err(|error| Fault::new(format!("not an address: {error}")).hint("write HOST:PORT"))
});

fn collector(text: &str) -> Result<Url, String> {
    let has_scheme = text.starts_with("http://") || text.starts_with("https://");
    let address = if has_scheme { text.to_owned() } else { format!("http://{text}") };
    Url::parse(&format!("{}/v1/traces", address.trim_end_matches('/')))
}

/// A time in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Seconds(f64);

/// The type of a time in seconds, with a fraction.
pub(crate) struct SecondsKind;

const SECONDS: SecondsKind = SecondsKind;

impl Kind for SecondsKind {
    type Out = Seconds;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Seconds> {
        const SECONDS_MAX: f64 = 86_400.0;
        let seconds = match &node.value {
            Value::Scalar(scalar) => match scalar.meaning() {
                Meaning::Int(number) => Some(number as f64),
                Meaning::Float(number) => Some(number),
                _ => None,
            },
            _ => None,
        };
        let good = seconds.filter(|seconds| (0.0..=SECONDS_MAX).contains(seconds)).map(Seconds);
        if good.is_none() {
            report_expected("a number of seconds from 0 to 86400", node, path, sink);
        }
        good
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        json!({"type": "number", "minimum": 0, "maximum": 86_400})
    }

    fn show(&self, seconds: &Seconds) -> Json {
        json!(seconds.0)
    }
}

/// Attributes of a resource: texts, numbers, and booleans.
pub(crate) struct ResourceKind;

impl Kind for ResourceKind {
    type Out = Vec<(String, Any)>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Vec<(String, Any)>> {
        let Value::Map(entries) = &node.value else {
            report_expected("a map of attributes", node, path, sink);
            return None;
        };
        let mut attributes = Vec::with_capacity(entries.len());
        for entry in entries.iter() {
            let Value::Scalar(scalar) = &entry.value.value else {
                report_expected("a text, a number, true or false", &entry.value, &path.key(&entry.key), sink);
                return None;
            };
            // As in APISIX, all numbers are floats.
            let value = match scalar.meaning() {
                Meaning::Bool(flag) => Any::Flag(flag),
                Meaning::Int(number) => Any::Float(number as f64),
                Meaning::Float(number) => Any::Float(number),
                _ => Any::Text(scalar.text.to_string()),
            };
            attributes.push((entry.key.to_string(), value));
        }
        Some(attributes)
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        json!({"type": "object", "additionalProperties": {"type": ["boolean", "number", "string"]}})
    }
}

/// Header fields with secret values.
pub(crate) struct HeadersKind;

impl Kind for HeadersKind {
    type Out = Vec<(String, Option<Secret>)>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Vec<(String, Option<Secret>)>> {
        let Value::Map(entries) = &node.value else {
            report_expected("a map of header fields", node, path, sink);
            return None;
        };
        let mut fields = Vec::with_capacity(entries.len());
        for entry in entries.iter() {
            let path = path.key(&entry.key);
            if let Err(error) = FieldName::new(entry.key.as_bytes()) {
                sink.error(entry.key_at, &path, Fault::new(error.to_string()));
                return None;
            }
            fields.push((entry.key.to_string(), read(&VeiledKind(HeaderSecret), &entry.value, &path, sink)?));
        }
        Some(fields)
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        json!({"type": "object", "additionalProperties": {"type": ["boolean", "number", "string"]}})
    }
}

/// The compiled metadata.
#[derive(Debug)]
pub(crate) struct Collector {
    source: IdSource,
    is_shown: bool,
    outlet: Arc<Outlet>,
}

/// The keys are those of [`OpenTelemetryMetadata`].
impl Object for Collector {
    const NAME: &'static str = OpenTelemetryMetadata::NAME;
    const DOC: &'static str = OpenTelemetryMetadata::DOC;
    const NEEDS: &'static [&'static [&'static str]] = OpenTelemetryMetadata::NEEDS;
    const IS_CLOSED: bool = OpenTelemetryMetadata::IS_CLOSED;
    const KEYS: &'static [&'static str] = OpenTelemetryMetadata::KEYS;

    fn has_key(key: &str) -> bool {
        OpenTelemetryMetadata::has_key(key)
    }

    fn read_entries(entries: &[Entry], at: Position, path: &Path<'_>, sink: &mut Sink) -> Option<Collector> {
        OpenTelemetryMetadata::read_entries(entries, at, path, sink).map(Collector::new)
    }

    fn describe(definitions: &mut Definitions) -> Vec<KeyDescription> {
        OpenTelemetryMetadata::describe(definitions)
    }
}

impl Collector {
    fn new(keys: OpenTelemetryMetadata) -> Collector {
        let mut headers = vec![("Content-Type".to_owned(), "application/x-protobuf".to_owned())];
        for (name, value) in &keys.collector.request_headers {
            headers.extend(value.as_ref().map(|value| (name.clone(), value.reveal().to_owned())));
        }
        // The same collector with the same settings is one outlet across reloads.
        let identity = Identity::of(&[
            NAME.as_bytes(),
            format!("{:?}{:?}{:?}", keys.collector.address, keys.batch_span_processor, keys.resource).as_bytes(),
            format!("{headers:?}").as_bytes(),
        ]);
        let of_batch = &keys.batch_span_processor;
        let seconds = |seconds: Seconds| Duration::from_secs_f64(seconds.0);
        let batching = BatchPolicy {
            entries_max: of_batch.max_export_batch_size,
            inactive_timeout: seconds(of_batch.inactive_timeout),
            buffer_duration: seconds(of_batch.batch_timeout),
            retries_max: RETRIES,
            retry_delay: Duration::from_secs(1),
            pending_bytes_max: PENDING_BYTES_MAX,
            pending_entries_max: of_batch.max_queue_size,
        };
        let mut resource = Vec::new();
        if let Some(own) = keys.resource {
            if !own.iter().any(|(name, _)| name == "service.name") {
                resource.push(KeyValue::new("service.name", Any::Text("APISIX".to_owned())));
            }
            resource.extend(own.into_iter().map(|(name, value)| KeyValue::new(&name, value)));
        }
        let receiver = Receiver::Http(Box::new(HttpReceiver {
            urls: vec![keys.collector.address.0],
            headers,
            verifies: true,
            timeout: Duration::from_secs(keys.collector.request_timeout),
            keepalive: Some(KEEPALIVE),
            status_below: 300,
            question: None,
            refused: Some(rejected),
        }));
        let outlet = Outlet::new((NAME, NAME.to_owned()), identity, batching, receiver, Box::new(Export { resource }));
        Collector { source: keys.trace_id_source, is_shown: keys.set_ngx_var, outlet: Arc::new(outlet) }
    }
}

/// The sampler of requests.
#[derive(Debug, Clone, Copy)]
enum Sampler {
    Share(SampledShare),
    /// Follows the caller; without one it samples a share.
    Parent(SampledShare),
}

impl Sampler {
    fn takes(self, trace_id: u128, parent: Option<Parent>) -> bool {
        match (self, parent) {
            (Sampler::Parent(_), Some(parent)) => parent.is_sampled,
            (Sampler::Parent(share) | Sampler::Share(share), _) => share.takes((trace_id >> 64) as u64),
        }
    }
}

/// The plugin.
pub(crate) struct OpenTelemetry {
    sampler: Sampler,
    attributes: Box<[Attribute]>,
    /// In lower case, some with a trailing `*`.
    headers: Box<[String]>,
    identity: Identity,
}

impl Define for OpenTelemetry {
    type Keys = OpenTelemetryKeys;
    const NAME: &'static str = NAME;
    const PRIORITY: i32 = 12009;
    const PHASES: Phases = Phases::of(&[Phase::Rewrite, Phase::Log]);

    fn compile(keys: OpenTelemetryKeys, cx: &mut Compile<'_>) -> Option<OpenTelemetry> {
        let options = keys.sampler.options;
        let root = options.root;
        let root = match root.name {
            RootName::AlwaysOn => SampledShare(1.0),
            RootName::AlwaysOff => SampledShare(0.0),
            RootName::Ratio => root.options.fraction,
        };
        let sampler = match keys.sampler.name {
            SamplerName::AlwaysOn => Sampler::Share(SampledShare(1.0)),
            SamplerName::AlwaysOff => Sampler::Share(SampledShare(0.0)),
            SamplerName::Ratio => Sampler::Share(options.fraction),
            SamplerName::ParentBase => Sampler::Parent(root),
        };
        Some(OpenTelemetry {
            sampler,
            attributes: keys.additional_attributes.into(),
            headers: keys.additional_header_prefix_attributes.into(),
            identity: cx.identity,
        })
    }
}

impl Metadata for OpenTelemetry {
    type Metadata = Collector;
}

impl Plugin for OpenTelemetry {
    fn rewrite(&self, request: &mut Request<'_>) -> Flow {
        if let Some(collector) = request.metadata::<Collector>(NAME) {
            self.begin(collector, request);
        }
        Flow::Continue
    }

    fn log(&self, response: &mut Response<'_>) {
        let span = response.settled.span(self.identity);
        let collector = response.metadata.get::<Collector>(NAME);
        if let Some((span, collector)) = span.zip(collector).filter(|(span, _)| span.is_sampled) {
            self.end(span, &collector.outlet, response);
        }
    }
}

impl OpenTelemetry {
    fn begin(&self, collector: &Collector, request: &mut Request<'_>) {
        let parent = request.first_header(TRACEPARENT).and_then(Parent::parse);
        let worker = request.worker;
        let trace_id = match (parent, collector.source) {
            (Some(parent), _) => parent.trace_id,
            (None, IdSource::RequestId) => {
                request.first_header(X_REQUEST_ID).and_then(id_of).unwrap_or_else(|| new_trace(worker))
            }
            (None, IdSource::Random) => new_trace(worker),
        };
        // Zero is not a valid id.
        let id = worker.random().max(1);
        let is_sampled = self.sampler.takes(trace_id, parent);
        let trace =
            Trace { trace_id, span_id: id, is_sampled, shown_by: collector.is_shown.then_some(Tracer::OpenTelemetry) };
        if parent.is_none() {
            // It belongs to a trace that is not ours (W3C Trace Context, section 4.3).
            request.remove_header(TRACESTATE);
        }
        let mut value = [0; TRACEPARENT_BYTES];
        write_traceparent(&trace, &mut value);
        request.set_header(TRACEPARENT, FieldValue::new(&value).expect("digits and dashes"));
        let parent = parent.map_or(0, |parent| parent.span_id);
        request.settled.trace = Some(trace);
        request.settled.spans.push(OpenSpan { plugin: self.identity, trace_id, id, parent, node_id: 0, is_sampled });
    }

    fn end(&self, span: OpenSpan, outlet: &Arc<Outlet>, response: &Response<'_>) {
        let Some(ended) = response.ended else { return };
        let record = &ended.record;
        let fixed = FixedPart {
            trace_id: span.trace_id,
            span_id: span.id,
            parent_id: span.parent,
            start_us: record.start_unix_us(),
            end_us: record.start_unix_us() + record.request_time_us,
            status: record.tries.last().map_or(0, |last| last.status),
        };
        response.worker.send(outlet, |scratch, out| {
            let mut writer = SpanWriter::begin(&fixed, out);
            writer.text(record.process.hostname.as_bytes());
            self.describe(span, response, &mut writer, &mut scratch.value);
        });
    }

    /// Writes the span's name, `tracestate`, and its attributes.
    fn describe(&self, span: OpenSpan, response: &Response<'_>, writer: &mut SpanWriter<'_>, buffer: &mut Vec<u8>) {
        let facts = &response.facts;
        let path = facts.route.and_then(|route| match &route.matcher.specs()[route.found.route].takes {
            RouteMatch::Uri(uri) => uri.paths.get(route.found.path),
            RouteMatch::Expression(_) => None,
        });
        writer.text_with(|out| {
            out.extend_from_slice(facts.method());
            if let Some(path) = path {
                write!(out, " {path}").expect("writing to a Vec cannot fail");
            }
        });
        let state = facts.request.fields.iter().find(|field| TRACESTATE.is(field.name.of(facts.head)));
        writer.text(state.filter(|_| span.parent != 0).map_or(b"", |field| field.value.of(facts.head)));
        writer.attribute(b"net.host.name", facts.host);
        writer.attribute(b"http.method", facts.method());
        writer.attribute(b"http.scheme", facts.scheme.as_bytes());
        writer.attribute(b"http.target", response.settled.redacted_target(facts));
        let agent =
            facts.request.fields.iter().find(|field| field.name.of(facts.head).eq_ignore_ascii_case(b"user-agent"));
        if let Some(agent) = agent {
            writer.attribute(b"http.user_agent", agent.value.of(facts.head));
        }
        if let Some(route) = facts.route {
            writer.attribute(b"apisix.route_id", route.id.as_bytes());
            if let Some(path) = path {
                writer.text(b"http.route");
                writer.text_with(|out| write!(out, "{path}").expect("writing to a Vec cannot fail"));
            }
            if let Some(service) = route.service {
                writer.attribute(b"apisix.service_id", service.as_bytes());
            }
            for (name, value) in [(&b"apisix.route_name"[..], route.name), (b"apisix.service_name", route.service_name)]
            {
                if let Some(value) = value {
                    writer.attribute(name, value.as_bytes());
                }
            }
        }
        for attribute in &self.attributes {
            if let Some(value) = response.value(&attribute.variable, buffer) {
                writer.attribute(attribute.name.as_bytes(), value);
            }
        }
        for wanted in &self.headers {
            let prefix = wanted.strip_suffix('*').filter(|prefix| !prefix.is_empty()).map(str::as_bytes);
            facts.each_header(&mut |name, value| {
                let is_it = match prefix {
                    Some(prefix) => name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix)),
                    None => name.eq_ignore_ascii_case(wanted.as_bytes()),
                };
                if is_it {
                    writer.text_with(|out| out.extend(name.iter().map(u8::to_ascii_lowercase)));
                    writer.text(value);
                }
            });
        }
    }
}

/// `00-TRACE-SPAN-FLAGS`
const TRACEPARENT_BYTES: usize = 55;

fn write_traceparent(trace: &Trace, out: &mut [u8; TRACEPARENT_BYTES]) {
    let mut text = Vec::with_capacity(TRACEPARENT_BYTES);
    push_traceparent(trace, &mut text);
    out.copy_from_slice(&text);
}

fn new_trace(worker: &stillgate_plugin_api::Worker) -> u128 {
    let id = (u128::from(worker.random()) << 64) | u128::from(worker.random());
    // Zero is not a valid id.
    id.max(1)
}

/// Parses a request's id of 32 digits, or a UUID.
fn id_of(text: &[u8]) -> Option<u128> {
    let digits: Vec<u8> = text.iter().copied().filter(|byte| *byte != b'-').take(33).collect();
    number(&digits).filter(|id| digits.len() == 32 && *id != 0)
}
