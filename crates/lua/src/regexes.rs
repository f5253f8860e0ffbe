//! `ngx.re` on the engines of `regex-automata`: linear in time whatever the pattern. Compared with PCRE it lacks
//! look-around, back-references and atomic groups; a pattern that needs one fails with an error that says so.
//!
//! ```text
//!  where is it?  lazy DFA ── its states outgrow their memory ──▶ NFA, if the steps are few enough ──▶ an error
//!  its groups?   one-pass DFA, or backtracking where that is small ──▶ NFA, if the steps are few enough ──▶ an error
//! ```
//!
//! A search cannot be interrupted, and linear is not fast: megabytes times thousands of states take minutes. So each
//! engine is limited to what it does in some milliseconds. The crate `regex` chooses among the same engines, and
//! continues with the slowest without a limit.
//!
//! Patterns may come from clients, so compiling one is limited to some milliseconds, too, and what is kept of all patterns
//! of a worker has a bound in bytes. A pattern owns its NFAs and its lazy DFAs; the engines that only few searches need
//! share their memory ([`Scratch`]).

use crate::pattern::Span;
use crate::regex_classes::{self, CODE_POINTS_MAX};
use regex_automata::hybrid::{dfa as lazy_dfa, regex as lazy};
use regex_automata::nfa::thompson::backtrack::{self, BoundedBacktracker};
use regex_automata::nfa::thompson::pikevm::{self, PikeVM};
use regex_automata::nfa::thompson::{BuildError, Compiler, NFA, WhichCaptures};
use regex_automata::util::prefilter::Prefilter;
use regex_automata::util::primitives::NonMaxUsize;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input, MatchKind, PatternID, dfa::onepass};
use regex_syntax::hir::Hir;
use std::collections::HashMap;
use std::mem::{replace, size_of};
use stillgate_pcre::{Options, translate};

/// Memory limit of all compiled patterns that a worker keeps. Beyond it, the least recently used ones are dropped.
const KEPT_BYTES_MAX: usize = 8 << 20;
/// Most compiled patterns that a worker keeps, which bounds the search for those to drop.
const KEPT_MAX: usize = 512;
/// Longest pattern: parsing it takes up to 4 ms.
const PATTERN_BYTES_MAX: usize = 8 << 10;
/// Most groups of a pattern.
const GROUPS_MAX: usize = 100;
/// Memory limit of each of a pattern's two programs, forward and backward: up to 4 ms each to compile.
const PROGRAM_BYTES_MAX: usize = 512 << 10;
/// Memory limit of a program's lazily built states.
const STATES_BYTES_MAX: usize = 1 << 20;
/// Memory limit of a one-pass DFA.
const ONE_PASS_BYTES_MAX: usize = 256 << 10;
/// Longest text that is searched: about 10 ms.
const TEXT_BYTES_MAX: usize = 8 << 20;
/// Most program states times text bytes that the NFA processes: about 20 ms.
const STEPS_MAX: usize = 4_000_000;
/// A step copies the slots of a state; copying this many takes as long as the rest of the step.
const SLOTS_OF_A_STEP: usize = 128;
/// Most program states times slots that the NFA keeps, twice: 2 MiB.
const CELLS_MAX: usize = 1 << 17;
/// Most program states times text bytes after which the backtracker's memory is kept: less than 1 MiB.
const KEPT_VISITS_MAX: usize = 1 << 14;

// The pattern in use always fits.
const _: () = assert!(2 * (PROGRAM_BYTES_MAX + STATES_BYTES_MAX) + ONE_PASS_BYTES_MAX < KEPT_BYTES_MAX / 2);

/// The options of `ngx.re` that change the meaning of a pattern, as bits.
pub(crate) const CASELESS: u32 = 1;
pub(crate) const MULTILINE: u32 = 2;
pub(crate) const DOTALL: u32 = 4;
pub(crate) const EXTENDED: u32 = 8;
pub(crate) const UNICODE: u32 = 16;
pub(crate) const ANCHORED: u32 = 32;

/// The patterns of one worker.
#[derive(Default)]
pub(crate) struct Regexes {
    /// By options, then by text.
    kept: Vec<HashMap<Box<[u8]>, Box<CompiledPattern>>>,
    count: usize,
    /// Sum of [`CompiledPattern::bytes`].
    bytes: usize,
    /// Number of uses so far.
    uses: u64,
    scratch: Scratch,
}

/// A pattern's engines.
struct CompiledPattern {
    nfa: NFA,
    lazy: (lazy::Regex, lazy::Cache),
    /// Whether the cache of the lazy DFA is empty, so that a retry would be pointless.
    is_fresh: bool,
    one_pass: OnePass,
    backtracker: BoundedBacktracker,
    pike: PikeVM,
    /// Start and end of each group.
    slots: Vec<Option<NonMaxUsize>>,
    /// Memory of everything but the lazy DFA's cache.
    fixed_bytes: usize,
    /// Memory of everything, as of the last use.
    bytes: usize,
    /// [`Regexes::uses`] at the last use.
    used: u64,
}

/// The engine for the groups of patterns that never have two ways to continue.
enum OnePass {
    /// No groups were requested yet.
    Unbuilt,
    /// The pattern is not one-pass, as most.
    Impossible,
    Built(Box<(onepass::DFA, onepass::Cache)>),
}

/// Memory of the engines that are seldom needed, shared by all patterns of a worker.
#[derive(Default)]
struct Scratch {
    /// Absent after a search that needed much.
    backtracker: Option<backtrack::Cache>,
    /// At most [`CELLS_MAX`].
    pike: Option<pikevm::Cache>,
}

/// The requested details of a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MatchDetail {
    /// The groups, too.
    Groups,
    /// Only its position.
    Whole,
}

impl Regexes {
    /// Finds a pattern from a position on; the first span is the whole match, and groups follow. A group without a
    /// match is `None`.
    pub(crate) fn find(
        &mut self,
        text: &[u8],
        pattern: &[u8],
        (options, wanted): (u32, MatchDetail),
        from: usize,
        spans: &mut Vec<Option<Span>>,
    ) -> Result<bool, String> {
        spans.clear();
        let (kept, scratch) = self.cached_pattern(pattern, options)?;
        if from > text.len() {
            return Ok(false);
        }
        if text.len() - from > TEXT_BYTES_MAX {
            return Err(format!("a text of more than {TEXT_BYTES_MAX} bytes cannot be searched"));
        }
        let anchored = if options & ANCHORED != 0 { Anchored::Yes } else { Anchored::No };
        let is_there = kept.find(scratch, &Input::new(text).range(from..).anchored(anchored), wanted);
        if is_there == Ok(true) {
            let count = if wanted == MatchDetail::Whole { 2 } else { kept.slots.len() };
            let place = |slot: &Option<NonMaxUsize>| slot.map(NonMaxUsize::get);
            spans.extend(
                kept.slots[..count].chunks_exact(2).map(|pair| Some((place(&pair[0])?, Some(place(&pair[1])?)))),
            );
        }
        // The search may have added states.
        let bytes = kept.memory_bytes();
        let before = replace(&mut kept.bytes, bytes);
        self.bytes = self.bytes + bytes - before;
        if self.bytes > KEPT_BYTES_MAX {
            self.drop_unused();
        }
        is_there
    }

    /// The names of a pattern's groups, each as `NUMBER NAME` and a line end.
    pub(crate) fn names(&mut self, pattern: &[u8], options: u32, out: &mut Vec<u8>) -> Result<(), String> {
        let (CompiledPattern { nfa, .. }, _) = self.cached_pattern(pattern, options)?;
        for (at, name) in nfa.group_info().pattern_names(PatternID::ZERO).enumerate() {
            if let Some(name) = name {
                out.extend_from_slice(format!("{at} {name}\n").as_bytes());
            }
        }
        Ok(())
    }

    fn cached_pattern(&mut self, pattern: &[u8], options: u32) -> Result<(&mut CompiledPattern, &mut Scratch), String> {
        let at = options as usize;
        if !self.kept.get(at).is_some_and(|kept| kept.contains_key(pattern)) {
            self.keep(pattern, at, compile(pattern, options)?);
        }
        let kept = self.kept[at].get_mut(pattern).expect("kept above");
        self.uses += 1;
        kept.used = self.uses;
        Ok((kept, &mut self.scratch))
    }

    #[cold]
    fn keep(&mut self, pattern: &[u8], at: usize, mut compiled: CompiledPattern) {
        // With the entries of the map, whose table is up to twice as large as they are.
        compiled.fixed_bytes += pattern.len() + 2 * size_of::<(Box<[u8]>, Box<CompiledPattern>)>();
        compiled.bytes = compiled.memory_bytes();
        self.count += 1;
        self.bytes += compiled.bytes;
        // Before it is inserted, so that it stays.
        if self.bytes > KEPT_BYTES_MAX || self.count > KEPT_MAX {
            self.drop_unused();
        }
        if self.kept.len() <= at {
            self.kept.resize_with(at + 1, HashMap::default);
        }
        self.kept[at].insert(pattern.into(), Box::new(compiled));
    }

    /// Drops the least recently used patterns until the others take at most three quarters of the bounds. Sorting all of
    /// them takes time, so it should not happen for each new pattern.
    #[cold]
    fn drop_unused(&mut self) {
        let mut uses: Vec<_> = self.kept.iter().flat_map(HashMap::values).map(|kept| (kept.used, kept.bytes)).collect();
        uses.sort_unstable();
        let last_dropped = uses.iter().map_while(|(used, bytes)| {
            // The last used one is in use.
            let is_too_much = self.bytes > KEPT_BYTES_MAX / 4 * 3 || self.count > KEPT_MAX / 4 * 3;
            (is_too_much && *used < self.uses).then(|| {
                self.bytes -= bytes;
                self.count -= 1;
                *used
            })
        });
        if let Some(last_dropped) = last_dropped.last() {
            for kept in &mut self.kept {
                kept.retain(|_, kept| kept.used > last_dropped);
            }
        }
    }
}

impl CompiledPattern {
    /// Leaves the requested spans in the slots.
    fn find(&mut self, scratch: &mut Scratch, input: &Input<'_>, wanted: MatchDetail) -> Result<bool, String> {
        let (lazy, cache) = &mut self.lazy;
        let mut found = lazy.try_search(cache, input);
        // A new cache instead of a reset one, which would keep its memory without counting it.
        if found.is_err() && !replace(&mut self.is_fresh, false) {
            // The cache may be full of states for other texts.
            *cache = lazy.create_cache();
            found = lazy.try_search(cache, input);
        }
        let Ok(found) = found else {
            *cache = lazy.create_cache();
            self.is_fresh = true;
            return self.by_steps(scratch, input, wanted);
        };
        self.is_fresh = false;
        let Some(found) = found else { return Ok(false) };
        if wanted == MatchDetail::Groups && self.slots.len() > 2 {
            return self.groups(scratch, &input.clone().span(found.span()).anchored(Anchored::Yes));
        }
        self.slots[0] = NonMaxUsize::new(found.start());
        self.slots[1] = NonMaxUsize::new(found.end());
        Ok(true)
    }

    /// The groups of a match that is all of the input.
    fn groups(&mut self, scratch: &mut Scratch, input: &Input<'_>) -> Result<bool, String> {
        if matches!(self.one_pass, OnePass::Unbuilt) {
            self.build_one_pass();
        }
        if let OnePass::Built(engine) = &mut self.one_pass
            && let (dfa, cache) = &mut **engine
            && let Ok(found) = dfa.try_search_slots(cache, input, &mut self.slots)
        {
            return Ok(found.is_some());
        }
        let cache = scratch.backtracker.get_or_insert_with(|| self.backtracker.create_cache());
        cache.reset(&self.backtracker);
        let found = self.backtracker.try_search_slots(cache, input, &mut self.slots);
        if self.nfa.states().len().saturating_mul(input.get_span().len()) > KEPT_VISITS_MAX {
            scratch.backtracker = None;
        }
        match found {
            Ok(found) => Ok(found.is_some()),
            // It is too long for that.
            Err(_) => self.by_steps(scratch, input, MatchDetail::Groups),
        }
    }

    #[cold]
    fn build_one_pass(&mut self) {
        let config = onepass::Config::new().size_limit(Some(ONE_PASS_BYTES_MAX));
        self.one_pass = match onepass::DFA::builder().configure(config).build_from_nfa(self.nfa.clone()) {
            Ok(dfa) => {
                let cache = dfa.create_cache();
                self.fixed_bytes += size_of::<(onepass::DFA, onepass::Cache)>();
                self.fixed_bytes += dfa.memory_usage() + cache.memory_usage();
                OnePass::Built(Box::new((dfa, cache)))
            }
            Err(_) => OnePass::Impossible,
        };
    }

    fn by_steps(&mut self, scratch: &mut Scratch, input: &Input<'_>, wanted: MatchDetail) -> Result<bool, String> {
        let (states, bytes) = (self.nfa.states().len(), input.get_span().len());
        // Memory is for all slots, even if not all are requested.
        let has_room = states.saturating_mul(self.slots.len()) <= CELLS_MAX;
        let slots = if wanted == MatchDetail::Whole { &mut self.slots[..2] } else { &mut self.slots[..] };
        let steps = states.saturating_mul(bytes);
        if !has_room || steps.saturating_add(steps / SLOTS_OF_A_STEP * slots.len()) > STEPS_MAX {
            return Err(format!(
                "the pattern is too complex for {bytes} bytes: it takes more steps than a function may use; \
                 search a shorter text, or write it with less repetitions or groups"
            ));
        }
        let cache = scratch.pike.get_or_insert_with(|| self.pike.create_cache());
        cache.reset(&self.pike);
        Ok(self.pike.search_slots(cache, input, slots).is_some())
    }

    fn memory_bytes(&self) -> usize {
        self.fixed_bytes + self.lazy.1.memory_usage()
    }
}

/// Features of PCRE that these engines lack. `ngx.re` raises an error for them: "no match" would switch a guard off.
const UNBUILT: [&str; 16] =
    ["(?=", "(?!", "(?<=", "(?<!", "(?>", "\\1", "\\2", "\\3", "\\4", "\\5", "\\6", "\\7", "\\8", "\\9", "\\k", "\\g"];

fn compile(pattern: &[u8], options: u32) -> Result<CompiledPattern, String> {
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err(format!(
            "a pattern of more than {PATTERN_BYTES_MAX} bytes cannot be compiled; use several patterns"
        ));
    }
    let text =
        std::str::from_utf8(pattern).map_err(|_| "a pattern has to be UTF-8; write bytes as \\xHH".to_owned())?;
    build(text, options).map_err(|reason| {
        format!("the pattern {text:?} cannot be compiled: {}", reason.lines().last().unwrap_or_default())
    })
}

fn build(text: &str, options: u32) -> Result<CompiledPattern, String> {
    let hir = parse(text, options)?;
    if hir.properties().explicit_captures_len() > GROUPS_MAX {
        return Err(format!("it has more than {GROUPS_MAX} groups; write (?:…) for those that nothing reads"));
    }
    let (forward, backward) = (program(&hir, false)?, program(&hir, true)?);
    // It gives up when its states no longer fit: building them, not the search, is what takes its time.
    let config = lazy_dfa::Config::new()
        .unicode_word_boundary(true)
        .cache_capacity(STATES_BYTES_MAX)
        .skip_cache_capacity_check(true)
        .minimum_cache_clear_count(Some(0));
    let dfa = |config: lazy_dfa::Config, nfa: &NFA| {
        let built = lazy_dfa::DFA::builder().configure(config).build_from_nfa(nfa.clone());
        built.map_err(|error| error.to_string())
    };
    let prefilter = Prefilter::from_hir_prefix(MatchKind::LeftmostFirst, &hir);
    let slots = vec![None; forward.group_info().slot_len()];
    let fixed_bytes = size_of::<CompiledPattern>()
        + forward.memory_usage()
        + backward.memory_usage()
        + prefilter.as_ref().map_or(0, Prefilter::memory_usage)
        + size_of_val(&*slots);
    let lazy = lazy::Regex::builder().build_from_dfas(
        dfa(config.clone().prefilter(prefilter), &forward)?,
        dfa(config.match_kind(MatchKind::All), &backward)?,
    );
    let built = |error: BuildError| error.to_string();
    let cache = lazy.create_cache();
    Ok(CompiledPattern {
        lazy: (lazy, cache),
        is_fresh: true,
        one_pass: OnePass::Unbuilt,
        backtracker: BoundedBacktracker::builder().build_from_nfa(forward.clone()).map_err(built)?,
        pike: PikeVM::builder().build_from_nfa(forward.clone()).map_err(built)?,
        nfa: forward,
        slots,
        fixed_bytes,
        bytes: 0,
        used: 0,
    })
}

fn parse(text: &str, options: u32) -> Result<Hir, String> {
    let is = |option: u32| options & option != 0;
    let meaning = Options { translates_end: true, is_multi_line: is(MULTILINE), is_extended: is(EXTENDED) };
    let translated = translate(text, meaning).map_err(|other| other.reason)?;
    if regex_classes::code_points(&translated, is(UNICODE), is(CASELESS), is(EXTENDED)) > CODE_POINTS_MAX {
        return Err("it has too many Unicode classes; use fewer, or leave out the option u or i".to_owned());
    }
    let syntax = syntax::Config::new()
        .case_insensitive(is(CASELESS))
        .multi_line(is(MULTILINE))
        .dot_matches_new_line(is(DOTALL))
        .ignore_whitespace(is(EXTENDED))
        .unicode(is(UNICODE))
        .utf8(false);
    syntax::parse_with(&translated, &syntax).map_err(|error| match UNBUILT.iter().any(|mark| text.contains(mark)) {
        true => "look-around, back-references and atomic groups are not supported".to_owned(),
        false => error.to_string(),
    })
}

fn program(hir: &Hir, is_reverse: bool) -> Result<NFA, String> {
    let config = NFA::config()
        .utf8(false)
        .nfa_size_limit(Some(PROGRAM_BYTES_MAX))
        .reverse(is_reverse)
        .which_captures(if is_reverse { WhichCaptures::None } else { WhichCaptures::All });
    Compiler::new().configure(config).build_from_hir(hir).map_err(|error| match error.size_limit() {
        Some(limit) => format!(
            "it takes more than {limit} bytes; write it with smaller repetitions and fewer Unicode classes, or use several \
             patterns"
        ),
        None => error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(regexes: &mut Regexes, text: &[u8], pattern: &str, options: u32) -> Result<bool, String> {
        regexes.find(text, pattern.as_bytes(), (options, MatchDetail::Groups), 0, &mut Vec::new())
    }

    /// What the patterns of a worker take, after each of many that a client could send.
    #[test]
    fn memory_of_hostile_patterns_is_bounded() {
        let groups = "()".repeat(GROUPS_MAX);
        // A new set of states for each byte.
        let mut seed = 1_u64;
        let text: Vec<u8> = std::iter::repeat_with(|| {
            seed = seed * 16_807 % 2_147_483_647;
            b'a' + (seed % 2) as u8
        })
        .take(2_000)
        .collect();
        let (mut regexes, mut held, mut most) = (Regexes::default(), 0, 0);
        for at in 0..1_000 {
            let (pattern, options) = match at % 20 {
                0 => (format!("{at}|{groups}[ab]{{0,4000}}c"), 0),
                1 => (format!("{at}|(a|b)*a(a|b){{300}}c"), 0),
                2 => (format!("{at}|(a|b)*a(a|b){{12}}"), CASELESS),
                3 => (format!(r"{at}|\w{{8}}"), UNICODE),
                4 => (format!("{at}|(?:(a|ab)(c|bcd)?(b*))+"), 0),
                5 => (format!("{at}{}", ["alternative"; 500].join("|")), 0),
                _ => (format!("^/{at}/(.*)$"), CASELESS),
            };
            let info = allocation_counter::measure(|| {
                let _ = find(&mut regexes, &text, &pattern, options);
            });
            held += info.bytes_current;
            most = most.max(held + info.bytes_max as i64);
            assert!(regexes.bytes <= KEPT_BYTES_MAX, "{at}: {}", regexes.bytes);
            let kept = regexes.kept.iter().flat_map(HashMap::values);
            assert_eq!(kept.map(|kept| kept.bytes).sum::<usize>(), regexes.bytes, "{at}");
            // All that is not counted is shared, and small.
            let counted = regexes.bytes as i64;
            let range = counted / 2..=counted * 3 / 2 + (4 << 20);
            assert!(range.contains(&held), "{pattern}: {held} bytes, of which {counted} are counted");
        }
        assert!(regexes.count > 20, "{}", regexes.count);
        assert!(most < 40 << 20, "{most}");
    }

    #[test]
    fn patterns_in_use_stay() {
        let mut regexes = Regexes::default();
        for at in 0..2 * KEPT_MAX {
            for constant in ["^/api/", "(a)(b)"] {
                find(&mut regexes, b"/api/ab", constant, 0).unwrap();
                // It is found, not compiled again.
                assert!(at == 0 || regexes.kept[0][constant.as_bytes()].used > 2, "{constant}");
            }
            find(&mut regexes, b"/api/ab", &format!("a{at}"), CASELESS).unwrap();
            assert!(regexes.count <= KEPT_MAX);
        }
        assert!(regexes.kept[0]["(a)(b)".as_bytes()].used > 0);
        let kept: usize = regexes.kept.iter().map(HashMap::len).sum();
        assert_eq!(kept, regexes.count);
        assert_eq!(regexes.kept[0].len(), 2);
    }

    #[test]
    fn patterns_that_take_long_to_compile_are_refused() {
        let check = |pattern: &str, options: u32, expected: &str| {
            let error = find(&mut Regexes::default(), b"", pattern, options).unwrap_err();
            assert!(error.ends_with(expected), "{error}");
        };
        let less = "write it with smaller repetitions and fewer Unicode classes, or use several patterns";
        check("[a-z]{0,100000}x", 0, less);
        check("(?:(?:[a-z]?){0,1000}){0,1000}", 0, less);
        check(r"\w{20}", UNICODE, less);
        check(&"()".repeat(101), 0, "it has more than 100 groups; write (?:…) for those that nothing reads");
        check(&"a".repeat(8_193), 0, "a pattern of more than 8192 bytes cannot be compiled; use several patterns");
        let classes = "it has too many Unicode classes; use fewer, or leave out the option u or i";
        check(&"[!-\u{10ffff}]".repeat(2), CASELESS | UNICODE, classes);
        check(&r"(?iu)\p{Any}".repeat(2), 0, classes);
        // All that fits one limit fits the others.
        for (pattern, options) in [
            ("[a-z]{0,4000}x".to_owned(), 0),
            ("abcdefgh".repeat(512), CASELESS),
            (r"(\w+)-(\w+)-(\w+)-(\w+)-(\w+)-(\w+)-(\w+)".to_owned(), UNICODE | CASELESS),
            (r"[\s\S]*".to_owned(), UNICODE | CASELESS),
            ("()".repeat(100), 0),
        ] {
            let found = find(&mut Regexes::default(), b"", &pattern, options);
            assert!(found.is_ok(), "{found:?}");
        }
    }
}
