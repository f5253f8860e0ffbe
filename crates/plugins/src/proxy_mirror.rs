//! `proxy-mirror`: sends a copy of requests to another server, whose answers are dropped.
//!
//! Neither waits for the other. If too many copies are in progress, one is dropped and counted. A copy has the method,
//! path, header and body of the request just before it is forwarded, so refused requests have none. A body that has not
//! arrived yet is captured while it is forwarded, whatever its framing; its copy is sent when the response is finished.
//! So a call that sends and receives at the same time works as without the plugin.

use crate::body_fields::CONTENT_TYPE;
use crate::number::Decimal;
use crate::random;
use std::any::Any;
use std::time::Duration;
use stillgate_plugin_api::body::FILTER_BYTES_MAX;
use stillgate_plugin_api::{
    Call, Compile, Define, Flow, Identity, Keep, Phase, Phases, Plugin, Request, Response, Url,
};
use stillgate_route::path::target_path;
use stillgate_schema::{At, Choice, Fault, LocatedKind, TEXT, Text, object, text};
use stillgate_wire::{FieldName, FieldValue};

object! {
    /// Sends a copy of requests to another server.
    pub(crate) struct ProxyMirrorKeys {
        /// The server: `http://HOST[:PORT]` or `https://HOST[:PORT]`, without a path; `grpc://` or `grpcs://` to
        /// receive gRPC calls.
        host: At<String> = LocatedKind(TEXT.shown()) => required;
        /// The path of copies; the default is that of the request. gRPC calls keep theirs.
        path: At<String> = LocatedKind(PATH) => optional;
        /// `replace`: `path` replaces the request's path. `prefix`: it is prepended.
        path_concat_mode: bool = CONCAT => default(false);
        /// The share of requests that are copied.
        sample_ratio: f64 = Decimal { min: 0.00001, max: 1.0 } => default(1.0);
    }
}

const PATH: Text<String> = text("a path", |text| {
    let is_good = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'&' | b'#');
    match text.len() > 1 && text.starts_with('/') && text.bytes().all(is_good) {
        true => Ok(text.to_owned()),
        false => Err(Fault::new(format!("{text:?} is not a path")).hint("begin with '/', without '?' and '&'")),
    }
});

const CONCAT: Choice<bool> = Choice { words: &[("replace", false), ("prefix", true)], unbuilt: &[] };

/// Timeout of each step of a copy.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Idle connections of a worker.
const CONNECTIONS_MAX: usize = 32;
/// The largest body that is copied.
const BODY_BYTES_MAX: usize = FILTER_BYTES_MAX;

/// The plugin.
pub(crate) struct ProxyMirror {
    url: Url,
    path: Option<Box<str>>,
    is_prefix: bool,
    ratio: f64,
    identity: Identity,
}

/// A copy that waits for its body.
struct PendingCopy {
    identity: Identity,
    call: Call,
}

impl Define for ProxyMirror {
    type Keys = ProxyMirrorKeys;
    const NAME: &'static str = "proxy-mirror";
    const PRIORITY: i32 = 1010;
    const PHASES: Phases = Phases::of(&[Phase::BeforeProxy, Phase::Log]);

    fn compile(keys: ProxyMirrorKeys, cx: &mut Compile<'_>) -> Option<ProxyMirror> {
        let host = &keys.host.value;
        let url = match host.strip_prefix("grpc").filter(|rest| rest.starts_with("://") || rest.starts_with("s://")) {
            Some(rest) => Url::parse(&format!("http{rest}"), false).map(Url::of_grpc),
            None => Url::parse(host, false),
        };
        let refuse = |fault: Fault, cx: &mut Compile<'_>| cx.sink.error(keys.host.at, &cx.path.key("host"), fault);
        let url = match url {
            Ok(url) if &*url.target == "/" && !host.ends_with('/') => url,
            Ok(_) => {
                refuse(Fault::new("the host has a path").hint("write it under `path`"), cx);
                return None;
            }
            Err(why) => {
                refuse(Fault::new(why), cx);
                return None;
            }
        };
        let path = match keys.path {
            Some(path) if url.origin.is_grpc => {
                let fault = Fault::new("has no effect: a call of gRPC keeps its path").hint("remove it");
                cx.sink.warning(path.at, &cx.path.key("path"), fault);
                None
            }
            path => path.map(|path| path.value.into()),
        };
        let is_prefix = keys.path_concat_mode;
        Some(ProxyMirror { url, path, is_prefix, ratio: keys.sample_ratio, identity: cx.identity })
    }
}

const HOST: FieldName<'static> = FieldName::constant("Host");
const TE: FieldName<'static> = FieldName::constant("TE");

impl Plugin for ProxyMirror {
    fn before_proxy(&self, request: &mut Request<'_>) -> Flow {
        let is_meant = !self.url.origin.is_grpc || is_call(request);
        if !is_meant || (self.ratio < 1.0 && random::share() >= self.ratio) {
            return Flow::Continue;
        }
        let mut call = self.copy(request);
        match request.whole_body() {
            None => {
                request.body.capture(BODY_BYTES_MAX);
                request.hold(PendingCopy { identity: self.identity, call });
            }
            Some(body) if body.len() > BODY_BYTES_MAX => request.worker.io().drop_send(Self::NAME),
            Some(body) => {
                call.set_body(body.to_vec());
                request.worker.io().send(Self::NAME, call);
            }
        }
        Flow::Continue
    }

    /// A body that was not forwarded to its end, or that is too large, is not copied.
    fn log(&self, response: &mut Response<'_>) {
        let Some(mut call) = self.take_waiting(&mut response.settled.held) else { return };
        let io = response.worker.io();
        let ended = response.ended.filter(|ended| ended.request_is_whole);
        match ended.and_then(|ended| ended.request_body).filter(|body| body.len() <= BODY_BYTES_MAX) {
            None => io.drop_send(Self::NAME),
            Some(body) => {
                call.set_body(body.to_vec());
                io.send(Self::NAME, call);
            }
        }
    }
}

/// Whether a request is a call of gRPC, or of gRPC-Web.
fn is_call(request: &Request<'_>) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let of = |value: &[u8]| value.get(..GRPC.len()).is_some_and(|start| start.eq_ignore_ascii_case(GRPC));
    request.first_header(CONTENT_TYPE).is_some_and(of)
}

impl ProxyMirror {
    /// Takes the copy that was made of this request before.
    fn take_waiting(&self, held: &mut Vec<Box<dyn Any>>) -> Option<Call> {
        let is_own = |held: &Box<dyn Any>| {
            held.downcast_ref::<PendingCopy>().is_some_and(|waiting| waiting.identity == self.identity)
        };
        let place = held.iter().position(is_own)?;
        held.swap_remove(place).downcast::<PendingCopy>().ok().map(|waiting| waiting.call)
    }

    /// Makes a copy without the body.
    fn copy(&self, request: &Request<'_>) -> Call {
        let method = request.edits.method().unwrap_or_else(|| request.facts.method());
        let target = self.target(request.target());
        let mut call = Call::new(&self.url.origin, method, &target);
        call.timeout = TIMEOUT;
        call.keep = Some(Keep { connections_max: CONNECTIONS_MAX, ..Keep::default() });
        let facts = &request.facts;
        let authority = facts.request.authority.of(facts.head);
        let host = request.edits.host().unwrap_or(authority);
        if let Ok(value) = FieldValue::new(host)
            && !host.is_empty()
        {
            call.set_host(value);
        }
        request.edits.fields.each(&facts.request.fields, facts.head, &mut |name, value| {
            let is_ours = name.eq_ignore_ascii_case(HOST.bytes()) || name.eq_ignore_ascii_case(b"expect");
            // Framing fields, and those of the connection, are not valid names here.
            if let (false, Ok(name), Ok(value)) = (is_ours, FieldName::new(name), FieldValue::new(value)) {
                call.header(name, value);
            }
        });
        if self.url.origin.is_grpc {
            call.header(TE, FieldValue::constant("trailers"));
        }
        call
    }

    fn target(&self, target: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(target.len() + self.path.as_ref().map_or(0, |path| path.len()));
        match &self.path {
            None => out.extend_from_slice(target),
            Some(path) if self.is_prefix => {
                out.extend_from_slice(path.as_bytes());
                out.extend_from_slice(target);
            }
            Some(path) => {
                out.extend_from_slice(path.as_bytes());
                if let Some(query) = target_path(target).1 {
                    out.push(b'?');
                    out.extend_from_slice(query);
                }
            }
        }
        out
    }
}
