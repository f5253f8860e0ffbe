//! `log_format`: the compiled content of an entry.

use super::coded::CodedBody;
use serde_json::json;
use stillgate_plugin_api::Response;
use stillgate_plugin_api::record::written::push_json_string;
use stillgate_plugin_api::record::{AccessValue, Record, RecordScratch, access_value, push_value};
use stillgate_route::Variable;
use stillgate_schema::text::scalar::Meaning;
use stillgate_schema::{Definitions, Fault, Json, Kind, Node, Path, Sink, Value, json_of, report_expected};
use stillgate_wire::FieldName;

/// Most levels of nested objects.
const LEVELS_MAX: usize = 5;

/// The members of an entry, in their order.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct EntryFormat(pub(super) Vec<Member>);

/// A name and its value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Member {
    pub(super) name: Box<str>,
    /// The name as JSON, with its colon.
    pub(super) key: Box<[u8]>,
    value: FormatPart,
}

#[derive(Debug, Clone, PartialEq)]
enum FormatPart {
    /// JSON that is equal in all entries.
    Constant(Box<[u8]>),
    Value(AccessValue),
    Object(EntryFormat),
}

/// The kind of `log_format`.
pub(crate) struct FormatKind;

impl Kind for FormatKind {
    type Out = EntryFormat;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<EntryFormat> {
        read_format(node, path, sink, 1)
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        json!({"type": "object"})
    }
}

fn read_format(node: &Node, path: &Path<'_>, sink: &mut Sink, level: usize) -> Option<EntryFormat> {
    let Value::Map(entries) = &node.value else {
        report_expected("a map of names and values", node, path, sink);
        return None;
    };
    let mut members = Vec::with_capacity(entries.len());
    for entry in entries.iter() {
        let path = path.key(&entry.key);
        let value = match &entry.value.value {
            Value::Map(_) if level > LEVELS_MAX => {
                let fault = format!("objects are nested more than {LEVELS_MAX} levels deep; this one is left out");
                sink.warning(entry.value.at, &path, Fault::new(fault));
                continue;
            }
            Value::Map(_) => FormatPart::Object(read_format(&entry.value, &path, sink, level + 1)?),
            Value::Scalar(scalar) => match scalar.text.strip_prefix('$') {
                Some(name) => match access_value(name, true) {
                    Ok(value) => FormatPart::Value(value),
                    // As in APISIX, an unknown variable is left out of entries.
                    Err(fault) => {
                        sink.warning(entry.value.at, &path, fault);
                        continue;
                    }
                },
                None if matches!(scalar.meaning(), Meaning::Text(_)) => constant(&Json::from(&*scalar.text)),
                None => constant(&json_of(&entry.value, &path, sink)?),
            },
            _ => {
                report_expected("a text, or a map of names and values", &entry.value, &path, sink);
                return None;
            }
        };
        let mut key = Vec::new();
        push_json_string(entry.key.as_bytes(), usize::MAX, &mut key);
        key.push(b':');
        members.push(Member { name: (&*entry.key).into(), key: key.into(), value });
    }
    Some(EntryFormat(members))
}

fn constant(json: &Json) -> FormatPart {
    FormatPart::Constant(json.to_string().into_bytes().into())
}

impl EntryFormat {
    /// Whether it is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a value in it is this body: `request_body` or `resp_body`.
    pub(super) fn reads(&self, body: &str) -> bool {
        self.0.iter().any(|member| match &member.value {
            FormatPart::Constant(_) => false,
            FormatPart::Value(value) => {
                matches!(value, AccessValue::Variable(Variable::Recorded(name)) if *name == body)
            }
            FormatPart::Object(format) => format.reads(body),
        })
    }

    /// Whether it has a name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|member| &*member.name == name)
    }

    /// Writes its members, except those that `skips`; each with a comma before it, except the first if `is_first`.
    /// Values that the request does not have are left out, as in APISIX. Returns whether the next one is the first.
    pub(super) fn write(
        &self,
        finished: &FinishedRequest<'_, '_>,
        skips: &dyn Fn(&str) -> bool,
        mut is_first: bool,
        scratch: &mut RecordScratch,
        out: &mut Vec<u8>,
    ) -> bool {
        for member in self.0.iter().filter(|member| !skips(&member.name)) {
            let start = out.len();
            if !is_first {
                out.push(b',');
            }
            out.extend_from_slice(&member.key);
            let is_there = match &member.value {
                FormatPart::Constant(json) => {
                    out.extend_from_slice(json);
                    true
                }
                FormatPart::Value(value) => push(value, finished, scratch, out),
                FormatPart::Object(format) => {
                    out.push(b'{');
                    format.write(finished, &|_| false, true, scratch, out);
                    out.push(b'}');
                    true
                }
            };
            match is_there {
                true => is_first = false,
                false => out.truncate(start),
            }
        }
        is_first
    }
}

/// A finished request.
pub(super) struct FinishedRequest<'a, 'r> {
    pub(super) response: &'a Response<'r>,
    pub(super) record: Record<'a>,
    /// The response's body, if it is decoded later.
    pub(super) coded: Option<CodedBody<'a>>,
}

/// Writes a value like APISIX: most variables of nginx are texts, even if they look like numbers.
fn push(
    value: &AccessValue,
    finished: &FinishedRequest<'_, '_>,
    scratch: &mut RecordScratch,
    out: &mut Vec<u8>,
) -> bool {
    let is_text = matches!(
        value,
        AccessValue::BodyBytesSent
            | AccessValue::Msec
            | AccessValue::Pid
            | AccessValue::BalancerPort
            | AccessValue::UpstreamTries
    );
    match value {
        AccessValue::SentHeader(name) | AccessValue::UpstreamHeader(name) => {
            let Ok(name) = FieldName::sought(name.as_str().as_bytes()) else { return false };
            let response = finished.response;
            let text = match value {
                AccessValue::SentHeader(_) => response.sent_header(name, &mut scratch.value),
                _ => response.node_header(name, &mut scratch.value),
            };
            let Some(text) = text else { return false };
            push_json_string(text, usize::MAX, out);
            true
        }
        AccessValue::Variable(Variable::Recorded("resp_body"))
            if finished.coded.as_ref().is_some_and(|coded| coded.leave(out)) =>
        {
            true
        }
        _ if is_text => {
            let start = out.len();
            out.push(b'"');
            if !push_value(value, &finished.record, usize::MAX, scratch, out) {
                out.truncate(start);
                return false;
            }
            out.push(b'"');
            true
        }
        _ => push_value(value, &finished.record, usize::MAX, scratch, out),
    }
}
