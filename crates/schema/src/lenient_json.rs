//! Texts of JSON as APISIX reads them: its parser, lua-cjson, accepts raw control characters in strings, such as the
//! line breaks of a certificate that a shell has put there.
//!
//! For lua-cjson, only NUL ends a string, and it is refused here, too. Everything else is standard JSON.

use serde::de::DeserializeOwned;
use serde_json::Error;
use serde_json::error::Category;
use std::borrow::Cow;

/// Escapes raw control characters in strings. JSON is otherwise unchanged.
pub fn escaped(text: &str) -> Cow<'_, str> {
    let Some(first) = raw_controls(text).next() else { return Cow::Borrowed(text) };
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    let mut copied = 0;
    for at in std::iter::once(first).chain(raw_controls(text).skip(1)) {
        out.push_str(&text[copied..at]);
        out.push_str(&escape(text.as_bytes()[at]));
        copied = at + 1;
    }
    out.push_str(&text[copied..]);
    Cow::Owned(out)
}

/// Reads a text, with the position of the error in it: a byte, from 1.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<T, (Error, usize)> {
    serde_json::from_str(&escaped(text)).map_err(|error| {
        let at = position(text, &error);
        (error, at)
    })
}

/// The position of an error in the original of a text that was read [`escaped`]: a byte, from 1.
pub fn position(text: &str, error: &Error) -> usize {
    let escaped = escaped(text);
    let lines_before = escaped.split_inclusive('\n').take(error.line().saturating_sub(1));
    let at = lines_before.map(str::len).sum::<usize>() + error.column().max(1);
    let mut added = 0;
    for raw in raw_controls(text) {
        // In the escaped text, its first byte is the one behind this many.
        if raw + added >= at {
            break;
        }
        added += escape(text.as_bytes()[raw]).len() - 1;
    }
    at.saturating_sub(added).max(1)
}

/// The text of an error, without the value that it quotes: it may be a secret.
pub fn without_values(error: &Error) -> String {
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or_default();
    let kinds = ["invalid type: ", "invalid value: "];
    let Some((kind, rest)) = kinds.iter().find_map(|kind| Some((*kind, text.strip_prefix(kind)?))) else {
        // Among other errors, only those of data quote the input: the name of a variant.
        let quotes_value = error.classify() == Category::Data && text.starts_with("unknown variant ");
        return match text.split_once(", expected ").filter(|_| quotes_value) {
            Some((_, expected)) => format!("unknown word, expected {expected}"),
            None => text.to_owned(),
        };
    };
    // `string "…", expected …`; the quoted text may contain anything.
    let found = rest.split([' ', ',']).next().unwrap_or_default();
    let expected = rest.rsplit_once(", expected ").map_or("something else", |(_, expected)| expected);
    format!("{kind}{found}, expected {expected}")
}

/// Positions of raw control characters in strings, except NUL.
fn raw_controls(text: &str) -> impl Iterator<Item = usize> {
    let (mut is_string, mut is_escaped) = (false, false);
    text.bytes().enumerate().filter_map(move |(at, byte)| {
        let was_escaped = std::mem::take(&mut is_escaped);
        match byte {
            b'"' if !was_escaped => is_string = !is_string,
            // Behind a backslash a control character is an error in both parsers.
            b'\\' if is_string && !was_escaped => is_escaped = true,
            1..0x20 if is_string && !was_escaped => return Some(at),
            _ => {}
        }
        None
    })
}

fn escape(byte: u8) -> Cow<'static, str> {
    match byte {
        b'\n' => "\\n".into(),
        b'\r' => "\\r".into(),
        b'\t' => "\\t".into(),
        _ => format!("\\u{byte:04x}").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value as Json, json};

    #[test]
    fn strings_may_have_line_breaks() {
        let check = |text: &str, expected: Json| assert_eq!(read::<Json>(text).unwrap(), expected, "{text:?}");
        check("{\"cert\": \"a\nb\r\n\tc\"\n}", json!({"cert": "a\nb\r\n\tc"}));
        check("[\"\u{1}\u{1f}\u{7f}\"]", json!(["\u{1}\u{1f}\u{7f}"]));
        check("{\"a\nb\": 1}", json!({"a\nb": 1}));
        check(r#"["\\", "\"", "\\\"", "\n"]"#, json!(["\\", "\"", "\\\"", "\n"]));
        check("[\"\\\\\n\"]", json!(["\\\n"]));
        check("\n[\t1 ]\r\n", json!([1]));
    }

    #[test]
    fn nothing_else_is_taken() {
        for wrong in ["[\"\0\"]", "[\"\\\n\"]", "[\u{1}]", "[1\u{b}]", "[\"a\n]", "'a'", "[\"\\\u{9}\"]"] {
            assert!(read::<Json>(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn text_without_raw_characters_is_borrowed() {
        assert!(matches!(escaped("{\n\"a\": \"b\\n\"\r\n}"), Cow::Borrowed(_)));
        assert_eq!(escaped("\"a\nb\u{2}é\n\""), "\"a\\nb\\u0002é\\n\"");
    }

    #[test]
    fn errors_are_where_they_are_in_the_text_that_was_sent() {
        let check = |text: &str, expected: usize| {
            assert_eq!(read::<Json>(text).unwrap_err().1, expected, "{text:?}");
        };
        check("[x", 2);
        check("[\"\n\n\", x]", 8);
        check("[\n\"\u{2}\",\n x]", 9);
        check("{\"a\n\": x, \"b\n\": 1}", 8);
    }

    #[test]
    fn errors_do_not_quote_values() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Word {
            Good,
        }
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Form {
            #[allow(dead_code, reason = "only its errors are looked at")]
            count: u32,
            #[allow(dead_code, reason = "only its errors are looked at")]
            word: Word,
        }
        let check = |text: &str, expected: &str| {
            let said = without_values(&read::<Form>(text).unwrap_err().0);
            assert!(!said.contains("s3cret"), "{said}");
            assert_eq!(said, expected);
        };
        check(r#"{"count": "s3cret, expected nothing"}"#, "invalid type: string, expected u32");
        check(r#"{"count": -5}"#, "invalid value: integer, expected u32");
        check(r#""s3cret""#, "invalid type: string, expected struct Form");
        check(r#"{"count": 1, "word": "s3cret"}"#, "unknown word, expected `good`");
        check(r#"{"count": 1, "word": "good", "k": 1}"#, "unknown field `k`, expected `count` or `word`");
        check(r#"{"count": 1}"#, "missing field `word`");
    }
}
