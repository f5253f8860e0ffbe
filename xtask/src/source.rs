//! Rust sources as tokens: comments are dropped, strings are distinguished from code, and test-only items can be left out.

use crate::Result;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Items that end with the first `;` or block after their keyword; anything else under an attribute may end with a comma.
const KEYWORDS: &[&str] =
    &["async", "const", "enum", "extern", "fn", "impl", "mod", "static", "struct", "trait", "type", "unsafe"];

/// The tokens of a file.
pub(crate) fn tokens(text: &str) -> Result<TokenStream> {
    text.parse().map_err(|error| format!("cannot be read as Rust: {error}").into())
}

/// The tokens of one level of a stream, without those under `#[cfg(test)]`.
pub(crate) fn shipped(stream: TokenStream) -> Vec<TokenTree> {
    let all: Vec<TokenTree> = stream.into_iter().collect();
    let mut kept = Vec::with_capacity(all.len());
    let mut rest = &all[..];
    while let [first, others @ ..] = rest {
        if is_punct(first, '#') && others.first().is_some_and(is_for_tests) {
            rest = behind_item(&others[1..]);
        } else {
            kept.push(first.clone());
            rest = others;
        }
    }
    kept
}

/// The identifier of a token, if it is one.
pub(crate) fn word(token: &TokenTree) -> Option<String> {
    match token {
        TokenTree::Ident(ident) => Some(ident.to_string()),
        _ => None,
    }
}

pub(crate) fn is_punct(token: &TokenTree, punct: char) -> bool {
    matches!(token, TokenTree::Punct(have) if have.as_char() == punct)
}

/// The tokens inside a pair of braces.
pub(crate) fn braced(token: &TokenTree) -> Option<TokenStream> {
    match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(group.stream()),
        _ => None,
    }
}

/// Whether the brackets of an attribute contain `cfg(test)`, possibly with more conditions.
fn is_for_tests(attribute: &TokenTree) -> bool {
    let mut text = attribute.to_string();
    text.retain(|char| !char.is_whitespace());
    text.starts_with("[cfg(test") || text.starts_with("[cfg(all(test")
}

/// The tokens after the item, field, arm or statement at the beginning.
fn behind_item(mut tokens: &[TokenTree]) -> &[TokenTree] {
    while let [hash, _, others @ ..] = tokens
        && is_punct(hash, '#')
    {
        tokens = others;
    }
    let is_visibility = |token: &TokenTree| {
        word(token).is_some_and(|word| word == "pub")
            || matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis)
    };
    let keyword = tokens.iter().find(|token| !is_visibility(token)).and_then(word).unwrap_or_default();
    let is_use = keyword == "use";
    let may_be_listed = !is_use && !KEYWORDS.contains(&keyword.as_str());
    let is_end = |token: &TokenTree| {
        is_punct(token, ';') || (may_be_listed && is_punct(token, ',')) || (!is_use && braced(token).is_some())
    };
    let end = tokens.iter().position(is_end).map_or(tokens.len(), |at| at + 1);
    &tokens[end..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, left: &str) {
        let kept: TokenStream = shipped(tokens(text).unwrap()).into_iter().collect();
        assert_eq!(kept.to_string(), tokens(left).unwrap().to_string(), "{text}");
    }

    #[test]
    fn what_only_tests_use_is_left_out() {
        check("fn a() {} #[cfg(test)] mod tests { fn b() {} } fn c() {}", "fn a() {} fn c() {}");
        check("#[cfg(test)] mod tests; fn c() {}", "fn c() {}");
        check("#[cfg(test)] use a::{b, c}; fn c() {}", "fn c() {}");
        check("#[cfg(test)] pub(crate) use a::b; fn c() {}", "fn c() {}");
        check("#[cfg(all(test, loom))] #[allow(dead_code)] fn a<B, C>(b: B) where C: D, {} fn c() {}", "fn c() {}");
        check("#[cfg(test)] A => b(), C => d(),", "C => d(),");
        check("#[cfg(not(test))] fn a() {}", "#[cfg(not(test))] fn a() {}");
        check("// #[cfg(test)]\nfn a() { \"#[cfg(test)]\" }", "fn a() { \"#[cfg(test)]\" }");
    }
}
