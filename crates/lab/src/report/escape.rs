//! The only way for text of a result file to get into the page.
//!
//! Result files are sent around, and a report is opened in a browser: a target named `<script>` must stay a name.
//! Besides markup, control characters and marks that turn the reading direction are replaced, since they make a page
//! show something else. It does not shorten: see [`ShortText`] for that.

use std::fmt::{self, Display, Formatter, Write};

/// Replaces a character that may not be shown.
const REPLACEMENT: char = '\u{fffd}';

/// Names in tables and plots are cut here: no real name is longer.
const SHORT_CHARS_MAX: usize = 120;

/// Text that is written escaped, for element content and for attribute values in double quotes.
pub(crate) struct Text<'a>(pub(crate) &'a str);

impl Display for Text<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| escape(character, out))
    }
}

/// Escaped text on one line, cut to a length that fits a layout.
pub(crate) struct ShortText<'a>(pub(crate) &'a str);

impl Display for ShortText<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        for (at, character) in self.0.chars().enumerate() {
            if at == SHORT_CHARS_MAX {
                return out.write_char('…');
            }
            escape(if character.is_whitespace() { ' ' } else { character }, out)?;
        }
        Ok(())
    }
}

/// Text for a terminal, on as many lines as it has: the output of a measured program must not move the cursor.
pub(crate) fn plain(text: &str) -> String {
    let shown = |character| if character != '\n' && deceives(character) { REPLACEMENT } else { character };
    text.chars().map(shown).collect()
}

/// Control characters, other line ends, and marks that change the reading direction.
fn deceives(character: char) -> bool {
    matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    ) || character.is_control()
}

fn escape(character: char, out: &mut Formatter<'_>) -> fmt::Result {
    match character {
        '&' => out.write_str("&amp;"),
        '<' => out.write_str("&lt;"),
        '>' => out.write_str("&gt;"),
        '"' => out.write_str("&quot;"),
        '\'' => out.write_str("&#39;"),
        '\n' | '\t' => out.write_char(character),
        deceiving if deceives(deceiving) => out.write_char(REPLACEMENT),
        plain => out.write_char(plain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, escaped: &str) {
        assert_eq!(Text(text).to_string(), escaped);
    }

    #[test]
    fn markup_becomes_text() {
        check("nginx 1.22", "nginx 1.22");
        check("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;");
        check("\" onload='x' &amp;", "&quot; onload=&#39;x&#39; &amp;amp;");
    }

    #[test]
    fn what_deceives_the_eye_is_taken_out() {
        check("a\u{202e}b\0c\u{9b}d", "a\u{fffd}b\u{fffd}c\u{fffd}d");
        check("two\nlines\tkept", "two\nlines\tkept");
        check("a\u{61c}b\u{2028}c\u{2029}d", "a\u{fffd}b\u{fffd}c\u{fffd}d");
        assert_eq!(plain("two\nlines\x1b[2J\r"), "two\nlines\u{fffd}[2J\u{fffd}");
    }

    #[test]
    fn long_names_are_cut() {
        let cut = ShortText(&"<".repeat(500)).to_string();
        assert_eq!(cut, format!("{}…", "&lt;".repeat(SHORT_CHARS_MAX)));
        assert_eq!(ShortText("a\nb").to_string(), "a b");
    }
}
