//! Compiles secret managers, which resolve references.

use super::plugins::PluginSet;
use super::take_id;
use crate::keys::resource_list::Resource;
use crate::keys::secrets::{SecretManagerKeys, VaultAuthKeys, VaultMethod};
use std::collections::HashMap;
use std::sync::Arc;
use stillgate_plugin::secrets::{Manager, Managers, Secret, Secrets, VaultLogin, is_reference};
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink};

/// These plugins, with references to these managers.
pub(crate) fn with_managers(set: PluginSet, written: Vec<Resource<SecretManagerKeys>>, sink: &mut Sink) -> PluginSet {
    let mut managers = Managers::default();
    let mut ids = HashMap::new();
    let list = Path::Root.key("secrets");
    for Resource { index, at, keys, .. } in written {
        let path = list.index(index);
        take_id(&mut ids, &keys.id, at.line, &path, sink);
        let name = keys.id.value.trim_start_matches("vault/").into();
        if let Some(manager) = manager(keys, &*set.secrets, at, &path, sink) {
            managers.0.insert(name, Arc::new(manager));
        }
    }
    match set.secrets.with_managers(&managers) {
        Some(secrets) => PluginSet { secrets, ..set },
        None => set,
    }
}

/// Compiles a manager's keys.
pub(super) fn manager(
    keys: SecretManagerKeys,
    secrets: &dyn Secrets,
    at: Position,
    path: &Path<'_>,
    sink: &mut Sink,
) -> Option<Manager> {
    let login = match (keys.token, keys.auth) {
        (Some(token), None) => VaultLogin::Token(known(token.value, secrets, token.at, &path.key("token"), sink)?),
        (None, Some(auth)) => login(auth, secrets, at, &path.key("auth"), sink)?,
        (Some(token), Some(_)) => {
            let fault = Fault::new("both \"token\" and \"auth\" are here").hint("remove one");
            sink.error(token.at, &path.key("token"), fault);
            return None;
        }
        // Reported with the keys.
        (None, None) => return None,
    };
    Some(Manager {
        uri: keys.uri.into(),
        prefix: keys.prefix.into(),
        namespace: keys.namespace.map(Into::into),
        version: keys.kv_version,
        login,
        ca: keys.ca.map(Into::into),
        verify: keys.ssl_verify,
        timeout: keys.timeout,
        refresh: keys.refresh,
    })
}

fn login(
    keys: VaultAuthKeys,
    secrets: &dyn Secrets,
    at: Position,
    path: &Path<'_>,
    sink: &mut Sink,
) -> Option<VaultLogin> {
    let mut missing = |key: &str| {
        let fault = Fault::new(format!("the key {key:?} is missing"));
        sink.error(at, path, fault.hint("the method needs it"));
        None
    };
    match keys.method {
        VaultMethod::Kubernetes => {
            let Some(role) = keys.role else { return missing("role") };
            let mount = keys.mount.unwrap_or_else(|| "kubernetes".to_owned());
            Some(VaultLogin::Kubernetes { mount: mount.into(), role: role.into(), jwt_file: keys.jwt_file })
        }
        VaultMethod::AppRole => {
            let Some(role_id) = keys.role_id else { return missing("role_id") };
            let role_id = known(role_id, secrets, at, &path.key("role_id"), sink)?;
            let secret_id = match keys.secret_id {
                Some(id) => Some(known(id, secrets, at, &path.key("secret_id"), sink)?),
                None => None,
            };
            let mount = keys.mount.unwrap_or_else(|| "approle".to_owned());
            Some(VaultLogin::AppRole { mount: mount.into(), role_id, secret_id })
        }
    }
}

/// The value of a secret, which may be a reference.
fn known(secret: Secret, secrets: &dyn Secrets, at: Position, path: &Path<'_>, sink: &mut Sink) -> Option<Secret> {
    if !is_reference(secret.reveal()) {
        sink.hide(secret.reveal());
        return Some(secret);
    }
    match secrets.resolve(secret.reveal()) {
        Ok(text) => {
            sink.hide(&text);
            Some(Secret::new(text))
        }
        Err(why) => {
            sink.error(at, path, Fault::new(format!("{}: {why}", secret.reveal())));
            None
        }
    }
}
