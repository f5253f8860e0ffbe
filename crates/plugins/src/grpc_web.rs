//! `grpc-web`: a route for browsers that speak gRPC-Web.
//!
//! The translation is not done here: it happens for every upstream with `scheme: grpc` or `grpcs`. The plugin answers
//! preflight requests, refuses requests that are not gRPC-Web, removes the route's prefix from the path, and lets pages
//! read the responses.

use stillgate_plugin_api::{Answer, Compile, Define, Flow, Phase, Phases, Plugin, Request, Response};
use stillgate_schema::{Fault, Text, int, object, text};
use stillgate_wire::{FieldName, FieldValue, Framing, OwnedFieldValue};

object! {
    /// Serves browsers that speak gRPC-Web.
    pub(crate) struct GrpcWebKeys {
        /// Request header fields that pages may send, separated by commas.
        cors_allow_headers: OwnedFieldValue = HEADERS => default(default_headers());
        /// No effect: requests are not buffered.
        max_req_body_size: u64 = int(1, i64::MAX) => default(67_108_864);
    }
}

const HEADERS: Text<OwnedFieldValue> = text("names of header fields", |text| {
    OwnedFieldValue::new(text.as_bytes()).map_err(|error| Fault::new(error.to_string()))
});

fn default_headers() -> OwnedFieldValue {
    OwnedFieldValue::new(b"content-type,x-grpc-web,x-user-agent").expect("a value without control characters")
}

/// The plugin.
pub(crate) struct GrpcWeb {
    headers: OwnedFieldValue,
}

const ALLOW_ORIGIN: FieldName<'static> = FieldName::constant("Access-Control-Allow-Origin");
const ALLOW_METHODS: FieldName<'static> = FieldName::constant("Access-Control-Allow-Methods");
const ALLOW_HEADERS: FieldName<'static> = FieldName::constant("Access-Control-Allow-Headers");
const EXPOSE_HEADERS: FieldName<'static> = FieldName::constant("Access-Control-Expose-Headers");

/// The content types of gRPC-Web, as binary and as text.
const MEDIA_TYPES: [&str; 4] = [
    "application/grpc-web",
    "application/grpc-web-text",
    "application/grpc-web+proto",
    "application/grpc-web-text+proto",
];

impl Define for GrpcWeb {
    type Keys = GrpcWebKeys;
    const NAME: &'static str = "grpc-web";
    const PRIORITY: i32 = 505;
    const PHASES: Phases = Phases::of(&[Phase::Access, Phase::HeaderFilter]);

    fn compile(keys: GrpcWebKeys, _: &mut Compile<'_>) -> Option<GrpcWeb> {
        Some(GrpcWeb { headers: keys.cors_allow_headers })
    }
}

impl Plugin for GrpcWeb {
    fn access(&self, request: &mut Request<'_>) -> Flow {
        match request.facts.method() {
            b"OPTIONS" => return Flow::Answer(Answer::empty(204)),
            b"POST" => {}
            _ => return Flow::Answer(Answer::page(405)),
        }
        let content_type = request.first_header(FieldName::constant("Content-Type")).unwrap_or_default();
        if !MEDIA_TYPES.iter().any(|media_type| content_type.eq_ignore_ascii_case(media_type.as_bytes())) {
            return Flow::Answer(Answer::page(400));
        }
        if matches!(request.facts.request.framing, Framing::None | Framing::Length(0)) {
            return Flow::Answer(Answer::page(400));
        }
        // A route without a prefix contains the whole method name.
        let Some(prefix) = prefix_bytes(request) else { return Flow::Continue };
        let worker = request.worker;
        let edited = worker.with_buffers(|target, _| {
            let path = request.facts.path.map_or(&b"/"[..], |path| path.bytes());
            let rest = path.get(prefix..).unwrap_or_default();
            if !rest.starts_with(b"/") {
                target.push(b'/');
            }
            target.extend_from_slice(rest);
            if let Some(query) = request.query() {
                target.push(b'?');
                target.extend_from_slice(query);
            }
            request.edits.set_target(target)
        });
        match edited {
            Ok(()) => Flow::Continue,
            Err(_) => Flow::Answer(Answer::page(400)),
        }
    }

    fn header_filter(&self, response: &mut Response<'_>) {
        if response.facts.method() == b"OPTIONS" {
            response.set_header(ALLOW_METHODS, FieldValue::constant("POST"));
            response.set_header(ALLOW_HEADERS, self.headers.value());
        }
        // The plugin cors may have set the origins.
        if response.header(ALLOW_ORIGIN, &mut Vec::new()).is_none() {
            response.set_header(ALLOW_ORIGIN, FieldValue::constant("*"));
        }
        response.set_header(EXPOSE_HEADERS, FieldValue::constant("grpc-message,grpc-status"));
    }
}

/// Length of the path before the `*` of the route; `None`: the route has none.
fn prefix_bytes(request: &Request<'_>) -> Option<usize> {
    let route = request.facts.route?;
    let spec = &route.matcher.specs()[route.found.route];
    let pattern = spec.uri()?.paths.get(route.found.path)?.to_string();
    pattern.strip_suffix('*').filter(|prefix| !prefix.contains(':')).map(str::len)
}
