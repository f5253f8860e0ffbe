//! The examples of the documentation are valid: every block of `yaml` is a whole configuration file that `check` accepts.
//!
//! A block that begins with "```yaml" and a further word is not: `fragment` for a part of a file, `mix` for another kind.

use crate::shared::folder::Folder;
use std::path::{Path, PathBuf};

/// The environment variables that examples use.
const ENVIRONMENT: [(&str, &str); 2] = [("ADMIN_KEY", "k"), ("ACME_HMAC_KEY", "a2V5")];

/// The words that may follow "```yaml".
const OTHER_KINDS: [&str; 5] = ["fragment", "mix", "suite", "table", "hosts"];

#[test]
fn examples_of_the_documentation_are_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = pages_below(&root.join("docs"));
    pages.push(root.join("README.md"));
    let mut wrong = Vec::new();
    let mut checked = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).expect("a page");
        for (line, kind, example) in examples(&text) {
            let place = format!("{}:{line}", page.strip_prefix(&root).expect("below the root").display());
            if !kind.is_empty() {
                assert!(OTHER_KINDS.contains(&kind), "{place}: unknown kind of example: {kind}");
                continue;
            }
            checked += 1;
            if let Err(report) = check(example) {
                wrong.push(format!("{place}:\n{report}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked >= 10, "only {checked} examples were found");
}

#[test]
fn the_guide_names_the_route_that_explain_finds() {
    let guide = include_str!("../../../../docs/getting-started.md");
    let (_, _, example) = examples(guide).next().expect("its configuration");
    let folder = Folder::with(&[("stillgate.yaml", example)]);
    let request = ["explain", "stillgate.yaml", "--request", "GET http://shop.example/orders/7"];
    for (more, route) in [(&["-H", "X-Beta: 1"][..], "orders-beta"), (&[], "orders")] {
        let output = folder.run(&[&request, more].concat());
        let answer = String::from_utf8_lossy(&output.stdout);
        assert!(answer.starts_with(&format!("route \"{route}\" ")), "{answer}");
        assert!(guide.contains(&format!("`{route}`")), "{route}");
    }
}

/// Whether the gateway accepts the file; its report if not.
fn check(example: &str) -> Result<(), String> {
    let folder = Folder::with(&[("stillgate.yaml", example)]);
    let mut command = folder.command(&["check", "--offline", "stillgate.yaml"]);
    let output = command.envs(ENVIRONMENT).output().expect("run stillgate");
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stdout).into_owned()) }
}

fn pages_below(folder: &Path) -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            pages.extend(pages_below(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    pages
}

/// The blocks of YAML: the line of each, what follows "```yaml", and its text.
fn examples(page: &str) -> impl Iterator<Item = (usize, &str, &str)> {
    let mut line = 1;
    let blocks = page.split("```yaml").map(move |part| {
        let begins_at = line;
        line += part.matches('\n').count();
        (begins_at, part)
    });
    blocks.skip(1).map(|(line, part)| {
        let (kind, rest) = part.split_once('\n').expect("a block has lines");
        (line, kind.trim(), rest.split("```").next().unwrap_or_default())
    })
}
