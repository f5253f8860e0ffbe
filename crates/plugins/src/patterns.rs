//! Regular expressions of configurations: in the syntax of the `regex` crate, on bytes, in linear time.
//!
//! Bytes are not interpreted as UTF-8 unless the configuration requests it, as with PCRE in nginx.

use regex::bytes::{CaptureLocations, Match, Regex, RegexBuilder};
use regex_automata::nfa::thompson::{self, NFA, WhichCaptures};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::Hir;
use std::borrow::Cow;
use stillgate_pcre::{Options, translate};
use stillgate_route::regex::{BoundedSearch, TooMuchWork};
use stillgate_schema::CompileBudget;
use stillgate_schema::{Fault, Text, text};

/// Largest automaton of a regular expression.
const PATTERN_BYTES_MAX: usize = 1024 * 1024;
/// Memory of all that is compiled from an automaton, relative to its own: 4 to 12 times as much were measured.
pub(crate) const COMPILED_BYTES: usize = 6;

/// Options of a regular expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Flags {
    pub(crate) ignores_case: bool,
    pub(crate) multi_line: bool,
    pub(crate) dot_is_newline: bool,
    pub(crate) ignores_blanks: bool,
    pub(crate) unicode: bool,
}

/// A regular expression in its text form. It is only parsed and stays a text: its users compile it, which is what takes time.
pub(crate) const PATTERN: Text<String> = text("a regular expression", |text| {
    if text.is_empty() || text.chars().count() > 4096 {
        return Err(Fault::new("a regular expression has from 1 to 4096 characters"));
    }
    translated(text, Flags::default()).and_then(|text| parse(&text, Flags::default()))?;
    Ok(text.to_owned())
});

/// Most work of one search for groups, in steps of about a nanosecond.
const GROUPS_STEPS_MAX: usize = 20_000_000;
/// Steps for each byte and state of a search for groups.
const GROUPS_STEPS: usize = 4;

/// A regular expression whose groups are wanted: how long a text may be is bounded by its size.
#[derive(Debug, Clone)]
pub(crate) struct GroupsRegex {
    regex: Regex,
    states: usize,
}

impl GroupsRegex {
    /// Compiles it.
    pub(crate) fn compile(pattern: &str, flags: Flags, budget: &CompileBudget) -> Result<GroupsRegex, Fault> {
        let (pattern, automaton) = automaton(pattern, flags, budget)?;
        Ok(GroupsRegex { regex: build(&pattern, flags)?, states: automaton.states().len() })
    }

    /// The expression, for everything but searches.
    pub(crate) fn regex(&self) -> &Regex {
        &self.regex
    }

    /// The first match with its groups.
    pub(crate) fn find<'t>(
        &self,
        locations: &mut CaptureLocations,
        text: &'t [u8],
    ) -> Result<Option<Match<'t>>, TooMuchWork> {
        match text.len().saturating_mul(self.states).saturating_mul(GROUPS_STEPS) <= GROUPS_STEPS_MAX {
            true => Ok(self.regex.captures_read(locations, text)),
            false => Err(TooMuchWork),
        }
    }
}

/// Compiles a regular expression of which only matters whether it matches.
pub(crate) fn compile_search(pattern: &str, flags: Flags, budget: &CompileBudget) -> Result<BoundedSearch, Fault> {
    automaton(pattern, flags, budget).map(|(_, automaton)| BoundedSearch::new(automaton))
}

/// Compiles a regular expression.
pub(crate) fn compile(pattern: &str, flags: Flags, budget: &CompileBudget) -> Result<Regex, Fault> {
    automaton(pattern, flags, budget).and_then(|(pattern, _)| build(&pattern, flags))
}

/// Its text in the syntax of the `regex` crate, and its automaton.
fn automaton<'p>(pattern: &'p str, flags: Flags, budget: &CompileBudget) -> Result<(Cow<'p, str>, NFA), Fault> {
    let pattern = translated(pattern, flags)?;
    let too_large = || Fault::new("the regular expression is too large").hint("write it with smaller repetitions");
    let automaton = nfa(&parse(&pattern, flags)?, PATTERN_BYTES_MAX).ok_or_else(too_large)?;
    // Before the rest is compiled, which takes longer.
    budget.pay(automaton.memory_usage().saturating_mul(COMPILED_BYTES))?;
    Ok((pattern, automaton))
}

fn build(pattern: &str, flags: Flags) -> Result<Regex, Fault> {
    let mut builder = RegexBuilder::new(pattern);
    builder.case_insensitive(flags.ignores_case).multi_line(flags.multi_line);
    builder.dot_matches_new_line(flags.dot_is_newline).ignore_whitespace(flags.ignores_blanks);
    builder.unicode(flags.unicode).size_limit(PATTERN_BYTES_MAX);
    builder.build().map_err(|error| not_a_pattern(&error.to_string()))
}

/// What a regular expression of PCRE is for the `regex` crate.
fn translated(pattern: &str, flags: Flags) -> Result<Cow<'_, str>, Fault> {
    let options = Options { translates_end: false, is_multi_line: flags.multi_line, is_extended: flags.ignores_blanks };
    translate(pattern, options).map_err(|other| not_a_pattern(&other.reason))
}

/// Parses a regular expression in the syntax of the `regex` crate, over bytes.
pub(crate) fn parse(pattern: &str, flags: Flags) -> Result<Hir, Fault> {
    let mut builder = ParserBuilder::new();
    builder.case_insensitive(flags.ignores_case).multi_line(flags.multi_line);
    builder.dot_matches_new_line(flags.dot_is_newline).ignore_whitespace(flags.ignores_blanks);
    builder.unicode(flags.unicode).utf8(false);
    builder.build().parse(pattern).map_err(|error| not_a_pattern(&error.to_string()))
}

/// The automaton of a regular expression; `None`: it is larger than that.
pub(crate) fn nfa(hir: &Hir, bytes_max: usize) -> Option<NFA> {
    let config =
        thompson::Config::new().utf8(false).which_captures(WhichCaptures::None).nfa_size_limit(Some(bytes_max));
    thompson::Compiler::new().configure(config).build_from_hir(hir).ok()
}

/// Describes the error of a regular expression's parser.
fn not_a_pattern(error: &str) -> Fault {
    // Its last line is the reason; the lines before show where.
    let what = error.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
    let fault = Fault::new(format!("not a regular expression: {what}"));
    match what.contains("look-") || what.contains("backreferences") {
        true => fault.hint("write it without: matching takes linear time, which rules them out"),
        false => fault,
    }
}
