//! The key `headers` of the rewriting plugins: fields that are added, set and removed.
//!
//! Names and constant values are checked when a configuration is read. A value with variables is checked when it is
//! assembled; if it could split the head, it is not sent and the request fails.

use crate::variable_texts::{Groups, Language, Replacement, ReplacementPart, Unknown, group_max, warn_of_unknown};
use std::borrow::Cow;
use stillgate_plugin_api::{Request, Response, Worker};
use stillgate_route::{Lookup, Variable};
use stillgate_schema::text::scalar::Meaning;
use stillgate_schema::{Definitions, Entry, Fault, Json, Kind, Node, Path, Sink, Value as Typed, report_expected};
use stillgate_wire::{EditError, FieldName, FieldValue, OwnedFieldName, OwnedFieldValue, OwnedLine, is_host};

/// Edits of a head, in their order.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct HeaderEdits(Box<[Edit]>);

#[derive(Debug, Clone, PartialEq)]
enum Edit {
    Add(OwnedFieldName, EditValue),
    /// An empty value removes the field.
    Set(OwnedFieldName, EditValue),
    /// Adds a line with a constant value that is not empty.
    AddLine(OwnedLine),
    /// Sets a line with a constant value that is not empty.
    SetLine(OwnedLine),
    /// Sets the `Host` for the node.
    SetHost(EditValue),
    Remove(OwnedFieldName),
}

#[derive(Debug, Clone, PartialEq)]
enum EditValue {
    Constant(OwnedFieldValue),
    Template(Replacement),
}

/// A head that can be edited.
pub(crate) trait EditableHead: Lookup {
    fn add(&mut self, name: FieldName<'_>, value: FieldValue<'_>);
    fn set(&mut self, name: FieldName<'_>, value: FieldValue<'_>);
    fn add_line(&mut self, line: &OwnedLine);
    fn set_line(&mut self, line: &OwnedLine);
    fn set_host(&mut self, value: FieldValue<'_>) -> Result<(), EditError>;
    fn remove(&mut self, name: FieldName<'_>);
}

impl EditableHead for Request<'_> {
    fn add(&mut self, name: FieldName<'_>, value: FieldValue<'_>) {
        self.add_header(name, value);
    }

    fn set(&mut self, name: FieldName<'_>, value: FieldValue<'_>) {
        self.set_header(name, value);
    }

    fn add_line(&mut self, line: &OwnedLine) {
        self.edits.fields.add_line(line);
    }

    fn set_line(&mut self, line: &OwnedLine) {
        Request::set_line(self, line);
    }

    fn set_host(&mut self, value: FieldValue<'_>) -> Result<(), EditError> {
        self.edits.set_host(value.bytes())
    }

    fn remove(&mut self, name: FieldName<'_>) {
        self.remove_header(name);
    }
}

impl EditableHead for Response<'_> {
    fn add(&mut self, name: FieldName<'_>, value: FieldValue<'_>) {
        self.add_header(name, value);
    }

    fn set(&mut self, name: FieldName<'_>, value: FieldValue<'_>) {
        self.set_header(name, value);
    }

    fn add_line(&mut self, line: &OwnedLine) {
        self.edits.fields.add_line(line);
    }

    fn set_line(&mut self, line: &OwnedLine) {
        Response::set_line(self, line);
    }

    // In a response `Host` is an ordinary field.
    fn set_host(&mut self, value: FieldValue<'_>) -> Result<(), EditError> {
        self.set_header(FieldName::constant("Host"), value);
        Ok(())
    }

    fn remove(&mut self, name: FieldName<'_>) {
        self.remove_header(name);
    }
}

impl HeaderEdits {
    /// Applies the edits. At the first invalid value it stops, and keeps the edits before it.
    pub(crate) fn apply(
        &self,
        head: &mut impl EditableHead,
        worker: &Worker,
        groups: &Groups<'_>,
    ) -> Result<(), EditError> {
        if !self.0.iter().any(Edit::is_late) {
            let (mut out, mut buffer) = (Vec::new(), Vec::new());
            return self.0.iter().try_for_each(|edit| edit.apply(head, groups, &mut out, &mut buffer));
        }
        worker.with_buffers(|out, buffer| self.0.iter().try_for_each(|edit| edit.apply(head, groups, out, buffer)))
    }

    /// The highest group number in its values.
    pub(crate) fn group_max(&self) -> usize {
        let of_edit = |edit: &Edit| match edit {
            Edit::Add(_, EditValue::Template(text))
            | Edit::Set(_, EditValue::Template(text))
            | Edit::SetHost(EditValue::Template(text)) => group_max(text.0.iter()),
            _ => 0,
        };
        self.0.iter().map(of_edit).max().unwrap_or(0)
    }

    /// The variables in its values.
    pub(crate) fn each_variable(&self, visit: &mut dyn FnMut(&Variable)) {
        for edit in &self.0 {
            if let Edit::Add(_, EditValue::Template(text))
            | Edit::Set(_, EditValue::Template(text))
            | Edit::SetHost(EditValue::Template(text)) = edit
            {
                text.variables().for_each(&mut *visit);
            }
        }
    }
}

impl Edit {
    /// The edit with its constant parts precomputed.
    fn written(self) -> Edit {
        let is_known = |value: &OwnedFieldValue| !value.value().bytes().is_empty();
        match self {
            Edit::Add(name, EditValue::Constant(value)) if is_known(&value) => {
                Edit::AddLine(OwnedLine::new(name.name(), value.value()))
            }
            Edit::Set(name, EditValue::Constant(value)) if is_known(&value) => {
                Edit::SetLine(OwnedLine::new(name.name(), value.value()))
            }
            edit => edit,
        }
    }

    /// Whether its value is known only with the request.
    fn is_late(&self) -> bool {
        match self {
            Edit::Add(_, value) | Edit::Set(_, value) | Edit::SetHost(value) => matches!(value, EditValue::Template(_)),
            Edit::AddLine(_) | Edit::SetLine(_) | Edit::Remove(_) => false,
        }
    }

    fn apply(
        &self,
        head: &mut impl EditableHead,
        groups: &Groups<'_>,
        out: &mut Vec<u8>,
        buffer: &mut Vec<u8>,
    ) -> Result<(), EditError> {
        match self {
            Edit::Add(name, value) => {
                let value = value.of(head, groups, out, buffer)?;
                if !value.bytes().is_empty() {
                    head.add(name.name(), value);
                }
            }
            Edit::Set(name, value) => {
                let value = value.of(head, groups, out, buffer)?;
                match value.bytes().is_empty() {
                    true => head.remove(name.name()),
                    false => head.set(name.name(), value),
                }
            }
            Edit::AddLine(line) => head.add_line(line),
            Edit::SetLine(line) => head.set_line(line),
            Edit::SetHost(value) => head.set_host(value.of(head, groups, out, buffer)?)?,
            Edit::Remove(name) => head.remove(name.name()),
        }
        Ok(())
    }
}

impl EditValue {
    fn of<'a>(
        &'a self,
        vars: &dyn Lookup,
        groups: &Groups<'_>,
        out: &'a mut Vec<u8>,
        buffer: &mut Vec<u8>,
    ) -> Result<FieldValue<'a>, EditError> {
        match self {
            EditValue::Constant(value) => Ok(value.value()),
            EditValue::Template(template) => {
                out.clear();
                template.write(groups, vars, out, buffer);
                FieldValue::new(out)
            }
        }
    }
}

/// The kind of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Headers {
    /// For a request: `add` is a map.
    OfRequest,
    /// For a response: `add` is a list of `Name: value`.
    OfResponse,
}

impl Kind for Headers {
    type Out = HeaderEdits;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<HeaderEdits> {
        let Typed::Map(entries) = &node.value else {
            report_expected("a map", node, path, sink);
            return None;
        };
        // As in APISIX, the form with `add`, `set` and `remove` may be empty.
        if entries.is_empty() && *self == Headers::OfRequest {
            sink.error(node.at, path, Fault::new("an empty map").hint("name at least one field, or remove the key"));
            return None;
        }
        // A map of fields may contain one named `add`: its value decides.
        let is_action = |entry: &Entry| {
            ACTIONS.contains(&&*entry.key) && matches!(entry.value.value, Typed::Map(_) | Typed::List(_))
        };
        let mut edits = Vec::new();
        match entries.iter().any(is_action) {
            true => self.read_actions(entries, path, sink, &mut edits)?,
            false => self.read_map(entries, path, sink, (Edit::Set, false), &mut edits)?,
        }
        Some(HeaderEdits(edits.into()))
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        let map = |of: Json| serde_json::json!({"type": "object", "minProperties": 1, "additionalProperties": of});
        let value = serde_json::json!({"type": ["string", "number"]});
        let values = map(value.clone());
        let lists = match self {
            Headers::OfRequest => {
                map(serde_json::json!({"anyOf": [value, {"type": "array", "minItems": 1, "items": value}]}))
            }
            Headers::OfResponse => values.clone(),
        };
        let names =
            serde_json::json!({"type": "array", "minItems": 1, "items": {"type": "string", "pattern": "^[^:]+$"}});
        let lines =
            serde_json::json!({"type": "array", "minItems": 1, "items": {"type": "string", "pattern": "^[^:]+:"}});
        let add = if *self == Headers::OfRequest { lists.clone() } else { lines };
        serde_json::json!({"title": "map of names and values, or `add`, `set`, `remove`", "anyOf": [
            {"type": "object", "minProperties": 1, "additionalProperties": false,
                "properties": {"add": add, "set": lists, "remove": names}},
            values,
        ]})
    }
}

/// An empty one leaves the `Host` as it is.
fn is_sent_as_host(value: &OwnedFieldValue) -> bool {
    value.value().bytes().is_empty() || is_host(value.value().bytes())
}

type MakeEdit = fn(OwnedFieldName, EditValue) -> Edit;

/// In the order in which they are applied.
const ACTIONS: [&str; 3] = ["add", "set", "remove"];

impl Headers {
    fn read_actions(&self, entries: &[Entry], path: &Path<'_>, sink: &mut Sink, edits: &mut Vec<Edit>) -> Option<()> {
        if let Some(other) = entries.iter().find(|entry| !ACTIONS.contains(&&*entry.key)) {
            let fault = Fault::new(format!("{:?} beside `add`, `set` and `remove`", &*other.key));
            sink.error(other.key_at, &path.key(&other.key), fault.hint("write it under `set`"));
            return None;
        }
        for action in ACTIONS {
            let Some(entry) = entries.iter().find(|entry| *entry.key == *action) else { continue };
            let path = path.key(action);
            match (action, &entry.value.value) {
                (_, Typed::List(items)) if items.is_empty() => return empty(&entry.value, &path, sink),
                (_, Typed::Map(items)) if items.is_empty() => return empty(&entry.value, &path, sink),
                ("add", Typed::Map(items)) if *self == Headers::OfRequest => {
                    self.read_map(items, &path, sink, (Edit::Add, true), edits)?;
                }
                ("add", Typed::List(items)) if *self == Headers::OfResponse => {
                    self.read_lines(items, &path, sink, edits)?;
                }
                ("set", Typed::Map(items)) => {
                    self.read_map(items, &path, sink, (Edit::Set, *self == Headers::OfRequest), edits)?;
                }
                ("remove", Typed::List(items)) => self.read_names(items, &path, sink, edits)?,
                ("add", _) if *self == Headers::OfResponse => {
                    report_expected("a list of lines such as \"Name: value\"", &entry.value, &path, sink);
                    return None;
                }
                ("remove", _) => {
                    report_expected("a list of names", &entry.value, &path, sink);
                    return None;
                }
                _ => {
                    report_expected("a map of names and values", &entry.value, &path, sink);
                    return None;
                }
            }
        }
        Some(())
    }

    /// `make`: makes an edit from a name and its value, or accepts a list of values.
    fn read_map(
        &self,
        entries: &[Entry],
        path: &Path<'_>,
        sink: &mut Sink,
        (make, has_lists): (MakeEdit, bool),
        edits: &mut Vec<Edit>,
    ) -> Option<()> {
        for entry in entries {
            let path = path.key(&entry.key);
            match &entry.value.value {
                Typed::List(items) if has_lists => self.read_values(entry, items, &path, sink, make, edits)?,
                _ => edits.push(self.read_value(entry, &entry.value, &path, sink, make)?),
            }
        }
        Some(())
    }

    /// Several lines of a name: the first by `make`, the others appended.
    fn read_values(
        &self,
        entry: &Entry,
        items: &[Node],
        path: &Path<'_>,
        sink: &mut Sink,
        make: MakeEdit,
        edits: &mut Vec<Edit>,
    ) -> Option<()> {
        let Some((first, others)) = items.split_first() else { return empty(&entry.value, path, sink) };
        edits.push(self.read_value(entry, first, &path.index(0), sink, make)?);
        for (index, item) in (1..).zip(others) {
            edits.push(self.read_value(entry, item, &path.index(index), sink, Edit::Add)?);
        }
        Some(())
    }

    fn read_value(
        &self,
        entry: &Entry,
        value: &Node,
        path: &Path<'_>,
        sink: &mut Sink,
        make: MakeEdit,
    ) -> Option<Edit> {
        let Some(text) = text_or_number(value) else {
            report_expected("a text or a number", value, path, sink);
            return None;
        };
        match self.edit(&entry.key, &text, make, &mut |error| warn_of_unknown(&error, value.at, path, sink)) {
            Ok(edit) => Some(edit),
            Err(fault) => {
                sink.error(entry.key_at, path, fault);
                None
            }
        }
    }

    fn read_lines(&self, items: &[Node], path: &Path<'_>, sink: &mut Sink, edits: &mut Vec<Edit>) -> Option<()> {
        for (index, item) in items.iter().enumerate() {
            let path = path.index(index);
            let text = text_or_number(item);
            let line = text.as_ref().and_then(|text| text.split_once(':'));
            let Some((name, value)) = line.filter(|(_, value)| !value.trim().is_empty()) else {
                report_expected("a line such as \"Name: value\"", item, &path, sink);
                return None;
            };
            let unknown = &mut |error| warn_of_unknown(&error, item.at, &path, sink);
            // Only blanks are trimmed: a line break in the value is refused like any other control character.
            let name = name.trim_end_matches([' ', '\t']);
            match self.edit(name, value.trim_matches([' ', '\t']), Edit::Add, unknown) {
                Ok(edit) => edits.push(edit),
                Err(fault) => {
                    sink.error(item.at, &path, fault);
                    return None;
                }
            }
        }
        Some(())
    }

    fn read_names(&self, items: &[Node], path: &Path<'_>, sink: &mut Sink, edits: &mut Vec<Edit>) -> Option<()> {
        for (index, item) in items.iter().enumerate() {
            let path = path.index(index);
            let Some(text) = text_or_number(item) else {
                report_expected("the name of a field", item, &path, sink);
                return None;
            };
            let name = OwnedFieldName::new(text.as_bytes()).map_err(|error| Fault::new(error.to_string()));
            match name.and_then(|name| self.no_host(&text).map(|()| name)) {
                Ok(name) => edits.push(Edit::Remove(name)),
                Err(fault) => {
                    sink.error(item.at, &path, fault);
                    return None;
                }
            }
        }
        Some(())
    }

    fn edit(&self, name: &str, text: &str, make: MakeEdit, unknown: &mut Unknown<'_>) -> Result<Edit, Fault> {
        let field = OwnedFieldName::new(name.as_bytes()).map_err(|error| Fault::new(error.to_string()))?;
        let edit = make(field, value(text, unknown)?);
        match edit {
            Edit::Set(_, EditValue::Constant(value)) if self.is_of_node(name) && !is_sent_as_host(&value) => {
                Err(Fault::new(format!("{text:?} is not a host"))
                    .hint("write a name or an address, perhaps with a port"))
            }
            Edit::Set(_, value) if self.is_of_node(name) => Ok(Edit::SetHost(value)),
            Edit::Add(..) => self.no_host(name).map(|()| edit.written()),
            edit => Ok(edit.written()),
        }
    }

    /// Each request has one `Host`, which routes and nodes agree on: a second one is not possible, and it cannot be
    /// removed.
    fn no_host(&self, name: &str) -> Result<(), Fault> {
        match self.is_of_node(name) {
            true => {
                Err(Fault::new("a request has exactly one Host").hint("write it under `set`, or as the key `host`"))
            }
            false => Ok(()),
        }
    }

    fn is_of_node(&self, name: &str) -> bool {
        *self == Headers::OfRequest && name.eq_ignore_ascii_case("host")
    }
}

fn empty<T>(node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<T> {
    sink.error(node.at, path, Fault::new("the map is empty").hint("name at least one field, or remove the key"));
    None
}

/// A fraction is kept as it is written.
pub(crate) fn text_or_number(node: &Node) -> Option<Cow<'_, str>> {
    let Typed::Scalar(scalar) = &node.value else { return None };
    match (scalar.as_text(), scalar.meaning()) {
        (Some(text), _) => Some(text.into()),
        (None, Meaning::Int(number)) => Some(number.to_string().into()),
        (None, Meaning::HugeInt | Meaning::Float(_)) => Some((&*scalar.text).into()),
        _ => None,
    }
}

fn value(text: &str, unknown: &mut Unknown<'_>) -> Result<EditValue, Fault> {
    let template = Replacement::parse(text, Language::Template, unknown)?;
    let refused = |error: EditError| Fault::new(error.to_string());
    if let Some(constant) = template.constant() {
        return OwnedFieldValue::new(constant).map(EditValue::Constant).map_err(refused);
    }
    for part in &template.0 {
        // Blanks at an end of a part are not at an end of the value: nothing is trimmed here.
        if matches!(part, ReplacementPart::Text(text) if text.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t'))
        {
            return Err(refused(EditError::Value));
        }
    }
    Ok(EditValue::Template(template))
}

// Keys that hold constant header fields: names and values, without variables.

/// Header fields, in their written order.
pub(crate) type Fields = Box<[(OwnedFieldName, OwnedFieldValue)]>;

/// A map of names and values with at least one entry.
pub(crate) struct FieldMap;

impl Kind for FieldMap {
    type Out = Fields;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Fields> {
        let Typed::Map(entries) = &node.value else {
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
