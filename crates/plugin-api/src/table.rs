//! The table of plugins, and the compilation of a resource's `plugins` into entries.

use crate::arguments::values::Arguments;
use crate::body::FILTER_BYTES_MAX;
use crate::custom::{CustomPlugin, CustomPlugins, Scripts};
use crate::definition::{Compile, Descriptor, Upstreams};
use crate::identity::{Identity, of_node};
use crate::meta::{Filter, Meta, MetaKeys};
use crate::phase::{Phase, Phases};
use crate::plugin::{BodyArguments, ChainEntry, Plugin, PluginOrigin};
use crate::secrets::{Secrets, substitute};
use serde_json::json;
use std::rc::Rc;
use std::sync::Arc;
use stillgate_route::Variable;
use stillgate_schema::{
    At, Definitions, Fault, Json, Node, Path, Position, Sink, Value, json_of, map, read, report_expected,
};

/// The key for the settings that every plugin has.
const META: &str = "_meta";

/// The table of all plugins.
#[derive(Debug, Clone)]
pub struct PluginTable {
    /// The built-in plugins.
    pub plugins: &'static [Descriptor],
    /// Names of plugins that are not supported, each with the plugins that come nearest to it, the best first.
    pub sought: &'static [(&'static str, &'static [&'static str])],
    /// The compilers of texts in Lua.
    pub scripts: Scripts,
    /// The plugins of the operator's files.
    pub custom: CustomPlugins,
    /// Plugins that may be ignored, and those that are.
    pub ignorable: Ignorable,
    /// Whether header fields of requests with a `_` in their names are dropped before a plugin sees them.
    pub drops_underscores: bool,
}

/// Plugins, built or not, that can neither refuse nor change a request, so that a gateway may serve without them.
#[derive(Debug, Clone)]
pub struct Ignorable {
    /// Their names.
    pub names: &'static [&'static str],
    /// The ignored ones.
    chosen: Option<Arc<[&'static str]>>,
}

impl Ignorable {
    /// No plugin may be ignored.
    pub const NONE: Ignorable = Ignorable::of(&[]);

    /// Plugins with these names; none is ignored yet.
    pub const fn of(names: &'static [&'static str]) -> Ignorable {
        Ignorable { names, chosen: None }
    }

    /// Ignores those of these names that may be ignored.
    pub fn choose(&mut self, names: &[String]) {
        let chosen = self.names.iter().copied().filter(|name| names.iter().any(|own| own == name));
        self.chosen = Some(chosen.collect::<Arc<[_]>>()).filter(|chosen| !chosen.is_empty());
    }

    /// The name of an ignored plugin; `None`: it is not ignored.
    pub fn ignored_name(&self, name: &str) -> Option<&'static str> {
        self.chosen.as_ref()?.iter().copied().find(|own| *own == name)
    }
}

/// Takes the place of an ignored plugin.
struct NoopPlugin;

impl Plugin for NoopPlugin {}

/// What a plugin needs for its compilation, whatever its source.
struct PluginKind<'a> {
    name: &'static str,
    priority: i32,
    phases: Phases,
    authenticates: bool,
    /// Version of its file.
    version: Option<Identity>,
    compile: &'a CompilePlugin,
}

type CompilePlugin = dyn Fn(&Node, &mut Compile<'_>) -> Option<Box<dyn Plugin>>;

impl PluginKind<'_> {
    fn identity(&self, origin: &PluginOrigin, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Identity {
        let of_node = identity(self.name, origin, node, path, sink);
        let with_file = |file: Identity| Identity::of(&[&of_node.0.to_le_bytes(), &file.0.to_le_bytes()]);
        self.version.map_or(of_node, with_file)
    }
}

impl PluginTable {
    /// A built-in plugin, and its index in the table.
    pub fn find(&self, name: &str) -> Option<(usize, &'static Descriptor)> {
        self.plugins.iter().enumerate().find(|(_, plugin)| plugin.name == name)
    }

    /// The names of all plugins.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.plugins.iter().map(|plugin| plugin.name).chain(self.custom.iter().map(|plugin| plugin.name))
    }

    /// The schemas of `plugins`, and of an item of `plugin_metadata`.
    pub fn schemas(&self, definitions: &mut Definitions) -> (Json, Json) {
        let meta = definitions.object::<MetaKeys>();
        let mut plugins = serde_json::Map::new();
        let mut metadata = vec![json!({"type": "object", "required": ["id"]})];
        for plugin in self.plugins {
            let keys = (plugin.schema)(definitions);
            definitions.add_key(&keys, META, &meta);
            let keys = match plugin.credential {
                Some(credential) => json!({"anyOf": [keys, (credential.schema)(definitions)]}),
                None => keys,
            };
            plugins.insert(plugin.name.to_owned(), keys);
            if let Some(part) = plugin.metadata {
                let own = (part.schema)(definitions);
                definitions.add_key(&own, "id", &json!({"const": plugin.name}));
                metadata.push(own);
            }
        }
        for plugin in self.custom.iter() {
            let mut keys = plugin.schema.clone();
            if keys["properties"].is_object() {
                keys["properties"][META] = meta.clone();
            }
            plugins.insert(plugin.name.to_owned(), keys);
        }
        let plugins = json!({"type": ["object", "null"], "properties": plugins, "additionalProperties": false});
        (plugins, json!({"anyOf": metadata}))
    }

    /// The plugin closest to one of APISIX's that is not supported; `None`: the name is unknown.
    pub fn nearest(&self, name: &str) -> Option<Option<&'static str>> {
        let (_, nearest) = self.sought.iter().find(|(sought, _)| *sought == name)?;
        Some(nearest.iter().copied().find(|name| self.find(name).is_some()))
    }

    /// The error for an unknown name.
    fn refusal(&self, name: &str, sink: &mut Sink) -> Fault {
        match self.nearest(name) {
            None => sink.guess(Fault::new(format!("there is no plugin {name:?}")), name, self.names()),
            Some(nearest) => {
                let fault = Fault::new(format!("Stillgate has no plugin {name:?}"));
                match nearest {
                    Some(nearest) => fault.hint(format!("the closest is {nearest:?}")),
                    None => fault.hint("remove it"),
                }
            }
        }
    }

    /// Compiles the `plugins` of a resource: sorted by name, since the order of a map has no meaning. Problems of every
    /// plugin are reported to the sink; then the list is incomplete.
    pub fn compile(
        &self,
        node: &Node,
        origin: &PluginOrigin,
        (secrets, upstreams): (&dyn Secrets, &dyn Upstreams),
        path: &Path<'_>,
        sink: &mut Sink,
    ) -> Vec<Arc<ChainEntry>> {
        let Some(entries) = node.entries() else {
            if node.value != Value::Refused && !node.is_null() {
                report_expected("a map of plugins", node, path, sink);
            }
            return Vec::new();
        };
        let compiled = entries.iter().filter_map(|entry| {
            let path = path.key(&entry.key);
            let mut compile = |kind: PluginKind<'_>| {
                let node = substitute(&entry.value, secrets, &path, sink);
                sink.allowing_unknown(|sink| {
                    self.compile_one(&kind, entry.key_at, &node, (origin, upstreams), &path, sink)
                })
            };
            if let Some(name) = self.ignorable.ignored_name(&entry.key) {
                // The function before the plugin is the operator's, and may refuse requests.
                if may_precede(&entry.value) {
                    let fault = Fault::new("it cannot be ignored with a `pre_function`, which can refuse requests");
                    sink.error(
                        entry.key_at,
                        &path.key(META),
                        fault.hint("remove it, or the plugin from `ignore_plugins`"),
                    );
                    return None;
                }
                return Some(ignored_entry(name, entry, origin));
            }
            if let Some((_, descriptor)) = self.find(&entry.key) {
                let Descriptor { name, priority, phases, authenticates, .. } = *descriptor;
                let of_it = |node: &Node, cx: &mut Compile<'_>| descriptor.compile(node, cx);
                return compile(PluginKind { name, priority, phases, authenticates, version: None, compile: &of_it });
            }
            if let Some(custom) = self.custom.find(&entry.key) {
                let CustomPlugin { name, priority, phases, version, .. } = *custom;
                let (version, authenticates) = (Some(version), false);
                return compile(PluginKind {
                    name,
                    priority,
                    phases,
                    authenticates,
                    version,
                    compile: &*custom.compile,
                });
            }
            let fault = self.refusal(&entry.key, sink);
            sink.error(entry.key_at, &path, fault);
            None
        });
        let mut compiled: Vec<Arc<ChainEntry>> = compiled.map(Arc::new).collect();
        compiled.sort_unstable_by_key(|entry| entry.name);
        compiled
    }

    fn compile_one(
        &self,
        kind: &PluginKind<'_>,
        at: Position,
        node: &Node,
        (origin, upstreams): (&PluginOrigin, &dyn Upstreams),
        path: &Path<'_>,
        sink: &mut Sink,
    ) -> Option<ChainEntry> {
        let (own, meta) = split(node);
        let meta = match meta {
            None => Meta::default(),
            Some(node) => {
                let path = path.key(META);
                read(&map::<MetaKeys>(), &node, &path, sink)?.into_meta(&path, sink)?
            }
        };
        let of_own = kind.identity(origin, &own, path, sink);
        let identity = kind.identity(origin, node, path, sink);
        let mut cx = Compile { path, at: node.at, origin, identity: of_own, upstreams, sink };
        let mut plugin = (kind.compile)(&own, &mut cx)?;
        if self.drops_underscores {
            warn_of_dropped_fields(kind.name, &*plugin, (origin, at), path, sink);
        }
        if let Some(function) = &meta.pre_function {
            plugin = self.precede(function, plugin, (kind.name, node), origin, path, sink)?;
        }
        let only_watches = meta.pre_function.is_none() && self.ignorable.names.contains(&kind.name);
        let of_filter =
            |filter: &Filter| Arguments::among(|visit| filter.each_variable(visit), FILTER_BYTES_MAX, only_watches);
        let of_plugin = |visit: &mut dyn FnMut(&Variable)| plugin.each_variable(visit);
        let awaited = BodyArguments {
            by_filter: meta.filter.as_ref().and_then(of_filter),
            by_plugin: Arguments::among(of_plugin, plugin.arguments_bytes_max(), only_watches),
        };
        Some(ChainEntry {
            name: kind.name,
            priority: meta.priority.unwrap_or(kind.priority),
            phases: with_waiting_phase(kind.phases.and(plugin.phases()), &awaited),
            authenticates: kind.authenticates,
            meta,
            awaited,
            origin: origin.clone(),
            at,
            identity,
            plugin,
        })
    }

    /// Wraps a plugin in its `_meta.pre_function`.
    fn precede(
        &self,
        function: &At<String>,
        plugin: Box<dyn Plugin>,
        (name, node): (&'static str, &Node),
        origin: &PluginOrigin,
        path: &Path<'_>,
        sink: &mut Sink,
    ) -> Option<Box<dyn Plugin>> {
        let conf = json_of(node, path, sink)?;
        let preceded = (self.scripts.precede)(&function.value, plugin, name, conf, origin);
        let wrong = |why| sink.error(function.at, &path.key(META).key("pre_function"), Fault::new(why));
        preceded.map_err(wrong).ok()
    }
}

/// A plugin that reads a field which no request has does nothing, or refuses everybody, without a word.
fn warn_of_dropped_fields(
    name: &str,
    plugin: &dyn Plugin,
    (origin, at): (&PluginOrigin, Position),
    path: &Path<'_>,
    sink: &mut Sink,
) {
    plugin.each_field_read(&mut |key, field| {
        if field.contains(&b'_') {
            let field = String::from_utf8_lossy(field);
            let fault = Fault::new(format!(
                "{name} of {origin} reads the header field {field:?}, which no request has: fields with \"_\" in their names are dropped"
            ));
            let hint = format!("set gateway.underscores_in_headers: true, or use {:?}", field.replace('_', "-"));
            sink.warning(at, &path.key(key), fault.hint(hint));
        }
    });
}

/// Whether a plugin's configuration has a `_meta.pre_function`, or a `_meta` that cannot be read.
fn may_precede(configuration: &Node) -> bool {
    let under = |node: &Node, key: &str| match &node.value {
        Value::Map(entries) => entries.iter().find(|entry| &*entry.key == key).map(|entry| entry.value.clone()),
        _ => None,
    };
    match under(configuration, META) {
        None => matches!(configuration.value, Value::Refused),
        Some(meta) if meta.is_null() => false,
        Some(meta) => match meta.value {
            Value::Map(_) => under(&meta, "pre_function").is_some_and(|function| !function.is_null()),
            _ => true,
        },
    }
}

/// An entry that is left out of chains, whatever its configuration says.
fn ignored_entry(name: &'static str, written: &stillgate_schema::Entry, origin: &PluginOrigin) -> ChainEntry {
    ChainEntry {
        name,
        priority: 0,
        phases: Phases::NONE,
        authenticates: false,
        meta: Meta { disable: true, is_ignored: true, ..Meta::default() },
        awaited: BodyArguments::default(),
        origin: origin.clone(),
        at: written.key_at,
        identity: identity(name, origin, &written.value, &Path::Root, &mut Sink::default()),
        plugin: Box::new(NoopPlugin),
    }
}

/// The phases, plus one in which a request can wait if it needs arguments of the body.
fn with_waiting_phase(phases: Phases, awaited: &BodyArguments) -> Phases {
    let can_wait = phases.contains(Phase::Rewrite) || phases.contains(Phase::Access);
    let waits = awaited.by_filter.is_some() || awaited.by_plugin.is_some();
    // A plugin that is never called waits for nothing.
    match waits && !can_wait && phases != Phases::NONE {
        true => phases.or(Phases::of(&[Phase::Access])),
        false => phases,
    }
}

/// Splits a configuration into the plugin's own keys and `_meta`.
fn split(node: &Node) -> (Node, Option<Node>) {
    let Value::Map(entries) = &node.value else { return (node.clone(), None) };
    let Some(meta) = entries.iter().find(|entry| &*entry.key == META) else { return (node.clone(), None) };
    let own: Rc<[_]> = entries.iter().filter(|entry| &*entry.key != META).cloned().collect();
    (Node { at: node.at, value: Value::Map(own) }, Some(meta.value.clone()))
}

/// The identity of a configuration in a resource, independent of the order of its keys.
pub fn identity(plugin: &str, origin: &PluginOrigin, own: &Node, path: &Path<'_>, sink: &mut Sink) -> Identity {
    of_node(&[plugin.as_bytes(), origin.level.name().as_bytes(), origin.id.as_bytes()], own, path, sink)
}
