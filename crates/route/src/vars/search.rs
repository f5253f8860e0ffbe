//! Regexes that workers share without sharing anything that changes.
//!
//! The `regex` crate keeps caches behind a pool with locks, which grow while matching. So a regex is determinised when it
//! is compiled, as far as its automaton stays small: searching that is a walk through a table. Few regexes have large
//! automata (many alternatives in a row of any text); those are left to `regex` and its pool.

use super::parse::REGEX_BYTES_MAX;
use regex::bytes::{Regex, RegexBuilder};
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::util::syntax;
use regex_automata::{Input, MatchKind, nfa::thompson};
use std::sync::Arc;

/// Most memory of a determinised regex, in bytes.
const AUTOMATON_BYTES_MAX: usize = 128 << 10;

/// Searches values for one regex.
#[derive(Debug, Clone)]
pub(super) enum Search {
    Automaton(Arc<dense::DFA<Vec<u32>>>),
    Regex(Regex),
}

impl Search {
    /// Compiles a regex over bytes: its classes are those of ASCII.
    pub(super) fn new(pattern: &str, any_case: bool) -> Result<Search, regex::Error> {
        let regex = RegexBuilder::new(pattern)
            .unicode(false)
            .case_insensitive(any_case)
            .size_limit(REGEX_BYTES_MAX)
            .dfa_size_limit(REGEX_BYTES_MAX)
            .build()?;
        let automaton = dense::Builder::new()
            .configure(
                dense::Config::new()
                    .start_kind(StartKind::Unanchored)
                    .match_kind(MatchKind::All)
                    .dfa_size_limit(Some(AUTOMATON_BYTES_MAX))
                    .determinize_size_limit(Some(AUTOMATON_BYTES_MAX)),
            )
            .syntax(syntax::Config::new().unicode(false).utf8(false).case_insensitive(any_case))
            .thompson(thompson::Config::new().utf8(false).nfa_size_limit(Some(REGEX_BYTES_MAX)))
            .build(pattern);
        Ok(automaton.map_or(Search::Regex(regex), |automaton| Search::Automaton(Arc::new(automaton))))
    }

    /// Whether the regex matches anywhere in the value.
    pub(super) fn is_match(&self, value: &[u8]) -> bool {
        match self {
            // An automaton built without quit bytes, as ours is, gives no errors.
            Search::Automaton(automaton) => {
                automaton.try_search_fwd(&Input::new(value).earliest(true)).is_ok_and(|found| found.is_some())
            }
            Search::Regex(regex) => regex.is_match(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn large_automata_are_left_to_the_library() {
        let check = |pattern: &str, determinised: bool, matching: &str, other: &str| {
            let search = Search::new(pattern, false).unwrap();
            assert_eq!(matches!(search, Search::Automaton(_)), determinised, "{pattern}");
            assert!(search.is_match(matching.as_bytes()), "{pattern}");
            assert!(!search.is_match(other.as_bytes()), "{pattern}");
        };
        check("^/api/v[0-9]+/", true, "/api/v12/x", "/api/vx/");
        check(r"\bfoo\b.*(bar|baz)$", true, "a foo baz", "afoo baz");
        check("a.{40}b$", false, &format!("a{}b", "x".repeat(40)), "ab");
    }

    proptest! {
        #[test]
        fn an_automaton_says_what_the_regex_says(
            pattern in "(\\^?[ab.]{0,3}[*+?]?(a|b|\\\\b| c){0,2}\\$?\\|?){1,3}", any_case: bool, value in "[abcAB \n]{0,8}",
        ) {
            let Ok(search) = Search::new(&pattern, any_case) else {
                return Ok(());
            };
            let regex = RegexBuilder::new(&pattern).unicode(false).case_insensitive(any_case).build().unwrap();
            prop_assert_eq!(search.is_match(value.as_bytes()), regex.is_match(value.as_bytes()));
        }
    }
}
