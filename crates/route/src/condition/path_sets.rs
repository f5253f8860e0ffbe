//! Relations between the sets of paths that patterns and prefixes describe.
//!
//! Patterns come as their keys (see [`crate::PathPattern`]); `some_…` errs on the side of `true`, `every_…` of `false`.

use crate::pattern::{PARAM, STAR};

/// Length of a key or path up to the next slash.
fn segment(text: &[u8]) -> usize {
    memchr::memchr(b'/', text).unwrap_or(text.len())
}

/// Whether every path that begins with `text` matches a pattern.
pub(super) fn every_path_from(text: &[u8], key: &[u8]) -> bool {
    let mut at = 0;
    for &byte in key {
        match byte {
            STAR => return true,
            PARAM => {
                let len = segment(&text[at..]);
                // The segment may continue behind the text.
                if len == 0 || at + len == text.len() {
                    return false;
                }
                at += len;
            }
            literal if text.get(at) == Some(&literal) => at += 1,
            _ => return false,
        }
    }
    false
}

/// Whether a path that begins with `text` might match a pattern.
pub(super) fn some_path_from(text: &[u8], key: &[u8]) -> bool {
    let mut at = 0;
    for &byte in key {
        match byte {
            _ if at == text.len() => return true,
            STAR => return true,
            PARAM => match segment(&text[at..]) {
                0 => return false,
                len => at += len,
            },
            literal if text[at] == literal => at += 1,
            _ => return false,
        }
    }
    at == text.len()
}

/// Whether every path that matches a pattern matches another.
pub(super) fn every_path_of(key: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    for &byte in other {
        match (byte, key.get(at)) {
            (STAR, _) => return true,
            (PARAM, Some(_)) => {
                let len = segment(&key[at..]);
                if len == 0 || key[at..][..len].contains(&STAR) {
                    return false;
                }
                at += len;
            }
            (literal, Some(own)) if literal == *own => at += 1,
            _ => return false,
        }
    }
    at == key.len()
}

/// Whether some path might match both patterns.
pub(super) fn some_path_of_both(key: &[u8], other: &[u8]) -> bool {
    let (mut at, mut there) = (0, 0);
    loop {
        match (key.get(at), other.get(there)) {
            (Some(&STAR), _) | (_, Some(&STAR)) => return true,
            (None, None) => return true,
            (None, _) | (_, None) => return false,
            (Some(&PARAM), _) | (_, Some(&PARAM)) => {
                let (own, its) = (segment(&key[at..]), segment(&other[there..]));
                if own == 0 || its == 0 {
                    return false;
                }
                // One is a parameter; the other is not empty, or might extend beyond slashes.
                if key[at..][..own].contains(&STAR) || other[there..][..its].contains(&STAR) {
                    return true;
                }
                (at, there) = (at + own, there + its);
            }
            (own, its) if own == its => (at, there) = (at + 1, there + 1),
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PathPattern;

    fn keys(a: &str, b: &str) -> [PathPattern; 2] {
        [a, b].map(|text| PathPattern::parse(text).unwrap())
    }

    #[test]
    fn patterns_in_patterns() {
        let check = |a: &str, b: &str, expected: bool| {
            let [one, other] = keys(a, b);
            assert_eq!(every_path_of(one.key(), other.key()), expected, "{a} in {b}");
        };
        check("/a/b", "/a/:x", true);
        check("/a/:y", "/a/:x", true);
        check("/a/:y", "/a/b", false);
        check("/a/:y/c", "/a/*", true);
        check("/a", "/a/*", false);
        check("/a/*", "/a*", true);
        check("/a/*", "/:x/*", true);
        check("/a*", "/:x/*", false);
        check("/a*", "/:x", false);
        check("/a/", "/a/:x", false);
        check("/a/:x", "/a/:x/b", false);
    }

    #[test]
    fn patterns_with_a_path_in_common() {
        let check = |a: &str, b: &str, expected: bool| {
            let [one, other] = keys(a, b);
            assert_eq!(some_path_of_both(one.key(), other.key()), expected, "{a} and {b}");
            assert_eq!(some_path_of_both(other.key(), one.key()), expected, "{b} and {a}");
        };
        check("/a/:x", "/:y/b", true);
        check("/a/:x", "/b/:x", false);
        check("/a/:x", "/a/", false);
        check("/a/:x", "/a/*", true);
        check("/:x/b", "/a*", true);
        check("/a/:x", "/a/b/c", false);
    }

    #[test]
    fn prefixes_and_patterns() {
        let check = |prefix: &str, pattern: &str, every: bool, some: bool| {
            let pattern = PathPattern::parse(pattern).unwrap();
            let found =
                (every_path_from(prefix.as_bytes(), pattern.key()), some_path_from(prefix.as_bytes(), pattern.key()));
            assert_eq!(found, (every, some), "{prefix} {pattern}");
        };
        check("/a/b/", "/a/:x/*", true, true);
        check("/a/b", "/a/:x/*", false, true);
        check("/a/b", "/a*", true, true);
        check("/a", "/ab", false, true);
        check("/ab", "/a", false, false);
        check("/a//", "/a/:x", false, false);
        check("/a/b/c", "/a/:x", false, false);
    }
}
