//! The first example of each plugin's page runs, and answers as the page says.
//!
//! Nodes of the examples are replaced by one that echoes; servers that plugins use are not there.

use crate::shared::STILLGATE;
use std::path::{Path, PathBuf};
use stillgate_testkit::{Gateway, Message, Setup, Upstream};

/// How often an example is tried until it answers as its page says: limits let some requests through.
const TRIES: usize = 5;

fn pages() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/plugins");
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let page = |path: PathBuf| {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        (name, std::fs::read_to_string(path).expect("a page"))
    };
    paths.into_iter().map(page).collect()
}

/// The blocks of a page in one language.
fn blocks<'a>(page: &'a str, language: &str) -> impl Iterator<Item = &'a str> {
    let begin = format!("```{language}\n");
    let parts: Vec<&str> = page.split(&*begin).skip(1).collect();
    parts.into_iter().map(|part| part.split("```").next().unwrap_or_default())
}

/// An example as it can be started here: without its listeners, with other nodes and a file that can be written.
fn started(example: &str, node: &Upstream) -> Gateway {
    let mut resources = String::new();
    let mut is_ours = true;
    for line in example.lines() {
        if !line.starts_with([' ', '-']) {
            is_ours = !line.starts_with("gateway:");
        }
        if is_ours {
            resources.push_str(&with_nodes(line, node));
            resources.push('\n');
        }
    }
    Gateway::start(STILLGATE, &Setup::resources(resources.replace("/var/log/stillgate", "{dir}")))
}

/// `nodes: {"127.0.0.1:8080": 1}` with another address.
fn with_nodes(line: &str, node: &Upstream) -> String {
    let Some((before, rest)) = line.split_once("nodes: {\"") else { return line.to_owned() };
    let (_, after) = rest.split_once('"').expect("an address in quotes");
    format!("{before}nodes: {{\"{}\"{after}", node.addr())
}

/// The path of the first route; what its wildcard takes is `1`.
fn path(example: &str) -> Option<String> {
    let uri = example.lines().find_map(|line| line.trim_start().strip_prefix("uri: "))?;
    Some(uri.replace('*', "1"))
}

/// The first request of a client with the path of the first route.
fn ask(gateway: &Gateway, path: &str) -> Message {
    gateway.client().get(path)
}

/// A value without what differs each time: digits, and names of days and months.
fn shape(value: &str) -> String {
    let words = value.split_inclusive(|c: char| !c.is_ascii_alphanumeric());
    let shaped = words.map(|word| {
        let letters = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        let rest = &word[letters.len()..];
        let is_name = letters.len() == 3
            && letters.starts_with(char::is_uppercase)
            && letters.chars().skip(1).all(|c| c.is_lowercase());
        let letters = if is_name { "Xxx".to_owned() } else { letters.replace(|c: char| c.is_ascii_digit(), "0") };
        format!("{letters}{rest}")
    });
    // However many digits, and with or without decimals.
    let mut shaped: String = shaped.collect();
    for many in ["00", "0.0"] {
        while shaped.contains(many) {
            shaped = shaped.replace(many, "0");
        }
    }
    shaped
}

/// Whether a value is as a page says, where `…` matches any text.
fn is_as(value: &str, said: &str) -> bool {
    match said.split_once('…') {
        None => shape(value) == shape(said),
        Some((before, after)) => {
            value.starts_with(before)
                && (0..=value.len()).filter_map(|at| value.get(at..)).any(|rest| is_as(rest, after))
        }
    }
}

/// The differences of a response from a page: a status line, fields, an empty line and the body; or fields alone.
fn differs(response: &Message, said: &str) -> Option<String> {
    let (head, body) = said.split_once("\n\n").map_or((said, None), |(head, body)| (head, Some(body)));
    for line in head.lines() {
        match line.split_once(": ") {
            Some((name, value)) if response.head.all(name).iter().any(|got| is_as(got, value)) => {}
            None if line == response.head.start => {}
            _ => return Some(line.to_owned()),
        }
    }
    let body = body.map(str::trim_end)?;
    (String::from_utf8_lossy(&response.body).trim_end() != body).then(|| body.to_owned())
}

#[test]
fn examples_of_plugins_run() {
    let node = Upstream::echo();
    let (mut wrong, mut played) = (Vec::new(), 0);
    for (name, page) in pages() {
        let Some(example) = blocks(&page, "yaml").next() else { continue };
        let mut gateway = started(example, &node);
        let said: Vec<&str> = blocks(&page, "http").collect();
        // Resources alone, such as global rules, answer as if there were no route.
        let path = path(example).unwrap_or_else(|| "/".to_owned());
        let first = ask(&gateway, &path);
        for said in said {
            played += 1;
            let mut last = differs(&first, said);
            for _ in 1..TRIES {
                if last.is_some() {
                    last = differs(&ask(&gateway, &path), said);
                }
            }
            if let Some(line) = last {
                wrong.push(format!("docs/plugins/{name}.md: GET {path} has not {line:?}; the first answer: {first:?}"));
            }
        }
        gateway.assert_healthy();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(played >= 2, "only {played} answers were found");
}

#[test]
fn what_differs_is_seen() {
    assert!(is_as("a;Expires=Thu, 18-Nov-10 11:27:35 GMT", "a;Expires=Fri, 9-Dec-26 1:2:3 GMT"));
    assert!(is_as("token=eyJabc;path=/", "token=eyJ…;path=/"));
    assert!(!is_as("token=eyJabc;path=/a", "token=eyJ…;path=/"));
    assert!(!is_as("a", "b") && is_as("41.73", "7"));
}
