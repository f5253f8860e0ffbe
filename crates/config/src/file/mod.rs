//! The file source: reads a text into a configuration, as a whole or by its differences from the previous text. A file is accepted
//! or refused as a whole.

mod documents;
mod incremental;
mod masks;
mod whole;

pub use documents::{FileDocument, documents};
pub use incremental::{DigestedText, IncrementalReader};
pub use stillgate_schema::secret_texts::{MASK, is_masked};

use crate::keys::control_plane::SourceNeed;
use crate::keys::files::WHOLE_PATH;
use crate::keys::resources::File;
use crate::model::{Config, Listener, LoadedConfig, ResourceKind};
use crate::resources::{PluginSet, check_ignored, with_custom_plugins};
use crate::secret_fields::hide_in;
use crate::values::digest;
use masks::Masks;
use std::collections::BTreeSet;
use std::path::PathBuf;
use stillgate_schema::text::diagnostic::{Errors, Fault, Path, Position, Sink};
use stillgate_schema::text::environment::{Lookup, expand};
use stillgate_schema::text::tree::within;
use stillgate_schema::text::tree::{self, Node, Value};
use stillgate_schema::{kind, object};

/// The largest configuration file.
pub const FILE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Reads a configuration from its text, without plugins. `environment` resolves `${NAME}`. For successive texts use a [`IncrementalReader`],
/// whose time is proportional to the differences.
pub fn load(text: impl AsRef<[u8]>, environment: Lookup<'_>) -> Result<LoadedConfig, Errors> {
    load_with(text, environment, PluginSet::default())
}

/// Like [`load`], with plugins.
pub fn load_with(text: impl AsRef<[u8]>, environment: Lookup<'_>, plugins: PluginSet) -> Result<LoadedConfig, Errors> {
    let text = text.as_ref();
    let mut sink = Sink::default();
    let config = read(text, environment, &mut sink)
        .map(|written| resolve(written.file, digest(text), plugins, &written.tree.root, &mut sink).0);
    finish(config, sink)
}

/// `gateway.pid_file` of a text. No other value is read, so `environment` need not have their variables.
pub fn pid_file(text: &[u8], environment: Lookup<'_>) -> Result<Option<PathBuf>, Errors> {
    let mut sink = Sink::default();
    let found = tree_of(text, None, &mut sink).and_then(|tree| {
        let node = below(below(&tree.root, "gateway")?, "pid_file").filter(|node| !node.is_null())?;
        let path = Path::Root.key("gateway");
        let path = path.key("pid_file");
        let mut node = node.clone();
        if let Value::Scalar(scalar) = &mut node.value {
            match expand(&scalar.text, environment) {
                Ok(text) => scalar.text = text.map_or_else(|| scalar.text.clone(), Into::into),
                Err(fault) => {
                    sink.error(node.at, &path, fault.hint("name the process with --pid or --pid-file"));
                    return None;
                }
            }
        }
        kind::read(&WHOLE_PATH, &node, &path, &mut sink)
    });
    if sink.has_errors() { Err(sink.into_errors()) } else { Ok(found) }
}

fn below<'a>(node: &'a Node, key: &str) -> Option<&'a Node> {
    let Value::Map(entries) = &node.value else { return None };
    entries.iter().find(|entry| &*entry.key == key).map(|entry| &entry.value)
}

/// The parsed content of a text, before its meaning is determined.
struct ParsedFile {
    tree: tree::Tree,
    file: File,
}

fn read(bytes: &[u8], environment: Lookup<'_>, sink: &mut Sink) -> Option<ParsedFile> {
    let tree = tree_of(bytes, Some(environment), sink)?;
    let file = kind::read(&object::map::<File>(), &tree.root, &Path::Root, sink)?;
    // Then its meaning is not determined: two masks would look like the same key of two consumers.
    (!masks::refuse(&tree.root, Masks::Refused, sink)).then_some(ParsedFile { tree, file })
}

fn tree_of(bytes: &[u8], environment: Option<Lookup<'_>>, sink: &mut Sink) -> Option<tree::Tree> {
    if bytes.len() > FILE_BYTES_MAX {
        let message = format!("the file is larger than {FILE_BYTES_MAX} bytes");
        sink.error(Position::NOWHERE, &Path::Root, message);
        return None;
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let at = position_of(&bytes[..error.valid_up_to()]);
            let fault = Fault::new("not UTF-8").hint("save the file as UTF-8");
            sink.error(at, &Path::Root, fault);
            return None;
        }
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    tree::parse(0, text, environment, sink)?.unless_empty("routes: []", sink)
}

/// Some resource cannot be read, so references to a resource that is written in the file are not called missing.
fn excuse_written(root: &Node, sink: &mut Sink) {
    let Value::Map(entries) = &root.value else { return };
    for (kind, list) in entries.iter().filter_map(|entry| Some((ResourceKind::from_name(&entry.key)?, &entry.value))) {
        let Value::List(items) = &list.value else {
            if !list.is_null() {
                sink.excuse_all(kind.name());
            }
            continue;
        };
        let key = if kind == ResourceKind::Consumers { "username" } else { "id" };
        for (index, item) in items.iter().enumerate() {
            let Value::Map(keys) = &item.value else { continue };
            match keys.iter().find(|entry| &*entry.key == key).map(|entry| &entry.value.value) {
                Some(Value::Scalar(scalar)) => sink.excuse(kind.name(), &scalar.text),
                Some(_) => sink.excuse_all(kind.name()),
                None => sink.excuse(kind.name(), &(index + 1).to_string()),
            }
        }
    }
}

fn resolve(
    file: File,
    digest: String,
    plugins: PluginSet,
    root: &Node,
    sink: &mut Sink,
) -> (Config, whole::CatalogState) {
    if sink.has_errors() {
        excuse_written(root, sink);
    }
    let plugins = with_custom_plugins(plugins, &file.gateway.lua, within(root, "gateway.lua.path"), sink);
    let digest = plugins.table.custom.combined_digest(&digest);
    let at = within(root, "gateway.config.ignore_plugins");
    check_ignored(&file.gateway.config.ignore_plugins, &plugins.table, at, sink);
    let config = &file.gateway.config;
    if let Some(SourceNeed { key, fault }) = config.missing_need()
        && !sink.has_errors_in(key)
    {
        sink.error(within(root, "gateway.config.source"), &Path::Root.key("gateway").key("config"), fault);
    }
    let is_of_file = config.source.is_file();
    if !is_of_file {
        check_has_none(&file, root, sink);
    }
    let is_closed = file.gateway.config.is_changed_by_admin_alone() && file.gateway.admin.is_none();
    let has_protos = is_of_file && !file.protos.is_empty();
    let no_routes = is_of_file && file.routes.is_empty();
    let no_stream_routes = is_of_file && file.stream_routes.is_empty();
    if let Some(loaded) = &file.plugins {
        warn_of_unloaded(loaded, root, sink);
    }
    let resolved = whole::resolve(file, digest, plugins, root, sink);
    if no_routes && !sink.has_errors() {
        sink.warning(root.at, &Path::Root.key("routes"), "no routes; every request is answered 404");
    }
    if has_protos && !sink.has_errors() {
        let fault = Fault::new("no plugin uses protos, so they have no effect here");
        let fault = fault.hint("remove them, or move them to a store with `stillgate apply`");
        sink.warning(position(root, "protos"), &Path::Root.key("protos"), fault);
    }
    if is_closed && !sink.has_errors() {
        let fault = Fault::new("the store cannot be changed: there is no Admin API");
        let fault = fault.hint("add gateway.admin, or set gateway.config.source to file");
        let path = Path::Root.key("gateway");
        let path = path.key("config");
        sink.warning(within(root, "gateway.config.source"), &path.key("source"), fault);
    }
    let has_stream_listeners = resolved.0.listeners.iter().any(Listener::is_of_streams);
    if no_stream_routes && has_stream_listeners && !sink.has_errors() {
        let message = "no stream routes; every connection to gateway.stream_proxy is closed";
        sink.warning(root.at, &Path::Root.key("stream_routes"), message);
    }
    resolved
}

/// Reports resources in a file although resources come from elsewhere: they would have no effect.
fn check_has_none(file: &File, root: &Node, sink: &mut Sink) {
    let lists = [
        (ResourceKind::Secrets, file.secrets.is_empty()),
        (ResourceKind::Ssls, file.ssls.is_empty()),
        (ResourceKind::Upstreams, file.upstreams.is_empty()),
        (ResourceKind::PluginMetadata, file.plugin_metadata.is_empty()),
        (ResourceKind::PluginConfigs, file.plugin_configs.is_empty()),
        (ResourceKind::ConsumerGroups, file.consumer_groups.is_empty()),
        (ResourceKind::Services, file.services.is_empty()),
        (ResourceKind::Consumers, file.consumers.is_empty()),
        (ResourceKind::GlobalRules, file.global_rules.is_empty()),
        (ResourceKind::StreamRoutes, file.stream_routes.is_empty()),
        (ResourceKind::Routes, file.routes.is_empty()),
        (ResourceKind::Protos, file.protos.is_empty()),
    ];
    for (kind, _) in lists.into_iter().filter(|(_, is_empty)| !is_empty) {
        let fault = Fault::new("resources come from elsewhere (gateway.config.source), so these would have no effect");
        let hint = "move them there with `stillgate apply`, or set gateway.config.source to file";
        sink.error(position(root, kind.name()), &Path::Root.key(kind.name()), fault.hint(hint));
    }
}

/// Warns of plugins that run here but that APISIX would leave out, since its list of plugins to load does not name them: once, with
/// their names.
fn warn_of_unloaded(loaded: &[String], root: &Node, sink: &mut Sink) {
    let mut unloaded = BTreeSet::new();
    let Value::Map(lists) = &root.value else { return };
    for list in lists.iter().filter(|list| ResourceKind::from_name(&list.key).is_some()) {
        let Value::List(items) = &list.value.value else { continue };
        for item in items.iter() {
            let Value::Map(keys) = &item.value else { continue };
            let Some(Value::Map(plugins)) =
                keys.iter().find(|key| &*key.key == "plugins").map(|plugins| &plugins.value.value)
            else {
                continue;
            };
            let is_loaded = |name: &str| loaded.iter().any(|loaded| loaded == name);
            unloaded.extend(plugins.iter().map(|plugin| &*plugin.key).filter(|name| !is_loaded(name)));
        }
    }
    if unloaded.is_empty() {
        return;
    }
    let named = unloaded.into_iter().collect::<Vec<_>>().join(", ");
    let fault = Fault::new(format!(
        "APISIX would leave out plugins that this list does not name, but that resources have; here they run: {named}"
    ));
    let path = Path::Root.key("plugins");
    sink.warning(position(root, "plugins"), &path, fault.hint("add them, or remove them from the resources"));
}

/// The position of a key in the file.
fn position(root: &Node, key: &str) -> Position {
    let Value::Map(entries) = &root.value else { return root.at };
    entries.iter().find(|entry| &*entry.key == key).map_or(root.at, |entry| entry.key_at)
}

fn finish(config: Option<Config>, sink: Sink) -> Result<LoadedConfig, Errors> {
    match config {
        Some(config) if !sink.has_errors() => Ok(LoadedConfig {
            config,
            warnings: sink.into_warnings(),
            warnings_beside: Vec::new(),
            rejected: Vec::new(),
        }),
        _ => Err(sink.into_errors()),
    }
}

/// The errors of a text without possible secrets, for logs and pages; a person who checks a file sees the full text.
fn without_secrets(mut errors: Errors, bytes: &[u8], environment: Lookup<'_>) -> Errors {
    // Errors of a text that cannot be parsed concern its punctuation.
    if let Some(tree) = tree_of(bytes, Some(environment), &mut Sink::default()) {
        hide_in(&mut errors, |path| documents::document_at(&tree.root, path));
    }
    errors
}

/// The position of the byte after `before`.
fn position_of(before: &[u8]) -> Position {
    let line_start = before.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
    let lines = before.iter().filter(|b| **b == b'\n').count();
    let columns = String::from_utf8_lossy(&before[line_start..]).chars().count();
    Position { line: lines as u32 + 1, column: columns as u32 + 1 }
}
