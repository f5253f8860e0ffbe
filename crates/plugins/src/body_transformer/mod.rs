//! `body-transformer`: replaces the bodies of requests and responses by templates filled with the old body's fields.
//!
//! Parsing a body and filling a template take time in proportion to the body, so longer ones are processed on a thread
//! that does not serve requests. Both have limits of their own: [`Budget`] for the parsed body, `Effort` for the filled
//! template. Lua code in APISIX's templates is refused when the configuration is read.

mod expression;
mod input;
mod template;
mod xml;

pub(crate) use input::{add_field, form};

use crate::body_fields::{CONTENT_ENCODING, CONTENT_TYPE, forget_old_body, forget_old_request_body};
use crate::decoding::{BodyCoding, Decoder};
use crate::variable_texts::warn_of_unknown;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::{Engine, alphabet};
use input::InputFormat;
use serde_json::{Map, Value as Json, json};
use std::sync::Arc;
use stillgate_plugin_api::body::FILTER_BYTES_MAX;
use stillgate_plugin_api::json::Budget;
use stillgate_plugin_api::work::{Output, Work};
use stillgate_plugin_api::{
    Answer, BodyError, BodyFilter, Compile, Define, Flow, Phase, Phases, Plugin, Request, Response,
};
use stillgate_route::{Lookup, Variable};
use stillgate_schema::{At, Choice, Fault, Flag, LocatedKind, TEXT, int, map, object};
use template::{BodyTemplate, Data};

object! {
    /// Replaces bodies by filled templates.
    pub(crate) struct BodyTransformerKeys {
        /// How the bodies of requests are transformed.
        request: TransformKeys = map() => optional;
        /// How the bodies of responses are transformed.
        response: TransformKeys = map() => optional;
        /// Most bytes of a request's body; a longer one is answered 413. APISIX's default is 67108864.
        max_req_body_size: usize = int(1, BODY_BYTES_MAX as i64) => default(FILTER_BYTES_MAX);
        /// Most bytes of a response's body; a longer one becomes a 502. APISIX's default is 67108864.
        max_resp_body_size: usize = int(1, BODY_BYTES_MAX as i64) => default(FILTER_BYTES_MAX);
        any_of {
            "there is nothing to transform": request | response;
        }
    }
}

/// Upper bound of the limits.
const BODY_BYTES_MAX: usize = 1024 * 1024 * 1024;
/// Largest ratio of a new body's length to the limit of the old one.
const GROWTH_MAX: usize = 4;
/// A new body can always have this length.
const NEW_BYTES_MIN: usize = 4 * 1024 * 1024;

object! {
    /// How a body is transformed.
    pub(crate) struct TransformKeys {
        /// The format of the old body: `json`, `xml`, `encoded` (a form), `multipart` (a multipart form), `args` (the
        /// query is read instead) or `plain`. Without the key it follows from `Content-Type`; a GET request is `args`.
        input_format: InputFormat = FORMAT => optional;
        /// The template.
        template: At<String> = LocatedKind(TEXT) => required;
        /// Whether the template is written in Base64. Base64 is also detected without this key.
        template_is_base64: bool = Flag => default(false);
    }
}

const FORMAT: Choice<InputFormat> = Choice {
    words: &[
        ("json", InputFormat::Json),
        ("xml", InputFormat::Xml),
        ("encoded", InputFormat::Encoded),
        ("args", InputFormat::Args),
        ("plain", InputFormat::Plain),
        ("multipart", InputFormat::Multipart),
    ],
    unbuilt: &[],
};

/// The plugin.
pub(crate) struct BodyTransformer {
    request: Option<Arc<Transform>>,
    response: Option<Arc<Transform>>,
}

/// The transformation of one direction.
struct Transform {
    /// `None`: it follows from `Content-Type`.
    format: Option<InputFormat>,
    template: BodyTemplate,
    /// Most bytes of the old body.
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
        let is_form = matches!(keys.input_format, Some(InputFormat::Encoded | InputFormat::Args));
        let decoded = if is_form && !keys.template_is_base64 { None } else { of_base64(&text) };
        let within = cx.path.key(name);
        let path = within.key("template");
        let unknown = &mut |error| warn_of_unknown(&error, at, &path, cx.sink);
        match BodyTemplate::parse(decoded.as_deref().unwrap_or(&text), unknown) {
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

    /// Makes the new body; the error is a status, and a description.
    fn make(&self, format: Option<InputFormat>, old: &SourceBody, direction: &str) -> Result<Vec<u8>, (u16, String)> {
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

/// The input for a new body.
struct SourceBody {
    body: Vec<u8>,
    query: Vec<u8>,
    content_type: Vec<u8>,
    variables: Vec<Option<Vec<u8>>>,
}

/// Decodes Base64, with padding or without; `None`: it is invalid.
fn of_base64(text: &str) -> Option<String> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    LENIENT.decode(text.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok()).filter(|text| !text.is_empty())
}

/// Up to this length a body is transformed by the worker: it takes about 50 µs.
const SHORT_BYTES_MAX: usize = 8 * 1024;

impl Plugin for BodyTransformer {
    fn rewrite(&self, request: &mut Request<'_>) -> Flow {
        let Some(transform) = self.request.clone() else { return Flow::Continue };
        let is_get = request.facts.method() == b"GET";
        let mut buffer = Vec::new();
        let content_type = request.header(CONTENT_TYPE, &mut buffer);
        let format = match transform.format {
            _ if is_get => Some(InputFormat::Args),
            Some(format) => Some(format),
            None => InputFormat::of(content_type),
        };
        let content_type = content_type.unwrap_or_default().to_vec();
        Flow::body(transform.body_bytes_max, move |request| {
            let (query, variables) = (request.query().unwrap_or_default().to_vec(), transform.variables(request));
            let old = SourceBody { body: request.take_whole_body(), query, content_type, variables };
            // Without a body nothing can be parsed, except the query.
            let format = format.filter(|format| !old.body.is_empty() || *format == InputFormat::Args);
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
        let format = transform.format.or_else(|| InputFormat::of(Some(&content_type)));
        let coding = BodyCoding::of(response.header(CONTENT_ENCODING, &mut buffer));
        let old = SourceBody {
            body: Vec::new(),
            query: response.facts.query().unwrap_or_default().to_vec(),
            content_type,
            variables: transform.variables(response),
        };
        forget_old_body(response);
        let decoder = Decoder::new(coding, transform.body_bytes_max);
        let task = Arc::new(Task { transform, format, is_own: !response.is_of_node });
        response.body.filter(Box::new(TransformingBody { task, decoder, old: Some(old), made: None, held_bytes: 0 }));
    }

    fn filters_responses(&self) -> bool {
        self.response.is_some()
    }
}

/// Replaces the old body by the new one.
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

/// The transformation of a response's body.
struct Task {
    transform: Arc<Transform>,
    format: Option<InputFormat>,
    /// A local reply, which is kept if it cannot be transformed: it may report that a request could not.
    is_own: bool,
}

impl Task {
    fn make(&self, old: SourceBody) -> Result<Vec<u8>, BodyError> {
        match self.transform.make(self.format, &old, "response") {
            Ok(body) => Ok(body),
            Err(_) if self.is_own => Ok(old.body),
            Err(_) => Err(BodyError::Malformed),
        }
    }
}

/// The body of a response, which is transformed when it is complete.
struct TransformingBody {
    task: Arc<Task>,
    decoder: Decoder,
    /// The old body, until its end.
    old: Option<SourceBody>,
    /// The input of the transformation, from the end of the body on.
    made: Option<SourceBody>,
    /// Bytes of the old body, while it is being transformed.
    held_bytes: usize,
}

impl BodyFilter for TransformingBody {
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

    fn on_work_done(&mut self, result: Output, out: &mut Vec<u8>) -> Result<(), BodyError> {
        self.held_bytes = 0;
        let made = result.downcast::<Result<Vec<u8>, BodyError>>().map_err(|_| BodyError::Malformed)?;
        out.extend_from_slice(&(*made)?);
        Ok(())
    }
}
