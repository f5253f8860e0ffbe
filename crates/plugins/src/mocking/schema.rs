//! Generates data from a JSON Schema: from `type`, `properties`, `items` and `example`, as APISIX reads them.
//!
//! Values of variables in examples are escaped when they are inserted, so that a request cannot change the structure of
//! the data.

use crate::random;
use crate::unknown::{Unknown, warn};
use std::io::Write;
use stillgate_plugin::{Request, Template};
use stillgate_route::Lookup;
use stillgate_schema::{Definitions, Fault, Json, Kind, Node, Path, Sink, json_of};

/// A schema for generated data.
pub(crate) type Schema = Box<[(Box<str>, Property)]>;

/// The schema of one value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Property {
    /// Its example; `None`: random letters.
    Text(Option<Template>),
    Number(Option<f64>),
    Integer(Option<i64>),
    Boolean(Option<bool>),
    /// One to three items of this schema.
    Array(Box<Property>),
    Object(Schema),
}

/// The type of the key.
pub(crate) struct SchemaKind;

impl Kind for SchemaKind {
    type Out = Schema;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Schema> {
        let json = json_of(node, path, sink)?;
        match properties(&json, &mut |error| warn(&error, node.at, path, sink)) {
            Ok(schema) => Some(schema),
            Err(what) => {
                sink.error(node.at, path, Fault::new(what));
                None
            }
        }
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        serde_json::json!({"type": "object"})
    }
}

fn properties(schema: &Json, unknown: &mut Unknown<'_>) -> Result<Schema, String> {
    let Some(schema) = schema.as_object() else { return Err("expected a JSON Schema of an object".to_owned()) };
    let Some(properties) = schema.get("properties").and_then(Json::as_object) else { return Ok(Schema::default()) };
    let read = |(name, schema): (&String, &Json)| match property(schema, unknown) {
        Ok(property) => Some(Ok((name.as_str().into(), property?))),
        Err(what) => Some(Err(format!("{name}: {what}"))),
    };
    properties.iter().filter_map(read).collect()
}

/// `None`: an array without a schema of its items, which is left out.
fn property(schema: &Json, unknown: &mut Unknown<'_>) -> Result<Option<Property>, String> {
    let example = schema.get("example");
    let Some(kind) = schema.get("type").and_then(Json::as_str) else {
        return Err("a `type` is missing; write string, number, integer, boolean, array or object".to_owned());
    };
    Ok(Some(match kind.to_ascii_lowercase().as_str() {
        "string" => Property::Text(example.and_then(Json::as_str).map(|text| Template::parse_lenient(text, unknown))),
        "number" => Property::Number(example.and_then(Json::as_f64)),
        "integer" => Property::Integer(example.and_then(Json::as_f64).map(|number| number.floor() as i64)),
        "boolean" => Property::Boolean(example.and_then(Json::as_bool)),
        "object" => Property::Object(properties(schema, unknown)?),
        "array" => match schema.get("items") {
            None => return Ok(None),
            Some(items) => return Ok(property(items, unknown)?.map(|item| Property::Array(Box::new(item)))),
        },
        other => return Err(format!("the type {other:?} cannot be made up")),
    }))
}

/// Writes generated data.
pub(super) struct MockWriter<'a, 'r> {
    request: &'a Request<'r>,
    text: Vec<u8>,
    buffer: Vec<u8>,
    /// The output so far.
    pub(super) out: Vec<u8>,
}

impl<'a, 'r> MockWriter<'a, 'r> {
    pub(super) fn new(request: &'a Request<'r>) -> MockWriter<'a, 'r> {
        MockWriter { request, text: Vec::new(), buffer: Vec::new(), out: Vec::new() }
    }

    pub(super) fn json(&mut self, schema: &Schema) {
        self.out.push(b'{');
        for (index, (name, property)) in schema.iter().enumerate() {
            if index > 0 {
                self.out.push(b',');
            }
            self.json_text(name);
            self.out.push(b':');
            self.json_value(property);
        }
        self.out.push(b'}');
    }

    fn json_value(&mut self, property: &Property) {
        match property {
            Property::Text(example) => {
                let text = self.make_text(example.as_ref());
                self.json_text(&text);
            }
            Property::Object(schema) => self.json(schema),
            Property::Array(item) => {
                self.out.push(b'[');
                for index in 0..1 + random::below(3) {
                    if index > 0 {
                        self.out.push(b',');
                    }
                    self.json_value(item);
                }
                self.out.push(b']');
            }
            plain => self.plain(plain),
        }
    }

    fn json_text(&mut self, text: &str) {
        serde_json::to_writer(&mut self.out, text).expect("writing to a vector does not fail");
    }

    /// Writes one element `data`, as APISIX's library does.
    pub(super) fn xml(&mut self, schema: &Schema) {
        self.out.extend_from_slice(b"<data>\n");
        self.xml_elements(schema, 1);
        self.out.extend_from_slice(b"</data>\n");
    }

    fn xml_elements(&mut self, schema: &Schema, depth: usize) {
        for (name, property) in schema {
            self.xml_element(name, property, depth);
        }
    }

    /// Items of an array are elements with its name.
    fn xml_element(&mut self, name: &str, property: &Property, depth: usize) {
        let indent = 2 * depth;
        match property {
            Property::Array(item) => {
                for _ in 0..1 + random::below(3) {
                    self.xml_element(name, item, depth);
                }
                return;
            }
            Property::Object(schema) => {
                self.put(format_args!("{:indent$}<{name}>\n", ""));
                self.xml_elements(schema, depth + 1);
                self.put(format_args!("{:indent$}</{name}>\n", ""));
                return;
            }
            _ => self.put(format_args!("{:indent$}<{name}>", "")),
        }
        match property {
            Property::Text(example) => {
                let text = self.make_text(example.as_ref());
                crate::xml::escape(text.as_bytes(), &mut self.out);
            }
            plain => self.plain(plain),
        }
        self.put(format_args!("</{name}>\n"));
    }

    fn plain(&mut self, property: &Property) {
        match property {
            Property::Number(example) => {
                let number = example.unwrap_or_else(|| random::share() * 10_000.0);
                self.put(format_args!("{number}"));
            }
            Property::Integer(example) => {
                let number = example.unwrap_or_else(|| 1 + random::below(10_000) as i64);
                self.put(format_args!("{number}"));
            }
            Property::Boolean(example) => {
                let flag = example.unwrap_or_else(|| random::below(2) == 1);
                self.put(format_args!("{flag}"));
            }
            Property::Text(_) | Property::Array(_) | Property::Object(_) => {}
        }
    }

    fn make_text(&mut self, example: Option<&Template>) -> String {
        self.text.clear();
        match example {
            Some(example) => {
                example.write(self.request as &dyn Lookup, &mut self.text, &mut self.buffer);
            }
            None => {
                let count = 1 + random::below(10);
                self.text.extend((0..count).map(|_| b'a' + random::below(26) as u8));
            }
        }
        String::from_utf8_lossy(&self.text).into_owned()
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        self.out.write_fmt(text).expect("writing to a vector does not fail");
    }
}
