//! Predicates whose answer is known without a request, because their field has only certain values.
//!
//! Each answer comes with its reason, which lint shows to the author of the predicate. Only what is certain is claimed:
//! `None` means unknown.

use crate::Variable;
use crate::condition::{ConditionValue, Field, FieldKind, Predicate, Test};
use crate::path;
use crate::pattern::STAR;

/// Why no request satisfies a predicate, with a suggestion.
pub(crate) fn never(predicate: &Predicate) -> Option<String> {
    let field = &predicate.field;
    if let Some((first, last)) = int_domain(field) {
        let (low, high) = int_range(&predicate.test)?;
        return (low > last || high < first).then(|| match field {
            Field::SegmentCount => format!("{field} is at least 0"),
            _ => format!("{field} is from {first} to {last}"),
        });
    }
    if let Some(values) = finite_domain(field).filter(|_| !matches!(predicate.test, Test::Regex(_))) {
        let passes = |value: &&[u8]| predicate.test.passes(ConditionValue::Text(value));
        return (!values.iter().any(passes)).then(|| format!("{field} is \"http\" or \"https\""));
    }
    let literal = RequiredText::of(&predicate.test)?;
    if predicate.lower
        && let Some(reason) = unlike_lower_case(literal)
    {
        return Some(reason);
    }
    value_flaw(field, literal, predicate.lower)
}

/// Why every request satisfies a predicate.
pub(crate) fn always(predicate: &Predicate) -> Option<String> {
    let field = &predicate.field;
    if !field.is_always_there() {
        return None;
    }
    if let Some((first, last)) = int_domain(field) {
        let (low, high) = int_range(&predicate.test)?;
        return (low <= first && high >= last).then(|| format!("{field} is never below 0"));
    }
    if let Some(values) = finite_domain(field).filter(|_| !matches!(predicate.test, Test::Regex(_))) {
        let all = values.iter().all(|value| predicate.test.passes(ConditionValue::Text(value)));
        return all.then(|| format!("{field} is always \"http\" or \"https\""));
    }
    match &predicate.test {
        Test::Present => Some(format!("every request has {field}")),
        Test::Methods(methods) if methods.is_empty() => Some("no methods means any method".to_owned()),
        Test::Prefix(text) | Test::Suffix(text) | Test::Contains(text) if text.is_empty() => {
            Some("an empty text is in every text".to_owned())
        }
        Test::Prefix(text) | Test::Contains(text) if is_whole_path(field) && **text == *b"/" => {
            Some("every path begins with \"/\"".to_owned())
        }
        Test::Path(pattern) if *field == Field::Path && *pattern.key() == [b'/', STAR] && pattern.tail().is_empty() => {
            Some("every path begins with \"/\"".to_owned())
        }
        Test::Regex(pattern) => {
            const EVERY_TEXT: [&str; 4] = ["", "^", ".*", "^.*"];
            const EVERY_PATH: [&str; 5] = ["/", "^/", "/.*", "^/.*", ".+"];
            let source = pattern.source();
            let every = EVERY_TEXT.contains(&source) || is_whole_path(field) && EVERY_PATH.contains(&source);
            every.then(|| format!("the regex matches every {}", if is_whole_path(field) { "path" } else { "text" }))
        }
        Test::NotEqual(text) if field.kind() == FieldKind::Text => {
            value_flaw(field, RequiredText { text, begins: true, ends: true }, predicate.lower)
        }
        _ => None,
    }
}

/// Whether the values of a field are whole paths.
fn is_whole_path(field: &Field) -> bool {
    matches!(field, Field::Path | Field::Variable(Variable::Uri))
}

/// The values of a number field.
pub(crate) fn int_domain(field: &Field) -> Option<(i64, i64)> {
    match field {
        Field::SegmentCount => Some((0, i64::MAX)),
        Field::SourcePort | Field::DestinationPort => Some((0, u16::MAX as i64)),
        _ => None,
    }
}

/// The values of a field that has few.
pub(crate) fn finite_domain(field: &Field) -> Option<[&'static [u8]; 2]> {
    matches!(field, Field::Protocol).then_some([b"http", b"https"])
}

/// The numbers that pass a test, from the first to the last; the first is after the last if none passes. `None` for
/// tests that do not describe a range, such as `!=`.
pub(crate) fn int_range(test: &Test) -> Option<(i64, i64)> {
    const NONE: (i64, i64) = (1, 0);
    Some(match test {
        Test::IntEqual(number) => (*number, *number),
        Test::Less(bound) => bound.checked_sub(1).map_or(NONE, |last| (i64::MIN, last)),
        Test::LessOrEqual(bound) => (i64::MIN, *bound),
        Test::Greater(bound) => bound.checked_add(1).map_or(NONE, |first| (first, i64::MAX)),
        Test::GreaterOrEqual(bound) => (*bound, i64::MAX),
        _ => return None,
    })
}

/// Text that every value has which passes a test.
#[derive(Clone, Copy)]
struct RequiredText<'a> {
    text: &'a [u8],
    /// Whether values begin with it.
    begins: bool,
    /// Whether values end with it.
    ends: bool,
}

impl RequiredText<'_> {
    fn of(test: &Test) -> Option<RequiredText<'_>> {
        let (text, begins, ends) = match test {
            Test::Equal(text) => (text, true, true),
            Test::Prefix(text) => (text, true, false),
            Test::Suffix(text) => (text, false, true),
            Test::Contains(text) => (text, false, false),
            _ => return None,
        };
        Some(RequiredText { text, begins, ends })
    }
}

/// Why the literal cannot be in a value that was put into lower case.
fn unlike_lower_case(literal: RequiredText<'_>) -> Option<String> {
    let text = literal.text;
    let lower = || String::from_utf8_lossy(text).to_lowercase();
    // Beyond ASCII only a whole text is certain: in values that are not UTF-8 only ASCII letters are lowered.
    let certain = text.iter().any(u8::is_ascii_uppercase)
        || (!text.is_ascii() && literal.begins && literal.ends)
            && std::str::from_utf8(text).is_ok_and(|text| text.to_lowercase() != text);
    certain.then(|| format!("lower() leaves no upper case; write {:?}", lower()))
}

fn value_flaw(field: &Field, literal: RequiredText<'_>, lower: bool) -> Option<String> {
    match field {
        Field::Host => host_flaw(literal),
        Field::Path => path_flaw(literal, lower),
        Field::Variable(Variable::Uri) => start_flaw(literal, &|text| String::from_utf8(text.to_vec()).ok()),
        Field::Segment(_) | Field::Segments(..) => segment_flaw(field, literal, lower),
        _ => None,
    }
}

/// Why the literal cannot be in a host, see [`crate::canonical_host`].
fn host_flaw(literal: RequiredText<'_>) -> Option<String> {
    let text = literal.text;
    if text.is_empty() && literal.begins && literal.ends {
        return Some("a request without host has no http.host; write !(http.host contains \"\")".to_owned());
    }
    let lossy = String::from_utf8_lossy(text);
    if text.iter().any(u8::is_ascii_uppercase) {
        return Some(format!("hosts are compared in lower case; write {:?}", lossy.to_ascii_lowercase()));
    }
    if !text.is_ascii() {
        return Some("hosts are ASCII; write the punycode form (xn--…)".to_owned());
    }
    if let Some(byte) = text.iter().find(|byte| !byte.is_ascii_graphic() || b"\"#,/<>?@\\^`{|}".contains(byte)) {
        return Some(format!("{:?} is in no host", *byte as char));
    }
    // A colon is only in IPv6 addresses, which are in brackets.
    let colon = memchr::memchr(b':', text)?;
    if literal.begins && literal.ends {
        let inside = lossy.strip_prefix('[').and_then(|lossy| lossy.strip_suffix(']'));
        if let Ok(address) = inside.unwrap_or(&lossy).parse::<std::net::Ipv6Addr>() {
            let write = format!("[{address}]");
            return match inside {
                None => Some(format!("an IPv6 address needs brackets; write {write:?}")),
                Some(_) => (write != *lossy)
                    .then(|| format!("IPv6 addresses are compared in the form of RFC 5952; write {write:?}")),
            };
        }
    }
    if (literal.begins && text[0] != b'[') || (literal.ends && !text.ends_with(b"]")) {
        let end = if text[0] == b'[' { memchr::memrchr(b':', text)? } else { colon };
        let write = String::from_utf8_lossy(&text[..end]);
        return Some(format!("hosts are compared without port{}", suggest(Some(write.into_owned()))));
    }
    None
}

/// Why the literal cannot be in a path in normal form.
fn path_flaw(literal: RequiredText<'_>, lower: bool) -> Option<String> {
    let in_normal_form = |text: &[u8]| normal_form(text, lower).or_else(|| String::from_utf8(text.to_vec()).ok());
    start_flaw(literal, &in_normal_form).or_else(|| flaw_inside(literal, lower))
}

/// Why no path begins with the literal; `as_written`: the text to write in its place.
fn start_flaw(literal: RequiredText<'_>, as_written: &dyn Fn(&[u8]) -> Option<String>) -> Option<String> {
    let text = literal.text;
    let is_wrong = literal.begins && text.first().map_or(literal.ends, |first| *first != b'/');
    is_wrong.then(|| format!("paths begin with \"/\"{}", suggest(as_written(&[b"/", text].concat()))))
}

fn segment_flaw(field: &Field, literal: RequiredText<'_>, lower: bool) -> Option<String> {
    let text = literal.text;
    if text.is_empty() && literal.begins && literal.ends {
        return Some("no segment of a path is empty".to_owned());
    }
    let slashes = memchr::memchr_iter(b'/', text).count();
    let slashes_max = match field {
        Field::Segments(first, last) => usize::from(last - first),
        _ => 0,
    };
    let shape = || match slashes_max {
        0 => format!("{field} is one segment, without \"/\""),
        more => format!("{field} is {} segments, joined by \"/\"", more + 1),
    };
    if slashes > slashes_max {
        return Some(shape());
    }
    let outer = (literal.begins && text.starts_with(b"/")) || (literal.ends && text.ends_with(b"/"));
    if outer || literal.begins && literal.ends && slashes < slashes_max {
        return Some(shape());
    }
    if literal.begins && (text.starts_with(b"./") || text.starts_with(b"../") || literal.ends && is_dots(text)) {
        return Some("paths are compared without dot segments".to_owned());
    }
    flaw_inside(literal, lower)
}

/// Why the literal cannot be anywhere in a path in normal form, see [`path`].
fn flaw_inside(literal: RequiredText<'_>, lower: bool) -> Option<String> {
    let text = literal.text;
    let write = || suggest(normal_form(text, lower));
    let mut before = 0;
    for (at, &byte) in text.iter().enumerate() {
        match byte {
            b'?' => return Some("paths are compared without query; test http.queries.NAME".to_owned()),
            b'%' if !may_be_escape(&text[at + 1..], literal.ends, lower) => {
                return Some(format!("paths are compared in normal form{}", write()));
            }
            b'/' if before == b'/' => {
                return Some(format!("paths are compared with duplicate slashes merged{}", write()));
            }
            b'/' | b'%' => {}
            byte if path::is_unescaped_byte(byte) => {}
            _ => return Some(format!("paths are compared in normal form{}", write())),
        }
        before = byte;
    }
    if !text.contains(&b'.') {
        return None;
    }
    // The first part may be the end of a longer segment, and unless the value ends there, the last one its beginning.
    let mut segments = text.split(|byte| *byte == b'/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        if is_dots(segment) && (literal.ends || segments.peek().is_some()) {
            return Some(format!("paths are compared without dot segments{}", write()));
        }
    }
    None
}

fn is_dots(segment: &[u8]) -> bool {
    matches!(segment, b"." | b"..")
}

/// Whether the text after a `%` can be the digits of an encoded byte in normal form; they may be cut off unless the
/// value ends there.
fn may_be_escape(after: &[u8], ends: bool, lower: bool) -> bool {
    let is_digit = |byte: &u8| byte.is_ascii_digit() || if lower { b'a'..=b'f' } else { b'A'..=b'F' }.contains(byte);
    let digits = &after[..after.len().min(2)];
    if !digits.iter().all(is_digit) {
        return false;
    }
    if digits.len() < 2 {
        return !ends;
    }
    let value = digits.iter().fold(0u32, |value, digit| value * 16 + (*digit as char).to_digit(16).unwrap_or(0)) as u8;
    value != 0 && !path::is_unescaped_byte(value)
}

fn suggest(write: Option<String>) -> String {
    write.filter(|write| !write.is_empty()).map_or_else(String::new, |write| format!("; write {write:?}"))
}

fn normal_form(text: &[u8], lower: bool) -> Option<String> {
    // A text without a leading slash is put behind one, and behind a letter, so that it cannot become a dot segment.
    const GUARD: &[u8] = b"/-";
    let guard = if text.starts_with(b"/") { &b""[..] } else { GUARD };
    let (raw, mut scratch) = ([guard, text].concat(), Vec::new());
    let normal = path::normalise(&raw, &mut scratch).ok()?;
    let normal = String::from_utf8_lossy(normal.bytes().strip_prefix(guard)?).into_owned();
    let normal = if lower { normal.to_ascii_lowercase() } else { normal };
    (normal.as_bytes() != text).then_some(normal)
}
