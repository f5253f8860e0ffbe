//! The table of `docs/security.md` with the unsafe code of each crate: its numbers are those of the sources.
//!
//! Tests, benches and examples are not counted: nobody runs them in production.

use crate::Result;
use crate::arrows::is_of_tests;
use crate::source::{braced, shipped, tokens, word};
use crate::tree;
use proc_macro2::{TokenStream, TokenTree};
use std::collections::BTreeMap;

const PAGE: &str = "docs/security.md";
/// The lines around the table.
const BEGIN: &str = "<!-- unsafe code of each crate, checked by `cargo xtask style` -->";
const END: &str = "<!-- end of the table -->";

/// Unsafe code of one crate.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct UnsafeCode {
    blocks: usize,
    functions: usize,
    impls: usize,
}

/// Checks the table.
pub(crate) fn check() -> Result {
    let files = tree::files()?;
    let mut crates: BTreeMap<&str, UnsafeCode> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let Some((name, below)) = file.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/")) else {
            continue;
        };
        let text = file.text().unwrap_or_default();
        if !is_of_tests(below) && text.contains("unsafe") {
            crates.entry(name).or_default().count(tokens(text).map_err(|error| format!("{}: {error}", file.path))?);
        }
    }
    crates.retain(|_, code| *code != UnsafeCode::default());
    let page = files.iter().find(|file| file.path == PAGE).and_then(|file| file.text());
    let table = page.and_then(table).ok_or_else(|| format!("{PAGE}: no table between\n{BEGIN}\n{END}"))?;
    let expected: Vec<String> = crates.iter().map(|(name, code)| code.row(name)).collect();
    let begins: Vec<&str> = table.iter().map(|row| row.rsplitn(3, '|').last().unwrap_or(row).trim_end()).collect();
    if begins != expected {
        return Err(format!("{PAGE}: the unsafe code is\n{}\nChange the numbers.", expected.join("\n")).into());
    }
    println!(
        "unsafe code: {} blocks in {} crates",
        crates.values().map(|code| code.blocks).sum::<usize>(),
        crates.len()
    );
    Ok(())
}

/// The rows of the table, without its head.
fn table(page: &str) -> Option<Vec<&str>> {
    let (_, after) = page.split_once(BEGIN)?;
    let (table, _) = after.split_once(END)?;
    Some(table.lines().filter(|line| line.starts_with('|')).skip(2).collect())
}

impl UnsafeCode {
    fn count(&mut self, stream: TokenStream) {
        let tokens = shipped(stream);
        for (at, token) in tokens.iter().enumerate() {
            if let TokenTree::Group(group) = token {
                self.count(group.stream());
            } else if word(token).as_deref() == Some("unsafe") {
                let next: Vec<String> = tokens[at + 1..].iter().take(4).map(TokenTree::to_string).collect();
                match next.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                    _ if tokens.get(at + 1).is_some_and(|next| braced(next).is_some()) => self.blocks += 1,
                    // Without a name it is the type of a pointer.
                    ["fn", name, ..] | ["extern", _, "fn", name] if !name.starts_with('(') => self.functions += 1,
                    ["impl" | "trait", ..] => self.impls += 1,
                    // Such as `unsafe(no_mangle)`.
                    _ => {}
                }
            }
        }
    }

    /// The row of a crate, up to what it is for.
    fn row(self, name: &str) -> String {
        format!("| `{name}` | {} | {} | {}", self.blocks, self.functions, self.impls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_counted_outside_tests_and_texts() {
        let text = r##"
            // unsafe { } in a comment
            const TEXT: &str = "unsafe { }";
            #[unsafe(no_mangle)] unsafe extern "C" fn a() { b() }
            type P = unsafe fn(u8); type Q = unsafe extern "C" fn(u8); unsafe fn b() { if true { unsafe { c() } } }
            unsafe impl Send for D {}
            macro_rules! m { () => { unsafe { c() } }; }
            #[cfg(test)] mod tests { fn t() { unsafe { c() } } }
        "##;
        let mut code = UnsafeCode::default();
        code.count(tokens(text).unwrap());
        assert_eq!(code, UnsafeCode { blocks: 2, functions: 2, impls: 1 });
        assert_eq!(code.row("x"), "| `x` | 2 | 2 | 1");
    }

    #[test]
    fn the_table_is_between_its_lines() {
        let page = format!("| no |\n{BEGIN}\n\n| crate |\n|---|\n| `x` | 2 | 2 | 1 | for y |\n\n{END}\n| no |\n");
        assert_eq!(table(&page), Some(vec!["| `x` | 2 | 2 | 1 | for y |"]));
        assert_eq!(table("none"), None);
    }
}
