//! Builds a layer from routes: conditions, places in their order, filings, the decision tree.
//!
//! The tree is made from the top. Each filing goes to the dimension in which it has an atom and which leaves the fewest
//! candidates to a request, and there to a child by its key. Filings that cannot be separated any more, or are not
//! worth it, form a run.

use super::assemble::Assembler;
use super::filing::{Atom, AtomSource, Dimension, atom_of, parts};
use super::program::ValueSource;
use super::{
    Child, DecisionNode, Dispatch, DispatchFields, Layer, NONE, PlaceId, RunEntry, Space, TreeProbe, order, places_of,
};
use crate::condition::{Condition, Field, Predicate, PredicateOrigin, Test};
use crate::fields::{FieldSlots, SlotId};
use crate::layer::Table;
use crate::pattern::PARAM;
use crate::tree::{Forest, Root};
use crate::{AddressSet, RouteMatch, RouteSpec, UriRoute};
use foldhash::fast::FixedState;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Up to this many filings are checked one after the other.
const RUN_MAX: usize = 4;
/// Fewer filings do not deserve a dispatch.
const KEYED_MIN: usize = 2;

/// From this many filings on, a place gets one for its host and path, and none for alternatives of its condition.
const FILINGS_MAX: usize = 1 << 22;

/// A place under one alternative of its condition.
struct Filing<'a> {
    /// Index of the place, which is its rank.
    place: u32,
    /// The part of its condition that has to hold here.
    condition: &'a Condition,
    atoms: Range<u32>,
    /// Bits of the atoms that the way through the tree has answered.
    used: u32,
}

/// A key in a dimension, by which filings are separated.
pub(super) type Key<'b> = (Dimension, SlotId, bool, &'b [u8]);

/// Filings with a key in a dimension, each with its atom there.
type KeyedFilings = (Dimension, Vec<(u32, u32)>);
/// The number of filings of each key.
type Counts<'b> = HashMap<Key<'b>, u32, FixedState>;

pub(super) struct Builder<'a> {
    routes: &'a [Arc<RouteSpec>],
    conditions: &'a [Condition],
    places: &'a [(u32, PlaceId)],
    pub(super) atoms: Vec<Atom<'a>>,
    filings: Vec<Filing<'a>>,
    assembler: Assembler<'a>,
    pub(super) out: Parts,
}

#[derive(Default)]
pub(super) struct Parts {
    pub(super) nodes: Vec<DecisionNode>,
    pub(super) dispatches: Vec<Dispatch>,
    pub(super) spaces: Vec<Space>,
    pub(super) prefixes: Vec<(u8, u8)>,
    pub(super) space_count: u32,
    pub(super) table: Table,
    pub(super) forest: Forest,
    pub(super) places: Vec<RunEntry>,
}

impl Layer {
    /// Compiles routes. Fields that have a number in `fields` keep it, and equal parts of `known` layers are taken
    /// over.
    pub(crate) fn compile(routes: &[Arc<RouteSpec>], fields: &Arc<FieldSlots>, known: &[&Layer]) -> Layer {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let conditions: Vec<Condition> = routes.iter().map(|route| condition_of(route)).collect();
        let places = sorted_places(routes);
        let mut builder = Builder {
            routes,
            conditions: &conditions,
            places: &places,
            atoms: Vec::new(),
            filings: Vec::with_capacity(places.len()),
            assembler: Assembler::new(
                (**fields).clone(),
                &conditions,
                known.iter().map(|layer| &layer.program).collect(),
            ),
            out: Parts::default(),
        };
        builder.file();
        let all: Vec<u32> = (0..builder.filings.len() as u32).collect();
        let root = builder.child(all);
        let reads = builder.reads();
        let Builder { assembler, mut out, .. } = builder;
        let (program, grown) = assembler.finish();
        out.nodes.shrink_to_fit();
        out.dispatches.shrink_to_fit();
        out.spaces.shrink_to_fit();
        out.prefixes.shrink_to_fit();
        out.places.shrink_to_fit();
        out.table.shrink_to_fit();
        out.forest.shrink_to_fit();
        Layer {
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            fields: if grown.len() == fields.len() { fields.clone() } else { Arc::new(grown) },
            root,
            nodes: out.nodes,
            dispatches: out.dispatches,
            spaces: out.spaces,
            prefixes: out.prefixes,
            table: out.table,
            forest: out.forest,
            places: out.places,
            program,
            reads,
            routes: routes.into(),
            has_functions: routes.iter().filter_map(|route| route.uri()).any(|uri| uri.function.is_some()),
        }
    }
}

/// The condition of a route besides the host and path of its places; simplified.
pub(crate) fn condition_of(route: &RouteSpec) -> Condition {
    match &route.takes {
        RouteMatch::Expression(expression) => expression.condition().simplified(),
        RouteMatch::Uri(uri) => further_conditions(uri).simplified(),
    }
}

/// `methods`, `remote_addrs` and `vars`.
pub(crate) fn further_conditions(uri: &UriRoute) -> Condition {
    let is = |field, test, text: String| {
        let source = PredicateOrigin { text: text.into(), at: None };
        Condition::Is(Arc::new(Predicate { field, lower: false, any: false, test, source }))
    };
    let mut all = Vec::new();
    if !uri.methods.is_empty() {
        all.push(is(Field::Method, Test::Methods(uri.methods), format!("methods are {}", uri.methods)));
    }
    if !uri.remote_addrs.is_empty() {
        let set = AddressSet::new(&uri.remote_addrs);
        let networks: Vec<String> = uri.remote_addrs.iter().map(ToString::to_string).collect();
        all.push(is(Field::SourceIp, Test::Addresses(set), format!("remote_addrs are {}", networks.join(", "))));
    }
    all.extend(uri.vars.iter().map(|vars| vars.condition().clone()));
    Condition::All(all)
}

/// All places, best first.
fn sorted_places(routes: &[Arc<RouteSpec>]) -> Vec<(u32, PlaceId)> {
    let mut places: Vec<(u32, PlaceId)> =
        (0u32..).zip(routes).flat_map(|(slot, route)| places_of(route).map(move |place| (slot, place))).collect();
    let with_spec = |(slot, place): &(u32, PlaceId)| (&*routes[*slot as usize], *slot as usize, *place);
    places.sort_by(|a, b| order(with_spec(a), with_spec(b)));
    places
}

impl<'a> Builder<'a> {
    /// Finds the filings of all places, in the order of ranks.
    fn file(&mut self) {
        let Builder { routes, conditions, places, atoms, filings, assembler, .. } = self;
        for (rank, &(slot, place)) in (0u32..).zip(*places) {
            let uri = routes[slot as usize].uri().map(|uri| (uri, place));
            let first = filings.len();
            parts(
                uri,
                &conditions[slot as usize],
                first < FILINGS_MAX,
                |predicate| assembler.regex_atom(predicate).or_else(|| atom_of(predicate, assembler.fields())),
                |part| {
                    let start = atoms.len() as u32;
                    atoms.extend(part.atoms);
                    let atoms = start..atoms.len() as u32;
                    filings.push(Filing { place: rank, condition: part.condition, atoms, used: 0 });
                },
            );
        }
    }

    /// The values of a request that routes read.
    fn reads(&mut self) -> Arc<[ValueSource]> {
        let mut reads = BTreeSet::new();
        for (route, condition) in self.routes.iter().zip(self.conditions) {
            if let Some(uri) = route.uri() {
                reads.insert(ValueSource::Path);
                reads.extend((!uri.hosts.is_empty()).then_some(ValueSource::Host));
            }
            condition.each_predicate(&mut |predicate| {
                reads.insert(match ValueSource::of(predicate, self.assembler.fields()) {
                    ValueSource::SegmentCount | ValueSource::Param => ValueSource::Path,
                    read => read,
                });
            });
        }
        reads.into_iter().collect()
    }

    /// A child for filings, which are in the order of ranks.
    fn child(&mut self, filings: Vec<u32>) -> Child {
        let rank_min = filings.first().map_or(NONE, |filing| self.filings[*filing as usize].place);
        let mut rest = filings;
        let mut dispatches = Vec::new();
        while rest.len() > RUN_MAX {
            let (keyed, others) = self.split(rest);
            rest = others;
            if keyed.is_empty() {
                break;
            }
            dispatches.extend(keyed.into_iter().map(|(dimension, keyed)| self.dispatch(dimension, keyed)));
        }
        if dispatches.is_empty() && !rest.is_empty() {
            return Child::run(self.run(&rest));
        }
        let run = if rest.is_empty() { NONE } else { self.run(&rest) };
        dispatches.sort_by_key(|dispatch| dispatch.rank_min);
        let (first, count) = (self.out.dispatches.len() as u32, dispatches.len() as u32);
        self.out.dispatches.append(&mut dispatches);
        self.out.nodes.push(DecisionNode { rank_min, run, first, count });
        Child::node(self.out.nodes.len() as u32 - 1)
    }

    /// The unanswered atoms of a filing, each with its number among all.
    fn open_atoms(&self, filing: u32) -> impl Iterator<Item = (u32, &Atom<'a>)> {
        let filing = &self.filings[filing as usize];
        let atoms = filing.atoms.clone();
        let open = move |index: &u32| filing.used >> (index - filing.atoms.start) & 1 == 0;
        atoms.filter(open).map(|index| (index, &self.atoms[index as usize]))
    }

    /// Counts the filings of each key.
    fn counts(&self, filings: &[u32]) -> Counts<'_> {
        let mut counts = HashMap::with_capacity_and_hasher(filings.len(), FixedState::default());
        for &filing in filings {
            for (_, atom) in self.open_atoms(filing) {
                *counts.entry(atom.key()).or_insert(0) += 1;
            }
        }
        counts
    }

    /// The dimensions that are worth a dispatch, the one that leaves the fewest candidates first.
    ///
    /// The estimate for each is the number of filings that a request meets which was made for one of them: those
    /// without a key, and those that share its key.
    fn selective_dimensions(&self, filings: &[u32], counts: &Counts<'_>) -> Vec<Dimension> {
        // For every dimension: the number of filings with a key, and the sum over them of how many share it.
        let mut sums: HashMap<Dimension, (u64, u64), FixedState> = HashMap::default();
        let mut least: Vec<(Dimension, u32)> = Vec::new();
        for &filing in filings {
            least.clear();
            for (_, atom) in self.open_atoms(filing) {
                let count = counts[&atom.key()];
                match least.iter_mut().find(|(dimension, _)| *dimension == atom.dimension) {
                    Some((_, least)) => *least = count.min(*least),
                    None => least.push((atom.dimension, count)),
                }
            }
            for &(dimension, count) in &least {
                let sum = sums.entry(dimension).or_default();
                *sum = (sum.0 + 1, sum.1 + u64::from(count));
            }
        }
        let all = filings.len() as u64;
        let left = |(keyed, shared): (u64, u64)| all - keyed + shared.div_ceil(keyed);
        // A dispatch costs about as much as one or two candidates.
        let mut telling: Vec<(u64, Dimension)> = sums
            .into_iter()
            .map(|(dimension, sum)| (left(sum), dimension))
            .filter(|(left, _)| left + 2 <= all || *left < all / 2)
            .collect();
        telling.sort_unstable();
        telling.into_iter().map(|(_, dimension)| dimension).collect()
    }

    /// Separates filings by the best dimension in which they have a key, each with its atom there; and the others.
    ///
    /// All dimensions are served at once, so that many small ones do not cost a pass each.
    fn split(&self, filings: Vec<u32>) -> (Vec<KeyedFilings>, Vec<u32>) {
        let counts = self.counts(&filings);
        let telling = self.selective_dimensions(&filings, &counts);
        let place: HashMap<Dimension, usize, FixedState> =
            telling.iter().enumerate().map(|(place, dimension)| (*dimension, place)).collect();
        let mut keyed: Vec<KeyedFilings> = telling.into_iter().map(|dimension| (dimension, Vec::new())).collect();
        let mut others = Vec::new();
        for filing in filings {
            let known =
                self.open_atoms(filing).filter_map(|(index, atom)| Some((*place.get(&atom.dimension)?, index, atom)));
            // Among several atoms in the best dimension, the rarest is chosen, and among those the longest.
            let best = known.min_by_key(|(place, _, atom)| (*place, counts[&atom.key()], Reverse(atom.key.len())));
            match best {
                Some((place, index, _)) => keyed[place].1.push((filing, index)),
                None => others.push(filing),
            }
        }
        let is_worth_it = |filings: &[(u32, u32)]| filings.len() >= KEYED_MIN;
        for (_, filings) in keyed.iter().filter(|(_, filings)| !is_worth_it(filings)) {
            others.extend(filings.iter().map(|(filing, _)| *filing));
        }
        // Numbers of filings are in the order of ranks.
        others.sort_unstable();
        keyed.retain(|(_, filings)| is_worth_it(filings));
        (keyed, others)
    }

    /// A dispatch for filings with an atom each in its dimension.
    fn dispatch(&mut self, dimension: Dimension, mut keyed: Vec<(u32, u32)>) -> Dispatch {
        let rank_min = self.filings[keyed[0].0 as usize].place;
        for &(filing, atom) in &keyed {
            let filing = &mut self.filings[filing as usize];
            filing.used |= 1 << (atom - filing.atoms.start);
        }
        // Stable, so that each group stays in the order of ranks.
        keyed.sort_by(|a, b| self.atoms[a.1 as usize].key().cmp(&self.atoms[b.1 as usize].key()));
        let mut groups: Vec<(u32, Child)> = Vec::new();
        let mut rest = &keyed[..];
        while let Some(&(_, atom)) = rest.first() {
            let same = |other: &&(u32, u32)| self.atoms[atom as usize].key() == self.atoms[other.1 as usize].key();
            let (group, others) = rest.split_at(rest.iter().take_while(same).count());
            rest = others;
            let child = self.child(group.iter().map(|(filing, _)| *filing).collect());
            groups.push((atom, child));
        }
        let probe = match dimension {
            Dimension::Path(slot) => {
                // They are in the order of keys, in which they are tried.
                let is_ranked = keyed.is_sorted_by_key(|(filing, _)| self.filings[*filing as usize].place);
                self.path_probe(slot, is_ranked, &groups)
            }
            Dimension::Host => self.host_probe(&groups),
            Dimension::Prefix(slot, any) => TreeProbe::Prefix { tree: self.plant(&groups), slot, any },
            Dimension::Equal(of) => self.equal_probe(of, &groups),
            Dimension::Network(slot) => self.network_probe(slot, &groups),
            Dimension::Regex(group) => {
                let space = self.out.new_space();
                self.insert_all(space, &groups);
                TreeProbe::Regex { group, space }
            }
        };
        Dispatch { rank_min, probe }
    }

    /// Appends a run of places, each with the check of what remains of its condition.
    fn run(&mut self, filings: &[u32]) -> u32 {
        let first = self.out.places.len() as u32;
        for &filing in filings {
            let Filing { place: rank, .. } = self.filings[filing as usize];
            let (route, place) = self.places[rank as usize];
            let filing = &self.filings[filing as usize];
            let is_used = |index: u32| filing.used >> index & 1 == 1;
            let proven = (0..).zip(&self.atoms[filing.atoms.start as usize..filing.atoms.end as usize]);
            let proven = proven.filter(|(index, atom)| is_used(*index) && atom.proves).map(|(_, atom)| atom.origin);
            let uri = self.routes[route as usize].uri().map(|uri| (uri, place));
            let check = self.assembler.check(uri, filing.condition, &proven.collect::<Vec<_>>());
            let PlaceId { host, path } = place;
            self.out.places.push(RunEntry { rank, route, path, host, check, is_last: false });
        }
        if let Some(last) = self.out.places.last_mut() {
            last.is_last = true;
        }
        first
    }
}

impl Parts {
    pub(super) fn new_space(&mut self) -> u32 {
        self.space_count += 1;
        self.space_count - 1
    }
}

impl Atom<'_> {
    pub(super) fn key(&self) -> Key<'_> {
        let (slot, any) = match (self.dimension, self.origin) {
            (Dimension::Equal(_), AtomSource::Predicate { predicate, slot }) => (slot, predicate.any),
            _ => (0, false),
        };
        (self.dimension, slot, any, &self.key)
    }
}

// The probes of dispatches: groups of filings, each with its key and its child, stored where a search looks them
// up.

impl Builder<'_> {
    pub(super) fn path_probe(&mut self, slot: Option<SlotId>, is_ranked: bool, groups: &[(u32, Child)]) -> TreeProbe {
        let is_exact = |atom: u32| !self.atoms[atom as usize].key.iter().any(|byte| *byte >= PARAM);
        let (exact, patterns): (Vec<_>, Vec<_>) = groups.iter().partition(|(atom, _)| is_exact(*atom));
        let space = (!exact.is_empty()).then(|| self.out.new_space());
        if let Some(space) = space {
            self.insert_all(space, &exact);
        }
        let tree = (!patterns.is_empty()).then(|| self.plant(&patterns));
        TreeProbe::Path { space, tree, slot, is_ranked }
    }

    /// A tree of keys, which are sorted.
    pub(super) fn plant(&mut self, groups: &[(u32, Child)]) -> Root {
        let key = |(atom, child): &(u32, Child)| (&*self.atoms[*atom as usize].key, child.0);
        let keys: Vec<(&[u8], u32)> = groups.iter().map(key).collect();
        self.out.forest.plant(&keys)
    }

    /// The prefix lengths of the networks are kept, so that only those are looked up.
    pub(super) fn network_probe(&mut self, slot: Option<SlotId>, groups: &[(u32, Child)]) -> TreeProbe {
        let space = self.out.new_space();
        self.insert_all(space, groups);
        let first = self.out.prefixes.len() as u32;
        let prefixes = groups.iter().filter_map(|(atom, _)| match *self.atoms[*atom as usize].key {
            [family, bits, ..] => Some((family, bits)),
            _ => None,
        });
        let prefixes: BTreeSet<(u8, u8)> = prefixes.collect();
        self.out.prefixes.extend(prefixes);
        TreeProbe::Network { slot, space, first, count: self.out.prefixes.len() as u32 - first }
    }

    pub(super) fn host_probe(&mut self, groups: &[(u32, Child)]) -> TreeProbe {
        let space = self.out.new_space();
        self.insert_all(space, groups);
        let suffixes =
            groups.iter().map(|(atom, _)| &self.atoms[*atom as usize].key).filter(|key| key.starts_with(b"."));
        let suffix_bytes_max = suffixes.map(|key| key.len()).max().unwrap_or(0) as u32;
        TreeProbe::Host { space, suffix_bytes_max }
    }

    /// Groups are sorted by their field, so the groups of each field are contiguous.
    pub(super) fn equal_probe(&mut self, of: DispatchFields, groups: &[(u32, Child)]) -> TreeProbe {
        let mut spaces = Vec::new();
        let field = |atom: u32| {
            let (_, slot, any, _) = self.atoms[atom as usize].key();
            (slot, any)
        };
        let runs: Vec<Range<usize>> = {
            let mut at = 0;
            groups
                .chunk_by(|a, b| field(a.0) == field(b.0))
                .map(|run| {
                    at += run.len();
                    at - run.len()..at
                })
                .collect()
        };
        for run in runs {
            let (slot, any) = field(groups[run.start].0);
            spaces.push((slot, any, run));
        }
        let first = self.out.spaces.len() as u32;
        let count = spaces.len() as u32;
        for (slot, any, run) in spaces {
            let space = self.out.new_space();
            self.out.spaces.push(Space { slot, any, space });
            self.insert_all(space, &groups[run]);
        }
        TreeProbe::Equal { of, first, count }
    }

    pub(super) fn insert_all(&mut self, space: u32, groups: &[(u32, Child)]) {
        for (atom, child) in groups {
            self.out.table.insert(space, &self.atoms[*atom as usize].key, child.0);
        }
    }
}
