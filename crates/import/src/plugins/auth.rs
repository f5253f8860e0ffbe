//! Plugins that authenticate: key-auth, basic-auth and jwt.
//!
//! In Kong all of a route's must know the request, unless they name an anonymous consumer: then one is enough. Here
//! the first is what several plugins do, the second is `multi-auth`.

use super::translation::{Chain, Translation, TranslationContext, close};
use crate::environment::lowercase;
use crate::kong_file::Plugin;
use crate::object::Object;
use serde_json::{Map, Value as Json, json};

/// One authentication of Kong.
#[derive(Debug, Clone)]
pub(crate) struct Auth {
    /// The order in which Kong asks.
    order: u8,
    name: &'static str,
    /// One for each place of the credential. One of them must recognise the request.
    entries: Vec<Json>,
    anonymous: Option<String>,
    skips_preflight: bool,
}

/// `key-auth`: a key under several names becomes several entries.
pub(super) fn key_auth(plugin: &Plugin, cx: &TranslationContext<'_>) -> Translation {
    let config = &plugin.config;
    let mut names = config.texts("key_names");
    if names.is_empty() {
        names.push("apikey".to_owned());
    }
    let common = common_keys(config, cx);
    let (in_header, in_query) =
        (config.flag("key_in_header").unwrap_or(true), config.flag("key_in_query").unwrap_or(true));
    if !in_header || !in_query {
        config.changed("keys are accepted in the header field and in the query here, wherever Kong looks for them");
    }
    config
        .lost_if_set("key_in_body", "keys in bodies are not read here; requests that have only these are answered 401");
    config.lost("identity_realms", "keys of other realms are not known here");
    let entry = |name: &String| with(&common, json!({"header": lowercase(name), "query": name}));
    let entries = names.iter().map(entry).collect();
    auth(config, cx, 2, "key-auth", entries)
}

pub(super) fn basic_auth(plugin: &Plugin, cx: &TranslationContext<'_>) -> Translation {
    let config = &plugin.config;
    let mut keys = common_keys(config, cx);
    keys.entry("realm").or_insert_with(|| "service".into());
    auth(config, cx, 3, "basic-auth", vec![keys.into()])
}

pub(super) fn jwt(plugin: &Plugin, cx: &TranslationContext<'_>) -> Translation {
    let config = &plugin.config;
    let mut common = common_keys(config, cx);
    let claim = config.text("key_claim_name").unwrap_or_else(|| "iss".to_owned());
    common.insert("key_claim_name".to_owned(), claim.into());
    let claims = config.texts("claims_to_verify");
    if claims.is_empty() {
        config.changed("Kong accepts expired tokens without `claims_to_verify`; here `exp` and `nbf` are verified where a token has them");
    } else {
        common.insert("claims_to_verify".to_owned(), claims.into());
    }
    cx.base64_secrets.borrow_mut().insert(config.flag("secret_is_base64").unwrap_or(false));
    let or = |names: Vec<String>, is_there: bool, default: &str| match is_there {
        true => names,
        false => vec![default.to_owned()],
    };
    let headers = or(config.texts("header_names"), config.has("header_names"), "authorization");
    let queries = or(config.texts("uri_param_names"), config.has("uri_param_names"), "jwt");
    let cookies = config.texts("cookie_names");
    if headers.is_empty() || queries.is_empty() || cookies.is_empty() {
        config.changed("a token is looked for in a header field, the query and a cookie here: those without a name are `authorization`, `jwt` and `jwt`");
    }
    let count = headers.len().max(queries.len()).max(cookies.len()).max(1);
    let entries = (0..count).map(|index| {
        let mut keys = common.clone();
        for (key, names) in [("header", &headers), ("query", &queries), ("cookie", &cookies)] {
            keys.extend(names.get(index).or(names.last()).map(|name| (key.to_owned(), name.clone().into())));
        }
        Json::from(keys)
    });
    let entries = entries.collect();
    // A number that is not known may be a bound.
    let is_bounded = config.has("maximum_expiration") && config.number("maximum_expiration") != Some(0.0);
    let translated = auth(config, cx, 1, "jwt-auth", entries);
    match is_bounded {
        true => close(plugin, "`maximum_expiration` cannot be checked here"),
        false => translated,
    }
}

/// The keys that all have.
fn common_keys(config: &Object, _: &TranslationContext<'_>) -> Map<String, Json> {
    let mut keys = Map::new();
    if let Some(hides) = config.switch("hide_credentials").filter(|hides| *hides != Json::Bool(false)) {
        keys.insert("hide_credentials".to_owned(), hides);
    }
    if let Some(realm) = config.text("realm") {
        keys.insert("realm".to_owned(), realm.into());
    }
    keys
}

fn with(common: &Map<String, Json>, more: Json) -> Json {
    let mut keys = crate::upstreams::json_map(more);
    keys.extend(common.clone());
    keys.into()
}

fn auth(
    config: &Object,
    cx: &TranslationContext<'_>,
    order: u8,
    name: &'static str,
    entries: Vec<Json>,
) -> Translation {
    let anonymous = cx.anonymous(config);
    let skips_preflight = config.flag("run_on_preflight") == Some(false);
    Translation::Auth(Auth { order, name, entries, anonymous, skips_preflight })
}

/// The plugins of a route that has these authentications.
pub(crate) fn chain(auths: &[Auth]) -> Chain {
    let mut all: Vec<&Auth> = auths.iter().collect();
    all.sort_by_key(|auth| auth.order);
    // Plugins with an anonymous consumer refuse no request, and a required one replaces the consumer that they find.
    let required: Vec<&Auth> = all.iter().copied().filter(|auth| auth.anonymous.is_none()).collect();
    if required.is_empty() {
        return one_of(&all);
    }
    let mut chain = Chain::new();
    for auth in &required {
        match &*auth.entries {
            [one] => chain.push((auth.name, with_filter(one.clone(), auth.skips_preflight))),
            // There is one `multi-auth` in a chain.
            [first, ..] if chain.iter().any(|(name, _)| *name == "multi-auth") => {
                chain.push((auth.name, with_filter(first.clone(), auth.skips_preflight)));
            }
            _ => chain.extend(one_of(&[auth])),
        }
    }
    chain
}

/// Whether some requests pass all of them and have no consumer: in Kong, preflight requests that need no credentials.
pub(crate) fn may_lack_consumer(auths: &[Auth]) -> bool {
    let mut required = auths.iter().filter(|auth| auth.anonymous.is_none()).peekable();
    match required.peek() {
        Some(_) => required.all(|auth| auth.skips_preflight),
        None => auths.iter().all(|auth| auth.skips_preflight),
    }
}

/// Whether requests without credentials get an anonymous consumer.
pub(crate) fn admits_anonymous(auths: &[Auth]) -> bool {
    !auths.is_empty() && auths.iter().all(|auth| auth.anonymous.is_some())
}

fn one_of(auths: &[&Auth]) -> Chain {
    let Some(last) = auths.last() else { return Chain::new() };
    let mut entries: Vec<(&'static str, Json)> =
        auths.iter().flat_map(|auth| auth.entries.iter().map(|entry| (auth.name, entry.clone()))).collect();
    if let (Some(anonymous), Some((_, entry))) = (&last.anonymous, entries.last_mut()) {
        entry["anonymous_consumer"] = anonymous.clone().into();
    }
    let skips_preflight = auths.iter().all(|auth| auth.skips_preflight);
    match &*entries {
        [(name, entry)] => vec![(*name, with_filter(entry.clone(), skips_preflight))],
        _ => {
            let plugins: Vec<Json> = entries.into_iter().map(|(name, entry)| json!({name: entry})).collect();
            vec![("multi-auth", with_filter(json!({"auth_plugins": plugins}), skips_preflight))]
        }
    }
}

fn with_filter(mut keys: Json, skips_preflight: bool) -> Json {
    if skips_preflight {
        keys["_meta"] = json!({"filter": [["request_method", "~=", "OPTIONS"]]});
    }
    keys
}
