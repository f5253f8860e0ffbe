//! The requirements of a place: under which values it can be filed, so that requests without them never meet it.
//!
//! A condition is turned into alternatives, each a conjunction of *atoms*: predicates that an index can answer.
//! Predicates that are not atoms (a negation, a comparison, a regex's tail) are left out, which makes the alternative
//! weaker, never wrong: they are checked when the place is met. Where alternatives would become too many, a part of the
//! condition is left out.

use super::DispatchFields;
use super::PlaceId;
use crate::condition::{Condition, Field, Predicate, Test};
use crate::fields::{FieldSlots, SlotId};
use crate::pattern::STAR;
use crate::{HOST_BYTES_MAX, Method, UriRoute};
use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

/// Most alternatives that a product of conditions may have; each takes a place in the index. A plain `||` may have as many as
/// an expression has predicates.
const PRODUCT_MAX: usize = 256;
/// Most alternatives of an expression.
const ALTERNATIVES_MAX: usize = 4096;
/// Most alternatives of all places of a URI route together, unless it has more places.
const ROUTE_ALTERNATIVES_MAX: usize = 256;
/// Most atoms kept of an alternative. They are used up on the way down the tree, so this bounds its depth.
pub(super) const ATOMS_MAX: usize = 16;

/// A predicate that a place requires and an index can answer.
#[derive(Debug, Clone)]
pub(super) struct Atom<'a> {
    pub(super) dimension: Dimension,
    pub(super) key: Cow<'a, [u8]>,
    pub(super) origin: AtomSource<'a>,
    /// Whether finding the key in the index proves the predicate, so that it need not be checked again.
    pub(super) proves: bool,
}

/// The kind of lookup that answers an atom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Dimension {
    /// The path, or the value of a slot if there is one: keys of [`PathPattern`].
    Path(Option<SlotId>),
    /// The host: a name, or a suffix with its dot.
    Host,
    /// The beginning of a text; all values must have it, or with the flag any.
    Prefix(SlotId, bool),
    /// Equality of a field.
    Equal(DispatchFields),
    /// The network that contains an address: the client's, or a slot's. Keys are made by [`network_key`].
    Network(Option<SlotId>),
    /// A regex of the group of that number; the key is its number in the group.
    Regex(u32),
}

/// The source of an atom.
#[derive(Debug, Clone, Copy)]
pub(super) enum AtomSource<'a> {
    Predicate {
        predicate: &'a Arc<Predicate>,
        slot: SlotId,
    },
    /// The place's host.
    Host,
    /// The place's path.
    Path,
}

/// A conjunction of predicates that an index might answer.
type Alternative<'a> = Vec<&'a Arc<Predicate>>;

/// A part of a place's condition that takes requests by itself, with the atoms of one of its alternatives.
pub(super) struct ConditionPart<'a> {
    pub(super) condition: &'a Condition,
    pub(super) atoms: Vec<Atom<'a>>,
}

/// Hands the parts of a place to `file`. If there is none, the place takes no request. Where it is not `in_full`, a
/// single part without atoms of the condition covers everything.
pub(super) fn parts<'a>(
    uri: Option<(&'a UriRoute, PlaceId)>,
    condition: &'a Condition,
    in_full: bool,
    mut atom: impl FnMut(&'a Arc<Predicate>) -> Option<Atom<'a>>,
    mut file: impl FnMut(ConditionPart<'a>),
) {
    let places = uri.map_or(1, |(uri, _)| uri.hosts.len().max(1) * uri.paths.len());
    let alternatives_max = if uri.is_some() { ROUTE_ALTERNATIVES_MAX / places } else { ALTERNATIVES_MAX };
    let found = if in_full && alternatives_max > 0 { branches(condition) } else { Vec::new() };
    let mut add = |condition, predicates: Alternative<'a>| {
        let mut atoms = uri.map_or_else(Vec::new, |(uri, place)| place_atoms(uri, place));
        atoms.extend(predicates.into_iter().filter_map(&mut atom));
        atoms.truncate(ATOMS_MAX);
        file(ConditionPart { condition, atoms });
    };
    let count: usize = found.iter().map(|(_, alternatives)| alternatives.len()).sum();
    let tells_nothing = |(_, alternatives): &(&Condition, Vec<Alternative<'_>>)| alternatives.iter().any(Vec::is_empty);
    if found.is_empty() && !matches!(condition, Condition::False)
        || count > alternatives_max
        || found.iter().any(tells_nothing)
    {
        return add(condition, Vec::new());
    }
    for (condition, alternatives) in found {
        alternatives.into_iter().for_each(|predicates| add(condition, predicates));
    }
}

/// Splits a condition into alternatives of which one must hold, each with its own alternatives, so that under one of
/// them nothing is checked that belongs to another.
fn branches(condition: &Condition) -> Vec<(&Condition, Vec<Alternative<'_>>)> {
    match condition {
        Condition::Any(any) => any.iter().map(|branch| (branch, alternatives_of(branch))).collect(),
        condition => vec![(condition, alternatives_of(condition))],
    }
}

/// The path and host of a place.
fn place_atoms(uri: &UriRoute, place: PlaceId) -> Vec<Atom<'_>> {
    let atom = |dimension, key, origin| Atom { dimension, key: Cow::Borrowed(key), origin, proves: true };
    let pattern = &uri.paths[place.path as usize];
    let path = atom(Dimension::Path(None), pattern.key(), AtomSource::Path);
    let path = Atom { proves: pattern.tail().is_empty(), ..path };
    let host = uri.hosts.get(place.host as usize).filter(|host| !host.is_any());
    std::iter::once(path).chain(host.map(|host| atom(Dimension::Host, host.key(), AtomSource::Host))).collect()
}

/// The alternatives of a condition in negation normal form. One without predicates means every request.
fn alternatives_of(condition: &Condition) -> Vec<Alternative<'_>> {
    match condition {
        Condition::False => Vec::new(),
        Condition::Is(predicate) if may_be_atom(predicate) => vec![vec![predicate]],
        Condition::True | Condition::Not(_) | Condition::Is(_) => vec![Vec::new()],
        Condition::All(conditions) => {
            let mut product: Vec<Alternative<'_>> = vec![Vec::new()];
            for condition in conditions {
                match condition {
                    // The common case, without a product.
                    Condition::Is(predicate) => {
                        if may_be_atom(predicate) {
                            product.iter_mut().for_each(|alternative| alternative.push(predicate));
                        }
                    }
                    condition => product = multiply(product, alternatives_of(condition)),
                }
            }
            product
        }
        Condition::Any(conditions) => {
            let mut sum = Vec::new();
            for condition in conditions {
                sum.append(&mut alternatives_of(condition));
                // An alternative without predicates covers the others, so it is returned alone.
                if sum.last().is_some_and(Vec::is_empty) || sum.len() > ALTERNATIVES_MAX {
                    return vec![Vec::new()];
                }
            }
            sum
        }
    }
}

fn multiply<'a>(product: Vec<Alternative<'a>>, by: Vec<Alternative<'a>>) -> Vec<Alternative<'a>> {
    let tells_nothing = |alternatives: &[Alternative<'_>]| matches!(alternatives, [one] if one.is_empty());
    if tells_nothing(&by) {
        return product;
    }
    if tells_nothing(&product) {
        return by;
    }
    if product.len() * by.len() > PRODUCT_MAX {
        // Either is necessary by itself; the shorter list takes less room.
        return if by.len() < product.len() { by } else { product };
    }
    product.iter().flat_map(|a| by.iter().map(move |b| [&a[..], &b[..]].concat())).collect()
}

/// Whether an index could answer the predicate; [`atom_of`] gives the key.
fn may_be_atom(predicate: &Predicate) -> bool {
    match (&predicate.field, &predicate.test) {
        (Field::Variable(crate::Variable::PathParam(_)), _) => false,
        (_, Test::Prefix(_) | Test::InNetwork(_)) => true,
        // Longer suffixes are not looked up.
        (Field::Host, Test::Suffix(suffix)) => suffix.first() == Some(&b'.') && suffix.len() <= HOST_BYTES_MAX,
        // In the table of hosts a text that begins with a dot is a suffix.
        (Field::Host, Test::Equal(name)) => name.first() != Some(&b'.'),
        (_, Test::Equal(_) | Test::IntEqual(_) | Test::IpEqual(_) | Test::Regex(_) | Test::Host(_) | Test::Path(_)) => {
            true
        }
        (_, Test::Methods(methods)) => methods.only().is_some(),
        _ => false,
    }
}

/// The atom of a predicate, except for regexes without a literal prefix.
pub(super) fn atom_of<'a>(predicate: &'a Arc<Predicate>, fields: &mut FieldSlots) -> Option<Atom<'a>> {
    let lower = predicate.lower;
    let mut slot = 0;
    let mut proves = true;
    let mut equal = |fields: &mut FieldSlots, lower: bool| {
        slot = fields.slot(&predicate.field, lower);
        Dimension::Equal(match &predicate.field {
            Field::Header(_) => DispatchFields::Header,
            Field::Query(_) => DispatchFields::Argument,
            _ => DispatchFields::Other(slot),
        })
    };
    let path = |fields: &mut FieldSlots| Dimension::Path(lower.then(|| fields.slot(&Field::Path, true)));
    let prefix = |text: &[u8]| Cow::Owned([text, &[STAR]].concat());
    let (dimension, key) = match (&predicate.field, &predicate.test) {
        (Field::Path, Test::Equal(text)) => (path(fields), Cow::Borrowed(&**text)),
        (Field::Path, Test::Prefix(text)) => (path(fields), prefix(text)),
        (Field::Path, Test::Path(pattern)) if !lower => {
            proves = pattern.tail().is_empty();
            (path(fields), Cow::Borrowed(pattern.key()))
        }
        (Field::Path, Test::Regex(pattern)) if !lower => {
            let (text, tail) = pattern.anchored_prefix()?;
            proves = tail.is_none() || pattern.anchored_literal().is_some();
            let key = pattern.anchored_literal().map_or_else(|| prefix(text), Cow::Borrowed);
            (path(fields), key)
        }
        (field, Test::Prefix(text)) => {
            // If all values begin with the text, the first one does; the others are checked later.
            proves = predicate.any || !field.is_multiple();
            (Dimension::Prefix(fields.slot(field, lower), predicate.any), prefix(text))
        }
        (field, Test::InNetwork(network)) => {
            (network_of(field, fields), Cow::Owned(network_key(network.network(), network.prefix_len()).to_vec()))
        }
        (field, Test::IpEqual(address)) => {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            (network_of(field, fields), Cow::Owned(network_key(*address, bits).to_vec()))
        }
        (Field::Host, Test::Equal(text) | Test::Suffix(text)) => (Dimension::Host, Cow::Borrowed(&**text)),
        (Field::Host, Test::Host(pattern)) if !pattern.is_any() => (Dimension::Host, Cow::Borrowed(pattern.key())),
        (_, Test::Equal(text)) => (equal(fields, lower), Cow::Borrowed(&**text)),
        (_, Test::IntEqual(number)) => (equal(fields, false), to_key_bytes(number)),
        (_, Test::Methods(methods)) => {
            let name = methods.only().and_then(Method::name)?;
            (equal(fields, false), Cow::Borrowed(name.as_bytes()))
        }
        _ => return None,
    };
    // Bytes with a special meaning in keys of the tree. Neither paths nor UTF-8 texts hold them.
    if matches!(dimension, Dimension::Path(_) | Dimension::Prefix(..)) && !matches!(predicate.test, Test::Path(_)) {
        let literal = key.strip_suffix(&[STAR]).unwrap_or(&key);
        if literal.iter().any(|byte| *byte >= crate::pattern::PARAM) {
            return None;
        }
    }
    Some(Atom { dimension, key, origin: AtomSource::Predicate { predicate, slot }, proves })
}

fn network_of(field: &Field, fields: &mut FieldSlots) -> Dimension {
    Dimension::Network((*field != Field::SourceIp).then(|| fields.slot(field, false)))
}

fn to_key_bytes(value: impl std::fmt::Display) -> Cow<'static, [u8]> {
    Cow::Owned(value.to_string().into_bytes())
}

/// Length of a [`network_key`].
pub(super) const NETWORK_KEY_BYTES: usize = 18;

/// A network as a key: its family, the length of its prefix, and the address with only the prefix kept.
pub(super) fn network_key(address: IpAddr, prefix_bits: u8) -> [u8; NETWORK_KEY_BYTES] {
    let mut key = [0; NETWORK_KEY_BYTES];
    key[1] = prefix_bits;
    match address {
        IpAddr::V4(address) => {
            let kept = u32::MAX.checked_shl(32 - u32::from(prefix_bits)).unwrap_or(0);
            key[2..6].copy_from_slice(&(address.to_bits() & kept).to_be_bytes());
        }
        IpAddr::V6(address) => {
            let kept = u128::MAX.checked_shl(128 - u32::from(prefix_bits)).unwrap_or(0);
            key[0] = 1;
            key[2..].copy_from_slice(&(address.to_bits() & kept).to_be_bytes());
        }
    }
    key
}
