//! The names directly below its crate's root that a Rust file uses, through `use` trees and through paths in the code.
//!
//! ```text
//!  use crate::{client::Client, exchange::{self, Reply}};   client, exchange
//!  super::node::Node          in src/exchange/reply.rs      nothing: its own room's
//!  super::super::node::Node   in src/exchange/reply.rs      node
//! ```
//!
//! Names behind a glob, and macros, which have no path, are not detected.

use crate::Result;
use crate::source::{braced, is_punct, shipped, tokens, word};
use proc_macro2::{TokenStream, TokenTree};
use std::collections::BTreeSet;

/// A name and its line. The name of the whole root (`crate::*`) is `*`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NameUse {
    pub(crate) line: usize,
    pub(crate) name: String,
}

/// The names that a file uses outside its tests; `path` is its path below `src/`.
pub(crate) fn below_root(path: &str, text: &str) -> Result<BTreeSet<NameUse>> {
    let mut finder = Finder { module: module(path), found: BTreeSet::new() };
    finder.walk(tokens(text)?);
    Ok(finder.found)
}

/// The module of a file below `src/`.
fn module(path: &str) -> Vec<String> {
    let mut module: Vec<String> = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    module.pop_if(|last| last == "mod");
    module
}

struct Finder {
    /// The module of the tokens.
    module: Vec<String>,
    found: BTreeSet<NameUse>,
}

impl Finder {
    fn walk(&mut self, stream: TokenStream) {
        let tokens = shipped(stream);
        let mut rest = &tokens[..];
        let mut is_inside_path = false;
        while let [first, others @ ..] = rest {
            let word = word(first).unwrap_or_default();
            let begins_path = matches!(word.as_str(), "crate" | "self" | "super") && !is_inside_path;
            is_inside_path = is_punct(first, ':');
            rest = others;
            if begins_path && behind_colons(others).is_some() {
                self.path(self.module.clone(), first, others);
            } else if let ("mod", [name, body, ..]) = (word.as_str(), others)
                && let Some(body) = braced(body)
            {
                self.module.push(name.to_string());
                self.walk(body);
                self.module.pop();
                rest = &others[2..];
            } else if let TokenTree::Group(group) = first {
                self.walk(group.stream());
            }
        }
    }

    /// Follows a path, or a tree of paths, from one of its segments; `prefix` is the segment's module.
    fn path(&mut self, mut prefix: Vec<String>, segment: &TokenTree, others: &[TokenTree]) {
        if let Some(tree) = braced(segment) {
            let elements: Vec<TokenTree> = tree.into_iter().collect();
            for element in elements.split(|token| is_punct(token, ',')) {
                if let [first, others @ ..] = element {
                    self.path(prefix.clone(), first, others);
                }
            }
            return;
        }
        match segment.to_string().trim_start_matches("r#") {
            "crate" => prefix.clear(),
            "self" => {}
            "super" => {
                prefix.pop();
            }
            name => {
                if prefix.is_empty() {
                    self.found.insert(NameUse { line: segment.span().start().line, name: name.to_owned() });
                }
                prefix.push(name.to_owned());
            }
        }
        if let Some([next, others @ ..]) = behind_colons(others) {
            self.path(prefix, next, others);
        }
    }
}

/// The tokens after `::`, if they begin with it.
fn behind_colons(tokens: &[TokenTree]) -> Option<&[TokenTree]> {
    match tokens {
        [first, second, others @ ..] if is_punct(first, ':') && is_punct(second, ':') => Some(others),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str, expected: &[(usize, &str)]) {
        let found = below_root(path, text).unwrap();
        let found: Vec<(usize, &str)> = found.iter().map(|named| (named.line, named.name.as_str())).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn use_trees_are_followed() {
        check("a/b.rs", "use crate::client::Client;", &[(1, "client")]);
        check("a/b.rs", "pub(crate) use crate::client as other;", &[(1, "client")]);
        check(
            "a/b.rs",
            "use crate::{client::{self, A as B}, node, plan::*};",
            &[(1, "client"), (1, "node"), (1, "plan")],
        );
        check(
            "a/b.rs",
            "use crate::{\n    client::A,\n    node::{\n        B, C,\n    },\n};",
            &[(2, "client"), (3, "node")],
        );
        check("a/b.rs", "use {crate::client::A, super::c::D, std::fs};", &[(1, "client")]);
        check("a/b.rs", "use crate::*;", &[(1, "*")]);
        check("a/b.rs", "use std::sync::Arc; use stillgate_wire::Method;", &[]);
    }

    #[test]
    fn super_counts_from_the_file_and_from_modules_in_it() {
        check("a/b.rs", "use super::super::node::Node;", &[(1, "node")]);
        check("a/b.rs", "use super::{c::D, super::node};", &[(1, "node")]);
        check("a/mod.rs", "use super::node::Node;", &[(1, "node")]);
        check("a.rs", "use super::node::Node; use self::b::B;", &[(1, "node")]);
        check("a.rs", "mod inner { use super::super::node; } use super::plan;", &[(1, "node"), (1, "plan")]);
        check("a/b/c.rs", "use super::super::d;", &[]);
    }

    #[test]
    fn paths_in_the_code_count() {
        check("a.rs", "fn f(x: &crate::node::Node) -> u8 { crate::plan::of(x)[1] }", &[(1, "node"), (1, "plan")]);
        check("a.rs", "impl crate::node::Trait for B { type C = Vec<crate::plan::P>; }", &[(1, "node"), (1, "plan")]);
        check("a.rs", "f!(x, crate::node::N::<u8>::new());", &[(1, "node")]);
        check("a.rs", "macro_rules! m { () => { $crate::node::N } }", &[(1, "node")]);
    }

    #[test]
    fn comments_strings_visibilities_and_tests_do_not() {
        check("a.rs", "//! [`crate::node`]\n/// crate::node::N\nconst A: &str = \"crate::node::N\";", &[]);
        check("a.rs", "pub(crate) fn f(self) -> Self { Self::new() }", &[]);
        check("a.rs", "#[cfg(test)]\nmod tests { use super::*; use crate::node::N; }", &[]);
    }
}
