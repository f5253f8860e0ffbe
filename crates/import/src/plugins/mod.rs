//! Kong's plugins, each as what it becomes here: one line a plugin in [`TABLE`].
//!
//! A plugin that guards a route and cannot be translated closes the route ([`Translation::Closed`]). That holds for
//! plugins that the importer has never heard of, too: it cannot know that they guard nothing.

mod answers;
mod auth;
mod cors;
mod limits;
mod loggers;
mod restrictions;
mod tracing;
mod transformers;

pub(crate) use auth::{Auth, chain as auth_chain};
pub(crate) use limits::Limit;
pub(crate) use transformers::Rewrite;

use crate::kong_file::Plugin;
use crate::object::{Field, Object};
use crate::vaults::Vaults;
use serde_json::{Map, Value as Json};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Plugins of the result, by name.
pub(crate) type Chain = Vec<(&'static str, Json)>;

/// What a plugin of Kong becomes.
#[derive(Debug)]
pub(crate) enum Translation {
    /// Nothing. Losses say why.
    Nothing,
    /// Its requests have to be refused.
    Closed,
    /// Plugins that belong where Kong's is.
    Plain(Chain),
    /// Plugins that only look on. In Kong they see requests without a route, too.
    Observer(Chain),
    /// An authentication, which is combined with the others of a route.
    Auth(Auth),
    /// A limit, whose key depends on whether the route knows its consumers.
    Limit(Limit),
    /// Changes of requests, which go into a plugin with those that the route itself asks for.
    Rewrite(Rewrite),
}

/// What translations share.
pub(crate) struct TranslationContext<'a> {
    pub(crate) vaults: &'a Vaults,
    /// User names here, by those and the ids of Kong.
    pub(crate) usernames: &'a HashMap<String, String>,
    /// The list `plugin_metadata`.
    pub(crate) metadata: RefCell<BTreeMap<&'static str, Map<String, Json>>>,
    /// What `secret_is_base64` of plugins says; here it is a key of credentials.
    pub(crate) base64_secrets: RefCell<BTreeSet<bool>>,
}

impl TranslationContext<'_> {
    /// A text, with references to vaults in the form that they have here.
    pub(crate) fn text(&self, object: &Object, key: &str) -> Option<String> {
        self.vaults.text(&object.field(key)?)
    }

    /// The consumer that an authentication names for requests without credentials.
    pub(crate) fn anonymous(&self, config: &Object) -> Option<String> {
        let field = config.field("anonymous")?;
        let found = field.text().filter(|name| !name.is_empty());
        let username = self.usernames.get(&found?).cloned();
        if username.is_none() {
            field.lost("the file has no consumer of this name, so requests without credentials are answered 401");
        }
        username
    }
}

type Translate = fn(&Plugin, &TranslationContext<'_>) -> Translation;

/// How each plugin is translated.
const TABLE: &[(&str, Translate)] = &[
    ("acl", restrictions::acl),
    ("basic-auth", auth::basic_auth),
    ("bot-detection", restrictions::bot_detection),
    ("correlation-id", tracing::correlation_id),
    ("cors", cors::cors),
    ("file-log", loggers::file_log),
    ("grpc-web", answers::grpc_web),
    ("http-log", loggers::http_log),
    ("ip-restriction", restrictions::ip_restriction),
    ("jwt", auth::jwt),
    ("key-auth", auth::key_auth),
    ("opentelemetry", tracing::opentelemetry),
    ("prometheus", tracing::prometheus),
    ("rate-limiting", limits::rate_limiting),
    ("redirect", answers::redirect),
    ("request-size-limiting", limits::request_size_limiting),
    ("request-termination", answers::request_termination),
    ("request-transformer", transformers::request_transformer),
    ("response-transformer", transformers::response_transformer),
    ("syslog", loggers::syslog),
    ("tcp-log", loggers::tcp_log),
    ("udp-log", loggers::udp_log),
    ("zipkin", tracing::zipkin),
];

/// Translates a plugin, and reports what gets lost.
pub(crate) fn translate(plugin: &Plugin, cx: &TranslationContext<'_>) -> Translation {
    plugin.object.lost("ordering", "the order of plugins is that of their priorities here; use `_meta.priority`");
    plugin.object.lost("partials", "shared parts of plugins are not imported; write their keys into `config`");
    plugin
        .object
        .lost("condition", "conditions of plugins are not imported, so the plugin always runs; use `_meta.filter`");
    if plugin.object.text("run_on").is_some_and(|run_on| run_on != "first") {
        plugin.object.lost("run_on", "a service mesh is not supported; the plugin always runs");
    }
    plugin.object.finish();
    let known = TABLE.iter().find(|(name, _)| *name == plugin.name);
    let translated = match known {
        Some((_, translate)) => translate(plugin, cx),
        None => return unsupported(plugin),
    };
    plugin.config.finish();
    translated
}

/// Whether a plugin keeps requests out.
pub(crate) fn is_guard(name: &str) -> bool {
    matches!(
        name,
        "acl" | "ip-restriction" | "request-termination" | "bot-detection" | "key-auth" | "basic-auth" | "jwt"
    ) || (!TABLE.iter().any(|(known, _)| *known == name) && !is_harmless(name))
}

/// Reports that a plugin closes its routes, and why.
pub(crate) fn close(plugin: &Plugin, why: &str) -> Translation {
    plugin.object.losses().closed(
        plugin.object.path(),
        plugin.object.at(),
        format!("{why}; routes with `{}` answer 503 until you replace their plugin `fault-injection` (`mocking` of consumers)", plugin.name),
    );
    Translation::Closed
}

/// Milliseconds of Kong as whole seconds, at least one.
fn seconds(field: Option<Field>, default_ms: f64, max: i64) -> i64 {
    let milliseconds = field.and_then(|field| field.number()).unwrap_or(default_ms);
    ((milliseconds / 1000.0).ceil() as i64).clamp(1, max)
}

/// A text without variables, for keys whose texts can have some.
pub(crate) fn without_variables(text: &str) -> String {
    text.replace('$', "\\$")
}

/// Plugins without which requests are served as before but for what the text says.
const HARMLESS: &[(&str, &str)] = &[
    ("acme", "certificates are ordered by the gateway itself: see docs/acme.md"),
    ("app-dynamics", "nothing is sent to AppDynamics"),
    ("canary", "all requests go to the service of the route; use `traffic-split`"),
    ("confluent", "nothing is sent to Kafka; use `http-logger`"),
    ("datadog", "nothing is sent to Datadog; let its agent scrape the metrics (docs/metrics.md)"),
    ("degraphql", "requests reach the node as they came; use `body-transformer`"),
    ("exit-transformer", "the gateway's own answers stay as they are; use `error-page`"),
    ("forward-proxy", "nodes are connected to without a proxy in between"),
    ("graphql-proxy-cache-advanced", "responses are not cached"),
    ("graphql-rate-limiting-advanced", "requests are not limited; use `limit-count`"),
    ("grpc-gateway", "JSON is not translated to gRPC"),
    ("header-cert-auth-info", "certificates are not passed on in header fields"),
    ("jq", "bodies stay as they are; use `body-transformer`"),
    ("kafka-log", "nothing is logged to Kafka; use `http-logger`"),
    ("loggly", "nothing is sent to Loggly; use `http-logger` with its HTTP endpoint"),
    ("proxy-cache", "responses are not cached; put a cache in front of or behind the gateway"),
    ("proxy-cache-advanced", "responses are not cached; put a cache in front of or behind the gateway"),
    ("rate-limiting-advanced", "requests are not limited; use `limit-count`"),
    ("request-callout", "no other server is asked; use `forward-auth`, `opa` or a function in Lua"),
    ("request-transformer-advanced", "requests stay as they are; use `proxy-rewrite`"),
    ("response-ratelimiting", "requests are not limited by their responses; use `limit-count`"),
    ("response-transformer-advanced", "responses stay as they are; use `response-rewrite`"),
    ("route-transformer-advanced", "requests go to the service of the route; use `proxy-rewrite` or `traffic-split`"),
    ("service-protection", "services are not limited; use `limits` of the upstream"),
    ("session", "sessions in cookies do not exist here: each request needs the credential of another plugin"),
    ("statsd", "nothing is sent to statsd; scrape the metrics (docs/metrics.md)"),
    ("statsd-advanced", "nothing is sent to statsd; scrape the metrics (docs/metrics.md)"),
    ("tls-handshake-modifier", "client certificates are asked for by `client` of `ssls` (docs/tls.md)"),
    (
        "tls-metadata-headers",
        "properties of client certificates are not passed on; use `proxy-rewrite` with `$ssl_client_s_dn`",
    ),
    ("upstream-oauth", "requests reach the node without a token; set one with `proxy-rewrite`"),
    ("upstream-timeout", "timeouts are those of the service; use `timeout` of the route"),
    ("xml-threat-protection-log", "XML is not looked at"),
];

/// What to use in place of plugins that close their routes.
const ADVICE: &[(&str, &str)] = &[
    ("hmac-auth", "Kong's HMAC signatures have another form than `hmac-auth` here: clients must sign in another way"),
    ("oauth2", "the gateway issues no OAuth tokens: use an identity provider, and `jwt-auth` for its tokens"),
    ("oauth2-introspection", "tokens cannot be introspected: use `forward-auth`, or `jwt-auth`"),
    (
        "openid-connect",
        "there is no login by OpenID Connect: use `jwt-auth` with `jwks_uri` for tokens (docs/keycloak.md)",
    ),
    ("ldap-auth", "LDAP cannot be asked: use `forward-auth`"),
    ("ldap-auth-advanced", "LDAP cannot be asked: use `forward-auth`"),
    ("saml", "there is no login by SAML: use `forward-auth`"),
    (
        "mtls-auth",
        "consumers are not found by client certificates: `client` of `ssls` requires certificates for a host (docs/tls.md)",
    ),
    ("key-auth-enc", "encrypted keys cannot be read: use `key-auth`"),
    ("opa", "Kong's and our plugin `opa` send other inputs: write the plugin `opa` by hand"),
    ("request-validator", "schemas are not imported: write the plugin `request-validation` by hand"),
    (
        "pre-function",
        "functions in Lua call Kong's interfaces: rewrite them for `serverless-pre-function` (docs/lua.md)",
    ),
    (
        "post-function",
        "functions in Lua call Kong's interfaces: rewrite them for `serverless-post-function` (docs/lua.md)",
    ),
    ("aws-lambda", "functions of AWS cannot be called: put an HTTP address in front of them, and make it an upstream"),
    ("azure-functions", "functions of Azure cannot be called by this plugin: make their HTTP address an upstream"),
    ("route-by-header", "requests are not sent elsewhere by header fields: use `traffic-split` with `match`"),
];

fn is_harmless(name: &str) -> bool {
    HARMLESS.iter().any(|(known, _)| *known == name)
}

/// A plugin that has no counterpart here. One that keeps no request out is left out; all others close their routes.
fn unsupported(plugin: &Plugin) -> Translation {
    if let Some((_, what)) = HARMLESS.iter().find(|(known, _)| *known == plugin.name) {
        plugin.object.changed(format!("`{}` does not exist here: {what}", plugin.name));
        return Translation::Nothing;
    }
    let advice = ADVICE.iter().find(|(known, _)| *known == plugin.name).map(|(_, what)| *what);
    let why = match advice {
        Some(what) => what.to_owned(),
        None if plugin.name.starts_with("ai-") => {
            format!("`{}` does not exist here: language models are not called", plugin.name)
        }
        None => format!("`{}` does not exist here, and it may guard its routes", plugin.name),
    };
    close(plugin, &why)
}
