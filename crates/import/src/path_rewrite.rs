//! Kong's `strip_path` and a service's `path`, as pairs of `regex_uri` of the plugin `proxy-rewrite`.
//!
//! Kong (`path_handling: v0`) takes the matched prefix off and puts the rest behind the service's path, with exactly
//! one slash between the two. The pairs do the same with the decoded path; the first that matches is used.

use crate::expression::Path;
use stillgate_route::path::decode;

/// The pairs, and whether they may differ from Kong for some requests.
pub(crate) struct PathRewrite {
    pub(crate) pairs: Vec<(String, String)>,
    /// Why, if they may.
    pub(crate) difference: Option<&'static str>,
}

/// The rewriting of a route's path; `None` if the path stays as it is. `base` is the path of the service.
pub(crate) fn path_rewrite(paths: &[Path], strips: bool, base: Option<&str>) -> Option<PathRewrite> {
    let base = base.filter(|base| !base.is_empty()).unwrap_or("/");
    let root = [Path::Prefix { text: "/".to_owned(), length: 1 }];
    let stripped = if strips && !paths.is_empty() { paths } else { &root };
    if base == "/" && stripped == root {
        return None;
    }
    let (with_slash, without_slash) = match base.strip_suffix('/') {
        Some(rest) => (base.to_owned(), rest.to_owned()),
        None => (format!("{base}/"), base.to_owned()),
    };
    let replacement = |text: &str| match text.is_empty() {
        true => "/".to_owned(),
        false => text.replace('$', "$$"),
    };
    let mut rewrite = PathRewrite { pairs: Vec::new(), difference: None };
    for path in stripped {
        let (pattern, ends_in_slash) = match path {
            Path::Prefix { text, .. } => (regex_syntax::escape(&decoded(text)), text.ends_with('/')),
            Path::Regex(regex) => (format!("(?:{regex})"), regex.trim_end_matches('$').ends_with('/')),
        };
        // The whole path is taken off: whether a slash stays depends on the request's last character. Only a root
        // without a slash has none.
        let is_root = matches!(path, Path::Prefix { text, .. } if text == "/");
        let whole = match ends_in_slash && (!is_root || base.ends_with('/')) {
            true => replacement(&with_slash),
            false => replacement(&without_slash),
        };
        let rest = format!("{}$1", with_slash.replace('$', "$$"));
        if base != "/" {
            rewrite.pairs.push((format!("(?s)^{pattern}$"), whole));
        }
        if let Path::Regex(regex) = path
            && base != "/"
            && (regex.contains('|') || regex.contains("*?") || regex.contains("+?") || regex.contains("??"))
        {
            rewrite.difference = Some(
                "the regex can match parts of different lengths of one path; here the longest is taken off where it is the whole path",
            );
        }
        rewrite.pairs.push((format!("(?s)^{pattern}/?(.*)$"), capture_behind(path, &rest)));
    }
    Some(rewrite)
}

/// The replacement refers to the last group, which comes after those of a regex.
fn capture_behind(path: &Path, rest: &str) -> String {
    let Path::Regex(regex) = path else { return rest.to_owned() };
    let own = regex_syntax::Parser::new().parse(regex).map_or(0, |hir| hir.properties().explicit_captures_len());
    match rest.strip_suffix("$1") {
        Some(base) => format!("{base}${{{}}}", own + 1),
        None => rest.to_owned(),
    }
}

fn decoded(text: &str) -> String {
    let mut buffer = Vec::new();
    String::from_utf8_lossy(decode(text.as_bytes(), &mut buffer)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(texts: &[&str]) -> Vec<Path> {
        texts.iter().map(|text| Path::Prefix { text: (*text).to_owned(), length: text.len() }).collect()
    }

    fn check(paths: &[Path], strips: bool, base: Option<&str>, want: &[(&str, &str)]) {
        let rewrite = path_rewrite(paths, strips, base);
        let got = rewrite.map_or_else(Vec::new, |rewrite| rewrite.pairs);
        let want: Vec<(String, String)> = want.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        assert_eq!(got, want);
    }

    #[test]
    fn pairs() {
        check(&prefixes(&["/a"]), false, None, &[]);
        check(&prefixes(&["/"]), true, Some("/"), &[]);
        check(&prefixes(&["/a"]), true, None, &[("(?s)^/a/?(.*)$", "/$1")]);
        check(&prefixes(&["/a.b"]), true, Some("/s"), &[("(?s)^/a\\.b$", "/s"), ("(?s)^/a\\.b/?(.*)$", "/s/$1")]);
        check(&prefixes(&["/a/"]), true, Some("/s/"), &[("(?s)^/a/$", "/s/"), ("(?s)^/a//?(.*)$", "/s/$1")]);
        check(&prefixes(&["/a"]), false, Some("/s"), &[("(?s)^/$", "/s"), ("(?s)^//?(.*)$", "/s/$1")]);
        check(&prefixes(&["/a"]), false, Some("/s/"), &[("(?s)^/$", "/s/"), ("(?s)^//?(.*)$", "/s/$1")]);
        check(&[], true, Some("/s"), &[("(?s)^/$", "/s"), ("(?s)^//?(.*)$", "/s/$1")]);
        let regex = [Path::Regex("/(v\\d)/x".to_owned())];
        check(&regex, true, None, &[("(?s)^(?:/(v\\d)/x)/?(.*)$", "/${2}")]);
    }
}
