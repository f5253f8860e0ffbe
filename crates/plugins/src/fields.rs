//! Keys that hold constant header fields: names and values, without variables.

use crate::header_edits::text_or_number;
use stillgate_schema::{Definitions, Fault, Json, Kind, Node, Path, Sink, Value, report_expected};
use stillgate_wire::{OwnedFieldName, OwnedFieldValue};

/// Header fields, in their written order.
pub(crate) type Fields = Box<[(OwnedFieldName, OwnedFieldValue)]>;

/// A map of names and values with at least one entry.
pub(crate) struct FieldMap;

impl Kind for FieldMap {
    type Out = Fields;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Fields> {
        let Value::Map(entries) = &node.value else {
            report_expected("a map of names and values", node, path, sink);
            return None;
        };
        if entries.is_empty() {
            sink.error(node.at, path, Fault::new("an empty map").hint("name at least one field, or remove the key"));
            return None;
        }
        let mut fields = Vec::with_capacity(entries.len());
        for entry in entries.iter() {
            let path = path.key(&entry.key);
            let Some(text) = text_or_number(&entry.value) else {
                report_expected("a text or a number", &entry.value, &path, sink);
                return None;
            };
            let name = OwnedFieldName::new(entry.key.as_bytes());
            match name.and_then(|name| OwnedFieldValue::new(text.as_bytes()).map(|value| (name, value))) {
                Ok(field) => fields.push(field),
                Err(error) => {
                    sink.error(entry.key_at, &path, Fault::new(error.to_string()));
                    return None;
                }
            }
        }
        Some(fields.into())
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        serde_json::json!({"type": "object", "minProperties": 1,
            "additionalProperties": {"type": ["string", "number"]}})
    }
}
