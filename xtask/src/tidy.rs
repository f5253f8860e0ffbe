//! Style rules that a machine can check, over every file of the repository.
//!
//! Checks of clippy and rustfmt are left to those.

use crate::Result;
use crate::arrows::is_of_tests;
use crate::functions::{self, SourceFunction};
use crate::tree::{self, RepositoryFile};

/// The most lines of a source file. The aim is 250 to 500.
const LINES_MAX: usize = 1000;

/// The most lines of code of a function in these folders, counted like clippy does; elsewhere the bound in `clippy.toml` applies.
const FUNCTION_LINES_MAX: &[(&str, usize)] = &[
    ("crates/devices/src/", 60),
    ("crates/limits/src/", 60),
    ("crates/plugin-api/src/", 60),
    ("crates/proxy/src/calls/", 60),
    ("crates/proxy/src/client/", 60),
    ("crates/proxy/src/connection/", 60),
    ("crates/proxy/src/exchange/", 60),
    ("crates/proxy/src/fleet/", 60),
    ("crates/proxy/src/listen/", 60),
    ("crates/proxy/src/node/", 60),
    ("crates/proxy/src/telemetry/", 60),
    ("crates/proxy/src/tunnel/", 60),
    ("crates/proxy/src/worker/", 60),
    ("crates/upstream/src/", 60),
];

/// Longer files, each with its reason.
const LONGER: &[(&str, &str)] = &[];

/// Crates that parse, edit or write heads and frame bodies. A debug assertion would stop the program in tests only, so tests could
/// not show what a release build does after it: checks are made in every build.
const WITHOUT_DEBUG_ASSERTIONS: &[&str] =
    &["crates/lua/src/", "crates/plugin-api/src/", "crates/plugins/src/", "crates/proxy/src/", "crates/wire/src/"];

/// Names of folders and files that do not describe their content.
const EMPTY_NAMES: &[&str] = &["utils", "util", "common", "helpers", "misc", "types"];

/// Checks all files; reports every violation.
pub(crate) fn check() -> Result {
    let files = tree::files()?;
    let mut wrong = Vec::new();
    for file in &files {
        check_file(file, &mut wrong);
        check_functions(file, &mut wrong);
    }
    for (folder, _) in FUNCTION_LINES_MAX {
        if !files.iter().any(|file| file.path.starts_with(folder)) {
            wrong.push(format!("{folder}: is not there; bound the functions where they are now, in xtask/src/tidy.rs"));
        }
    }
    for (path, _) in LONGER {
        if !files.iter().any(|file| file.path == *path && lines(file) > LINES_MAX) {
            wrong.push(format!("{path}: no longer over {LINES_MAX} lines; take it off the list in xtask/src/tidy.rs"));
        }
    }
    if wrong.is_empty() {
        println!("{} files are tidy", files.len());
        return Ok(());
    }
    Err(wrong.join("\n").into())
}

fn check_file(file: &RepositoryFile, wrong: &mut Vec<String>) {
    let path = &file.path;
    for part in path.split('/') {
        let stem = part.strip_suffix(".rs").unwrap_or(part);
        if EMPTY_NAMES.contains(&stem) {
            wrong.push(format!("{path}: `{stem}` says nothing; name it after what is inside"));
        }
    }
    let Some(text) = file.text() else { return };
    // This file has to contain what it forbids.
    if path == "xtask/src/tidy.rs" {
        return;
    }
    for (number, line) in text.lines().enumerate() {
        if let Some(reason) = forbidden(path, line) {
            wrong.push(format!("{path}:{}: {reason}", number + 1));
        }
    }
    if file.is_rust() {
        if !text.starts_with("//!") {
            wrong.push(format!("{path}:1: open with `//!`: what it is for, why so, what it does not do"));
        }
        let allowed = LONGER.iter().any(|(long, _)| long == path);
        if lines(file) > LINES_MAX && !allowed {
            wrong.push(format!("{path}: {} lines, {LINES_MAX} at most; split it by purpose", lines(file)));
        }
    }
}

/// Checks shipped functions against the bound of their folder.
fn check_functions(file: &RepositoryFile, wrong: &mut Vec<String>) {
    let path = &file.path;
    let bound = FUNCTION_LINES_MAX.iter().find(|(folder, _)| path.starts_with(folder) && !is_of_tests(path));
    let Some((_, max)) = bound.filter(|_| file.is_rust()) else { return };
    match functions::of(file.text().unwrap_or_default()) {
        Err(error) => wrong.push(format!("{path}: {error}")),
        Ok(found) => {
            for SourceFunction { line, name, lines } in found.into_iter().filter(|function| function.lines > *max) {
                wrong.push(format!(
                    "{path}:{line}: `{name}` has {lines} lines of code, {max} at most here; name its steps"
                ));
            }
        }
    }
}

fn lines(file: &RepositoryFile) -> usize {
    file.bytes.iter().filter(|&&byte| byte == b'\n').count()
}

/// Why this line is forbidden.
fn forbidden(path: &str, line: &str) -> Option<&'static str> {
    let source = path.ends_with(".rs") || path.ends_with(".toml") || path.ends_with(".py") || path.ends_with(".sh");
    if source && ["TODO", "FIXME", "XXX:", "todo!(", "unimplemented!("].iter().any(|word| line.contains(word)) {
        return Some("unfinished; do it, or write down why not in docs/decisions.md");
    }
    if path.ends_with(".rs") {
        if line.contains("#[ignore") {
            return Some("a test that does not run; make it run or remove it");
        }
        if line.contains("dbg!(") {
            return Some("left over from debugging");
        }
        let edits_heads = WITHOUT_DEBUG_ASSERTIONS.iter().any(|folder| path.starts_with(folder));
        if edits_heads && (line.contains("debug_assert") || line.contains("cfg!(debug_assertions)")) {
            return Some("release builds would go on where tests stop; use `assert!`, or handle the case");
        }
    }
    // Paths of this machine, which are wrong on any other. URL paths in tests must avoid them too.
    if ["/root/", "/home/", "/Users/", "/work/"].iter().any(|place| line.contains(place)) {
        return Some("a path of one machine");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str) -> Vec<String> {
        let file = RepositoryFile { path: path.to_owned(), bytes: text.as_bytes().to_vec() };
        let mut wrong = Vec::new();
        check_file(&file, &mut wrong);
        wrong
    }

    #[test]
    fn functions_are_bounded_where_a_folder_says_so() {
        let check = |path: &str, lines: usize| {
            let text = format!("fn long() {{\n{}}}\n", "    step();\n".repeat(lines));
            let mut wrong = Vec::new();
            check_functions(&RepositoryFile { path: path.to_owned(), bytes: text.into_bytes() }, &mut wrong);
            wrong
        };
        let (folder, max) = FUNCTION_LINES_MAX[0];
        assert!(check(&format!("{folder}a.rs"), max).is_empty());
        assert!(
            check(&format!("{folder}a.rs"), max + 1)[0].starts_with(&format!("{folder}a.rs:1: `long` has 61 lines"))
        );
        assert!(check(&format!("{folder}tests.rs"), max + 1).is_empty());
        assert!(check("crates/a/src/b.rs", max + 1).is_empty());
    }

    #[test]
    fn each_rule_bites() {
        assert!(check("crates/a/src/lib.rs", "//! Good.\n").is_empty());
        assert_eq!(check("crates/a/src/lib.rs", "fn main() {}\n").len(), 1);
        assert_eq!(check("crates/a/src/utils.rs", "//! Bad.\n").len(), 1);
        assert_eq!(check("crates/a/src/b.rs", "//! Bad.\n// TODO later\n").len(), 1);
        assert_eq!(check("crates/a/src/b.rs", "//! Bad.\n#[ignore]\n").len(), 1);
        assert_eq!(check("README.md", "see /root/x\n").len(), 1);
        let long = format!("//! Bad.\n{}", "\n".repeat(LINES_MAX));
        assert_eq!(check("crates/a/src/b.rs", &long).len(), 1);
    }
}
