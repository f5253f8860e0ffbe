//! `body-transformer`: makes the bodies of requests and responses anew, by a template that is filled with what the old one says.
//!
//! A body is read and a template filled in time that grows with the body, so longer ones are done on a thread that serves no
//! requests. Both have bounds of their own: [`Budget`] for what the body says, `Effort` for what the template makes of it. What of
//! APISIX's templates is Lua is refused when the configuration is read.

mod effort;
mod expression;
mod input;
mod multipart;
mod template;
mod value;
mod xml;

use crate::body_fields::{CONTENT_ENCODING, CONTENT_TYPE, forget_old_body, forget_old_request_body};
use crate::decoding::{Decoder, Decoding};
use crate::unknown::warn;
use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use input::Format;
pub(crate) use input::{add, form};
use serde_json::{Map, Value as Json, json};
use std::sync::Arc;
use stillgate_plugin::body::FILTER_BYTES_MAX;
use stillgate_plugin::flow::{Output, Work};
use stillgate_plugin::json::Budget;
use stillgate_plugin::{
    Answer, BodyError, BodyFilter, Compile, Define, Flow, Phase, Phases, Plugin, Request, Response,
};
use stillgate_route::{Lookup, Variable};
use stillgate_schema::{At, Choice, Fault, Flag, Located, TEXT, int, map, object};
use template::{Data, Template};

object! {
    /// Makes bodies anew by templates.
    pub(crate) struct BodyTransformerKeys {
        /// How the bodies of requests are made.
        request: TransformKeys = map() => optional;
        /// How the bodies of responses are made.
        response: TransformKeys = map() => optional;
        /// Bytes that the body of a request may have; a longer one is answered 413. APISIX's default is 67108864.
        max_req_body_size: usize = int(1, BODY_BYTES_MAX as i64) => default(FILTER_BYTES_MAX);
        /// Bytes that the body of a response may have; a longer one becomes a 502. APISIX's default is 67108864.
        max_resp_body_size: usize = int(1, BODY_BYTES_MAX as i64) => default(FILTER_BYTES_MAX);
        any_of {
            "there is nothing to transform": request | response;
        }
    }
}

/// Most that the bounds can be.
const BODY_BYTES_MAX: usize = 1024 * 1024 * 1024;
/// How much longer a new body can be than an old one may.
const GROWTH_MAX: usize = 4;
/// A new body can be that long in any case.
const NEW_BYTES_MIN: usize = 4 * 1024 * 1024;

object! {
    /// How a body is made.
    pub(crate) struct TransformKeys {
        /// What the old body is: `json`, `xml`, `encoded` (a form), `multipart` (a form of parts), `args` (the query is read in its
        /// place) or `plain`. If the key is absent, `Content-Type` says; a GET request is `args`.
        input_format: Format = FORMAT => optional;
        /// The template.
        template: At<String> = Located(TEXT) => required;
        /// Whether the template is written in Base64. One that is anyway need not say so.
        template_is_base64: bool = Flag => default(false);
    }
}

const FORMAT: Choice<Format> = Choice {
    words: &[
        ("json", Format::Json),
        ("xml", Format::Xml),
        ("encoded", Format::Encoded),
        ("args", Format::Args),
        ("plain", Format::Plain),
        ("multipart", Format::Multipart),
    ],
    unbuilt: &[],
};

/// The plugin.
pub(crate) struct BodyTransformer {
    request: Option<Arc<Transform>>,
    response: Option<Arc<Transform>>,
}

/// One direction.
struct Transform {
    /// `None`: by `Content-Type`.
    format: Option<Format>,
    template: Template,
    /// The old body may have so many.
    body_bytes_max: usize,
}

impl Define for BodyTransformer {
    type Keys = BodyTransformerKeys;
    const NAME: &'static str = "body-transformer";
    const PRIORITY: i32 = 1080;
    const PHASES: Phases = Phases::of(&[Phase::Rewrite, Phase::HeaderFilter, Phase::BodyFilter]);

    fn compile(keys: BodyTransformerKeys, cx: &mut Compile<'_>) -> Option<BodyTransformer> {
        let mut transform = |keys: Option<TransformKeys>, name: &'static str, bytes_max: usize| match keys {
            None => Some(None),
            Some(keys) => Transform::compile(keys, name, bytes_max, cx).map(|transform| Some(Arc::new(transform))),
        };
        Some(BodyTransformer {
            request: transform(keys.request, "request", keys.max_req_body_size)?,
            response: transform(keys.response, "response", keys.max_resp_body_size)?,
        })
    }
}

impl Transform {
    fn compile(
        keys: TransformKeys,
        name: &'static str,
        body_bytes_max: usize,
        cx: &mut Compile<'_>,
    ) -> Option<Transform> {
        let At { at, value: text } = keys.template;
        let is_form = matches!(keys.input_format, Some(Format::Encoded | Format::Args));
        let decoded = if is_form && !keys.template_is_base64 { None } else { of_base64(&text) };
        let within = cx.path.key(name);
        let path = within.key("template");
        let unknown = &mut |error| warn(&error, at, &path, cx.sink);
        match Template::parse(decoded.as_deref().unwrap_or(&text), unknown) {
            Ok(template) => Some(Transform { format: keys.input_format, template, body_bytes_max }),
            Err(message) => {
                cx.sink.error(at, &path, Fault::new(message));
                None
            }
        }
    }

    /// The values of the template's variables.
    fn variables(&self, vars: &dyn Lookup) -> Vec<Option<Vec<u8>>> {
        let mut buffer = Vec::new();
        let value = |variable: &Variable| vars.value(variable, &mut buffer).map(<[u8]>::to_vec);
        self.template.variables.iter().map(value).collect()
    }

    /// The new body; the error is a status, and what is wrong.
    fn make(&self, format: Option<Format>, old: &Old, direction: &str) -> Result<Vec<u8>, (u16, String)> {
        let fields = match format {
            None => Json::Object(Map::new()),
            Some(format) => format
                .read(&old.body, &old.query, &old.content_type, &mut Budget::of_body(self.body_bytes_max))
                .map_err(|error| (400, format!("{direction} body decode: {error}")))?,
        };
        let data = Data { fields: &fields, body: &old.body, variables: &old.variables };
        let bytes_max = self.body_bytes_max.saturating_mul(GROWTH_MAX).max(NEW_BYTES_MIN);
        self.template
            .render(&data, bytes_max)
            .map_err(|error| (503, format!("{direction} template rendering: {error}")))
    }
}

/// What a new body is made of.
struct Old {
    body: Vec<u8>,
    query: Vec<u8>,
    content_type: Vec<u8>,
    variables: Vec<Option<Vec<u8>>>,
}

/// The text behind Base64, with padding or without; `None`: it is none.
fn of_base64(text: &str) -> Option<String> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    LENIENT.decode(text.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok()).filter(|text| !text.is_empty())
}

/// A body up to this length is transformed by the worker: it takes about 50 µs.
const SHORT_BYTES_MAX: usize = 8 * 1024;

impl Plugin for BodyTransformer {
    fn rewrite(&self, request: &mut Request<'_>) -> Flow {
        let Some(transform) = self.request.clone() else { return Flow::Continue };
        let is_get = request.facts.method() == b"GET";
        let mut buffer = Vec::new();
        let content_type = request.header(CONTENT_TYPE, &mut buffer);
        let format = match transform.format {
            _ if is_get => Some(Format::Args),
            Some(format) => Some(format),
            None => Format::of(content_type),
        };
        let content_type = content_type.unwrap_or_default().to_vec();
        Flow::body(transform.body_bytes_max, move |request| {
            let (query, variables) = (request.facts.query().unwrap_or_default().to_vec(), transform.variables(request));
            let old = Old { body: request.take_whole_body(), query, content_type, variables };
            // Without a body there is nothing to read, but in a query.
            let format = format.filter(|format| !old.body.is_empty() || *format == Format::Args);
            if old.body.len() <= SHORT_BYTES_MAX && !transform.template.has_loops {
                return finish(transform.make(format, &old, "request"), request);
            }
            Flow::offload(
                move || transform.make(format, &old, "request"),
                |made, request| match made {
                    Ok(made) => finish(made, request),
                    Err(full) => full.into(),
                },
            )
        })
    }

    fn header_filter(&self, response: &mut Response<'_>) {
        let Some(transform) = self.response.clone() else { return };
        let mut buffer = Vec::new();
        let content_type = response.header(CONTENT_TYPE, &mut buffer).unwrap_or_default().to_vec();
        let format = transform.format.or_else(|| Format::of(Some(&content_type)));
        let coding = Decoding::of(response.header(CONTENT_ENCODING, &mut buffer));
        let old = Old {
            body: Vec::new(),
            query: response.facts.query().unwrap_or_default().to_vec(),
            content_type,
            variables: transform.variables(response),
        };
        forget_old_body(response);
        let decoder = Decoder::new(coding, transform.body_bytes_max);
        let task = Arc::new(Task { transform, format, is_own: !response.is_of_node });
        response.body.filter(Box::new(Transforming { task, decoder, old: Some(old), made: None, held_bytes: 0 }));
    }

    fn filters_responses(&self) -> bool {
        self.response.is_some()
    }
}

/// Puts the new body in place of the old one.
fn finish(made: Result<Vec<u8>, (u16, String)>, request: &mut Request<'_>) -> Flow {
    match made {
        Ok(body) => {
            forget_old_request_body(request);
            request.body.replace_with(body);
            Flow::Continue
        }
        Err((status, message)) => Flow::Answer(Answer::json(status, &json!({"message": message}).to_string())),
    }
}

/// How the body of a response is made.
struct Task {
    transform: Arc<Transform>,
    format: Option<Format>,
    /// Of an answer of our own, which stays as it is where it cannot be transformed: it may say that a request could not.
    is_own: bool,
}

impl Task {
    fn make(&self, old: Old) -> Result<Vec<u8>, BodyError> {
        match self.transform.make(self.format, &old, "response") {
            Ok(body) => Ok(body),
            Err(_) if self.is_own => Ok(old.body),
            Err(_) => Err(BodyError::Malformed),
        }
    }
}

/// The body of a response, which is made when all of it is here.
struct Transforming {
    task: Arc<Task>,
    decoder: Decoder,
    /// Until the end.
    old: Option<Old>,
    /// What is to be made, from the end on.
    made: Option<Old>,
    /// Of the old body, as long as the new one is being made of it.
    held_bytes: usize,
}

impl BodyFilter for Transforming {
    fn piece(&mut self, piece: &[u8], _: &mut Vec<u8>) -> Result<(), BodyError> {
        self.decoder.piece(piece)
    }

    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        let Some(mut old) = self.old.take() else { return Ok(()) };
        old.body = self.decoder.end()?;
        if old.body.len() > SHORT_BYTES_MAX || self.task.transform.template.has_loops {
            self.held_bytes = old.body.capacity();
            self.made = Some(old);
            return Ok(());
        }
        out.extend_from_slice(&self.task.make(old)?);
        Ok(())
    }

    fn held_bytes(&self) -> usize {
        self.decoder.held_bytes() + self.held_bytes
    }

    fn work(&mut self) -> Option<Work> {
        let (old, task) = (self.made.take()?, self.task.clone());
        Some(Box::new(move || -> Output { Box::new(task.make(old)) }))
    }

    fn worked(&mut self, result: Output, out: &mut Vec<u8>) -> Result<(), BodyError> {
        self.held_bytes = 0;
        let made = result.downcast::<Result<Vec<u8>, BodyError>>().map_err(|_| BodyError::Malformed)?;
        out.extend_from_slice(&(*made)?);
        Ok(())
    }
}
