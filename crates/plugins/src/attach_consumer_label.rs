//! attach-consumer-label: labels of the consumer in header fields of the request.
//!
//! If APISIX leaves a field as the client has sent it (no consumer is attached, or it has no labels at all), it is
//! removed here: a node must be able to trust the field.

use stillgate_plugin_api::{Compile, Define, Flow, Phase, Phases, Plugin, Request};
use stillgate_schema::{
    Definitions, Fault, Json, Kind, Node, Path, Sink, TEXT, Value, kind::read, object, report_expected,
};
use stillgate_wire::{FieldValue, OwnedFieldName};

object! {
    /// Sends nodes the labels of the consumer.
    pub struct AttachConsumerLabelKeys {
        /// Header fields, each with the label that it gets: `X-Department: $department`.
        headers: Vec<(OwnedFieldName, String)> = LabelsOfHeaders => required;
    }
}

/// A map of header fields and labels.
struct LabelsOfHeaders;

impl Kind for LabelsOfHeaders {
    type Out = Vec<(OwnedFieldName, String)>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Self::Out> {
        let Value::Map(entries) = &node.value else {
            report_expected("a map of header fields such as {X-Department: $department}", node, path, sink);
            return None;
        };
        if entries.is_empty() {
            sink.error(node.at, path, Fault::new("the map is empty").hint("name one, or remove the plugin"));
            return None;
        }
        let headers = entries.iter().filter_map(|entry| {
            let path = path.key(&entry.key);
            let label = read(&TEXT, &entry.value, &path, sink)?;
            let fault = match (OwnedFieldName::new(entry.key.as_bytes()), label.strip_prefix('$')) {
                (Err(error), _) => Fault::new(format!("{:?}: {error}", entry.key)),
                (Ok(_), _) if entry.key.eq_ignore_ascii_case("host") => {
                    Fault::new("the node's host cannot be a label").hint("use another header field")
                }
                (Ok(_), None | Some("")) => Fault::new(format!("{label:?} does not name a label"))
                    .hint("write a dollar and the name: $department"),
                (Ok(name), Some(label)) => return Some((name, label.to_owned())),
            };
            sink.error(entry.value.at, &path, fault);
            None
        });
        Some(headers.collect())
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        let label = serde_json::json!({"type": "string", "pattern": "^\\$."});
        serde_json::json!({"type": "object", "minProperties": 1, "additionalProperties": label})
    }
}

/// attach-consumer-label with one configuration.
pub(crate) struct AttachConsumerLabel(Box<[(OwnedFieldName, String)]>);

impl Define for AttachConsumerLabel {
    type Keys = AttachConsumerLabelKeys;
    const NAME: &'static str = "attach-consumer-label";
    const PRIORITY: i32 = 2399;
    const PHASES: Phases = Phases::of(&[Phase::BeforeProxy]);

    fn compile(keys: AttachConsumerLabelKeys, _: &mut Compile<'_>) -> Option<AttachConsumerLabel> {
        Some(AttachConsumerLabel(keys.headers.into()))
    }
}

impl Plugin for AttachConsumerLabel {
    fn before_proxy(&self, request: &mut Request<'_>) -> Flow {
        let consumer = request.consumer.map(|attached| request.consumers.of(attached));
        for (header, label) in &self.0 {
            let value = consumer.and_then(|consumer| consumer.label(label));
            match value.map(|value| FieldValue::new(value.as_bytes())) {
                Some(Ok(value)) => request.set_header(header.name(), value),
                _ => request.remove_header(header.name()),
            }
        }
        Flow::Continue
    }

    fn reads_consumer(&self) -> bool {
        true
    }
}
