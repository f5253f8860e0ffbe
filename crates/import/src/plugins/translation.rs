//! What a plugin of Kong becomes, and what all translations share.

use super::auth::Auth;
use super::limits::Limit;
use super::transformers::Rewrite;
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
pub(super) fn seconds(field: Option<Field>, default_ms: f64, max: i64) -> i64 {
    let milliseconds = field.and_then(|field| field.number()).unwrap_or(default_ms);
    ((milliseconds / 1000.0).ceil() as i64).clamp(1, max)
}

/// Whether the variable `http_…` of a header field has its value. Variables read `_` as `-`.
pub(super) fn is_variable_name(header: &str) -> bool {
    !header.is_empty() && header.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// A text without variables, for keys whose texts can have some.
pub(crate) fn without_variables(text: &str) -> String {
    text.replace('$', "\\$")
}
