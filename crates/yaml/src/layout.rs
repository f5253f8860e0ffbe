//! The layout of a scalar's text in the file, for errors that point into it.
//!
//! The parser only reports where a scalar begins and ends. Scalars with escapes, and quoted or plain ones in several
//! lines, are not taken apart: errors in them are reported at their beginning.

use crate::scalar::ScalarLayout;
use saphyr_parser::{ScalarStyle, Span};

/// Finds the layout of one scalar after the other, going through the text from beginning to end.
pub struct LayoutFinder<'a> {
    text: &'a str,
    /// The number of a line, from 1, and its beginning.
    line: usize,
    at: usize,
}

impl<'a> LayoutFinder<'a> {
    /// A finder for a text that is parsed from its beginning.
    pub fn new(text: &'a str) -> LayoutFinder<'a> {
        LayoutFinder { text, line: 1, at: 0 }
    }

    /// `span` is the scalar's, which does not begin before the previous one.
    pub fn layout(&mut self, value: &str, style: ScalarStyle, span: Span) -> ScalarLayout {
        let quotes = match style {
            ScalarStyle::Literal => return ScalarLayout::Literal,
            ScalarStyle::Folded => return self.folded(value, span),
            ScalarStyle::Plain => 0,
            ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => 1,
        };
        // If it is as long as its value, it has no escapes, since each escape is longer.
        let is_literal = span.start.line() == span.end.line() && span.len() == value.chars().count() + 2 * quotes;
        if is_literal { ScalarLayout::Line(quotes as u8) } else { ScalarLayout::Unknown }
    }

    /// Matches the lines of the block with the parts of its value.
    fn folded(&mut self, value: &str, span: Span) -> ScalarLayout {
        let (first, indent) = (span.start.line(), span.start.col());
        while self.line < first {
            let Some(end) = self.text[self.at..].find('\n') else { return ScalarLayout::Unknown };
            self.at += end + 1;
            self.line += 1;
        }
        let (mut lines, mut offset) = (Vec::new(), 0);
        for (number, line) in self.text[self.at..].lines().enumerate() {
            if offset == value.len() || first + number > span.end.line() {
                break;
            }
            // The indentation consists of spaces, so this is a character boundary.
            let Some(line) = line.get(indent..).filter(|line| !line.is_empty()) else { continue };
            let breaks = value[offset..].bytes().take_while(|byte| *byte == b'\n').count();
            let is_joined = offset > 0 && breaks == 0 && value[offset..].starts_with(' ');
            offset += if is_joined { 1 } else { breaks };
            if !value[offset..].starts_with(line) {
                return ScalarLayout::Unknown;
            }
            lines.push((offset, number as u32));
            offset += line.len();
        }
        ScalarLayout::Folded(lines.into())
    }
}
