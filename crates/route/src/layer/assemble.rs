//! Makes a layer's [`Program`]: predicates, regexes and code, each stored once however many routes have it.

use super::NONE;
use super::PlaceId;
use super::filing::{Atom, AtomSource, Dimension};
use super::program::{ANY, CODE, Engine, FieldRegexes, Item, NEGATED, PlacedPredicate, Program, ValueSource};
use crate::condition::{Condition, Field, Predicate, PredicateOrigin, Test};
use crate::fields::FieldSlots;
use crate::regex::{Pattern, RegexGroup, Tail, TailEngine};
use crate::{HostPattern, PathPattern, UriRoute};
use foldhash::fast::FixedState;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// Up to this many regexes of one literal beginning are tried one after the other; more are searched for
/// together.
const SHARED_PREFIX_MAX: u32 = 16;

/// A program in the making.
pub(super) struct Assembler<'k> {
    fields: FieldSlots,
    program: Program,
    predicates: HashMap<Arc<Predicate>, u32, FixedState>,
    code: HashMap<Box<[u32]>, Item, FixedState>,
    /// Programs whose compiled tails can be taken over.
    known: Vec<&'k Program>,
    groups: Vec<Patterns>,
    /// Number of the path regexes with each literal beginning.
    beginnings: HashMap<Box<[u8]>, u32, FixedState>,
}

/// The regexes of a group.
struct Patterns {
    read: ValueSource,
    is_ascii: bool,
    patterns: Vec<Pattern>,
    numbers: HashMap<Pattern, u32, FixedState>,
}

/// The value of a condition where some predicates are known to hold.
enum Remainder {
    Holds,
    Fails,
    Asks(Item),
}

impl<'k> Assembler<'k> {
    /// Goes on from `fields`, for the predicates of `conditions`.
    pub(super) fn new(fields: FieldSlots, conditions: &[Condition], known: Vec<&'k Program>) -> Assembler<'k> {
        let mut beginnings = HashMap::default();
        for condition in conditions {
            condition.each_predicate(&mut |predicate| {
                if let Some(beginning) = beginning_of(predicate) {
                    *beginnings.entry(beginning.into()).or_insert(0) += 1;
                }
            });
        }
        Assembler {
            beginnings,
            fields,
            program: Program::default(),
            predicates: HashMap::default(),
            code: HashMap::default(),
            known,
            groups: Vec::new(),
        }
    }

    pub(super) fn fields(&mut self) -> &mut FieldSlots {
        &mut self.fields
    }

    pub(super) fn finish(mut self) -> (Program, FieldSlots) {
        self.program.groups = self
            .groups
            .into_iter()
            .map(|group| FieldRegexes {
                read: group.read,
                regexes: RegexGroup::compile(&group.patterns, group.is_ascii),
            })
            .collect();
        self.program.shrink_to_fit();
        (self.program, self.fields)
    }

    /// The atom of a regex that is searched for in a group; `None` for other predicates.
    pub(super) fn regex_atom<'a>(&mut self, predicate: &'a Arc<Predicate>) -> Option<Atom<'a>> {
        let Test::Regex(pattern) = &predicate.test else { return None };
        if self.is_filed_by_prefix(predicate) {
            return None;
        }
        let (group, number) = self.group_of(predicate, pattern);
        Some(Atom {
            dimension: Dimension::Regex(group),
            key: Cow::Owned(regex_key(number, predicate.any).to_vec()),
            origin: AtomSource::Predicate { predicate, slot: 0 },
            proves: true,
        })
    }

    /// The code that checks the rest of a place's condition where `proven` holds; [`NONE`] if nothing
    /// remains.
    pub(super) fn check(
        &mut self,
        uri: Option<(&UriRoute, PlaceId)>,
        condition: &Condition,
        proven: &[AtomSource<'_>],
    ) -> u32 {
        let mut items = Vec::new();
        if let Some((uri, place)) = uri {
            if !proven.iter().any(|origin| matches!(origin, AtomSource::Path)) {
                items.push(self.path_item(&uri.paths[place.path as usize]));
            }
            if let Some(host) = uri.hosts.get(place.host as usize).filter(|host| !host.is_any())
                && !proven.iter().any(|origin| matches!(origin, AtomSource::Host))
            {
                items.push(self.host_item(host));
            }
        }
        match self.remainder_of(condition, proven) {
            Remainder::Holds => {}
            Remainder::Asks(item) => items.push(item),
            // Its alternative would not have been filed; a check that always fails is correct anyway.
            Remainder::Fails => return self.code_of(ANY, &[]),
        }
        match items[..] {
            [] => NONE,
            [item] => item,
            _ => self.code_of(0, &items),
        }
    }

    fn remainder_of(&mut self, condition: &Condition, proven: &[AtomSource<'_>]) -> Remainder {
        let is_same = |a: &Arc<Predicate>, b: &Arc<Predicate>| Arc::ptr_eq(a, b) || a == b;
        let is_proven = |predicate: &Arc<Predicate>| {
            let proves = |origin: &AtomSource<'_>| matches!(origin, AtomSource::Predicate { predicate: it, .. } if is_same(it, predicate));
            proven.iter().any(proves)
        };
        match condition {
            Condition::True => Remainder::Holds,
            Condition::False => Remainder::Fails,
            Condition::Is(predicate) if is_proven(predicate) => Remainder::Holds,
            Condition::Is(predicate) => Remainder::Asks(self.predicate(predicate)),
            Condition::Not(inner) => match self.remainder_of(inner, proven) {
                Remainder::Holds => Remainder::Fails,
                Remainder::Fails => Remainder::Holds,
                Remainder::Asks(item) if item & CODE == 0 => Remainder::Asks(item ^ NEGATED),
                Remainder::Asks(_) => unreachable!("simplified conditions negate predicates only"),
            },
            Condition::All(all) => self.joined_remainder(all, proven, false),
            Condition::Any(any) => self.joined_remainder(any, proven, true),
        }
    }

    fn joined_remainder(&mut self, conditions: &[Condition], proven: &[AtomSource<'_>], any: bool) -> Remainder {
        let mut items = Vec::with_capacity(conditions.len());
        for condition in conditions {
            match (self.remainder_of(condition, proven), any) {
                (Remainder::Asks(item), _) => items.push(item),
                (Remainder::Holds, true) => return Remainder::Holds,
                (Remainder::Fails, false) => return Remainder::Fails,
                (Remainder::Holds, false) | (Remainder::Fails, true) => {}
            }
        }
        match items[..] {
            [] if any => Remainder::Fails,
            [] => Remainder::Holds,
            [item] => Remainder::Asks(item),
            _ => Remainder::Asks(self.code_of(if any { ANY } else { 0 }, &items)),
        }
    }

    fn code_of(&mut self, any: u32, items: &[Item]) -> Item {
        let mut code = Vec::with_capacity(items.len() + 1);
        code.push(any | items.len() as u32);
        code.extend_from_slice(items);
        if let Some(item) = self.code.get(&*code) {
            return *item;
        }
        let item = CODE | self.program.code.len() as u32;
        self.program.code.extend_from_slice(&code);
        self.code.insert(code.into(), item);
        item
    }

    fn path_item(&mut self, pattern: &PathPattern) -> Item {
        self.predicate(&plain(Field::Path, Test::Path(pattern.clone())))
    }

    fn host_item(&mut self, pattern: &HostPattern) -> Item {
        self.predicate(&plain(Field::Host, Test::Host(pattern.clone())))
    }

    fn predicate(&mut self, predicate: &Arc<Predicate>) -> Item {
        if let Some(&index) = self.predicates.get(predicate) {
            let compiled = &mut self.program.predicates[index as usize];
            if compiled.memo == NONE && compiled.is_worth_a_memo() {
                compiled.memo = self.program.memos;
                self.program.memos += 1;
            }
            return index;
        }
        let read = ValueSource::of(predicate, &mut self.fields);
        let engine = match &predicate.test {
            Test::Regex(pattern) => self.engine_of(predicate, pattern),
            _ => Engine::Test,
        };
        let index = self.program.predicates.len() as u32;
        self.program.predicates.push(PlacedPredicate { predicate: predicate.clone(), read, engine, memo: NONE });
        self.predicates.insert(predicate.clone(), index);
        index
    }

    fn engine_of(&mut self, predicate: &Predicate, pattern: &Pattern) -> Engine {
        if !self.is_filed_by_prefix(predicate) {
            let (group, pattern) = self.group_of(predicate, pattern);
            return Engine::Group { group, pattern };
        }
        let Some((prefix, tail)) = pattern.anchored_prefix() else { return Engine::Test };
        let tail = match tail.map(|tail| self.tail(tail)) {
            None => NONE,
            Some(Some(tail)) => tail,
            Some(None) => {
                let (group, pattern) = self.group_of(predicate, pattern);
                return Engine::Group { group, pattern };
            }
        };
        self.program.prefixes.push(prefix.into());
        Engine::Tail { prefix: self.program.prefixes.len() as u32 - 1, tail }
    }

    /// The number of a compiled tail; `None` if it has no small automaton.
    fn tail(&mut self, tail: &Tail) -> Option<u32> {
        if let Some(number) = self.program.tail_numbers.get(tail) {
            return *number;
        }
        let engine = match self.known.iter().find_map(|program| program.known_tail(tail)) {
            Some(engine) => engine,
            // Only paths are filed by the beginnings of regexes, and they are ASCII.
            None => TailEngine::compile(tail, true).map(Arc::new),
        };
        let Program { tails, tail_numbers, .. } = &mut self.program;
        let number = engine.map(|engine| {
            tails.push(engine);
            tails.len() as u32 - 1
        });
        tail_numbers.insert(tail.clone(), number);
        number
    }

    /// Whether a regex is filed by its literal beginning, and tried by itself.
    fn is_filed_by_prefix(&self, predicate: &Predicate) -> bool {
        let count = beginning_of(predicate).and_then(|beginning| self.beginnings.get(beginning));
        count.is_some_and(|count| *count <= SHARED_PREFIX_MAX)
    }

    /// The group that a regex is in, and its number there.
    fn group_of(&mut self, predicate: &Predicate, pattern: &Pattern) -> (u32, u32) {
        let read = ValueSource::of(predicate, &mut self.fields);
        // The value of a parameter depends on the place, so such regexes have nothing in common.
        let is_home =
            |group: &Patterns| group.read == read && (read != ValueSource::Param || group.patterns[0] == *pattern);
        let index = self.groups.iter().position(is_home).unwrap_or_else(|| {
            let is_ascii = predicate.field.is_ascii();
            self.groups.push(Patterns { read, is_ascii, patterns: Vec::new(), numbers: HashMap::default() });
            self.groups.len() - 1
        });
        let Patterns { patterns, numbers, .. } = &mut self.groups[index];
        let number = *numbers.entry(pattern.clone()).or_insert_with(|| {
            patterns.push(pattern.clone());
            patterns.len() as u32 - 1
        });
        (index as u32, number)
    }
}

/// The literal text that a regex over the path begins with.
fn beginning_of(predicate: &Predicate) -> Option<&[u8]> {
    match &predicate.test {
        Test::Regex(pattern) if predicate.field == Field::Path && !predicate.lower => {
            pattern.anchored_prefix().map(|(prefix, _)| prefix)
        }
        _ => None,
    }
}

/// The key of a regex in its dimension.
pub(super) fn regex_key(number: u32, any: bool) -> [u8; 5] {
    let [a, b, c, d] = number.to_le_bytes();
    [a, b, c, d, u8::from(any)]
}

fn plain(field: Field, test: Test) -> Arc<Predicate> {
    Arc::new(Predicate { field, lower: false, any: false, test, source: PredicateOrigin::default() })
}
