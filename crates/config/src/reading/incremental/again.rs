//! Reads a text by what differs from the one that is kept.

use super::items::{Item, Keeps};
use super::{Kept, Text, outline};
use crate::keys::resources::{Resource, RouteKeys};
use crate::model::{Config, Route};
use crate::reading::{FILE_BYTES_MAX, Loaded};
use crate::resolve::check_nodes;
use crate::resolve::{Placed, route_id};
use foldhash::quality::RandomState;
use std::collections::HashMap;
use std::sync::Arc;
use stillgate_schema::kind;
use stillgate_schema::object::map;
use stillgate_schema::text::cuts::{Cut, Cuts, cut, has_plain_lines};
use stillgate_schema::text::diagnostic::{DIAGNOSTICS_MAX, Diagnostic, Path, Sink};
use stillgate_schema::text::environment::Lookup;
use stillgate_schema::text::tree::{NODES_MAX, Value, parse};

/// What takes the place of what was kept.
pub(super) struct Next {
    pub(super) loaded: Loaded,
    pub(super) items: Vec<Item>,
    /// Warnings that are of no item, in their new lines.
    pub(super) warnings: Vec<Diagnostic>,
}

/// `None`: it cannot be read this way, or has an error.
pub(super) fn read(kept: &Kept, text: &Text, environment: Lookup<'_>) -> Option<Next> {
    let new = &text.bytes[..];
    let difference = Difference::between(kept, new)?;
    let mut next = Assembly::new(kept, new, environment);
    let (first, last) = (difference.first, kept.items.len() - difference.last);
    for index in 0..first {
        next.push(kept.items[index].cut, Some(index))?;
    }
    let mut known = Known::new(kept, first..last, next.at);
    for cut in difference.changed {
        let old = known.find(next.items.len(), &new[next.at..next.at + cut.bytes as usize]);
        next.push(cut, old)?;
    }
    for index in last..kept.items.len() {
        next.push(kept.items[index].cut, Some(index))?;
    }
    next.finish(text)
}

/// Which items of a text are those of the text before.
struct Difference {
    /// How many at the beginning of the list are the same.
    first: usize,
    /// Those between.
    changed: Vec<Cut>,
    /// How many at its end are the same.
    last: usize,
}

impl Difference {
    fn between(kept: &Kept, new: &[u8]) -> Option<Difference> {
        let (old, list) = (&kept.text.bytes[..], &kept.list);
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
        // One item less than are the same: then the next one's dash, where the last ends, is the same too.
        let prefix = common_prefix(old, new);
        let (first, begin) = whole(kept.items.iter(), prefix);
        let suffix = common_suffix(&old[begin..], &new[begin..]);
        let (last, end) = whole(kept.items[first..].iter().rev(), suffix);
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
        Some(Difference { first, changed, last })
    }
}

/// How many items lie within so many bytes, less one, and how long they are.
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

/// Old items that may be found again elsewhere.
struct Known<'a> {
    /// The index of the first.
    first: usize,
    texts: Vec<&'a [u8]>,
    used: Vec<bool>,
    by_text: HashMap<&'a [u8], usize, RandomState>,
}

impl<'a> Known<'a> {
    /// `at`: where the first of them begins in the old text.
    fn new(kept: &'a Kept, range: std::ops::Range<usize>, mut at: usize) -> Known<'a> {
        let first = range.start;
        let texts: Vec<&[u8]> = kept.items[range]
            .iter()
            .map(|item| {
                at += item.cut.bytes as usize;
                &kept.text.bytes[at - item.cut.bytes as usize..at]
            })
            .collect();
        let by_text = texts.iter().enumerate().map(|(n, text)| (*text, first + n)).collect();
        Known { first, used: vec![false; texts.len()], texts, by_text }
    }

    /// The old item with that text; with the same index rather than with another. None is found twice, for then two
    /// routes would have one id.
    fn find(&mut self, index: usize, text: &[u8]) -> Option<usize> {
        let in_place = index.checked_sub(self.first).and_then(|n| self.texts.get(n)).is_some_and(|old| *old == text);
        let found = if in_place { index } else { *self.by_text.get(text)? };
        let is_used = std::mem::replace(&mut self.used[found - self.first], true);
        (!is_used).then_some(found)
    }
}

struct Assembly<'a> {
    kept: &'a Kept,
    environment: Lookup<'a>,
    text: &'a [u8],
    /// Where the next item begins.
    at: usize,
    line: u32,
    items: Vec<Item>,
    placed: Placed,
    /// Before each old item: how many of the old routes, and of the old upstreams.
    before: Vec<(u32, u32)>,
    /// Hashes of the ids of the items that were read.
    ids: Vec<u64>,
    sink: Sink,
}

impl<'a> Assembly<'a> {
    fn new(kept: &'a Kept, text: &'a [u8], environment: Lookup<'a>) -> Assembly<'a> {
        let config = &kept.loaded.config;
        let (mut routes, mut upstreams) = (0, kept.shared.upstreams.len() as u32);
        let count = |item: &Item| {
            let before = (routes, upstreams);
            routes += u32::from(item.is_enabled);
            upstreams += u32::from(item.has_upstream);
            before
        };
        let before = kept.items.iter().map(count).collect();
        let mut placed = Placed {
            routes: Vec::with_capacity(config.routes.len() + 1),
            route_lines: Vec::with_capacity(config.routes.len() + 1),
            upstreams: Vec::with_capacity(config.upstreams.len() + 1),
        };
        placed.upstreams.extend_from_slice(&kept.shared.upstreams);
        let items = Vec::with_capacity(kept.items.len() + 1);
        let (at, line) = (kept.list.head, kept.list.line);
        Assembly { kept, environment, text, at, line, items, placed, before, ids: Vec::new(), sink: Sink::default() }
    }

    /// Adds the next item. `old`: the one with the same text.
    fn push(&mut self, cut: Cut, old: Option<usize>) -> Option<()> {
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
        let (route, upstream) = (self.before[old].0 as usize, self.before[old].1 as usize);
        let route = &config.routes[route];
        let place = self.placed.upstreams.len();
        let route = match item.has_upstream && place != upstream {
            true => Arc::new(Route { upstream: place, ..(**route).clone() }),
            false => route.clone(),
        };
        if item.has_upstream {
            self.placed.upstreams.push(config.upstreams[upstream].clone());
        }
        self.placed.routes.push(route);
        self.placed.route_lines.push(self.line + item.at);
    }

    /// Reads an item as the only one of a list.
    fn read(&mut self, index: usize, cut: Cut) -> Option<()> {
        const ABOVE: &str = "routes:\n";
        let text = std::str::from_utf8(&self.text[self.at..self.at + cut.bytes as usize]).ok()?;
        // `line` is not the first, since that is at most the one of `routes:`.
        let tree = parse(self.line - 2, &format!("{ABOVE}{text}"), self.environment, &mut self.sink)?;
        let Value::Map(entries) = &tree.root.value else { return None };
        let [entry] = &**entries else { return None };
        let Value::List(nodes) = &entry.value.value else { return None };
        let [node] = &**nodes else { return None };
        let at = node.at.line.checked_sub(self.line).filter(|at| *at < cut.lines)?;
        if !tree.is_plain || &*entry.key != "routes" {
            return None;
        }
        let (list, warnings) = (Path::Root.key("routes"), self.sink.warnings());
        let path = list.index(index);
        let keys = kind::read(&map::<RouteKeys>(), node, &path, &mut self.sink)?;
        let resource = Resource { index, at: node.at, keys };
        let mut item = outline::item(cut, at, node, &resource)?;
        let Resource { keys, .. } = resource;
        let id = route_id(&keys, index, node.at).value;
        let route = self.kept.shared.route(keys, id, node.at, &path, &mut self.sink);
        if item.is_enabled {
            self.placed.push(route, node.at.line);
        }
        if item.has_upstream {
            let upstream = self.placed.upstreams.last()?;
            check_nodes(&self.kept.loaded.config.listeners, upstream, &mut self.sink);
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

    fn finish(mut self, text: &Text) -> Option<Next> {
        let kept = self.kept;
        // All ids that were read are found once: they differ from each other and from those that were kept.
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
        // Stable: those without a place stay in the order of the upstreams.
        warnings.sort_by_key(|warning| (warning.line, warning.column));
        let Placed { routes, route_lines, upstreams } = self.placed;
        // What is not a list of routes: no part of it has changed.
        let Config { gateway, listeners, stream_routes, ssls, plugins, .. } = &kept.loaded.config;
        let (gateway, listeners) = (gateway.clone(), listeners.clone());
        let (stream_routes, ssls, plugins) = (stream_routes.clone(), ssls.clone(), plugins.clone());
        let digest = text.digest.clone();
        let config =
            Config { gateway, listeners, upstreams, routes, route_lines, stream_routes, ssls, plugins, digest };
        Some(Next { loaded: Loaded { config, warnings }, items: self.items, warnings: outside })
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
