//! Consumers with their credentials and groups.

use crate::kong_file::{Consumer, Credential, CredentialKind, KongFile};
use crate::names::Ids;
use crate::object::Object;
use crate::placement::{ANONYMOUS_LABEL, Placement, RouteIds, add_groups, refuse};
use crate::plugins::TranslationContext;
use serde_json::{Map, Value as Json, json};
use std::collections::HashMap;

/// Algorithms of tokens that are known here.
const ALGORITHMS: [&str; 13] = [
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "EdDSA",
];

/// The user name of each consumer here, and the same by the names and ids of Kong.
pub(crate) struct Usernames {
    list: Vec<String>,
    pub(crate) by_name: HashMap<String, String>,
}

impl Usernames {
    pub(crate) fn read(file: &KongFile) -> Usernames {
        let mut ids = Ids::default();
        let mut names = Usernames { list: Vec::new(), by_name: HashMap::new() };
        for (index, consumer) in file.consumers.iter().enumerate() {
            let entity = &consumer.entity;
            let written = entity.name.clone().or_else(|| entity.object.text("custom_id")).or_else(|| entity.id.clone());
            let written = written.unwrap_or_else(|| format!("consumer-{}", index + 1));
            let username = ids.username(&written);
            if entity.name.as_ref().is_some_and(|name| *name != username) {
                entity.object.changed(format!("a user name has letters, digits, `-` and `_` here, so it is `{username}`, which nodes get as `X-Consumer-Username`"));
            }
            for name in [&entity.id, &entity.name].into_iter().flatten() {
                names.by_name.insert(name.clone(), username.clone());
            }
            names.list.push(username);
        }
        names
    }
}

/// The lists `consumers` and `consumer_groups`.
pub(crate) fn documents(
    file: &KongFile,
    usernames: &Usernames,
    placement: &Placement<'_>,
    cx: &TranslationContext<'_>,
    ids: &RouteIds<'_>,
) -> (Vec<Json>, Vec<Json>) {
    let mut group_ids = Ids::default();
    let names: Vec<String> = file
        .groups
        .iter()
        .enumerate()
        .map(|(index, group)| group_ids.id(group.label().map_or(&format!("group-{}", index + 1), |label| label)))
        .collect();
    let of_groups: Vec<Map<String, Json>> =
        (0..file.groups.len()).map(|index| placement.of_group(index, ids)).collect();
    let groups = file
        .groups
        .iter()
        .enumerate()
        .map(|(index, group)| {
            let mut document = Map::new();
            document.insert("id".to_owned(), names[index].clone().into());
            group.object.stamp(&mut document);
            document.insert("plugins".to_owned(), of_groups[index].clone().into());
            group.object.finish();
            document.into()
        })
        .collect();
    let consumers = file
        .consumers
        .iter()
        .enumerate()
        .map(|(index, consumer)| {
            let mut plugins = placement.of_consumer(index, ids);
            join_groups(consumer, &of_groups, &mut plugins);
            one(file, consumer, &usernames.list[index], plugins, &names, cx)
        })
        .collect();
    (consumers, groups)
}

/// Plugins that let a request through as it is, or change the response only.
const HARMLESS: [&str; 12] = [
    "cors",
    "file-logger",
    "grpc-web",
    "http-logger",
    "opentelemetry",
    "prometheus",
    "request-id",
    "response-rewrite",
    "syslog",
    "tcp-logger",
    "udp-logger",
    "zipkin",
];

/// Adds what a consumer has of its groups but the first, and closes it where that cannot be.
fn join_groups(consumer: &Consumer, of_groups: &[Map<String, Json>], plugins: &mut Map<String, Json>) {
    let object = &consumer.entity.object;
    let mut is_closed = consumer.has_unknown_groups;
    if is_closed {
        object.losses().closed(
            object.path(),
            object.at(),
            "a variable names a group of the consumer, whose plugins are not known here, so the consumer is answered 503; replace its plugin `mocking`",
        );
    }
    if let [first, others @ ..] = &*consumer.groups
        && !others.is_empty()
    {
        let others: Vec<Map<String, Json>> = others.iter().map(|index| of_groups[*index].clone()).collect();
        let collisions = add_groups(plugins, &of_groups[*first], &others);
        let (harmless, guards): (Vec<String>, Vec<String>) =
            collisions.into_iter().partition(|name| HARMLESS.contains(&&**name));
        if let Some(name) = guards.first() {
            is_closed = true;
            object.losses().closed(
                object.path(),
                object.at(),
                format!("several groups of the consumer have a plugin that becomes `{name}`, and it has one group here, so it is answered 503; replace its plugin `mocking`"),
            );
        }
        if let Some(name) = harmless.first() {
            object.lost("groups", &format!("a consumer has one group here, so of the plugins that become `{name}` only that of the first applies"));
        }
        object.lost("groups", "a consumer has one group here; plugins of its other groups are copied to the consumer");
    }
    if is_closed {
        refuse(plugins);
    }
}

fn one(
    file: &KongFile,
    consumer: &Consumer,
    username: &str,
    mut plugins: Map<String, Json>,
    groups: &[String],
    cx: &TranslationContext<'_>,
) -> Json {
    let object = &consumer.entity.object;
    let mut document = Map::new();
    document.insert("username".to_owned(), username.into());
    object.stamp(&mut document);
    let mut labels = document.remove("labels").unwrap_or_else(|| json!({}));
    if let Some(custom_id) = object.text("custom_id") {
        labels["custom_id"] = custom_id.into();
    }
    let (acl_groups, is_incomplete) = object.losses().watch(|| acl_groups(consumer));
    if let Some(groups) = acl_groups {
        labels["groups"] = groups.into();
    }
    if is_incomplete {
        // A group may be one that `deny` of some `acl` names.
        object.losses().closed(
            object.path(),
            object.at(),
            "not all groups of `acls` can be read, so the consumer is answered 503; replace its plugin `mocking`",
        );
        refuse(&mut plugins);
    }
    if cx.anonymous.borrow().contains(username) {
        labels[ANONYMOUS_LABEL] = "true".into();
    }
    if let Some(first) = consumer.groups.first() {
        document.insert("group_id".to_owned(), groups[*first].clone().into());
    }
    if labels.as_object().is_some_and(|labels| !labels.is_empty()) {
        document.insert("labels".to_owned(), labels);
    }
    if !plugins.is_empty() {
        document.insert("plugins".to_owned(), plugins.into());
    }
    let mut ids = Ids::default();
    let credentials: Vec<Json> = consumer
        .credentials
        .iter()
        .enumerate()
        .filter_map(|(index, credential)| {
            let keys = credential_keys(file, credential, cx)?;
            let id = credential.object.text("id").unwrap_or_else(|| format!("credential-{}", index + 1));
            Some(json!({"id": ids.id(&id), "plugins": keys}))
        })
        .collect();
    for credential in &consumer.credentials {
        credential.object.finish();
    }
    if !credentials.is_empty() {
        document.insert("credentials".to_owned(), credentials.into());
    }
    object.finish();
    document.into()
}

/// The groups of `acls` as a label: a list of words, or JSON if a name has a comma.
fn acl_groups(consumer: &Consumer) -> Option<String> {
    let of_groups = consumer.credentials.iter().filter(|credential| credential.kind == CredentialKind::AclGroup);
    let group = |credential: &Credential| {
        let group = credential.object.text("group");
        if !credential.object.has("group") {
            credential.object.losses().unreadable(
                credential.object.path(),
                credential.object.at(),
                "the group is missing",
            );
        }
        group
    };
    let groups: Vec<String> = of_groups.filter_map(group).collect();
    let is_word = |group: &String| !group.contains([',', '[', ']']) && group.trim() == group;
    match groups.is_empty() {
        true => None,
        false if groups.iter().all(is_word) => Some(groups.join(", ")),
        false => Some(json!(groups).to_string()),
    }
}

/// The plugin of a credential; `None`, with a loss, if it is of no use here.
fn credential_keys(file: &KongFile, credential: &Credential, cx: &TranslationContext<'_>) -> Option<Json> {
    let object = &credential.object;
    object.skip(&["id", "created_at", "updated_at", "tags", "consumer"]);
    match credential.kind {
        CredentialKind::Key => {
            object.lost("ttl", "keys do not expire here; remove the key when its time has come");
            let Some(key) = cx.text(object, "key").filter(|key| !key.is_empty()) else {
                missing(object, "key");
                return None;
            };
            Some(json!({"key-auth": {"key": key}}))
        }
        CredentialKind::Basic => basic(file, object, cx),
        CredentialKind::Jwt => jwt(object, cx),
        CredentialKind::Hmac => {
            object.skip(&["username", "secret"]);
            object.changed("Kong's HMAC signatures have another form, so the credential is left out");
            None
        }
        CredentialKind::AclGroup => {
            object.skip(&["group"]);
            None
        }
        CredentialKind::Foreign => {
            object.all();
            object.changed("there are no credentials of this type here; it is left out");
            None
        }
    }
}

/// Reports a credential without its secret.
fn missing(object: &Object, key: &str) {
    object.changed(match object.has(key) {
        true => format!("`{key}` cannot be used; the credential is left out"),
        false => format!("`{key}` is not in the file, because Kong makes it up; the credential is left out"),
    });
}

fn basic(file: &KongFile, object: &Object, cx: &TranslationContext<'_>) -> Option<Json> {
    let text = |key: &str| cx.text(object, key).filter(|text| !text.is_empty());
    let (username, password) = (text("username"), text("password"));
    object.skip(&["skip_hash"]);
    let (Some(username), Some(password)) = (username, password) else {
        object.changed("the user name or the password is missing; the credential is left out");
        return None;
    };
    if file.has_hashed_passwords || (object.has("skip_hash") && object.flag("skip_hash") != Some(false)) {
        object.changed("the password is a hash of Kong's, which is of no use here: the user needs a new password; the credential is left out");
        return None;
    }
    if password.starts_with("$argon2") || password.starts_with("$2") {
        object.changed("a password that begins like a hash of argon2 or bcrypt is taken for one here");
    }
    Some(json!({"basic-auth": {"username": username, "password": password}}))
}

fn jwt(object: &Object, cx: &TranslationContext<'_>) -> Option<Json> {
    let (key, secret, public) = (cx.text(object, "key"), cx.text(object, "secret"), cx.text(object, "rsa_public_key"));
    let algorithm = object.text("algorithm").unwrap_or_else(|| "HS256".to_owned());
    let is_there = |text: &String| !text.is_empty();
    let (key, secret, public) = (key.filter(is_there), secret.filter(is_there), public.filter(is_there));
    if !ALGORITHMS.contains(&&*algorithm) {
        object.lost("algorithm", "tokens cannot be verified with this algorithm; the credential is left out");
        return None;
    }
    let Some(key) = key else {
        missing(object, "key");
        return None;
    };
    let mut keys = json!({"key": key, "algorithm": algorithm});
    if algorithm.starts_with("HS") {
        let Some(secret) = secret else {
            missing(object, "secret");
            return None;
        };
        keys["secret"] = secret.into();
        let uses = cx.base64_secrets.borrow();
        if uses.contains(&true) {
            keys["base64_secret"] = true.into();
            if uses.contains(&false) {
                object.changed("some plugins `jwt` have `secret_is_base64` and others not; here the secret is base64 for all of them");
            }
        }
    } else {
        let Some(public) = public else {
            object.changed("the public key is missing; the credential is left out");
            return None;
        };
        keys["public_key"] = public.into();
    }
    Some(json!({"jwt-auth": keys}))
}
