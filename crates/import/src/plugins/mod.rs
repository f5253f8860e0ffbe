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
mod unsupported;

pub(crate) use auth::{Auth, admits_anonymous, chain as auth_chain, may_lack_consumer};
pub(crate) use limits::{Limit, LimitedRequests};
pub(crate) use transformers::{IDENTITY_FIELDS, Rewrite};

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
    /// User names here of consumers for requests without credentials.
    pub(crate) anonymous: RefCell<BTreeSet<String>>,
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
        self.anonymous.borrow_mut().extend(username.clone());
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

/// Whether the variable `http_…` of a header field has its value. Variables read `_` as `-`.
fn is_variable_name(header: &str) -> bool {
    !header.is_empty() && header.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// A text without variables, for keys whose texts can have some.
pub(crate) fn without_variables(text: &str) -> String {
    text.replace('$', "\\$")
}
