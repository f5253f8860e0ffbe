//! Finds the best place of a layer whose condition holds.
//!
//! The walk goes through every dispatch of a node that may still lead to something better than the best so far, so only
//! places whose keys the request has are evaluated, each run best first and no further than its first that holds. At a
//! dispatch it looks up the values of the request that the dispatch reads, and goes on with the children they lead to.

use super::assemble::regex_key;
use super::filing::network_key;
use super::program::ValueSource;
use super::{Child, DispatchFields, Layer, NONE, PlaceId, RouteSlot, RunEntry, Space, TreeProbe};
use crate::chunked_list::ChunkedList;
use crate::condition::{ConditionValue, Field, Predicate, parse_address};
use crate::fields::{FieldSlots, SlotId};
use crate::layer::TextHash;
use crate::regex::RegexMemory;
use crate::tree::Root;
use crate::values::{self, MatchRequest, Values};
use crate::{Variable, path};
use std::net::IpAddr;
use std::ops::ControlFlow;

/// A request and the values that were looked up for it; for all layers of a matcher.
pub(crate) struct Context<'c, 'r> {
    pub(crate) request: &'c MatchRequest<'r>,
    pub(crate) client: IpAddr,
    pub(crate) values: &'c mut Values,
    /// The fields of the newest layer, which extend those of the others.
    pub(crate) fields: &'c FieldSlots,
}

/// Memory of one layer's searches, reused by each.
#[derive(Debug, Default)]
pub(crate) struct LayerScratch {
    serial: Option<u64>,
    generation: u32,
    /// Answers by memo: the generation, and in the lowest bit the answer.
    memos: Vec<u32>,
    /// By node, then by place: the search in which one of several values led there. Grows when first needed.
    followed: Vec<u32>,
    pub(super) groups: Vec<GroupMemory>,
    /// The last value of a parameter that had to be decoded.
    param: Vec<u8>,
}

#[derive(Debug, Default)]
pub(super) struct GroupMemory {
    /// The number of its last search.
    generation: u32,
    pub(super) regexes: RegexMemory,
}

/// One search.
pub(super) struct Search<'s, 'r> {
    pub(super) request: &'s MatchRequest<'r>,
    pub(super) client: IpAddr,
    pub(super) layer: &'s Layer,
    pub(super) fields: &'s FieldSlots,
    pub(super) values: &'s mut Values,
    pub(super) own: &'s mut LayerScratch,
    /// A route is dead if its position is [`NONE`].
    positions: Option<&'s ChunkedList<u32>>,
    /// Whether the request's host begins with a dot, so that the table of hosts treats it as a suffix.
    host_is_suffix: bool,
    pub(super) best: u32,
    found: Option<RunEntry>,
}

impl Layer {
    /// The best place that takes the request. Where there are `positions`, routes whose position is [`NONE`] are dead.
    pub(crate) fn search(
        &self,
        context: &mut Context<'_, '_>,
        own: &mut LayerScratch,
        positions: Option<&ChunkedList<u32>>,
    ) -> Option<(RouteSlot, PlaceId)> {
        own.begin(self);
        let Context { request, client, values, fields } = context;
        let mut search = Search {
            request,
            client: *client,
            layer: self,
            fields,
            values,
            own,
            positions,
            host_is_suffix: request.host.first() == Some(&b'.'),
            best: NONE,
            found: None,
        };
        search.child(self.root);
        search.found.map(|place| (place.route, PlaceId { host: place.host, path: place.path }))
    }
}

/// A memo has a bit for the answer besides the generation.
const GENERATION_MAX: u32 = u32::MAX >> 1;

#[cfg(test)]
impl LayerScratch {
    /// Sets the generation to its maximum, so that counting starts again with the next request.
    pub(crate) fn wear_out(&mut self) {
        self.generation = GENERATION_MAX;
    }
}

impl LayerScratch {
    fn begin(&mut self, layer: &Layer) {
        if self.serial != Some(layer.serial) || self.generation == GENERATION_MAX {
            *self = LayerScratch { serial: Some(layer.serial), ..LayerScratch::default() };
            self.memos.resize(layer.program.memos as usize, 0);
            self.groups.resize_with(layer.program.groups.len(), GroupMemory::default);
        }
        self.generation += 1;
    }
}

impl<'s> Search<'s, '_> {
    pub(super) fn child(&mut self, child: Child) {
        match child.target() {
            Ok(run) => self.run(run),
            Err(node) => self.node(node),
        }
    }

    /// Follows a child that another value may have led to already. The index is a tree, so a second visit finds nothing
    /// new; and a request of many values could make the visits multiply from node to node.
    fn child_once(&mut self, child: Child) {
        let nodes = self.layer.nodes.len();
        let index = child.target().map_or_else(|node| node as usize, |run| nodes + run as usize);
        let LayerScratch { generation, followed, .. } = &mut *self.own;
        if followed.len() <= index {
            followed.resize(nodes + self.layer.places.len(), 0);
        }
        if std::mem::replace(&mut followed[index], *generation) != *generation {
            self.child(child);
        }
    }

    fn node(&mut self, index: u32) {
        let layer = self.layer;
        let node = layer.nodes[index as usize];
        if node.rank_min >= self.best {
            return;
        }
        let mut run = node.run;
        for dispatch in &layer.dispatches[node.first as usize..][..node.count as usize] {
            // Dispatches are in the order of their best ranks; the run comes where its own rank puts it.
            if run != NONE && layer.places[run as usize].rank <= dispatch.rank_min {
                self.run(std::mem::replace(&mut run, NONE));
            }
            if dispatch.rank_min >= self.best {
                return;
            }
            self.probe(dispatch.probe);
        }
        if run != NONE {
            self.run(run);
        }
    }

    #[inline]
    fn run(&mut self, first: u32) {
        let layer = self.layer;
        for place in &layer.places[first as usize..] {
            if place.rank >= self.best {
                return;
            }
            let is_dead = self.positions.is_some_and(|positions| positions[place.route as usize] == NONE);
            let is_out = is_dead || (self.host_is_suffix && self.is_dot_suffix_only(place));
            let holds = !is_out && (place.check == NONE || layer.program.holds(place.check, self, place));
            if holds && (!layer.has_functions || self.is_admitted(place)) {
                self.best = place.rank;
                self.found = Some(*place);
                return;
            }
            if place.is_last {
                return;
            }
        }
    }

    /// Whether the route's function lets it take the request.
    #[cold]
    fn is_admitted(&mut self, place: &RunEntry) -> bool {
        let spec = &self.layer.routes[place.route as usize];
        self.values.decided.passes_filter(spec, self.request.vars)
    }

    /// Whether a place was met only because the request's host begins with a dot, as suffixes do: `*.a` requires a
    /// label there.
    fn is_dot_suffix_only(&self, place: &RunEntry) -> bool {
        let uri = self.layer.routes[place.route as usize].uri();
        let pattern = uri.and_then(|uri| uri.hosts.get(place.host as usize));
        pattern.is_some_and(|pattern| !pattern.matches(self.request.host))
    }

    #[inline]
    fn probe(&mut self, probe: TreeProbe) {
        match probe {
            TreeProbe::Path { space, tree, slot: None, is_ranked } => {
                self.path(space, tree, is_ranked, self.request.path.bytes());
            }
            TreeProbe::Path { space, tree, slot: Some(slot), is_ranked } => {
                self.slot_path(space, tree, is_ranked, slot)
            }
            TreeProbe::Host { space, suffix_bytes_max } => self.host(space, suffix_bytes_max as usize),
            TreeProbe::Equal { of, first, count } => {
                let layer = self.layer;
                self.equal(of, &layer.spaces[first as usize..][..count as usize]);
            }
            TreeProbe::Prefix { tree, slot, any } => self.prefix(tree, slot, any),
            TreeProbe::Network { slot, space, first, count } => {
                let layer = self.layer;
                self.network(slot, space, &layer.prefixes[first as usize..][..count as usize]);
            }
            TreeProbe::Regex { group, space } => self.regex(group, space),
        }
    }

    /// Searches the values of a group, unless that was done for this request.
    fn search_group(&mut self, group: u32) {
        let memory = &mut self.own.groups[group as usize];
        if memory.generation == self.own.generation {
            return;
        }
        memory.generation = self.own.generation;
        let group = &self.layer.program.groups[group as usize];
        let regexes = &group.regexes;
        match group.read {
            ValueSource::Path => {
                regexes.search(std::iter::once(self.request.path.bytes()), &mut memory.regexes, &self.values.work);
            }
            ValueSource::Host => {
                let host = Some(self.request.host).filter(|host| !host.is_empty());
                regexes.search(host.into_iter(), &mut memory.regexes, &self.values.work);
            }
            ValueSource::Method(slot) | ValueSource::Text(slot) => {
                let first = self.values.first(slot, self.fields, self.request);
                regexes.search(self.values.chain(first), &mut memory.regexes, &self.values.work);
            }
            // Regexes apply to text only.
            ValueSource::SourceIp
            | ValueSource::SegmentCount
            | ValueSource::Int(_)
            | ValueSource::Ip(_)
            | ValueSource::Param => {
                regexes.search(std::iter::empty(), &mut memory.regexes, &self.values.work);
            }
        }
    }

    pub(super) fn group_matches(&mut self, group: u32, pattern: u32, any: bool) -> bool {
        self.search_group(group);
        let memory = &self.own.groups[group as usize].regexes;
        if any { memory.any(pattern as usize) } else { memory.all(pattern as usize) }
    }

    /// Like [`Search::group_matches`], for a parameter, whose value depends on the place.
    pub(super) fn param_matches(&mut self, group: u32, pattern: u32, place: &RunEntry, predicate: &Predicate) -> bool {
        let mut buffer = std::mem::take(&mut self.own.param);
        let value = self.param(place, predicate).map(|value| path::decode_but_slashes(value, &mut buffer));
        let memory = &mut self.own.groups[group as usize].regexes;
        self.layer.program.groups[group as usize].regexes.search(value.into_iter(), memory, &self.values.work);
        let is_match = memory.any(pattern as usize);
        self.own.param = buffer;
        is_match
    }

    pub(super) fn recall(&self, memo: u32) -> Option<bool> {
        let kept = self.own.memos[memo as usize];
        (kept >> 1 == self.own.generation).then_some(kept & 1 == 1)
    }

    pub(super) fn remember(&mut self, memo: u32, answer: bool) {
        self.own.memos[memo as usize] = self.own.generation << 1 | u32::from(answer);
    }

    /// Whether the values of a text field pass a predicate's test.
    pub(super) fn texts_pass(&mut self, slot: SlotId, predicate: &Predicate) -> bool {
        let first = self.values.first(slot, self.fields, self.request);
        passes(self.values.chain(first).map(ConditionValue::Text), predicate)
    }

    /// Whether a field has a value and `test` accepts it; the field has at most one.
    pub(super) fn single(&mut self, slot: SlotId, test: impl FnOnce(&[u8]) -> bool) -> bool {
        let first = self.values.first(slot, self.fields, self.request);
        first != values::NONE && test(self.values.text(first))
    }

    /// Whether the value of a parameter of the place's path passes a test.
    pub(super) fn param_passes(&mut self, place: &RunEntry, predicate: &Predicate) -> bool {
        let mut buffer = std::mem::take(&mut self.own.param);
        let value = self.param(place, predicate).map(|value| path::decode_but_slashes(value, &mut buffer));
        let passes = value.is_some_and(|value| predicate.test.passes(ConditionValue::Text(value)));
        self.own.param = buffer;
        passes
    }

    /// The value of a parameter in normal form.
    fn param(&self, place: &RunEntry, predicate: &Predicate) -> Option<&'s [u8]> {
        let Field::Variable(Variable::PathParam(name)) = &predicate.field else { return None };
        let uri = self.layer.routes[place.route as usize].uri()?;
        uri.paths[place.path as usize].param(name, self.request.path.bytes())
    }
}

/// Whether values pass a predicate's test: all of them, or any. A field without values never passes.
pub(crate) fn passes<'v>(mut values: impl Iterator<Item = ConditionValue<'v>>, predicate: &Predicate) -> bool {
    if predicate.any {
        return values.any(|value| predicate.test.passes(value));
    }
    let Some(first) = values.next() else { return false };
    predicate.test.passes(first) && values.all(|value| predicate.test.passes(value))
}

impl Search<'_, '_> {
    #[inline]
    pub(super) fn path(&mut self, space: Option<u32>, tree: Option<Root>, is_ranked: bool, path: &[u8]) {
        let (layer, before) = (self.layer, self.best);
        if let Some(space) = space
            && let Some(child) = layer.table.get(space, path, TextHash::new(path))
        {
            self.child(Child(child));
            if is_ranked && self.best < before {
                return;
            }
        }
        if let Some(tree) = tree {
            layer.forest.search(tree, path, |child| {
                self.child(Child(child));
                if is_ranked && self.best < before { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        }
    }

    /// Like [`Search::path`], for a path in lower case. Rare, so its text is copied to release the
    /// values.
    fn slot_path(&mut self, space: Option<u32>, tree: Option<Root>, is_ranked: bool, slot: SlotId) {
        let first = self.values.first(slot, self.fields, self.request);
        if first == values::NONE {
            return;
        }
        let text = self.values.lend(first);
        self.path(space, tree, is_ranked, &text);
        self.values.return_lent(text);
    }

    pub(super) fn prefix(&mut self, tree: Root, slot: SlotId, any: bool) {
        let layer = self.layer;
        let mut entry = self.values.first(slot, self.fields, self.request);
        let is_single = entry == values::NONE || self.values.next(entry) == values::NONE;
        while entry != values::NONE {
            let text = self.values.lend(entry);
            layer.forest.search(tree, &text, |child| {
                match is_single {
                    true => self.child(Child(child)),
                    false => self.child_once(Child(child)),
                }
                ControlFlow::Continue(())
            });
            self.values.return_lent(text);
            // If all values must begin with the text, looking up the first one is enough.
            entry = if any { self.values.next(entry) } else { values::NONE };
        }
    }

    pub(super) fn network(&mut self, slot: Option<SlotId>, space: u32, prefixes: &[(u8, u8)]) {
        let layer = self.layer;
        let address = match slot {
            None => Some(self.client),
            Some(slot) => {
                let first = self.values.first(slot, self.fields, self.request);
                if first == values::NONE { None } else { parse_address(self.values.text(first)) }
            }
        };
        let Some(address) = address else { return };
        for &(_, bits) in prefixes.iter().filter(|(family, _)| *family == u8::from(address.is_ipv6())) {
            let key = network_key(address, bits);
            if let Some(child) = layer.table.get(space, &key, TextHash::new(&key)) {
                self.child(Child(child));
            }
        }
    }

    #[inline]
    pub(super) fn host(&mut self, space: u32, suffix_bytes_max: usize) {
        let (layer, host) = (self.layer, self.request.host);
        if host.is_empty() {
            return;
        }
        if let Some(child) = layer.table.get(space, host, TextHash::new(host)) {
            self.child(Child(child));
        }
        // From the left, so the longest suffix first; none is looked up that is longer than every key.
        let start = host.len().saturating_sub(suffix_bytes_max).max(1);
        for dot in memchr::memchr_iter(b'.', host.get(start..).unwrap_or_default()) {
            let suffix = &host[start + dot..];
            if let Some(child) = layer.table.get(space, suffix, TextHash::new(suffix)) {
                self.child(Child(child));
            }
        }
    }

    pub(super) fn equal(&mut self, of: DispatchFields, spaces: &[Space]) {
        /// Up to this many fields are looked up one by one; for more, the request's own fields are
        /// walked.
        const ONE_BY_ONE_MAX: usize = 4;
        let present = match of {
            _ if spaces.len() <= ONE_BY_ONE_MAX => None,
            DispatchFields::Header => Some(self.values.headers_present(self.fields, self.request)),
            DispatchFields::Argument => Some(self.values.arguments_present(self.fields, self.request)),
            DispatchFields::Other(_) => None,
        };
        let Some(present) = present else {
            spaces.iter().for_each(|space| self.equal_in(space));
            return;
        };
        for index in 0..present {
            let slot = match of {
                DispatchFields::Header => self.values.header_present(index),
                _ => self.values.argument_present(index),
            };
            let from = spaces.partition_point(|space| space.slot < slot);
            for space in spaces[from..].iter().take_while(|space| space.slot == slot) {
                self.equal_in(space);
            }
        }
        // Fields in lower case have slots of their own.
        for space in spaces.iter().filter(|space| self.fields.get(space.slot).lower_of.is_some()) {
            self.equal_in(space);
        }
    }

    fn equal_in(&mut self, &Space { slot, any, space }: &Space) {
        let layer = self.layer;
        let mut entry = self.values.first(slot, self.fields, self.request);
        if entry == values::NONE {
            return;
        }
        if !any {
            // All values must equal the one that is looked up.
            let text = self.values.text(entry);
            if self.values.chain(entry).all(|other| other == text)
                && let Some(child) = layer.table.get(space, text, TextHash::new(text))
            {
                self.child(Child(child));
            }
            return;
        }
        let is_single = self.values.next(entry) == values::NONE;
        while entry != values::NONE {
            let text = self.values.text(entry);
            match layer.table.get(space, text, TextHash::new(text)) {
                Some(child) if is_single => self.child(Child(child)),
                Some(child) => self.child_once(Child(child)),
                None => {}
            }
            entry = self.values.next(entry);
        }
    }

    pub(super) fn regex(&mut self, group: u32, space: u32) {
        let layer = self.layer;
        self.search_group(group);
        let mut index = 0;
        while let Some(&pattern) = self.own.groups[group as usize].regexes.hits_any().get(index) {
            index += 1;
            let all = self.own.groups[group as usize].regexes.all(pattern as usize);
            for any in [false, true] {
                let key = regex_key(pattern, any);
                if (any || all)
                    && let Some(child) = layer.table.get(space, &key, TextHash::new(&key))
                {
                    self.child(Child(child));
                }
            }
        }
    }
}
