//! Compiles plugins to chains: compiled where they are written, merged where they meet, replaced where they cannot be used.

use super::catalog_item::{CatalogItem, find};
use super::ssls::ResourceId;
use crate::keys::gateway::LuaKeys;
use crate::keys::plugins::MetadataKeys;
use crate::model::ResourceKind;
use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use stillgate_plugin_api::custom::CheckMetadata;
use stillgate_plugin_api::definition::MetadataPart;
use stillgate_plugin_api::secrets::substitute;
use stillgate_plugin_api::table::identity;
use stillgate_plugin_api::{
    Answer, BodyArguments, Chain, ChainEntry, CustomPlugins, Flow, Identity, Ignorable, Meta, MetadataItem,
    MetadataTable, NoSecrets, Phase, Phases, Plugin, PluginFile, PluginLevel, PluginOrigin, PluginTable, Request,
    Scripts, Secrets, Upstreams,
};
use stillgate_schema::kind::At;
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink, shortened};
use stillgate_schema::text::tree::Node;
use stillgate_schema::{Json, json_of};

/// The context for compiling plugins.
#[derive(Clone)]
pub struct PluginSet {
    /// All available plugins.
    pub table: PluginTable,
    /// Resolves references to secrets.
    pub secrets: Arc<dyn Secrets>,
    /// Reads the operator's custom plugins.
    pub plugin_files: ReadPluginFiles,
}

/// Reads the named files and those in the named folders; the error names what cannot be read.
pub type ReadPluginFiles = fn(&[PathBuf]) -> Result<Vec<PluginFile>, String>;

/// These plugins, and those of the files and folders in `gateway.lua`. `at`: its position.
pub(crate) fn with_custom_plugins(mut set: PluginSet, keys: &LuaKeys, at: Position, sink: &mut Sink) -> PluginSet {
    if keys.path.is_empty() {
        set.table.custom = CustomPlugins::NONE;
        return set;
    }
    let path = Path::Root.key("gateway");
    let path = path.key("lua");
    let path = path.key("path");
    let is_taken = |name: &str| set.table.find(name).is_some() || set.table.nearest(name).is_some();
    let read = (set.plugin_files)(&keys.path).map_err(|why| vec![why]);
    match read.and_then(|files| CustomPlugins::new(&files, &keys.plugin_attr, set.table.scripts, is_taken)) {
        Ok(custom) => {
            custom
                .iter()
                .flat_map(|plugin| &plugin.warnings)
                .for_each(|why| sink.warning(at, &path, Fault::new(why.clone())));
            set.table.custom = custom;
        }
        Err(errors) => errors.into_iter().for_each(|why| sink.error(at, &path, Fault::new(why))),
    }
    set
}

/// Reports plugins in the list of ignored ones that may not be ignored. `at`: the position of the list.
pub(crate) fn check_ignored(names: &[String], table: &PluginTable, at: Position, sink: &mut Sink) {
    let path = Path::Root.key("gateway");
    let path = path.key("config");
    let path = path.key("ignore_plugins");
    for (index, name) in names.iter().enumerate() {
        let may_be = table.ignorable.names;
        if may_be.contains(&name.as_str()) {
            continue;
        }
        let is_known = table.names().any(|own| own == name) || table.nearest(name).is_some();
        let fault = match is_known {
            true => Fault::new(format!("{name:?} can refuse or change requests, so it cannot be ignored")),
            false => Fault::new(format!("there is no plugin {:?}", shortened(name))),
        };
        let fault = fault.hint(format!("plugins that can be ignored: {}", may_be.join(", ")));
        let fault = if is_known { fault } else { sink.guess(fault, name, may_be.iter().copied()) };
        sink.error(at, &path.index(index), fault);
    }
}

/// An empty registry: every plugin name is refused.
impl Default for PluginSet {
    fn default() -> Self {
        let table = PluginTable {
            plugins: &[],
            sought: &[],
            scripts: Scripts::NONE,
            custom: CustomPlugins::NONE,
            ignorable: Ignorable::NONE,
            drops_underscores: true,
        };
        PluginSet { table, secrets: Arc::new(NoSecrets), plugin_files: |_| Ok(Vec::new()) }
    }
}

impl fmt::Debug for PluginSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PluginSet").field("table", &self.table).finish_non_exhaustive()
    }
}

/// The plugins of one resource.
pub(crate) type PluginList = Arc<[Arc<ChainEntry>]>;

/// The plugins that routes and consumers may refer to.
#[derive(Debug, Default)]
pub(crate) struct SharedPlugins {
    pub(crate) set: PluginSet,
    pub(super) configs: HashMap<String, CatalogItem<PluginList>>,
    /// Plugins with invalid metadata: nothing is served with them.
    refused_metadata: BTreeSet<String>,
    /// The metadata of the other plugins.
    metadata: MetadataTable,
}

impl SharedPlugins {
    /// Without anything to refer to.
    pub(super) fn of(set: PluginSet) -> SharedPlugins {
        SharedPlugins { set, ..SharedPlugins::default() }
    }

    /// Compiles the `plugins` of a resource.
    pub(super) fn compile(
        &self,
        plugins: Option<&Node>,
        level: PluginLevel,
        id: &str,
        upstreams: &dyn Upstreams,
        path: &Path<'_>,
        sink: &mut Sink,
    ) -> PluginList {
        let Some(plugins) = plugins else { return Arc::default() };
        let origin = PluginOrigin { level, id: id.into() };
        let path = path.key("plugins");
        let list: PluginList =
            self.set.table.compile(plugins, &origin, (&*self.set.secrets, upstreams), &path, sink).into();
        for entry in list.iter() {
            self.check_metadata(entry, &path, sink);
        }
        list
    }

    fn check_metadata(&self, entry: &ChainEntry, path: &Path<'_>, sink: &mut Sink) {
        let PluginTable { custom, .. } = &self.set.table;
        let has_metadata = match self.set.table.find(entry.name) {
            Some((_, plugin)) => plugin.metadata.is_some(),
            None => custom.find(entry.name).is_some_and(|plugin| plugin.check_metadata.is_some()),
        };
        if entry.meta.is_ignored || !has_metadata {
            return;
        }
        sink.refers(ResourceKind::PluginMetadata.name(), entry.name);
        if self.refused_metadata.contains(entry.name) {
            let fault = Fault::new(format!("the plugin_metadata of {} cannot be used", entry.name));
            sink.error(entry.at, &path.key(entry.name), fault.hint("mend it, or delete it"));
        } else if let Some(lacking) = entry.plugin.lacks(&self.metadata) {
            sink.error(entry.at, &path.key(entry.name), Fault::new(lacking).hint("write it in one of them"));
        }
    }

    /// Sets or removes the metadata of a plugin; returns whether resources with the plugin are affected.
    pub(super) fn put_metadata(&mut self, plugin: &str, metadata: Option<&Metadata>) -> bool {
        match metadata {
            Some(of) => self.metadata.insert(of.0.clone()),
            None => self.metadata.remove(plugin),
        }
        true
    }

    /// Records whether the metadata of a plugin is refused; returns whether that changed.
    pub(super) fn refuse_metadata(&mut self, plugin: &str, is_refused: bool) -> bool {
        match is_refused {
            true => self.refused_metadata.insert(plugin.to_owned()),
            false => self.refused_metadata.remove(plugin),
        }
    }

    /// The chain of a route: its own plugins take precedence over those of its plugin config, and those over its service's. If the
    /// result equals the service's chain, that one is shared.
    pub(super) fn chain(
        &self,
        own: &PluginList,
        config: Option<&At<String>>,
        service: Option<&ServicePlugins>,
        path: &Path<'_>,
        sink: &mut Sink,
    ) -> Option<Arc<Chain>> {
        let config = config.and_then(|id| {
            find(id, ResourceKind::PluginConfigs, &self.configs, &path.key("plugin_config_id"), sink)
                .map(|config| &config.value)
        });
        if own.is_empty() && config.is_none() {
            return service.and_then(|service| service.chain.clone());
        }
        let lists = [service.map(|service| &service.list), config, Some(own)];
        merge(lists.into_iter().flatten().map(|list| &**list), path, sink)
    }
}

/// The plugins of a service, and their chain for routes without plugins of their own.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ServicePlugins {
    list: PluginList,
    chain: Option<Arc<Chain>>,
}

impl ServicePlugins {
    pub(super) fn new(list: PluginList, path: &Path<'_>, sink: &mut Sink) -> ServicePlugins {
        let chain = merge([&*list], path, sink);
        ServicePlugins { list, chain }
    }

    pub(super) fn list(&self) -> &PluginList {
        &self.list
    }
}

pub(crate) fn merge<'a>(
    lists: impl IntoIterator<Item = &'a [Arc<ChainEntry>]>,
    path: &Path<'_>,
    sink: &mut Sink,
) -> Option<Arc<Chain>> {
    usable_chain(Chain::merge(lists), path, sink)
}

/// A chain, or a report of why there is none.
pub(crate) fn usable_chain<E: fmt::Display>(
    chain: Result<Chain, E>,
    path: &Path<'_>,
    sink: &mut Sink,
) -> Option<Arc<Chain>> {
    match chain {
        // A chain of disabled plugins only is kept for `explain`; Plans omit it.
        Ok(chain) => (!chain.is_empty() || !chain.left_out().is_empty()).then(|| Arc::new(chain)),
        Err(too_long) => {
            let fault = Fault::new(too_long.to_string()).hint("leave some of them out");
            sink.error(Position::NOWHERE, &path.key("plugins"), fault);
            None
        }
    }
}

/// A plugin that an earlier global rule already has.
pub(crate) struct SkippedPlugin {
    /// The index of the rule.
    pub(crate) rule: usize,
    pub(crate) entry: Arc<ChainEntry>,
    pub(crate) earlier: Arc<ChainEntry>,
}

/// The plugins of rules that run, and those that are left out. If two rules have the same plugin, the first one keeps it: APISIX
/// drops it from both, so that a second rule could disable a guard of the first. A disabled copy takes nobody's place. Beside one with
/// `_meta.filter` the other runs, too: it may be the guard of the requests for which the filter does not hold.
pub(crate) fn deduplicate_global_rules<'a>(
    rules: impl Iterator<Item = &'a PluginList>,
) -> (Vec<Arc<ChainEntry>>, Vec<SkippedPlugin>) {
    let (mut kept, mut skipped): (Vec<Arc<ChainEntry>>, Vec<SkippedPlugin>) = Default::default();
    let runs_always = |entry: &ChainEntry| !entry.meta.disable && entry.meta.filter.is_none();
    for (rule, list) in rules.enumerate() {
        for entry in list.iter() {
            match kept.iter().find(|earlier| earlier.name == entry.name && runs_always(earlier)) {
                Some(earlier) if !entry.meta.disable => {
                    skipped.push(SkippedPlugin { rule, entry: entry.clone(), earlier: earlier.clone() });
                }
                _ => kept.push(entry.clone()),
            }
        }
    }
    (kept, skipped)
}

impl SkippedPlugin {
    /// The warning for the author of the later rule.
    pub(crate) fn fault(&self) -> Fault {
        let fault = Fault::new(format!("{} has {} already, which stays", self.earlier.origin, self.entry.name));
        fault.hint("keep one of them")
    }
}

/// The metadata of a plugin.
#[derive(Clone)]
pub(crate) struct Metadata(MetadataItem);

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.plugin)
    }
}

impl PartialEq for Metadata {
    fn eq(&self, other: &Metadata) -> bool {
        self.0.identity == other.0.identity
    }
}

/// The metadata of some plugins.
pub(crate) fn metadata_table<'a>(all: impl Iterator<Item = &'a Metadata>) -> MetadataTable {
    let mut table = MetadataTable::default();
    all.for_each(|of| table.insert(of.0.clone()));
    table
}

/// Compiles an item of `plugin_metadata`; its id is the plugin's name.
pub(super) fn metadata(
    keys: &MetadataKeys,
    named: ResourceId<'_>,
    set: &PluginSet,
    sink: &mut Sink,
) -> Option<Metadata> {
    let ResourceId { id, at, path, .. } = named;
    let item = |plugin: &'static str, node: &Node, value, written, sink: &mut Sink| {
        let origin = PluginOrigin { level: PluginLevel::Metadata, id: plugin.into() };
        Metadata(MetadataItem { plugin, identity: identity(plugin, &origin, node, path, sink), value, written })
    };
    if let Some(plugin) = set.table.ignorable.ignored_name(id) {
        return Some(item(plugin, &keys.own, Arc::new(()), Arc::default(), &mut Sink::default()));
    }
    let (plugin, kind) = match (set.table.find(id), set.table.custom.find(id)) {
        (Some((_, plugin)), _) => (plugin.name, plugin.metadata.map(MetadataKind::BuiltIn)),
        (None, Some(custom)) => (custom.name, custom.check_metadata.as_deref().map(MetadataKind::Custom)),
        // An item without an id, which has been reported.
        (None, None) if id.is_empty() => return None,
        (None, None) => {
            let fault = Fault::new(format!("there is no plugin {:?}", shortened(id)));
            let fault = sink.guess(fault, id, set.table.names());
            sink.error(at, &path.key("id"), fault);
            return None;
        }
    };
    let Some(kind) = kind else {
        sink.error(at, path, Fault::new(format!("the plugin {plugin} has no metadata")));
        return None;
    };
    let own = substitute(&keys.own, &*set.secrets, path, sink);
    type Read = (Arc<dyn Any + Send + Sync>, Arc<Json>);
    let (value, written) = sink.allowing_unknown(|sink| -> Option<Read> {
        match kind {
            MetadataKind::BuiltIn(part) => {
                // Invalid values were reported; what is not JSON here is not JSON for the plugin either.
                let value = (part.read)(&own, path, sink)?;
                Some((value, json_of(&own, path, &mut Sink::default()).map(Arc::new).unwrap_or_default()))
            }
            MetadataKind::Custom(check) => {
                let checked = check(json_of(&own, path, sink)?);
                let written = checked.map_err(|why| sink.error(at, path, Fault::new(why))).ok()?;
                Some((Arc::new(()), Arc::new(written)))
            }
        }
    })?;
    Some(item(plugin, &own, value, written, sink))
}

/// The code that reads the metadata of a plugin.
enum MetadataKind<'a> {
    BuiltIn(MetadataPart),
    Custom(&'a CheckMetadata),
}

/// The name of the plugin of an unusable resource, in `explain` and metrics.
const UNAVAILABLE: &str = "unavailable";

struct Unavailable;

impl Plugin for Unavailable {
    fn rewrite(&self, _: &mut Request<'_>) -> Flow {
        Flow::Answer(unavailable_resource_answer())
    }

    fn access(&self, _: &mut Request<'_>) -> Flow {
        Flow::Answer(unavailable_resource_answer())
    }
}

fn unavailable_resource_answer() -> Answer {
    Answer::json(503, r#"{"error_msg":"503 Service Unavailable"}"#)
}

/// Replaces the plugins of an unusable resource whose requests only its plugins know: by one that answers each of them with 503.
pub(crate) fn unavailable(level: PluginLevel, id: &str) -> Arc<ChainEntry> {
    Arc::new(ChainEntry {
        name: UNAVAILABLE,
        priority: i32::MAX,
        phases: Phases::of(&[Phase::Rewrite, Phase::Access]),
        authenticates: false,
        meta: Meta::default(),
        awaited: BodyArguments::default(),
        origin: PluginOrigin { level, id: id.into() },
        at: Position::NOWHERE,
        identity: Identity::of(&[UNAVAILABLE.as_bytes(), level.name().as_bytes(), id.as_bytes()]),
        plugin: Box::new(Unavailable),
    })
}
