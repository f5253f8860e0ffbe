//! Reads a text that differs from the previous one only in the list of consumers.

use super::outline::{Item, Keeps, ListItems, hash_of, only_item};
use super::{DigestedText, List, SplitText};
use crate::file::FILE_BYTES_MAX;
use crate::keys::plugins::ConsumerKeys;
use crate::keys::resource_list::Resource;
use crate::model::{Config, LoadedConfig};
use crate::resources::{Definition, ResourceId, ResourceKeys};
use foldhash::quality::RandomState;
use std::collections::HashMap;
use std::sync::Arc;
use stillgate_plugin::{Consumer, Consumers, Credential};
use stillgate_schema::kind;
use stillgate_schema::object::map;
use stillgate_schema::text::cuts::{Cuts, ItemText, cut, has_plain_lines};
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
        let definition = self.kept.known.catalog.define(written, named, &mut self.sink)?;
        // Its plugins may conflict with others, name a consumer or have upstreams: rare enough to read everything again.
        let is_alone = definition.claims().is_empty()
            && definition.upstreams().is_empty()
            && definition.entries().iter().all(|entry| entry.plugin.named_consumer().is_none());
        let Definition::Consumer(consumer, credentials) = definition else { return None };
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
            let mut all: Vec<Diagnostic> = listed.moved(warnings, line).chain(of_items.iter().cloned()).collect();
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
        let mut config = Config { digest: before.plugins.own.beside(&text.digest), ..before };
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
                let gone = table.of(table.named(&name)?);
                if gone.plugins.iter().any(|entry| !entry.plugin.own_upstreams().is_empty()) {
                    return None;
                }
                table.remove(&name);
            }
        }
        for (consumer, credentials) in self.read.drain(..) {
            if table.named(&consumer.name).is_some() {
                return None;
            }
            table.insert(consumer, credentials).ok()?;
        }
        let named = &self.kept.known.named;
        named.keys().all(|name| table.named(name).is_some()).then_some(table)
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

// Finds the items of a list that are the same in two texts.

/// The items of a text that are also in the previous text.
pub(super) struct TextDifference {
    /// Number of equal items at the beginning of the list.
    pub(super) first: usize,
    /// The items in between.
    pub(super) changed: Vec<ItemText>,
    /// Number of equal items at its end.
    pub(super) last: usize,
}

impl TextDifference {
    /// `old` has the items; `None`: something else differs, or may differ.
    pub(super) fn between(old: &[u8], list: &List, items: &[Item], new: &[u8]) -> Option<TextDifference> {
        if new.len() > FILE_BYTES_MAX || new.len() < list.head + list.tail {
            return None;
        }
        let (old_end, new_end) = (old.len() - list.tail, new.len() - list.tail);
        if new[..list.head] != old[..list.head] || new[new_end..] != old[old_end..] {
            return None;
        }
        // The tail still begins with a line.
        if list.tail > 0 && new[new_end - 1] != b'\n' {
            return None;
        }
        let (old, new) = (&old[list.head..old_end], &new[list.head..new_end]);
        // One item less than is equal: then the dash of the next one, where the last one ends, is equal too.
        let prefix = common_prefix(old, new);
        let (first, begin) = whole(items.iter(), prefix);
        let suffix = common_suffix(&old[begin..], &new[begin..]);
        let (last, end) = whole(items[first..].iter().rev(), suffix);
        let between = &new[begin..new.len() - end];
        if !has_plain_lines(between) || std::str::from_utf8(between).is_err() {
            return None;
        }
        let changed = match between {
            [] => Vec::new(),
            _ => match cut(between, Some(list.column))? {
                Cuts { items, rest: 0, .. } => items,
                _ => return None,
            },
        };
        Some(TextDifference { first, changed, last })
    }
}

/// The number of items within this many bytes, less one, and their length.
fn whole<'a>(items: impl Iterator<Item = &'a Item>, bytes: usize) -> (usize, usize) {
    let (mut count, mut length, mut before) = (0usize, 0, 0);
    for item in items {
        let with = length + item.cut.bytes as usize;
        if with > bytes {
            break;
        }
        (count, before, length) = (count + 1, length, with);
    }
    (count.saturating_sub(1), before)
}

/// Compared at once; the standard library does that with `memcmp`.
const BLOCK_BYTES: usize = 4096;

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let blocks = a.chunks_exact(BLOCK_BYTES).zip(b.chunks_exact(BLOCK_BYTES)).take_while(|(a, b)| a == b).count();
    let at = blocks * BLOCK_BYTES;
    at + a[at..].iter().zip(&b[at..]).take_while(|(a, b)| a == b).count()
}

fn common_suffix(a: &[u8], b: &[u8]) -> usize {
    let blocks = a.rchunks_exact(BLOCK_BYTES).zip(b.rchunks_exact(BLOCK_BYTES)).take_while(|(a, b)| a == b).count();
    let bytes = blocks * BLOCK_BYTES;
    let (a, b) = (&a[..a.len() - bytes], &b[..b.len() - bytes]);
    bytes + a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count()
}

/// Old items that may occur elsewhere in the new text.
pub(super) struct OldItems<'a> {
    /// The index of the first one.
    first: usize,
    texts: Vec<&'a [u8]>,
    used: Vec<bool>,
    by_text: HashMap<&'a [u8], usize, RandomState>,
}

impl<'a> OldItems<'a> {
    /// `at`: the position of the first one in the old text.
    pub(super) fn new(old: &'a [u8], items: &[Item], range: std::ops::Range<usize>, mut at: usize) -> OldItems<'a> {
        let first = range.start;
        let texts: Vec<&[u8]> = items[range]
            .iter()
            .map(|item| {
                at += item.cut.bytes as usize;
                &old[at - item.cut.bytes as usize..at]
            })
            .collect();
        let by_text = texts.iter().enumerate().map(|(n, text)| (*text, first + n)).collect();
        OldItems { first, used: vec![false; texts.len()], texts, by_text }
    }

    /// The old item with this text, preferably with the same index. No item is found twice, since two items would then have one id.
    pub(super) fn find(&mut self, index: usize, text: &[u8]) -> Option<usize> {
        let in_place = index.checked_sub(self.first).and_then(|n| self.texts.get(n)).is_some_and(|old| *old == text);
        let found = if in_place { index } else { *self.by_text.get(text)? };
        let is_used = std::mem::replace(&mut self.used[found - self.first], true);
        (!is_used).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_ends_are_found_in_and_between_blocks() {
        let long: Vec<u8> = (0..3 * BLOCK_BYTES + 100).map(|n| n as u8).collect();
        let places = [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES + 7, 3 * BLOCK_BYTES + 99];
        for place in places {
            let mut other = long.clone();
            other[place] ^= 1;
            assert_eq!(common_prefix(&long, &other), place);
            assert_eq!(common_suffix(&long, &other), long.len() - 1 - place);
            assert_eq!(common_prefix(&long, &long[..place]), place);
            assert_eq!(common_suffix(&long[place..], &long), long.len() - place);
        }
    }
}
