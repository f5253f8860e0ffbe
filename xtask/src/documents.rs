//! Rules for the Markdown of the repository: lines fit the screen, links are valid, and the index leads to every page.
//!
//! Examples are not checked here: `crates/gateway/tests/control/documents.rs` runs them with the gateway.

use crate::Result;
use crate::tree;
use std::collections::{BTreeMap, BTreeSet};

/// Longest line outside tables and code blocks.
const COLUMNS_MAX: usize = 100;

/// Pages with longer lines, each with its reason.
const WIDER: &[(&str, &str)] = &[
    ("docs/configuration.md", "written by a test from the descriptions of keys"),
    ("docs/metrics.md", "written by a test from the descriptions of families"),
];

/// The entry page of the documentation.
const INDEX: &str = "docs/README.md";

/// Pages by their path from the root.
type Pages = BTreeMap<String, String>;

/// Checks all pages; reports every violation.
pub(crate) fn check() -> Result {
    let files = tree::files()?;
    let paths: BTreeSet<String> = files.iter().map(|file| file.path.clone()).collect();
    let page = |file: &tree::RepositoryFile| Some((file.path.clone(), file.text()?.to_owned()));
    let pages: Pages = files.iter().filter(|file| file.path.ends_with(".md")).filter_map(page).collect();
    let wrong = violations(&pages, &paths);
    if wrong.is_empty() {
        println!("{} pages: lines fit, links lead somewhere, the index leads to all", pages.len());
        return Ok(());
    }
    Err(wrong.join("\n").into())
}

fn violations(pages: &Pages, paths: &BTreeSet<String>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (path, text) in pages {
        wrong.extend(wide_lines(path, text));
        wrong.extend(broken_links(path, text, pages, paths));
    }
    let reached = reachable(pages);
    let lost = pages.keys().filter(|path| path.starts_with("docs/") && !reached.contains(*path));
    wrong.extend(lost.map(|path| format!("{path}: no link leads here from {INDEX}; add one")));
    wrong
}

fn wide_lines(path: &str, text: &str) -> Vec<String> {
    if WIDER.iter().any(|(wide, _)| *wide == path) {
        return Vec::new();
    }
    let too_wide = |line: &str| {
        // A line of one word, such as a long link, cannot be broken.
        line.chars().count() > COLUMNS_MAX && !line.starts_with('|') && line.trim().contains(' ')
    };
    let wide = prose(text).filter(|(_, line)| too_wide(line));
    wide.map(|(number, _)| format!("{path}:{number}: more than {COLUMNS_MAX} columns; wrap it")).collect()
}

fn broken_links(path: &str, text: &str, pages: &Pages, paths: &BTreeSet<String>) -> Vec<String> {
    let broken = |target: &str| {
        let (file, anchor) = resolve(path, target);
        let is_folder = || paths.iter().any(|known| known.starts_with(&format!("{file}/")));
        if !paths.contains(&file) && !is_folder() {
            return Some(format!("there is no {file}"));
        }
        let (anchor, page) = (anchor?, pages.get(&file)?);
        let known = prose(page).filter_map(|(_, line)| heading(line)).any(|heading| slug(heading) == anchor);
        (!known).then(|| format!("{file} has no heading #{anchor}"))
    };
    let say = |(number, target): (usize, &str)| Some(format!("{path}:{number}: {target}: {}", broken(target)?));
    links(text).filter_map(say).collect()
}

/// The pages that links lead to from the index.
fn reachable(pages: &Pages) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut next = vec![INDEX.to_owned()];
    while let Some(path) = next.pop() {
        let Some(text) = pages.get(&path) else { continue };
        if reached.insert(path.clone()) {
            next.extend(links(text).map(|(_, target)| resolve(&path, target).0));
        }
    }
    reached
}

/// Lines outside code blocks, numbered from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        (!in_code && !is_fence).then_some((index + 1, line))
    })
}

/// Targets of links to files of the repository, with the number of their line.
fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let after_brackets =
        prose(text).flat_map(|(number, line)| line.split("](").skip(1).map(move |rest| (number, rest)));
    let targets = after_brackets.filter_map(|(number, rest)| Some((number, rest.split_once(')')?.0)));
    targets.filter(|(_, target)| !target.contains("://") && !target.starts_with("mailto:"))
}

/// The file that a link on the page refers to, by its path from the root, and the heading in it.
fn resolve(page: &str, target: &str) -> (String, Option<String>) {
    let (file, anchor) = match target.split_once('#') {
        Some((file, anchor)) => (file, Some(anchor.to_owned())),
        None => (target, None),
    };
    if file.is_empty() {
        return (page.to_owned(), anchor);
    }
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    (parts.join("/"), anchor)
}

fn heading(line: &str) -> Option<&str> {
    let text = line.trim_start_matches('#');
    (text.len() < line.len()).then(|| text.trim())
}

/// The anchor that GitHub gives a heading.
fn slug(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pages: &[(&str, &str)], expected: &[&str]) {
        let pages: Pages = pages.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        let paths = pages.keys().cloned().chain(["docs/results/a.json.gz".to_owned()]).collect();
        assert_eq!(violations(&pages, &paths), expected);
    }

    #[test]
    fn good_pages_pass() {
        let wide_table = format!("|{}|\n", " a".repeat(COLUMNS_MAX));
        check(
            &[
                ("README.md", "[docs](docs/README.md) [rfc](https://example.com/a) [part](docs/a.md#what-x-is-not)\n"),
                ("docs/README.md", "[a](a.md) [raw](results/a.json.gz) [up](../README.md) [here](#end)\n# End\n"),
                ("docs/a.md", &format!("## What `x` is, not\n{wide_table}```\n{wide_table}[no](link.md)\n```\n")),
            ],
            &[],
        );
    }

    #[test]
    fn each_rule_bites() {
        let wide = "word ".repeat(COLUMNS_MAX / 4);
        check(
            &[
                ("docs/README.md", "[a](a.md)\n[b](b.md)\n[c](a.md#b)\n"),
                ("docs/a.md", &format!("# A\n{wide}\n")),
                ("docs/lost.md", ""),
            ],
            &[
                "docs/README.md:2: b.md: there is no docs/b.md",
                "docs/README.md:3: a.md#b: docs/a.md has no heading #b",
                "docs/a.md:2: more than 100 columns; wrap it",
                "docs/lost.md: no link leads here from docs/README.md; add one",
            ],
        );
    }
}
