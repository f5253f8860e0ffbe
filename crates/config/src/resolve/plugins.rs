//! Plugins, from what was written to chains: compiled where they are written, merged where they meet.

use super::consumers::{Groups, consumers};
use super::shared::{Identified, find, insert};
use crate::keys::plugins::{ConsumerKeys, GlobalRuleKeys, PluginConfigKeys};
use crate::keys::resources::Resource;
use crate::model::Kind;
use crate::model::plugins::Shared;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use stillgate_plugin::secrets::substitute;
use stillgate_plugin::table::identity;
use stillgate_plugin::{Chain, Entry, Identity, Level, MetadataTable, NoSecrets, Origin, Secrets, Table};
use stillgate_schema::kind::At;
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink};
use stillgate_schema::text::tree::{Node, Value};

/// What plugins are compiled with.
#[derive(Clone)]
pub struct PluginSet {
    /// All plugins there are.
    pub table: Table,
    /// What references to secrets stand for.
    pub secrets: Arc<dyn Secrets>,
}

/// No plugins: every name of one is refused.
impl Default for PluginSet {
    fn default() -> Self {
        PluginSet { table: Table { plugins: &[], sought: &[] }, secrets: Arc::new(NoSecrets) }
    }
}

impl fmt::Debug for PluginSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PluginSet").field("table", &self.table).finish_non_exhaustive()
    }
}

/// A plugin, and the name of a group of its configurations.
type Group = (&'static str, Box<str>);

/// The plugins of one resource.
pub(crate) type List = Arc<[Arc<Entry>]>;

/// What routes and consumers may refer to.
#[derive(Debug, Default)]
pub(crate) struct SharedPlugins {
    pub(crate) set: PluginSet,
    pub(crate) configs: HashMap<String, Identified<List>>,
    /// What configurations share by a name of theirs: what must be the same in all of them, and where it was first.
    groups: RefCell<HashMap<Group, (Identity, Origin)>>,
}

impl SharedPlugins {
    /// Forgets what configurations that were read before share by names of theirs: they may be there no more.
    pub(crate) fn forget_groups(&mut self) {
        self.groups.get_mut().clear();
    }

    /// With nothing to refer to.
    pub(crate) fn of(set: PluginSet) -> SharedPlugins {
        SharedPlugins { set, ..SharedPlugins::default() }
    }

    pub(super) fn new(set: PluginSet, configs: Vec<Resource<PluginConfigKeys>>, sink: &mut Sink) -> SharedPlugins {
        let mut shared = SharedPlugins::of(set);
        let list = Path::Root.key("plugin_configs");
        for Resource { index, at, keys } in configs {
            let path = list.index(index);
            let Some(id) = keys.id else { continue };
            let value = shared.compile(Some(&keys.plugins), Level::PluginConfig, &id.value, &path, sink);
            insert(&mut shared.configs, id, Identified { line: at.line, value }, &path, sink);
        }
        shared
    }

    /// The `plugins` of a resource.
    pub(crate) fn compile(
        &self,
        plugins: Option<&Node>,
        level: Level,
        id: &str,
        path: &Path<'_>,
        sink: &mut Sink,
    ) -> List {
        let Some(plugins) = plugins else { return Arc::default() };
        let origin = Origin { level, id: id.into() };
        let path = path.key("plugins");
        let list: List = self.set.table.compile(plugins, &origin, &*self.set.secrets, &path, sink).into();
        list.iter().for_each(|entry| self.check_group(entry, plugins.at, &path, sink));
        list
    }

    /// Configurations that share their state must be the same.
    fn check_group(&self, entry: &Entry, at: Position, path: &Path<'_>, sink: &mut Sink) {
        let Some((name, identity)) = entry.plugin.shared() else { return };
        let mut groups = self.groups.borrow_mut();
        let first = groups.entry((entry.name, name.into())).or_insert_with(|| (identity, entry.origin.clone()));
        if first.0 != identity {
            let fault = Fault::new(format!("the group {name:?} is not the same in {}", first.1));
            let hint = "write the same keys in both, or give this one another group";
            sink.error(at, &path.key(entry.name), fault.hint(hint));
        }
    }

    /// The chain of a route: its own plugins over those of its plugin config over those of its service. What equals the service's
    /// is the service's.
    pub(super) fn chain(
        &self,
        own: &List,
        config: Option<&At<String>>,
        service: Option<&ServicePlugins>,
        path: &Path<'_>,
        sink: &mut Sink,
    ) -> Option<Arc<Chain>> {
        let config = config.and_then(|id| {
            find(id, Kind::PluginConfigs, &self.configs, &path.key("plugin_config_id"), sink)
                .map(|config| &config.value)
        });
        if own.is_empty() && config.is_none() {
            return service.and_then(|service| service.chain.clone());
        }
        let lists = [service.map(|service| &service.list), config, Some(own)];
        merge(lists.into_iter().flatten().map(|list| &**list), path, sink)
    }
}

/// The plugins of a service, and their chain for routes that have none of their own.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ServicePlugins {
    list: List,
    chain: Option<Arc<Chain>>,
}

impl ServicePlugins {
    pub(super) fn new(list: List, path: &Path<'_>, sink: &mut Sink) -> ServicePlugins {
        let chain = merge([&*list], path, sink);
        ServicePlugins { list, chain }
    }
}

fn merge<'a>(
    lists: impl IntoIterator<Item = &'a [Arc<Entry>]>,
    path: &Path<'_>,
    sink: &mut Sink,
) -> Option<Arc<Chain>> {
    match Chain::merge(lists) {
        // A chain of disabled plugins only is kept for `explain`; Plans have none then.
        Ok(chain) => (!chain.is_empty() || !chain.left_out().is_empty()).then(|| Arc::new(chain)),
        Err(too_long) => {
            let fault = Fault::new(too_long.to_string()).hint("leave some of them out");
            sink.error(Position::NOWHERE, &path.key("plugins"), fault);
            None
        }
    }
}

/// What was written of plugins outside of routes and services.
pub(super) struct Written {
    pub(super) global_rules: Vec<Resource<GlobalRuleKeys>>,
    pub(super) consumers: Vec<Resource<ConsumerKeys>>,
    pub(super) metadata: Vec<Node>,
}

/// What of plugins belongs to no route.
pub(super) fn shared(written: Written, groups: &Groups, plugins: &SharedPlugins, sink: &mut Sink) -> Shared {
    Shared {
        global: global(written.global_rules, plugins, sink),
        consumers: Arc::new(consumers(written.consumers, groups, plugins, sink)),
        metadata: Arc::new(metadata(written.metadata, plugins, sink)),
    }
}

/// Of two rules with the same plugin the first keeps it: APISIX would leave it out of both, so that a second rule could
/// switch off what the first guards.
fn global(rules: Vec<Resource<GlobalRuleKeys>>, plugins: &SharedPlugins, sink: &mut Sink) -> Arc<Chain> {
    let (mut ids, mut lists) = (HashMap::new(), Vec::with_capacity(rules.len()));
    let list = Path::Root.key("global_rules");
    for Resource { index, at, keys } in rules {
        let path = list.index(index);
        let Some(id) = keys.id else { continue };
        lists.push((at, plugins.compile(Some(&keys.plugins), Level::GlobalRule, &id.value, &path, sink)));
        insert(&mut ids, id, Identified { line: at.line, value: () }, &path, sink);
    }
    let (kept, left_out) = first_of_each(lists.iter().map(|(_, list)| list));
    for LeftOut { rule, entry, earlier } in left_out {
        let fault = Fault::new(format!("{} has {} already, which stays", earlier.origin, entry.name));
        let path = list.index(rule);
        sink.warning(lists[rule].0, &path.key("plugins").key(entry.name), fault.hint("keep one of them"));
    }
    merge([&kept[..]], &list, sink).unwrap_or_default()
}

/// A plugin that an earlier global rule has already.
pub(crate) struct LeftOut {
    /// Which of the rules.
    pub(crate) rule: usize,
    pub(crate) entry: Arc<Entry>,
    pub(crate) earlier: Arc<Entry>,
}

/// The plugins of rules, and those that are left out of them.
pub(crate) fn first_of_each<'a>(rules: impl Iterator<Item = &'a List>) -> (Vec<Arc<Entry>>, Vec<LeftOut>) {
    let (mut kept, mut left_out): (Vec<Arc<Entry>>, Vec<LeftOut>) = Default::default();
    for (rule, list) in rules.enumerate() {
        for entry in list.iter() {
            match kept.iter().find(|earlier| earlier.name == entry.name) {
                None => kept.push(entry.clone()),
                Some(earlier) => left_out.push(LeftOut { rule, entry: entry.clone(), earlier: earlier.clone() }),
            }
        }
    }
    (kept, left_out)
}

fn metadata(written: Vec<Node>, plugins: &SharedPlugins, sink: &mut Sink) -> MetadataTable {
    let mut table = MetadataTable::default();
    let list = Path::Root.key("plugin_metadata");
    for (index, node) in written.iter().enumerate() {
        let path = list.index(index);
        let Value::Map(entries) = &node.value else {
            sink.error(node.at, &path, Fault::new("expected a map with the key \"id\""));
            continue;
        };
        let (id, own): (Vec<_>, Vec<_>) = entries.iter().cloned().partition(|entry| &*entry.key == "id");
        let name = id.first().and_then(|id| match &id.value.value {
            Value::Scalar(scalar) => Some(scalar.text.clone()),
            _ => None,
        });
        let Some(name) = name else {
            sink.error(node.at, &path, Fault::new("the key \"id\" is missing").hint("write the plugin's name there"));
            continue;
        };
        let part = plugins.set.table.find(&name).map(|(_, plugin)| (plugin.name, plugin.metadata));
        let (plugin, part) = match part {
            Some((plugin, Some(part))) => (plugin, part),
            Some((plugin, None)) => {
                sink.error(node.at, &path, Fault::new(format!("the plugin {plugin} has no metadata")));
                continue;
            }
            None => {
                let fault = Fault::new(format!("there is no plugin {:?}", &*name));
                let fault = sink.guess(fault, &name, plugins.set.table.names());
                sink.error(node.at, &path.key("id"), fault);
                continue;
            }
        };
        let own = Node { at: node.at, value: Value::Map(own.into()) };
        let own = substitute(&own, &*plugins.set.secrets, &path, sink);
        if let Some(metadata) = (part.read)(&own, &path, sink) {
            let origin = Origin { level: Level::Metadata, id: plugin.into() };
            table.insert(plugin, identity(plugin, &origin, &own, &path, sink), metadata);
        }
    }
    table
}
