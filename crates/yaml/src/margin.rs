//! Handles flow collections whose later lines begin left of the key that they belong to, or under it.
//!
//! libyaml, and so APISIX, ignores indentation within `{…}` and `[…]`; YAML 1.2 and our parser require each line to be
//! indented by more than its surroundings:
//!
//! ```text
//!   plugins: {
//!     cors: {}
//! }
//! ```
//!
//! In a flow collection blanks at the beginning of a line have no meaning, so a text that the parser refuses for this
//! alone is parsed again with blanks inserted there, and positions are reported without them.

use crate::cuts::has_plain_lines;
use saphyr_parser::{Parser, ScanError, StrInput};
use std::collections::BTreeSet;

/// Most blanks to insert in front of a line.
const MARGIN_MAX: usize = 256;
/// Most lines of one text that may need them.
const LINES_MAX: usize = 200;
/// Bytes that may be searched to find these lines; each requires another pass from the beginning.
const BYTES_MAX: usize = 64 << 20;

/// A text with blanks inserted in front of some lines.
pub(crate) struct IndentedText {
    pub(crate) text: String,
    /// The number of blanks.
    margin: usize,
    /// From 1.
    lines: BTreeSet<usize>,
}

impl IndentedText {
    /// Widens a text in which the parser found `error`. `None` if it is another error, or there are too many of them.
    pub(crate) fn of(text: &str, error: &ScanError) -> Option<IndentedText> {
        // Lines are counted by line feeds here.
        if !has_plain_lines(text.as_bytes()) {
            return None;
        }
        let mut line = line_of(error)?;
        let margin = margin_of(text).filter(|margin| *margin <= MARGIN_MAX)?;
        let mut widened = IndentedText { text: text.to_owned(), margin, lines: BTreeSet::new() };
        for seen in (1..=LINES_MAX).map(|time| time.saturating_mul(text.len())) {
            if seen > BYTES_MAX || !widened.lines.insert(line) {
                return None;
            }
            let begin = widened.text.match_indices('\n').nth(line.checked_sub(2)?)?.0 + 1;
            widened.text.insert_str(begin, &" ".repeat(margin));
            match Parser::<StrInput<'_>>::new_from_str(&widened.text).find_map(Result::err) {
                Some(error) => match line_of(&error) {
                    Some(next) => line = next,
                    // The error will be found again, and reported.
                    None => return Some(widened),
                },
                None => return Some(widened),
            }
        }
        None
    }

    /// Converts a column of the widened text, from 0, to the original text.
    pub(crate) fn column(&self, line: usize, column: usize) -> usize {
        if self.lines.contains(&line) { column.saturating_sub(self.margin) } else { column }
    }
}

/// More than the indentation of any block of a text: a block begins behind blanks and the signs of others.
fn margin_of(text: &str) -> Option<usize> {
    text.lines().map(|line| line.bytes().take_while(|byte| b" -?:".contains(byte)).count() + 1).max()
}

/// The line that is not indented enough, if that is the error. Both messages only occur in flow collections: in a block
/// the indentation of a line defines what it belongs to.
fn line_of(error: &ScanError) -> Option<usize> {
    matches!(error.info(), "invalid indentation" | "invalid indentation in flow construct")
        .then(|| error.marker().line())
}
