//! Path patterns of routes: literal text, `:name` for one segment, `*` for any rest, or in place of segments.
//!
//! A pattern is parsed into a key that sorts as patterns are tried: literal bytes, then [`PARAM`], then [`STAR`]. The
//! radix tree and the order of routes are both built from that key alone. It ends at the first star; text behind a star
//! that is not the end is compared when the pattern is met.

use crate::path::{self, PathError};
use crate::regex_like::{RegexLike, is_regex, may_be_regex};
use memchr::memmem;
use std::fmt;

/// Longest pattern in bytes.
pub const PATTERN_BYTES_MAX: usize = 4096;
/// Most `:name` parameters of one pattern, so that the captures of a match have a fixed size.
pub const PARAMS_MAX: usize = 16;

/// Represents one whole non-empty segment in a key. Literal text is printable ASCII, so it sorts after all of it.
pub(crate) const PARAM: u8 = 0xFE;
/// Represents any rest at the end of a key, including the empty one.
pub(crate) const STAR: u8 = 0xFF;

/// A path pattern of a route.
///
/// - `/a/b` is that path alone.
/// - `/a/*` is every path that begins with `/a/` (so not `/a`), `/a*` every path that begins with `/a`.
/// - `/a/:id/b` has one non-empty segment in the place of `:id`; a colon elsewhere in a segment is literal.
/// - `/a/*rest` is `/a/*` and gives the rest a name.
/// - `/a/*/b` has any number of segments in the place of `*`, or an empty one, as in APISIX.
/// - `*` is `/*`.
///
/// Literal text is kept in the normal form of [`path::normalise`], so that `/käse` means `/k%C3%A4se`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PathPattern {
    key: Box<[u8]>,
    /// Text behind the key's star; it may contain further stars.
    tail: Box<[u8]>,
    /// Names of the parameters in order; of the rest last, if it has a name.
    names: Box<[Box<str>]>,
}

/// Why a text is not a path pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatternError {
    /// The text as written.
    pub text: String,
    /// The error.
    pub kind: PatternErrorKind,
}

/// Kinds of errors of a path pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatternErrorKind {
    /// A regex.
    Regex(RegexLike),
    /// No leading slash.
    NotAbsolute,
    /// More than [`PATTERN_BYTES_MAX`] bytes.
    TooLong,
    /// A `*` that is neither at the end nor a whole segment.
    Star {
        /// The nearest valid pattern.
        write: String,
    },
    /// A `:name` behind a `*`: it would be unknown which segment it is.
    ParamBehindStar,
    /// More than [`PARAMS_MAX`] parameters.
    TooManyParams,
    /// A `:` or a final `*` followed by a text that is not a name.
    Name {
        /// The text that follows.
        name: String,
    },
    /// A name that occurs twice.
    DuplicateName {
        /// The name.
        name: String,
    },
    /// A question mark.
    Query,
    /// Dot segments or duplicate slashes, which normalised paths do not have.
    NotNormal {
        /// The pattern without them.
        write: String,
    },
    /// A `%2F`: a request whose route depends on one is refused.
    EncodedSlash,
    /// Text that paths cannot hold.
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

    /// The pattern as APISIX's routers without parameters see it: `:name` is plain text, except before a `*` that has a
    /// name or is not at the end, where they compare segments as the router with parameters does.
    pub fn with_plain_colons(self) -> PathPattern {
        let params = self.key.iter().filter(|&&byte| byte == PARAM).count();
        if params == 0 || params < self.names.len() || !self.tail.is_empty() {
            return self;
        }
        let mut names = self.names.iter();
        let mut key = Vec::with_capacity(self.key.len());
        for &byte in &self.key {
            match byte {
                PARAM => {
                    key.push(b':');
                    key.extend(names.next().into_iter().flat_map(|name| name.bytes()));
                }
                byte => key.push(byte),
            }
        }
        PathPattern { key: key.into(), tail: Box::default(), names: Box::default() }
    }

    /// Names of the captures of the pattern, in order.
    pub fn names(&self) -> &[Box<str>] {
        &self.names
    }

    /// Whether it matches a single path.
    pub fn is_exact(&self) -> bool {
        !self.key.iter().any(|&byte| byte >= PARAM)
    }

    /// Whether it matches a path in normal form.
    pub fn matches(&self, path: &[u8]) -> bool {
        self.captures(path, &mut |_| ())
    }

    /// Calls `capture` with the range of each parameter and the star in a path, in order; returns whether the pattern
    /// matches. Where it does not, some calls may have been made.
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
                    let Some(end) = star_end(&self.tail, path, at) else { return false };
                    capture(at..end);
                    return true;
                }
                literal if path.get(at) == Some(&literal) => at += 1,
                _ => return false,
            }
        }
        at == path.len()
    }

    /// The value of a parameter or named star in a path that matches.
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

    /// The key by which it is found: the whole pattern except for a tail, so that every path that it matches is found.
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// The text that a path must have behind the star of the key; empty if any is allowed.
    pub(crate) fn tail(&self) -> &[u8] {
        &self.tail
    }

    /// Whether both are the same pattern apart from names.
    pub(crate) fn eq_ignoring_names(&self, other: &PathPattern) -> bool {
        (&self.key, &self.tail) == (&other.key, &other.tail)
    }
}

/// The end of the first star, which begins at `at`, if the rest of the path has the texts of the tail: those between
/// stars in their order, and the last one at the end. Each is searched for once.
fn star_end(tail: &[u8], path: &[u8], at: usize) -> Option<usize> {
    if tail.is_empty() {
        return Some(path.len());
    }
    let mut pieces = tail.split(|byte| *byte == STAR);
    let last = pieces.next_back().unwrap_or_default();
    let (mut end, mut from) = (None, at);
    for piece in pieces {
        let found = from + memmem::find(&path[from..], piece)?;
        end = end.or(Some(found));
        from = found + piece.len();
    }
    path[from..].ends_with(last).then(|| end.unwrap_or(path.len() - last.len()))
}

fn kind_of_regex(text: &str) -> PatternErrorKind {
    PatternErrorKind::Regex(RegexLike::new(text))
}

fn parse(text: &str) -> Result<PathPattern, PatternErrorKind> {
    let text = if text == "*" { "/*" } else { text };
    if !text.starts_with('/') {
        return Err(PatternErrorKind::NotAbsolute);
    }
    if text.len() > PATTERN_BYTES_MAX {
        return Err(PatternErrorKind::TooLong);
    }
    if text.contains('?') {
        return Err(PatternErrorKind::Query);
    }
    let (head, rest_name, behind) = split_star(text)?;
    check_normal(["", head, &text[head.len()..]], rest_name.is_some())?;

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
    let tail = tail(text, behind)?;
    Ok(PathPattern { key: key.into(), tail, names: names.into() })
}

/// The text before the first `*`; the name behind it, if it is the end; and the text that follows it, if it is a whole
/// segment.
fn split_star(text: &str) -> Result<(&str, Option<&str>, &str), PatternErrorKind> {
    match text.split_once('*') {
        None => Ok((text, None, "")),
        Some((head, behind)) if head.ends_with('/') && behind.starts_with('/') => Ok((head, Some(""), behind)),
        Some((head, name)) if name.contains(['/', '*']) => Err(PatternErrorKind::Star { write: format!("{head}*") }),
        Some((head, name)) => Ok((head, Some(name), "")),
    }
}

/// The text behind a star that is a segment, as [`PathPattern::tail`].
fn tail(text: &str, behind: &str) -> Result<Box<[u8]>, PatternErrorKind> {
    if behind.is_empty() {
        return Ok(Box::default());
    }
    check_normal([&text[..text.len() - behind.len()], behind, ""], false)?;
    let mut tail = Vec::with_capacity(behind.len());
    for segment in behind[1..].split('/') {
        tail.push(b'/');
        match segment {
            "*" => tail.push(STAR),
            _ if segment.contains('*') => {
                let (before, _) = segment.split_once('*').unwrap_or((segment, ""));
                let until = text.find(segment).unwrap_or(0) + before.len();
                return Err(PatternErrorKind::Star { write: format!("{}/*", text[..until].trim_end_matches('/')) });
            }
            _ if segment.starts_with(':') => return Err(PatternErrorKind::ParamBehindStar),
            _ => push_literal(segment, &mut tail)?,
        }
    }
    Ok(tail.into())
}

/// Refuses parts that normalisation would remove from a path: such a pattern could match nothing. `text` is the part to
/// check, with the parts around it.
fn check_normal(text: [&str; 3], has_star: bool) -> Result<(), PatternErrorKind> {
    let [before, text, after] = text;
    let mut segments: Vec<&str> = text[1..].split('/').collect();
    // With a star the last segment continues: `/a/.*` is fine, and so is the empty one in `/a/*`.
    let last = segments.pop().unwrap_or_default();
    let is_dots = |segment: &str| matches!(&*segment.replace("%2e", ".").replace("%2E", "."), "." | "..");
    let vanishes = |segment: &&str| segment.is_empty() || is_dots(segment);
    if !segments.iter().any(vanishes) && (has_star || !is_dots(last)) {
        return Ok(());
    }
    let mut scratch = Vec::new();
    match path::normalise(text.as_bytes(), &mut scratch) {
        Ok(path) => {
            let write = format!("{before}{}{after}", String::from_utf8_lossy(path.bytes()));
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
    if path.ambiguous().is_some() {
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
                b'*' => f.write_str("%2A")?,
                byte => write!(f, "{}", byte as char)?,
            }
        }
        for &byte in &self.tail {
            match byte {
                STAR => f.write_str("*")?,
                b'*' => f.write_str("%2A")?,
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
            Kind::Star { write } => {
                write!(f, "\"{text}\": a '*' is at the end, or a whole segment as in \"/a/*/b\"; write \"{write}\"")
            }
            Kind::ParamBehindStar => {
                write!(
                    f,
                    "\"{text}\": a parameter cannot follow a '*'; write '*' in its place, or ':name' for each segment"
                )
            }
            Kind::TooManyParams => write!(f, "\"{text}\": at most {PARAMS_MAX} ':name' parameters"),
            Kind::Name { name } => {
                write!(f, "\"{text}\": \"{name}\" is not a name; a name is letters, digits and '_', as in \":id\"")
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
        for same in [
            "/",
            "/a",
            "/a/",
            "/*",
            "/a*",
            "/a/*",
            "/a/*rest",
            "/:a/b/:c",
            "/a:b",
            "/.a/..*",
            "/a/:b/*c",
            "/a/*/b",
            "/*/b/*",
            "/:a/*/b/*/c",
            "/a%2Ab",
            "/a/*/%2A",
        ] {
            check(same, same);
        }
        check("*", "/*");
        check("/*/käse", "/*/k%C3%A4se");
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
        const STARS: &str = "a '*' is at the end, or a whole segment as in \"/a/*/b\"";
        for (text, write) in [
            ("/a/**", "/a/*"),
            ("/a*/b", "/a*"),
            ("/a/:b*", "/a/:b/*"),
            ("/a/*rest/b", "/a/*"),
            ("/a/*/b*", "/a/*/b/*"),
            ("/a/*/b*/c", "/a/*/b/*"),
            ("/a/*/**", "/a/*/*"),
            ("/a/*/*.html", "/a/*/*"),
        ] {
            check(text, &format!("\"{text}\": {STARS}; write \"{write}\""));
        }
        check(
            "/a/*/:b",
            "\"/a/*/:b\": a parameter cannot follow a '*'; write '*' in its place, or ':name' for each segment",
        );
        check("/a/*//b", "\"/a/*//b\": never matches, since paths are normalised first; write \"/a/*/b\"");
        check("/:", "\"/:\": \"\" is not a name; a name is letters, digits and '_', as in \":id\"");
        check("/:a-b", "\"/:a-b\": \"a-b\" is not a name; a name is letters, digits and '_', as in \":id\"");
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
    fn stars_in_the_middle_take_any_segments() {
        let check = |pattern: &str, path: &str, expected: bool| {
            let pattern = PathPattern::parse(pattern).unwrap();
            assert_eq!(pattern.matches(path.as_bytes()), expected, "{pattern} {path}");
        };
        check("/a/*/b", "/a/x/b", true);
        check("/a/*/b", "/a/x/y/b", true);
        check("/a/*/b", "/a/b/b", true);
        check("/a/*/b", "/a/x/b/b", true);
        for path in ["/a/b", "/a/x/bb", "/a/x/b/", "/a/x/b/c", "/a//", "/a/x", "/b/x/b"] {
            check("/a/*/b", path, false);
        }
        check("/*/b/*", "/x/b/", true);
        check("/*/b/*", "/x/y/b/c/d", true);
        check("/*/b/*", "/x/b", false);
        check("/*/b/*/c", "/x/b/c/b/c", true);
        check("/*/b/*/c", "/x/b/c", false);
        check("/:x/*/c", "/a/b/c", true);
        check("/:x/*/c", "/a/c", false);
        // The texts of a tail do not overlap.
        check("/*/b/*/b", "/x/b/b", false);
        let captured = |pattern: &str, path: &str| {
            let mut captured = Vec::new();
            assert!(
                PathPattern::parse(pattern)
                    .unwrap()
                    .captures(path.as_bytes(), &mut |range| captured.push(path[range].to_owned()))
            );
            captured
        };
        assert_eq!(captured("/:x/*/c", "/a/b/d/c"), ["a", "b/d"]);
        assert_eq!(captured("/a/*/b/*", "/a/x/b/y"), ["x"]);
    }

    #[test]
    fn without_parameters_a_colon_is_text() {
        let check = |text: &str, path: &str, expected: bool| {
            let plain = PathPattern::parse(text).unwrap().with_plain_colons();
            assert_eq!((plain.to_string().as_str(), plain.matches(path.as_bytes())), (text, expected), "{text} {path}");
        };
        for (path, is_taken) in [("/a/:id/b", true), ("/a/1/b", false)] {
            check("/a/:id/b", path, is_taken);
            check("/a/:id/*", &format!("{path}/c"), is_taken);
        }
        // With this kind of star, APISIX compares segments.
        check("/a/:id/*rest", "/a/1/b", true);
        check("/a/:id/*/b", "/a/1/x/b", true);
        assert!(PathPattern::parse("/a/:id").unwrap().with_plain_colons().is_exact());
        check("/a*", "/ab", true);
    }

    #[test]
    fn parameters_are_bounded() {
        let with = |count: usize| (0..count).map(|n| format!("/:p{n}")).collect::<String>();
        assert!(PathPattern::parse(&with(PARAMS_MAX)).is_ok());
        assert_eq!(PathPattern::parse(&with(PARAMS_MAX + 1)).unwrap_err().kind, PatternErrorKind::TooManyParams);
    }
}
