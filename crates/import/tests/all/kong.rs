//! Configurations of Kong and what becomes of them: golden files, mistakes, and files that are meant to do harm.
//!
//! Each file in `data` has its result beside it: the losses, and the document as JSON. That the results are valid, and
//! that requests get what Kong gives them, is tested with the binary (`gateway/tests/control/import.rs`).

use expect_test::expect_file;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use stillgate_import::{ImportResult, kong};

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

fn import(text: &str) -> ImportResult {
    kong(text).unwrap_or_else(|errors| panic!("{errors}"))
}

fn written(imported: &ImportResult) -> String {
    let mut text = String::new();
    for loss in &imported.losses {
        writeln!(text, "{:?} {loss}", loss.severity).expect("a String");
    }
    for (name, value) in &imported.document {
        writeln!(text, "\n{name}: {value:#}").expect("a String");
    }
    text
}

/// Values of the test data that losses must not show.
const SECRETS: [&str; 22] = [
    "key-of-",
    "secret-of-",
    "password-of-",
    "word-of-",
    "a-token-of-",
    "a-redis-password",
    "c2VjcmV0",
    "BEGIN",
    "a-secret",
    "a-licence",
    "a-key-of-",
    "DECK_",
    "5baa61e4",
    "MFkw",
    "kong-key",
    "vault://",
    "{",
    "MII",
    "client_secret",
    "a-token",
    "10.0.0.9:4318",
    "/tmp/",
];

#[test]
fn each_file_has_its_result() {
    let mut count = 0;
    for entry in std::fs::read_dir(data()).unwrap() {
        let path = entry.unwrap().path();
        if !path.extension().is_some_and(|end| end == "yaml" || end == "json") {
            continue;
        }
        count += 1;
        let imported = import(&std::fs::read_to_string(&path).unwrap());
        for loss in &imported.losses {
            let secret = SECRETS.iter().find(|secret| loss.to_string().contains(**secret));
            assert_eq!(secret, None, "{}: {loss}", path.display());
            assert!(loss.at.line > 0, "{loss}");
        }
        expect_file![path.with_extension("out")].assert_eq(&written(&imported));
    }
    assert!(count > 15);
}

#[track_caller]
fn refused(text: &str, message: &str) {
    let errors = kong(text).map(|imported| imported.document).expect_err("a refusal").to_string();
    assert!(errors.contains(message), "{errors}");
}

#[test]
fn what_is_not_a_file_of_kong_is_refused_with_its_place() {
    refused("", "1:1: the file is empty");
    refused("[1]", "1:1: this is not a declarative configuration of Kong: it is not a map");
    refused("routes: []", "1:1: this is not a declarative configuration of Kong: the key `_format_version` is missing");
    refused("_format_version: '3.0'\nservices: [", "not valid YAML");
    refused("_format_version: '3.0'\n_format_version: '3.0'", "2:1: \"_format_version\" is listed twice");
    refused("_format_version: '3.0'\n---\na: 1", "2:1: a second YAML document begins");
}

#[test]
fn bombs_of_aliases_are_refused() {
    let mut text = "_format_version: '3.0'\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let before = level - 1;
        writeln!(text, "a{level}: &a{level} [*a{before}, *a{before}, *a{before}, *a{before}, *a{before}, *a{before}, *a{before}, *a{before}]").unwrap();
    }
    assert!(kong(&text).is_err());
}

/// Every value of every file in turn is something else: nothing panics, and all results are documents.
#[test]
fn wrong_types_anywhere_are_losses() {
    let wrong = [
        "5",
        "-1",
        "99999999999999999999",
        "1e300",
        "true",
        "''",
        "[]",
        "{}",
        "[[]]",
        "{a: b}",
        "~",
        "'\u{e000}x\u{e001}'",
    ];
    for file in [
        "routes.yaml",
        "upstreams.yaml",
        "auth.yaml",
        "restrictions.yaml",
        "transformers.yaml",
        "scopes.yaml",
        "observers.yaml",
        "streams.yaml",
    ] {
        let text = std::fs::read_to_string(data().join(file)).unwrap();
        let places: Vec<usize> = text.match_indices(": ").map(|(at, _)| at + 2).collect();
        for (number, at) in places.into_iter().enumerate() {
            let end = text[at..].find([',', '}', ']', '\n']).map_or(text.len(), |length| at + length);
            let changed = format!("{}{}{}", &text[..at], wrong[number % wrong.len()], &text[end..]);
            // Some changes are no longer YAML.
            if let Ok(imported) = kong(&changed) {
                assert!(!imported.document.is_empty());
            }
        }
    }
}

#[test]
fn references_in_circles_and_to_nothing_are_losses() {
    let imported = import(
        "_format_version: '3.0'
services: [{name: a, host: b, routes: [{name: a, paths: [/a], service: b}]}, {name: b, host: a}]
upstreams: [{name: a, targets: [{target: b}]}, {name: b, targets: [{target: a}]}]
plugins: [{name: key-auth, route: x}, {name: acl, consumer: {id: x}}, {name: cors, consumer_group: {}}]
consumers: [{username: c, groups: [{name: g}, x]}]
consumer_groups: [{name: g, consumers: [{username: c}, {username: x}]}]
",
    );
    let losses: Vec<String> = imported.losses.iter().map(ToString::to_string).collect();
    assert_eq!(
        losses.iter().filter(|loss| loss.contains("this refers to something that is not in the file")).count(),
        5,
        "{losses:#?}"
    );
}

#[test]
fn ten_thousand_routes_take_seconds_at_most() {
    const ROUTES: usize = 10_000;
    let mut text =
        "_format_version: '3.0'\nplugins: [{name: rate-limiting, config: {minute: 5}}, {name: cors}]\nservices:\n"
            .to_owned();
    for number in 0..ROUTES / 10 {
        writeln!(text, "- name: s\n  host: h{number}\n  plugins: [{{name: key-auth}}]\n  routes:").unwrap();
        for route in 0..10 {
            writeln!(text, "  - {{name: r, paths: [/{number}/{route}, /x{number}], hosts: [h{number}.example], plugins: [{{name: cors}}]}}").unwrap();
        }
    }
    text.push_str("consumers:\n");
    for number in 0..ROUTES {
        writeln!(text, "- {{username: c, keyauth_credentials: [{{key: k{number}}}], plugins: [{{name: rate-limiting, route: r, config: {{minute: 1}}}}]}}").unwrap();
    }
    let begin = Instant::now();
    let imported = import(&text);
    let routes =
        imported.document.iter().find(|(name, _)| name == "routes").map(|(_, list)| list.as_array().unwrap().len());
    assert_eq!(routes, Some(2 * ROUTES));
    // A bound that only quadratic work reaches; a debug build takes about four seconds.
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
}
