//! The label part of a series as text, exactly as it will be printed: `a="x",b="y"`, without braces and without `le`.
//!
//! It is made once, when a series is first seen; from then on it is copied, compared and hashed as bytes. Both text
//! formats escape alike (backslash, quote, newline), so one form serves both; protobuf decodes it. Any bytes are
//! accepted as a value, as values come from clients. `family` checks names.

use std::borrow::Cow;

use memchr::{memchr, memchr2, memchr3};

/// Longest label value, before escaping; a longer one is cut and ends in [`CUT_MARK`].
pub const VALUE_BYTES_MAX: usize = 1024;
/// The mark at the end of a value that was cut.
pub const CUT_MARK: &str = "…";

const REPLACEMENT: &str = "\u{fffd}";

/// Appends `name="value"`, with a comma in front unless it is the first. Invalid UTF-8 becomes U+FFFD, as with
/// `String::from_utf8_lossy`; control characters are kept, as both text formats allow them.
pub fn push_pair(out: &mut Vec<u8>, first: bool, name: &str, value: &[u8]) {
    out.reserve(name.len() + value.len().min(VALUE_BYTES_MAX) + 4);
    if !first {
        out.push(b',');
    }
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"=\"");
    if value.len() <= VALUE_BYTES_MAX && memchr3(b'\\', b'"', b'\n', value).is_none() && str::from_utf8(value).is_ok() {
        out.extend_from_slice(value);
    } else {
        escaped_pieces(value, |piece| {
            out.extend_from_slice(piece);
            true
        });
    }
    out.push(b'"');
}

/// Appends the whole label part; `values` has as many entries as `names`.
pub fn encode(out: &mut Vec<u8>, names: &[String], values: &[&[u8]]) {
    debug_assert_eq!(names.len(), values.len());
    for (index, (name, value)) in names.iter().zip(values).enumerate() {
        push_pair(out, index == 0, name, value);
    }
}

/// Whether `encoded`, which [`encode`] made with these names, is the encoding of these values. Allocates nothing.
pub fn matches(encoded: &[u8], names: &[String], values: &[&[u8]]) -> bool {
    (!has_escapes(encoded) && stand_in(encoded, names, values)) || matches_escaped(encoded, names, values)
}

/// Whether some value in `encoded` had to be escaped.
pub(crate) fn has_escapes(encoded: &[u8]) -> bool {
    memchr(b'\\', encoded).is_some()
}

/// Whether the values occur in `encoded`, which has no escapes, byte by byte.
///
/// Without a backslash in `encoded` that proves that they match, and the values need not be searched for characters to
/// escape: `encoded` is UTF-8, free of newlines, no value in it is too long, and it has two quotes for each label. As
/// one quote is seen before and one after each value, none is left that could be within a value.
#[inline]
pub(crate) fn stand_in(encoded: &[u8], names: &[String], values: &[&[u8]]) -> bool {
    let mut at = 0;
    for (name, value) in names.iter().zip(values) {
        // The name and `="`; the comma before all but the first was counted with the one before.
        at += name.len() + 2;
        let end = at + value.len();
        // The quotes on both sides are checked; nothing else can be in the place of the name.
        if end >= encoded.len() || encoded[at - 1] != b'"' || encoded[end] != b'"' || !equal(&encoded[at..end], value) {
            return false;
        }
        at = end + 2;
    }
    // One comma too many was counted, if there was a label.
    at.saturating_sub(1) == encoded.len()
}

/// Compares slices of equal length, most of them short: calling `memcmp` for each would take longer than comparing
/// them.
#[inline]
fn equal(left: &[u8], right: &[u8]) -> bool {
    fn words(left: &[u8], right: &[u8], at: usize) -> bool {
        left[at..].first_chunk::<8>() == right[at..].first_chunk::<8>()
    }
    match left.len() {
        0..8 => left.iter().zip(right).all(|(left, right)| left == right),
        // The two overlap where there are fewer than 16.
        8..=16 => words(left, right, 0) & words(left, right, left.len() - 8),
        _ => left == right,
    }
}

/// The definition of [`matches`]: escape and compare piece by piece. For values that need escaping, and for mismatches.
#[cold]
fn matches_escaped(encoded: &[u8], names: &[String], values: &[&[u8]]) -> bool {
    let mut rest = encoded;
    let mut comma = 0;
    for (name, value) in names.iter().zip(values) {
        let Some(text) = rest.get(comma + name.len() + 2..) else { return false };
        rest = text;
        let equal = escaped_pieces(value, |piece| match rest.strip_prefix(piece) {
            Some(after) => {
                rest = after;
                true
            }
            None => false,
        });
        let Some(after) = rest.strip_prefix(b"\"").filter(|_| equal) else { return false };
        rest = after;
        comma = 1;
    }
    rest.is_empty()
}

/// Passes the escaped form of a value to `take` piece by piece until it returns false; returns false in that case.
fn escaped_pieces(value: &[u8], mut take: impl FnMut(&[u8]) -> bool) -> bool {
    let cut = printed_len(value) > VALUE_BYTES_MAX;
    let mut room = if cut { VALUE_BYTES_MAX - CUT_MARK.len() } else { VALUE_BYTES_MAX };
    // Replacing never shortens, so no byte beyond this can be printed.
    for chunk in value[..value.len().min(VALUE_BYTES_MAX)].utf8_chunks() {
        let kept = chunk.valid().floor_char_boundary(room);
        if !escape(&chunk.valid().as_bytes()[..kept], &mut take) {
            return false;
        }
        room -= kept;
        if kept < chunk.valid().len() || (!chunk.invalid().is_empty() && room < REPLACEMENT.len()) {
            break;
        }
        if !chunk.invalid().is_empty() {
            room -= REPLACEMENT.len();
            if !take(REPLACEMENT.as_bytes()) {
                return false;
            }
        }
    }
    !cut || take(CUT_MARK.as_bytes())
}

/// Length of the value with U+FFFD for invalid UTF-8, or anything above the bound if it is longer than that.
fn printed_len(value: &[u8]) -> usize {
    if value.len() > VALUE_BYTES_MAX {
        return value.len();
    }
    let replacement = |invalid: &[u8]| if invalid.is_empty() { 0 } else { REPLACEMENT.len() };
    value.utf8_chunks().map(|chunk| chunk.valid().len() + replacement(chunk.invalid())).sum()
}

fn escape(clean: &[u8], take: &mut impl FnMut(&[u8]) -> bool) -> bool {
    let mut rest = clean;
    while let Some(at) = memchr3(b'\\', b'"', b'\n', rest) {
        let sequence: &[u8] = match rest[at] {
            b'\\' => b"\\\\",
            b'"' => b"\\\"",
            _ => b"\\n",
        };
        if !take(&rest[..at]) || !take(sequence) {
            return false;
        }
        rest = &rest[at + 1..];
    }
    take(rest)
}

/// The labels of an encoded label part, unescaped, in their order. Ends where the text is malformed.
#[derive(Debug, Clone)]
pub struct LabelPairs<'a> {
    raw: RawPairs<'a>,
}

impl<'a> LabelPairs<'a> {
    /// Reads the output of [`encode`].
    pub fn new(encoded: &'a [u8]) -> Self {
        LabelPairs { raw: RawPairs { rest: encoded } }
    }
}

impl<'a> Iterator for LabelPairs<'a> {
    type Item = (&'a str, Cow<'a, str>);

    fn next(&mut self) -> Option<Self::Item> {
        let (name, value) = self.raw.next()?;
        Some((str::from_utf8(name).ok()?, unescaped(value)))
    }
}

/// The value of the label `name`, unescaped.
pub fn value_of<'a>(encoded: &'a [u8], name: &str) -> Option<Cow<'a, str>> {
    let mut raw = RawPairs { rest: encoded };
    raw.find(|(label, _)| *label == name.as_bytes()).map(|(_, value)| unescaped(value))
}

/// The labels of an encoded label part as bytes: names, and values still escaped.
#[derive(Debug, Clone)]
pub(crate) struct RawPairs<'a> {
    pub(crate) rest: &'a [u8],
}

impl<'a> Iterator for RawPairs<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let text = self.rest.strip_prefix(b",").unwrap_or(self.rest);
        let (name, text) = text.split_at_checked(memchr(b'=', text)?)?;
        let text = text.strip_prefix(b"=\"")?;
        let mut end = 0;
        loop {
            end += memchr2(b'"', b'\\', text.get(end..)?)?;
            if text[end] == b'"' {
                break;
            }
            // A backslash and the byte that it escapes.
            end += 2;
        }
        self.rest = &text[end + 1..];
        Some((name, &text[..end]))
    }
}

/// Appends an escaped value in its original form.
pub(crate) fn push_unescaped(out: &mut Vec<u8>, escaped: &[u8]) {
    let mut rest = escaped;
    while let Some(at) = memchr(b'\\', rest) {
        out.extend_from_slice(&rest[..at]);
        match rest.get(at + 1) {
            Some(b'n') => out.push(b'\n'),
            Some(&byte) => out.push(byte),
            None => {}
        }
        rest = rest.get(at + 2..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
}

fn unescaped(escaped: &[u8]) -> Cow<'_, str> {
    if memchr(b'\\', escaped).is_none() {
        return String::from_utf8_lossy(escaped);
    }
    let mut value = Vec::with_capacity(escaped.len());
    push_unescaped(&mut value, escaped);
    Cow::Owned(String::from_utf8_lossy(&value).into_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(value: &[u8]) -> String {
        let mut out = Vec::new();
        push_pair(&mut out, true, "a", value);
        String::from_utf8(out).unwrap()
    }

    /// A value as it should be before escaping, computed as simply as possible.
    fn meant(value: &[u8]) -> String {
        let text = String::from_utf8_lossy(value).into_owned();
        if text.len() <= VALUE_BYTES_MAX {
            return text;
        }
        let fits = |at: &usize| text.is_char_boundary(*at) && at + CUT_MARK.len() <= VALUE_BYTES_MAX;
        let end = (0..=VALUE_BYTES_MAX).rev().find(fits).unwrap();
        format!("{}{CUT_MARK}", &text[..end])
    }

    #[test]
    fn values() {
        let check = |value: &[u8], expected: &str| assert_eq!(encoded(value), format!("a=\"{expected}\""));
        check(b"", "");
        check(b"plain /?&=,{}", "plain /?&=,{}");
        check("käse 🧀".as_bytes(), "käse 🧀");
        check(b"a\\b\"c\nd", "a\\\\b\\\"c\\nd");
        check(b"\\n", "\\\\n");
        check(b"\0\r\t", "\0\r\t");
        check(b"a\xffb", "a\u{fffd}b");
        check(b"\xe2\x82", "\u{fffd}");
        check(&[b'x'; VALUE_BYTES_MAX], &"x".repeat(VALUE_BYTES_MAX));
        check(&[b'x'; VALUE_BYTES_MAX + 1], &format!("{}…", "x".repeat(1021)));
        check("ä".repeat(600).as_bytes(), &format!("{}…", "ä".repeat(510)));
        check(&[0xff; 1 << 20], &format!("{}…", "\u{fffd}".repeat(340)));
    }

    #[test]
    fn pairs_of_malformed_text_end() {
        let count = |text: &[u8]| LabelPairs::new(text).count();
        assert_eq!(count(b""), 0);
        assert_eq!(count(b"a"), 0);
        assert_eq!(count(b"a=\"x"), 0);
        assert_eq!(count(b"a=\"x\\"), 0);
        assert_eq!(count(b"a=\"x\",b=\"\\\""), 1);
    }

    #[test]
    fn one_value() {
        let text = b"a=\"x\",ab=\"y\\\"z\",b=\"\"";
        assert_eq!(value_of(text, "ab").as_deref(), Some("y\"z"));
        assert_eq!(value_of(text, "b").as_deref(), Some(""));
        assert_eq!(value_of(text, "c"), None);
    }

    #[test]
    fn quotes_in_values_do_not_stand_for_those_around_them() {
        let names = ["a".to_owned(), "b".to_owned()];
        let mut text = Vec::new();
        encode(&mut text, &names, &[b"", b"xxxxT"]);
        assert!(matches(&text, &names, &[b"", b"xxxxT"]));
        assert!(!matches(&text, &names, &[b"\",b=", b"T"]));
        assert!(!matches(&text, &names, &[b"\",b=\"xxxxT", b""]));
        assert!(!matches(&text, &names, &[b"", b"xxxx"]));
        assert!(!matches(&text, &names, &[b"", b"xxxxT\""]));
    }

    /// Values that look like parts of the encoded text.
    fn hostile_value() -> impl Strategy<Value = Vec<u8>> {
        let part = prop_oneof![
            Just(b"\\".to_vec()),
            Just(b"\"".to_vec()),
            Just(b"\n".to_vec()),
            Just(b"n".to_vec()),
            Just(b"x".to_vec()),
            Just(b"\",b=\"".to_vec()),
            Just(b"\",b=".to_vec()),
            Just(b",b=".to_vec()),
            Just(b"xxxx".to_vec()),
            Just(b"\xff".to_vec()),
            Just(b"\xf0\x9f".to_vec()),
            Just("🧀".as_bytes().to_vec()),
            Just("…".as_bytes().to_vec()),
            Just(vec![b'y'; 1018]),
            Just(vec![0xc3; 400]),
        ];
        prop::collection::vec(part, 0..5).prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn what_is_read_back_is_what_was_meant(values in prop::collection::vec(hostile_value(), 0..4)) {
            let names: Vec<String> = ["a", "b", "c"].iter().take(values.len()).map(|name| (*name).into()).collect();
            let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
            let mut text = Vec::new();
            encode(&mut text, &names, &values);
            let read: Vec<(String, String)> =
                LabelPairs::new(&text).map(|(name, value)| (name.to_owned(), value.into_owned())).collect();
            let expected: Vec<(String, String)> =
                names.iter().zip(&values).map(|(name, value)| (name.clone(), meant(value))).collect();
            prop_assert_eq!(read, expected);
            prop_assert!(memchr(b'\n', &text).is_none());
        }

        #[test]
        fn no_cut_of_the_text_itself_matches_but_the_right_one(
            stored in prop::collection::vec("[\",=abc]{0,8}", 2), cuts in prop::collection::vec(0_usize..40, 4),
        ) {
            let names = ["a".to_owned(), "b".to_owned()];
            let stored: Vec<&[u8]> = stored.iter().map(String::as_bytes).collect();
            let (mut text, mut asked_text) = (Vec::new(), Vec::new());
            encode(&mut text, &names, &stored);
            let cut = |from: usize, len: usize| text.get(from..from + len).unwrap_or_default();
            let asked = [cut(cuts[0], cuts[1]), cut(cuts[2], cuts[3])];
            encode(&mut asked_text, &names, &asked);
            prop_assert_eq!(matches(&text, &names, &asked), text == asked_text);
        }

        #[test]
        fn matching_is_encoding_and_comparing(
            stored in prop::collection::vec(hostile_value(), 3),
            other in prop::collection::vec(hostile_value(), 3),
            same in prop::collection::vec(any::<bool>(), 3),
        ) {
            let names: Vec<String> = ["a", "b", "c"].map(String::from).into();
            let pick = |index: usize| if same[index] { &stored[index] } else { &other[index] };
            let asked: Vec<&[u8]> = (0..3).map(|index| pick(index).as_slice()).collect();
            let stored: Vec<&[u8]> = stored.iter().map(Vec::as_slice).collect();
            let (mut text, mut asked_text) = (Vec::new(), Vec::new());
            encode(&mut text, &names, &stored);
            encode(&mut asked_text, &names, &asked);
            prop_assert_eq!(matches(&text, &names, &asked), text == asked_text);
            prop_assert!(matches(&text, &names, &stored));
        }
    }
}
