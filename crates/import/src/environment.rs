//! decK's `${{ env "DECK_NAME" }}`, which becomes Stillgate's `${{DECK_NAME}}`.
//!
//! Values go through the importer as texts, and the writer of the result escapes `${` in them. So a variable is kept
//! between two characters for private use, which [`reveal`] replaces in the text that is written.

const OPEN: char = '\u{e000}';
const CLOSE: char = '\u{e001}';

/// decK's functions that give a value a type.
const CONVERSIONS: [&str; 3] = ["toBool", "toInt", "toFloat"];

/// A text of the file, with its variables marked.
pub(crate) fn marked(text: &str) -> String {
    let clean = text.replace([OPEN, CLOSE], "\u{fffd}");
    let Some(begin) = clean.find("${{") else { return clean };
    let Some(length) = clean[begin..].find("}}") else { return clean };
    let whole = clean[begin + 3..begin + length].trim();
    // `${{ env "DECK_NAME" | toInt }}`: values have the type here that they are written with.
    let inner = CONVERSIONS.iter().find_map(|name| whole.strip_suffix(name)?.trim_end().strip_suffix('|'));
    let inner = inner.map_or(whole, str::trim_end);
    let name = inner.strip_prefix("env").map(|rest| rest.trim().trim_matches(['"', '\'']));
    let is_name =
        |name: &&str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    match name.filter(is_name) {
        Some(name) => format!("{}{OPEN}{name}{CLOSE}{}", &clean[..begin], marked(&clean[begin + length + 2..])),
        None => clean,
    }
}

/// A text in lower case, but for its variables.
pub(crate) fn lowercase(text: &str) -> String {
    let mut parts = text.split(OPEN);
    let mut lower = parts.next().unwrap_or_default().to_lowercase();
    for part in parts {
        let (name, rest) = part.split_once(CLOSE).unwrap_or((part, ""));
        lower.extend([&*String::from(OPEN), name, &String::from(CLOSE), &rest.to_lowercase()]);
    }
    lower
}

/// Whether a text has a marked variable.
pub(crate) fn is_marked(text: &str) -> bool {
    text.contains(OPEN)
}

/// Writes marked variables in the form that Stillgate reads. `text` is the whole file that was written.
pub(crate) fn reveal(text: &str) -> String {
    text.replace(OPEN, "${{").replace(CLOSE, "}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_survive() {
        for (text, want) in [
            ("plain", "plain"),
            (r#"${{ env "DECK_A" }}"#, "${{DECK_A}}"),
            (r#"x-${{env 'DECK_A'}}-${{ env "DECK_B" }}"#, "x-${{DECK_A}}-${{DECK_B}}"),
            (r#"${{ env "DECK_A" | toInt }}"#, "${{DECK_A}}"),
            (r#"${{ env "DECK_A"|toBool }}"#, "${{DECK_A}}"),
            (r#"${{ env "DECK_A" toInt }}"#, r#"${{ env "DECK_A" toInt }}"#),
            ("${{ other }}", "${{ other }}"),
            ("${{ env \"A\"", "${{ env \"A\""),
            ("\u{e000}A\u{e001}", "\u{fffd}A\u{fffd}"),
        ] {
            assert_eq!(reveal(&marked(text)), want, "{text:?}");
        }
        assert_eq!(reveal(&lowercase(&marked(r#"A.${{ env "DECK_A" }}.B"#))), "a.${{DECK_A}}.b");
        assert_eq!(lowercase("A.b"), "a.b");
    }
}
