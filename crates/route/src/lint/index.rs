//! Alternatives of places, found by the predicates that follow from another alternative's predicates.
//!
//! An alternative is filed under the rarest key of its predicates. Every predicate that implies it has this key among
//! those it looks under:
//!
//! - the beginning of a value (equal texts, prefixes, path patterns up to their first parameter): every shorter
//!   beginning;
//! - the end of a value (suffixes, host patterns): every shorter end;
//! - for all other predicates the same predicate, and the field alone.

use crate::condition::implies::lowered;
use crate::condition::{Field, Predicate, Test};
use crate::pattern::PARAM;
use crate::{Method, PathPattern};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use std::hash::BuildHasher;

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
        let lower = if self.has_lower && !predicate.lower { lowered(&predicate.test) } else { None };
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
        beginning(test).is_some_and(|text| {
            let parts = lengths(MatchedEnd::Begins).take_while(|len| *len <= text.len()).map(|len| &text[..len]);
            { parts }.any(|part| self.with(text_key(field, MatchedEnd::Begins, part), end, visit))
        }) || ending(test).is_some_and(|text| {
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
        Test::Methods(_) => beginning(&predicate.test).map(|name| (MatchedEnd::Begins, name)),
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
fn beginning(test: &Test) -> Option<&[u8]> {
    match test {
        Test::Equal(text) | Test::Prefix(text) => Some(text),
        Test::Path(pattern) => Some(head(pattern)),
        Test::Host(pattern) if !pattern.is_suffix() => Some(pattern.key()),
        Test::Methods(methods) => methods.only().and_then(Method::name).map(str::as_bytes),
        _ => None,
    }
}

/// The text that all passing values end with.
fn ending(test: &Test) -> Option<&[u8]> {
    match test {
        Test::Equal(text) | Test::Suffix(text) => Some(text),
        Test::Host(pattern) => Some(pattern.key()),
        // From the last parameter or star on; texts behind them are literal.
        Test::Path(pattern) => pattern.key().rsplit(|byte| *byte >= PARAM).next(),
        Test::Methods(_) => beginning(test),
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
