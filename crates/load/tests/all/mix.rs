//! Mix files as people write and browsers record them: the requests they make, or all their errors.
//!
//! `UPDATE_EXPECT=1 cargo test` rewrites the expected files; read the difference.

use expect_test::expect_file;
use proptest::prelude::*;
use std::collections::HashSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use stillgate_load::mix::{Composer, FINDINGS_MAX};
use stillgate_load::{Mix, Target};
use stillgate_wire::{HeadLimits, HeadProgress, RequestHead};

fn target() -> Target {
    Target::parse("http://example.test:8080/ignored").unwrap()
}

fn data(prefix: &str) -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files
        .filter(|path| path.extension().is_some_and(|ending| ending == "yaml" || ending == "har"))
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(prefix))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no {prefix}*");
    files
}

#[test]
fn bad_files_are_refused_with_every_error() {
    for file in data("bad-") {
        let mut errors = Mix::from_file(&file, &target()).unwrap_err();
        errors.origin = "FILE".to_owned();
        expect_file![file.with_extension("errors")].assert_eq(&format!("{errors}\n"));
    }
}

#[test]
fn good_files_make_their_requests() {
    for file in data("good-") {
        let mix = Mix::from_file(&file, &target()).unwrap_or_else(|errors| panic!("{errors}"));
        let mut shown = String::new();
        for note in mix.notes() {
            writeln!(shown, "note: {note}").unwrap();
        }
        // The first two requests of each entry.
        let mut seen = vec![Vec::new(); mix.entries().len()];
        let mut composer = Composer::new(&mix, 1, 1, 4);
        while seen.iter().any(|requests| requests.len() < 2) {
            let composed = composer.compose();
            if seen[composed.entry].len() < 2 {
                seen[composed.entry].push(composed.bytes.to_vec());
            }
        }
        for ((entry, weight), requests) in mix.entries().iter().zip(mix.weights()).zip(seen) {
            writeln!(shown, "\n== {} (weight {weight}, method {}) ==", entry.name, entry.method).unwrap();
            for request in requests {
                assert_is_one_request(&request);
                writeln!(shown, "{}\n--", request.escape_ascii().to_string().replace("\\r\\n", "\n")).unwrap();
            }
            let statuses: Vec<u16> = [200, 201, 204, 205, 302, 304, 400, 404, 500]
                .into_iter()
                .filter(|status| entry.expect.status(*status))
                .collect();
            writeln!(shown, "expects {statuses:?}, looks at the body: {}", entry.expect.needs_body()).unwrap();
        }
        expect_file![file.with_extension("requests")].assert_eq(&shown);
    }
}

/// Uses the parser of a strict server: one head, and a body of the announced length.
fn assert_is_one_request(bytes: &[u8]) {
    let limits = HeadLimits { head_bytes_max: 1 << 20, target_bytes_max: 1 << 20, headers_max: 100 };
    let mut head = RequestHead::default();
    let parsed = head.advance(bytes, &limits);
    let shown = bytes.escape_ascii();
    let Ok(HeadProgress::Complete(length)) = parsed else { panic!("{parsed:?}: {shown}") };
    let text = String::from_utf8_lossy(&bytes[..length]).to_ascii_lowercase();
    let declared = text.lines().find_map(|line| line.strip_prefix("content-length: "));
    let body: usize = declared.map_or(0, |value| value.parse().unwrap());
    assert_eq!(bytes.len(), length + body, "{shown}");
}

/// `messages` are parts of all the errors, in order.
fn check(name: &str, text: &str, messages: &[&str]) {
    let read = match name.ends_with(".har") {
        true => Mix::from_har(text, Path::new(name), &target()),
        false => Mix::from_yaml(text, Path::new(name), &target()),
    };
    let errors = read.map(|mix| panic!("{text}: {mix:?}")).unwrap_err().to_string();
    assert_eq!(errors.lines().count(), messages.len(), "{errors}");
    for (error, message) in errors.lines().zip(messages) {
        assert!(error.contains(message), "{error}\nwanted: {message}");
    }
}

#[test]
fn what_is_no_mix_at_all_says_so() {
    let empty = "m.yaml:1:1: the file is empty; write at least `requests: [{path: /}]`";
    for (text, message) in [
        ("", empty),
        ("# a comment\n", empty),
        ("~", empty),
        ("just words\n", "m.yaml:1:1: the text \"just words\" is here; write a map of `variables` and `requests`"),
        ("- path: /\n", "m.yaml:1:1: a list is here; write a map of"),
        ("requests:\n", "m.yaml:1:1: no requests; write at least `requests: [{path: /}]`"),
        ("variables: {}\n", "m.yaml:1:1: no requests"),
        ("requests: []\n", "m.yaml:1:11: an empty list is here; write at least one request"),
        ("requests: 7\n", "m.yaml:1:11: the number 7 is here; write a list of requests"),
        ("requests: [{path: /}]\n---\nrequests: []\n", "m.yaml:2:1: a second YAML document begins"),
        ("requests:\n  - path: /\n   weight: 1\n", "m.yaml:3:"),
        ("requests: [{path: \"/]\n", "not valid YAML"),
        ("requests:\n\t- path: /\n", "not valid YAML"),
        ("{\"log\": {}}", "m.yaml:1:2: unknown key \"log\""),
        ("requests: [{path: /${id}}]\n", "m.yaml:1:21: not valid YAML: "),
        ("requests: [{path: /${id}}]\n", "; inside { } and [ ] put '${NAME}' in quotes"),
        ("\0", "not valid YAML"),
    ] {
        let more: &[&str] = if text.starts_with("{\"log") { &["no requests"] } else { &[] };
        let messages: Vec<&str> = more.iter().copied().chain([message]).collect();
        check("m.yaml", text, &messages);
    }
}

#[test]
fn what_is_no_recording_says_so() {
    let host = |host: &str| format!(r#"{{"request": {{"method": "GET", "url": "http://{host}/"}}}}"#);
    let hosts: Vec<String> = (0..8).map(|number| host(&format!("a{number}.test"))).chain([host("a3.test")]).collect();
    let others = format!(r#"{{"log": {{"entries": [{}]}}}}"#, hosts.join(","));
    for (text, message) in [
        ("", "m.har:1:1: the file is empty; export the recording again as HAR"),
        (" \n", "m.har:1:1: the file is empty"),
        ("requests: [{path: /}]\n", "m.har:1:1: expected value; a HAR file is an object with `log.entries`"),
        ("{\"version\": 1}\n", "m.har:1:14: missing field `log`; a HAR file is"),
        ("{\"log\": {}}\n", "missing field `entries`; a HAR file is"),
        ("{\"log\":\n  {\"entries\": [é, 1]}}", "m.har:2:16: expected value"),
        ("{\"log\": {\"entries\": [\n{\"request\": {\"url\": \"http://exa", "m.har:2:"),
        ("{\"log\": {\"entries\": []}} x", "m.har:1:26: trailing characters"),
        ("{\"log\": {\"entries\": []}}", "m.har: no entries; record the requests again"),
        (
            r#"{"log": {"entries": [{"request": {"method": "GET", "url": "blob:x"}}]}}"#,
            "m.har: none of the 1 entries is an HTTP request; record the requests again",
        ),
        (
            &others,
            "m.har: none of the 9 entries is for example.test:8080; they are for a3.test (2), a0.test (1), a1.test (1), \
             a2.test (1), a4.test (1), 3 more; use a URL of that host, or replace the host in the file",
        ),
    ] {
        check("m.har", text, &[message]);
    }
}

#[test]
fn files_that_cannot_be_read_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let check = |name: &str, bytes: Option<&[u8]>, want: &str| {
        let path = folder.path().join(name);
        if let Some(bytes) = bytes {
            std::fs::write(&path, bytes).unwrap();
        }
        let errors = Mix::from_file(&path, &target()).unwrap_err().to_string();
        assert!(errors.contains(want), "{errors}");
    };
    check(
        "missing.yaml",
        None,
        "missing.yaml: cannot be read (No such file or directory (os error 2)); check the path",
    );
    check("", None, "cannot be read (Is a directory");
    check(
        "latin.yaml",
        Some(b"# \xc3\xbc\n#\xfc"),
        "latin.yaml:2:2: the file is not UTF-8 from here on; save it as UTF-8",
    );
    check("utf16.har", Some(b"\xff\xfe{\0"), "utf16.har:1:1: the file is not UTF-8");
}

#[test]
fn nesting_aliases_and_size_are_bounded() {
    let nested = |depth: usize| format!("requests: [{{path: /, json: {}{}}}]", "[".repeat(depth), "]".repeat(depth));
    assert!(Mix::from_yaml(&nested(29), Path::new("m.yaml"), &target()).is_ok());
    check("m.yaml", &nested(30), &["more than 32 lists and maps inside one another"]);
    check("m.yaml", &nested(100_000), &["not valid YAML: recursion limit exceeded"]);
    let doubled = |times: usize| -> String {
        let again = |n: usize| format!(", &a{n} [*a{before}, *a{before}]", before = n - 1);
        format!("requests: [{{path: /, json: [&a0 [x, x]{}]}}]", (1..times).map(again).collect::<String>())
    };
    assert!(Mix::from_yaml(&doubled(8), Path::new("m.yaml"), &target()).is_ok());
    check("m.yaml", &doubled(25), &["aliases add more than 1000000 nodes to the file"]);
    let long = format!("requests: [{{path: /, body: {}}}]", "x".repeat(1024 * 1024 + 1));
    check("m.yaml", &long, &["a scalar of 1048577 bytes; at most 1048576 are allowed"]);
    let wrong = format!("requests: [{}]", "{path: x},".repeat(FINDINGS_MAX + 7));
    let errors = Mix::from_yaml(&wrong, Path::new("m.yaml"), &target()).unwrap_err();
    assert_eq!((errors.findings.len(), errors.more), (FINDINGS_MAX, 7));
    assert!(errors.to_string().ends_with("\nm.yaml: 7 more errors"));
    let deep = format!("{{\"log\": {{\"entries\": {}{}}}}}", "[".repeat(100_000), "]".repeat(100_000));
    check("m.har", &deep, &["an entry has a `request`"]);
}

#[test]
fn a_single_request_is_checked_too() {
    let single = |method: &str, path: &str, headers: &[(&str, &str)], body: &str| {
        let headers: Vec<(String, String)> = headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        Mix::single(method, path, "h:81", &headers, body.as_bytes().to_vec())
    };
    let sent = |mix: Mix| String::from_utf8(Composer::new(&mix, 1, 0, 1).compose().bytes.to_vec()).unwrap();
    let plain = single("GET", "/${a}?b", &[], "").unwrap();
    assert_eq!(sent(plain), "GET /${a}?b HTTP/1.1\r\nHost: h:81\r\n\r\n");
    let full = single("POST", "/", &[("host", "other"), ("X-A", "${b}")], "ü").unwrap();
    assert_eq!(sent(full), "POST / HTTP/1.1\r\nhost: other\r\nX-A: ${b}\r\nContent-Length: 2\r\n\r\nü");
    let errors = single("g e t", "x", &[("A b", "c"), ("C", "d\ne")], "").unwrap_err().to_string();
    let lines: Vec<&str> = errors.lines().collect();
    assert_eq!(lines.len(), 4, "{errors}");
    assert!(lines.iter().all(|line| line.starts_with("the request: ")), "{errors}");
}

#[test]
fn expectations_can_be_replaced() {
    let text = "requests: [{path: /, expect: {status: 404, body: {equals: a}}}, {path: /b}]";
    let mix = Mix::from_yaml(text, Path::new("m.yaml"), &target()).unwrap();
    let seen = |mix: &Mix| -> Vec<(bool, bool, bool)> {
        let one = |e: &stillgate_load::mix::Entry| (e.expect.status(200), e.expect.status(404), e.expect.body(b"xyz"));
        mix.entries().iter().map(one).collect()
    };
    assert_eq!(seen(&mix.expecting(None, None).unwrap()), [(false, true, false), (true, false, true)]);
    assert_eq!(seen(&mix.expecting(Some("2xx"), None).unwrap()), [(true, false, false), (true, false, true)]);
    assert_eq!(seen(&mix.expecting(None, Some("y")).unwrap()), [(false, true, true), (true, false, true)]);
    assert_eq!(seen(&mix.expecting(Some("200,404"), Some("no")).unwrap()), [(true, true, false); 2]);
    assert!(mix.expecting(Some("20"), None).unwrap_err().starts_with("\"20\" is here; write a status"));
}

#[test]
fn counters_give_each_number_once_over_all_threads() {
    let text = "variables: {n: {counter: 5}}\nrequests: [{path: '/${n}', body: '${n}'}, {path: '/b/${n}'}, {path: /c}]";
    let mix = Mix::from_yaml(text, Path::new("m.yaml"), &target()).unwrap();
    let mut seen = HashSet::new();
    for thread in 0..3 {
        let mut composer = Composer::new(&mix, 7, thread, 3);
        for _ in 0..300 {
            let composed = composer.compose();
            let entry = composed.entry;
            let text = std::str::from_utf8(composed.bytes).unwrap();
            let path = text.split(' ').nth(1).unwrap();
            if entry == 0 {
                // The value is the same in every place.
                assert!(text.ends_with(&format!("\r\n\r\n{}", &path[1..])), "{text}");
            }
            if entry < 2 {
                let number: u64 = path.rsplit('/').next().unwrap().parse().unwrap();
                assert!(number % 3 == (5 + thread as u64) % 3 && seen.insert(number), "{number} of {thread}");
            }
        }
    }
    assert!(seen.contains(&5) && seen.contains(&6) && seen.contains(&7));
}

#[test]
fn the_same_seed_makes_the_same_requests() {
    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/good-all.yaml"));
    let mix = Mix::from_file(file, &target()).unwrap();
    let requests = |seed, thread| -> Vec<Vec<u8>> {
        let mut composer = Composer::new(&mix, seed, thread, 2);
        (0..100).map(|_| composer.compose().bytes.to_vec()).collect()
    };
    assert_eq!(requests(1, 0), requests(1, 0));
    assert_ne!(requests(1, 0), requests(2, 0));
    assert_ne!(requests(1, 0), requests(1, 1));
}

/// Any characters, any bytes of ASCII, and words and signs of a mix.
const ANY_TEXT: &str = "\\PC*|[\\x00-\\x7f]*|(requests|variables|path|json|[\\[\\]{}:,&*!|> \n'\"-]){0,30}";

proptest! {
    #[test]
    fn any_text_is_a_mix_or_errors_with_places(text in ANY_TEXT) {
        for name in ["m.yaml", "m.har"] {
            let read = match name {
                "m.har" => Mix::from_har(&text, Path::new(name), &target()),
                _ => Mix::from_yaml(&text, Path::new(name), &target()),
            };
            match read {
                Ok(mix) => prop_assert!(!mix.entries().is_empty()),
                Err(errors) => prop_assert!(!errors.findings.is_empty()),
            }
        }
    }

    #[test]
    fn a_damaged_file_is_a_mix_or_errors_with_places(at in 0.0..1.0_f64, cut in 0..40_usize, put in "[ -~\n\té]{0,3}") {
        for file in data("good-").into_iter().chain(data("bad-")) {
            let text = std::fs::read_to_string(&file).unwrap();
            let begin = text.floor_char_boundary((text.len() as f64 * at) as usize);
            let end = text.ceil_char_boundary((begin + cut).min(text.len()));
            let damaged = format!("{}{put}{}", &text[..begin], &text[end..]);
            let read = match file.extension().is_some_and(|ending| ending == "har") {
                true => Mix::from_har(damaged.trim_start_matches('\u{feff}'), &file, &target()),
                false => Mix::from_yaml(&damaged, &file, &target()),
            };
            let Err(errors) = read else { continue };
            prop_assert!(!errors.findings.is_empty());
            for finding in errors.findings {
                let Some(at) = finding.at else { continue };
                let line = damaged.lines().nth(at.line as usize - 1).unwrap_or_default();
                prop_assert!(at.column as usize <= line.chars().count() + 2, "{finding:?} in {line:?}");
            }
        }
    }

    /// With any values in a request, a strict server sees one request with these values.
    #[test]
    fn values_stay_in_their_place(value in "[ -~\n\r\té]{0,12}", prefix in "[a-z$]{0,3}") {
        let quoted = serde_json::to_string(&value).unwrap();
        let text = format!(
            "variables: {{v: {{values: [{quoted}]}}}}\n\
             requests: [{{path: '/{prefix}/${{v}}', json: {{a: 'b${{v}}'}}}}, {{path: /, body: '{prefix}-${{v}}-'}}]"
        );
        let mix = Mix::from_yaml(&text, Path::new("m.yaml"), &target()).unwrap();
        let mut composer = Composer::new(&mix, 1, 0, 1);
        for _ in 0..8 {
            let composed = composer.compose();
            assert_is_one_request(composed.bytes);
            let at = composed.bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
            let body = &composed.bytes[at..];
            if composed.entry == 0 {
                let json: serde_json::Value = serde_json::from_slice(body).unwrap();
                prop_assert_eq!(json["a"].as_str().unwrap(), format!("b{value}"));
            } else {
                prop_assert_eq!(body.to_vec(), format!("{prefix}-{value}-").into_bytes());
            }
        }
    }
}
