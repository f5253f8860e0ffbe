//! Flow collections whose later lines begin left of the key that they belong to, or under it.
//!
//! libyaml, and with it APISIX, takes no notice of indentation within `{…}` and `[…]`; YAML 1.2 and our parser want each
//! line indented by more than what is around it:
//!
//! ```text
//!   plugins: {
//!     cors: {}
//! }
//! ```
//!
//! In a flow collection blanks at the beginning of a line mean nothing, so a text that the parser refuses for this alone is
//! read again with blanks put there, and positions are told without them.

use crate::cuts::has_plain_lines;
use saphyr_parser::{Parser, ScanError, StrInput};
use std::collections::BTreeSet;

/// Blanks that may be put in front of a line.
const MARGIN_MAX: usize = 256;
/// Lines of one text that may need them.
const LINES_MAX: usize = 200;
/// Bytes that may be gone through to find these lines; each takes another look from the beginning.
const BYTES_MAX: usize = 64 << 20;

/// A text with blanks put in front of some lines.
pub(crate) struct Widened {
    pub(crate) text: String,
    /// How many.
    margin: usize,
    /// From 1.
    lines: BTreeSet<usize>,
}

impl Widened {
    /// Of a text in which the parser found `error`. `None`: it is another error, or there are too many of them.
    pub(crate) fn of(text: &str, error: &ScanError) -> Option<Widened> {
        // Lines are counted by line feeds here.
        if !has_plain_lines(text.as_bytes()) {
            return None;
        }
        let mut line = line_of(error)?;
        let margin = margin_of(text).filter(|margin| *margin <= MARGIN_MAX)?;
        let mut widened = Widened { text: text.to_owned(), margin, lines: BTreeSet::new() };
        for seen in (1..=LINES_MAX).map(|time| time.saturating_mul(text.len())) {
            if seen > BYTES_MAX || !widened.lines.insert(line) {
                return None;
            }
            let begin = widened.text.match_indices('\n').nth(line.checked_sub(2)?)?.0 + 1;
            widened.text.insert_str(begin, &" ".repeat(margin));
            match Parser::<StrInput<'_>>::new_from_str(&widened.text).find_map(Result::err) {
                Some(error) => match line_of(&error) {
                    Some(next) => line = next,
                    // It is found again, and told.
                    None => return Some(widened),
                },
                None => return Some(widened),
            }
        }
        None
    }

    /// A column of the text as it is now, from 0, in the text as it was.
    pub(crate) fn column(&self, line: usize, column: usize) -> usize {
        if self.lines.contains(&line) { column.saturating_sub(self.margin) } else { column }
    }
}

/// More than any block of a text is indented: a block begins behind blanks and the signs of others.
fn margin_of(text: &str) -> Option<usize> {
    text.lines().map(|line| line.bytes().take_while(|byte| b" -?:".contains(byte)).count() + 1).max()
}

/// The line that is not indented enough, if that is the error. Both are found in flow collections only: in a block the
/// indentation of a line says what it belongs to.
fn line_of(error: &ScanError) -> Option<usize> {
    matches!(error.info(), "invalid indentation" | "invalid indentation in flow construct")
        .then(|| error.marker().line())
}
