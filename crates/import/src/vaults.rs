//! References to vaults, `{vault://…}`, as references to secrets here.

use crate::kong_file::KongFile;
use crate::object::{Field, Object};
use serde_json::{Map, Value as Json, json};
use std::collections::{BTreeMap, HashMap};

/// What the vaults of a file become.
pub(crate) struct Vaults {
    by_prefix: HashMap<String, Vault>,
    /// The list `secrets`.
    pub(crate) managers: Vec<Json>,
}

enum Vault {
    /// Variables of the environment, with what their names begin with.
    Environment(String),
    /// The name of a manager.
    HashiCorp(String),
    /// A vault that has nothing like it here.
    Foreign,
}

impl Vaults {
    pub(crate) fn read(file: &KongFile) -> Vaults {
        let mut vaults = Vaults { by_prefix: HashMap::new(), managers: Vec::new() };
        vaults.by_prefix.insert("env".to_owned(), Vault::Environment(String::new()));
        for object in &file.vaults {
            object.skip(&["id", "description", "created_at", "updated_at", "tags"]);
            let (name, prefix) = (object.text("name").unwrap_or_default(), object.text("prefix").unwrap_or_default());
            let config = object.object("config");
            let vault = match (&*name, &config) {
                ("env", _) => {
                    let begin = config.as_ref().and_then(|config| config.text("prefix")).unwrap_or_default();
                    Vault::Environment(begin)
                }
                ("hcv", Some(config)) => {
                    vaults.managers.push(manager(&prefix, config));
                    Vault::HashiCorp(prefix.clone())
                }
                _ => {
                    object.changed(
                        "vaults of this type do not exist here; put its secrets into environment variables or files",
                    );
                    Vault::Foreign
                }
            };
            if let (Some(config), false) = (&config, matches!(vault, Vault::Foreign)) {
                config.finish();
            }
            object.finish();
            vaults.by_prefix.insert(prefix, vault);
        }
        vaults
    }

    /// The text of a field, with a reference in the form that it has here. `None`, with a loss, if it has none.
    pub(crate) fn text(&self, field: &Field) -> Option<String> {
        let text = field.text()?;
        let Some(reference) = text.strip_prefix("{vault://").and_then(|rest| rest.strip_suffix('}')) else {
            return Some(text);
        };
        let found = self.reference(reference);
        if found.is_none() {
            field.lost("the reference leads to a vault that does not exist here, so the value is left out; use `$env://NAME` or `$secret://file/PATH`");
        }
        found
    }

    fn reference(&self, reference: &str) -> Option<String> {
        let path = reference.split(['?', '#']).next().unwrap_or_default();
        let (prefix, rest) = path.split_once('/')?;
        match self.by_prefix.get(prefix)? {
            Vault::Environment(begin) => {
                let (name, key) = rest.split_once('/').map_or((rest, None), |(name, key)| (name, Some(key)));
                // Kong's own rule for names.
                let name = format!("{begin}{name}").replace('-', "_").to_uppercase();
                Some(key.map_or_else(|| format!("$env://{name}"), |key| format!("$env://{name}/{key}")))
            }
            Vault::HashiCorp(name) => Some(format!("$secret://vault/{name}/{rest}")),
            Vault::Foreign => None,
        }
    }
}

fn manager(prefix: &str, config: &Object) -> Json {
    let protocol = config.text("protocol").unwrap_or_else(|| "http".to_owned());
    let host = config.text("host").unwrap_or_else(|| "127.0.0.1".to_owned());
    let port = config.whole("port").unwrap_or(8200);
    let mut keys = Map::new();
    keys.insert("id".to_owned(), format!("vault/{prefix}").into());
    keys.insert("uri".to_owned(), format!("{protocol}://{host}:{port}").into());
    keys.insert("prefix".to_owned(), config.text("mount").unwrap_or_else(|| "secret".to_owned()).into());
    if config.text("kv").as_deref() == Some("v2") {
        keys.insert("kv_version".to_owned(), 2.into());
    }
    if let Some(namespace) = config.text("namespace") {
        keys.insert("namespace".to_owned(), namespace.into());
    }
    let method = config.text("auth_method").unwrap_or_else(|| "token".to_owned());
    let token = config.text("token");
    let texts: BTreeMap<&str, Option<String>> = [
        "kube_role",
        "kube_auth_path",
        "kube_api_token_file",
        "approle_role_id",
        "approle_secret_id",
        "approle_auth_path",
    ]
    .into_iter()
    .map(|key| (key, config.text(key)))
    .collect();
    let of = |key: &str| texts.get(key).cloned().flatten();
    match &*method {
        "kubernetes" => {
            keys.insert(
                "auth".to_owned(),
                auth(
                    "kubernetes",
                    [
                        ("role", of("kube_role")),
                        ("mount", of("kube_auth_path")),
                        ("jwt_file", of("kube_api_token_file")),
                    ],
                ),
            );
        }
        "approle" => {
            keys.insert(
                "auth".to_owned(),
                auth(
                    "approle",
                    [
                        ("role_id", of("approle_role_id")),
                        ("secret_id", of("approle_secret_id")),
                        ("mount", of("approle_auth_path")),
                    ],
                ),
            );
        }
        "token" => {
            keys.insert("token".to_owned(), token.unwrap_or_else(|| "$env://VAULT_TOKEN".to_owned()).into());
        }
        _ => {
            config.lost(
                "auth_method",
                "this way of logging in does not exist here; write `token` or `auth` into the result",
            );
            keys.insert("token".to_owned(), "$env://VAULT_TOKEN".into());
        }
    }
    keys.into()
}

fn auth(method: &str, keys: [(&str, Option<String>); 3]) -> Json {
    let mut auth = json!({"method": method});
    for (key, value) in keys {
        if let Some(value) = value {
            auth[key] = value.into();
        }
    }
    auth
}
