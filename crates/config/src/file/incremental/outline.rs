//! Splits a text that was read as a whole, and keeps the state that the next one needs.

use super::{DigestedText, List, SplitText, Variables, consumers};
use crate::file::ParsedFile;
use crate::file::masks::has_mask;
use crate::file::whole::CatalogState;
use crate::keys::resource_list::Resource;
use crate::keys::resources::RouteKeys;
use crate::model::LoadedConfig;
use crate::resources::addresses::check_nodes;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use stillgate_schema::text::cuts::{Cuts, ItemText, cut, has_plain_lines};
use stillgate_schema::text::diagnostic::{DIAGNOSTICS_MAX, Diagnostic, Sink};
use stillgate_schema::text::environment::Lookup;
use stillgate_schema::text::tree::{Entry, Node, Value, parse};

/// A list and its items.
pub(super) struct ListItems {
    pub(super) list: List,
    pub(super) items: Vec<Item>,
}

impl ListItems {
    /// The line after the last item.
    pub(super) fn end(&self) -> u32 {
        self.list.line + self.items.iter().map(|item| item.cut.lines).sum::<u32>()
    }

    /// Warnings outside of the list's items, with their lines if the list ends before the line `end`.
    pub(super) fn shifted_warnings(&self, warnings: &[Diagnostic], end: u32) -> impl Iterator<Item = Diagnostic> {
        let own = self.list.line..self.end();
        warnings.iter().filter(move |warning| !own.contains(&warning.line)).cloned().map({
            let behind = self.end();
            move |mut warning| {
                if warning.line >= behind {
                    warning.line = warning.line - behind + end;
                }
                warning
            }
        })
    }

    /// Items with warnings are read each time.
    fn note(&mut self, warnings: &[Diagnostic]) {
        for warning in warnings {
            let mut line = self.list.line;
            let is_of = |item: &&mut Item| {
                let own = line..line + item.cut.lines;
                line = own.end;
                own.contains(&warning.line)
            };
            if let Some(item) = self.items.iter_mut().find(is_of) {
                item.keeps = Keeps::Never;
            }
        }
    }

    /// The list with the key `key`; `item` returns the state to remember of each item. `None`: it cannot be split.
    fn of<T>(
        key: &str,
        text: &[u8],
        written: &ParsedFile,
        resources: &[Resource<T>],
        item: impl Fn(ItemText, u32, &Node, &Resource<T>) -> Option<Item>,
    ) -> Option<ListItems> {
        let Value::Map(entries) = &written.tree.root.value else { return None };
        let place = entries.iter().position(|entry| &*entry.key == key)?;
        let Value::List(nodes) = &entries[place].value.value else { return None };
        if !written.tree.is_plain || !has_plain_lines(text) {
            return None;
        }
        let head = head(text, key, &entries[place])?;
        let Cuts { column, items: cuts, rest } = cut(&text[head..], None)?;
        let list = List { head, line: entries[place].key_at.line + 1, column, tail: rest };
        if cuts.len() != nodes.len() || cuts.len() != resources.len() {
            return None;
        }
        let (mut line, mut items) = (list.line, Vec::with_capacity(cuts.len()));
        for ((cut, node), resource) in cuts.into_iter().zip(nodes.iter()).zip(resources) {
            let at = node.at.line.checked_sub(line).filter(|at| *at < cut.lines)?;
            items.push(item(cut, at, node, resource)?);
            line += cut.lines;
        }
        // If the parser found a key where the tail begins, nothing of the list extends into the tail.
        let behind = entries.get(place + 1).map(|entry| (entry.key_at.line, entry.key_at.column));
        (behind == (rest > 0).then_some((line, 1))).then_some(ListItems { list, items })
    }
}

/// The cuts and items of a text that is not validated yet.
pub(super) struct Outline {
    consumers: Option<ListItems>,
    list: List,
    items: Vec<Item>,
    /// Number of lines before the tail.
    lines: u32,
    nodes: usize,
}

impl Outline {
    /// `None`: the text cannot be split.
    pub(super) fn of(text: &[u8], written: &ParsedFile) -> Option<Outline> {
        // With `plugins`, values of a route are compared with values elsewhere.
        if written.file.plugins.is_some() {
            return None;
        }
        let routes = ListItems::of("routes", text, written, &written.file.routes, item)?;
        let consumers = ListItems::of("consumers", text, written, &written.file.consumers, consumers::item);
        let (lines, ListItems { list, items }) = (routes.end(), routes);
        let nodes = written.tree.nodes.checked_sub(items.iter().map(|item| item.nodes as usize).sum())?;
        Some(Outline { consumers, list, items, lines, nodes })
    }

    /// Makes the outline of a valid text.
    pub(super) fn keep(
        mut self,
        text: DigestedText,
        loaded: Arc<LoadedConfig>,
        known: CatalogState,
        variables: Variables,
    ) -> Option<SplitText> {
        if loaded.warnings.len() > DIAGNOSTICS_MAX {
            return None;
        }
        let (config, mut own) = (&loaded.config, known.shared_upstreams);
        let mut unplaced = 0;
        for item in self.items.iter_mut().filter(|item| item.has_upstream) {
            let mut sink = Sink::default();
            check_nodes(&config.listeners, config.upstreams.get(own)?, &mut sink);
            own += 1;
            if sink.warnings() > 0 {
                item.keeps = Keeps::Never;
            }
            unplaced += sink.warnings();
        }
        let mut sink = Sink::default();
        let shared = &config.upstreams[..known.shared_upstreams];
        shared.iter().for_each(|upstream| check_nodes(&config.listeners, upstream, &mut sink));
        let mut warnings = sink.into_warnings();
        // Each warning without a position is known to concern one upstream or another.
        if loaded.warnings.iter().filter(|warning| warning.line == 0).count() != warnings.len() + unplaced {
            return None;
        }
        for warning in loaded.warnings.iter().filter(|warning| warning.line > 0) {
            match self.item_of(warning) {
                Some(item) => item.keeps = Keeps::Never,
                None => warnings.push(warning.clone()),
            }
        }
        if let Some(consumers) = &mut self.consumers {
            consumers.note(&loaded.warnings);
        }
        let Outline { consumers, list, items, nodes, .. } = self;
        Some(SplitText { text, loaded, known, variables, consumers, list, items, warnings, nodes })
    }

    fn item_of(&mut self, warning: &Diagnostic) -> Option<&mut Item> {
        let mut line = self.list.line;
        if !(line..self.lines).contains(&warning.line) {
            return None;
        }
        self.items.iter_mut().find(|item| {
            line += item.cut.lines;
            warning.line < line
        })
    }
}

/// The bytes up to the end of the line with the list's key, which must contain nothing else.
fn head(text: &[u8], key: &str, entry: &Entry) -> Option<usize> {
    let before = entry.key_at.line.checked_sub(1)? as usize;
    let begin = match before {
        0 => 0,
        lines => memchr::memchr_iter(b'\n', text).nth(lines - 1)? + 1,
    };
    // A directive may change the meaning of the rest.
    let has_directive = text.starts_with(b"%") || memchr::memmem::find(&text[..begin], b"\n%").is_some();
    let line = text[begin..].strip_prefix(key.as_bytes())?.strip_prefix(b":").filter(|_| !has_directive)?;
    let end = memchr::memchr(b'\n', line)?;
    let behind = line[..end].strip_suffix(b"\r").unwrap_or(&line[..end]);
    let blanks = behind.iter().position(|byte| *byte != b' ').unwrap_or(behind.len());
    let is_comment = behind.get(blanks).is_none_or(|byte| *byte == b'#' && blanks > 0);
    (is_comment && entry.key_at.column == 1).then_some(text.len() - line.len() + end + 1)
}

/// The remembered state of an item without warnings, as far as its keys show it.
pub(super) fn item(cut: ItemText, at: u32, node: &Node, resource: &Resource<RouteKeys>) -> Option<Item> {
    let keys = &resource.keys;
    Some(Item {
        cut,
        at,
        nodes: u32::try_from(node.count()).ok()?,
        id: hash_of(&route_id(keys, resource.index)),
        keeps: if keys.id.is_some() { Keeps::Always } else { Keeps::InPlace },
        is_enabled: keys.status,
        has_upstream: keys.status && keys.upstream.is_some(),
    })
}

/// The id of a route.
fn route_id(keys: &RouteKeys, index: usize) -> String {
    keys.id.as_ref().map_or_else(|| (index + 1).to_string(), |id| id.value.clone())
}

// The remembered state of a list's items, and the parsing of one item by itself.

/// One valid item of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) cut: ItemText,
    /// Number of lines from its first one to the one in which the resource begins.
    pub(super) at: u32,
    /// Number of keys and values.
    pub(super) nodes: u32,
    /// Hash of the resource's id, whether it is enabled or not.
    pub(super) id: u64,
    pub(super) keeps: Keeps,
    /// Whether it is enabled, and so part of the configuration.
    pub(super) is_enabled: bool,
    /// Whether it is an enabled route with an inline upstream.
    pub(super) has_upstream: bool,
}

const _: () = assert!(size_of::<Item>() == 32, "the documentation says so");

/// The part of an item's meaning that does not depend on its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeps {
    /// Everything.
    Always,
    /// Everything, as long as its index in the list, which is its id, stays the same.
    InPlace,
    /// It has warnings, which contain its line and index; it is read each time.
    Never,
}

/// Parses an item that begins in `line` as the only one of a list under `key`; returns it with its offset from that line. `None`:
/// it is not one item by itself, or has a mask.
pub(super) fn only_item(
    key: &str,
    text: &[u8],
    line: u32,
    cut: ItemText,
    environment: Lookup<'_>,
    sink: &mut Sink,
) -> Option<(Node, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    // `line` is not the first, since the line of the list's key precedes it.
    let tree = parse(line - 2, &format!("{key}:\n{text}"), Some(environment), sink)?;
    let Value::Map(entries) = &tree.root.value else { return None };
    let [entry] = &**entries else { return None };
    let Value::List(nodes) = &entry.value.value else { return None };
    let [node] = &**nodes else { return None };
    let at = node.at.line.checked_sub(line).filter(|at| *at < cut.lines)?;
    (tree.is_plain && &*entry.key == key && !has_mask(node)).then(|| (node.clone(), at))
}

/// For comparing ids: different hashes mean different ids.
pub(super) fn hash_of(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}
