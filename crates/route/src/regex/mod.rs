//! Regexes as conditions hold them: checked when they are parsed, and bounded.
//!
//! Rust's syntax, over bytes. Kong's `~` has Unicode classes, as the `regex` crate has for text; `~~` and `~*` of `vars`
//! have those of ASCII.

use regex::bytes::{Regex, RegexBuilder};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Most memory of one compiled regex, and of its lazily built automaton.
pub const REGEX_BYTES_MAX: usize = 1 << 20;

/// A regex that is known to be one.
#[derive(Debug, Clone)]
pub struct Pattern {
    source: Box<str>,
    unicode: bool,
    any_case: bool,
    regex: Arc<Regex>,
}

impl Pattern {
    /// Of Kong's `~`.
    pub fn unicode(source: &str) -> Result<Pattern, regex::Error> {
        Pattern::parse(source, true, false)
    }

    /// Of `~~`, or `~*` with `any_case`, in `vars`.
    pub fn ascii(source: &str, any_case: bool) -> Result<Pattern, regex::Error> {
        Pattern::parse(source, false, any_case)
    }

    fn parse(source: &str, unicode: bool, any_case: bool) -> Result<Pattern, regex::Error> {
        let regex = RegexBuilder::new(source)
            .unicode(unicode)
            .case_insensitive(any_case)
            .size_limit(REGEX_BYTES_MAX)
            .dfa_size_limit(REGEX_BYTES_MAX)
            .build()?;
        Ok(Pattern { source: source.into(), unicode, any_case, regex: Arc::new(regex) })
    }

    /// As it was written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether it matches anywhere in a value.
    pub fn is_match(&self, value: &[u8]) -> bool {
        self.regex.is_match(value)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        (&self.source, self.unicode, self.any_case) == (&other.source, other.unicode, other.any_case)
    }
}

impl Eq for Pattern {}

impl Hash for Pattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.source, self.unicode, self.any_case).hash(state);
    }
}
