//! `proxy-rewrite`: changes target, host, method and header fields of a request before it is forwarded.

mod target;

use crate::header_edits::{HeaderEdits, Headers};
use crate::replacement::{Groups, warn_of_group};
use stillgate_plugin::{Answer, Compile, Define, Flow, PerWorker, Phase, Phases, Plugin, Request};
use stillgate_route::Variable;
use stillgate_schema::kind::list;
use stillgate_schema::{At, Choice, Fault, Flag, LocatedKind, TEXT, Text, object, text};
use stillgate_wire::{EditError, OwnedFieldValue, is_host};
use target::{Search, TargetError, TargetSource};

object! {
    /// Changes a request before it is forwarded.
    pub(crate) struct ProxyRewriteKeys {
        /// The path for the node, with a query if it has a `?`; with variables. The query of the request is added to
        /// it.
        uri: At<String> = LocatedKind(URI) => optional;
        /// The method for the node.
        method: &'static str = METHOD => optional;
        /// Pairs of a regular expression and the replacement of its match in the path; `$1` is a group. The first that
        /// matches is used. `uri` takes precedence.
        regex_uri: At<Vec<String>> = LocatedKind(list(TEXT)) => optional;
        /// The `Host` for the node, which overrides the upstream's `pass_host`.
        host: OwnedFieldValue = NODE_HOST => optional;
        /// Header fields: `add`, `set` (an empty value removes the field) and `remove`, in this order; or a map that is set.
        /// Values can have variables and the groups of `regex_uri`; a list under `add` or `set` makes several lines.
        headers: HeaderEdits = Headers::OfRequest => default(HeaderEdits::default());
        /// Uses path and query as the client sent them, and encodes nothing. The node may then get another path than
        /// the one that was matched.
        use_real_request_uri_unsafe: bool = Flag => default(false);
        any_of {
            "nothing to rewrite": uri | method | regex_uri | host | headers | use_real_request_uri_unsafe;
        }
    }
}

/// The plugin.
pub(crate) struct ProxyRewrite {
    method: Option<&'static str>,
    host: Option<OwnedFieldValue>,
    target: TargetSource,
    headers: HeaderEdits,
    own: PerWorker<Search>,
}

impl Define for ProxyRewrite {
    type Keys = ProxyRewriteKeys;
    const NAME: &'static str = "proxy-rewrite";
    const PRIORITY: i32 = 1008;
    const PHASES: Phases = Phases::of(&[Phase::Rewrite]);

    fn compile(keys: ProxyRewriteKeys, cx: &mut Compile<'_>) -> Option<ProxyRewrite> {
        let is_raw = keys.use_real_request_uri_unsafe;
        // Parsed in any case, so that errors in it are reported.
        let by_regex = match &keys.regex_uri {
            Some(At { at, value }) => Some(TargetSource::by_regex(value, is_raw, *at, cx)?),
            None => None,
        };
        let target = match (&keys.uri, by_regex) {
            (Some(At { at, value }), _) => TargetSource::to(value, is_raw, *at, cx)?,
            (None, Some(by_regex)) => by_regex,
            (None, None) => TargetSource::None,
        };
        warn_of_group(keys.headers.group_max(), target.groups(), cx.at, &cx.path.key("headers"), cx.sink);
        Some(ProxyRewrite {
            method: keys.method,
            host: keys.host,
            target,
            headers: keys.headers,
            own: PerWorker::new(),
        })
    }
}

impl Plugin for ProxyRewrite {
    fn rewrite(&self, request: &mut Request<'_>) -> Flow {
        let outcome = match &self.target {
            TargetSource::None => self.edit(request, &Groups::NONE).map_err(TargetError::from),
            target => self.own.with(
                || Search::new(target),
                |search| search.rewrite(target, request).and_then(|groups| Ok(self.edit(request, &groups)?)),
            ),
        };
        match outcome {
            Ok(()) => Flow::Continue,
            Err(error) => Flow::Answer(refusal(error)),
        }
    }

    fn each_variable(&self, visit: &mut dyn FnMut(&Variable)) {
        self.target.each_variable(visit);
        self.headers.each_variable(visit);
    }
}

impl ProxyRewrite {
    /// Applies all edits but the target.
    fn edit(&self, request: &mut Request<'_>, groups: &Groups<'_>) -> Result<(), EditError> {
        if let Some(host) = &self.host {
            request.edits.set_host(host.value().bytes())?;
        }
        self.headers.apply(request, request.worker, groups)?;
        match self.method {
            Some(method) => request.edits.set_method(method.as_bytes()),
            None => Ok(()),
        }
    }
}

/// A value with variables cannot be sent: the request is not forwarded.
fn refusal(error: TargetError) -> Answer {
    let (status, message) = match error {
        TargetError::Edit(error) => (500, error.to_string()),
        TargetError::DotSegment => (400, "a value leads to another path".to_owned()),
    };
    let message = serde_json::json!({"error_msg": format!("proxy-rewrite: {message}")});
    Answer::owned(status, format!("{message}\n").into_bytes())
}

const URI: Text<String> = text("a path", |text| match text.starts_with('/') && text.chars().count() <= 4096 {
    true => Ok(text.to_owned()),
    false => Err(Fault::new("a path begins with \"/\" and has at most 4096 characters")),
})
.pattern("^/");

const METHOD: Choice<&'static str> = Choice {
    words: &[
        ("GET", "GET"),
        ("POST", "POST"),
        ("PUT", "PUT"),
        ("HEAD", "HEAD"),
        ("DELETE", "DELETE"),
        ("OPTIONS", "OPTIONS"),
        ("MKCOL", "MKCOL"),
        ("COPY", "COPY"),
        ("MOVE", "MOVE"),
        ("PROPFIND", "PROPFIND"),
        ("LOCK", "LOCK"),
        ("UNLOCK", "UNLOCK"),
        ("PATCH", "PATCH"),
        ("TRACE", "TRACE"),
    ],
    unbuilt: &[],
};

const NODE_HOST: Text<OwnedFieldValue> = text("a host", |text| {
    let (name, port) = text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port)));
    let is_name = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.');
    let is_port = |port: &str| matches!(port.len(), 1..=5) && port.bytes().all(|b| b.is_ascii_digit());
    match is_name && port.is_none_or(is_port) && is_host(text.as_bytes()) {
        true => OwnedFieldValue::new(text.as_bytes()).map_err(|error| Fault::new(error.to_string())),
        false => {
            Err(Fault::new(format!("{text:?} is not a host")).hint("write it like \"a.example\" or \"a.example:8080\""))
        }
    }
})
.pattern(r"^[0-9a-zA-Z.-]+(:\d{1,5})?$");
