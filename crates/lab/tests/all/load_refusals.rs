//! Invalid uses of `stillgate-lab load`, and their messages.

use crate::processes;
use crate::processes::{Loading, Responder, load, number};
use std::net::TcpListener;
use std::process::Stdio;
use stillgate_testkit::attempt;
use tempfile::TempDir;

/// Wrong usage, or an impossible run: exit code 2, nothing on standard output, one message with these words.
fn check(arguments: &[&str], words: &[&str]) {
    let ended = load(arguments);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{arguments:?}: {}", ended.stderr);
    for word in words {
        assert!(ended.stderr.contains(word), "{arguments:?}: no {word:?} in: {}", ended.stderr);
    }
}

#[test]
fn values_that_make_no_sense() {
    let url = "http://127.0.0.1:1/";
    check(&[], &["<URL>"]);
    check(&[url, "--rate", "0"], &["--rate", "above zero"]);
    check(&[url, "--rate", "-5"], &["--rate", "requests per second"]);
    check(&[url, "--rate", "NaN"], &["--rate", "requests per second"]);
    check(&[url, "--rate", "inf"], &["--rate"]);
    check(&[url, "--rate", "1e9"], &["--rate", "2000, 20k"]);
    check(&[url, "--rate", "1000M"], &["--rate", "requests per second"]);
    check(&[url, "--rate-end", "5"], &["--rate <RATE>"]);
    check(&[url, "--poisson"], &["--rate <RATE>"]);
    check(&[url, "--realtime", "--cpus", "0"], &["--rate <RATE>"]);
    check(&[url, "--realtime", "--rate", "5"], &["--cpus <LIST>"]);
    check(&[url, "--duration", "0"], &["--duration 0", "--duration 10s"]);
    check(&[url, "--duration", "5"], &["--duration", "number and its unit"]);
    check(&[url, "--timeout", "0s"], &["--timeout 0"]);
    check(&[url, "--interval", "1ms"], &["--interval 1ms: at least 10ms"]);
    check(&[url, "--connections", "0"], &["--connections", "at least 1"]);
    check(&[url, "--connections", "-1"], &["-1"]);
    check(&[url, "--threads", "3", "--connections", "2"], &["--threads 3 for --connections 2"]);
    check(&[url, "--late-share", "5"], &["--late-share", "5%"]);
    check(&[url, "--header", "no colon"], &["--header", "Name: value"]);
    check(&[url, "--sources", "here"], &["--sources", "invalid IP address"]);
    check(&[url, "--expect-status", "999"], &["--expect-status", "999"]);
    check(&[url, "--body", "@missing.bin"], &["--body @missing.bin: No such file"]);
    check(&[url, "--mix", "m.yaml", "--method", "PUT"], &["cannot be used with"]);
    check(&[url, "--spin"], &["--spin"]);
    check(&[url, "second"], &["second"]);
}

#[test]
fn addresses_that_cannot_be_asked() {
    check(&["127.0.0.1:80"], &["write http://127.0.0.1:80"]);
    check(&["wss://127.0.0.1/"], &["\"wss\"", "http:// or https://"]);
    check(&["ftp://127.0.0.1/"], &["\"ftp\""]);
    check(&["http://127.0.0.1:99999/"], &["\"99999\" is not a port"]);
    check(&["http://user@127.0.0.1/"], &["user name"]);
    check(&["http://nobody.invalid/"], &["\"nobody.invalid\"", "was not resolved"]);
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    check(&[&format!("http://127.0.0.1:{port}/")], &["Connection refused", "nothing listens there"]);
}

#[test]
fn what_this_machine_cannot_do() {
    let responder = Responder::start(&[]);
    let url = responder.url();
    check(&[&url, "--connections", "1M"], &["file descriptors", "ulimit -n"]);
    check(&[&url, "--cpus", "4000"], &["CPU 4000"]);
    check(&[&url, "--sources", "192.0.2.1"], &["source address one of this machine"]);
    check(&[&url, "--sources", "::1"], &["::1"]);
}

#[test]
fn results_without_a_place_are_refused_before_the_run() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    // Nothing listens: a run would be refused with another message.
    let url = "http://127.0.0.1:1/";
    check(&[url, "--json", &path("missing/run.json")], &["run.json: cannot be written", "folder does not exist"]);
    check(&[url, "--json", folder.path().to_str().unwrap()], &["is a directory"]);
    check(&[url, "--hdr-log", &path("missing/run.hlog")], &["--hdr-log", "run.hlog"]);
    check(&[url, "--hdr-log", "/dev/full"], &["--hdr-log /dev/full", "No space left"]);
    check(&[url, "--json", &path("one"), "--hdr-log", &path("one")], &["--json and --hdr-log name the same file"]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "a refused run leaves nothing behind");
}

#[test]
fn every_error_of_a_mix_is_reported_with_its_place() {
    let folder = TempDir::new().unwrap();
    let mix = folder.path().join("mix.yaml");
    std::fs::write(
        &mix,
        "requests:\n  - path: no-slash\n  - path: /${nobody}\n    weight: 0\n  - {path: /x, metod: GET}\n  - {path: /y, expect: {status: 999}}\n",
    )
    .unwrap();
    let places = ["mix.yaml:2:", "mix.yaml:3:", "mix.yaml:4:", "mix.yaml:5:", "mix.yaml:6:"];
    check(&["http://127.0.0.1:1/", "--mix", mix.to_str().unwrap()], &places);
    check(&["http://127.0.0.1:1/", "--mix", "missing.yaml"], &["missing.yaml", "cannot be read"]);
    std::fs::write(folder.path().join("broken.har"), "{\"log\": {}").unwrap();
    check(&["http://127.0.0.1:1/", "--mix", folder.path().join("broken.har").to_str().unwrap()], &["broken.har"]);
}

#[test]
fn a_target_that_dies_is_in_the_figures() {
    attempt(|| {
        let responder = Responder::start(&[]);
        let url = responder.url();
        let run =
            Loading::start(&[&url, "--rate", "200", "--duration", "1h", "--interval", "100ms", "--late-share", "100%"]);
        run.stretches(3);
        responder.process.signal("KILL");
        run.stretches(20);
        run.process.signal("INT");
        let (code, json, log) = run.finish();
        let json = json.unwrap();
        assert_eq!(code, Some(0), "{log}");
        let failed = number(&json, &["errors"]) + number(&json, &["missed_starts"]);
        assert!(number(&json, &["requests"]) > 0.0 && failed >= 100.0, "{log}");
        assert!(json["errors_by_kind"]["connect"].is_u64(), "{log}");
    });
}

#[test]
fn a_run_without_answers_is_void() {
    let responder = Responder::start(&["--latency", "fixed:1h"]);
    let ended = load(&[&responder.url(), "--connections", "2", "--duration", "100ms", "--timeout", "200ms", "--quiet"]);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(ended.stdout.contains("VOID") && ended.stdout.contains("timeout"), "{}", ended.stdout);
}

#[test]
fn a_disk_that_is_full_at_the_end_is_reported() {
    let responder = Responder::start(&[]);
    let ended = load(&[&responder.url(), "--duration", "50ms", "--json", "/dev/full"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("/dev/full") && ended.stderr.contains("No space left"), "{}", ended.stderr);
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    attempt(|| {
        let responder = Responder::start(&[]);
        let mut command = processes::lab(&["load", &responder.url(), "--duration", "50ms", "--quiet"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        // 3: a busy machine made it void.
        assert!(matches!(output.status.code(), Some(0 | 3)) && output.stderr.is_empty(), "{output:?}");
    });
}
