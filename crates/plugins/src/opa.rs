//! `opa`: asks an Open Policy Agent about each request, which goes on where the policy allows it.
//!
//! Different from APISIX: a consumer's plugins and credentials are not part of its document, documents of routes and services
//! are there only where the plugin is a route's, a service's or a plugin config's, and only `true` allows a request.

use crate::server_call::{FIELD_NAME, keepalive, url};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value as Json, json};
use std::sync::Arc;
use std::time::Duration;
use stillgate_plugin_api::query::decoded;
use stillgate_plugin_api::{
    Answer, Call, CallError, Compile, Define, Flow, Keep, Phase, Phases, Plugin, PluginLevel, Reply, Request, Url,
};
use stillgate_schema::kind::unplaced;
use stillgate_schema::{At, Fault, Flag, LocatedKind, TEXT, Text, int, object, some, text};
use stillgate_wire::{FieldName, FieldValue, OwnedFieldName};

object! {
    /// Asks an Open Policy Agent whether a request may go on.
    pub(crate) struct OpaKeys {
        /// Where it is: `http://HOST:PORT`.
        host: At<String> = LocatedKind(TEXT.shown()) => required;
        /// The path of the decision below `/v1/data/`, such as `http/authz`.
        policy: String = POLICY => required;
        /// Whether the certificate of an `https` server is verified.
        ssl_verify: bool = Flag => default(true);
        /// Milliseconds that connecting, sending, and the whole answer may take, each.
        timeout: u32 = int(1, 60_000) => default(3_000);
        /// Whether connections are kept.
        keepalive: bool = Flag => default(true);
        /// Milliseconds that a connection may be idle.
        keepalive_timeout: u32 = int(1_000, 3_600_000) => default(60_000);
        /// Idle connections of each worker.
        keepalive_pool: u32 = int(1, 256) => default(5);
        /// Header fields of the decision that the node gets. One that the decision has not is taken out of the request.
        send_headers_upstream: Vec<OwnedFieldName> = some(FIELD_NAME) => optional;
        /// The input has the route as it is written, without its upstream.
        with_route: At<bool> = LocatedKind(Flag) => default(unplaced(false));
        /// The input has the route's service as it is written, without its upstream.
        with_service: At<bool> = LocatedKind(Flag) => default(unplaced(false));
        /// The input has the consumer: its name, group, labels, and the id of its credential.
        with_consumer: bool = Flag => default(false);
    }
}

const POLICY: Text<String> = text("the path of a policy", |text| {
    let is_good = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#');
    match !text.is_empty() && text.bytes().all(is_good) {
        true => Ok(text.trim_start_matches('/').to_owned()),
        false => Err(Fault::new(format!("{text:?} is not a path of a policy")).hint("write it as in `http/authz`")),
    }
})
.shown();

/// The plugin; shared with the requests that wait.
pub(crate) struct Opa(Arc<OpaConfig>);

struct OpaConfig {
    url: Url,
    target: Box<str>,
    timeout: Duration,
    keep: Option<Keep>,
    upstream_headers: Box<[OwnedFieldName]>,
    has_route: bool,
    has_service: bool,
    has_consumer: bool,
}

impl Define for Opa {
    type Keys = OpaKeys;
    const NAME: &'static str = "opa";
    const PRIORITY: i32 = 2001;
    const PHASES: Phases = Phases::of(&[Phase::Access]);

    fn compile(keys: OpaKeys, cx: &mut Compile<'_>) -> Option<Opa> {
        let has_documents =
            matches!(cx.origin.level, PluginLevel::Route | PluginLevel::Service | PluginLevel::PluginConfig);
        for (flag, key) in [(&keys.with_route, "with_route"), (&keys.with_service, "with_service")] {
            if flag.value && !has_documents {
                let fault = Fault::new("there are no documents of routes and services here");
                let hint = "write the plugin in routes, services or plugin configs";
                cx.sink.error(flag.at, &cx.path.key(key), fault.hint(hint));
                return None;
            }
        }
        let url = url(&keys.host, keys.ssl_verify, "host", cx)?;
        let target = format!("{}/v1/data/{}", url.target.trim_end_matches('/'), keys.policy).into();
        Some(Opa(Arc::new(OpaConfig {
            url,
            target,
            timeout: Duration::from_millis(u64::from(keys.timeout)),
            keep: keepalive(keys.keepalive, keys.keepalive_timeout, keys.keepalive_pool),
            upstream_headers: keys.send_headers_upstream.unwrap_or_default().into(),
            has_route: keys.with_route.value,
            has_service: keys.with_service.value,
            has_consumer: keys.with_consumer,
        })))
    }
}

const CONTENT_TYPE: FieldName<'static> = FieldName::constant("Content-Type");

impl Plugin for Opa {
    fn access(&self, request: &mut Request<'_>) -> Flow {
        let mut call = Call::new(&self.0.url.origin, b"POST", self.0.target.as_bytes());
        (call.timeout, call.keep) = (self.0.timeout, self.0.keep);
        call.header(CONTENT_TYPE, FieldValue::constant("application/json"));
        let mut input = input(request);
        self.0.add_documents(&mut input, request);
        call.set_body(json!({ "input": input }).to_string().into_bytes());
        let inner = self.0.clone();
        Flow::wait(request.call(call), move |reply, request| inner.decide(reply, request))
    }

    fn wants_documents(&self) -> bool {
        self.0.has_route || self.0.has_service
    }

    fn reads_consumer(&self) -> bool {
        self.0.has_consumer
    }
}

impl OpaConfig {
    fn add_documents(&self, input: &mut Json, request: &Request<'_>) {
        let documents = request.facts.route.and_then(|route| route.documents);
        if let Some(documents) = documents.filter(|_| self.has_route) {
            input["route"] = documents.route.clone();
        }
        if let Some(service) = documents.filter(|_| self.has_service).and_then(|documents| documents.service.as_ref()) {
            input["service"] = service.clone();
        }
        if let Some(attached) = request.consumer.filter(|_| self.has_consumer) {
            let consumer = request.consumers.of(attached);
            let labels: Map<String, Json> =
                consumer.labels.iter().map(|(name, text)| (name.to_string(), Json::from(&**text))).collect();
            let credential = attached.credential.and_then(|place| consumer.credentials.get(usize::from(place)));
            input["consumer"] = json!({
                "username": &*consumer.name,
                "consumer_name": &*consumer.name,
                "group_id": consumer.group.as_deref(),
                "credential_id": credential.map(|id| &**id),
                "labels": labels,
            });
        }
    }

    fn decide(&self, reply: Result<Reply, CallError>, request: &mut Request<'_>) -> Flow {
        let Ok(reply) = reply else { return Flow::Answer(Answer::page(403)) };
        // What comes with an error is not a decision.
        let is_good = (200..300).contains(&reply.status());
        let decision = is_good.then(|| serde_json::from_slice::<Json>(&reply.body).ok()).flatten();
        let Some(result) = decision.as_ref().and_then(|decision| decision.get("result")) else {
            return Flow::Answer(Answer::page(503));
        };
        if is_ambiguous(&reply.body, result) {
            return Flow::Answer(Answer::page(503));
        }
        let none = Map::new();
        let headers = result.get("headers").and_then(Json::as_object).unwrap_or(&none);
        // Any other value is not a decision: `"false"`, 0 or `{}` would allow all.
        if result.get("allow") != Some(&Json::Bool(true)) {
            for (name, value) in headers {
                let Ok(name) = FieldName::new(name.as_bytes()) else { continue };
                request.response.remove_added(name);
                for text in field_texts(value) {
                    if let Ok(value) = FieldValue::new(text.as_bytes()) {
                        request.response.add(name, value);
                    }
                }
            }
            return Flow::Answer(refusal(result));
        }
        for name in self.upstream_headers.iter().map(OwnedFieldName::name) {
            request.remove_header(name);
            let value = headers.iter().find(|(other, _)| name.bytes().eq_ignore_ascii_case(other.as_bytes()));
            for text in value.map(|(_, value)| field_texts(value)).unwrap_or_default() {
                // The policy may have made it from the request. Without it, the node would decide on less.
                let Ok(value) = FieldValue::new(text.as_bytes()) else { return Flow::Answer(Answer::page(500)) };
                request.add_header(name, value);
            }
        }
        Flow::Continue
    }
}

/// An answer of the agent.
#[derive(Deserialize)]
struct AnswerText<'a> {
    #[serde(borrow)]
    result: &'a RawValue,
}

/// The names in a decision that have a meaning here.
#[derive(Deserialize)]
#[expect(dead_code, reason = "only whether it can be read matters")]
struct DecisionNames {
    allow: Option<IgnoredAny>,
    headers: Option<IgnoredAny>,
    reason: Option<IgnoredAny>,
    status_code: Option<IgnoredAny>,
}

/// Whether one of those names occurs twice: JSON does not say which counts (RFC 8259 section 4), and the agent may have
/// meant the other.
fn is_ambiguous(body: &[u8], result: &Json) -> bool {
    let Ok(answer) = serde_json::from_slice::<AnswerText<'_>>(body) else { return true };
    result.is_object() && serde_json::from_str::<DecisionNames>(answer.result.get()).is_err()
}

/// What a request is answered that is not allowed.
fn refusal(result: &Json) -> Answer {
    let status = result.get("status_code").and_then(Json::as_u64).and_then(|status| u16::try_from(status).ok());
    let status = status.filter(|status| (200..600).contains(status)).unwrap_or(403);
    match result.get("reason") {
        None | Some(Json::Null | Json::Bool(false)) => Answer::page(status),
        Some(Json::String(text)) => Answer::owned(status, text.clone().into_bytes()),
        // APISIX encodes it itself, so that it is a text to what follows, without a line end.
        Some(other) => Answer::owned(status, other.to_string().into_bytes()),
    }
}

/// The lines of a header field: one of a text, several of a list.
fn field_texts(value: &Json) -> Vec<String> {
    match value {
        Json::String(text) => vec![text.clone()],
        Json::Number(number) => vec![number.to_string()],
        Json::Bool(flag) => vec![flag.to_string()],
        Json::Array(items) => items.iter().filter(|item| !item.is_array()).flat_map(field_texts).collect(),
        Json::Null | Json::Object(_) => Vec::new(),
    }
}

/// The request as the policy sees it.
fn input(request: &Request<'_>) -> Json {
    let facts = &request.facts;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut headers = Map::new();
    request.edits.fields.each(&facts.request.fields, facts.head, &mut |name, value| {
        put_or_append(&mut headers, text(name).to_ascii_lowercase(), Json::from(text(value)));
    });
    let mut query = Map::new();
    for pair in request.query().unwrap_or_default().split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()) {
        let decoded = |part: &[u8]| text(&decoded(part).collect::<Vec<u8>>());
        match pair.iter().position(|byte| *byte == b'=') {
            Some(at) => put_or_append(&mut query, decoded(&pair[..at]), Json::from(decoded(&pair[at + 1..]))),
            None => put_or_append(&mut query, decoded(pair), Json::Bool(true)),
        }
    }
    json!({
        "type": "http",
        "request": {
            "scheme": facts.scheme,
            "method": text(facts.method()),
            "host": text(facts.host),
            "port": facts.local.port(),
            "path": facts.path.map(|path| text(path.text(&mut Vec::new()))),
            "headers": headers,
            "query": query,
        },
        "var": {
            "server_addr": facts.local.ip().to_string(),
            "server_port": facts.local.port().to_string(),
            "remote_addr": facts.client.to_string(),
            "remote_port": facts.client_port.to_string(),
            "timestamp": request.worker.now_ms() / 1000,
        },
    })
}

/// A name that is there several times has a list, as in APISIX.
fn put_or_append(map: &mut Map<String, Json>, name: String, value: Json) {
    match map.get_mut(&name) {
        None => drop(map.insert(name, value)),
        Some(Json::Array(values)) => values.push(value),
        Some(first) => *first = Json::Array(vec![first.take(), value]),
    }
}
