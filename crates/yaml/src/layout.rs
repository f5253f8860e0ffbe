//! How a scalar's text stands in the file, for errors that point into it.
//!
//! The parser tells only where a scalar begins and ends. Scalars with escapes, and quoted or plain ones in several lines,
//! are not taken apart: an error in one is told at its beginning.

use crate::scalar::Layout;
use saphyr_parser::{ScalarStyle, Span};

/// Finds the layout of one scalar after the other; its text is gone through from beginning to end.
pub struct LayoutFinder<'a> {
    text: &'a str,
    /// A line, from 1, and where it begins.
    line: usize,
    at: usize,
}

impl<'a> LayoutFinder<'a> {
    /// Of a text that is parsed from its beginning.
    pub fn new(text: &'a str) -> LayoutFinder<'a> {
        LayoutFinder { text, line: 1, at: 0 }
    }

    /// `span`: of the scalar, which begins nowhere before the one asked for last.
    pub fn layout(&mut self, value: &str, style: ScalarStyle, span: Span) -> Layout {
        let quotes = match style {
            ScalarStyle::Literal => return Layout::Literal,
            ScalarStyle::Folded => return self.folded(value, span),
            ScalarStyle::Plain => 0,
            ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => 1,
        };
        // As long as what it stands for: then it is that, since each escape is longer.
        let is_literal = span.start.line() == span.end.line() && span.len() == value.chars().count() + 2 * quotes;
        if is_literal { Layout::Line(quotes as u8) } else { Layout::Unknown }
    }

    /// Finds the lines of the block again in what became of them.
    fn folded(&mut self, value: &str, span: Span) -> Layout {
        let (first, indent) = (span.start.line(), span.start.col());
        while self.line < first {
            let Some(end) = self.text[self.at..].find('\n') else { return Layout::Unknown };
            self.at += end + 1;
            self.line += 1;
        }
        let (mut lines, mut offset) = (Vec::new(), 0);
        for (number, line) in self.text[self.at..].lines().enumerate() {
            if offset == value.len() || first + number > span.end.line() {
                break;
            }
            // The indentation is of spaces, so this is a place between characters.
            let Some(line) = line.get(indent..).filter(|line| !line.is_empty()) else { continue };
            let breaks = value[offset..].bytes().take_while(|byte| *byte == b'\n').count();
            let is_joined = offset > 0 && breaks == 0 && value[offset..].starts_with(' ');
            offset += if is_joined { 1 } else { breaks };
            if !value[offset..].starts_with(line) {
                return Layout::Unknown;
            }
            lines.push((offset, number as u32));
            offset += line.len();
        }
        Layout::Folded(lines.into())
    }
}
