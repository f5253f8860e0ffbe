//! `request-validation`: admits requests whose header and body are valid against JSON Schemas.
//!
//! The validated JSON body is what the node gets: it is serialised again, with defaults filled in, so that a name that
//! occurs twice cannot mean two things. Long validations are done on a thread that does not serve requests.

mod check;
mod schema;

use crate::body_fields::CONTENT_TYPE;
use crate::body_transformer::{add_field, form};
use check::Bad;
use schema::Schema;
use serde_json::{Map, Value as Json};
use std::sync::Arc;
use stillgate_plugin_api::body::FILTER_BYTES_MAX;
use stillgate_plugin_api::json::{self, Budget};
use stillgate_plugin_api::{Answer, Compile, Define, Flow, Phase, Phases, Plugin, Request};
use stillgate_schema::{
    At, CompileBudget, Definitions, Fault, Kind, LocatedKind, Node, Path, Sink, Text, int, json_of, object, text,
};
use stillgate_wire::FieldName;

object! {
    /// Admits valid requests.
    pub(crate) struct RequestValidationKeys {
        /// The JSON Schema of the header: an object of texts, or of lists of texts for fields with several lines. Names
        /// are compared in any case.
        header_schema: At<Json> = LocatedKind(SchemaKind) => optional;
        /// The JSON Schema of the body.
        body_schema: At<Json> = LocatedKind(SchemaKind) => optional;
        /// The status for invalid requests.
        rejected_code: u16 = int(200, 599) => default(400);
        /// The body of the answer. The default describes the error.
        rejected_msg: String = MESSAGE => optional;
        /// Most bytes of a body; a request with a longer one is invalid. APISIX's default is 67108864.
        max_req_body_size: usize = int(1, BODY_BYTES_MAX as i64) => default(FILTER_BYTES_MAX);
        any_of {
            "there is nothing to validate": header_schema | body_schema;
        }
    }
}

/// Upper bound of that limit.
const BODY_BYTES_MAX: usize = 1024 * 1024 * 1024;
/// A longer body is validated on a thread that does not serve requests.
const SHORT_BYTES_MAX: usize = 8 * 1024;
/// Most steps of a validation on a worker; one that needs more starts again elsewhere. A step takes about 20 ns.
const SHORT_STEPS_MAX: u64 = 5_000;
/// Most steps of a validation, plus the same number for each byte of a body.
const STEPS_MAX: u64 = 1_000_000;
const BYTE_STEPS_MAX: u64 = 10;
/// Length of `rejected_msg` in characters, as in APISIX.
const MESSAGE_CHARACTERS: std::ops::RangeInclusive<usize> = 1..=256;

const MESSAGE: Text<String> =
    text("a text of 1 to 256 characters", |text| match MESSAGE_CHARACTERS.contains(&text.chars().count()) {
        true => Ok(text.to_owned()),
        false => Err(Fault::new("the message has from 1 to 256 characters").hint("shorten it, or remove the key")),
    })
    .shown();

const FORM: &[u8] = b"application/x-www-form-urlencoded";

/// The type of a key with a JSON Schema.
struct SchemaKind;

impl Kind for SchemaKind {
    type Out = Json;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Json> {
        let json = json_of(node, path, sink)?;
        if json.is_object() {
            return Some(json);
        }
        sink.error(node.at, path, Fault::new("expected a JSON Schema of an object"));
        None
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        serde_json::json!({"type": "object"})
    }
}

/// The plugin; shared with the requests that wait.
pub(crate) struct RequestValidation(Arc<RequestValidationConfig>);

struct RequestValidationConfig {
    header: Option<Schema>,
    body: Option<Schema>,
    status: u16,
    message: Option<Arc<[u8]>>,
    body_bytes_max: usize,
}

impl Define for RequestValidation {
    type Keys = RequestValidationKeys;
    const NAME: &'static str = "request-validation";
    const PRIORITY: i32 = 2800;
    const PHASES: Phases = Phases::of(&[Phase::Rewrite]);

    fn compile(keys: RequestValidationKeys, cx: &mut Compile<'_>) -> Option<RequestValidation> {
        let mut compile = |json: Option<At<Json>>, key: &str| match json {
            None => Some(None),
            Some(At { at, value }) => Schema::compile(&value, &cx.sink.budget())
                .map_err(|what| cx.sink.error(at, &cx.path.key(key), Fault::new(what)))
                .map(Some)
                .ok(),
        };
        Some(RequestValidation(Arc::new(RequestValidationConfig {
            header: compile(keys.header_schema, "header_schema")?,
            body: compile(keys.body_schema, "body_schema")?,
            status: keys.rejected_code,
            message: keys.rejected_msg.map(|text| text.into_bytes().into()),
            body_bytes_max: keys.max_req_body_size,
        })))
    }
}

impl Plugin for RequestValidation {
    fn rewrite(&self, request: &mut Request<'_>) -> Flow {
        let Some(schema) = &self.0.header else {
            return RequestValidationConfig::wait_for_body(self.0.clone(), request);
        };
        let header = header(request, &schema.names);
        match schema.check(&header, SHORT_STEPS_MAX) {
            Ok(()) => RequestValidationConfig::go_on(self.0.clone(), request),
            Err(Bad::OutOfSteps) => {
                let (inner, after) = (self.0.clone(), self.0.clone());
                let work = move || inner.header.as_ref().map_or(Ok(()), |schema| schema.check(&header, STEPS_MAX));
                Flow::offload(work, move |checked, request| match checked {
                    Ok(Ok(())) => RequestValidationConfig::go_on(after, request),
                    Ok(Err(why)) => after.reject(Some(why)),
                    Err(full) => full.into(),
                })
            }
            Err(why) => self.0.reject(Some(why)),
        }
    }
}

/// The node's body, if it differs from the client's.
type ValidatedBody = Result<Option<Vec<u8>>, Bad>;

impl RequestValidationConfig {
    /// The header is good. A node must not take another field for one that was validated. A property with a `_` may be either.
    fn go_on(inner: Arc<RequestValidationConfig>, request: &mut Request<'_>) -> Flow {
        let (fields, head) = (&request.facts.request.fields, request.facts.head);
        let names = inner.header.iter().flat_map(|schema| &schema.names).filter(|name| !name.contains('_'));
        for name in names.filter_map(|name| FieldName::new(name.as_bytes()).ok()) {
            request.edits.fields.remove_lookalikes(fields, head, name);
        }
        RequestValidationConfig::wait_for_body(inner, request)
    }

    fn wait_for_body(inner: Arc<RequestValidationConfig>, request: &Request<'_>) -> Flow {
        if inner.body.is_none() {
            return Flow::Continue;
        }
        // The node would decide whether the body is a form.
        if request.edits.fields.values(&request.facts.request.fields, request.facts.head, CONTENT_TYPE).nth(1).is_some()
        {
            return inner.reject(Some(Bad::Value("duplicated Content-Type header".to_owned())));
        }
        Flow::body_or(inner.body_bytes_max, inner.answer(None), move |request| {
            let body = request.whole_body().unwrap_or_default();
            if body.is_empty() {
                return inner.reject(None);
            }
            let mut buffer = Vec::new();
            let media_type = request.header(CONTENT_TYPE, &mut buffer).and_then(|value| value.get(..FORM.len()));
            let is_form = media_type.is_some_and(|start| start.eq_ignore_ascii_case(FORM));
            if body.len() <= SHORT_BYTES_MAX {
                match inner.check_body(body, is_form, SHORT_STEPS_MAX) {
                    Err(Bad::OutOfSteps) => {}
                    checked => return inner.finish(checked, request),
                }
            }
            let after = inner.clone();
            let steps = STEPS_MAX + BYTE_STEPS_MAX * body.len() as u64;
            let work = move |body: &[u8]| inner.check_body(body, is_form, steps);
            request.offload_with_body(work, move |checked, request| match checked {
                Ok(checked) => after.finish(checked, request),
                Err(full) => full.into(),
            })
        })
    }

    fn check_body(&self, body: &[u8], is_form: bool, steps: u64) -> ValidatedBody {
        let Some(schema) = &self.body else { return Ok(None) };
        let mut budget = Budget::of_body(self.body_bytes_max);
        if is_form {
            let fields = form(body, &mut budget).map_err(|error| Bad::Value(error.to_string()))?;
            return schema.check(&fields, steps).map(|()| None);
        }
        let mut value = json::read(body, &mut budget).map_err(|error| Bad::Value(error.to_string()))?;
        schema.check(&value, steps)?;
        schema.fill(&mut value, steps, &mut budget)?;
        Ok(Some(value.to_string().into_bytes()))
    }

    fn finish(&self, checked: ValidatedBody, request: &mut Request<'_>) -> Flow {
        match checked {
            Ok(Some(body)) => request.body.replace_with(body),
            Ok(None) => {}
            Err(why) => return self.reject(Some(why)),
        }
        Flow::Continue
    }

    fn reject(&self, why: Option<Bad>) -> Flow {
        Flow::Answer(self.answer(why))
    }

    fn answer(&self, why: Option<Bad>) -> Answer {
        match (&self.message, why) {
            (Some(message), _) => Answer::shared(self.status, message.clone()),
            (None, None) => Answer::page(self.status),
            (None, Some(why)) => Answer::owned(self.status, reason(why).into_bytes()),
        }
    }
}

/// Validates a value against a schema, and fills in its defaults: for functions, which have no thread of their own for
/// it.
pub fn check_json(schema: &Json, mut value: Json) -> Result<Json, String> {
    let schema = Schema::compile(schema, &CompileBudget::default())?;
    schema.check(&value, SHORT_STEPS_MAX).map_err(reason)?;
    schema.fill(&mut value, SHORT_STEPS_MAX, &mut Budget::of_body(0)).map_err(reason)?;
    Ok(value)
}

/// Describes the errors of a schema.
pub(crate) fn check_schema(schema: &Json) -> Result<(), String> {
    Schema::compile(schema, &CompileBudget::default()).map(drop)
}

fn reason(why: Bad) -> String {
    match why {
        Bad::Value(message) => message,
        Bad::OutOfSteps => "validation takes too many steps".to_owned(),
        Bad::TooDeep => "validation goes too deep".to_owned(),
    }
}

/// The header as an object. A field has the name that the schema uses, or else that in lower case.
fn header(request: &Request<'_>, names: &[String]) -> Json {
    let mut fields = Map::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    request.edits.fields.each(&request.facts.request.fields, request.facts.head, &mut |name, value| {
        add_field(&mut fields, text(name).to_ascii_lowercase(), Json::String(text(value)));
    });
    let mut spelled: Vec<(&String, String, Json)> = Vec::new();
    for name in names.iter().filter(|name| !fields.contains_key(*name)) {
        // OpenResty looks fields up like this.
        let lower = name.to_ascii_lowercase();
        let key = if fields.contains_key(&lower) { lower } else { lower.replace('_', "-") };
        if let Some(value) = fields.get(&key) {
            spelled.push((name, key, value.clone()));
        }
    }
    for (name, key, value) in spelled {
        if !names.contains(&key) {
            fields.remove(&key);
        }
        fields.insert(name.clone(), value);
    }
    Json::Object(fields)
}
