//! Cuts the text of a block list into its items, by lines and their indentation only.
//!
//! An item begins with the line of its dash, the first one with any comments before it, and ends where the next begins.
//! This knows no YAML beyond dashes and comments; where that might not be enough, it gives up.

/// The text of one item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemText {
    /// Its length.
    pub bytes: u32,
    /// The number of its lines.
    pub lines: u32,
}

/// A list that was cut.
#[derive(Debug, PartialEq, Eq)]
pub struct Cuts {
    /// Blanks before each dash.
    pub column: usize,
    /// In order.
    pub items: Vec<ItemText>,
    /// Bytes behind the list.
    pub rest: usize,
}

/// Cuts `text`, which begins with a list's first line. `column` is that of its dashes, if known. `None` if there is no
/// item, or a line whose meaning is not certain.
pub fn cut(text: &[u8], column: Option<usize>) -> Option<Cuts> {
    let (mut column, mut items) = (column, Vec::new());
    let mut current = ItemText { bytes: 0, lines: 0 };
    let (mut at, mut begun) = (0, false);
    while at < text.len() {
        let end = memchr::memchr(b'\n', &text[at..]).map_or(text.len(), |n| at + n + 1);
        match line(&text[at..end], column)? {
            LineShape::Inner if column.is_none() => return None,
            LineShape::Inner | LineShape::Blank => {}
            LineShape::End => break,
            LineShape::Dash(found) => {
                column = Some(found);
                if std::mem::replace(&mut begun, true) {
                    items.push(std::mem::replace(&mut current, ItemText { bytes: 0, lines: 0 }));
                }
            }
        }
        current.bytes += u32::try_from(end - at).ok()?;
        current.lines += 1;
        at = end;
    }
    if !begun {
        return None;
    }
    items.push(current);
    Some(Cuts { column: column?, items, rest: text.len() - at })
}

enum LineShape {
    /// Apparently nothing but a comment at most.
    Blank,
    /// A line with the dash of an item.
    Dash(usize),
    /// It belongs to the item above.
    Inner,
    /// It belongs to the text behind the list.
    End,
}

fn line(line: &[u8], column: Option<usize>) -> Option<LineShape> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let indent = line.iter().position(|byte| *byte != b' ').unwrap_or(line.len());
    let dash = || matches!(line[indent..], [b'-'] | [b'-', b' ', ..]);
    match line.get(indent) {
        None | Some(b'#') => Some(LineShape::Blank),
        Some(_) if column.is_some_and(|column| indent > column) => Some(LineShape::Inner),
        Some(b'-') if dash() && column.is_none_or(|column| indent == column) => Some(LineShape::Dash(indent)),
        // A tab, which counts neither as indentation nor as empty, or a byte order mark.
        Some(b'\t' | 0xef) => None,
        Some(_) if indent == 0 => Some(LineShape::End),
        // Indented by less than the items, or in front of the first: the parser will report the error.
        Some(_) => None,
    }
}

/// Whether every line of the text ends where `cut` assumes it, and nothing ends the text before its end.
pub fn has_plain_lines(text: &[u8]) -> bool {
    memchr::memchr_iter(b'\r', text).all(|at| text.get(at + 1) == Some(&b'\n')) && memchr::memchr(0, text).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, want: Option<(usize, &[&str], &str)>) {
        let got = cut(text.as_bytes(), None);
        let mut at = 0;
        let items: Option<Vec<&str>> = got.as_ref().map(|cuts| {
            let items = cuts.items.iter().map(|cut| {
                let item = &text[at..at + cut.bytes as usize];
                assert_eq!(item.lines().count(), cut.lines as usize);
                at += cut.bytes as usize;
                item
            });
            items.collect()
        });
        let got = got.as_ref().zip(items.as_deref());
        assert_eq!(got.map(|(cuts, items)| (cuts.column, items, &text[text.len() - cuts.rest..])), want, "{text:?}");
    }

    #[test]
    fn cuts_at_dashes() {
        check("- a\n- b\n", Some((0, &["- a\n", "- b\n"], "")));
        check("  - a\n    b: - c\n  - d", Some((2, &["  - a\n    b: - c\n", "  - d"], "")));
        check(
            "  # one\n\n  - a\n# two\n  -\nb: c\n- d",
            Some((2, &["  # one\n\n  - a\n# two\n", "  -\n"], "b: c\n- d")),
        );
        check("- a\n  - b\n    \n-\r\n  c: d\r\n", Some((0, &["- a\n  - b\n    \n", "-\r\n  c: d\r\n"], "")));
        check("- a\n---\n- b\n", Some((0, &["- a\n"], "---\n- b\n")));
        check("  - a\n- b\n", Some((2, &["  - a\n"], "- b\n")));
    }

    #[test]
    fn gives_up_in_doubt() {
        check("", None);
        check("# nothing\n", None);
        check("[a]\n", None);
        check("upstreams: []\n", None);
        check("  a: b\n  - c\n", None);
        check("  - a\n b\n", None);
        check("  - a\n\t- b\n", None);
        check("- a\n\tb\n", None);
        check("-\ta\n", None);
        check("- a\n\u{feff}- b\n", None);
        assert!(has_plain_lines(b"a\r\nb\n"));
        assert!(!has_plain_lines(b"a\rb\n"));
        assert!(!has_plain_lines(b"a\r"));
        assert!(!has_plain_lines(b"a\0b\n"));
    }
}
