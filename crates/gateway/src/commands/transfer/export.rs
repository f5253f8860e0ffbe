//! `stillgate export`: the resources of a running gateway, an APISIX, or the file of a store, as a configuration file.
//!
//! And `stillgate store backup`: a copy of a store, from its file, or from the gateway that has it open.

use super::TransferFailure;
use super::remote::Remote;
use super::resources::{Name, Resource, Resources, has_secrets, hide_secrets, mark_hidden_key, masks, path_of};
use crate::commands::cli::{Backup, EXIT_GOOD, Export};
use crate::commands::stdout::show;
use crate::configuration::end_flag;
use crate::configuration::kept::{Offline, back_up, read_store, resource_of};
use crate::configuration::source::ConfigSource;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use stillgate_config::ResourceKind;
use stillgate_schema::text::writer;

/// Runs the command; returns the exit code.
pub(crate) fn export(arguments: &Export) -> u8 {
    match run_export(arguments) {
        Ok(text) => {
            show(text);
            EXIT_GOOD
        }
        Err(failure) => failure.report(),
    }
}

fn run_export(arguments: &Export) -> Result<String, TransferFailure> {
    let mut found = match arguments.from.contains("://") {
        true => Remote::new("--from", &arguments.from, &arguments.asking)?.read_all()?.0,
        false => of_store(Path::new(&arguments.from), arguments.config.as_deref())?,
    };
    for (name, resource) in found.iter_mut().filter(|_| !arguments.secrets) {
        hide_secrets(name, &mut resource.document);
        if name.0 == ResourceKind::Ssls {
            mark_hidden_key(&mut resource.document);
        }
    }
    let masked: Vec<String> = found
        .iter()
        .filter(|(_, resource)| !masks(&resource.document).is_empty())
        .map(|(name, _)| path_of(name))
        .collect();
    if !masked.is_empty() {
        let why = match arguments.secrets {
            true => "the Admin API never returns private keys, and no secrets to a viewer's key",
            false => "use --secrets to write them",
        };
        eprintln!("stillgate: {} with masks in place of secrets ({why}): {}", counted(masked.len()), some(&masked));
    }
    let head = format!(
        "# The resources of {}, written by `stillgate export`.\n{}{}",
        arguments.from.trim(),
        end_flag::ANNOUNCEMENT,
        words_on_secrets(&found, arguments.secrets),
    );
    Ok(format!("{head}{}{}", writer::write(&lists(found)), end_flag::LAST_LINE))
}

/// The line of the file's head about secrets: whether it has some, and which are missing.
fn words_on_secrets(found: &Resources, with_secrets: bool) -> String {
    let has_masks = |(_, resource): &(_, &Resource)| !masks(&resource.document).is_empty();
    let masked = found.iter().filter(has_masks);
    let (certificates, others): (Vec<_>, Vec<_>) = masked.partition(|(name, _)| name.0 == ResourceKind::Ssls);
    let named = |of: &[(&Name, &Resource)]| some(&of.iter().map(|(name, _)| path_of(name)).collect::<Vec<_>>());
    let mut sentences = Vec::new();
    if with_secrets && found.iter().any(|(name, resource)| has_secrets(name, &resource.document)) {
        sentences.push("This file CONTAINS SECRETS.".to_owned());
    }
    match (certificates.as_slice(), others.as_slice()) {
        ([], []) => {}
        (of, []) => sentences.push(format!("Private keys of {} are masked (********): put them in.", named(of))),
        _ if with_secrets => {
            let all = [others, certificates].concat();
            sentences.push(format!("Secrets of {} are masked (********): put them in.", named(&all)));
        }
        _ => sentences.push("Secrets are masked (********): put them in before you use the file.".to_owned()),
    }
    match sentences.is_empty() {
        true => String::new(),
        false => format!("# {}\n", sentences.join(" ")),
    }
}

fn of_store(file: &Path, config: Option<&Path>) -> Result<Resources, TransferFailure> {
    let keys = config.map(keyring).transpose()?.unwrap_or_default();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let documents = read_store(file, &keys).map_err(|error| match error {
        Offline::InUse => TransferFailure::Failed(format!(
            "{}: a gateway has the store open; export from its admin address, for example --from http://127.0.0.1:9180",
            file.display()
        )),
        Offline::Unusable(why) => TransferFailure::Unusable(why),
    })?;
    let known = documents.into_iter().filter_map(|(key, stored, mut document)| {
        let name = resource_of(&key)?;
        if let Some(fields) = document.as_object_mut().filter(|_| name.0 != ResourceKind::Consumers) {
            let id =
                name.1.rsplit_once('/').filter(|_| name.0 == ResourceKind::Credentials).map_or(&*name.1, |(_, id)| id);
            fields.insert("id".to_owned(), id.into());
        }
        Some((name, Resource::stored(document, stored.created)))
    });
    Ok(known.collect())
}

/// The keys of a configuration's `gateway.data_encryption`.
fn keyring(config: &Path) -> Result<Vec<String>, TransferFailure> {
    let source = ConfigSource::File(config.to_owned());
    let text = source.read().map_err(|error| TransferFailure::Unusable(error.to_string()))?;
    let loaded = source.parse(&text).map_err(|errors| TransferFailure::Unusable(errors.to_string()))?;
    let keys = &loaded.config.gateway.data_encryption.keyring;
    Ok(keys.iter().map(|key| key.reveal().to_owned()).collect())
}

/// The lists of a file, the oldest resource of each first.
fn lists(found: Resources) -> Vec<(String, Json)> {
    let mut all: Vec<_> = found.into_iter().collect();
    all.sort_by_cached_key(|((kind, id), resource)| (*kind, resource.created, id.clone()));
    let mut credentials: BTreeMap<String, Vec<Json>> = BTreeMap::new();
    let mut lists: BTreeMap<ResourceKind, Vec<Json>> = BTreeMap::new();
    for ((kind, id), resource) in all {
        let document = first(if kind == ResourceKind::Consumers { "username" } else { "id" }, &id, resource.document);
        match (kind, id.split_once('/')) {
            (ResourceKind::Credentials, Some((consumer, _))) => {
                credentials.entry(consumer.to_owned()).or_default().push(document)
            }
            _ => lists.entry(kind).or_default().push(document),
        }
    }
    for consumer in lists.get_mut(&ResourceKind::Consumers).into_iter().flatten() {
        let name = consumer["username"].as_str().unwrap_or_default();
        if let Some(own) = credentials.remove(name) {
            consumer["credentials"] = own.into();
        }
    }
    if !credentials.is_empty() {
        let names: Vec<String> = credentials.into_keys().collect();
        eprintln!("stillgate: credentials of consumers that do not exist are left out: {}", some(&names));
    }
    let mut lists: Vec<(String, Json)> =
        lists.into_iter().map(|(kind, list)| (kind.name().to_owned(), list.into())).collect();
    if lists.is_empty() {
        // An empty file is refused, because an editor may have cut it off.
        lists.push((ResourceKind::Routes.name().to_owned(), Json::Array(Vec::new())));
    }
    lists
}

/// A document with the key that names it in front.
fn first(key: &str, id: &str, document: Json) -> Json {
    let fields = match document {
        Json::Object(fields) => fields,
        other => return other,
    };
    let id = fields.get(key).cloned().filter(|own| !own.is_null()).unwrap_or_else(|| id.into());
    let others = fields.into_iter().filter(|(name, _)| name != key);
    Json::Object(std::iter::once((key.to_owned(), id)).chain(others).collect())
}

pub(super) fn counted(count: usize) -> String {
    if count == 1 { "1 resource".to_owned() } else { format!("{count} resources") }
}

/// A few of many.
pub(super) fn some(names: &[String]) -> String {
    const SHOWN_MAX: usize = 5;
    let shown = names.iter().take(SHOWN_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Runs the command; returns the exit code.
pub(crate) fn backup(arguments: &Backup) -> u8 {
    match run_backup(arguments) {
        Ok(from) => {
            show(format_args!("copied {from} to {}\n", arguments.file.display()));
            EXIT_GOOD
        }
        Err(failure) => failure.report(),
    }
}

/// What was copied.
fn run_backup(arguments: &Backup) -> Result<String, TransferFailure> {
    if let Some(store) = &arguments.store {
        match back_up(store, &arguments.file) {
            Ok(()) => return Ok(store.display().to_string()),
            Err(Offline::InUse) => {}
            Err(Offline::Unusable(why)) => return Err(TransferFailure::Unusable(why)),
        }
    }
    let (bytes, from) = Remote::new("--to", &arguments.to, &arguments.asking)?.backup()?;
    if let Some(store) = &arguments.store {
        let meant = fs::canonicalize(store).unwrap_or_else(|_| store.clone());
        if meant != Path::new(&from) {
            return Err(TransferFailure::Failed(format!(
                "{} is open in another gateway; the one at {} uses {from}. Name the right gateway with --to",
                store.display(),
                arguments.to
            )));
        }
    }
    let unwritten =
        |error: io::Error| TransferFailure::Unusable(format!("cannot write {}: {error}", arguments.file.display()));
    write(&bytes, &arguments.file).map_err(unwritten)?;
    Ok(format!("{from} from {}", arguments.to))
}

/// Only what is whole gets its name, and only its owner reads it.
fn write(bytes: &[u8], to: &Path) -> io::Result<()> {
    let mut partial = to.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let written = write_synced(bytes, &partial).and_then(|()| fs::rename(&partial, to));
    if written.is_err() {
        // What could not be written may not be there either.
        let _ = fs::remove_file(&partial);
    }
    written
}

fn write_synced(bytes: &[u8], to: &Path) -> io::Result<()> {
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(to)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use stillgate_schema::secret_texts::MASK;

    #[test]
    fn the_head_says_whether_secrets_are_in_the_file() {
        let check = |with_secrets: bool, resources: &[(ResourceKind, Json)], expected: &str| {
            let resource = |(kind, document): &(ResourceKind, Json)| {
                ((*kind, "1".to_owned()), Resource::stored(document.clone(), 0))
            };
            let found = resources.iter().map(resource).collect();
            assert_eq!(words_on_secrets(&found, with_secrets), expected, "{resources:?}");
        };
        let route = |key: &str| (ResourceKind::Routes, json!({"plugins": {"key-auth": {"key": key}}}));
        let certificate = |key: &str| (ResourceKind::Ssls, json!({"cert": "c", "key": key}));
        check(true, &[(ResourceKind::Routes, json!({"uri": "/"}))], "");
        check(true, &[route("$env://KEY")], "");
        check(true, &[route("k")], "# This file CONTAINS SECRETS.\n");
        check(
            true,
            &[route("k"), certificate(MASK)],
            "# This file CONTAINS SECRETS. Private keys of ssls/1 are masked (********): put them in.\n",
        );
        check(true, &[certificate(MASK)], "# Private keys of ssls/1 are masked (********): put them in.\n");
        check(true, &[certificate("k")], "# This file CONTAINS SECRETS.\n");
        check(
            true,
            &[route(MASK), certificate(MASK)],
            "# Secrets of routes/1, ssls/1 are masked (********): put them in.\n",
        );
        check(
            false,
            &[route(MASK), certificate(MASK)],
            "# Secrets are masked (********): put them in before you use the file.\n",
        );
        check(false, &[certificate(MASK)], "# Private keys of ssls/1 are masked (********): put them in.\n");
    }
}
