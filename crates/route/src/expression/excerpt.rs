//! A line of a text with a caret below, fit for any terminal: bounded in width, and nothing in it moves the cursor.

use std::fmt::{self, Write};
use std::ops::Range;

/// Most characters of a line that are shown before and behind the place in question.
const MARGIN_CHARS_MAX: usize = 60;
/// Most carets.
const CARETS_MAX: usize = 60;

/// A line of a text, with the marked part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Excerpt {
    line: String,
    /// Characters of `line` before the carets.
    indent: usize,
    carets: usize,
}

impl Excerpt {
    /// The line in which `span` begins; later lines of `span` are not marked.
    pub(super) fn new(text: &str, span: &Range<usize>) -> Excerpt {
        let begin = text[..span.start].rfind('\n').map_or(0, |at| at + 1);
        let end = text[span.start..].find('\n').map_or(text.len(), |at| span.start + at);
        let end = if text[span.start..end].ends_with('\r') { end - 1 } else { end };
        let mut excerpt = Excerpt { line: String::new(), indent: 0, carets: 0 };

        let before = &text[begin..span.start];
        let near = fitting(before.char_indices().rev(), MARGIN_CHARS_MAX).map_or("", |(at, _)| &before[at..]);
        if near.len() < before.len() {
            excerpt.line.push('…');
        }
        escape(near, &mut excerpt.line);
        excerpt.indent = excerpt.line.chars().count();

        let marked = head(&text[span.start..span.end.min(end)], CARETS_MAX);
        escape(marked, &mut excerpt.line);
        excerpt.carets = (excerpt.line.chars().count() - excerpt.indent).max(1);

        let after = &text[span.start + marked.len()..end];
        excerpt.line += &shown(after, MARGIN_CHARS_MAX);
        excerpt.line.truncate(excerpt.line.trim_end().len());
        excerpt
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line.is_empty() {
            return Ok(());
        }
        writeln!(f, "\n    {}", self.line)?;
        write!(f, "    {:indent$}{:^<carets$}", "", "", indent = self.indent, carets = self.carets)
    }
}

/// A part of the text within a message: in backquotes, on one line, and not too long.
pub(super) fn quoted(text: &str) -> String {
    const CHARS_MAX: usize = 40;
    format!("`{}`", shown(text, CHARS_MAX))
}

/// A text on one line, cut if it has more than this many visible characters.
pub(super) fn shown(text: &str, chars_max: usize) -> String {
    let head = head(text, chars_max);
    let mut shown = String::new();
    escape(head, &mut shown);
    if head.len() < text.len() {
        shown.push('…');
    }
    shown
}

fn head(text: &str, chars_max: usize) -> &str {
    fitting(text.char_indices(), chars_max).map_or("", |(at, c)| &text[..at + c.len_utf8()])
}

/// The last of the characters that are shown within a width.
fn fitting(chars: impl Iterator<Item = (usize, char)>, chars_max: usize) -> Option<(usize, char)> {
    let (mut width, mut escaped) = (0, String::new());
    chars
        .take_while(|(_, c)| {
            escaped.clear();
            escape(c.encode_utf8(&mut [0; 4]), &mut escaped);
            width += escaped.chars().count();
            width <= chars_max
        })
        .last()
}

/// Appends `text`; a tab becomes a blank, and a character that is invisible or moves the cursor becomes its code.
fn escape(text: &str, into: &mut String) {
    for c in text.chars() {
        match c {
            '\t' => into.push(' '),
            '\n' => into.push_str("\\n"),
            '\r' => into.push_str("\\r"),
            c if c != ' ' && (c.is_control() || c.is_whitespace() || is_invisible(c)) => {
                write!(into, "\\u{{{:x}}}", u32::from(c)).expect("a String takes everything");
            }
            c => into.push(c),
        }
    }
}

/// Characters without a visible place: those that turn the direction of writing, join, or break lines.
pub(super) fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{300}'..='\u{36f}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}
