//! Plugins, from what was written to chains: compiled where they are written, merged where they meet.

use super::shared::{Identified, dangling, insert};
use crate::keys::plugins::{ConsumerGroupKeys, ConsumerKeys, GlobalRuleKeys, PluginConfigKeys};
use crate::keys::resources::Resource;
use crate::model::plugins::Shared;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use stillgate_plugin::secrets::substitute;
use stillgate_plugin::table::identity;
use stillgate_plugin::{
    Chain, Consumer, Consumers, Credential, Entry, Identity, Level, MetadataTable, NoSecrets, Origin, Secrets, Table,
};
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
        PluginSet { table: Table(&[]), secrets: Arc::new(NoSecrets) }
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
    configs: HashMap<String, Identified<List>>,
    /// What configurations share by a name of theirs: what must be the same in all of them, and where it was first.
    groups: RefCell<HashMap<Group, (Identity, Origin)>>,
}

impl SharedPlugins {
    pub(super) fn new(set: PluginSet, configs: Vec<Resource<PluginConfigKeys>>, sink: &mut Sink) -> SharedPlugins {
        let mut shared = SharedPlugins { set, ..SharedPlugins::default() };
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
    pub(super) fn compile(
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
        let config = config.and_then(|id| match self.configs.get(&id.value) {
            Some(config) => Some(&config.value),
            None => {
                dangling(id, "plugin_config", &self.configs, &path.key("plugin_config_id"), sink);
                None
            }
        });
        if own.is_empty() && config.is_none() {
            return service.and_then(|service| service.chain.clone());
        }
        let lists = [service.map(|service| &service.list), config, Some(own)];
        merge(lists.into_iter().flatten().map(|list| &**list), path, sink)
    }
}

/// The plugins of a service, and their chain for routes that have none of their own.
#[derive(Debug, Default)]
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
        Ok(chain) => (!chain.is_empty()).then(|| Arc::new(chain)),
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
    pub(super) groups: Vec<Resource<ConsumerGroupKeys>>,
    pub(super) metadata: Vec<Node>,
}

/// What of plugins belongs to no route.
pub(super) fn shared(written: Written, plugins: &SharedPlugins, sink: &mut Sink) -> Shared {
    Shared {
        global: global(written.global_rules, plugins, sink),
        consumers: Arc::new(consumers(written.consumers, written.groups, plugins, sink)),
        metadata: Arc::new(metadata(written.metadata, plugins, sink)),
    }
}

/// Of two rules with the same plugin the first keeps it: APISIX would leave it out of both, so that a second rule could
/// switch off what the first guards.
fn global(rules: Vec<Resource<GlobalRuleKeys>>, plugins: &SharedPlugins, sink: &mut Sink) -> Arc<Chain> {
    let mut ids = HashMap::new();
    let mut kept: Vec<Arc<Entry>> = Vec::new();
    let list = Path::Root.key("global_rules");
    for Resource { index, at, keys } in rules {
        let path = list.index(index);
        let Some(id) = keys.id else { continue };
        let compiled = plugins.compile(Some(&keys.plugins), Level::GlobalRule, &id.value, &path, sink);
        insert(&mut ids, id, Identified { line: at.line, value: () }, &path, sink);
        for entry in compiled.iter() {
            match kept.iter().find(|earlier| earlier.name == entry.name) {
                None => kept.push(entry.clone()),
                Some(earlier) => {
                    let fault = Fault::new(format!("{} has {} already, which stays", earlier.origin, entry.name));
                    sink.warning(at, &path.key("plugins").key(entry.name), fault.hint("keep one of them"));
                }
            }
        }
    }
    merge([&kept[..]], &list, sink).unwrap_or_default()
}

fn consumers(
    written: Vec<Resource<ConsumerKeys>>,
    groups: Vec<Resource<ConsumerGroupKeys>>,
    plugins: &SharedPlugins,
    sink: &mut Sink,
) -> Consumers {
    let groups = consumer_groups(groups, plugins, sink);
    let mut lines: HashMap<String, Identified<()>> = HashMap::with_capacity(written.len());
    let mut all = Consumers::default();
    let list = Path::Root.key("consumers");
    for Resource { index, at, keys } in written {
        let path = list.index(index);
        let name = keys.username.clone();
        let is_new = !lines.contains_key(&name.value);
        insert(&mut lines, name, Identified { line: at.line, value: () }, &path, sink);
        let (consumer, credentials) = consumer(keys, &groups, plugins, &path, sink);
        if !is_new {
            continue;
        }
        let places: Vec<&'static str> = credentials.iter().map(|credential| credential.plugin).collect();
        if let Err(taken) = all.insert(consumer, credentials) {
            let owner = &all.of(taken.by).name;
            let line = lines.get(&**owner).map_or(0, |owner| owner.line);
            let message = format!("consumer {owner:?} in line {line} has the same {} credential", places[taken.at]);
            sink.error(at, &path, Fault::new(message).hint("give each consumer its own"));
        }
    }
    all
}

fn consumer_groups(
    written: Vec<Resource<ConsumerGroupKeys>>,
    plugins: &SharedPlugins,
    sink: &mut Sink,
) -> HashMap<String, Identified<List>> {
    let mut groups = HashMap::new();
    let list = Path::Root.key("consumer_groups");
    for Resource { index, at, keys } in written {
        let path = list.index(index);
        let Some(id) = keys.id else { continue };
        let value = plugins.compile(Some(&keys.plugins), Level::ConsumerGroup, &id.value, &path, sink);
        insert(&mut groups, id, Identified { line: at.line, value }, &path, sink);
    }
    groups
}

fn consumer(
    keys: ConsumerKeys,
    groups: &HashMap<String, Identified<List>>,
    plugins: &SharedPlugins,
    path: &Path<'_>,
    sink: &mut Sink,
) -> (Consumer, Vec<Credential>) {
    let name = keys.username.value;
    let group = keys.group_id.as_ref().and_then(|id| {
        let group = groups.get(&id.value);
        if group.is_none() {
            dangling(id, "consumer_group", groups, &path.key("group_id"), sink);
        }
        group
    });
    let mut credentials = Vec::new();
    let others =
        keys.plugins.map(|node| read_credentials(&node, None, plugins, &path.key("plugins"), &mut credentials, sink));
    let own = plugins.compile(others.as_ref(), Level::Consumer, &name, path, sink);
    let mut ids = Vec::with_capacity(keys.credentials.len());
    let list = path.key("credentials");
    for (place, Resource { index, at, keys }) in keys.credentials.into_iter().enumerate() {
        let path = list.index(index);
        let before = credentials.len();
        let others = read_credentials(
            &keys.plugins,
            u16::try_from(place).ok(),
            plugins,
            &path.key("plugins"),
            &mut credentials,
            sink,
        );
        if credentials.len() != before + 1 || !is_empty(&others) {
            let fault = Fault::new("a credential has one plugin, which authenticates");
            sink.error(at, &path.key("plugins"), fault.hint("write it like {key-auth: {key: …}}"));
        }
        ids.push(keys.id.map_or_else(String::new, |id| id.value).into());
    }
    let group_list = group.map_or(&[][..], |group| &group.value);
    let consumer = Consumer {
        name: name.into(),
        group: keys.group_id.map(|id| id.value.into()),
        custom_id: keys.labels.get("custom_id").map(|id| id.as_str().into()),
        plugins: match (&own[..], group) {
            ([], Some(group)) => group.value.clone(),
            _ => group_list
                .iter()
                .filter(|of_group| own.iter().all(|own| own.name != of_group.name))
                .chain(own.iter())
                .cloned()
                .collect(),
        },
        credentials: ids.into(),
    };
    (consumer, credentials)
}

fn is_empty(node: &Node) -> bool {
    matches!(&node.value, Value::Map(entries) if entries.is_empty())
}

/// Takes out what authenticates, and gives the rest.
fn read_credentials(
    node: &Node,
    place: Option<u16>,
    plugins: &SharedPlugins,
    path: &Path<'_>,
    out: &mut Vec<Credential>,
    sink: &mut Sink,
) -> Node {
    let Value::Map(entries) = &node.value else { return node.clone() };
    let mut others = Vec::new();
    for entry in entries.iter() {
        let found = plugins.set.table.find(&entry.key).and_then(|(_, plugin)| Some((plugin.name, plugin.credential?)));
        let Some((plugin, credential)) = found else {
            others.push(entry.clone());
            continue;
        };
        let path = path.key(&entry.key);
        let resolved = substitute(&entry.value, &*plugins.set.secrets, &path, sink);
        if let Some(lookup) = (credential.read)(&resolved, &path, sink) {
            out.push(Credential { plugin, lookup, place });
        }
    }
    Node { at: node.at, value: Value::Map(others.into()) }
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
