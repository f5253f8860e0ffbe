//! Routes whose every request is taken by routes before them.
//!
//! A place's condition is split into alternatives, conjunctions of predicates. It is shadowed if each of them implies
//! the condition of an earlier place. On the shadowed side alternatives may be too wide (parts that multiply them or
//! cannot be compared are left out); on the shadowing side they are exact, or the place is not considered.

use crate::condition::decided::always;
use crate::condition::implies::{implies, lowered_test};
use crate::condition::simplify::as_literal;
use crate::condition::{Condition, Field, Predicate, PredicateOrigin, Test};
use crate::layer::{PlaceId, order, places_of};
use crate::pattern::PARAM;
use crate::{Method, PathPattern, RouteSpec, UriRoute, Variable};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

/// Most alternatives that a product of `||` is multiplied out to.
const ALTERNATIVES_MAX: usize = 64;
/// Most predicates of an alternative; further ones are left out.
const LITERALS_MAX: usize = 32;
/// Routes with more pairs of a host and a path are not checked.
const PLACES_OF_ROUTE_MAX: usize = 1024;
/// Most places and alternatives of all routes together; those beyond are not checked.
const PLACES_MAX: usize = 1 << 20;
/// Most candidates examined for one alternative.
const CANDIDATES_MAX: usize = 256;
/// Most candidates examined for one route.
const CANDIDATES_OF_ROUTE_MAX: usize = 8192;

/// A candidate with a regex counts as this many.
const COSTLY: usize = 8;

/// The routes that take another route's requests.
pub(super) struct Shadow {
    /// Positions of routes, ascending. Empty if no request satisfies the shadowed route at all.
    pub(super) by: Vec<usize>,
    /// Whether it is a single route with the same condition.
    pub(super) same: bool,
}

/// Checks each route; `conditions` are theirs, simplified.
pub(super) fn find(specs: &[Arc<RouteSpec>], conditions: &[Condition]) -> Vec<Option<Shadow>> {
    let mut room = PLACES_MAX;
    let pairs: Vec<RoutePredicates> = specs.iter().map(|spec| RoutePredicates::new(spec, &mut room)).collect();
    let places = Places::new(specs, conditions, &pairs);
    let exact = |(_, alternative): &(AlternativeId, &Alternative)| places.list[alternative.place as usize].exact;
    let filed = (0..).zip(&places.alternatives).filter(exact);
    let index = Index::new(filed.map(|(id, alternative)| (id, places.literals(alternative))));

    let mut found: Vec<Cover> = Vec::new();
    found.resize_with(specs.len(), Cover::default);
    for place in &places.list {
        let cover = &mut found[place.route as usize];
        cover.has_place = true;
        cover.is_open |= place.is_skipped;
        for id in place.alternatives.clone() {
            if cover.is_open {
                break;
            }
            cover.is_open = !cover.close(id, place, &places, &index);
        }
    }
    for (cover, pairs) in found.iter_mut().zip(&pairs) {
        cover.is_open |= !cover.has_place || pairs.are_skipped;
    }
    let shadow_of = |(route, cover): (usize, Cover)| {
        let mut by: Vec<usize> = cover.by.iter().map(|route| *route as usize).collect();
        by.sort_unstable();
        let same = matches!(&by[..], [only] if are_same((specs, conditions), *only, route));
        (!cover.is_open).then_some(Shadow { by, same })
    };
    found.into_iter().enumerate().map(shadow_of).collect()
}

/// The extent to which a route is shadowed.
#[derive(Default)]
struct Cover {
    has_place: bool,
    /// Whether it takes a request, or might take one.
    is_open: bool,
    by: Vec<u32>,
    looked_at: usize,
}

impl Cover {
    /// Whether an alternative implies the condition of an earlier place. A place of the same route counts: its requests
    /// are checked at its own alternatives, and the first place of a route has none before it.
    fn close(&mut self, id: AlternativeId, place: &ShadowPlace, places: &Places<'_>, index: &Index) -> bool {
        let alternative = places.literals(&places.alternatives[id as usize]);
        if contradicts_itself(alternative) {
            return true;
        }
        let end = place.alternatives.start;
        let mut taken_by = index.everything.filter(|first| *first < end);
        let mut left = CANDIDATES_MAX.min(CANDIDATES_OF_ROUTE_MAX - self.looked_at);
        let before = left;
        if taken_by.is_none() {
            index.candidates(alternative, end, &mut |candidate| {
                if left == 0 {
                    return true;
                }
                let earlier = places.literals(&places.alternatives[candidate as usize]);
                left = left.saturating_sub(if earlier.iter().any(is_costly) { COSTLY } else { 1 });
                let follows = follows(alternative, earlier);
                if follows {
                    taken_by = Some(candidate);
                }
                follows
            });
        }
        self.looked_at += before - left;
        let Some(by) = taken_by else { return false };
        let by = places.list[places.alternatives[by as usize].place as usize].route;
        if by != place.route && !self.by.contains(&by) {
            self.by.push(by);
        }
        true
    }
}

/// Whether it is a regex, which is matched against equal texts.
fn is_costly(literal: &SignedPredicate<'_>) -> bool {
    matches!(literal.predicate.test, Test::Regex(_))
}

/// Whether all of `then` follow from `literals`.
fn follows(literals: &[SignedPredicate<'_>], then: &[SignedPredicate<'_>]) -> bool {
    let from =
        |q: &SignedPredicate<'_>| literals.iter().any(|p| implies(p.predicate, p.negated, q.predicate, q.negated));
    then.iter().all(from)
}

fn contradicts_itself(literals: &[SignedPredicate<'_>]) -> bool {
    let excludes =
        |p: &SignedPredicate<'_>, q: &SignedPredicate<'_>| implies(p.predicate, p.negated, q.predicate, !q.negated);
    literals.iter().enumerate().any(|(index, q)| literals[..index].iter().any(|p| excludes(p, q)))
}

/// A URI route's hosts and paths as predicates.
struct RoutePredicates {
    hosts: Vec<Predicate>,
    paths: Vec<Predicate>,
    are_skipped: bool,
}

impl RoutePredicates {
    fn new(spec: &RouteSpec, room: &mut usize) -> RoutePredicates {
        let none = RoutePredicates { hosts: Vec::new(), paths: Vec::new(), are_skipped: false };
        let count = spec.uri().map_or(1, |uri| uri.hosts.len().max(1).saturating_mul(uri.paths.len()));
        if count > PLACES_OF_ROUTE_MAX.min(*room) {
            return RoutePredicates { are_skipped: true, ..none };
        }
        *room -= count;
        let Some(uri) = spec.uri() else { return none };
        let is = |field, test| Predicate { field, lower: false, any: false, test, source: PredicateOrigin::default() };
        RoutePredicates {
            hosts: uri.hosts.iter().map(|host| is(Field::Host, Test::Host(host.clone()))).collect(),
            paths: uri.paths.iter().map(|path| is(Field::Path, Test::Path(path.clone()))).collect(),
            are_skipped: false,
        }
    }

    fn literals(&self, place: PlaceId) -> impl Iterator<Item = SignedPredicate<'_>> {
        let pair = [self.hosts.get(place.host as usize), self.paths.get(place.path as usize)];
        pair.into_iter().flatten().map(|predicate| SignedPredicate { predicate, negated: false })
    }
}

/// All places in the order of ranks, with their alternatives.
struct Places<'a> {
    list: Vec<ShadowPlace>,
    alternatives: Vec<Alternative>,
    literals: Vec<SignedPredicate<'a>>,
}

struct ShadowPlace {
    route: u32,
    alternatives: std::ops::Range<AlternativeId>,
    /// Whether the alternatives are equivalent to the place's condition.
    exact: bool,
    /// Whether it has no alternatives because there are too many already.
    is_skipped: bool,
}

struct Alternative {
    place: u32,
    /// Range of [`Places::literals`].
    first: u32,
    count: u32,
}

impl<'a> Places<'a> {
    fn new(specs: &[Arc<RouteSpec>], conditions: &'a [Condition], pairs: &'a [RoutePredicates]) -> Places<'a> {
        let is_looked_at = |route: usize| !pairs[route].are_skipped && conditions[route] != Condition::False;
        let routes = (0..specs.len()).filter(|route| is_looked_at(*route));
        let of_route = |route: usize| places_of(&specs[route]).map(move |place| (route, place));
        let mut ranked: Vec<(usize, PlaceId)> = routes.flat_map(of_route).collect();
        ranked.sort_by(|a, b| order((&specs[a.0], a.0, a.1), (&specs[b.0], b.0, b.1)));
        let mut places = Places { list: Vec::new(), alternatives: Vec::new(), literals: Vec::new() };
        for (route, id) in ranked {
            let first = places.alternatives.len() as AlternativeId;
            let is_skipped = first as usize >= PLACES_MAX;
            // A route with a function leaves requests to those behind it.
            let has_function = specs[route].uri().is_some_and(|uri| uri.function.is_some());
            let mut exact = !is_skipped && !has_function;
            if !is_skipped {
                for literals in alternatives_of(&conditions[route], &mut exact) {
                    places.push(pairs[route].literals(id), literals, &mut exact);
                }
            }
            let alternatives = first..places.alternatives.len() as AlternativeId;
            places.list.push(ShadowPlace { route: route as u32, alternatives, exact, is_skipped });
        }
        places
    }

    fn push(
        &mut self,
        pair: impl Iterator<Item = SignedPredicate<'a>>,
        rest: Vec<SignedPredicate<'a>>,
        exact: &mut bool,
    ) {
        let first = self.literals.len();
        let is_every_path = |literal: &SignedPredicate<'_>| always(literal.predicate).is_some();
        self.literals.extend(pair.filter(|literal| !is_every_path(literal)));
        // The value of a parameter depends on the route.
        let is_of_route =
            |literal: &SignedPredicate<'_>| matches!(literal.predicate.field, Field::Variable(Variable::PathParam(_)));
        let room = LITERALS_MAX - (self.literals.len() - first);
        *exact &= rest.len() <= room && !rest.iter().any(is_of_route);
        self.literals.extend(rest.into_iter().filter(|literal| !is_of_route(literal)).take(room));
        let count = (self.literals.len() - first) as u32;
        self.alternatives.push(Alternative { place: self.list.len() as u32, first: first as u32, count });
    }

    fn literals(&self, alternative: &Alternative) -> &[SignedPredicate<'a>] {
        &self.literals[alternative.first as usize..][..alternative.count as usize]
    }
}

/// The alternatives of a simplified condition. Where they would be too many a part is left out, which makes them wider;
/// then `exact` becomes false.
fn alternatives_of<'a>(condition: &'a Condition, exact: &mut bool) -> Vec<Vec<SignedPredicate<'a>>> {
    if let Some((predicate, negated)) = as_literal(condition) {
        return vec![vec![SignedPredicate { predicate, negated }]];
    }
    match condition {
        Condition::False => Vec::new(),
        Condition::All(parts) => {
            let literals = parts.iter().filter_map(as_literal);
            let own: Vec<SignedPredicate<'_>> =
                literals.map(|(predicate, negated)| SignedPredicate { predicate, negated }).collect();
            let mut product = vec![own];
            for part in parts.iter().filter(|part| as_literal(part).is_none()) {
                let by = alternatives_of(part, exact);
                let is_product = product.len() > 1 && by.len() > 1;
                if is_product && product.len() * by.len() > ALTERNATIVES_MAX {
                    *exact = false;
                } else {
                    product = by.iter().flat_map(|b| product.iter().map(move |a| [&a[..], &b[..]].concat())).collect();
                }
            }
            product
        }
        Condition::Any(parts) => parts.iter().flat_map(|part| alternatives_of(part, exact)).collect(),
        // In a simplified condition a negation is a literal.
        Condition::True | Condition::Not(_) | Condition::Is(_) => vec![Vec::new()],
    }
}

/// Whether two routes of one kind have the same condition. Compared by hashes that don't depend on the order of parts:
/// one is known to take all of the other's requests, so a collision of hashes does not lead to a wrong finding.
fn are_same((specs, conditions): (&[Arc<RouteSpec>], &[Condition]), a: usize, b: usize) -> bool {
    let pairs = match (specs[a].uri(), specs[b].uri()) {
        (Some(a), Some(b)) => a.function == b.function && pairs_hash(a) == pairs_hash(b),
        (None, None) => true,
        _ => false,
    };
    pairs && condition_hash(&conditions[a]) == condition_hash(&conditions[b])
}

fn pairs_hash(uri: &UriRoute) -> (u64, u64) {
    let sum = |hashes: Vec<u64>| {
        let mut hashes = hashes;
        hashes.sort_unstable();
        hashes.dedup();
        FixedState::default().hash_one(hashes)
    };
    let hosts = uri.hosts.iter().map(|host| FixedState::default().hash_one(host)).collect();
    let paths = uri.paths.iter().map(|path| FixedState::default().hash_one((path.key(), path.tail()))).collect();
    (sum(hosts), sum(paths))
}

fn condition_hash(condition: &Condition) -> u64 {
    let state = FixedState::default();
    let sum = |parts: &[Condition]| parts.iter().map(condition_hash).fold(0u64, u64::wrapping_add);
    match condition {
        Condition::True => 1,
        Condition::False => 2,
        Condition::Is(predicate) => state.hash_one(predicate),
        Condition::Not(inner) => state.hash_one((3u8, condition_hash(inner))),
        Condition::All(parts) => state.hash_one((4u8, sum(parts))),
        Condition::Any(parts) => state.hash_one((5u8, sum(parts))),
    }
}

// Alternatives of places, found by the predicates that follow from another alternative's predicates.
//
// An alternative is filed under the rarest key of its predicates. Every predicate that implies it has this key among
// those it looks under:
//
// - the beginning of a value (equal texts, prefixes, path patterns up to their first parameter): every shorter
//   beginning;
// - the end of a value (suffixes, host patterns): every shorter end;
// - for all other predicates the same predicate, and the field alone.

/// A predicate that holds, or with `negated` does not.
#[derive(Debug, Clone, Copy)]
pub(super) struct SignedPredicate<'a> {
    pub(super) predicate: &'a Predicate,
    pub(super) negated: bool,
}

/// Position of an alternative among all, in the order of ranks.
pub(super) type AlternativeId = u32;

/// Alternatives by key.
pub(super) struct Index {
    /// Sorted; equal keys in the order of ranks.
    entries: Vec<(u64, AlternativeId)>,
    /// The first entry of each key.
    first: HashMap<u64, u32, FixedState>,
    /// The lengths of the texts that are filed under a field, ascending. By [`field_hash`], for beginnings and ends.
    lengths: [HashMap<u64, Vec<usize>, FixedState>; 2],
    /// Whether there are predicates on values in lower case.
    has_lower: bool,
    /// The first alternative without predicates.
    pub(super) everything: Option<AlternativeId>,
}

#[derive(Clone, Copy)]
enum MatchedEnd {
    Begins = 0,
    Ends = 1,
}

/// The keys of a predicate.
struct PredicateKeys<'a> {
    hash: u64,
    text: Option<(u64, MatchedEnd, &'a [u8])>,
    /// The key of the same predicate, where the first key is the field alone.
    exact: Option<u64>,
}

impl Index {
    /// Files the alternatives that come with their numbers.
    pub(super) fn new<'a>(
        alternatives: impl Iterator<Item = (AlternativeId, &'a [SignedPredicate<'a>])> + Clone,
    ) -> Index {
        let mut counts: HashMap<u64, u32, FixedState> = HashMap::default();
        for literal in alternatives.clone().flat_map(|(_, literals)| literals) {
            *counts.entry(key(literal).hash).or_default() += 1;
        }
        let mut index = Index {
            entries: Vec::new(),
            first: HashMap::default(),
            lengths: [HashMap::default(), HashMap::default()],
            has_lower: false,
            everything: None,
        };
        for (id, literals) in alternatives {
            let rarest = literals.iter().min_by_key(|literal| counts[&key(literal).hash]);
            let Some(rarest) = rarest else {
                index.everything = index.everything.or(Some(id));
                continue;
            };
            let key = key(rarest);
            index.entries.push((key.hash, id));
            index.entries.extend(key.exact.map(|hash| (hash, id)));
            index.has_lower |= rarest.predicate.lower;
            if let Some((field, end, text)) = key.text {
                let lengths = index.lengths[end as usize].entry(field).or_default();
                if let Err(at) = lengths.binary_search(&text.len()) {
                    lengths.insert(at, text.len());
                }
            }
        }
        index.entries.sort_unstable();
        for (at, (key, _)) in (0u32..).zip(&index.entries) {
            index.first.entry(*key).or_insert(at);
        }
        index
    }

    /// Calls `visit` with alternatives before `end` that might follow from these predicates, until it returns `true`;
    /// some more than once.
    pub(super) fn candidates(
        &self,
        literals: &[SignedPredicate<'_>],
        end: AlternativeId,
        visit: &mut dyn FnMut(AlternativeId) -> bool,
    ) -> bool {
        // Entries that are filed under the field alone are the least selective, so they come last.
        literals.iter().any(|literal| self.with(exact_key(literal), end, visit) || self.texts(literal, end, visit))
            || literals.iter().any(|literal| self.with(field_key(&literal.predicate.field), end, visit))
    }

    fn texts(
        &self,
        literal: &SignedPredicate<'_>,
        end: AlternativeId,
        visit: &mut dyn FnMut(AlternativeId) -> bool,
    ) -> bool {
        let predicate = literal.predicate;
        if literal.negated {
            return false;
        }
        if self.with_parts(&predicate.field, predicate.lower, &predicate.test, end, visit) {
            return true;
        }
        let lower = if self.has_lower && !predicate.lower { lowered_test(&predicate.test) } else { None };
        lower.is_some_and(|test| self.with_parts(&predicate.field, true, &test, end, visit))
    }

    fn with_parts(
        &self,
        field: &Field,
        lower: bool,
        test: &Test,
        end: AlternativeId,
        visit: &mut dyn FnMut(AlternativeId) -> bool,
    ) -> bool {
        let field = field_hash(field, lower);
        let lengths = |of: MatchedEnd| self.lengths[of as usize].get(&field).into_iter().flatten().copied();
        required_prefix(test).is_some_and(|text| {
            let parts = lengths(MatchedEnd::Begins).take_while(|len| *len <= text.len()).map(|len| &text[..len]);
            { parts }.any(|part| self.with(text_key(field, MatchedEnd::Begins, part), end, visit))
        }) || required_suffix(test).is_some_and(|text| {
            let parts =
                lengths(MatchedEnd::Ends).take_while(|len| *len <= text.len()).map(|len| &text[text.len() - len..]);
            { parts }.any(|part| self.with(text_key(field, MatchedEnd::Ends, part), end, visit))
        })
    }

    fn with(&self, key: u64, end: AlternativeId, visit: &mut dyn FnMut(AlternativeId) -> bool) -> bool {
        let Some(&first) = self.first.get(&key) else { return false };
        let entries = self.entries[first as usize..].iter();
        entries.take_while(|(other, id)| *other == key && *id < end).any(|(_, id)| visit(*id))
    }
}

fn key<'a>(literal: &SignedPredicate<'a>) -> PredicateKeys<'a> {
    let predicate = literal.predicate;
    let field = || field_hash(&predicate.field, predicate.lower);
    let of_text = |end, text: &'a [u8]| {
        let field = field();
        PredicateKeys { hash: text_key(field, end, text), text: Some((field, end, text)), exact: None }
    };
    let text = match &predicate.test {
        _ if literal.negated => None,
        Test::Equal(text) | Test::Prefix(text) => Some((MatchedEnd::Begins, &**text)),
        Test::Path(pattern) => Some((MatchedEnd::Begins, head(pattern))),
        Test::Methods(_) => required_prefix(&predicate.test).map(|name| (MatchedEnd::Begins, name)),
        Test::Suffix(text) => Some((MatchedEnd::Ends, &**text)),
        Test::Host(pattern) => Some((MatchedEnd::Ends, pattern.key())),
        _ => None,
    };
    match text {
        Some((end, text)) if !text.is_empty() => of_text(end, text),
        _ => PredicateKeys { hash: field_key(&predicate.field), text: None, exact: Some(exact_key(literal)) },
    }
}

/// The text that all passing values begin with.
fn required_prefix(test: &Test) -> Option<&[u8]> {
    match test {
        Test::Equal(text) | Test::Prefix(text) => Some(text),
        Test::Path(pattern) => Some(head(pattern)),
        Test::Host(pattern) if !pattern.is_suffix() => Some(pattern.key()),
        Test::Methods(methods) => methods.only().and_then(Method::name).map(str::as_bytes),
        _ => None,
    }
}

/// The text that all passing values end with.
fn required_suffix(test: &Test) -> Option<&[u8]> {
    match test {
        Test::Equal(text) | Test::Suffix(text) => Some(text),
        Test::Host(pattern) => Some(pattern.key()),
        // From the last parameter or star on; texts behind them are literal.
        Test::Path(pattern) => pattern.key().rsplit(|byte| *byte >= PARAM).next(),
        Test::Methods(_) => required_prefix(test),
        _ => None,
    }
}

/// The text of a pattern before its first parameter or star.
fn head(pattern: &PathPattern) -> &[u8] {
    let key = pattern.key();
    &key[..key.iter().position(|byte| *byte >= PARAM).unwrap_or(key.len())]
}

fn field_hash(field: &Field, lower: bool) -> u64 {
    FixedState::default().hash_one((field, lower))
}

fn field_key(field: &Field) -> u64 {
    FixedState::default().hash_one((0u8, field))
}

fn text_key(field: u64, end: MatchedEnd, text: &[u8]) -> u64 {
    FixedState::default().hash_one((1 + end as u8, field, text))
}

fn exact_key(literal: &SignedPredicate<'_>) -> u64 {
    FixedState::default().hash_one((3u8, literal.predicate, literal.negated))
}
