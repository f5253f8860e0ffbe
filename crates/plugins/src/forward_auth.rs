//! `forward-auth`: asks another server about each request, which goes on where the answer is below 300.
//!
//! Different from APISIX: with `request_method: POST` at most 1 MiB of a body is kept by default, header lines that say where the
//! message ends are the client's own business, and names of header fields are checked when the configuration is loaded. Bodies
//! are held only where `POST` or `$post_arg` in `extra_headers` needs them.

use crate::header_edits::{FieldMap, Fields};
use crate::server_call::{FIELD_NAME, keepalive, url};
use crate::variable_texts;
use std::sync::Arc;
use std::time::Duration;
use stillgate_plugin_api::body::FILTER_BYTES_MAX;
use stillgate_plugin_api::secrets::VeiledKind;
use stillgate_plugin_api::{
    Answer, Call, CallError, Compile, Define, Flow, Keep, Phase, Phases, Plugin, Reply, Request, Template, Url,
};
use stillgate_route::Variable;
use stillgate_schema::{At, Choice, Flag, LocatedKind, TEXT, int, list, object};
use stillgate_wire::{FieldName, FieldValue, OwnedFieldName};

object! {
    /// Asks another server whether a request may go on.
    pub(crate) struct ForwardAuthKeys {
        /// The URL that is asked.
        uri: At<String> = LocatedKind(TEXT.shown()) => required;
        /// Whether the certificate of an `https` server is verified.
        ssl_verify: bool = Flag => default(true);
        /// How it is asked. With `POST` it gets the body of the request.
        request_method: bool = METHOD => default(false);
        /// Header fields of the request that it gets.
        request_headers: Vec<OwnedFieldName> = list(FIELD_NAME) => default(Vec::new());
        /// Further header fields that it gets: texts with variables, such as `$remote_addr` and `$post_arg.tenant_id`.
        extra_headers: Fields = VeiledKind(FieldMap) => optional;
        /// Header fields of its answer that the node gets, where the request goes on. One that the answer does not have is
        /// removed from the request, as all are where the server cannot be asked.
        upstream_headers: Vec<OwnedFieldName> = list(FIELD_NAME) => default(Vec::new());
        /// Header fields of its answer that the client gets, where the request does not go on.
        client_headers: Vec<OwnedFieldName> = list(FIELD_NAME) => default(Vec::new());
        /// Milliseconds that connecting, sending, and the whole answer may take, each.
        timeout: u32 = int(1, 60_000) => default(3_000);
        /// Whether connections are kept.
        keepalive: bool = Flag => default(true);
        /// Milliseconds that a connection may be idle.
        keepalive_timeout: u32 = int(1_000, 3_600_000) => default(60_000);
        /// Idle connections of each worker.
        keepalive_pool: u32 = int(1, 256) => default(5);
        /// Whether a request goes on where the server cannot be asked.
        allow_degradation: bool = Flag => default(false);
        /// The status where the server cannot be asked.
        status_on_error: u16 = int(200, 599) => default(403);
        /// The largest body that is sent with `POST`, or read for `$post_arg`; a larger one is answered with 413.
        max_req_body_size: u32 = int(1, 67_108_864) => default(FILTER_BYTES_MAX as u32);
    }
}

const METHOD: Choice<bool> = Choice { words: &[("GET", false), ("POST", true)], unbuilt: &[] };

/// The plugin; shared with the requests that wait.
pub(crate) struct ForwardAuth(Arc<ForwardAuthConfig>);

struct ForwardAuthConfig {
    url: Url,
    posts: bool,
    request_headers: Box<[OwnedFieldName]>,
    extra_headers: Box<[(OwnedFieldName, Template)]>,
    upstream_headers: Box<[OwnedFieldName]>,
    client_headers: Box<[OwnedFieldName]>,
    timeout: Duration,
    keep: Option<Keep>,
    degrades: bool,
    status_on_error: u16,
    body_bytes_max: usize,
}

impl Define for ForwardAuth {
    type Keys = ForwardAuthKeys;
    const NAME: &'static str = "forward-auth";
    const PRIORITY: i32 = 2002;
    const PHASES: Phases = Phases::of(&[Phase::Access]);

    fn compile(keys: ForwardAuthKeys, cx: &mut Compile<'_>) -> Option<ForwardAuth> {
        let url = url(&keys.uri, keys.ssl_verify, "uri", cx)?;
        let mut extra_headers = Vec::new();
        for (name, value) in keys.extra_headers.unwrap_or_default() {
            let (text, path) = (String::from_utf8_lossy(value.value().bytes()), cx.path.key("extra_headers"));
            extra_headers.push((name, variable_texts::template_with_body(&text, cx.at, &path, cx.sink)));
        }
        Some(ForwardAuth(Arc::new(ForwardAuthConfig {
            url,
            posts: keys.request_method,
            request_headers: keys.request_headers.into(),
            extra_headers: extra_headers.into(),
            upstream_headers: keys.upstream_headers.into(),
            client_headers: keys.client_headers.into(),
            timeout: Duration::from_millis(u64::from(keys.timeout)),
            keep: keepalive(keys.keepalive, keys.keepalive_timeout, keys.keepalive_pool),
            degrades: keys.allow_degradation,
            status_on_error: keys.status_on_error,
            body_bytes_max: keys.max_req_body_size as usize,
        })))
    }
}

const PROTO: FieldName<'static> = FieldName::constant("X-Forwarded-Proto");
const METHOD_FIELD: FieldName<'static> = FieldName::constant("X-Forwarded-Method");
const HOST: FieldName<'static> = FieldName::constant("X-Forwarded-Host");
const URI: FieldName<'static> = FieldName::constant("X-Forwarded-Uri");
const FOR: FieldName<'static> = FieldName::constant("X-Forwarded-For");
const CONTENT_ENCODING: FieldName<'static> = FieldName::constant("Content-Encoding");
/// It is about the exchange with this client: the whole call is sent at once.
const EXPECT: FieldName<'static> = FieldName::constant("Expect");
/// What the plugin says itself; the client's own fields of these names are never passed.
const OWN: [FieldName<'static>; 5] = [PROTO, METHOD_FIELD, HOST, URI, FOR];

impl Plugin for ForwardAuth {
    fn access(&self, request: &mut Request<'_>) -> Flow {
        let is_here = request.whole_body().is_some_and(|body| body.len() <= self.0.body_bytes_max);
        if is_here || !self.0.posts {
            return ask(&self.0, request);
        }
        let inner = self.0.clone();
        Flow::body(self.0.body_bytes_max, move |request| ask(&inner, request))
    }

    fn each_field_read(&self, visit: &mut dyn FnMut(&str, &[u8])) {
        self.0.request_headers.iter().for_each(|name| visit("request_headers", name.name().bytes()));
    }

    fn each_variable(&self, visit: &mut dyn FnMut(&Variable)) {
        self.0.extra_headers.iter().flat_map(|(_, text)| text.variables()).for_each(visit);
    }

    fn arguments_bytes_max(&self) -> usize {
        self.0.body_bytes_max
    }
}

fn ask(inner: &Arc<ForwardAuthConfig>, request: &mut Request<'_>) -> Flow {
    let Some(call) = inner.call(request) else { return Flow::Answer(Answer::page(500)) };
    let inner = inner.clone();
    Flow::wait(request.call(call), move |reply, request| inner.decide(reply, request))
}

impl ForwardAuthConfig {
    /// `None`: a value would split the message.
    fn call(&self, request: &Request<'_>) -> Option<Call> {
        let method: &[u8] = if self.posts { b"POST" } else { b"GET" };
        let mut call = Call::new(&self.url.origin, method, self.url.target.as_bytes());
        (call.timeout, call.keep) = (self.timeout, self.keep);
        let client = request.facts.client.to_string();
        let facts = &request.facts;
        let target = request.settled.redacted_target(facts);
        let own = [facts.scheme.as_bytes(), facts.method(), facts.host, target, client.as_bytes()];
        let is_extra =
            |name: FieldName<'_>| self.extra_headers.iter().any(|(other, _)| is_same_name(other.name(), name));
        for (name, value) in OWN.into_iter().zip(own).filter(|(name, _)| !is_extra(*name)) {
            call.header(name, FieldValue::new(value).ok()?);
        }
        let (mut text, mut buffer) = (Vec::new(), Vec::new());
        for (name, template) in &self.extra_headers {
            text.clear();
            template.write(request, &mut text, &mut buffer);
            call.header(name.name(), FieldValue::new(&text).ok()?);
        }
        let of_request = self.request_headers.iter().map(OwnedFieldName::name);
        let of_request = of_request.chain(self.posts.then_some(CONTENT_ENCODING));
        let is_own = |name: FieldName<'_>| OWN.into_iter().chain([EXPECT]).any(|own| is_same_name(own, name));
        for (index, name) in of_request.clone().enumerate().filter(|(_, name)| !is_extra(*name) && !is_own(*name)) {
            if of_request.clone().take(index).any(|earlier| is_same_name(earlier, name)) {
                continue;
            }
            if let Some(value) = request.header(name, &mut buffer) {
                call.header(name, FieldValue::new(value).ok()?);
            }
        }
        if self.posts {
            call.set_body(request.whole_body().unwrap_or_default().to_vec());
        }
        Some(call)
    }

    fn decide(&self, reply: Result<Reply, CallError>, request: &mut Request<'_>) -> Flow {
        match reply {
            Err(error) if self.degrades && error.is_outage() => {
                // What the server would have said must not be the client's word.
                self.upstream_headers.iter().for_each(|name| request.remove_header(name.name()));
                Flow::Continue
            }
            Err(_) => Flow::Answer(Answer::page(self.status_on_error)),
            Ok(reply) if reply.status() >= 300 => {
                for name in self.client_headers.iter().map(OwnedFieldName::name) {
                    for value in reply.headers(name) {
                        request.response.add(name, FieldValue::of_head(value));
                    }
                }
                let status = if reply.status() < 600 { reply.status() } else { self.status_on_error };
                Flow::Answer(Answer::owned(status, reply.body))
            }
            Ok(reply) => {
                for name in self.upstream_headers.iter().map(OwnedFieldName::name) {
                    request.remove_header(name);
                    for value in reply.headers(name) {
                        request.add_header(name, FieldValue::of_head(value));
                    }
                }
                Flow::Continue
            }
        }
    }
}

fn is_same_name(one: FieldName<'_>, other: FieldName<'_>) -> bool {
    one.bytes().eq_ignore_ascii_case(other.bytes())
}
