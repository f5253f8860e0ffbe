//! One immutable piece of a matcher: an index over the places of some routes, and the checks that remain for each.
//!
//! ```text
//!  nodes ──dispatches──▶ table / tree ──▶ run of places ──check──▶ code ──▶ predicates
//!   (a decision tree over path, host, header, … ; a child is a node or a run)
//! ```
//!
//! A *place* is one condition with one rank: an expression route, or a URI route at one of its hosts and paths. A place
//! is *filed* under the values that its condition requires (`filing`), as often as the condition has alternatives.
//! `build` makes the decision tree of the filings, `program` the checks that remain for a place once the way through
//! the tree has proved the rest, and `search` walks it all.

mod assemble;
mod build;
mod filing;
mod program;
mod search;

use crate::fields::{FieldSlots, SlotId};
use crate::tree::{Forest, Root};
use crate::{HostPattern, RouteMatch, RouteSpec, UriRoute};
pub(crate) use build::{condition_of, further_conditions};
use foldhash::fast::FixedState;
use hashbrown::HashTable;
use program::Program;
pub(crate) use program::ValueSource;
pub(crate) use search::{Context, LayerScratch, passes};
use std::cmp::{Ordering, Reverse};
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

/// Position of a route in the list a layer was compiled from.
pub(crate) type RouteSlot = u32;

/// An index over routes.
#[derive(Debug)]
pub(crate) struct Layer {
    /// Identifies the layer that a scratch's memory belongs to.
    serial: u64,
    pub(crate) fields: Arc<FieldSlots>,
    root: Child,
    nodes: Vec<DecisionNode>,
    dispatches: Vec<Dispatch>,
    /// For [`TreeProbe::Equal`], sorted within each dispatch.
    spaces: Vec<Space>,
    /// For [`TreeProbe::Network`]: families (0 or 1) and lengths.
    prefixes: Vec<(u8, u8)>,
    table: Table,
    forest: Forest,
    /// In runs, each in the order of ranks.
    places: Vec<RunEntry>,
    program: Program,
    /// The values that its routes read, each once.
    pub(crate) reads: Arc<[ValueSource]>,
    /// The routes that it was compiled from.
    routes: Box<[Arc<RouteSpec>]>,
    /// Whether one of them has a function.
    pub(crate) has_functions: bool,
}

/// A node of the decision tree: a run of places that could not be separated further, and dispatches that lead to
/// others.
#[derive(Debug, Clone, Copy)]
struct DecisionNode {
    /// The best of all places below.
    rank_min: u32,
    /// First of a run in [`Layer::places`], or [`NONE`].
    run: u32,
    /// Range of [`Layer::dispatches`], by their best ranks.
    first: u32,
    count: u32,
}

/// One lookup of a value of the request, whose results lead to children.
#[derive(Debug, Clone, Copy)]
struct Dispatch {
    rank_min: u32,
    probe: TreeProbe,
}

#[derive(Debug, Clone, Copy)]
enum TreeProbe {
    /// The path: exact ones in the table, patterns in a tree. Where there is a slot, its value is used as the path. If
    /// they are ranked, keys that are tried later lead to worse places only, so that the first hit is the best.
    Path { space: Option<u32>, tree: Option<Root>, slot: Option<SlotId>, is_ranked: bool },
    /// The host: whole, and every suffix from a dot on that is at most that long.
    Host { space: u32, suffix_bytes_max: u32 },
    /// Equality of fields, each in a space of its own; a range of [`Layer::spaces`].
    Equal { of: DispatchFields, first: u32, count: u32 },
    /// The beginning of a text.
    Prefix { tree: Root, slot: SlotId, any: bool },
    /// The networks of an address, the client's if there is no slot; a range of [`Layer::prefixes`].
    Network { slot: Option<SlotId>, space: u32, first: u32, count: u32 },
    /// The regexes of a group that match; children by the pattern's number, from that entry of [`Layer::spaces`] on.
    Regex { group: u32, space: u32 },
}

/// The kind of fields that an equality dispatch reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum DispatchFields {
    /// All header fields together, so that a request's own fields can be walked instead of all those that routes name.
    Header,
    /// All arguments of the query together.
    Argument,
    /// A field of its own.
    Other(SlotId),
}

/// The key space in which the values of one field are looked up.
#[derive(Debug, Clone, Copy)]
struct Space {
    slot: SlotId,
    /// Whether one equal value is enough; else all must be.
    any: bool,
    space: u32,
}

/// The result of a lookup: a run of places, or a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Child(u32);

/// No run, or no check.
const NONE: u32 = u32::MAX;

/// A place in a run.
#[derive(Debug, Clone, Copy)]
struct RunEntry {
    /// Lower is better; unique in the layer, except that all filings of one place share it.
    rank: u32,
    route: RouteSlot,
    /// Index of the path among a URI route's paths.
    path: u32,
    /// Index of the host among a URI route's hosts.
    host: u32,
    /// The check that remains, for [`Program`]; or [`NONE`].
    check: u32,
    is_last: bool,
}

impl Child {
    const RUN: u32 = 1 << 31;

    fn run(first: u32) -> Child {
        Child(first | Child::RUN)
    }

    fn node(index: u32) -> Child {
        Child(index)
    }

    /// The first place of a run, or the index of a node.
    fn target(self) -> Result<u32, u32> {
        if self.0 & Child::RUN != 0 { Ok(self.0 & !Child::RUN) } else { Err(self.0) }
    }
}

impl Layer {
    /// Bytes of memory that it takes, without the routes themselves.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<DecisionNode>()
            + self.dispatches.capacity() * size_of::<Dispatch>()
            + self.spaces.capacity() * size_of::<Space>()
            + self.places.capacity() * size_of::<RunEntry>()
            + self.table.memory_bytes()
            + self.forest.memory_bytes()
            + self.program.memory_bytes()
            + self.fields.memory_bytes()
            + size_of_val(&*self.reads)
            + size_of_val(&*self.routes)
    }
}

// The places of a route, and their order.

/// A place of a route: the indices of its host and path. An expression route has one, 0 and 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlaceId {
    pub(crate) host: u32,
    pub(crate) path: u32,
}

/// All places of a route.
pub(crate) fn places_of(spec: &RouteSpec) -> impl Iterator<Item = PlaceId> {
    let (hosts, paths) = match &spec.takes {
        RouteMatch::Uri(uri) => (uri.hosts.len().max(1), uri.paths.len()),
        RouteMatch::Expression(_) => (1, 1),
    };
    (0..hosts as u32).flat_map(move |host| (0..paths as u32).map(move |path| PlaceId { host, path }))
}

/// The order in which places are tried: expressions by priority and position; then hosts from the most specific, paths from
/// the most specific, and on the same host and path priority and position again. A host or path that could not be read comes before
/// all others.
pub(crate) fn order(a: (&RouteSpec, usize, PlaceId), b: (&RouteSpec, usize, PlaceId)) -> Ordering {
    let by_priority = || (Reverse(a.0.priority), a.1).cmp(&(Reverse(b.0.priority), b.1));
    match (&a.0.takes, &b.0.takes) {
        (RouteMatch::Expression(_), RouteMatch::Expression(_)) => by_priority(),
        (RouteMatch::Expression(_), RouteMatch::Uri(_)) => Ordering::Less,
        (RouteMatch::Uri(_), RouteMatch::Expression(_)) => Ordering::Greater,
        (RouteMatch::Uri(uri_a), RouteMatch::Uri(uri_b)) => host_precedence(uri_b, b.2)
            .cmp(&host_precedence(uri_a, a.2))
            .then_with(|| path_precedence(uri_a, a.2).cmp(&path_precedence(uri_b, b.2)))
            .then_with(|| b.0.priority.cmp(&a.0.priority))
            .then_with(|| tail_bytes(uri_b, b.2).cmp(&tail_bytes(uri_a, a.2)))
            .then_with(by_priority)
            .then_with(|| (a.2.path, a.2.host).cmp(&(b.2.path, b.2.host))),
    }
}

/// Greater is tried first; any host is least.
fn host_precedence(uri: &UriRoute, place: PlaceId) -> (bool, Option<(bool, usize)>) {
    (uri.invalid.host, uri.hosts.get(place.host as usize).map(HostPattern::precedence))
}

/// Length of the tail: among patterns that are equal up to a star, the longer is tried first, as in APISIX.
fn tail_bytes(uri: &UriRoute, place: PlaceId) -> usize {
    uri.paths[place.path as usize].tail().len()
}

/// Less is tried first.
fn path_precedence(uri: &UriRoute, place: PlaceId) -> (bool, &[u8]) {
    (!uri.invalid.path, uri.paths[place.path as usize].key())
}

// A read-only map from byte strings to numbers: exact hosts, host suffixes and exact paths.
//
// All keys share one piece of memory, so that an entry costs 16 bytes and its text. The hash is foldhash with a fixed
// seed. That is safe although clients choose the lookups: only the configuration's keys are ever *in* the table, so
// no client can make a bucket long; and it keeps the matcher free of randomness.

/// Keys are pairs of a number and a text, so that one table serves the paths of all hosts.
#[derive(Debug, Default)]
pub(crate) struct Table {
    slots: HashTable<TextSlot>,
    text: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct TextSlot {
    /// Range of the key's text in [`Table::text`].
    start: u32,
    len: u32,
    space: u32,
    value: u32,
}

/// The hash of a key's text, kept for lookups in several spaces.
#[derive(Clone, Copy)]
pub(crate) struct TextHash(u64);

const SEED: u64 = 0x5111_1647;

impl TextHash {
    pub(crate) fn new(text: &[u8]) -> TextHash {
        let mut hasher = FixedState::with_seed(SEED).build_hasher();
        hasher.write(text);
        TextHash(hasher.finish())
    }

    fn in_space(self, space: u32) -> u64 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        self.0 ^ u64::from(space).wrapping_mul(ODD)
    }
}

impl Table {
    /// Adds a key that is not in the table; the texts of all keys together must stay below 4 GiB.
    pub(crate) fn insert(&mut self, space: u32, text: &[u8], value: u32) {
        let Table { slots, text: pool } = self;
        let slot = TextSlot { start: pool.len() as u32, len: text.len() as u32, space, value };
        pool.extend_from_slice(text);
        slots.insert_unique(TextHash::new(text).in_space(space), slot, |slot| {
            TextHash::new(slot.text(pool)).in_space(slot.space)
        });
    }

    /// The value of a key. `hash` is the hash of `text`.
    pub(crate) fn get(&self, space: u32, text: &[u8], hash: TextHash) -> Option<u32> {
        let found = self.slots.find(hash.in_space(space), |slot| slot.space == space && slot.text(&self.text) == text);
        found.map(|slot| slot.value)
    }

    pub(crate) fn shrink_to_fit(&mut self) {
        let Table { slots, text } = self;
        text.shrink_to_fit();
        slots.shrink_to_fit(|slot| TextHash::new(slot.text(text)).in_space(slot.space));
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.slots.allocation_size() + self.text.capacity()
    }
}

impl TextSlot {
    fn text(self, pool: &[u8]) -> &[u8] {
        &pool[self.start as usize..][..self.len as usize]
    }
}
