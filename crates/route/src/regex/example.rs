//! A value that a regex matches, for samples: short and plain, and found without a search.
//!
//! If a regex looks around (`\b`), the example may not match after all; samples need not be perfect.

use regex_syntax::hir::{Class, Hir, HirKind, Repetition};

/// Longest example, in bytes.
const EXAMPLE_BYTES_MAX: usize = 512;

/// A value that the regex is likely to match.
pub(super) fn example(hir: &Hir) -> Vec<u8> {
    let mut out = Vec::new();
    write(hir, &mut out);
    out.truncate(EXAMPLE_BYTES_MAX);
    out
}

fn write(hir: &Hir, out: &mut Vec<u8>) {
    // Longer examples are cut off, so the rest need not be written.
    if out.len() > EXAMPLE_BYTES_MAX {
        return;
    }
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => {}
        HirKind::Literal(literal) => out.extend_from_slice(&literal.0),
        HirKind::Class(class) => out.extend_from_slice(&member(class)),
        HirKind::Capture(capture) => write(&capture.sub, out),
        HirKind::Concat(parts) => parts.iter().for_each(|part| write(part, out)),
        HirKind::Alternation(parts) => parts.iter().take(1).for_each(|part| write(part, out)),
        HirKind::Repetition(Repetition { min, max, sub, .. }) => {
            let times = (*min).max(1).min(max.unwrap_or(u32::MAX));
            // A repetition of nothing could take long.
            (0..times.min(EXAMPLE_BYTES_MAX as u32)).for_each(|_| write(sub, out));
        }
    }
}

/// A member of a class: a common one, or else its first.
fn member(class: &Class) -> Vec<u8> {
    const COMMON: [char; 3] = ['x', '7', 'A'];
    let (common, first) = match class {
        Class::Unicode(class) => {
            let has = |common: &char| class.iter().any(|range| (range.start()..=range.end()).contains(common));
            (COMMON.into_iter().find(has), class.iter().next().map(|range| range.start().to_string().into_bytes()))
        }
        Class::Bytes(class) => {
            let has =
                |common: &char| class.iter().any(|range| (range.start()..=range.end()).contains(&(*common as u8)));
            (COMMON.into_iter().find(has), class.iter().next().map(|range| vec![range.start()]))
        }
    };
    common.map(|common| vec![common as u8]).or(first).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use crate::regex::Pattern;

    #[test]
    fn examples_match() {
        let check = |regex: &str, expected: &str| {
            for pattern in [Pattern::unicode(regex).unwrap(), Pattern::ascii(regex, true).unwrap()] {
                let example = pattern.example();
                assert!(pattern.is_match(&example), "{regex}: {example:?}");
                assert_eq!(String::from_utf8_lossy(&example).to_lowercase(), expected, "{regex}");
            }
        };
        check(r"^/users/\d+/[a-z]{2,3}$", "/users/7/xx");
        check(r"/v[0-9]+/(?<name>\w*)", "/v7/x");
        check(r"(red|green) ?[^x]", "red 7");
        check("", "");
        assert_eq!(Pattern::unicode("[é-ü]").unwrap().example(), "é".as_bytes());
        let long = Pattern::unicode("(a{1000})?").unwrap().example();
        assert_eq!(long, [b'a'; super::EXAMPLE_BYTES_MAX]);
    }
}
