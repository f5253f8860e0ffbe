//! Reads a text by its differences from the previous one.

use super::outline::{Item, Keeps, only_item};
use super::{DigestedText, SplitText, outline};
use crate::file::whole::{NamedConsumers, id_of, note_names};
use crate::keys::resource_list::Resource;
use crate::keys::resources::RouteKeys;
use crate::model::{Config, LoadedConfig, ResourceKind, Route, Upstream};
use crate::resources::addresses::check_nodes;
use crate::resources::{CompiledResource, Holder, ResourceId, ResourceKeys, own_upstreams};
use std::sync::Arc;
use stillgate_schema::kind;
use stillgate_schema::object::map;
use stillgate_schema::text::cuts::ItemText;
use stillgate_schema::text::diagnostic::{DIAGNOSTICS_MAX, Diagnostic, Path, Sink};
use stillgate_schema::text::environment::Lookup;
use stillgate_schema::text::tree::NODES_MAX;

/// The replacement of the previous state.
pub(super) struct ResourcesUpdate {
    pub(super) loaded: LoadedConfig,
    pub(super) items: Vec<Item>,
    /// Warnings outside of items, with their new lines.
    pub(super) warnings: Vec<Diagnostic>,
    /// The state that depends on the routes that were read.
    pub(super) named: NamedConsumers,
}

/// Routes and upstreams, in the order of the file.
struct FileResources {
    routes: Vec<Arc<Route>>,
    route_lines: Vec<u32>,
    upstreams: Vec<Arc<Upstream>>,
}

/// `None`: it cannot be read this way, or has an error.
pub(super) fn read(kept: &SplitText, text: &DigestedText, environment: Lookup<'_>) -> Option<ResourcesUpdate> {
    let new = &text.bytes[..];
    let difference = super::difference::TextDifference::between(&kept.text.bytes, &kept.list, &kept.items, new)?;
    let mut next = Assembly::new(kept, new, environment);
    let (first, last) = (difference.first, kept.items.len() - difference.last);
    for index in 0..first {
        next.push(kept.items[index].cut, Some(index))?;
    }
    let mut known = super::difference::OldItems::new(&kept.text.bytes, &kept.items, first..last, next.at);
    for cut in difference.changed {
        let old = known.find(next.items.len(), &new[next.at..next.at + cut.bytes as usize]);
        next.push(cut, old)?;
    }
    for index in last..kept.items.len() {
        next.push(kept.items[index].cut, Some(index))?;
    }
    next.finish(text)
}

struct Assembly<'a> {
    kept: &'a SplitText,
    environment: Lookup<'a>,
    text: &'a [u8],
    /// Where the next item begins.
    at: usize,
    line: u32,
    items: Vec<Item>,
    placed: FileResources,
    /// The number of old routes before each old item.
    before: Vec<u32>,
    /// Hashes of the ids of the items that were read.
    ids: Vec<u64>,
    named: NamedConsumers,
    sink: Sink,
}

impl<'a> Assembly<'a> {
    fn new(kept: &'a SplitText, text: &'a [u8], environment: Lookup<'a>) -> Assembly<'a> {
        let config = &kept.loaded.config;
        let mut routes = 0;
        let count = |item: &Item| {
            let before = routes;
            routes += u32::from(item.is_enabled);
            before
        };
        let before = kept.items.iter().map(count).collect();
        let mut placed = FileResources {
            routes: Vec::with_capacity(config.routes.len() + 1),
            route_lines: Vec::with_capacity(config.routes.len() + 1),
            upstreams: Vec::with_capacity(config.upstreams.len() + 1),
        };
        placed.upstreams.extend_from_slice(&config.upstreams[..kept.known.shared_upstreams]);
        let items = Vec::with_capacity(kept.items.len() + 1);
        let (at, line) = (kept.list.head, kept.list.line);
        Assembly {
            kept,
            environment,
            text,
            at,
            line,
            items,
            placed,
            before,
            ids: Vec::new(),
            named: NamedConsumers::new(),
            sink: Sink::default(),
        }
    }

    /// Adds the next item. `old`: the old item with the same text.
    fn push(&mut self, cut: ItemText, old: Option<usize>) -> Option<()> {
        let index = self.items.len();
        let is_kept = |old: &usize| match self.kept.items[*old].keeps {
            Keeps::Always => true,
            Keeps::InPlace => *old == index,
            Keeps::Never => false,
        };
        match old.filter(is_kept) {
            Some(old) => self.keep(old),
            None => self.read(index, cut)?,
        }
        self.at += cut.bytes as usize;
        self.line += cut.lines;
        Some(())
    }

    fn keep(&mut self, old: usize) {
        let (item, config) = (&self.kept.items[old], &self.kept.loaded.config);
        self.items.push(*item);
        if !item.is_enabled {
            return;
        }
        let route = &config.routes[self.before[old] as usize];
        self.placed.upstreams.extend(own_upstreams(route));
        self.placed.routes.push(route.clone());
        self.placed.route_lines.push(self.line + item.at);
    }

    /// Reads an item as the only one of a list.
    fn read(&mut self, index: usize, cut: ItemText) -> Option<()> {
        let text = &self.text[self.at..self.at + cut.bytes as usize];
        let (node, at) = only_item("routes", text, self.line, cut, self.environment, &mut self.sink)?;
        let node = &node;
        let (list, warnings) = (Path::Root.key("routes"), self.sink.warnings());
        let path = list.index(index);
        let keys = kind::read(&map::<RouteKeys>(), node, &path, &mut self.sink)?;
        let resource = Resource { index, at: node.at, node: node.clone(), keys };
        let mut item = outline::item(cut, at, node, &resource)?;
        let written = ResourceKeys::Route(resource.keys);
        let id = id_of(ResourceKind::Routes, &written, index, node.at)?;
        let named = ResourceId { id: &id.value, at: node.at, path: &path, node };
        let compiled = self.kept.known.catalog.compile_resource(written, named, &mut self.sink)?;
        self.check_others(&compiled, &id.value, node.at.line)?;
        for upstream in compiled.upstreams() {
            check_nodes(&self.kept.loaded.config.listeners, &upstream, &mut self.sink);
            self.placed.upstreams.push(upstream);
        }
        if let CompiledResource::Route(Some(route)) = compiled {
            self.placed.routes.push(route);
            self.placed.route_lines.push(node.at.line);
        }
        if self.sink.has_errors() {
            return None;
        }
        if self.sink.warnings() > warnings {
            item.keeps = Keeps::Never;
        }
        self.ids.push(item.id);
        self.items.push(item);
        Some(())
    }

    /// `None`: its content or its references may conflict with another resource.
    fn check_others(&mut self, compiled: &CompiledResource, id: &str, line: u32) -> Option<()> {
        let known = &self.kept.known;
        let holder = Holder { created: 0, kind: ResourceKind::Routes, id: id.into(), line };
        for claim in compiled.claims() {
            // A new thing may also be in another item that was read.
            known.claims.is_held(&claim).then_some(())?;
            known.claims.in_the_way(&claim, &holder).is_none().then_some(())?;
        }
        note_names(&compiled.entries(), &mut self.named);
        let consumers = &self.kept.loaded.config.plugins.consumers;
        self.named.keys().all(|name| consumers.find_by_name(name).is_some()).then_some(())
    }

    fn finish(mut self, text: &DigestedText) -> Option<ResourcesUpdate> {
        let kept = self.kept;
        // All ids that were read are distinct: they differ from each other and from the kept ones.
        self.ids.sort_unstable();
        let found = self.items.iter().filter(|item| self.ids.binary_search(&item.id).is_ok()).count();
        self.ids.dedup();
        let nodes = kept.nodes + self.items.iter().map(|item| item.nodes as usize).sum::<usize>();
        if found != self.ids.len() || nodes > NODES_MAX || self.items.is_empty() {
            return None;
        }
        let tail = kept.list.line + kept.items.iter().map(|item| item.cut.lines).sum::<u32>();
        let mut outside = kept.warnings.clone();
        for warning in outside.iter_mut().filter(|warning| warning.line >= tail) {
            warning.line = warning.line - tail + self.line;
        }
        let mut warnings = outside.clone();
        warnings.append(&mut self.sink.into_warnings());
        if warnings.len() > DIAGNOSTICS_MAX {
            return None;
        }
        // Stable: upstreams without a place stay in order.
        warnings.sort_by_key(|warning| (warning.line, warning.column));
        let FileResources { routes, route_lines, upstreams } = self.placed;
        let routes = routes.into_iter().collect();
        // Outside of the list of routes nothing has changed.
        let Config { gateway, listeners, stream_routes, ssls, plugins, .. } = &kept.loaded.config;
        let (gateway, listeners) = (gateway.clone(), listeners.clone());
        let (stream_routes, ssls, plugins) = (stream_routes.clone(), ssls.clone(), plugins.clone());
        let digest = plugins.custom.combined_digest(&text.digest);
        let config =
            Config { gateway, listeners, upstreams, routes, route_lines, stream_routes, ssls, plugins, digest };
        let loaded = LoadedConfig { config, warnings, warnings_beside: Vec::new(), rejected: Vec::new() };
        Some(ResourcesUpdate { loaded, items: self.items, warnings: outside, named: self.named })
    }
}
