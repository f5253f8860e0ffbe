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
mod lookup;
mod place;
mod probes;
mod program;
mod search;

pub(crate) use build::{condition_of, further_conditions};
pub(crate) use place::{PlaceId, order, places_of};
pub(crate) use program::ValueSource;
pub(crate) use search::{Context, LayerScratch, passes};

use crate::RouteSpec;
use crate::fields::{FieldSlots, SlotId};
use crate::table::Table;
use crate::tree::{Forest, Root};
use program::Program;
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
    places: Vec<Place>,
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
struct Place {
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
            + self.places.capacity() * size_of::<Place>()
            + self.table.memory_bytes()
            + self.forest.memory_bytes()
            + self.program.memory_bytes()
            + self.fields.memory_bytes()
            + size_of_val(&*self.reads)
            + size_of_val(&*self.routes)
    }
}
