//! `loki-logger`: pushes entries to Grafana Loki.
//!
//! An entry consists of its labels, its time and its line; a batch has a stream for each set of labels.

use super::keys::{HeaderSecrets, URL, UrlText, batching_logger_keys, logger_metadata};
use super::logger::{Logger, PHASES, of_metadata, plugin_of_logger};
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use stillgate_plugin_api::outbox::{Encode, Entries, HttpReceiver, Outlet, Receiver};
use stillgate_plugin_api::record::written::{json_string_bytes, push_json_string};
use stillgate_plugin_api::secrets::VeiledKind;
use stillgate_plugin_api::{Compile, Define, Phases, Response, Secret, Template};
use stillgate_route::VariableError;
use stillgate_schema::{
    Definitions, Fault, Flag, Json, Kind, Node, Path, Sink, TEXT, Text, Value, int, read, report_expected, some, text,
};

const NAME: &str = "loki-logger";

batching_logger_keys! {
    /// Pushes entries to Grafana Loki.
    pub(crate) struct LokiLoggerKeys named "loki logger" {
        /// Addresses of Loki, such as `http://127.0.0.1:3100`. Each batch goes to one of them.
        endpoint_addrs: Vec<UrlText> = some(URL) => required;
        /// The path of its push API.
        endpoint_uri: String = TARGET.shown() => default("/loki/api/v1/push".to_owned());
        /// The tenant, sent as `X-Scope-OrgID`.
        tenant_id: String = TEXT.shown() => default("fake".to_owned());
        /// Further header fields.
        headers: Vec<(String, Secret)> = VeiledKind(HeaderSecrets) => optional;
        /// The labels of a stream. Values may have variables, such as `$host`.
        log_labels: LogLabels = LabelsKind => default(LogLabels::job());
        /// Whether the server's certificate is verified.
        ssl_verify: bool = Flag => default(false);
        /// Timeout of one request, in milliseconds.
        timeout: u64 = int(1, 60_000) => default(3000);
        /// Whether connections are kept for the next batch.
        keepalive: bool = Flag => default(true);
        /// Milliseconds that a connection is kept.
        keepalive_timeout: u64 = int(1000, 3_600_000) => default(60_000);
        /// No effect: as many connections are kept as were needed, four at most.
        keepalive_pool: u64 = int(1, i64::MAX) => default(5);
    }
}

/// A path that is appended to an address.
const TARGET: Text<String> = text("a path", |text| {
    let is_good = text.starts_with('/') && text.bytes().all(|byte| (b'!'..=b'~').contains(&byte) && byte != b'#');
    match is_good {
        true => Ok(text.to_owned()),
        false => Err(Fault::new("not a path").hint("begin it with /, and write other characters than ASCII as %XX")),
    }
});

/// Labels of a stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LogLabels(Vec<LokiLabel>);

#[derive(Debug, Clone, PartialEq)]
struct LokiLabel {
    name: String,
    value: Template,
    /// The text of a value with variables: used if the request has none of them.
    text: String,
}

impl LogLabels {
    fn job() -> LogLabels {
        let value = Template::parse("apisix").expect("it has no variables");
        LogLabels(vec![LokiLabel { name: "job".to_owned(), value, text: String::new() }])
    }
}

/// The kind of `log_labels`.
pub(crate) struct LabelsKind;

impl Kind for LabelsKind {
    type Out = LogLabels;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<LogLabels> {
        let Value::Map(entries) = &node.value else {
            report_expected("a map of labels", node, path, sink);
            return None;
        };
        let mut labels = Vec::with_capacity(entries.len());
        for entry in entries.iter() {
            let path = path.key(&entry.key);
            let text = read(&TEXT, &entry.value, &path, sink)?;
            if text.is_empty() {
                sink.error(entry.value.at, &path, Fault::new("a label cannot be empty"));
                return None;
            }
            let unknown = &mut |error: VariableError| {
                sink.warning(entry.value.at, &path, Fault::new(format!("{error}; it is not put in")));
            };
            let value = Template::parse_lenient(&text, unknown);
            labels.push(LokiLabel { name: entry.key.to_string(), value, text });
        }
        Some(LogLabels(labels))
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        json!({"type": "object", "additionalProperties": {"type": "string", "minLength": 1}})
    }

    fn show(&self, value: &LogLabels) -> Json {
        let shown = value.0.iter().filter_map(|label| {
            let text = String::from_utf8(label.value.constant()?.to_vec()).ok()?;
            Some((label.name.clone(), Json::from(text)))
        });
        Json::Object(shown.collect())
    }
}

/// The plugin.
pub(crate) struct LokiLogger {
    logger: Logger,
    labels: LogLabels,
    outlet: Arc<Outlet>,
}

impl Define for LokiLogger {
    type Keys = LokiLoggerKeys;
    const NAME: &'static str = NAME;
    const PRIORITY: i32 = 414;
    const PHASES: Phases = PHASES;

    fn compile(mut keys: LokiLoggerKeys, cx: &mut Compile<'_>) -> Option<LokiLogger> {
        let mut logger = Logger::new(keys.contents(), cx)?;
        logger.unmatched = Some("no-matched");
        let mut headers = vec![("Content-Type".to_owned(), "application/json".to_owned())];
        if !keys.tenant_id.is_empty() {
            headers.push(("X-Scope-OrgID".to_owned(), keys.tenant_id.clone()));
        }
        let own = keys.headers.take().unwrap_or_default();
        headers.extend(own.into_iter().map(|(name, value)| (name, value.reveal().to_owned())));
        let (batching, name) = (keys.batching(), (NAME, keys.name));
        let mut urls: Vec<_> = keys.endpoint_addrs.into_iter().map(|url| url.0).collect();
        for url in &mut urls {
            url.target = format!("{}{}", url.target.trim_end_matches('/'), keys.endpoint_uri);
        }
        let receiver = Receiver::Http(Box::new(HttpReceiver {
            urls,
            headers,
            verifies: keys.ssl_verify,
            timeout: Duration::from_millis(keys.timeout),
            keepalive: keys.keepalive.then(|| Duration::from_millis(keys.keepalive_timeout)),
            status_below: 300,
            question: None,
            refused: None,
        }));
        let outlet = Arc::new(Outlet::new(name, cx.identity, batching, receiver, logger.encode(Streams)));
        Some(LokiLogger { logger, labels: keys.log_labels, outlet })
    }
}

impl LokiLogger {
    fn send(&self, response: &Response<'_>) {
        self.logger.log(
            of_metadata::<LokiLoggerMetadata>(NAME, response),
            &self.outlet,
            response,
            |finished, scratch, out| {
                let at = out.len();
                out.extend_from_slice(&[0; LENGTH_BYTES]);
                self.write_labels(response, &mut scratch.value, out);
                let length = (out.len() - at - LENGTH_BYTES) as u32;
                out[at..at + LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
                out.extend_from_slice(&(finished.record.start_unix_us() * 1000).to_le_bytes());
            },
            b"",
        );
    }

    fn write_labels(&self, response: &Response<'_>, buffer: &mut Vec<u8>, out: &mut Vec<u8>) {
        let mut text = Vec::new();
        out.push(b'{');
        for (index, label) in self.labels.0.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            push_json_string(label.name.as_bytes(), usize::MAX, out);
            out.push(b':');
            text.clear();
            // Loki refuses a whole batch for one empty label, so APISIX keeps the text if no variable has a value.
            let is_put_in = label.value.write(response, &mut text, buffer) > 0;
            let written = if is_put_in || label.text.is_empty() { &text } else { label.text.as_bytes() };
            push_json_string(written, usize::MAX, out);
        }
        out.push(b'}');
    }
}

/// Bytes of the length of the labels, and of the time after them.
const LENGTH_BYTES: usize = size_of::<u32>();
const TIME_BYTES: usize = size_of::<u64>();

/// Labels, and the lines with their times.
type Stream<'a> = (&'a [u8], Vec<(u64, &'a [u8])>);

/// Encodes a stream for each set of labels.
struct Streams;

impl Encode for Streams {
    fn sent_bytes(&self, entry: &[u8]) -> usize {
        /// Bytes of a stream with one line: names, brackets and the time.
        const AROUND_BYTES: usize = 64;
        split(entry).map_or(0, |(labels, _, line)| labels.len() + json_string_bytes(line) + AROUND_BYTES)
    }

    fn encode(&self, entries: &Entries, out: &mut Vec<u8>) {
        let mut streams: Vec<Stream<'_>> = Vec::new();
        // Each request may have labels of its own.
        let mut places: HashMap<&[u8], usize> = HashMap::new();
        for entry in entries.iter() {
            let Some((labels, time, line)) = split(entry) else { continue };
            let place = *places.entry(labels).or_insert(streams.len());
            match streams.get_mut(place) {
                Some((_, values)) => values.push((time, line)),
                None => streams.push((labels, vec![(time, line)])),
            }
        }
        out.extend_from_slice(b"{\"streams\":[");
        for (index, (labels, values)) in streams.into_iter().enumerate() {
            out.extend_from_slice(if index > 0 { b",{\"stream\":" } else { b"{\"stream\":" });
            out.extend_from_slice(labels);
            out.extend_from_slice(b",\"values\":[");
            for (index, (time, line)) in values.into_iter().enumerate() {
                out.extend_from_slice(if index > 0 { b",[\"" } else { b"[\"" });
                out.extend_from_slice(time.to_string().as_bytes());
                out.extend_from_slice(b"\",");
                push_json_string(line, usize::MAX, out);
                out.push(b']');
            }
            out.extend_from_slice(b"]}");
        }
        out.extend_from_slice(b"]}");
    }
}

/// Splits an entry into labels, time and line.
fn split(entry: &[u8]) -> Option<(&[u8], u64, &[u8])> {
    let (length, rest) = entry.split_at_checked(LENGTH_BYTES)?;
    let (labels, rest) = rest.split_at_checked(u32::from_le_bytes(length.try_into().ok()?) as usize)?;
    let (time, line) = rest.split_at_checked(TIME_BYTES)?;
    Some((labels, u64::from_le_bytes(time.try_into().ok()?), line))
}

logger_metadata!(LokiLoggerMetadata {});
plugin_of_logger!(LokiLogger, LokiLoggerMetadata);
