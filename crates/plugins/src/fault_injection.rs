//! `fault-injection`: delays requests, or answers them, to test how clients cope with that.

use crate::header_edits::text_or_number;
use crate::number::Decimal;
use crate::rules::any_is_true;
use crate::{random, variable_texts};
use std::sync::Arc;
use std::time::Duration;
use stillgate_plugin_api::{Answer, Compile, Define, Filter, Flow, Phase, Phases, Plugin, Request, Template};
use stillgate_route::vars::Expr;
use stillgate_route::{PathError, Variable};
use stillgate_schema::kind::list;
use stillgate_schema::{
    At, BodyVars, Definitions, Fault, Json, Kind, LocatedKind, Node, Path, Sink, TEXT, Value, int, map, object,
    report_expected,
};
use stillgate_wire::{FieldValue, Fields, OwnedFieldName};

object! {
    /// Delays requests, or answers them.
    pub(crate) struct FaultInjectionKeys {
        /// How requests are answered.
        abort: Abort = map::<Abort>() => optional;
        /// How long requests wait before they continue, or are answered.
        delay: Delay = map::<Delay>() => optional;
        any_of { "there is nothing to inject": abort | delay; }
    }
}

object! {
    /// An answer to requests.
    pub(crate) struct Abort {
        /// The status of the answer.
        http_status: u16 = int(200, 599) => required;
        /// The body, a text with variables; without it the answer is an error page.
        body: At<String> = LocatedKind(TEXT) => optional;
        /// Header fields of the answer: a map of names to texts with variables, or to numbers.
        headers: Vec<AbortHeader> = Headers => optional;
        /// Percentage of requests that are answered; all without it.
        percentage: u8 = int(0, 100) => optional;
        /// Lists of conditions as in `vars` of a route: a request is answered if all conditions of one list hold.
        vars: Vec<At<Expr>> = list(LocatedKind(BodyVars)) => optional;
    }
}

object! {
    /// A delay of requests.
    pub(crate) struct Delay {
        /// How long a request waits, in seconds.
        duration: f64 = Decimal { min: 0.0, max: DELAY_S_MAX } => required;
        /// Percentage of requests that wait; all without it.
        percentage: u8 = int(0, 100) => optional;
        /// Lists of conditions as in `vars` of a route: a request waits if all conditions of one list hold.
        vars: Vec<At<Expr>> = list(LocatedKind(BodyVars)) => optional;
    }
}

/// Longest delay.
const DELAY_S_MAX: f64 = 3600.0;
/// Most lists of conditions.
const VARS_MAX: usize = 20;

/// A header field of the answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AbortHeader {
    name: OwnedFieldName,
    value: Template,
}

/// A map of names to texts or numbers.
struct Headers;

impl Kind for Headers {
    type Out = Vec<AbortHeader>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Vec<AbortHeader>> {
        let entries = match &node.value {
            Value::Map(entries) if !entries.is_empty() => entries,
            _ => {
                report_expected("a map of header fields", node, path, sink);
                return None;
            }
        };
        let mut headers = Vec::with_capacity(entries.len());
        for entry in entries.iter() {
            let path = path.key(&entry.key);
            let text = text_or_number(&entry.value);
            let Some(text) = text else {
                report_expected("a text or a number", &entry.value, &path, sink);
                continue;
            };
            let name = OwnedFieldName::new(entry.key.as_bytes()).map_err(|error| error.to_string());
            let value = FieldValue::new(text.as_bytes()).map_err(|error| error.to_string());
            let template = variable_texts::template_with_body(&text, entry.value.at, &path, sink);
            match (name, value.map(|_| template)) {
                (Ok(name), Ok(value)) => headers.push(AbortHeader { name, value }),
                (Err(error), _) => sink.error(entry.key_at, &path, Fault::new(error)),
                (_, Err(error)) => sink.error(entry.value.at, &path, Fault::new(error)),
            }
        }
        Some(headers)
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        serde_json::json!({"type": "object", "minProperties": 1, "additionalProperties": {"type": ["string", "number"]}})
    }
}

/// The plugin.
pub(crate) struct FaultInjection {
    abort: Option<(RequestSelector, Arc<AbortReply>)>,
    delay: Option<(RequestSelector, Duration)>,
}

/// Selects requests.
struct RequestSelector {
    percentage: Option<u8>,
    /// `None`: all requests.
    any_of: Option<Box<[Filter]>>,
}

struct AbortReply {
    status: u16,
    body: Option<Template>,
    headers: Box<[AbortHeader]>,
}

impl Define for FaultInjection {
    type Keys = FaultInjectionKeys;
    const NAME: &'static str = "fault-injection";
    const PRIORITY: i32 = 11000;
    const PHASES: Phases = Phases::of(&[Phase::Rewrite]);

    fn compile(keys: FaultInjectionKeys, cx: &mut Compile<'_>) -> Option<FaultInjection> {
        let abort = match keys.abort {
            None => None,
            Some(abort) => {
                let when = RequestSelector::compile("abort", abort.percentage, abort.vars, cx)?;
                let path = cx.path.key("abort");
                let body = abort
                    .body
                    .map(|body| variable_texts::template_with_body(&body.value, body.at, &path.key("body"), cx.sink));
                let headers = abort.headers.unwrap_or_default().into();
                Some((when, Arc::new(AbortReply { status: abort.http_status, body, headers })))
            }
        };
        let delay = match keys.delay {
            None => None,
            Some(delay) => {
                let when = RequestSelector::compile("delay", delay.percentage, delay.vars, cx)?;
                Some((when, Duration::from_secs_f64(delay.duration)))
            }
        };
        Some(FaultInjection { abort, delay })
    }
}

impl RequestSelector {
    fn compile(
        key: &str,
        percentage: Option<u8>,
        vars: Option<Vec<At<Expr>>>,
        cx: &mut Compile<'_>,
    ) -> Option<RequestSelector> {
        let Some(vars) = vars else { return Some(RequestSelector { percentage, any_of: None }) };
        let path = cx.path.key(key);
        let path = path.key("vars");
        if vars.len() > VARS_MAX {
            cx.sink.error(cx.at, &path, Fault::new(format!("more than {VARS_MAX} lists of conditions")));
            return None;
        }
        let mut any_of = Vec::with_capacity(vars.len());
        for (index, At { at, value }) in vars.into_iter().enumerate() {
            match Filter::new(value) {
                Ok(filter) => any_of.push(filter),
                Err(error) => {
                    cx.sink.error(at, &path.index(index), Fault::new(error.to_string()));
                    return None;
                }
            }
        }
        Some(RequestSelector { percentage, any_of: Some(any_of.into()) })
    }

    fn evaluate_conditions(&self, request: &Request<'_>) -> Result<bool, PathError> {
        self.any_of.as_ref().map_or(Ok(true), |filters| any_is_true(filters, request))
    }

    /// Decides by chance.
    fn hits(&self) -> bool {
        self.percentage.is_none_or(|percentage| random::below(100) < u64::from(percentage))
    }
}

impl Plugin for FaultInjection {
    fn rewrite(&self, request: &mut Request<'_>) -> Flow {
        // For the original request: changes during the delay make no difference.
        let is_met = |when: Option<&RequestSelector>| when.map_or(Ok(false), |when| when.evaluate_conditions(request));
        let aborts = is_met(self.abort.as_ref().map(|(when, _)| when));
        let delays = is_met(self.delay.as_ref().map(|(when, _)| when));
        let (Ok(aborts), Ok(delays)) = (aborts, delays) else { return Flow::Answer(Answer::page(400)) };
        let delay = self.delay.as_ref().filter(|(when, _)| delays && when.hits());
        let abort = self.abort.as_ref().filter(|(when, _)| aborts && when.hits()).map(|(_, abort)| abort.clone());
        match delay.map(|(_, time)| *time).filter(|time| !time.is_zero()) {
            None => abort_flow(abort.as_deref(), request),
            Some(time) => {
                Flow::wait(request.worker.io().sleep(time), move |(), request| abort_flow(abort.as_deref(), request))
            }
        }
    }

    fn each_variable(&self, visit: &mut dyn FnMut(&Variable)) {
        let whens = self.abort.iter().map(|(when, _)| when).chain(self.delay.iter().map(|(when, _)| when));
        let conditions = whens.filter_map(|when| when.any_of.as_ref()).flatten();
        conditions.for_each(|condition| condition.each_variable(visit));
        if let Some((_, abort)) = &self.abort {
            let texts = abort.body.iter().chain(abort.headers.iter().map(|header| &header.value));
            texts.flat_map(Template::variables).for_each(visit);
        }
    }
}

fn abort_flow(abort: Option<&AbortReply>, request: &mut Request<'_>) -> Flow {
    abort.map_or(Flow::Continue, |abort| Flow::Answer(abort.answer(request)))
}

impl AbortReply {
    fn answer(&self, request: &mut Request<'_>) -> Answer {
        let (mut text, mut buffer) = (Vec::new(), Vec::new());
        let mut has_type = false;
        for header in &self.headers {
            text.clear();
            header.value.write(request, &mut text, &mut buffer);
            // A path can contain bytes that a value may not.
            let Ok(value) = FieldValue::new(&text) else { return Answer::page(500) };
            has_type |= header.name.name().bytes().eq_ignore_ascii_case(b"content-type");
            request.response.set(&Fields::default(), &[], header.name.name(), value);
        }
        let mut answer = match &self.body {
            None => Answer::page(self.status),
            Some(body) => {
                text.clear();
                body.write(request, &mut text, &mut buffer);
                Answer::owned(self.status, text)
            }
        };
        if has_type {
            answer.content_type = None;
        }
        answer
    }
}
