//! A position in a text that only moves forward, and knows its line and column.

use std::ops::Range;

/// Reads a text.
pub(super) struct Cursor<'t> {
    text: &'t str,
    /// Always on the boundary of a character.
    at: usize,
    /// The last position whose line and column were requested. The next is counted from there, so that all positions
    /// together cost one walk through the text.
    located: (usize, u32, u32),
}

impl<'t> Cursor<'t> {
    pub(super) fn new(text: &'t str) -> Cursor<'t> {
        Cursor { text, at: 0, located: (0, 1, 1) }
    }

    pub(super) fn text(&self) -> &'t str {
        self.text
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn go_to(&mut self, at: usize) {
        debug_assert!(self.text.is_char_boundary(at));
        self.at = at;
    }

    pub(super) fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    pub(super) fn sees(&self, text: &str) -> bool {
        self.rest().starts_with(text)
    }

    pub(super) fn eat(&mut self, text: &str) -> bool {
        let sees = self.sees(text);
        if sees {
            self.at += text.len();
        }
        sees
    }

    pub(super) fn take_while(&mut self, mut wanted: impl FnMut(char) -> bool) -> &'t str {
        let rest = self.rest();
        let taken = &rest[..rest.find(|c| !wanted(c)).unwrap_or(rest.len())];
        self.at += taken.len();
        taken
    }

    /// The language's blanks.
    pub(super) fn blanks(&mut self) {
        self.take_while(is_blank);
    }

    /// The text at the cursor, up to a blank, a parenthesis, or an operator that joins conditions; empty only at the
    /// end.
    pub(super) fn word(&self) -> Range<usize> {
        let rest = self.rest();
        if rest.starts_with("&&") || rest.starts_with("||") {
            return self.at..self.at + 2;
        }
        let end = rest.find(|c| is_blank(c) || matches!(c, '(' | ')' | '&' | '|'));
        let end = match end {
            Some(0) => rest.chars().next().map_or(0, char::len_utf8),
            Some(end) => end,
            None => rest.len(),
        };
        self.at..self.at + end
    }

    /// The position just behind the last non-blank character before the cursor.
    pub(super) fn end_of_last(&self) -> usize {
        self.text[..self.at].trim_end_matches(is_blank).len()
    }

    /// Goes to the next position where a condition can end: over texts, and over parentheses that open and close.
    /// `depth` of them have been opened before.
    pub(super) fn skip_condition(&mut self, mut depth: usize) {
        let (text, bytes) = (self.text, self.text.as_bytes());
        let mut at = self.at;
        while at < bytes.len() {
            match bytes[at] {
                b'r' if text[at..].starts_with("r#\"") => {
                    at = text[at + 3..].find("\"#").map_or(bytes.len(), |length| at + 3 + length + 2);
                    continue;
                }
                b'"' => {
                    at += 1;
                    while at < bytes.len() && bytes[at] != b'"' {
                        at += if bytes[at] == b'\\' { 2 } else { 1 };
                    }
                }
                b'(' => depth += 1,
                b')' if depth == 0 => break,
                b')' => depth -= 1,
                b'&' | b'|' if depth == 0 && bytes.get(at + 1) == Some(&bytes[at]) => break,
                _ => {}
            }
            at += 1;
        }
        // A backslash may have skipped half of a character, or gone beyond the end.
        let at = (at.min(bytes.len())..=bytes.len()).find(|at| text.is_char_boundary(*at));
        self.at = at.unwrap_or(bytes.len());
    }

    /// Line and column of a place, from 1 and in characters.
    pub(super) fn locate(&mut self, at: usize) -> (u32, u32) {
        if at < self.located.0 {
            self.located = (0, 1, 1);
        }
        let (from, mut line, mut column) = self.located;
        for c in self.text[from..at].chars() {
            (line, column) = if c == '\n' { (line + 1, 1) } else { (line, column + 1) };
        }
        self.located = (at, line, column);
        (line, column)
    }
}

pub(super) fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

/// Whether field names and function names may have this character, behind the first letter.
pub(super) fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.')
}
