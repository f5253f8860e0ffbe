//! `mocking`: answers instead of a node, with an example or with data generated from a JSON Schema.

mod schema;

use crate::fields::{FieldMap, Fields};
use crate::unknown;
use schema::{MockWriter, Schema, SchemaKind};
use std::sync::Arc;
use std::time::Duration;
use stillgate_plugin::{Answer, AnswerBody, Compile, Define, Flow, Phase, Phases, Plugin, Request, Template};
use stillgate_schema::{At, Fault, Flag, LocatedKind, TEXT, Text, int, object, text};
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
                let template = unknown::template(&example.value, example.at, &path, cx.sink);
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
            (name.clone(), unknown::template(&text, cx.at, &path, cx.sink))
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
