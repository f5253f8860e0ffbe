//! Messages do not repeat what may be a secret: a text is put at every place that the schema has, in every wrong form.
//!
//! `load` is what `stillgate check` shows to the owner of a file. An [`IncrementalReader`] is what the log and the status show.

use crate::plugins::TABLE;
use serde_json::{Value as Json, json};
use stillgate_config::{DigestedText, Errors, IncrementalReader, PluginSet, load_with, schema};

/// The text that no message may have, also as a number.
const SECRET: &str = "S3CRET-1";
const NUMBER: u64 = 837_492_018_465;

/// The deepest place that is looked at.
const DEPTH_MAX: usize = 8;

/// Names of keys whose values are secrets, or hold some.
const SECRET_KEYS: [&str; 12] = [
    "key",
    "keys",
    "keyring",
    "password",
    "hmac_key",
    "registry",
    "redis",
    "url",
    "token",
    "role_id",
    "secret_id",
    "client_key",
];

/// Objects in which the name of a key may be a secret: that of a key and its value in the wrong order.
const SECRET_HOLDERS: [&str; 7] = [
    "gateway.admin",
    "gateway.admin.keys[]",
    "gateway.devices",
    "gateway.devices.keys[]",
    "gateway.devices.registry.redis",
    "gateway.config.etcd",
    "gateway.data_encryption",
];

/// A key of a map, with the required ones beside it.
type KeyStep = (String, Vec<(String, Json)>);

/// A place in a file.
#[derive(Clone)]
struct Place {
    /// `gateway.admin.keys[].role`.
    path: String,
    /// The keys from the root; `None`: the item of a list.
    steps: Vec<Option<KeyStep>>,
    /// Whether a text, a number or the like may be there.
    is_scalar: bool,
    is_map: bool,
}

impl Place {
    /// A file with this value there.
    fn file(&self, value: Json) -> String {
        let wrap = |value, step: &Option<KeyStep>| match step {
            None => json!([value]),
            Some((key, beside)) => {
                let mut map: serde_json::Map<String, Json> = beside.iter().cloned().collect();
                map.insert(key.clone(), value);
                map.into()
            }
        };
        self.steps.iter().rev().fold(value, wrap).to_string()
    }

    fn last_key(&self) -> &str {
        self.steps.iter().rev().flatten().next().map_or("", |(key, _)| key)
    }

    fn below(&self, key: &str, beside: Vec<(String, Json)>) -> Place {
        let separator = if self.path.is_empty() { "" } else { "." };
        let steps = self.steps.iter().cloned().chain([Some((key.to_owned(), beside))]).collect();
        Place { path: format!("{}{separator}{key}", self.path), steps, ..self.clone() }
    }
}

/// A valid value of a required key, so that a file is read as far as possible.
fn valid(key: &str) -> Option<Json> {
    Some(match key {
        "address" => "127.0.0.1:1".into(),
        "agree_terms" => true.into(),
        "host" | "id" | "name" | "username" => "a".into(),
        "key" | "kid" | "hmac_key" | "password" | "token" => "abcd".into(),
        "endpoints" => json!(["http://127.0.0.1:1"]),
        "storage" | "path" | "cert" => "/a".into(),
        "uri" => "http://127.0.0.1:1".into(),
        "url" => "redis://127.0.0.1:1".into(),
        _ => return None,
    })
}

/// The schemas that a value may have.
fn alternatives<'a>(root: &'a Json, schema: &'a Json, found: &mut Vec<&'a Json>) {
    if let Some(name) = schema["$ref"].as_str() {
        alternatives(root, root.pointer(&name[1..]).unwrap(), found);
    }
    schema["anyOf"].as_array().into_iter().flatten().for_each(|one| alternatives(root, one, found));
    found.push(schema);
}

fn places(root: &Json, schema: &Json, place: &Place, found: &mut Vec<Place>) {
    let mut schemas = Vec::new();
    alternatives(root, schema, &mut schemas);
    let has = |kind: &str| {
        let is = |of: &Json| of["type"] == kind || of["type"].as_array().is_some_and(|all| all.contains(&kind.into()));
        schemas.iter().any(|schema| is(schema))
    };
    let is_word = schemas.iter().any(|schema| schema["enum"].is_array());
    let is_scalar = is_word || ["string", "integer", "number", "boolean"].into_iter().any(has);
    let (is_list, is_map) = (has("array"), has("object"));
    let place = Place { is_scalar: is_scalar || !(is_list || is_map), is_map, ..place.clone() };
    found.push(place.clone());
    if place.steps.len() == DEPTH_MAX {
        return;
    }
    for schema in schemas {
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Json::as_str);
        let required: Vec<(String, Json)> = required.filter_map(|key| Some((key.to_owned(), valid(key)?))).collect();
        for (key, of) in schema["properties"].as_object().into_iter().flatten() {
            places(root, of, &place.below(key, required.clone()), found);
        }
        if schema["additionalProperties"].is_object() {
            places(root, &schema["additionalProperties"], &place.below("x", required), found);
        }
        if schema["items"].is_object() {
            let steps = place.steps.iter().cloned().chain([None]).collect();
            places(root, &schema["items"], &Place { path: format!("{}[]", place.path), steps, ..place.clone() }, found);
        }
    }
}

fn all_places() -> Vec<Place> {
    let schema = schema(&TABLE);
    let root = Place { path: String::new(), steps: Vec::new(), is_scalar: false, is_map: true };
    let mut found = Vec::new();
    places(&schema, &schema, &root, &mut found);
    assert!(found.len() > 500 && found.iter().any(|place| place.path == "gateway.admin.keys[].role"));
    found
}

/// Everything that is said about a file to its owner, or to all.
fn messages(file: &str, is_for_all: bool) -> String {
    let plugins = PluginSet { table: TABLE, ..PluginSet::default() };
    let told = |errors: Errors| errors.to_string();
    let warned = |warnings: &[stillgate_config::Diagnostic]| warnings.iter().map(ToString::to_string).collect();
    match is_for_all {
        false => load_with(file, &|_| None, plugins).map_or_else(told, |loaded| warned(&loaded.warnings)),
        true => {
            let loaded = IncrementalReader::new(plugins).load(DigestedText::new(file.into()), &|_| None);
            loaded.map_or_else(told, |loaded| warned(&loaded.warnings))
        }
    }
}

/// Checks that no message repeats the secret in a value; returns what does.
fn repeated(place: &Place, value: Json, is_for_all: bool) -> Option<String> {
    let file = place.file(value);
    let told = messages(&file, is_for_all);
    let is_repeated = told.contains(SECRET) || told.contains(&NUMBER.to_string());
    is_repeated.then(|| format!("{} in {file}:\n{told}", place.path))
}

fn check(mut repeated: Vec<String>) {
    let path = |told: &String| told.split(' ').next().unwrap_or_default().to_owned();
    repeated.dedup_by_key(|told| path(told));
    assert!(repeated.is_empty(), "{} places:\n{}", repeated.len(), repeated.join("\n"));
}

#[test]
fn a_text_in_place_of_a_list_or_a_map_is_not_repeated() {
    let check_place = |place: &Place| {
        let odd = if place.is_map { json!([SECRET]) } else { json!({ SECRET: SECRET }) };
        [json!(SECRET), json!(NUMBER), odd].map(|value| repeated(place, value, false))
    };
    check(all_places().iter().filter(|place| !place.is_scalar).flat_map(check_place).flatten().collect());
}

#[test]
fn a_login_in_an_address_is_not_repeated() {
    let wrong = ["http://u:S3CRET-1@h:1", "u:S3CRET-1@h:1", "redis://S3CRET-1@[bad", "ftp://u:S3CRET-1/@#@h/"];
    let check_place = |place: &Place| {
        // The owner of a file is shown everything that is wrong with its resources.
        let is_for_all = !place.path.starts_with("gateway");
        wrong.map(|text| repeated(place, text.into(), is_for_all))
    };
    check(all_places().iter().flat_map(check_place).flatten().collect());
}

#[test]
fn a_secret_in_any_form_is_not_repeated() {
    let check_place = |place: &Place| {
        let values =
            [json!(SECRET), json!(NUMBER), json!([SECRET]), json!({"x": SECRET}), json!([[NUMBER]]), json!(true)];
        values.into_iter().filter_map(|value| repeated(place, value, true)).collect::<Vec<_>>()
    };
    let is_secret = |place: &&Place| {
        let is_in_holder = place.path.strip_prefix("gateway.").is_some_and(|path| path.contains(".keys[]"));
        SECRET_KEYS.contains(&place.last_key()) || is_in_holder
    };
    check(all_places().iter().filter(is_secret).flat_map(check_place).collect());
}

#[test]
fn a_secret_in_place_of_a_key_is_not_repeated() {
    let all = all_places();
    let mut found = Vec::new();
    for holder in SECRET_HOLDERS {
        let place = all.iter().find(|place| place.path == holder).expect(holder);
        for value in [json!({ SECRET: "key" }), json!({ SECRET: { "a": 1 } }), json!({ NUMBER.to_string(): [1] })] {
            found.extend([false, true].map(|is_for_all| repeated(place, value.clone(), is_for_all)));
        }
    }
    for credential in [
        json!(SECRET),
        json!([SECRET]),
        json!({ SECRET: "key" }),
        json!({"key": "k", SECRET: SECRET}),
        json!({"key": [SECRET]}),
        json!({"key": {SECRET: 1}}),
        json!({"key": NUMBER}),
    ] {
        let place = all.iter().find(|place| place.path == "consumers[].plugins").expect("consumers have plugins");
        found.push(repeated(place, json!({ "key-auth": credential }), true));
    }
    check(found.into_iter().flatten().collect());
}

#[test]
fn a_misspelt_key_beside_secrets_is_repeated() {
    let told = |file: &str| messages(file, true);
    let file = r#"{"gateway": {"admin": {"address": "127.0.0.1:1", "keys": [{"name": "a", "key": "k", "roles": "viewer"}], "colour": 1}}}"#;
    let told = told(file);
    assert!(told.contains("unknown key \"roles\"; did you mean \"role\"?"), "{told}");
    assert!(told.contains("unknown key \"colour\"; known keys: "), "{told}");
}
