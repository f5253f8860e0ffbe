//! Plugins that have no counterpart here. Those that keep no request out are left out; all others close their routes.

use super::translation::{Translation, close};
use crate::kong_file::Plugin;

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

pub(super) fn is_harmless(name: &str) -> bool {
    HARMLESS.iter().any(|(known, _)| *known == name)
}

pub(super) fn is_known(name: &str) -> bool {
    is_harmless(name) || ADVICE.iter().any(|(known, _)| *known == name)
}

pub(super) fn translate(plugin: &Plugin) -> Translation {
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
