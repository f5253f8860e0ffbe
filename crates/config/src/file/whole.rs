//! Compiles a file that is read as a whole: its resources are defined one by one, and refused together.

use crate::keys::resource_list::Resource;
use crate::keys::resources::File;
use crate::model::{Config, ResourceKind, Route, SharedPlugins, Ssl, StreamRoute, Upstream};
use crate::resources::addresses::{check_nodes, check_own_addresses};
use crate::resources::{
    Catalog, Claims, CompiledResource, Holder, Metadata, PluginList, PluginSet, ResourceId, ResourceKeys,
    SkippedPlugin, deduplicate_global_rules, metadata_table, take_id, usable_chain, with_managers,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use stillgate_plugin_api::secrets::each_reference;
use stillgate_plugin_api::{Chain, ChainEntry, Consumers};
use stillgate_schema::kind::At;
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink, shortened};
use stillgate_schema::text::tree::Node;

/// The state that the next text is read with.
pub(super) struct CatalogState {
    pub(super) catalog: Catalog,
    pub(super) claims: Claims,
    /// Number of the configuration's upstreams that are not inline in a route; those come first.
    pub(super) shared_upstreams: usize,
    /// The consumers that plugins name, with the position of the first reference.
    pub(super) named: NamedConsumers,
}

/// By name: the plugin, its position, and its owner.
pub(super) type NamedConsumers = BTreeMap<String, (&'static str, Position, String)>;

/// Compiles the configuration; it is usable only if the sink has no errors afterwards.
pub(super) fn resolve(
    file: File,
    digest: String,
    plugins: PluginSet,
    root: &Node,
    sink: &mut Sink,
) -> (Config, CatalogState) {
    let plugins = with_managers(plugins, file.secrets, sink);
    let mut references = Vec::new();
    each_reference(root, &mut |reference| references.push(reference.to_owned()));
    plugins.secrets.fetch(&references);
    let mut catalog = Catalog::new(&file.gateway, plugins);
    catalog.are_listeners_known = file.gateway.config.source.is_file();
    let mut taking = ResourceLoader::new(catalog, sink);
    taking.list(ResourceKind::Protos, file.protos, ResourceKeys::Proto);
    taking.list(ResourceKind::Ssls, file.ssls, ResourceKeys::Ssl);
    // If resources come from elsewhere, certificates may follow later, and until then TLS is not available.
    if taking.catalog.are_listeners_known {
        taking.check_listeners();
    }
    taking.list(ResourceKind::Upstreams, file.upstreams, ResourceKeys::Upstream);
    taking.list(ResourceKind::PluginMetadata, file.plugin_metadata, ResourceKeys::Metadata);
    taking.list(ResourceKind::PluginConfigs, file.plugin_configs, ResourceKeys::PluginConfig);
    taking.list(ResourceKind::ConsumerGroups, file.consumer_groups, ResourceKeys::ConsumerGroup);
    taking.list(ResourceKind::Services, file.services, ResourceKeys::Service);
    taking.list(ResourceKind::Consumers, file.consumers, ResourceKeys::Consumer);
    taking.list(ResourceKind::GlobalRules, file.global_rules, ResourceKeys::GlobalRule);
    taking.list(ResourceKind::StreamRoutes, file.stream_routes, ResourceKeys::StreamRoute);
    let shared_upstreams = taking.upstreams.len();
    taking.list(ResourceKind::Routes, file.routes, ResourceKeys::Route);
    let global = taking.global_rules();
    let ResourceLoader { catalog, claims, sink, named, consumers, metadata, .. } = taking;
    check_names(&named, &consumers, sink);
    check_own_addresses(&catalog.listeners, &file.gateway, sink);
    taking.upstreams.iter().for_each(|upstream| check_nodes(&catalog.listeners, upstream, sink));
    let custom = catalog.plugins.set.table.custom.clone();
    let plugins = SharedPlugins {
        custom,
        global: Arc::new(global),
        consumers: Arc::new(consumers),
        metadata: Arc::new(metadata_table(metadata.iter())),
    };
    let config = Config {
        gateway: file.gateway,
        listeners: catalog.listeners.clone(),
        upstreams: taking.upstreams,
        routes: taking.routes.into_iter().collect(),
        route_lines: taking.route_lines,
        stream_routes: taking.stream_routes,
        ssls: taking.ssls,
        plugins,
        digest,
    };
    (config, CatalogState { catalog, claims, shared_upstreams, named })
}

/// Records the consumers that the plugins of a resource name.
pub(super) fn note_names(entries: &[Arc<ChainEntry>], named: &mut NamedConsumers) {
    for entry in entries {
        if let Some(name) = entry.plugin.named_consumer()
            && !named.contains_key(name)
        {
            named.insert(name.to_owned(), (entry.name, entry.at, entry.origin.to_string()));
        }
    }
}

/// Reports missing consumers that plugins name.
fn check_names(named: &NamedConsumers, consumers: &Consumers, sink: &mut Sink) {
    for (name, (plugin, at, origin)) in named {
        if consumers.find_by_name(name).is_some() || sink.may_miss(ResourceKind::Consumers.name(), name) {
            continue;
        }
        let fault =
            Fault::new(format!("{plugin} of {origin} names the consumer {:?}, which is not there", shortened(name)));
        sink.error(*at, &Path::Root.key("consumers"), fault.hint("add it to `consumers`, or name another"));
    }
}

/// Adds the resources of a file.
struct ResourceLoader<'a> {
    catalog: Catalog,
    claims: Claims,
    sink: &'a mut Sink,
    named: NamedConsumers,
    upstreams: Vec<Arc<Upstream>>,
    routes: Vec<Arc<Route>>,
    route_lines: Vec<u32>,
    stream_routes: Vec<Arc<StreamRoute>>,
    ssls: Vec<Arc<Ssl>>,
    /// With their positions in the list.
    rules: Vec<(usize, Position, PluginList)>,
    metadata: Vec<Metadata>,
    consumers: Consumers,
    /// The resources of the current list, by id.
    lines: HashMap<String, u32>,
}

impl<'a> ResourceLoader<'a> {
    fn new(catalog: Catalog, sink: &'a mut Sink) -> ResourceLoader<'a> {
        ResourceLoader {
            catalog,
            claims: Claims::default(),
            sink,
            named: BTreeMap::new(),
            upstreams: Vec::new(),
            routes: Vec::new(),
            route_lines: Vec::new(),
            stream_routes: Vec::new(),
            ssls: Vec::new(),
            rules: Vec::new(),
            metadata: Vec::new(),
            consumers: Consumers::default(),
            lines: HashMap::new(),
        }
    }

    fn list<T>(&mut self, kind: ResourceKind, resources: Vec<Resource<T>>, written: impl Fn(T) -> ResourceKeys) {
        let list = Path::Root.key(kind.name());
        self.lines = HashMap::with_capacity(resources.len());
        for Resource { index, at, node, keys } in resources {
            let (path, written) = (list.index(index), written(keys));
            // A resource without an id, which has been reported, cannot be referred to; the rest of it is checked anyway.
            let id = id_of(kind, &written, index, at);
            let is_new = id.as_ref().is_some_and(|id| take_id(&mut self.lines, id, at.line, &path, self.sink));
            let named = ResourceId { id: id.as_ref().map_or("", |id| &id.value), at, path: &path, node: &node };
            let Some(compiled) = self.catalog.compile_resource(written, named, self.sink) else {
                self.sink.excuse(kind.name(), named.id);
                continue;
            };
            if is_new || id.is_none() {
                self.claim(kind, &compiled, named);
            }
            if is_new {
                self.catalog.put(kind, named.id, at.line, Some(&compiled));
            }
            self.place(compiled, index, named, is_new);
        }
    }

    /// Reports a claim that another resource already has.
    fn claim(&mut self, kind: ResourceKind, compiled: &CompiledResource, named: ResourceId<'_>) {
        let claims = compiled.claims();
        if claims.is_empty() {
            return;
        }
        let holder = Holder { created: 0, kind, id: named.id.into(), line: named.at.line };
        for claim in &claims {
            if let Some(first) = self.claims.try_claim(claim, &holder) {
                claim.report(&first, named.path, self.sink);
            }
        }
    }

    fn place(&mut self, compiled: CompiledResource, index: usize, named: ResourceId<'_>, is_new: bool) {
        note_names(&compiled.entries(), &mut self.named);
        self.upstreams.append(&mut compiled.upstreams());
        match compiled {
            CompiledResource::Ssl(ssl, _) => self.ssls.extend(ssl.filter(|_| is_new)),
            CompiledResource::Metadata(metadata) => self.metadata.push(metadata),
            CompiledResource::GlobalRule(list) => self.rules.push((index, named.at, list)),
            CompiledResource::StreamRoute(route) => self.stream_routes.extend(route),
            CompiledResource::Route(Some(route)) => {
                self.routes.push(route);
                self.route_lines.push(named.at.line);
            }
            CompiledResource::Consumer(consumer, credentials) if is_new => {
                let asked_by: Vec<&'static str> = credentials.iter().map(|credential| credential.plugin).collect();
                let Err(taken) = self.consumers.insert(consumer, credentials) else { return };
                let owner = &self.consumers.of(taken.by).name;
                let line = self.lines.get(&**owner).copied().unwrap_or_default();
                let message =
                    format!("consumer {owner:?} in line {line} has the same {} credential", asked_by[taken.at]);
                self.sink.error(named.at, named.path, Fault::new(message).hint("give each consumer its own"));
            }
            CompiledResource::Consumer(..)
            | CompiledResource::PluginConfig(_)
            // Files express these differently, or not at all.
            | CompiledResource::Secret(_)
            | CompiledResource::Credential(_)
            | CompiledResource::Proto
            | CompiledResource::ConsumerGroup(_)
            | CompiledResource::Upstream(_)
            | CompiledResource::Service(..)
            | CompiledResource::Route(None) => {}
        }
    }

    fn check_listeners(&mut self) {
        let Catalog { ssls, listeners, acme, .. } = &self.catalog;
        ssls.check_listeners(&self.ssls, listeners, acme.as_ref(), self.sink);
    }

    /// The plugins of every request. A rule's plugin that an earlier rule also has is left out.
    fn global_rules(&mut self) -> Chain {
        let list = Path::Root.key(ResourceKind::GlobalRules.name());
        let (kept, skipped) = deduplicate_global_rules(self.rules.iter().map(|(_, _, list)| list));
        for skipped in skipped {
            let SkippedPlugin { rule, entry, .. } = &skipped;
            let (index, at, _) = self.rules[*rule];
            let path = list.index(index);
            self.sink.warning(at, &path.key("plugins").key(entry.name), skipped.fault());
        }
        usable_chain(Chain::of_all(kept), &list, self.sink).map(Arc::unwrap_or_clone).unwrap_or_default()
    }
}

/// The id of a resource: its own, or its position in the list.
pub(super) fn id_of(kind: ResourceKind, written: &ResourceKeys, index: usize, at: Position) -> Option<At<String>> {
    let numbered = || is_numbered(kind).then(|| At { at, value: (index + 1).to_string() });
    written.id().cloned().or_else(numbered)
}

/// Whether the position of a resource in its list is its id where it has none. Consumers have names, and the ids of metadata and
/// secret managers have a meaning.
pub(super) fn is_numbered(kind: ResourceKind) -> bool {
    !matches!(
        kind,
        ResourceKind::Consumers | ResourceKind::Credentials | ResourceKind::PluginMetadata | ResourceKind::Secrets
    )
}
