//! Lists of resources, with the position of each.

use serde_json::{Value as Json, json};
use stillgate_schema::description::Definitions;
use stillgate_schema::kind::{Kind, read, report_expected};
use stillgate_schema::object::{Object, map, report_missing_key};
use stillgate_schema::text::diagnostic::{Path, Position, Sink};
use stillgate_schema::text::tree::{Node, Value};

/// One item of a resource list that was a map, and where it is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Resource<T> {
    pub(crate) index: usize,
    pub(crate) at: Position,
    /// As it is written.
    pub(crate) node: Node,
    pub(crate) keys: T,
}

/// A list of resources. Unlike `List` it keeps the positions of items that cannot be read, and may be left empty, as
/// APISIX's examples do.
pub(crate) struct Resources<T> {
    needs_id: bool,
    item: stillgate_schema::object::Map<T>,
}

pub(crate) const fn resources<T: Object>(needs_id: bool) -> Resources<T> {
    Resources { needs_id, item: map::<T>() }
}

impl<T: Object> Resources<T> {
    pub(crate) fn read_item(&self, index: usize, item: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Resource<T>> {
        sink.budget().begin_resource();
        if let Value::Map(entries) = &item.value
            && self.needs_id
            && !entries.iter().any(|e| &*e.key == "id")
        {
            report_missing_key("id", item.at, path, sink);
        }
        let keys = read(&self.item, item, path, sink)?;
        Some(Resource { index, at: item.at, node: item.clone(), keys })
    }
}

impl<T: Object> Kind for Resources<T> {
    type Out = Vec<Resource<T>>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Vec<Resource<T>>> {
        if node.is_null() {
            return Some(Vec::new());
        }
        let Value::List(items) = &node.value else {
            report_expected("a list", node, path, sink);
            return None;
        };
        let mut resources = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            resources.extend(self.read_item(index, item, &path.index(index), sink));
        }
        Some(resources)
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        let mut item = self.item.schema(definitions);
        if self.needs_id {
            item["required"] = json!(["id"]);
        }
        json!({"type": ["array", "null"], "items": item})
    }
}
