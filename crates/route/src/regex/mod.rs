//! Regexes as conditions hold them: parsed, bounded and taken apart, but not compiled.
//!
//! Rust's syntax, over bytes. Kong's `~` has Unicode classes, as the `regex` crate has for text; `~~` and `~*` of
//! `vars` have those of ASCII. A configuration may hold a hundred thousand regexes, so a [`Pattern`] is its text and
//! facts about its syntax: the literal that a value must begin with ([`parsed_form`]) and an upper bound of its automaton
//! ([`size`]). [`group`] matches many regexes at once; [`tail`] matches the rest behind a literal, shared by all
//! patterns with that rest.

mod bounded;
mod group;
mod parsed_form;
mod share;
#[cfg(test)]
mod tests;
mod work;

pub use bounded::{BoundedSearch, TooMuchWork};
pub(crate) use group::RegexGroup;
pub(crate) use parsed_form::Tail;
use parsed_form::{SplitRegex, reduce};
use regex::bytes::{Regex, RegexBuilder};
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::hybrid::dfa::Cache;
use regex_automata::nfa::thompson::{self, Compiler, Config, NFA};
use regex_automata::{Anchored, Input, MatchKind};
use regex_syntax::ast;
use regex_syntax::hir::{self, Class, ClassUnicodeRange, Hir, HirKind, Repetition};
use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use stillgate_pcre::{Options, translate};
pub use work::RegexWork;

/// Most memory of one regex's automaton, and of the states that are built from it while matching.
pub const REGEX_BYTES_MAX: usize = 1 << 20;
/// Longest regex, in bytes. A short name of a Unicode class means kilobytes of ranges, so a long text needs much memory
/// even before its size is known.
pub const REGEX_TEXT_BYTES_MAX: usize = 16 << 10;

/// Most memory of the automata of all regexes in one condition: each may be matched for each request.
pub const CONDITION_REGEX_BYTES_MAX: usize = 4 << 20;

/// Least length of a literal before a tail. Every path begins with a slash, so a shorter one selects nothing: regexes
/// with one are better searched for together.
const PREFIX_BYTES_MIN: usize = 2;

/// A valid regex of bounded size.
#[derive(Debug, Clone)]
pub struct Pattern(Arc<ParsedRegex>);

#[derive(Debug)]
struct ParsedRegex {
    source: Box<str>,
    /// The text as written, if `source` is not.
    written: Option<Box<str>>,
    dialect: Dialect,
    /// An upper bound of its automaton's size.
    bytes_max: usize,
    split: Option<SplitRegex>,
    /// Names by position in the text.
    names: Box<[Box<str>]>,
    /// Compiled when first needed: the matcher does not use it.
    regex: OnceLock<Regex>,
    /// The number of its states, known when first needed.
    states: OnceLock<usize>,
}

/// Called with a group's number, its name if it has one, and the text it matched.
pub type VisitGroup<'f> = dyn FnMut(usize, Option<&str>, &[u8]) + 'f;

/// The rules by which a text is parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Dialect {
    unicode: bool,
    any_case: bool,
}

/// Why a text cannot be used as a regex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegexError {
    /// It is not well-formed, or requires more than linear time.
    Syntax {
        /// The error, in one line.
        reason: String,
        /// The position of the error, in bytes of the text.
        span: Range<usize>,
    },
    /// It has more than [`REGEX_TEXT_BYTES_MAX`] bytes.
    TooLong,
    /// Its automaton has more than [`REGEX_BYTES_MAX`] bytes.
    TooLarge,
    /// With the others in its condition, it has more than [`CONDITION_REGEX_BYTES_MAX`] bytes.
    TooLargeTogether,
}

/// The memory of the automata of all regexes in one condition.
#[derive(Debug, Default)]
pub(crate) struct RegexTotal {
    counted: usize,
    /// Upper bounds of those that are not counted.
    estimated: usize,
    estimates: Vec<Pattern>,
}

impl RegexTotal {
    /// Adds a regex, unless they are too large together.
    pub(crate) fn add(&mut self, pattern: Pattern) -> Result<Pattern, RegexError> {
        self.estimated += pattern.0.bytes_max;
        self.estimates.push(pattern.clone());
        if self.bytes() > CONDITION_REGEX_BYTES_MAX {
            self.estimated = 0;
            self.counted += self.estimates.drain(..).map(|pattern| automaton_bytes(&pattern.hir())).sum::<usize>();
        }
        match self.bytes() <= CONDITION_REGEX_BYTES_MAX {
            true => Ok(pattern),
            false => Err(RegexError::TooLargeTogether),
        }
    }

    /// An upper bound.
    pub(crate) fn bytes(&self) -> usize {
        self.counted + self.estimated
    }
}

impl Pattern {
    /// Parses a regex of Kong's `~`.
    pub fn unicode(source: &str) -> Result<Pattern, RegexError> {
        if source.len() > REGEX_TEXT_BYTES_MAX {
            return Err(RegexError::TooLong);
        }
        Pattern::parse(source, None, Dialect { unicode: true, any_case: false })
    }

    /// Parses a regex of `~~`, or `~*` with `any_case`, in `vars`, which was written for PCRE.
    pub fn ascii(source: &str, any_case: bool) -> Result<Pattern, RegexError> {
        let dialect = Dialect { unicode: false, any_case };
        if source.len() > REGEX_TEXT_BYTES_MAX {
            return Err(RegexError::TooLong);
        }
        // Errors are about the text as written.
        dialect.parse(source)?;
        let options = Options { translates_end: true, ..Options::default() };
        match translate(source, options)
            .map_err(|other| RegexError::Syntax { reason: other.reason, span: other.span })?
        {
            Cow::Borrowed(_) => Pattern::parse(source, None, dialect),
            Cow::Owned(translated) => Pattern::parse(&translated, Some(source.into()), dialect),
        }
    }

    fn parse(source: &str, written: Option<Box<str>>, dialect: Dialect) -> Result<Pattern, RegexError> {
        let (ast, hir) = dialect.parse(source)?;
        if !is_within(&hir, REGEX_BYTES_MAX) {
            return Err(RegexError::TooLarge);
        }
        let mut names = Vec::new();
        if hir.properties().explicit_captures_len() > 0 {
            collect_names(&hir, &mut names);
        }
        let bytes_max = estimate(&hir).min(REGEX_BYTES_MAX);
        let split = parsed_form::split(source, dialect, &ast, hir);
        let (source, names) = (source.into(), names.into());
        Ok(Pattern(Arc::new(ParsedRegex {
            source,
            written,
            dialect,
            bytes_max,
            split,
            names,
            regex: OnceLock::new(),
            states: OnceLock::new(),
        })))
    }

    /// The text as written.
    pub fn source(&self) -> &str {
        self.0.written.as_ref().unwrap_or(&self.0.source)
    }

    /// Whether it matches anywhere in a value. Compiles the regex at the first call, so it is for infrequent callers.
    pub fn is_match(&self, value: &[u8]) -> bool {
        self.regex().is_match(value)
    }

    /// Like [`Pattern::is_match`], but does not keep a regex that had to be compiled: for callers that use very many
    /// regexes once each.
    pub(crate) fn is_match_once(&self, value: &[u8]) -> bool {
        match (self.anchored_prefix(), self.0.regex.get()) {
            (Some((prefix, _)), _) if !value.starts_with(prefix) => false,
            (Some((_, None)), _) => true,
            (_, Some(regex)) => regex.is_match(value),
            (_, None) => self.compile_regex().is_match(value),
        }
    }

    /// The number of its states. Compiles the regex at the first call.
    fn states(&self) -> usize {
        *self.0.states.get_or_init(|| automaton(&self.hir()).map_or(usize::MAX, |nfa| nfa.states().len()))
    }

    /// Its named groups, in the order of their opening brackets.
    pub fn names(&self) -> &[Box<str>] {
        &self.0.names
    }

    /// Calls `visit` with number, name and content of every group that takes part in the first match; number 0 is the
    /// whole match. `false` where there is none, or where it would take too long. Compiles the regex at the first call.
    pub fn captures(&self, value: &[u8], visit: &mut VisitGroup<'_>) -> bool {
        // No variable is worth a stall of the worker.
        if !RegexWork::default().pay_for_search(value.len(), self.states()) {
            return false;
        }
        let regex = self.regex();
        let Some(captures) = regex.captures(value) else {
            return false;
        };
        for ((number, name), group) in regex.capture_names().enumerate().zip(captures.iter()) {
            if let Some(group) = group {
                visit(number, name, group.as_bytes());
            }
        }
        true
    }

    /// The bytes that a matching value begins with, never empty, and the tail that must match behind them; without a
    /// tail every value with this beginning matches. `None` where the regex does not begin with `^` and a literal, or
    /// with one that is too short (see [`PREFIX_BYTES_MIN`]).
    pub(crate) fn anchored_prefix(&self) -> Option<(&[u8], Option<&Tail>)> {
        let SplitRegex { prefix, tail, is_whole } = self.0.split.as_ref()?;
        let is_enough = match tail {
            Some(_) if !is_whole => prefix.len() >= PREFIX_BYTES_MIN,
            _ => !prefix.is_empty(),
        };
        is_enough.then_some((&**prefix, tail.as_ref()))
    }

    /// The only value that matches, if there is only one.
    pub(crate) fn anchored_literal(&self) -> Option<&[u8]> {
        let split = self.0.split.as_ref()?;
        split.is_whole.then_some(&*split.prefix)
    }

    /// A value that is likely to match, for samples.
    pub(crate) fn example(&self) -> Vec<u8> {
        let written = self.0.dialect.parse(self.source()).expect("it was parsed by the same rules before").1;
        parsed_form::example(&written)
    }

    fn hir(&self) -> Hir {
        self.0.dialect.parse(&self.0.source).expect("it was parsed by the same rules before").1
    }

    fn regex(&self) -> &Regex {
        self.0.regex.get_or_init(|| self.compile_regex())
    }

    fn compile_regex(&self) -> Regex {
        let Dialect { unicode, any_case } = self.0.dialect;
        RegexBuilder::new(&self.0.source)
            .unicode(unicode)
            .case_insensitive(any_case)
            // The forward automaton was found to be small; the reverse one, which is also built, may be a little
            // larger.
            .size_limit(usize::MAX)
            .dfa_size_limit(REGEX_BYTES_MAX)
            .build()
            .expect("it was parsed by the same rules before, and there is no limit")
    }
}

impl Dialect {
    fn parse(self, source: &str) -> Result<(ast::Ast, Hir), RegexError> {
        let ast = ast::parse::Parser::new().parse(source).map_err(|error| {
            let span = error.span();
            RegexError::Syntax { reason: error.kind().to_string(), span: span.start.offset..span.end.offset }
        })?;
        let mut translator = hir::translate::TranslatorBuilder::new()
            .unicode(self.unicode)
            .case_insensitive(self.any_case)
            // Values are bytes: a split need not be between characters.
            .utf8(false)
            .build();
        let hir = translator.translate(source, &ast).map_err(|error| {
            let span = error.span();
            RegexError::Syntax { reason: error.kind().to_string(), span: span.start.offset..span.end.offset }
        })?;
        Ok((ast, hir))
    }
}

fn collect_names(hir: &Hir, names: &mut Vec<Box<str>>) {
    if let HirKind::Capture(capture) = hir.kind() {
        names.extend(capture.name.clone());
    }
    hir.kind().subs().iter().for_each(|sub| collect_names(sub, names));
}

impl RegexError {
    /// Position in the text, in bytes, if known.
    pub fn span(&self) -> Option<Range<usize>> {
        match self {
            RegexError::Syntax { span, .. } => Some(span.clone()),
            RegexError::TooLong | RegexError::TooLarge | RegexError::TooLargeTogether => None,
        }
    }
}

impl fmt::Display for RegexError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegexError::Syntax { reason, .. } => f.write_str(reason),
            RegexError::TooLong => write!(f, "a regex has at most {REGEX_TEXT_BYTES_MAX} bytes; write several"),
            RegexError::TooLargeTogether => {
                let bytes = CONDITION_REGEX_BYTES_MAX;
                write!(
                    f,
                    "the regexes of this condition need more than {bytes} bytes together; write fewer or smaller ones"
                )
            }
            RegexError::TooLarge => {
                write!(f, "the regex needs more than {REGEX_BYTES_MAX} bytes; write fewer or smaller repetitions")
            }
        }
    }
}

impl std::error::Error for RegexError {}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || (&self.0.source, self.0.dialect) == (&other.0.source, other.0.dialect)
    }
}

impl Eq for Pattern {}

impl Hash for Pattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.0.source, self.0.dialect).hash(state);
    }
}

// Estimates the size of a regex's automaton, mostly without building it.
//
// An upper bound is computed from the regex in nanoseconds. Only where that exceeds the limit is the automaton built;
// building stops at the limit.

/// More than any state without transitions, in bytes.
const STATE_BYTES: usize = 64;
/// More than a transition of a state that has several, in bytes.
const TRANSITION_BYTES: usize = 16;

/// Whether the automaton has at most `bytes_max` bytes.
fn automaton_bytes(hir: &Hir) -> usize {
    automaton(hir).map_or(REGEX_BYTES_MAX, |nfa| nfa.memory_usage())
}

fn automaton(hir: &Hir) -> Option<NFA> {
    let config = Config::new().utf8(false).nfa_size_limit(Some(REGEX_BYTES_MAX));
    Compiler::new().configure(config).build_from_hir(hir).ok()
}

fn is_within(hir: &Hir, bytes_max: usize) -> bool {
    if estimate(hir) <= bytes_max {
        return true;
    }
    let config = Config::new().utf8(false).nfa_size_limit(Some(bytes_max));
    Compiler::new().configure(config).build_from_hir(hir).is_ok()
}

/// An upper bound of the automaton's size, in bytes.
fn estimate(hir: &Hir) -> usize {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => STATE_BYTES,
        HirKind::Literal(literal) => literal.0.len().saturating_mul(STATE_BYTES),
        HirKind::Class(Class::Bytes(class)) => STATE_BYTES + class.ranges().len() * TRANSITION_BYTES,
        HirKind::Class(Class::Unicode(class)) => STATE_BYTES + class.iter().map(utf8_bytes).sum::<usize>(),
        HirKind::Repetition(Repetition { min, max, sub, .. }) => {
            let copies = max.unwrap_or(*min).max(1) as usize;
            let copy = estimate(sub).saturating_add(2 * STATE_BYTES);
            copies.saturating_mul(copy).saturating_add(STATE_BYTES)
        }
        HirKind::Capture(capture) => estimate(&capture.sub).saturating_add(2 * STATE_BYTES),
        HirKind::Concat(subs) | HirKind::Alternation(subs) => {
            let each = subs.iter().map(|sub| estimate(sub).saturating_add(TRANSITION_BYTES));
            each.fold(2 * STATE_BYTES, usize::saturating_add)
        }
    }
}

/// An upper bound of the states that match the UTF-8 of a range of characters, in bytes.
fn utf8_bytes(range: &ClassUnicodeRange) -> usize {
    let (start, end) = (range.start(), range.end());
    let (shortest, longest) = (start.len_utf8(), end.len_utf8());
    // For each length: a run of whole blocks, and at either end a part of a block for each byte but the first.
    let sequences =
        if u32::from(start) >> 6 == u32::from(end) >> 6 { 1 } else { (1 + longest - shortest) * (2 * longest - 1) };
    sequences * longest * (STATE_BYTES + TRANSITION_BYTES)
}

// Matches the rest of a regex behind its literal.
//
// It is determinised when it is compiled: matching is a walk through an immutable table that workers share. Tails that
// would not stay small (many alternatives in a row of any text) have no such table, and are searched for with others,
// as part of a group.

/// Most memory of one determinised tail, in bytes. Also bounds the time it takes: a configuration may have many.
const AUTOMATON_BYTES_MAX: usize = 16 << 10;

/// A compiled tail.
#[derive(Debug)]
pub(crate) struct TailEngine(dense::DFA<Vec<u32>>);

impl TailEngine {
    /// `None` if its automaton would not stay small. `ascii`: all values will be ASCII.
    pub(crate) fn compile(tail: &Tail, ascii: bool) -> Option<TailEngine> {
        let hir = reduce(tail.hir(), ascii);
        // The automaton for these gives up at bytes that are not ASCII.
        if hir.properties().look_set().contains_word_unicode() {
            return None;
        }
        determinise(&hir).map(TailEngine)
    }

    /// Whether the tail matches at `from`, which is at most the value's length; only word boundaries look at the text
    /// before it.
    #[inline]
    pub(crate) fn is_match(&self, value: &[u8], from: usize) -> bool {
        let input = Input::new(value).range(from..).anchored(Anchored::Yes).earliest(true);
        // An automaton without quit bytes, as this one is, returns no errors.
        self.0.try_search_fwd(&input).is_ok_and(|found| found.is_some())
    }

    /// Heap memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.0.memory_usage()
    }
}

fn determinise(hir: &Hir) -> Option<dense::DFA<Vec<u32>>> {
    let nfa = thompson::Config::new()
        .utf8(false)
        .which_captures(thompson::WhichCaptures::None)
        .nfa_size_limit(Some(AUTOMATON_BYTES_MAX));
    let nfa = thompson::Compiler::new().configure(nfa).build_from_hir(hir).ok()?;
    let config = dense::Config::new()
        .start_kind(StartKind::Anchored)
        .match_kind(MatchKind::All)
        .accelerate(false)
        .dfa_size_limit(Some(AUTOMATON_BYTES_MAX))
        .determinize_size_limit(Some(AUTOMATON_BYTES_MAX));
    dense::Builder::new().configure(config).build_from_nfa(&nfa).ok()
}

// State that one worker keeps between two searches of a group of regexes, and the results of the last one.

/// Belongs to one worker and one place where a [`RegexGroup`] is searched; empty at first, filled by the first
/// search.
///
/// It may later be used with another group (of the next Plan); it then forgets everything of the first.
#[derive(Debug, Default)]
pub(crate) struct RegexMemory {
    /// The group that the rest belongs to; no group has the number 0.
    group: u64,
    /// The cache of each automaton that is built while it is used.
    caches: Vec<Option<Cache>>,
    /// The tally of each pattern. Zero except for those in `hits`.
    tallies: Vec<Tally>,
    hits: Vec<u32>,
    /// The number of values searched.
    values: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    /// The number of values that match.
    values: u32,
    /// The last value that matches, counted from 1.
    last: u32,
}

impl RegexMemory {
    /// Whether there are values, and all match the pattern.
    #[inline]
    pub(crate) fn all(&self, pattern: usize) -> bool {
        let matching = self.tallies[pattern].values;
        matching > 0 && matching == self.values
    }

    /// Whether a value matches the pattern.
    #[inline]
    pub(crate) fn any(&self, pattern: usize) -> bool {
        self.tallies[pattern].values > 0
    }

    /// The patterns that a value matches, in no order.
    #[inline]
    pub(crate) fn hits_any(&self) -> &[u32] {
        &self.hits
    }

    /// Heap memory, in bytes.
    #[cfg(test)]
    fn memory_bytes(&self) -> usize {
        let caches = self.caches.iter().flatten().map(Cache::memory_usage).sum::<usize>();
        caches + self.tallies.capacity() * size_of::<Tally>() + self.hits.capacity() * size_of::<u32>()
    }

    /// Prepares the memory for a group with this many patterns.
    fn adopt(&mut self, group: u64, caches: Vec<Option<Cache>>, patterns: usize) {
        let (tallies, hits) = (vec![Tally::default(); patterns], Vec::with_capacity(patterns));
        *self = RegexMemory { group, caches, tallies, hits, values: 0 };
    }

    /// Forgets the results of the last search.
    fn begin(&mut self) {
        for pattern in self.hits.drain(..) {
            self.tallies[pattern as usize] = Tally::default();
        }
        self.values = 0;
    }

    /// Goes on to the next value.
    fn next_value(&mut self) {
        self.values += 1;
    }

    /// Records that the current value matches the pattern; `false` if that was known.
    #[inline]
    fn hit(&mut self, pattern: u32) -> bool {
        let tally = &mut self.tallies[pattern as usize];
        if tally.last == self.values {
            return false;
        }
        if tally.values == 0 {
            self.hits.push(pattern);
        }
        tally.values += 1;
        tally.last = self.values;
        true
    }
}

#[cfg(test)]
mod size_tests {
    use super::{Pattern, RegexError, *};

    #[test]
    fn the_estimate_is_an_upper_bound() {
        let check = |pattern: &str| {
            let hir = regex_syntax::parse(pattern).unwrap();
            let nfa = Compiler::new().build_from_hir(&hir).unwrap();
            assert!(
                nfa.memory_usage() <= estimate(&hir) + 1024,
                "{pattern}: {} {}",
                nfa.memory_usage(),
                estimate(&hir)
            );
        };
        for pattern in
            ["", "a", "abc|def|[a-z]", r"\d+", r"\w{3,9}", r"\PL*", r"(?i)straße", "(a(b)?){4}", r"(?s).\b\w"]
        {
            check(pattern);
        }
    }

    #[test]
    fn large_ones_are_refused() {
        let check = |pattern: &str, good: bool| {
            let parsed = Pattern::unicode(pattern);
            assert_eq!(parsed.as_ref().err(), (!good).then_some(&RegexError::TooLarge), "{pattern}");
        };
        check(r"^/svc-123/v\d+/items/[0-9]+$", true);
        check(r"\w{20}", true);
        check("(a{100}){100}", true);
        check("(((a{100}){100}){100})", false);
        check("((((((a{99}){99}){99}){99}){99}){99}){99}", false);
        check("(?:){4294967295}", true);
        check("(?:a?){4294967295}", false);
        check(r"(?:\b){4294967295}", true);
        check(r"(?:a|\b){1000000}", false);
        check(r"\w{1000}", false);
    }
}
