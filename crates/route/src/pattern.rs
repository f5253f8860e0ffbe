//! Path patterns of routes: literal text, `:name` for one segment, `*` at the end for any rest.
//!
//! A pattern is parsed into a key that sorts as patterns are tried: literal bytes, then [`PARAM`], then [`STAR`]. The
//! radix tree and the order of routes are both built from nothing but that key.

use crate::path::{self, PathError};
use crate::regex_like::{RegexLike, is_regex, may_be_regex};
use std::fmt;

/// Longest pattern in bytes.
pub const PATTERN_BYTES_MAX: usize = 4096;
/// Most `:name` parameters of one pattern, so that what a match captured has a fixed size.
pub const PARAMS_MAX: usize = 16;

/// Stands in a key for one whole non-empty segment. Literal text is printable ASCII, so it sorts after all of it.
pub(crate) const PARAM: u8 = 0xFE;
/// Stands at the end of a key for any rest, the empty one too.
pub(crate) const STAR: u8 = 0xFF;

/// A path pattern of a route.
///
/// - `/a/b` is that path alone.
/// - `/a/*` is every path that begins with `/a/` (so not `/a`), `/a*` every path that begins with `/a`.
/// - `/a/:id/b` has one non-empty segment in the place of `:id`; a colon elsewhere in a segment is literal.
/// - `/a/*rest` is `/a/*` and gives the rest a name.
///
/// Literal text is kept in the normal form of [`path::normalise`], so that `/käse` means `/k%C3%A4se`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PathPattern {
    key: Box<[u8]>,
    /// Of the parameters in order; of the rest last, where it has one.
    names: Box<[Box<str>]>,
}

/// Why a text is no path pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatternError {
    /// As it was written.
    pub text: String,
    /// What is wrong with it.
    pub kind: PatternErrorKind,
}

/// What is wrong with a path pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatternErrorKind {
    /// A regex.
    Regex(RegexLike),
    /// No leading slash.
    NotAbsolute,
    /// More than [`PATTERN_BYTES_MAX`] bytes.
    TooLong,
    /// A `*` that is not the only one, or not at the end.
    Star {
        /// The nearest pattern that is one.
        write: String,
    },
    /// More than [`PARAMS_MAX`] parameters.
    TooManyParams,
    /// A `:` or a final `*` followed by what is no name.
    Name {
        /// What follows.
        name: String,
    },
    /// One name twice.
    DuplicateName {
        /// That name.
        name: String,
    },
    /// A question mark.
    Query,
    /// Dot segments or duplicate slashes, which no normalised path has.
    NotNormal {
        /// The pattern without them.
        write: String,
    },
    /// A `%2F`: a request whose route depends on one is refused.
    EncodedSlash,
    /// Text no path can hold.
    Path(PathError),
}

impl PathPattern {
    /// Parses the `uri` of a route.
    pub fn parse(text: &str) -> Result<PathPattern, PatternError> {
        let parsed = match parse(text) {
            Err(kind) if kind != PatternErrorKind::TooLong && may_be_regex(text) => Err(kind_of_regex(text)),
            Ok(_) if is_regex(text) => Err(kind_of_regex(text)),
            parsed => parsed,
        };
        parsed.map_err(|kind| PatternError { text: text.to_owned(), kind })
    }

    /// Names of what the pattern captures, in order.
    pub fn names(&self) -> &[Box<str>] {
        &self.names
    }

    /// Whether it matches one path only.
    pub fn is_exact(&self) -> bool {
        !self.key.iter().any(|&byte| byte >= PARAM)
    }

    /// Whether it matches a path in normal form.
    pub fn matches(&self, path: &[u8]) -> bool {
        self.captures(path, &mut |_| ())
    }

    /// Calls `capture` with what each parameter and the star take of a path, in order; tells whether the pattern matches.
    /// Where it does not, some may have been called.
    pub(crate) fn captures(&self, path: &[u8], capture: &mut dyn FnMut(std::ops::Range<usize>)) -> bool {
        let mut at = 0;
        for &byte in &self.key {
            match byte {
                PARAM => {
                    let end = memchr::memchr(b'/', &path[at..]).map_or(path.len(), |len| at + len);
                    if end == at {
                        return false;
                    }
                    capture(at..end);
                    at = end;
                }
                STAR => {
                    capture(at..path.len());
                    return true;
                }
                literal if path.get(at) == Some(&literal) => at += 1,
                _ => return false,
            }
        }
        at == path.len()
    }

    /// What a parameter or named star takes of a path that matches.
    pub(crate) fn param<'p>(&self, name: &str, path: &'p [u8]) -> Option<&'p [u8]> {
        let wanted = self.names.iter().position(|known| **known == *name)?;
        let (mut index, mut found) = (0, None);
        let matches = self.captures(path, &mut |range| {
            if index == wanted {
                found = Some(range);
            }
            index += 1;
        });
        found.filter(|_| matches).map(|range| &path[range])
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }
}

fn kind_of_regex(text: &str) -> PatternErrorKind {
    PatternErrorKind::Regex(RegexLike::new(text))
}

fn parse(text: &str) -> Result<PathPattern, PatternErrorKind> {
    if !text.starts_with('/') {
        return Err(PatternErrorKind::NotAbsolute);
    }
    if text.len() > PATTERN_BYTES_MAX {
        return Err(PatternErrorKind::TooLong);
    }
    if text.contains('?') {
        return Err(PatternErrorKind::Query);
    }
    let (head, rest_name) = split_star(text)?;
    check_normal(text, head, rest_name.is_some())?;

    let mut key = Vec::with_capacity(text.len());
    let mut names: Vec<Box<str>> = Vec::new();
    for segment in head[1..].split('/') {
        key.push(b'/');
        match segment.strip_prefix(':') {
            Some(name) => {
                key.push(PARAM);
                push_name(name, &mut names)?;
            }
            None => push_literal(segment, &mut key)?,
        }
    }
    if names.len() > PARAMS_MAX {
        return Err(PatternErrorKind::TooManyParams);
    }
    if let Some(name) = rest_name {
        if key.last() == Some(&PARAM) {
            // `/:name*`
            return Err(PatternErrorKind::Star { write: format!("{head}/*{name}") });
        }
        key.push(STAR);
        if !name.is_empty() {
            push_name(name, &mut names)?;
        }
    }
    Ok(PathPattern { key: key.into(), names: names.into() })
}

/// The text before the `*` at the end, and the name behind it.
fn split_star(text: &str) -> Result<(&str, Option<&str>), PatternErrorKind> {
    match text.split_once('*') {
        None => Ok((text, None)),
        Some((_, name)) if name.contains('/') => {
            let write = text.split('/').map(|segment| if segment == "*" { ":name" } else { segment });
            let write = write.collect::<Vec<_>>().join("/");
            let write = if write.contains('*') { format!("{}*", &text[..text.find('*').unwrap_or(0)]) } else { write };
            Err(PatternErrorKind::Star { write })
        }
        Some((head, name)) if name.contains('*') => Err(PatternErrorKind::Star { write: format!("{head}*") }),
        Some((head, name)) => Ok((head, Some(name))),
    }
}

/// Refuses what normalisation would take out of a path: such a pattern could match nothing.
fn check_normal(text: &str, head: &str, has_star: bool) -> Result<(), PatternErrorKind> {
    let mut segments: Vec<&str> = head[1..].split('/').collect();
    // With a star the last segment goes on: `/a/.*` is fine, and so is the empty one in `/a/*`.
    let last = segments.pop().unwrap_or_default();
    let is_dots = |segment: &str| matches!(&*segment.replace("%2e", ".").replace("%2E", "."), "." | "..");
    let vanishes = |segment: &&str| segment.is_empty() || is_dots(segment);
    if !segments.iter().any(vanishes) && (has_star || !is_dots(last)) {
        return Ok(());
    }
    let star = &text[head.len()..];
    let mut scratch = Vec::new();
    match path::normalise(head.as_bytes(), &mut scratch) {
        Ok(path) => {
            let write = format!("{}{star}", String::from_utf8_lossy(path.bytes()));
            Err(PatternErrorKind::NotNormal { write })
        }
        Err(error) => Err(PatternErrorKind::Path(error)),
    }
}

fn push_name(name: &str, names: &mut Vec<Box<str>>) -> Result<(), PatternErrorKind> {
    let is_name = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !is_name(name) {
        return Err(PatternErrorKind::Name { name: name.to_owned() });
    }
    if names.iter().any(|other| **other == *name) {
        return Err(PatternErrorKind::DuplicateName { name: name.to_owned() });
    }
    names.push(name.into());
    Ok(())
}

/// Appends the normal form of one literal segment.
fn push_literal(segment: &str, key: &mut Vec<u8>) -> Result<(), PatternErrorKind> {
    let mut scratch = Vec::new();
    // The `-` keeps the dots of `/..*` from being taken for a dot segment.
    let guarded = format!("/-{segment}");
    let path = path::normalise(guarded.as_bytes(), &mut scratch).map_err(PatternErrorKind::Path)?;
    if path.has_encoded_slash() {
        return Err(PatternErrorKind::EncodedSlash);
    }
    key.extend_from_slice(&path.bytes()[2..]);
    Ok(())
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = self.names.iter();
        for &byte in &self.key {
            match byte {
                PARAM => write!(f, ":{}", names.next().map_or("", |name| name))?,
                STAR => write!(f, "*{}", names.next().map_or("", |name| name))?,
                byte => write!(f, "{}", byte as char)?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use PatternErrorKind as Kind;
        let text = &self.text;
        match &self.kind {
            Kind::Regex(regex) => write!(f, "\"{text}\": {regex}"),
            Kind::NotAbsolute => write!(f, "\"{text}\": must begin with '/'; write \"/{text}\""),
            Kind::TooLong => write!(f, "a pattern has at most {PATTERN_BYTES_MAX} bytes"),
            Kind::Star { write } => write!(f, "\"{text}\": only one '*', at the end; write \"{write}\""),
            Kind::TooManyParams => write!(f, "\"{text}\": at most {PARAMS_MAX} ':name' parameters"),
            Kind::Name { name } => {
                write!(f, "\"{text}\": \"{name}\" is no name; a name is letters, digits and '_', as in \":id\"")
            }
            Kind::DuplicateName { name } => write!(f, "\"{text}\": the name \"{name}\" is given twice; rename one"),
            Kind::Query => write!(
                f,
                "\"{text}\": the query is not matched here; use vars, as in [\"arg_NAME\", \"==\", \"value\"]"
            ),
            Kind::NotNormal { write } => {
                write!(f, "\"{text}\": never matches, since paths are normalised first; write \"{write}\"")
            }
            Kind::EncodedSlash => write!(
                f,
                "\"{text}\": \"%2F\" never matches, since a request whose route depends on it is refused; write \"/\", or \"*\" at its place"
            ),
            Kind::Path(error) => write!(f, "\"{text}\": {error}"),
        }
    }
}

impl std::error::Error for PatternError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_print_as_they_mean() {
        let check = |text: &str, expected: &str| {
            assert_eq!(PathPattern::parse(text).unwrap().to_string(), expected);
        };
        for same in ["/", "/a", "/a/", "/*", "/a*", "/a/*", "/a/*rest", "/:a/b/:c", "/a:b", "/.a/..*", "/a/:b/*c"] {
            check(same, same);
        }
        check("/käse", "/k%C3%A4se");
        check("/%61 b", "/a%20b");
    }

    #[test]
    fn exact_patterns_are_known_as_such() {
        let check = |text: &str, exact: bool| assert_eq!(PathPattern::parse(text).unwrap().is_exact(), exact);
        check("/a:b", true);
        check("/a/:b", false);
        check("/a*", false);
    }

    #[test]
    fn errors_say_what_to_write() {
        let check = |text: &str, message: &str| {
            assert_eq!(PathPattern::parse(text).unwrap_err().to_string(), message);
        };
        check(
            r"~^/a/(\d+)$",
            r##""~^/a/(\d+)$": a path pattern is not a regex; write `/a/*` and add `vars: [[uri, "~~", '^/a/(\d+)$']]`, or replace it with `expression: 'http.path ~ r#"^/a/(\d+)$"#'`"##,
        );
        check("a", "\"a\": must begin with '/'; write \"/a\"");
        check("", "\"\": must begin with '/'; write \"/\"");
        check("/a/**", "\"/a/**\": only one '*', at the end; write \"/a/*\"");
        check("/a/*/b", "\"/a/*/b\": only one '*', at the end; write \"/a/:name/b\"");
        check("/a*/b", "\"/a*/b\": only one '*', at the end; write \"/a*\"");
        check("/a/:b*", "\"/a/:b*\": only one '*', at the end; write \"/a/:b/*\"");
        check("/:", "\"/:\": \"\" is no name; a name is letters, digits and '_', as in \":id\"");
        check("/:a-b", "\"/:a-b\": \"a-b\" is no name; a name is letters, digits and '_', as in \":id\"");
        check("/:a/*a", "\"/:a/*a\": the name \"a\" is given twice; rename one");
        check("/a?b", "\"/a?b\": the query is not matched here; use vars, as in [\"arg_NAME\", \"==\", \"value\"]");
        check("/a//b", "\"/a//b\": never matches, since paths are normalised first; write \"/a/b\"");
        check("/a/../b/*", "\"/a/../b/*\": never matches, since paths are normalised first; write \"/b/*\"");
        check("/a/.", "\"/a/.\": never matches, since paths are normalised first; write \"/a/\"");
        check("/a/%2e%2E/b", "\"/a/%2e%2E/b\": never matches, since paths are normalised first; write \"/b\"");
        check("/../a", "\"/../a\": the path leads above the root");
        check("/a%", "\"/a%\": the path holds a '%' without two hexadecimal digits");
        check(
            "/a%2fb",
            "\"/a%2fb\": \"%2F\" never matches, since a request whose route depends on it is refused; write \"/\", or \"*\" at its place",
        );
        check(&"/:a".repeat(2), "\"/:a/:a\": the name \"a\" is given twice; rename one");
        check(&format!("/{}", "a".repeat(5000)), "a pattern has at most 4096 bytes");
    }

    #[test]
    fn parameters_are_bounded() {
        let with = |count: usize| (0..count).map(|n| format!("/:p{n}")).collect::<String>();
        assert!(PathPattern::parse(&with(PARAMS_MAX)).is_ok());
        assert_eq!(PathPattern::parse(&with(PARAMS_MAX + 1)).unwrap_err().kind, PatternErrorKind::TooManyParams);
    }
}
