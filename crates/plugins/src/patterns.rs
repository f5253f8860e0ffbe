//! Regular expressions of configurations: in the syntax of the `regex` crate, on bytes, in linear time.
//!
//! Bytes are not interpreted as UTF-8 unless the configuration requests it, as with PCRE in nginx.

use regex::bytes::{Regex, RegexBuilder};
use stillgate_pcre::{Options, translate};
use stillgate_schema::{Fault, Text, text};

/// Largest compiled regular expression.
const PATTERN_BYTES_MAX: usize = 1024 * 1024;

/// Options of a regular expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Flags {
    pub(crate) ignores_case: bool,
    pub(crate) multi_line: bool,
    pub(crate) dot_is_newline: bool,
    pub(crate) ignores_blanks: bool,
    pub(crate) unicode: bool,
}

/// A regular expression in its text form. It is validated but stays a text, as its users compile it.
pub(crate) const PATTERN: Text<String> = text("a regular expression", |text| {
    if text.is_empty() || text.chars().count() > 4096 {
        return Err(Fault::new("a regular expression has from 1 to 4096 characters"));
    }
    compile(text, Flags::default()).map(|_| text.to_owned())
});

/// Compiles a regular expression.
pub(crate) fn compile(pattern: &str, flags: Flags) -> Result<Regex, Fault> {
    let options = Options { translates_end: false, is_multi_line: flags.multi_line, is_extended: flags.ignores_blanks };
    let pattern = translate(pattern, options).map_err(|other| not_a_pattern(&other.reason))?;
    let mut builder = RegexBuilder::new(&pattern);
    builder.case_insensitive(flags.ignores_case).multi_line(flags.multi_line);
    builder.dot_matches_new_line(flags.dot_is_newline).ignore_whitespace(flags.ignores_blanks);
    builder.unicode(flags.unicode).size_limit(PATTERN_BYTES_MAX);
    builder.build().map_err(|error| not_a_pattern(&error.to_string()))
}

/// Describes the error of a regular expression's parser.
pub(crate) fn not_a_pattern(error: &str) -> Fault {
    // Its last line is the reason; the lines before show where.
    let what = error.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
    let fault = Fault::new(format!("not a regular expression: {what}"));
    match what.contains("look-") || what.contains("backreferences") {
        true => fault.hint("write it without: matching takes linear time, which rules them out"),
        false => fault,
    }
}
