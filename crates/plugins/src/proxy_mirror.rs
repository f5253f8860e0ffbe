//! `proxy-mirror`: sends a copy of requests to another server, whose answers are dropped.
//!
//! Nothing waits for the copy: where too many are under way it is dropped, and counted. A copy has the method, path, header and
//! body of the request as it is about to go to the node, so requests that are refused before have none.

use crate::asking::url;
use crate::decimal::Decimal;
use crate::random;
use std::time::Duration;
use stillgate_plugin::body::FILTER_BYTES_MAX;
use stillgate_plugin::{Call, Compile, Define, Flow, Keep, Phase, Phases, Plugin, Request, Url};
use stillgate_route::path::target_path;
use stillgate_schema::{At, Choice, Fault, Located, TEXT, Text, object, text};
use stillgate_wire::{FieldName, FieldValue, Framing};

object! {
    /// Sends a copy of requests to another server.
    pub(crate) struct ProxyMirrorKeys {
        /// The server: `http://HOST[:PORT]` or `https://HOST[:PORT]`, without a path.
        host: At<String> = Located(TEXT.shown()) => required;
        /// The path of copies; without it that of the request.
        path: String = PATH => optional;
        /// `replace`: `path` takes the place of the request's path. `prefix`: it is put before it.
        path_concat_mode: bool = CONCAT => default(false);
        /// The share of requests that are copied.
        sample_ratio: f64 = Decimal { min: 0.00001, max: 1.0 } => default(1.0);
    }
}

const PATH: Text<String> = text("a path", |text| {
    let is_good = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'&' | b'#');
    match text.len() > 1 && text.starts_with('/') && text.bytes().all(is_good) {
        true => Ok(text.to_owned()),
        false => Err(Fault::new(format!("{text:?} is no path")).hint("begin with '/', without '?' and '&'")),
    }
});

const CONCAT: Choice<bool> = Choice { words: &[("replace", false), ("prefix", true)], unbuilt: &[] };

/// How long each step of a copy may take.
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
}

impl Define for ProxyMirror {
    type Keys = ProxyMirrorKeys;
    const NAME: &'static str = "proxy-mirror";
    const PRIORITY: i32 = 1010;
    const PHASES: Phases = Phases::of(&[Phase::Access, Phase::BeforeProxy]);

    fn compile(keys: ProxyMirrorKeys, cx: &mut Compile<'_>) -> Option<ProxyMirror> {
        let url = url(&keys.host, false, "host", cx)?;
        if &*url.target != "/" || keys.host.value.ends_with('/') {
            let fault = Fault::new("the host has a path").hint("write it under `path`");
            cx.sink.error(keys.host.at, &cx.path.key("host"), fault);
            return None;
        }
        let (path, is_prefix) = (keys.path.map(String::into), keys.path_concat_mode);
        Some(ProxyMirror { url, path, is_prefix, ratio: keys.sample_ratio })
    }
}

const HOST: FieldName<'static> = FieldName::constant("Host");

impl Plugin for ProxyMirror {
    /// A body that is to be copied is waited for.
    fn access(&self, request: &mut Request<'_>) -> Flow {
        let is_small = match request.facts.request.framing {
            Framing::Length(length) => length <= BODY_BYTES_MAX as u64,
            _ => false,
        };
        match request.whole_body() {
            None if is_small => Flow::body(BODY_BYTES_MAX, |_| Flow::Continue),
            _ => Flow::Continue,
        }
    }

    fn before_proxy(&self, request: &mut Request<'_>) -> Flow {
        if self.ratio < 1.0 && random::share() >= self.ratio {
            return Flow::Continue;
        }
        let Some(body) = request.whole_body().filter(|body| body.len() <= BODY_BYTES_MAX) else {
            request.worker.io().drop_send(Self::NAME);
            return Flow::Continue;
        };
        let call = self.copy(request, body);
        request.worker.io().send(Self::NAME, call);
        Flow::Continue
    }
}

impl ProxyMirror {
    fn copy(&self, request: &Request<'_>, body: &[u8]) -> Call {
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
            // What says where the message ends, or belongs to the connection, is no name here.
            if let (false, Ok(name), Ok(value)) = (is_ours, FieldName::new(name), FieldValue::new(value)) {
                call.header(name, value);
            }
        });
        call.set_body(body.to_vec());
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
