//! The checks that remain for a place: boolean code over predicates that are shared by all places of a layer.
//!
//! An *item* is a number: a predicate, a predicate that must not hold, or a position in the code, where a header (all or
//! any, and how many) is followed by as many items. Equal items and equal code are kept once, so that a condition that
//! thousands of routes have in common is there once, and its answer is remembered for the request.

use super::NONE;
use super::search::Search;
use crate::condition::{ConditionValue, Field, Predicate, Test};
use crate::fields::{FieldSlots, SlotId};
use crate::regex::{RegexGroup, Tail, TailEngine};
use crate::values::segment_count;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use std::sync::Arc;

/// An item; see the file's head.
pub(super) type Item = u32;

pub(super) const NEGATED: Item = 1 << 30;
pub(super) const CODE: Item = 1 << 31;
const INDEX: Item = NEGATED - 1;
/// In a header: any of the items, not all.
pub(super) const ANY: u32 = 1 << 31;

/// The predicates of a layer and the code over them.
#[derive(Debug, Default)]
pub(super) struct Program {
    pub(super) predicates: Vec<PlacedPredicate>,
    pub(super) code: Vec<u32>,
    pub(super) prefixes: Vec<Box<[u8]>>,
    pub(super) tails: Vec<Arc<TailEngine>>,
    /// Numbers by the compiled tail; `None` for a tail that has no small automaton.
    pub(super) tail_numbers: HashMap<Tail, Option<u32>, FixedState>,
    pub(super) groups: Vec<FieldRegexes>,
    /// The number of answers that are remembered.
    pub(super) memos: u32,
}

/// A predicate with the place of its field's values.
#[derive(Debug)]
pub(super) struct PlacedPredicate {
    pub(super) predicate: Arc<Predicate>,
    pub(super) read: ValueSource,
    pub(super) engine: Engine,
    /// The index of its remembered answer; [`NONE`] if evaluating it again costs no more than remembering.
    pub(super) memo: u32,
}

/// The source of a field's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ValueSource {
    /// The slot is for methods that have no name here.
    Method(SlotId),
    Host,
    Path,
    SourceIp,
    SegmentCount,
    /// Looked up, as text.
    Text(SlotId),
    /// Looked up, as a number.
    Int(SlotId),
    /// Looked up, as an address.
    Ip(SlotId),
    /// The value of a parameter of the place's path.
    Param,
}

/// How a predicate is evaluated.
#[derive(Debug, Clone, Copy)]
pub(super) enum Engine {
    /// By its test.
    Test,
    /// The path begins with the regex's literal prefix, and the text behind it matches the rest of the regex, which
    /// other regexes share; or there is no rest ([`NONE`]).
    Tail { prefix: u32, tail: u32 },
    /// As one of a group of regexes that are searched for together.
    Group { group: u32, pattern: u32 },
}

/// The regexes over one field, searched for together.
#[derive(Debug)]
pub(super) struct FieldRegexes {
    pub(super) read: ValueSource,
    pub(super) regexes: RegexGroup,
}

impl ValueSource {
    /// The source of the values of a predicate's field.
    pub(super) fn of(predicate: &Predicate, fields: &mut FieldSlots) -> ValueSource {
        match &predicate.field {
            Field::Variable(crate::Variable::PathParam(_)) => ValueSource::Param,
            field @ Field::Method if !predicate.lower => ValueSource::Method(fields.slot(field, false)),
            // Hosts are in lower case already.
            Field::Host => ValueSource::Host,
            Field::Path if !predicate.lower => ValueSource::Path,
            Field::SourceIp => ValueSource::SourceIp,
            Field::SegmentCount => ValueSource::SegmentCount,
            field @ (Field::SourcePort | Field::DestinationPort) => ValueSource::Int(fields.slot(field, false)),
            field @ Field::DestinationIp => ValueSource::Ip(fields.slot(field, false)),
            field => ValueSource::Text(fields.slot(field, predicate.lower)),
        }
    }
}

impl Program {
    /// Whether an item holds for the request at hand.
    pub(super) fn holds(&self, item: Item, search: &mut Search<'_, '_>, place: &super::RunEntry) -> bool {
        if item & CODE == 0 {
            return self.predicate(item & INDEX, search, place) != (item & NEGATED != 0);
        }
        let at = (item & !CODE) as usize;
        let header = self.code[at];
        let (any, count) = (header & ANY != 0, (header & !ANY) as usize);
        // From the left, as far as needed; nesting is bounded as in the languages.
        for &item in &self.code[at + 1..at + 1 + count] {
            if self.holds(item, search, place) == any {
                return any;
            }
        }
        !any
    }

    #[inline]
    fn predicate(&self, index: u32, search: &mut Search<'_, '_>, place: &super::RunEntry) -> bool {
        let compiled = &self.predicates[index as usize];
        if compiled.memo == NONE {
            return self.evaluate(compiled, search, place);
        }
        if let Some(answer) = search.recall(compiled.memo) {
            return answer;
        }
        let answer = self.evaluate(compiled, search, place);
        search.remember(compiled.memo, answer);
        answer
    }

    fn evaluate(&self, compiled: &PlacedPredicate, search: &mut Search<'_, '_>, place: &super::RunEntry) -> bool {
        let predicate = &*compiled.predicate;
        let test = &predicate.test;
        let request = search.request;
        match (compiled.engine, compiled.read) {
            (Engine::Group { group, pattern }, ValueSource::Param) => {
                search.param_matches(group, pattern, place, predicate)
            }
            (Engine::Group { group, pattern }, _) => search.group_matches(group, pattern, predicate.any),
            (Engine::Tail { prefix, tail }, _) => {
                let (path, prefix) = (request.path.bytes(), &*self.prefixes[prefix as usize]);
                path.starts_with(prefix) && (tail == NONE || self.tails[tail as usize].is_match(path, prefix.len()))
            }
            (Engine::Test, ValueSource::Method(slot)) => match (test, request.method.name()) {
                (Test::Methods(methods), _) => methods.admits(request.method),
                (test, Some(name)) => test.passes(ConditionValue::Text(name.as_bytes())),
                (_, None) => search.texts_pass(slot, predicate),
            },
            (Engine::Test, ValueSource::Host) => {
                !request.host.is_empty() && test.passes(ConditionValue::Text(request.host))
            }
            (Engine::Test, ValueSource::Path) => test.passes(ConditionValue::Text(request.path.bytes())),
            (Engine::Test, ValueSource::SourceIp) => test.passes(ConditionValue::Ip(search.client)),
            (Engine::Test, ValueSource::SegmentCount) => test.passes(ConditionValue::Int(segment_count(request))),
            (Engine::Test, ValueSource::Text(slot)) => search.texts_pass(slot, predicate),
            (Engine::Test, ValueSource::Int(slot) | ValueSource::Ip(slot)) => {
                let kind = predicate.field.kind();
                search.single(slot, |text| ConditionValue::read(kind, text).is_some_and(|value| test.passes(value)))
            }
            (Engine::Test, ValueSource::Param) => search.param_passes(place, predicate),
        }
    }
}

impl PlacedPredicate {
    /// Whether its answer should be remembered if several places need it.
    pub(super) fn is_worth_a_memo(&self) -> bool {
        let is_slow = matches!(
            self.predicate.test,
            Test::Contains(_) | Test::Addresses(_) | Test::HasElement(_) | Test::Number(..) | Test::Regex(_)
        );
        self.read != ValueSource::Param
            && !matches!(self.engine, Engine::Group { .. })
            // The cost of a field that a client may repeat grows with its values.
            && (is_slow || self.predicate.field.is_multiple() || matches!(self.read, ValueSource::Int(_) | ValueSource::Ip(_)))
    }
}

impl Program {
    pub(super) fn shrink_to_fit(&mut self) {
        self.predicates.shrink_to_fit();
        self.code.shrink_to_fit();
        self.prefixes.shrink_to_fit();
        self.tails.shrink_to_fit();
    }

    /// The result of compiling this tail before: the tail, or that it has no small automaton; `None` if it was never
    /// compiled.
    pub(super) fn known_tail(&self, tail: &Tail) -> Option<Option<Arc<TailEngine>>> {
        let number = self.tail_numbers.get(tail)?;
        Some(number.map(|number| self.tails[number as usize].clone()))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let prefixes: usize = self.prefixes.iter().map(|prefix| prefix.len() + size_of::<Box<[u8]>>()).sum();
        let tails: usize = self.tails.iter().map(|tail| tail.memory_bytes() + size_of::<Arc<TailEngine>>()).sum();
        let texts: usize = self.tail_numbers.keys().map(Tail::bytes).sum();
        let tails = tails + texts + self.tail_numbers.allocation_size();
        let groups: usize = self.groups.iter().map(|group| group.regexes.memory_bytes()).sum();
        self.predicates.capacity() * size_of::<PlacedPredicate>() + self.code.capacity() * 4 + prefixes + tails + groups
    }
}
