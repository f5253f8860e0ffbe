//! Recognises a regex where a path pattern is expected, and tells what to write for it.
//!
//! Only text that no path pattern needs is taken for a regex: raw `\`, `|` and `^` are in no request's path, and stay possible
//! percent-encoded. It is a guess for a message; nothing is matched with it.

use std::fmt;

/// What a path pattern that is a regex should be written as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegexLike {
    /// The regex, anchored as it was probably meant.
    pub regex: String,
    /// A path pattern for the text that all its paths begin with.
    pub prefix: String,
    /// Percent-encoded, it would be a path pattern too.
    pub may_be_path: bool,
}

/// Whether a text is a regex for certain.
pub(crate) fn is_regex(text: &str) -> bool {
    text.starts_with('~') || text.contains(['\\', '|', '^'])
}

/// Whether a text that is no path pattern was probably meant as a regex.
pub(crate) fn may_be_regex(text: &str) -> bool {
    const PARTS: [&str; 10] = [".*", ".+", ".?", "]*", "]+", "]?", ")*", ")+", ")?", "(?"];
    is_regex(text) || text.ends_with('$') || PARTS.iter().any(|part| text.contains(part))
}

impl RegexLike {
    pub(crate) fn new(text: &str) -> RegexLike {
        // The modifiers of nginx' `location`: `~`, `~*`.
        let bare = text.strip_prefix('~').map_or(text, |rest| rest.trim_start_matches(['*', ' ']));
        let regex = match (bare.starts_with('^'), bare.ends_with('$')) {
            (false, false) if bare.starts_with('/') => format!("^{bare}$"),
            (false, true) if bare.starts_with('/') => format!("^{bare}"),
            _ => bare.to_owned(),
        };
        let prefix = format!("{}*", literal_prefix(&regex));
        RegexLike { regex, prefix, may_be_path: text.starts_with('/') && is_regex(text) }
    }
}

/// The path that all matches begin with, as far as that is plain; `/` where nothing is known.
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
    // What a quantifier follows may be absent.
    let end = match path[end..].starts_with(['*', '?', '{']) {
        true => path[..end].char_indices().next_back().map_or(0, |(last, _)| last),
        false => end,
    };
    if end == 0 { ROOT } else { &path[..end] }
}

impl fmt::Display for RegexLike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RegexLike { regex, prefix, may_be_path } = self;
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
            assert_eq!((found.regex.as_str(), found.prefix.as_str()), (regex, prefix), "{text}");
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
    }

    #[test]
    fn paths_are_not_taken_for_regexes() {
        for text in ["/a", "/a/*", "/a/:b", "/a(1)", "/$metadata", "/a/$", "/.*", "/a.*", "/c++", "/a[0]", "/a/{b}"] {
            assert!(!is_regex(text), "{text}");
        }
    }
}
