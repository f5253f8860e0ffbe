//! Measures the length of the functions of a Rust source.

use crate::Result;
use crate::source::{braced, is_punct, shipped, tokens, word};
use proc_macro2::{TokenStream, TokenTree};
use std::collections::BTreeSet;

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SourceFunction {
    /// The line of its name.
    pub(crate) line: usize,
    pub(crate) name: String,
    /// Lines of code between its braces, without comments and empty lines: the count of `clippy::too_many_lines`.
    pub(crate) lines: usize,
}

/// The functions of a file outside its tests.
pub(crate) fn of(text: &str) -> Result<Vec<SourceFunction>> {
    let mut found = Vec::new();
    collect(tokens(text)?, &mut found);
    Ok(found)
}

fn collect(stream: TokenStream, found: &mut Vec<SourceFunction>) {
    let tokens = shipped(stream);
    for (at, token) in tokens.iter().enumerate() {
        // The type `fn(A) -> B` has no name.
        if word(token).is_some_and(|word| word == "fn")
            && let Some(TokenTree::Ident(name)) = tokens.get(at + 1)
        {
            let end = tokens[at..].iter().find(|token| is_punct(token, ';') || braced(token).is_some());
            if let Some(body) = end.and_then(braced) {
                let mut lines = BTreeSet::new();
                occupy(body, &mut lines);
                found.push(SourceFunction {
                    line: name.span().start().line,
                    name: name.to_string(),
                    lines: lines.len(),
                });
            }
        }
        if let TokenTree::Group(group) = token {
            collect(group.stream(), found);
        }
    }
}

/// Adds the lines of these tokens.
fn occupy(stream: TokenStream, lines: &mut BTreeSet<usize>) {
    for token in stream {
        match token {
            TokenTree::Group(group) => {
                lines.extend([group.span_open().start().line, group.span_close().end().line]);
                occupy(group.stream(), lines);
            }
            other => lines.extend(other.span().start().line..=other.span().end().line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[(usize, &str, usize)]) {
        let found = of(text).unwrap();
        let found: Vec<_> =
            found.iter().map(|function| (function.line, function.name.as_str(), function.lines)).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn code_is_counted_and_nothing_else() {
        check("fn a() {}", &[(1, "a", 0)]);
        check("fn a(\n    b: u8,\n) -> u8 {\n    // Why.\n\n    b\n        + 1\n}", &[(1, "a", 2)]);
        check("fn a() {\n    b(\n        \"c\n        d\",\n    );\n}", &[(1, "a", 4)]);
    }

    #[test]
    fn every_function_with_a_body_is_found() {
        check("trait A {\n    fn a();\n    fn b() {\n        c();\n    }\n}", &[(3, "b", 1)]);
        check("fn a() {\n    fn b() {\n        c();\n    }\n}", &[(1, "a", 3), (2, "b", 1)]);
        check("type A = fn(u8) -> u8; impl B { async fn c() {} }", &[(1, "c", 0)]);
        check("#[cfg(test)] mod tests { fn a() {} }", &[]);
    }
}
