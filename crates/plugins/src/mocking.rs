//! `mocking`: answers instead of a node, with an example or with data generated from a JSON Schema.

use crate::header_edits::{FieldMap, Fields};
use crate::random;
use crate::variable_texts::{self, Unknown, warn_of_unknown};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use stillgate_plugin_api::{Answer, AnswerBody, Compile, Define, Flow, Phase, Phases, Plugin, Request, Template};
use stillgate_route::Lookup;
use stillgate_schema::{
    At, Definitions, Fault, Flag, Json, Kind, LocatedKind, Node, Path, Sink, TEXT, Text, int, json_of, object, text,
};
use stillgate_wire::{EditError, FieldName, FieldValue, OwnedFieldName, OwnedFieldValue};

object! {
    /// Answers requests instead of a node.
    pub(crate) struct MockingKeys {
        /// The body, with variables. It takes precedence over `response_schema`.
        response_example: At<String> = LocatedKind(TEXT) => optional;
        /// A JSON Schema of an object, from which each answer is generated: `type`, `properties`, `items` and `example`
        /// count.
        response_schema: Schema = SchemaKind => optional;
        /// The status.
        response_status: u16 = int(200, 599) => default(200);
        /// `Content-Type`: `application/json`, `application/xml`, `text/plain`, `text/html` or `text/xml`, with parameters.
        content_type: ContentType = CONTENT_TYPE => default(default_content_type());
        /// Further header fields of the response. Values may contain variables.
        response_headers: Fields = FieldMap => default(Fields::default());
        /// Whether the answer has the field `x-mock-by`.
        with_mock_header: bool = Flag => default(true);
        /// Delay of the answer, in seconds.
        delay: u32 = int(0, DELAY_S_MAX as i64) => default(0);
        any_of {
            "there is nothing to answer with": response_example | response_schema;
        }
    }
}

/// Upper bound of `delay`.
const DELAY_S_MAX: u32 = 3600;

/// The value of `Content-Type`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ContentType {
    value: OwnedFieldValue,
    form: MockFormat,
}

/// The format of generated data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MockFormat {
    Json,
    Xml,
    /// `text/html` has no format for data: the body is empty, as in APISIX.
    None,
}

const CONTENT_TYPE: Text<ContentType> = text("a content type", |text| {
    let media_type = text.split(';').next().unwrap_or_default().trim();
    let form = match media_type {
        "application/json" | "text/plain" => MockFormat::Json,
        "application/xml" | "text/xml" => MockFormat::Xml,
        "text/html" => MockFormat::None,
        _ => {
            let hint = "write application/json, application/xml, text/plain, text/html or text/xml";
            return Err(Fault::new("unsupported content type!").hint(hint));
        }
    };
    let value = OwnedFieldValue::new(text.as_bytes()).map_err(|error| Fault::new(error.to_string()))?;
    Ok(ContentType { value, form })
});

fn default_content_type() -> ContentType {
    let value = OwnedFieldValue::new(b"application/json;charset=utf8").expect("a value without control characters");
    ContentType { value, form: MockFormat::Json }
}

/// The plugin.
pub(crate) struct Mocking {
    delay_s: u32,
    mock: Arc<Mock>,
}

/// The content of the answer.
struct Mock {
    status: u16,
    fields: Fields,
    /// Added to those and to the fields of other plugins.
    added: Box<[(OwnedFieldName, Template)]>,
    content: Content,
}

enum Content {
    Constant(Arc<[u8]>),
    Template(Template),
    MadeUp(Schema, MockFormat),
}

impl Define for Mocking {
    type Keys = MockingKeys;
    const NAME: &'static str = "mocking";
    const PRIORITY: i32 = 10900;
    const PHASES: Phases = Phases::of(&[Phase::Access]);

    fn compile(keys: MockingKeys, cx: &mut Compile<'_>) -> Option<Mocking> {
        let content = match (keys.response_example, keys.response_schema) {
            (Some(example), _) => {
                let path = cx.path.key("response_example");
                let template = variable_texts::template(&example.value, example.at, &path, cx.sink);
                match template.constant() {
                    Some(text) => Content::Constant(text.into()),
                    None => Content::Template(template),
                }
            }
            (None, schema) => Content::MadeUp(schema?, keys.content_type.form),
        };
        let own =
            |name: &'static str, value: OwnedFieldValue| Some((OwnedFieldName::new(name.as_bytes()).ok()?, value));
        let mut fields = vec![own("Content-Type", keys.content_type.value)?];
        if keys.with_mock_header {
            fields.push(own("x-mock-by", OwnedFieldValue::new(MADE_BY.as_bytes()).ok()?)?);
        }
        let path = cx.path.key("response_headers");
        let template = |(name, value): &(OwnedFieldName, OwnedFieldValue)| {
            let text = String::from_utf8_lossy(value.value().bytes());
            (name.clone(), variable_texts::template(&text, cx.at, &path, cx.sink))
        };
        let (status, added) = (keys.response_status, keys.response_headers.iter().map(template).collect());
        let mock = Arc::new(Mock { status, fields: fields.into(), added, content });
        Some(Mocking { delay_s: keys.delay, mock })
    }
}

/// The value of `x-mock-by`, which clients see: without a version.
const MADE_BY: &str = "Stillgate";

impl Plugin for Mocking {
    fn access(&self, request: &mut Request<'_>) -> Flow {
        if self.delay_s == 0 {
            return self.mock.answer(request);
        }
        let mock = self.mock.clone();
        let time = Duration::from_secs(self.delay_s.into());
        Flow::wait(request.worker.io().sleep(time), move |(), request| mock.answer(request))
    }
}

impl Mock {
    fn answer(&self, request: &mut Request<'_>) -> Flow {
        for (name, value) in &self.fields {
            set(request, name.name(), value.value());
        }
        if self.add_fields(request).is_err() {
            // The page does not have the mock's type.
            request.response.clear();
            return Flow::Answer(Answer::page(500));
        }
        let body = match &self.content {
            Content::Constant(text) => AnswerBody::Shared(text.clone()),
            Content::Template(template) => AnswerBody::Owned(request.worker.with_buffers(|text, buffer| {
                template.write(request, text, buffer);
                text.clone()
            })),
            Content::MadeUp(schema, form) => {
                let mut writer = MockWriter::new(request);
                match form {
                    MockFormat::Json => writer.json(schema),
                    MockFormat::Xml => writer.xml(schema),
                    MockFormat::None => {}
                }
                AnswerBody::Owned(writer.out)
            }
        };
        Flow::Answer(Answer { status: self.status, content_type: None, body })
    }

    /// Adds fields without replacing any, except `Content-Type`, which a response has only once.
    fn add_fields(&self, request: &mut Request<'_>) -> Result<(), EditError> {
        let worker = request.worker;
        worker.with_buffers(|text, buffer| {
            self.added.iter().try_for_each(|(name, value)| {
                text.clear();
                value.write(request, text, buffer);
                let (name, value) = (name.name(), FieldValue::new(text)?);
                match name.is(b"content-type") {
                    true => set(request, name, value),
                    false => request.response.add(name, value),
                }
                Ok(())
            })
        })
    }
}

fn set(request: &mut Request<'_>, name: FieldName<'_>, value: FieldValue<'_>) {
    request.response.set(&stillgate_wire::Fields::default(), &[], name, value);
}

// Generates data from a JSON Schema: from `type`, `properties`, `items` and `example`, as APISIX reads them.
//
// Values of variables in examples are escaped when they are inserted, so that a request cannot change the structure of
// the data.

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
        match properties(&json, &mut |error| warn_of_unknown(&error, node.at, path, sink)) {
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
struct MockWriter<'a, 'r> {
    request: &'a Request<'r>,
    text: Vec<u8>,
    buffer: Vec<u8>,
    /// The output so far.
    out: Vec<u8>,
}

impl<'a, 'r> MockWriter<'a, 'r> {
    fn new(request: &'a Request<'r>) -> MockWriter<'a, 'r> {
        MockWriter { request, text: Vec::new(), buffer: Vec::new(), out: Vec::new() }
    }

    fn json(&mut self, schema: &Schema) {
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
    fn xml(&mut self, schema: &Schema) {
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
                crate::encoding::escape_xml(text.as_bytes(), &mut self.out);
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
