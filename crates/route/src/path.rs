//! Paths in the one form they are matched in: as nodes decode them, with duplicate slashes merged.
//!
//! The normal form decodes `%XX` of characters that a segment may contain (RFC 3986 `pchar`, so `%40` is `@`), writes
//! every other `%XX` in upper case, encodes characters that paths must not contain, merges slashes and then removes dot
//! segments (in that order, as nginx does). It is for matching only: the path is forwarded as it came. An encoded slash
//! stays encoded here; [`crate::Matcher::find`] refuses a request whose route would differ if it were decoded.

use std::fmt;

/// A request target that cannot be routed; answered with 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathError {
    /// It does not begin with a slash.
    NotAbsolute,
    /// A `..` leads above the root.
    AboveRoot,
    /// A NUL byte, encoded or not.
    Nul,
    /// A `%` without two hexadecimal digits.
    Percent,
    /// The route of the request depends on whether `%2F` is a slash.
    EncodedSlash,
    /// It has more than [`crate::ARGUMENTS_MAX`] arguments that routes read.
    TooManyArguments,
    /// The regexes of routes or of a condition would take too long on its path or its fields.
    TooMuchWork,
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PathError::NotAbsolute => "the path does not begin with '/'",
            PathError::AboveRoot => "the path leads above the root",
            PathError::Nul => "the path holds a NUL byte",
            PathError::Percent => "the path holds a '%' without two hexadecimal digits",
            PathError::EncodedSlash => "the route depends on whether %2F in the path is a slash",
            PathError::TooManyArguments => "the query has more than 1000 arguments that routes are chosen by",
            PathError::TooMuchWork => "regular expressions that it is compared with would take too long",
        })
    }
}

impl std::error::Error for PathError {}

/// A path in normal form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NormalisedPath<'a> {
    bytes: &'a [u8],
    /// The path as it came, if it holds `%2F`. The other reading cannot be made from the normal form: there a `..` has removed the
    /// segment with the `%2F`, where a node that decodes first sees two segments.
    ambiguous: Option<&'a [u8]>,
}

impl<'a> NormalisedPath<'a> {
    /// `/`
    pub const ROOT: NormalisedPath<'static> = NormalisedPath { bytes: b"/", ambiguous: None };

    /// A path that was normalised before, given as its text and [`NormalisedPath::ambiguous`].
    #[inline]
    pub fn from_normalised(bytes: &'a [u8], ambiguous: Option<&'a [u8]>) -> NormalisedPath<'a> {
        NormalisedPath { bytes, ambiguous }
    }

    /// The text; it begins with a slash and is printable ASCII.
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// The path as it came, if that holds `%2F`.
    #[inline]
    pub fn ambiguous(self) -> Option<&'a [u8]> {
        self.ambiguous
    }

    /// The text of the path, as nginx has it in `$uri`, which most nodes serve: decoded, and each `%2F` is a slash from the
    /// beginning.
    pub fn text<'b>(self, buffer: &'b mut Vec<u8>) -> &'b [u8]
    where
        'a: 'b,
    {
        if self.ambiguous.is_none() {
            return decode(self.bytes, buffer);
        }
        let mut read = Vec::new();
        let read = self.with_slashes_decoded(&mut read);
        buffer.clear();
        push_as_text(read, buffer);
        buffer
    }

    /// [`NormalisedPath::text`] before it is decoded, in normal form.
    pub(crate) fn with_slashes_decoded<'b>(self, buffer: &'b mut Vec<u8>) -> &'b [u8]
    where
        'a: 'b,
    {
        match self.ambiguous.map(|raw| decode_slashes(raw, buffer)) {
            Some(Ok(path)) => path.bytes,
            // Above the root: nodes refuse it.
            Some(Err(_)) | None => self.bytes,
        }
    }
}

/// Splits an origin-form request target at its first `?`: the path, and the query without the `?`.
pub fn target_path(target: &[u8]) -> (&[u8], Option<&[u8]>) {
    match memchr::memchr(b'?', target) {
        Some(at) => (&target[..at], Some(&target[at + 1..])),
        None => (target, None),
    }
}

/// Brings a path (without query) into normal form; an empty one (of an absolute-form target) becomes `/`.
///
/// Borrows `raw` if that is in normal form; otherwise the result lives in `scratch`, whose content is replaced and
/// which grows to at most three times `raw`.
pub fn normalise<'a>(raw: &'a [u8], scratch: &'a mut Vec<u8>) -> Result<NormalisedPath<'a>, PathError> {
    if raw.is_empty() {
        return Ok(NormalisedPath::ROOT);
    }
    if raw[0] != b'/' {
        return Err(PathError::NotAbsolute);
    }
    if is_plain(raw) {
        return Ok(NormalisedPath { bytes: raw, ambiguous: None });
    }
    scratch.clear();
    let found = normalise_into(raw, EncodedSlash::Kept, scratch)?;
    Ok(NormalisedPath { bytes: scratch, ambiguous: found.has_encoded_slash.then_some(raw) })
}

/// The normal form of an absolute path in which every `%2F` is a slash from the beginning, as nginx reads it.
pub(crate) fn decode_slashes<'a>(raw: &[u8], scratch: &'a mut Vec<u8>) -> Result<NormalisedPath<'a>, PathError> {
    scratch.clear();
    normalise_into(raw, EncodedSlash::Decoded, scratch)?;
    Ok(NormalisedPath { bytes: scratch, ambiguous: None })
}

/// The text of an encoded path or of a part of it: decoded, into `buffer` if it must be.
pub fn decode<'a>(part: &'a [u8], buffer: &'a mut Vec<u8>) -> &'a [u8] {
    if memchr::memchr(b'%', part).is_none() {
        return part;
    }
    buffer.clear();
    push_as_text(part, buffer);
    buffer
}

/// [`decode`] with `%2F` as it is: text of its segment, in the reading that does not take it for a slash.
pub(crate) fn decode_but_slashes<'a>(part: &'a [u8], buffer: &'a mut Vec<u8>) -> &'a [u8] {
    const ENCODED: &[u8] = b"%2F";
    if memchr::memmem::find(part, ENCODED).is_none() {
        return decode(part, buffer);
    }
    buffer.clear();
    let mut rest = part;
    while let Some(at) = memchr::memmem::find(rest, ENCODED) {
        push_as_text(&rest[..at], buffer);
        buffer.extend_from_slice(ENCODED);
        rest = &rest[at + ENCODED.len()..];
    }
    push_as_text(rest, buffer);
    buffer
}

/// Appends the text of a part of a path in normal form. A `%` that the part was cut behind stays.
pub(crate) fn push_as_text(part: &[u8], out: &mut Vec<u8>) {
    let mut rest = part;
    while let Some((&byte, after)) = rest.split_first() {
        let decoded = (byte == b'%').then(|| hex_pair(after)).flatten();
        out.push(decoded.unwrap_or(byte));
        rest = if decoded.is_some() { &after[2..] } else { after };
    }
}

/// How `%2F` is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EncodedSlash {
    /// As text of its segment.
    Kept,
    /// As a slash.
    Decoded,
}

/// What a raw path contained that its normal form may not show.
struct RawPathContent {
    has_encoded_slash: bool,
}

/// Classes of bytes by their treatment in a raw path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// In normal form it is never encoded (RFC 3986 `pchar`). Nodes decode reserved characters, too.
    Plain,
    /// Separates segments.
    Slash,
    /// Begins an encoded byte.
    Percent,
    /// Not allowed in a path, so it is encoded.
    Illegal,
}

static CLASSES: [Class; 256] = classes();

/// Whether a byte can be in a segment in normal form, where it is never percent-encoded.
pub(crate) fn is_unescaped_byte(byte: u8) -> bool {
    CLASSES[byte as usize] == Class::Plain
}

const fn classes() -> [Class; 256] {
    let mut classes = [Class::Illegal; 256];
    let mut byte = 0;
    while byte < 128 {
        classes[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => Class::Plain,
            b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=' | b':' | b'@' => Class::Plain,
            b'/' => Class::Slash,
            b'%' => Class::Percent,
            _ => Class::Illegal,
        };
        byte += 1;
    }
    classes
}

/// Bytes that [`is_plain`] has to examine: the slash, and bytes that make a path not plain.
static ENDS_RUN: [bool; 256] = {
    let classes = classes();
    let mut ends = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        ends[byte] = matches!(classes[byte], Class::Slash | Class::Percent | Class::Illegal);
        byte += 1;
    }
    ends
};

/// Whether a path that begins with a slash is in normal form and holds no `%`.
fn is_plain(raw: &[u8]) -> bool {
    let mut rest = raw;
    loop {
        // `rest` begins with a slash; an empty segment or dots may follow it.
        rest = &rest[1..];
        match rest.first() {
            Some(b'/') => return false,
            Some(b'.') if begins_with_dot_segment(rest) => return false,
            _ => {}
        }
        match rest.iter().position(|&byte| ENDS_RUN[byte as usize]) {
            None => return true,
            Some(at) if rest[at] == b'/' => rest = &rest[at..],
            Some(_) => return false,
        }
    }
}

fn begins_with_dot_segment(rest: &[u8]) -> bool {
    let rest = rest.strip_prefix(b"..").or_else(|| rest.strip_prefix(b".")).unwrap_or(rest);
    matches!(rest.first(), None | Some(b'/'))
}

/// Writes the normal form of `raw` to the empty `out`.
fn normalise_into(raw: &[u8], encoded_slashes: EncodedSlash, out: &mut Vec<u8>) -> Result<RawPathContent, PathError> {
    let mut has_encoded_slash = false;
    out.push(b'/');
    // Invariant: `out[..segment]` is finished and ends with a slash.
    let mut segment = 1;
    let mut rest = &raw[1..];
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match CLASSES[byte as usize] {
            Class::Slash => segment = end_segment(out, segment, true)?,
            Class::Percent => {
                let decoded = hex_pair(rest).ok_or(PathError::Percent)?;
                rest = &rest[2..];
                has_encoded_slash |= decoded == b'/';
                match decoded {
                    b'/' if encoded_slashes == EncodedSlash::Decoded => segment = end_segment(out, segment, true)?,
                    _ => push_decoded(decoded, out)?,
                }
            }
            Class::Illegal if byte == 0 => return Err(PathError::Nul),
            Class::Illegal => push_encoded(byte, out),
            Class::Plain => out.push(byte),
        }
    }
    end_segment(out, segment, false)?;
    Ok(RawPathContent { has_encoded_slash })
}

/// Ends the segment that begins at `segment`; returns the beginning of the next one.
fn end_segment(out: &mut Vec<u8>, segment: usize, slash_follows: bool) -> Result<usize, PathError> {
    match &out[segment..] {
        b"" => Ok(segment),
        b"." => {
            out.truncate(segment);
            Ok(segment)
        }
        b".." => {
            if segment == 1 {
                return Err(PathError::AboveRoot);
            }
            let parent = memchr::memrchr(b'/', &out[..segment - 1]).map_or(1, |slash| slash + 1);
            out.truncate(parent);
            Ok(parent)
        }
        _ => {
            if slash_follows {
                out.push(b'/');
            }
            Ok(out.len())
        }
    }
}

fn push_decoded(byte: u8, out: &mut Vec<u8>) -> Result<(), PathError> {
    match CLASSES[byte as usize] {
        _ if byte == 0 => return Err(PathError::Nul),
        Class::Plain => out.push(byte),
        Class::Slash | Class::Percent | Class::Illegal => push_encoded(byte, out),
    }
    Ok(())
}

fn push_encoded(byte: u8, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.extend_from_slice(&[b'%', DIGITS[(byte >> 4) as usize], DIGITS[(byte & 15) as usize]]);
}

fn hex_pair(text: &[u8]) -> Option<u8> {
    let digit = |at: usize| (*text.get(at)? as char).to_digit(16);
    Some((digit(0)? << 4 | digit(1)?) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn normal(raw: &str) -> Result<String, PathError> {
        let mut scratch = Vec::new();
        let path = normalise(raw.as_bytes(), &mut scratch)?;
        Ok(String::from_utf8(path.bytes().to_vec()).unwrap())
    }

    #[test]
    fn normal_forms() {
        let check = |raw: &str, expected: Result<&str, PathError>| {
            assert_eq!(normal(raw), expected.map(str::to_owned), "{raw}");
        };
        check("/", Ok("/"));
        check("", Ok("/"));
        check("/a/b", Ok("/a/b"));
        check("/a/b/", Ok("/a/b/"));
        check("//a///b//", Ok("/a/b/"));
        check("/%61%2D%7e", Ok("/a-~"));
        check("/%2f%5c%25%3f%c3%a4", Ok("/%2F%5C%25%3F%C3%A4"));
        check("/%21%24%26%27%28%29%2a%2b%2c%3a%3b%3d%40", Ok("/!$&'()*+,:;=@"));
        check("/a b{}|", Ok("/a%20b%7B%7D%7C"));
        check("/ä", Ok("/%C3%A4"));
        check("/a:b@c;d=e,f!", Ok("/a:b@c;d=e,f!"));
        check("/a/./b/.", Ok("/a/b/"));
        check("/a/../b", Ok("/b"));
        check("/a/b/..", Ok("/a/"));
        check("/a/..", Ok("/"));
        check("/a//../b", Ok("/b"));
        check("/a/%2e%2E/b", Ok("/b"));
        check("/a/%2e/b", Ok("/a/b"));
        check("/.well-known/...", Ok("/.well-known/..."));
        check("/a/.b/..c/d.", Ok("/a/.b/..c/d."));
        check("/..", Err(PathError::AboveRoot));
        check("/a/../..", Err(PathError::AboveRoot));
        check("/%2e%2e/a", Err(PathError::AboveRoot));
        check("/a%00b", Err(PathError::Nul));
        check("/a\0b", Err(PathError::Nul));
        check("/%", Err(PathError::Percent));
        check("/%4", Err(PathError::Percent));
        check("/%zz", Err(PathError::Percent));
        check("/%+1", Err(PathError::Percent));
        check("a", Err(PathError::NotAbsolute));
        check("*", Err(PathError::NotAbsolute));
    }

    #[test]
    fn what_is_normal_is_borrowed() {
        let check = |raw: &str, borrowed: bool| {
            let mut scratch = Vec::new();
            let path = normalise(raw.as_bytes(), &mut scratch).unwrap();
            assert_eq!(std::ptr::eq(path.bytes(), raw.as_bytes()), borrowed, "{raw}");
        };
        check("/a/b.c/.d/..e/f./g..", true);
        check("/", true);
        check("/a/.", false);
        check("/a//b", false);
        check("/%41", false);
    }

    #[test]
    fn encoded_slashes_are_noticed_and_can_be_decoded() {
        let check = |raw: &str, expected: Option<&str>| {
            let (mut a, mut b) = (Vec::new(), Vec::new());
            let path = normalise(raw.as_bytes(), &mut a).unwrap();
            assert_eq!(path.ambiguous(), expected.map(|_| raw.as_bytes()), "{raw}");
            if let Some(expected) = expected {
                assert_eq!(decode_slashes(raw.as_bytes(), &mut b).unwrap().bytes(), expected.as_bytes(), "{raw}");
            }
        };
        check("/a/b", None);
        check("/a%252Fb", None);
        check("/a%2f../b", Some("/b"));
        check("/a/b%2f..%2Fc", Some("/a/c"));
        check("/a%2fb/../c", Some("/a/c"));
        check("/a%2F%2f/%2e%2E/c", Some("/c"));
        check("/a/%2e%2f%40", Some("/a/@"));
    }

    #[test]
    fn targets_are_cut_at_the_first_question_mark() {
        assert_eq!(target_path(b"/a?b?c"), (&b"/a"[..], Some(&b"b?c"[..])));
        assert_eq!(target_path(b"/a?"), (&b"/a"[..], Some(&b""[..])));
        assert_eq!(target_path(b"/a"), (&b"/a"[..], None));
    }

    #[test]
    fn long_paths_take_linear_time() {
        let mib = 1 << 20;
        let ups = format!("{}{}", "/a".repeat(mib / 8), "/..".repeat(mib / 8));
        assert_eq!(normal(&ups), Ok("/".to_owned()));
        assert_eq!(normal(&"/".repeat(mib)), Ok("/".to_owned()));
        assert_eq!(normal(&"/..".repeat(mib)), Err(PathError::AboveRoot));
    }

    fn percent_decoded(text: &[u8]) -> Vec<u8> {
        let (mut out, mut rest) = (Vec::new(), text);
        while let Some((&byte, after)) = rest.split_first() {
            let decoded = (byte == b'%').then(|| hex_pair(after).unwrap());
            out.push(decoded.unwrap_or(byte));
            rest = if decoded.is_some() { &after[2..] } else { after };
        }
        out
    }

    /// The path without dots and duplicate slashes; `None` if it leads above the root.
    fn as_decoded_first(decoded: &[u8]) -> Option<Vec<u8>> {
        let mut segments: Vec<&[u8]> = Vec::new();
        let mut ends_in_slash = false;
        for segment in decoded.split(|byte| *byte == b'/') {
            ends_in_slash = matches!(segment, b"" | b"." | b"..");
            match segment {
                b"" | b"." => {}
                b".." => drop(segments.pop()?),
                _ => segments.push(segment),
            }
        }
        let mut out = Vec::new();
        for segment in &segments {
            out.push(b'/');
            out.extend_from_slice(segment);
        }
        if ends_in_slash || segments.is_empty() {
            out.push(b'/');
        }
        Some(out)
    }

    proptest! {
        #[test]
        fn normalising_is_idempotent_and_leaves_nothing_to_do(
            parts in proptest::collection::vec(
                prop_oneof![
                    Just("/".to_owned()), Just(".".to_owned()), Just("..".to_owned()), Just("%2e".to_owned()),
                    Just("%2F".to_owned()), Just("%c3".to_owned()), Just("%41".to_owned()), "[a-c:ä *{]{1,2}",
                ],
                0..24,
            )
        ) {
            let raw = format!("/{}", parts.concat());
            if let Ok(once) = normal(&raw) {
                prop_assert_eq!(normal(&once), Ok(once.clone()));
                prop_assert!(once.starts_with('/'));
                prop_assert!(!once.contains("//"));
                prop_assert!(!once.split('/').any(|segment| segment == "." || segment == ".."));
                prop_assert!(once.bytes().all(|byte| byte.is_ascii_graphic()));
            }
        }

        /// A node that decodes first and removes dots then finds what one of the two readings says.
        #[test]
        fn a_node_that_decodes_first_finds_one_of_the_readings(
            parts in proptest::collection::vec(
                prop_oneof![
                    Just("/"), Just(".."), Just("%2e"), Just("."), Just("%2F"), Just("%2f"), Just("%40"), Just("@"),
                    Just("%3a"), Just(":"), Just("%61"), Just("a"), Just("%252F"), Just("%5c"),
                ],
                0..16,
            )
        ) {
            let raw = format!("/{}", parts.concat());
            let (mut a, mut b) = (Vec::new(), Vec::new());
            if let Ok(path) = normalise(raw.as_bytes(), &mut a) {
                let reading = match path.ambiguous() {
                    Some(raw) => decode_slashes(raw, &mut b).map(|path| path.bytes()),
                    None => Ok(path.bytes()),
                };
                let decoded = reading.ok().map(percent_decoded);
                prop_assert_eq!(decoded, as_decoded_first(&percent_decoded(raw.as_bytes())), "{}", raw);
            }
        }

        #[test]
        fn any_bytes_are_normalised_or_refused(raw in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut scratch = Vec::new();
            if let Ok(path) = normalise(&raw, &mut scratch) {
                prop_assert!(path.bytes().iter().all(|byte| byte.is_ascii_graphic()));
            }
        }
    }
}
