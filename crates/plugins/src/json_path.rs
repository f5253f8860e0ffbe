//! Whether a text is a JSONPath, as APISIX's library reads it: `groups`, `$.orgs..team`, `$.users[?(@.id > 3)]['a']`.
//!
//! Nothing is looked up by it. Inside filters and scripts only brackets and quotes are looked at.

/// Whether it is one.
pub(crate) fn is_json_path(text: &str) -> bool {
    let text = text.trim_matches(BLANKS);
    let begun = text.strip_prefix('$').or_else(|| subscript(text)).or_else(|| name(text));
    let Some(mut rest) = begun else { return false };
    while !rest.is_empty() {
        let step = match (rest.strip_prefix(".."), rest.strip_prefix('.')) {
            (Some(behind), _) => name(behind).or_else(|| subscript(behind)),
            (None, Some(behind)) => name(behind),
            (None, None) => subscript(rest),
        };
        match step {
            Some(behind) => rest = behind,
            None => return false,
        }
    }
    true
}

const BLANKS: [char; 3] = [' ', '\t', '\n'];

/// What follows a name, an index or `*`.
fn name(text: &str) -> Option<&str> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let signs = usize::from(text.starts_with(['+', '-']));
    let length = match text.bytes().next()? {
        b'*' => 1,
        byte if byte.is_ascii_alphabetic() || byte == b'_' => {
            text.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count()
        }
        _ => match digits(&text[signs..]) {
            0 => return None,
            digits => signs + digits,
        },
    };
    Some(text[length..].trim_start_matches(BLANKS))
}

/// What follows `[…]`.
fn subscript(text: &str) -> Option<&str> {
    let inner = text.strip_prefix('[')?;
    let (mut open, mut quote, mut is_escaped) = (Vec::new(), None, false);
    for (at, byte) in inner.bytes().enumerate() {
        match (quote, byte) {
            (Some(_), _) if is_escaped => is_escaped = false,
            (Some(_), b'\\') => is_escaped = true,
            (Some(of), byte) if of == byte => quote = None,
            (Some(_), _) => {}
            (None, b'\'' | b'"') => quote = Some(byte),
            (None, b'(') => open.push(b')'),
            (None, b'[') => open.push(b']'),
            (None, b']') if open.is_empty() => return is_selector(&inner[..at]).then(|| &inner[at + 1..]),
            (None, b')' | b']') if open.pop() != Some(byte) => return None,
            (None, _) => {}
        }
    }
    None
}

fn is_selector(inner: &str) -> bool {
    let inner = inner.trim_matches(BLANKS);
    let is_number = |text: &str| text.parse::<i64>().is_ok();
    let is_item = |item: &str| {
        let item = item.trim_matches(BLANKS);
        let is_quoted = item.len() > 1 && item.starts_with(['\'', '"']) && item.ends_with(['\'', '"']);
        let parts = item.split(':').map(|part| part.trim_matches(BLANKS));
        is_quoted
            || is_number(item)
            || (2..4).contains(&parts.clone().count()) && parts.clone().all(|part| part.is_empty() || is_number(part))
    };
    match inner.as_bytes().first() {
        None => false,
        Some(b'?' | b'(') => inner.len() > 1,
        Some(b'\'' | b'"') => true,
        Some(b'*') => inner.len() == 1,
        Some(_) => inner.split(',').all(is_item),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let good = [
            "groups",
            "team.name",
            "$",
            "$.orgs..team",
            "$..*",
            "$.a[0].b[-1:]['c d',\"e]\"][*]",
            "$..book[?(@.price < 10 && @['x'] == ')')]",
            "$[(@.length-1)]",
            "$.0",
            "[1,2]",
            " a ",
        ];
        for text in good {
            assert!(is_json_path(text), "{text}");
        }
        let bad = [
            "",
            "$..([invalid",
            "$.",
            "$..",
            "a..",
            ".a",
            "$a b",
            "$[",
            "$[]",
            "$[a]",
            "$[?]",
            "$[(a]",
            "$['a]",
            "a-b",
            "$.a[1)",
        ];
        for text in bad {
            assert!(!is_json_path(text), "{text}");
        }
    }
}
