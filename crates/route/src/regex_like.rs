//! Recognises a regex where a path pattern is expected, and suggests a replacement.
//!
//! Only text that path patterns do not need is considered a regex: raw `\`, `|` and `^` are in no request's path, and
//! stay possible percent-encoded. It is a guess for a message; nothing is matched with it. But a suggested regex is
//! valid here, and some path may match it.

use crate::regex::Pattern;
use std::fmt;

/// The suggestion for a path pattern that is a regex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegexLike {
    /// The regex, anchored as it was probably meant. `None` if no path matches it, or it is not valid here.
    pub regex: Option<String>,
    /// A path pattern for the text that all its paths begin with.
    pub prefix: String,
    /// Percent-encoded, it would be a path pattern too.
    pub may_be_path: bool,
}

/// Whether a text is a regex for certain.
pub(crate) fn is_regex(text: &str) -> bool {
    text.starts_with('~') || text.contains(['\\', '|', '^'])
}

/// Whether an invalid path pattern was probably meant as a regex.
pub(crate) fn may_be_regex(text: &str) -> bool {
    const PARTS: [&str; 10] = [".*", ".+", ".?", "]*", "]+", "]?", ")*", ")+", ")?", "(?"];
    is_regex(text) || text.ends_with('$') || PARTS.iter().any(|part| text.contains(part))
}

impl RegexLike {
    pub(crate) fn new(text: &str) -> RegexLike {
        // The modifiers of nginx' `location`: `~`, `~*`.
        let bare = text.strip_prefix('~').map_or(text, |rest| rest.trim_start_matches(['*', ' ']));
        // Slashes around it, as in sed or JavaScript, if their content shows that they are not a path's.
        let inner = bare.strip_prefix('/').filter(|inner| inner.starts_with('^'));
        let bare = inner.map_or(bare, |inner| inner.strip_suffix('/').unwrap_or(inner));
        let regex = match (bare.starts_with('^'), bare.ends_with('$')) {
            (false, false) if bare.starts_with('/') => format!("^{bare}$"),
            (false, true) if bare.starts_with('/') => format!("^{bare}"),
            _ => bare.to_owned(),
        };
        // A path begins with a slash.
        let with_slash = regex.strip_prefix('^').map(|rest| format!("^/{rest}"));
        let regex = std::iter::once(regex).chain(with_slash).find(|regex| may_match_a_path(regex));
        let prefix = format!("{}*", regex.as_deref().map_or("/", literal_prefix));
        RegexLike { regex, prefix, may_be_path: text.starts_with('/') && is_regex(text) }
    }
}

/// Whether a text is a regex that matches something like a path: its own example, with a slash in front if it has none.
fn may_match_a_path(regex: &str) -> bool {
    let Ok(pattern) = Pattern::unicode(regex) else { return false };
    let example = pattern.example();
    let path = if example.starts_with(b"/") { example } else { [b"/", &example[..]].concat() };
    pattern.is_match_once(&path)
}

/// The path that all matches begin with, as far as it is obvious; `/` if nothing is known.
fn literal_prefix(regex: &str) -> &str {
    const ROOT: &str = "/";
    let Some(path) = regex.strip_prefix('^').filter(|path| path.starts_with('/')) else { return ROOT };
    let mut depth = 0u32;
    let mut has_alternatives = false;
    for c in path.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '|' => has_alternatives |= depth == 0,
            _ => {}
        }
    }
    if has_alternatives {
        return ROOT;
    }
    let end = path.find(|c: char| r"\([{.*+?|^$:".contains(c)).unwrap_or(path.len());
    // A part with a quantifier may be absent.
    let end = match path[end..].starts_with(['*', '?', '{']) {
        true => path[..end].char_indices().next_back().map_or(0, |(last, _)| last),
        false => end,
    };
    if end == 0 { ROOT } else { &path[..end] }
}

impl fmt::Display for RegexLike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RegexLike { regex, prefix, may_be_path } = self;
        let Some(regex) = regex else {
            return write!(f, "a path pattern is not a regex; write one such as `/a/*`");
        };
        let quoted = regex.replace('\'', "''");
        write!(
            f,
            "a path pattern is not a regex; write `{prefix}` and add `vars: [[uri, \"~~\", '{quoted}']]`, or replace it \
             with `expression: 'http.path ~ r#\"{quoted}\"#'`"
        )?;
        match may_be_path {
            true => write!(f, "; for the literal characters write %5C, %5E and %7C"),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_write_for_a_regex() {
        let check = |text: &str, regex: &str, prefix: &str| {
            assert!(may_be_regex(text), "{text}");
            let found = RegexLike::new(text);
            assert_eq!((found.regex.as_deref(), found.prefix.as_str()), (Some(regex), prefix), "{text}");
        };
        check(r"~^/a/(\d+)$", r"^/a/(\d+)$", "/a/*");
        check(r"~* ^/a/\d", r"^/a/\d", "/a/*");
        check("^/a/.*$", "^/a/.*$", "/a/*");
        check("/a/(b|c)", "^/a/(b|c)$", "/a/*");
        check("/a/[0-9]+/b$", "^/a/[0-9]+/b$", "/a/*");
        check("^/a|/b", "^/a|/b", "/*");
        check("^/ab?$", "^/ab?$", "/a*");
        check("^/?$", "^/?$", "/*");
        check(r"~\.php$", r"\.php$", "/*");
        check("^(/a|/b)$", "^(/a|/b)$", "/*");
        check("~/^a.*/", "^/a.*", "/a*");
        check("/^a.*/", "^/a.*", "/a*");
        check("~^a/b$", "^/a/b$", "/a/b*");
        check("~/^/a.*/", "^/a.*", "/a*");
        check("^[a-z]+$", "^/[a-z]+$", "/*");
        check("^.*$", "^.*$", "/*");
    }

    #[test]
    fn what_cannot_match_is_not_reported() {
        for text in ["~a^b", "^/a(?!b)", "^(", "~$^/a", r"^\Aa\z^"] {
            let found = RegexLike::new(text);
            assert_eq!((found.regex, found.prefix.as_str()), (None, "/*"), "{text}");
            assert!(RegexLike::new(text).to_string().ends_with("write one such as `/a/*`"), "{text}");
        }
    }

    #[test]
    fn paths_are_not_taken_for_regexes() {
        for text in ["/a", "/a/*", "/a/:b", "/a(1)", "/$metadata", "/a/$", "/.*", "/a.*", "/c++", "/a[0]", "/a/{b}"] {
            assert!(!is_regex(text), "{text}");
        }
    }
}
