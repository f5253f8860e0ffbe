//! Parses JSON in the form in which libraries write tokens: without spaces, without escapes, with integers for numbers.
//!
//! Most tokens have this form, and parsing it takes a fraction of the time of a full parser, which is a quarter of the
//! cost of a new token. Text in any other form, right or wrong, is left to `serde_json`, which decides.

use super::token::ClaimValue;
use std::borrow::Cow;

/// Most levels of nested lists and objects.
const DEPTH_MAX: usize = 8;
/// Most digits of a number, which is then exact as `f64`.
const DIGITS_MAX: usize = 15;

/// Values of an object, each at the index that `which` returns for its name. `None`: it does not have this form, or a
/// name occurs twice.
pub(super) fn read<'a, const N: usize>(
    text: &'a str,
    which: impl Fn(&str) -> Option<usize>,
) -> Option<[Option<ClaimValue<'a>>; N]> {
    // Without these a quotation mark is always the start or the end of a string. Many bytes are checked at once.
    let is_hard = |byte: u8| (byte < b' ') | (byte == b'\\');
    if text.bytes().fold(false, |is_found, byte| is_found | is_hard(byte)) {
        return None;
    }
    let mut reader = PlainJsonReader { text, at: 0 };
    let mut values = [const { None }; N];
    reader.object(DEPTH_MAX, |name, value| match which(name) {
        None => Some(()),
        Some(at) => values[at].replace(value).is_none().then_some(()),
    })?;
    (reader.at == text.len()).then_some(values)
}

struct PlainJsonReader<'a> {
    text: &'a str,
    /// Everything before it was read.
    at: usize,
}

impl<'a> PlainJsonReader<'a> {
    fn object(&mut self, depth_left: usize, mut each: impl FnMut(&'a str, ClaimValue<'a>) -> Option<()>) -> Option<()> {
        self.take("{")?;
        if self.take("}").is_some() {
            return Some(());
        }
        loop {
            let name = self.string()?;
            self.take(":")?;
            let value = self.value(depth_left)?;
            each(name, value)?;
            if self.take(",").is_none() {
                return self.take("}");
            }
        }
    }

    fn list(&mut self, depth_left: usize) -> Option<()> {
        self.take("[")?;
        if self.take("]").is_some() {
            return Some(());
        }
        loop {
            self.value(depth_left)?;
            if self.take(",").is_none() {
                return self.take("]");
            }
        }
    }

    fn value(&mut self, depth_left: usize) -> Option<ClaimValue<'a>> {
        let other = |()| ClaimValue::Other;
        match self.text.as_bytes().get(self.at)? {
            b'"' => self.string().map(|text| ClaimValue::Text(Cow::Borrowed(text))),
            b'0'..=b'9' => self.number().map(ClaimValue::Number),
            b'{' => self.object(depth_left.checked_sub(1)?, |_, _| Some(())).map(other),
            b'[' => self.list(depth_left.checked_sub(1)?).map(other),
            b'f' => self.take("false").map(|()| ClaimValue::False),
            b't' => self.take("true").map(other),
            b'n' => self.take("null").map(other),
            _ => None,
        }
    }

    fn string(&mut self) -> Option<&'a str> {
        self.take("\"")?;
        let rest = &self.text[self.at..];
        let length = rest.bytes().position(|byte| byte == b'"')?;
        self.at += length + 1;
        Some(&rest[..length])
    }

    /// The caller checks the character after the digits, and refuses a fraction or an exponent.
    fn number(&mut self) -> Option<f64> {
        let rest = &self.text.as_bytes()[self.at..];
        let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if length > DIGITS_MAX || length > 1 && rest[0] == b'0' {
            return None;
        }
        self.at += length;
        Some(rest[..length].iter().fold(0, |number: u64, digit| number * 10 + u64::from(digit - b'0')) as f64)
    }

    fn take(&mut self, what: &str) -> Option<()> {
        let is_next = self.text.as_bytes()[self.at..].starts_with(what.as_bytes());
        is_next.then(|| self.at += what.len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::token::read_any;
    use super::*;
    use proptest::prelude::*;

    fn which(name: &str) -> Option<usize> {
        ["key", "exp", ""].iter().position(|known| *known == name)
    }

    /// Whether it is parsed here; the result must equal the text.
    fn is_plain(text: &str) -> bool {
        let values: Option<[_; 3]> = read(text, which);
        assert!(values.is_none() || values == read_any(text, which), "{text}: {values:?}");
        values.is_some()
    }

    #[test]
    fn what_libraries_write_is_plain() {
        for text in [
            "{}",
            r#"{"alg":"HS256","typ":"JWT"}"#,
            r#"{"iss":"https://issuer.example","sub":"user-1","key":"k","exp":1999999999,"scope":"a b"}"#,
            r#"{"key":"é","aud":["a",{"b":[]},{}],"exp":0,"email_verified":true,"x":false,"y":null}"#,
            r#"{"exp":999999999999999,"key":{"key":[1,2]},"":""}"#,
        ] {
            assert!(is_plain(text), "{text}");
        }
    }

    #[test]
    fn what_is_not_plain_is_left_to_the_other_reader() {
        let deep = |depth: usize| format!("{{\"key\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(is_plain(&deep(DEPTH_MAX)));
        for text in [
            &*deep(DEPTH_MAX + 1),
            &*deep(200),
            "",
            "{",
            "7",
            "[]",
            "{} ",
            "{}}",
            "{,}",
            r#"{"key"}"#,
            r#"{"key":}"#,
            r#"{"key":7,}"#,
            r#"{"key":7"#,
            r#"{"key":"k}"#,
            r#"{"key": 7}"#,
            r#"{"key":07}"#,
            r#"{"key":-7}"#,
            r#"{"key":7.5}"#,
            r#"{"key":7e3}"#,
            r#"{"key":1000000000000000}"#,
            r#"{"key":tru}"#,
            r#"{"key":"a\"b"}"#,
            r#"{"k\u0065y":7}"#,
            "{\"key\":\"\n\"}",
            r#"{"key":[1,]}"#,
            r#"{"key":[1}"#,
            r#"{"key":1,"key":1}"#,
        ] {
            assert!(!is_plain(text), "{text}");
        }
    }

    const PIECES: &[&str] = &[
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"",
        "\"key\"",
        "\"exp\"",
        "\"a b\"",
        "\"key\":",
        "\"exp\":7,",
        "{\"key\":\"k\"",
        "0",
        "01",
        "12",
        "-",
        ".5",
        "e3",
        "true",
        "false",
        "null",
        " ",
        "\\",
        "\\\"",
        "\n",
        "\u{e9}",
    ];

    proptest! {
        #[test]
        fn pieces_in_any_order_are_read_as_by_the_other_reader(
            pieces in proptest::collection::vec(proptest::sample::select(PIECES), 0..12),
        ) {
            is_plain(&pieces.concat());
            is_plain(&format!("{{{}}}", pieces.concat()));
        }

        /// Valid objects, also with a piece inserted somewhere.
        #[test]
        fn objects_are_read_as_by_the_other_reader(
            entries in proptest::collection::vec(("key|exp|[a-z]{0,3}", 0..8usize), 0..6), at in any::<proptest::sample::Index>(),
            piece in proptest::sample::select(PIECES),
        ) {
            let values = ["7", "\"k\"", "true", "false", "null", "[1,\"x\",[]]", "{\"a\":{\"key\":1}}", "1234567890123456"];
            let entries: Vec<String> = entries.iter().map(|(name, value)| format!("\"{name}\":{}", values[*value])).collect();
            let text = format!("{{{}}}", entries.join(","));
            is_plain(&text);
            let (before, after) = text.split_at(at.index(text.len()));
            is_plain(&format!("{before}{piece}{after}"));
            is_plain(&format!("{before}{}", after.get(1..).unwrap_or_default()));
        }
    }
}
