//! Reads a text that differs from the previous one only in the list of consumers.

use super::difference::{OldItems, TextDifference};
use super::outline::{Item, Keeps, ListItems, hash_of, only_item};
use super::{DigestedText, SplitText};
use crate::keys::plugins::ConsumerKeys;
use crate::keys::resource_list::Resource;
use crate::model::{Config, LoadedConfig};
use crate::resources::{CompiledResource, ResourceId, ResourceKeys};
use std::sync::Arc;
use stillgate_plugin_api::{Consumer, Consumers, Credential};
use stillgate_schema::kind;
use stillgate_schema::object::map;
use stillgate_schema::text::cuts::ItemText;
use stillgate_schema::text::diagnostic::{DIAGNOSTICS_MAX, Diagnostic, Path, Sink};
use stillgate_schema::text::environment::Lookup;
use stillgate_schema::text::tree::{NODES_MAX, Node};

/// The replacement of the previous state.
pub(super) struct ConsumersUpdate {
    pub(super) loaded: LoadedConfig,
    pub(super) items: Vec<Item>,
    /// Warnings outside of routes, with their new lines.
    pub(super) warnings: Vec<Diagnostic>,
}

/// `None`: it cannot be read this way, or has an error.
pub(super) fn read(kept: &SplitText, text: &DigestedText, environment: Lookup<'_>) -> Option<ConsumersUpdate> {
    let listed = kept.consumers.as_ref()?;
    let (old, new) = (&kept.text.bytes[..], &text.bytes[..]);
    let difference = TextDifference::between(old, &listed.list, &listed.items, new)?;
    let mut next = Assembly::new(kept, listed, new, environment);
    let (first, last) = (difference.first, listed.items.len() - difference.last);
    for index in 0..first {
        next.push(listed.items[index].cut, Some(index))?;
    }
    let mut known = OldItems::new(old, &listed.items, first..last, next.at);
    for cut in difference.changed {
        let old = known.find(next.items.len(), &new[next.at..next.at + cut.bytes as usize]);
        next.push(cut, old)?;
    }
    for index in last..listed.items.len() {
        next.push(listed.items[index].cut, Some(index))?;
    }
    next.finish(text)
}

/// The remembered state of a consumer without warnings.
pub(super) fn item(cut: ItemText, at: u32, node: &Node, resource: &Resource<ConsumerKeys>) -> Option<Item> {
    Some(Item {
        cut,
        at,
        nodes: u32::try_from(node.count()).ok()?,
        id: hash_of(&resource.keys.username.value),
        keeps: Keeps::Always,
        is_enabled: true,
        has_upstream: false,
    })
}

struct Assembly<'a> {
    kept: &'a SplitText,
    listed: &'a ListItems,
    environment: Lookup<'a>,
    text: &'a [u8],
    /// Where the next item begins.
    at: usize,
    line: u32,
    items: Vec<Item>,
    /// Whether each old item is in the new text.
    stays: Vec<bool>,
    read: Vec<(Consumer, Vec<Credential>)>,
    sink: Sink,
}

impl<'a> Assembly<'a> {
    fn new(kept: &'a SplitText, listed: &'a ListItems, text: &'a [u8], environment: Lookup<'a>) -> Assembly<'a> {
        Assembly {
            kept,
            listed,
            environment,
            text,
            at: listed.list.head,
            line: listed.list.line,
            items: Vec::with_capacity(listed.items.len() + 1),
            stays: vec![false; listed.items.len()],
            read: Vec::new(),
            sink: Sink::default(),
        }
    }

    /// Adds the next item. `old`: the old item with the same text.
    fn push(&mut self, cut: ItemText, old: Option<usize>) -> Option<()> {
        match old.filter(|old| self.listed.items[*old].keeps == Keeps::Always) {
            Some(old) => {
                self.stays[old] = true;
                self.items.push(self.listed.items[old]);
            }
            None => self.read(cut)?,
        }
        self.at += cut.bytes as usize;
        self.line += cut.lines;
        Some(())
    }

    fn read(&mut self, cut: ItemText) -> Option<()> {
        let (list, index) = (Path::Root.key("consumers"), self.items.len());
        let (path, warnings) = (list.index(index), self.sink.warnings());
        let text = &self.text[self.at..self.at + cut.bytes as usize];
        let (node, at) = only_item("consumers", text, self.line, cut, self.environment, &mut self.sink)?;
        let keys = kind::read(&map::<ConsumerKeys>(), &node, &path, &mut self.sink)?;
        let resource = Resource { index, at: node.at, node: node.clone(), keys };
        let mut item = item(cut, at, &node, &resource)?;
        let name = resource.keys.username.value.clone();
        let named = ResourceId { id: &name, at: node.at, path: &path, node: &node };
        let written = ResourceKeys::Consumer(resource.keys);
        let compiled = self.kept.known.catalog.compile_resource(written, named, &mut self.sink)?;
        // Its plugins may conflict with others, name a consumer or have upstreams: rare enough to read everything again.
        let is_alone = compiled.claims().is_empty()
            && compiled.upstreams().is_empty()
            && compiled.entries().iter().all(|entry| entry.plugin.named_consumer().is_none());
        let CompiledResource::Consumer(consumer, credentials) = compiled else { return None };
        self.read.push((consumer, credentials));
        if self.sink.has_errors() || !is_alone {
            return None;
        }
        if self.sink.warnings() > warnings {
            item.keeps = Keeps::Never;
        }
        self.items.push(item);
        Some(())
    }

    fn finish(mut self, text: &DigestedText) -> Option<ConsumersUpdate> {
        let consumers = self.table()?;
        let Assembly { kept, listed, items, sink, line, .. } = self;
        let count = |items: &[Item]| items.iter().map(|item| item.nodes as usize).sum::<usize>();
        let others = kept.nodes + count(&kept.items) - count(&listed.items);
        if items.is_empty() || others + count(&items) > NODES_MAX {
            return None;
        }
        let of_items = sink.into_warnings();
        let moved = |warnings: &[Diagnostic]| {
            let mut all: Vec<Diagnostic> =
                listed.shifted_warnings(warnings, line).chain(of_items.iter().cloned()).collect();
            // Stable: consumers without a place stay in order.
            all.sort_by_key(|warning| (warning.line, warning.column));
            all
        };
        let (warnings, of_no_route) = (moved(&kept.loaded.warnings), moved(&kept.warnings));
        if warnings.len() > DIAGNOSTICS_MAX {
            return None;
        }
        let end = listed.end();
        let before = kept.loaded.config.clone();
        let mut config = Config { digest: before.plugins.custom.combined_digest(&text.digest), ..before };
        config.plugins.consumers = Arc::new(consumers);
        for place in config.route_lines.iter_mut().filter(|place| **place >= end) {
            *place = *place - end + line;
        }
        let loaded = LoadedConfig { config, warnings, warnings_beside: Vec::new(), rejected: Vec::new() };
        Some(ConsumersUpdate { loaded, items, warnings: of_no_route })
    }

    /// The consumers without the removed ones, and with those that were read.
    fn table(&mut self) -> Option<Consumers> {
        let mut table = (*self.kept.loaded.config.plugins.consumers).clone();
        let mut at = self.listed.list.head;
        for (item, stays) in self.listed.items.iter().zip(&self.stays) {
            let text = &self.kept.text.bytes[at..at + item.cut.bytes as usize];
            at += item.cut.bytes as usize;
            if !stays {
                let name = name_of(item.cut, text, self.environment)?;
                let gone = table.of(table.find_by_name(&name)?);
                if gone.plugins.iter().any(|entry| !entry.plugin.own_upstreams().is_empty()) {
                    return None;
                }
                table.remove(&name);
            }
        }
        for (consumer, credentials) in self.read.drain(..) {
            if table.find_by_name(&consumer.name).is_some() {
                return None;
            }
            table.insert(consumer, credentials).ok()?;
        }
        let named = &self.kept.known.named;
        named.keys().all(|name| table.find_by_name(name).is_some()).then_some(table)
    }
}

/// The name in a valid item.
fn name_of(cut: ItemText, text: &[u8], environment: Lookup<'_>) -> Option<String> {
    /// The line does not matter.
    const LINE: u32 = 2;
    let mut sink = Sink::default();
    let (node, _) = only_item("consumers", text, LINE, cut, environment, &mut sink)?;
    let keys = kind::read(&map::<ConsumerKeys>(), &node, &Path::Root, &mut sink)?;
    Some(keys.username.value)
}
