//! Many regexes over the same values, all answered by one pass over each value.
//!
//! The patterns become one automaton whose states list the matching patterns. A small automaton is built whole, and
//! does not change while it is used. The states of a larger one are built when a search first reaches them, in a cache
//! that belongs to one worker ([`RegexMemory`]) and is emptied when it is full. Patterns that begin with `^` have an
//! automaton of their own, which mostly ends after a few bytes, and so have patterns with Unicode word boundaries,
//! which gives up on values that are not ASCII; the patterns are then matched one by one.

use super::parsed_form::reduce;
use super::share::share_prefixes;
use super::work::{CacheGrowth, FREE_BYTES, RegexWork};
use super::{Pattern, RegexMemory};
use regex_automata::dfa::{Automaton as _, StartKind, dense};
use regex_automata::hybrid::LazyStateID;
use regex_automata::nfa::thompson::{Compiler, Config, NFA, WhichCaptures};
use regex_automata::{Input, MatchKind, hybrid};
use regex_syntax::hir::{Class, Hir, HirKind, Look};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bounds of the automata of a group, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct AutomatonBounds {
    /// The NFA from which states are built; a larger group is split.
    pub(super) nfa_bytes_max: usize,
    /// The largest NFA for which building the whole automaton is tried.
    pub(super) table_nfa_bytes_max: usize,
    /// A whole automaton.
    pub(super) table_bytes_max: usize,
    /// The states that one worker builds for a group. If the group was split, the parts share it, but a part may get up
    /// to the whole if a search needs that much.
    pub(super) cache_bytes_max: usize,
    /// The states of one part whose patterns linger, at most, and of all such parts together.
    pub(super) lingering_cache_bytes: usize,
    pub(super) lingering_caches_bytes: usize,
}

pub(super) const BOUNDS: AutomatonBounds = AutomatonBounds {
    nfa_bytes_max: 16 << 20,
    table_nfa_bytes_max: 48 << 10,
    table_bytes_max: 256 << 10,
    cache_bytes_max: 8 << 20,
    lingering_cache_bytes: 512 << 10,
    lingering_caches_bytes: 64 << 20,
};

/// Most lingering patterns in one automaton, fewer where they linger more. A larger number needs fewer automata, and
/// more states for each subset.
pub(super) const LINGERING_MAX: usize = 32;

/// A cache has room for this many times the minimum of one search.
const CACHE_SLACK: usize = 2;

/// Compiled patterns.
#[derive(Debug)]
pub(crate) struct RegexGroup {
    /// Distinguishes groups, so that a worker's memory is never used with another group.
    id: u64,
    patterns: usize,
    parts: Box<[GroupPart]>,
}

/// Some patterns of a group, with one automaton.
#[derive(Debug)]
struct GroupPart {
    automaton: Automaton,
    /// Numbers of its patterns in the group.
    patterns: Box<[u32]>,
    /// The patterns themselves, if the automaton may give up.
    alone: Box<[Pattern]>,
}

#[derive(Debug)]
enum Automaton {
    /// Holds every answer.
    Table(dense::DFA<Vec<u32>>),
    /// Is built while it is used.
    Lazy(hybrid::dfa::DFA),
    /// Would be too large.
    None,
}

/// The automaton did not answer, or there is none.
struct NoAnswer;

/// Lingering patterns that share an automaton.
#[derive(Default)]
struct LingeringBatch {
    weight: usize,
    hirs: Vec<(u32, Hir)>,
}

impl LingeringBatch {
    /// Adds a pattern to the last automaton, or begins another.
    fn add(all: &mut Vec<LingeringBatch>, weight: usize, hir: (u32, Hir)) {
        match all.last_mut() {
            Some(few) if few.weight + weight <= LINGERING_MAX => {
                few.weight += weight;
                few.hirs.push(hir);
            }
            _ => all.push(LingeringBatch { weight, hirs: vec![hir] }),
        }
    }
}

impl RegexGroup {
    /// `ascii`: all values will be ASCII.
    pub(crate) fn compile(patterns: &[Pattern], ascii: bool) -> RegexGroup {
        RegexGroup::compile_within(BOUNDS, patterns, ascii)
    }

    pub(super) fn compile_within(bounds: AutomatonBounds, patterns: &[Pattern], ascii: bool) -> RegexGroup {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let mut kinds: [Vec<(u32, Hir)>; 4] = Default::default();
        let mut lingering: [Vec<LingeringBatch>; 4] = Default::default();
        for (index, pattern) in (0u32..).zip(patterns) {
            let hir = reduce(pattern.hir(), ascii);
            let gives_up = hir.properties().look_set().contains_word_unicode();
            let anchored = hir.properties().look_set_prefix().contains(Look::Start);
            let kind = usize::from(gives_up) * 2 + usize::from(anchored);
            match weight(&hir) {
                0 => kinds[kind].push((index, hir)),
                weight => LingeringBatch::add(&mut lingering[kind], weight, (index, hir)),
            }
        }
        let mut pieces = Vec::new();
        kinds.iter().filter(|kind| !kind.is_empty()).for_each(|kind| build(bounds, kind, &mut pieces));
        let first_lingering = pieces.len();
        lingering.iter().flatten().for_each(|few| build(bounds, &few.hirs, &mut pieces));
        let share = bounds.lingering_caches_bytes / (pieces.len() - first_lingering).max(1);
        // There may be many of these, and each would take long to turn out too large.
        let cache_bytes_max = share.min(bounds.lingering_cache_bytes).min(bounds.cache_bytes_max);
        let lazy = AutomatonBounds { table_nfa_bytes_max: 0, cache_bytes_max, ..bounds };
        let bounds = AutomatonBounds { cache_bytes_max: bounds.cache_bytes_max / first_lingering.max(1), ..bounds };
        let parts = pieces.into_iter().enumerate().map(|(index, (nfa, indices))| {
            GroupPart::new(if index < first_lingering { bounds } else { lazy }, nfa, indices, patterns)
        });
        let parts = parts.collect();
        RegexGroup { id: NEXT_ID.fetch_add(1, Ordering::Relaxed), patterns: patterns.len(), parts }
    }

    /// Searches each value for all patterns; afterwards `memory` holds the result for each pattern, unless `work` is exhausted.
    pub(crate) fn search<'v>(
        &self,
        values: impl Iterator<Item = &'v [u8]>,
        memory: &mut RegexMemory,
        work: &RegexWork,
    ) {
        // A search that panicked has left no caches.
        if memory.group != self.id || memory.caches.len() != self.parts.len() {
            let caches = self.parts.iter().map(|part| match &part.automaton {
                Automaton::Lazy(dfa) => Some(dfa.create_cache()),
                Automaton::Table(_) | Automaton::None => None,
            });
            memory.adopt(self.id, caches.collect(), self.patterns);
        }
        memory.begin();
        // Borrowed apart from the rest of the memory; an empty vector needs none.
        let mut caches = std::mem::take(&mut memory.caches);
        let mut free_bytes = FREE_BYTES;
        for value in values {
            memory.next_value();
            for (part, cache) in self.parts.iter().zip(&mut caches) {
                part.search((value, free_bytes), cache.as_mut(), memory, work);
            }
            if work.is_exhausted() {
                break;
            }
            // They are those of one text, however it is divided into values.
            free_bytes = free_bytes.saturating_sub(value.len());
        }
        memory.caches = caches;
    }

    /// Heap memory, in bytes, without that of the patterns and of workers.
    pub(crate) fn memory_bytes(&self) -> usize {
        let part = |part: &GroupPart| {
            let automaton = match &part.automaton {
                Automaton::Table(dfa) => dfa.memory_usage(),
                Automaton::Lazy(dfa) => dfa.memory_usage() + dfa.get_nfa().memory_usage(),
                Automaton::None => 0,
            };
            size_of::<GroupPart>() + automaton + size_of_val(&*part.patterns) + size_of_val(&*part.alone)
        };
        self.parts.iter().map(part).sum()
    }
}

/// Builds the NFAs for the automata, in as few pieces as the bounds allow; `None` where one pattern exceeds them.
fn build(bounds: AutomatonBounds, hirs: &[(u32, Hir)], pieces: &mut Vec<(Option<NFA>, Box<[u32]>)>) {
    let bytes_max = bounds.nfa_bytes_max;
    let nfa = Config::new().utf8(false).which_captures(WhichCaptures::None).nfa_size_limit(Some(bytes_max));
    let nfa = Compiler::new().configure(nfa).build_many_from_hir(&hirs.iter().map(|(_, hir)| hir).collect::<Vec<_>>());
    let fits = |nfa: &NFA| {
        let least = lazy_config().get_minimum_cache_capacity(nfa);
        least.is_ok_and(|bytes| bytes.saturating_mul(CACHE_SLACK) <= bounds.cache_bytes_max)
    };
    // Both forms exist while the beginnings are merged.
    let nfa = nfa.ok().map(|nfa| share_prefixes(&nfa, 2 * bytes_max).unwrap_or(nfa)).filter(fits);
    if nfa.is_none() && hirs.len() > 1 {
        let (left, right) = hirs.split_at(hirs.len() / 2);
        build(bounds, left, pieces);
        build(bounds, right, pieces);
    } else {
        pieces.push((nfa, hirs.iter().map(|(index, _)| *index).collect()));
    }
}

fn lazy_config() -> hybrid::dfa::Config {
    hybrid::dfa::Config::new().match_kind(MatchKind::All).unicode_word_boundary(true)
}

impl GroupPart {
    fn new(bounds: AutomatonBounds, nfa: Option<NFA>, indices: Box<[u32]>, patterns: &[Pattern]) -> GroupPart {
        let gives_up = nfa.as_ref().is_some_and(|nfa| nfa.look_set_any().contains_word_unicode());
        let automaton = nfa.map_or(Automaton::None, |nfa| Automaton::new(bounds, nfa));
        let alone: Box<[Pattern]> = match gives_up || matches!(automaton, Automaton::None) {
            true => indices.iter().map(|index| patterns[*index as usize].clone()).collect(),
            false => Box::default(),
        };
        // Compiled now, not by the first request.
        for pattern in &alone {
            pattern.regex();
            pattern.states();
        }
        GroupPart { automaton, patterns: indices, alone }
    }

    fn search(
        &self,
        (value, free_bytes): (&[u8], usize),
        cache: Option<&mut hybrid::dfa::Cache>,
        memory: &mut RegexMemory,
        work: &RegexWork,
    ) {
        let mut missing = self.patterns.len();
        let mut hit = |pattern: usize| {
            missing -= usize::from(memory.hit(self.patterns[pattern]));
            missing > 0
        };
        let answered = match (&self.automaton, cache) {
            (Automaton::Table(dfa), _) => search_table(dfa, value, &mut hit),
            (Automaton::Lazy(dfa), Some(cache)) => search_lazy(dfa, cache, (value, free_bytes), work, &mut hit),
            (Automaton::Lazy(_), None) | (Automaton::None, _) => Err(NoAnswer),
        };
        if let Err(NoAnswer) = answered {
            for (index, pattern) in self.patterns.iter().zip(&self.alone) {
                if !work.pay_for_search(value.len(), pattern.states()) {
                    return;
                }
                if pattern.is_match(value) {
                    memory.hit(*index);
                }
            }
        }
    }
}

impl Automaton {
    fn new(bounds: AutomatonBounds, nfa: NFA) -> Automaton {
        if nfa.memory_usage() <= bounds.table_nfa_bytes_max {
            let config = dense::Config::new()
                .start_kind(StartKind::Unanchored)
                .match_kind(MatchKind::All)
                .accelerate(false)
                .unicode_word_boundary(true)
                .dfa_size_limit(Some(bounds.table_bytes_max))
                .determinize_size_limit(Some(bounds.table_bytes_max));
            if let Ok(dfa) = dense::Builder::new().configure(config).build_from_nfa(&nfa) {
                return Automaton::Table(dfa);
            }
        }
        let least = lazy_config().get_minimum_cache_capacity(&nfa).unwrap_or(0);
        let config = lazy_config().cache_capacity(bounds.cache_bytes_max.max(least.saturating_mul(CACHE_SLACK)));
        hybrid::dfa::Builder::new().configure(config).build_from_nfa(nfa).map_or(Automaton::None, Automaton::Lazy)
    }
}

/// Calls `hit` with every pattern that matches, until it returns `false`.
fn search_table(dfa: &dense::DFA<Vec<u32>>, value: &[u8], hit: &mut impl FnMut(usize) -> bool) -> Result<(), NoAnswer> {
    let mut state = dfa.start_state_forward(&Input::new(value)).map_err(|_| NoAnswer)?;
    for byte in value {
        state = dfa.next_state(state, *byte);
        if dfa.is_special_state(state) {
            if dfa.is_match_state(state) {
                if !(0..dfa.match_len(state)).all(|index| hit(dfa.match_pattern(state, index).as_usize())) {
                    return Ok(());
                }
            } else if dfa.is_dead_state(state) {
                return Ok(());
            } else if dfa.is_quit_state(state) {
                return Err(NoAnswer);
            }
        }
    }
    // A match is reported one byte late, so the end is a step of its own.
    state = dfa.next_eoi_state(state);
    if dfa.is_match_state(state) {
        let _wants_more = (0..dfa.match_len(state)).all(|index| hit(dfa.match_pattern(state, index).as_usize()));
    }
    Ok(())
}

/// Like [`search_table`], with an automaton that grows. It stops where `work` is exhausted.
fn search_lazy(
    dfa: &hybrid::dfa::DFA,
    cache: &mut hybrid::dfa::Cache,
    (value, free_bytes): (&[u8], usize),
    work: &RegexWork,
    hit: &mut impl FnMut(usize) -> bool,
) -> Result<(), NoAnswer> {
    let mut state = dfa.start_state_forward(cache, &Input::new(value)).map_err(|_| NoAnswer)?;
    let (free, counted) = value.split_at(value.len().min(free_bytes));
    for byte in free {
        state = dfa.next_state(cache, state, *byte).map_err(|_| NoAnswer)?;
        if state.is_tagged()
            && let Some(end) = at_tagged(dfa, cache, state, hit)
        {
            return end;
        }
    }
    if !counted.is_empty() {
        match search_counted(dfa, cache, state, counted, work, hit) {
            Ok(Some(last)) => state = last,
            Ok(None) => return Ok(()),
            Err(NoAnswer) => return Err(NoAnswer),
        }
    }
    state = dfa.next_eoi_state(cache, state).map_err(|_| NoAnswer)?;
    if state.is_match() {
        let mut matches = 0..dfa.match_len(cache, state);
        let _wants_more = matches.all(|index| hit(dfa.match_pattern(cache, state, index).as_usize()));
    }
    Ok(())
}

/// How many bytes are searched until what they have built is counted.
const COUNTED_BYTES: usize = 64;

/// The rest of [`search_lazy`] in a long value: the last state, or `None` where the search has ended.
#[cold]
#[inline(never)]
fn search_counted(
    dfa: &hybrid::dfa::DFA,
    cache: &mut hybrid::dfa::Cache,
    mut state: LazyStateID,
    value: &[u8],
    work: &RegexWork,
    hit: &mut impl FnMut(usize) -> bool,
) -> Result<Option<LazyStateID>, NoAnswer> {
    let mut growth = CacheGrowth::of(cache);
    for piece in value.chunks(COUNTED_BYTES) {
        for byte in piece {
            state = dfa.next_state(cache, state, *byte).map_err(|_| NoAnswer)?;
            if state.is_tagged()
                && let Some(end) = at_tagged(dfa, cache, state, hit)
            {
                return end.map(|()| None);
            }
        }
        if !work.pay_for_growth(cache, dfa.get_config().get_cache_capacity(), &mut growth) {
            return Ok(None);
        }
    }
    Ok(Some(state))
}

/// Looks at a state that is more than one on the way; `Some`: the search has ended.
#[inline(always)]
fn at_tagged(
    dfa: &hybrid::dfa::DFA,
    cache: &hybrid::dfa::Cache,
    state: LazyStateID,
    hit: &mut impl FnMut(usize) -> bool,
) -> Option<Result<(), NoAnswer>> {
    if state.is_match() {
        let mut matches = 0..dfa.match_len(cache, state);
        return (!matches.all(|index| hit(dfa.match_pattern(cache, state, index).as_usize()))).then_some(Ok(()));
    }
    match state.is_dead() {
        true => Some(Ok(())),
        false => state.is_quit().then_some(Err(NoAnswer)),
    }
}

// Finds regexes that stay undecided until a value ends.
//
// `/a.*b` is active from its `/a` on until the value ends. If one automaton has many such regexes, any subset may be
// active at a time, and each subset is a state of its own: a long value that was never sent before makes new states
// all the way. A counted repetition as `[a-z]{1,200}` does that alone, since it may have begun anywhere. So such
// regexes are put into automata of few, where the number of states stays small.

/// Shorter counted repetitions end soon.
const REPEATS_MIN: u32 = 16;
/// A class of fewer ASCII characters, or without the slash that ends a segment, stops matching at one of the next
/// bytes.
const CLASS_MIN: usize = 64;

/// How much a regex lingers: 0 where it does not, else its share of [`LINGERING_MAX`].
pub(super) fn weight(hir: &Hir) -> usize {
    let counted = counts(hir) / REPEATS_MIN;
    usize::from(waits(hir, false, false)).max(counted as usize)
}

/// The number of positions that a regex counts at once.
fn counts(hir: &Hir) -> u32 {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) | HirKind::Literal(_) | HirKind::Class(_) => 0,
        HirKind::Capture(capture) => counts(&capture.sub),
        HirKind::Concat(subs) | HirKind::Alternation(subs) => {
            subs.iter().fold(0, |sum, sub| sum.saturating_add(counts(sub)))
        }
        HirKind::Repetition(repetition) => match repetition.max.unwrap_or(repetition.min) {
            0 | 1 => counts(&repetition.sub),
            times => times.saturating_mul(counts(&repetition.sub).max(1)),
        },
    }
}

/// Whether a regex, once it has begun to match, may wait for its next part until the value ends.
///
/// `is_begun`: something was matched before. `is_continued`: something must match behind.
fn waits(hir: &Hir, is_begun: bool, is_continued: bool) -> bool {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) | HirKind::Literal(_) | HirKind::Class(_) => false,
        HirKind::Capture(capture) => waits(&capture.sub, is_begun, is_continued),
        HirKind::Alternation(subs) => subs.iter().any(|sub| waits(sub, is_begun, is_continued)),
        HirKind::Repetition(repetition) => {
            let is_long = repetition.max.is_none_or(|max| max >= REPEATS_MIN);
            let is_repeated = repetition.max != Some(1);
            is_begun && is_continued && is_long && is_wide(&repetition.sub)
                // Its second round has begun, and all but the last are continued.
                || waits(&repetition.sub, is_begun || is_repeated, is_continued || is_repeated)
        }
        HirKind::Concat(subs) => {
            let consumes = |sub: &Hir| sub.properties().maximum_len() != Some(0);
            // A leading part that matches anything does not count: a match may begin anywhere anyway.
            let begins = |sub: &Hir| consumes(sub) && !is_any_rest(sub);
            subs.iter().enumerate().any(|(index, sub)| {
                let begun = is_begun || subs[..index].iter().any(begins);
                let continued = is_continued || subs[index + 1..].iter().any(consumes);
                waits(sub, begun, continued)
            })
        }
    }
}

fn is_any_rest(hir: &Hir) -> bool {
    matches!(hir.kind(), HirKind::Repetition(repetition) if repetition.max.is_none() && is_wide(&repetition.sub))
}

fn is_wide(hir: &Hir) -> bool {
    let HirKind::Class(class) = hir.kind() else { return false };
    let ranges: Vec<(u32, u32)> = match class {
        Class::Unicode(class) => class.iter().map(|range| (range.start().into(), range.end().into())).collect(),
        Class::Bytes(class) => class.iter().map(|range| (range.start().into(), range.end().into())).collect(),
    };
    let count: u32 =
        ranges.iter().filter(|(start, _)| *start < 128).map(|(start, end)| end.min(&127) - start + 1).sum();
    count as usize >= CLASS_MIN && ranges.iter().any(|(start, end)| (*start..=*end).contains(&u32::from(b'/')))
}

#[cfg(test)]
mod tests {
    use super::super::Pattern;
    use super::weight;

    #[test]
    fn what_waits_for_its_next_part() {
        let check = |pattern: &str, expected: bool| {
            assert_eq!(weight(&Pattern::unicode(pattern).unwrap().hir()) > 0, expected, "{pattern}");
        };
        check("/a.*b", true);
        check("^/a.*b$", true);
        check("(.*a){3}b", true);
        check("a.{20,49}b", true);
        check("[a-z]+/.*x", true);
        check(r"^/(v1|v2)/\S+-x", true);
        check("/a.*", false);
        check("^.*/a$", false);
        check(".*a", false);
        check("/item-[0-9]+-7$", false);
        check("^/users/[^/]+/orders/[0-9]+$", false);
        check("/a.{3}b", false);
        check("[a-z0-9-]{1,200}/p7$", true);
        check("(a{7}|b){900}x", true);
        check("[0-9]{4}-[0-9]{2}-[0-9]{2}", false);
        check(r"\.(png|jpe?g)$", false);
    }
}
