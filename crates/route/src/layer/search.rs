//! Finds the best place of a layer whose condition holds.
//!
//! The walk goes through every dispatch of a node that may still lead to something better than what was found, so what is
//! evaluated are only places whose keys the request has, each run best first and no further than its first that holds.

use super::assemble::regex_key;
use super::filing::network_key;
use super::program::Read;
use super::{Child, Family, Layer, NONE, Place, PlaceId, Probe, RouteSlot, Space};
use crate::Variable;
use crate::condition::{Field, Predicate, Value};
use crate::fields::{Fields, SlotId};
use crate::matcher::Request;
use crate::regex::RegexMemory;
use crate::table::TextHash;
use crate::values::{self, Values, parse_address};
use std::net::IpAddr;

/// A request with what has been looked up of it; for all layers of a matcher.
pub(crate) struct Context<'c, 'r> {
    pub(crate) request: &'c Request<'r>,
    pub(crate) client: IpAddr,
    pub(crate) values: &'c mut Values,
    /// Those of the newest layer, which go on from those of the others.
    pub(crate) fields: &'c Fields,
}

/// Memory of one layer's searches, reused by each.
#[derive(Debug, Default)]
pub(crate) struct LayerScratch {
    serial: Option<u64>,
    generation: u32,
    /// By memo: the generation of its answer, and in the lowest bit the answer.
    memos: Vec<u32>,
    /// By node, then by place: in which search one of several values led there. Grows when first needed.
    followed: Vec<u32>,
    groups: Vec<GroupMemory>,
}

#[derive(Debug, Default)]
struct GroupMemory {
    /// When it was last searched.
    generation: u32,
    regexes: RegexMemory,
}

/// One search.
pub(super) struct Search<'s, 'r> {
    pub(super) request: &'s Request<'r>,
    pub(super) client: IpAddr,
    layer: &'s Layer,
    fields: &'s Fields,
    values: &'s mut Values,
    own: &'s mut LayerScratch,
    /// Where it has [`NONE`] for a route, that route is dead.
    positions: Option<&'s [u32]>,
    /// Whether the request's host begins with a dot, so that the table of hosts takes it for a suffix.
    host_is_suffix: bool,
    best: u32,
    found: Option<Place>,
}

impl Layer {
    /// The best place that takes the request. Where there are `positions`, a route for which they have [`NONE`] is dead.
    pub(crate) fn search(
        &self,
        context: &mut Context<'_, '_>,
        own: &mut LayerScratch,
        positions: Option<&[u32]>,
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

impl LayerScratch {
    fn begin(&mut self, layer: &Layer) {
        const GENERATION_MAX: u32 = u32::MAX >> 1;
        if self.serial != Some(layer.serial) || self.generation == GENERATION_MAX {
            *self = LayerScratch { serial: Some(layer.serial), ..LayerScratch::default() };
            self.memos.resize(layer.program.memos as usize, 0);
            self.groups.resize_with(layer.program.groups.len(), GroupMemory::default);
        }
        self.generation += 1;
    }
}

impl<'s> Search<'s, '_> {
    fn child(&mut self, child: Child) {
        match child.target() {
            Ok(run) => self.run(run),
            Err(node) => self.node(node),
        }
    }

    /// Goes on with what another value may have led to already. The index is a tree, so a second time finds nothing new; and
    /// a request of many values could make the times multiply from node to node.
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
            // They stand in the order of their best ranks; the run comes where its own puts it.
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
            if !is_dead
                && !(self.host_is_suffix && self.is_beside(place))
                && (place.check == NONE || layer.program.holds(place.check, self, place))
            {
                self.best = place.rank;
                self.found = Some(*place);
                return;
            }
            if place.is_last {
                return;
            }
        }
    }

    /// Whether a place was met only because the request's host begins with a dot, as suffixes do: `*.a` wants a label there.
    fn is_beside(&self, place: &Place) -> bool {
        let uri = self.layer.routes[place.route as usize].uri();
        let pattern = uri.and_then(|uri| uri.hosts.get(place.host as usize));
        pattern.is_some_and(|pattern| !pattern.matches(self.request.host))
    }

    #[inline]
    fn probe(&mut self, probe: Probe) {
        match probe {
            Probe::Path { space, tree, slot: None } => self.path(space, tree, self.request.path.bytes()),
            Probe::Path { space, tree, slot: Some(slot) } => self.slot_path(space, tree, slot),
            Probe::Host { space, suffix_bytes_max } => self.host(space, suffix_bytes_max as usize),
            Probe::Equal { of, first, count } => {
                let layer = self.layer;
                self.equal(of, &layer.spaces[first as usize..][..count as usize]);
            }
            Probe::Prefix { tree, slot, any } => self.prefix(tree, slot, any),
            Probe::Network { slot, space, first, count } => {
                let layer = self.layer;
                self.network(slot, space, &layer.prefixes[first as usize..][..count as usize]);
            }
            Probe::Regex { group, space } => self.regex(group, space),
        }
    }

    #[inline]
    fn path(&mut self, space: Option<u32>, tree: Option<crate::tree::Root>, path: &[u8]) {
        let layer = self.layer;
        if let Some(space) = space
            && let Some(child) = layer.table.get(space, path, TextHash::new(path))
        {
            self.child(Child(child));
        }
        if let Some(tree) = tree {
            layer.forest.search(tree, path, |child| self.child(Child(child)));
        }
    }

    /// As [`Search::path`], for a path in lower case. Rare, so its text is copied to let the values go.
    fn slot_path(&mut self, space: Option<u32>, tree: Option<crate::tree::Root>, slot: SlotId) {
        let first = self.values.first(slot, self.fields, self.request);
        if first == values::NONE {
            return;
        }
        let text = self.values.lend(first);
        self.path(space, tree, &text);
        self.values.take_back(text);
    }

    fn prefix(&mut self, tree: crate::tree::Root, slot: SlotId, any: bool) {
        let layer = self.layer;
        let mut entry = self.values.first(slot, self.fields, self.request);
        let is_single = entry == values::NONE || self.values.next(entry) == values::NONE;
        while entry != values::NONE {
            let text = self.values.lend(entry);
            layer.forest.search(tree, &text, |child| match is_single {
                true => self.child(Child(child)),
                false => self.child_once(Child(child)),
            });
            self.values.take_back(text);
            // What all must begin with the first does.
            entry = if any { self.values.next(entry) } else { values::NONE };
        }
    }

    fn network(&mut self, slot: Option<SlotId>, space: u32, prefixes: &[(u8, u8)]) {
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
    fn host(&mut self, space: u32, suffix_bytes_max: usize) {
        let (layer, host) = (self.layer, self.request.host);
        if host.is_empty() {
            return;
        }
        if let Some(child) = layer.table.get(space, host, TextHash::new(host)) {
            self.child(Child(child));
        }
        // From the left; where none can be long enough nothing is looked up.
        let start = host.len().saturating_sub(suffix_bytes_max).max(1);
        for dot in memchr::memchr_iter(b'.', host.get(start..).unwrap_or_default()) {
            let suffix = &host[start + dot..];
            if let Some(child) = layer.table.get(space, suffix, TextHash::new(suffix)) {
                self.child(Child(child));
            }
        }
    }

    fn equal(&mut self, of: Family, spaces: &[Space]) {
        /// Up to so many fields are asked for one by one; for more, what the request has is walked.
        const ONE_BY_ONE_MAX: usize = 4;
        let present = match of {
            _ if spaces.len() <= ONE_BY_ONE_MAX => None,
            Family::Header => Some(self.values.headers_present(self.fields, self.request)),
            Family::Argument => Some(self.values.arguments_present(self.fields, self.request)),
            Family::Other(_) => None,
        };
        let Some(present) = present else {
            spaces.iter().for_each(|space| self.equal_in(space));
            return;
        };
        for index in 0..present {
            let slot = match of {
                Family::Header => self.values.header_present(index),
                _ => self.values.argument_present(index),
            };
            let from = spaces.partition_point(|space| space.slot < slot);
            for space in spaces[from..].iter().take_while(|space| space.slot == slot) {
                self.equal_in(space);
            }
        }
        // In lower case they are fields of their own.
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
            // All must be equal to the one that is looked up.
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

    fn regex(&mut self, group: u32, space: u32) {
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

    /// Makes sure that the answers of a group are those of this request.
    fn search_group(&mut self, group: u32) {
        let memory = &mut self.own.groups[group as usize];
        if memory.generation == self.own.generation {
            return;
        }
        memory.generation = self.own.generation;
        let group = &self.layer.program.groups[group as usize];
        let regexes = &group.regexes;
        match group.read {
            Read::Path => regexes.search(std::iter::once(self.request.path.bytes()), &mut memory.regexes),
            Read::Host => {
                let host = Some(self.request.host).filter(|host| !host.is_empty());
                regexes.search(host.into_iter(), &mut memory.regexes);
            }
            Read::Method(slot) | Read::Text(slot) => {
                let first = self.values.first(slot, self.fields, self.request);
                regexes.search(self.values.chain(first), &mut memory.regexes);
            }
            // Regexes are for text.
            Read::SourceIp | Read::SegmentCount | Read::Int(_) | Read::Ip(_) | Read::Param => {
                regexes.search(std::iter::empty(), &mut memory.regexes);
            }
        }
    }

    pub(super) fn group_matches(&mut self, group: u32, pattern: u32, any: bool) -> bool {
        self.search_group(group);
        let memory = &self.own.groups[group as usize].regexes;
        if any { memory.any(pattern as usize) } else { memory.all(pattern as usize) }
    }

    /// As [`Search::group_matches`], for a parameter, whose value depends on the place.
    pub(super) fn param_matches(&mut self, group: u32, pattern: u32, place: &Place, predicate: &Predicate) -> bool {
        let value = self.param(place, predicate);
        let memory = &mut self.own.groups[group as usize].regexes;
        self.layer.program.groups[group as usize].regexes.search(value.into_iter(), memory);
        memory.any(pattern as usize)
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
        passes(self.values.chain(first).map(Value::Text), predicate)
    }

    /// Whether the one value of a field, where there is one, is what `test` asks for.
    pub(super) fn single(&mut self, slot: SlotId, test: impl FnOnce(&[u8]) -> bool) -> bool {
        let first = self.values.first(slot, self.fields, self.request);
        first != values::NONE && test(self.values.text(first))
    }

    /// Whether what a parameter of the place's path stands for passes a test.
    pub(super) fn param_passes(&self, place: &Place, predicate: &Predicate) -> bool {
        self.param(place, predicate).is_some_and(|value| predicate.test.passes(Value::Text(value)))
    }

    fn param(&self, place: &Place, predicate: &Predicate) -> Option<&'s [u8]> {
        let Field::Variable(Variable::PathParam(name)) = &predicate.field else { return None };
        let uri = self.layer.routes[place.route as usize].uri()?;
        uri.paths[place.path as usize].param(name, self.request.path.bytes())
    }
}

/// Whether values pass a predicate's test: all of them, or any; and no value passes none.
pub(crate) fn passes<'v>(mut values: impl Iterator<Item = Value<'v>>, predicate: &Predicate) -> bool {
    if predicate.any {
        return values.any(|value| predicate.test.passes(value));
    }
    let Some(first) = values.next() else { return false };
    predicate.test.passes(first) && values.all(|value| predicate.test.passes(value))
}
