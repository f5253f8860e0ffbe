//! Kong's plugins, each as what it becomes here: one line a plugin in [`TABLE`].
//!
//! A plugin that guards a route and cannot be translated closes the route ([`Translation::Closed`]). That holds for
//! plugins that the importer has never heard of, too: it cannot know that they guard nothing.

mod answers;
mod auth;
mod cors;
mod header_edits;
mod limits;
mod loggers;
mod restrictions;
mod tracing;
mod transformers;
mod translation;
mod unsupported;

pub(crate) use auth::{Auth, admits_anonymous, chain as auth_chain, may_lack_consumer};
pub(crate) use limits::{Limit, LimitedRequests};
pub(crate) use transformers::{IDENTITY_FIELDS, Rewrite};
pub(crate) use translation::{Chain, Translation, TranslationContext, close, without_variables};

use crate::kong_file::Plugin;

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
    let restricts = is_guard(&plugin.name) || LIMITS.contains(&&*plugin.name);
    if plugin.is_of_unknown_scope {
        return match restricts {
            true => close(plugin, "a variable says where the plugin applies, so it closes all that it may apply to"),
            false => {
                plugin.object.changed("a variable says where the plugin applies; it is left out");
                Translation::Nothing
            }
        };
    }
    let Some((_, translate)) = TABLE.iter().find(|(name, _)| *name == plugin.name) else {
        return unsupported::translate(plugin);
    };
    let (translated, is_incomplete) = plugin.config.losses().watch(|| translate(plugin, cx));
    plugin.config.finish();
    // The default of an option that cannot be read may admit more than the file does.
    match restricts && (is_incomplete || plugin.is_incomplete) && !matches!(translated, Translation::Closed) {
        true => close(plugin, "not all options can be read"),
        false => translated,
    }
}

/// Plugins that keep out some requests, by number or size or origin.
const LIMITS: [&str; 3] = ["cors", "rate-limiting", "request-size-limiting"];

/// Whether the importer knows a plugin, be it to leave it out or to close its routes.
pub(crate) fn is_known(name: &str) -> bool {
    TABLE.iter().any(|(known, _)| *known == name) || unsupported::is_known(name)
}

/// Whether a plugin keeps requests out.
pub(crate) fn is_guard(name: &str) -> bool {
    matches!(
        name,
        "acl" | "ip-restriction" | "request-termination" | "bot-detection" | "key-auth" | "basic-auth" | "jwt"
    ) || (!TABLE.iter().any(|(known, _)| *known == name) && !unsupported::is_harmless(name))
}
