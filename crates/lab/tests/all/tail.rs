//! The tail experiment as its users run it: small, with a bare responder in place of the gateway.

use crate::processes::{RUN_PATIENCE, lab, run};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use stillgate_testkit::{Process, attempt, eventually_within, require_tool, with_longer_times};
use tempfile::TempDir;

/// Small enough for a test; it allows no conclusions.
const SMALL: [&str; 10] =
    ["--rate", "200", "--connections", "4", "--block", "1s", "--scrape-every", "300ms", "--seed", "11"];

/// The arguments of a small experiment whose result goes to `json`.
fn small(json: &Path, pairs: &str) -> Vec<String> {
    // Quoted for the shell that splits the words of a command.
    let start = format!("'{}' respond --address {{address}}", env!("CARGO_BIN_EXE_stillgate-lab"));
    let own = ["--start", &start, "--metrics", "http://{address}/metrics", "--pairs", pairs, "--spares", "0", "--json"];
    SMALL.iter().chain(&own).map(|word| (*word).to_owned()).chain([json.to_str().unwrap().to_owned()]).collect()
}

fn words(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

fn verify(path: &Path) -> (Option<i32>, String) {
    let done = run(&["verify"], &[path.to_str().unwrap()]);
    (done.code, done.stdout + &done.stderr)
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn a_small_experiment_leaves_a_file_that_verifies() {
    attempt(|| {
        let folder = TempDir::new().unwrap();
        let json = folder.path().join("tail.json");
        let done = run(&["tail"], &words(&small(&json, "2")));
        // Without a verdict.
        assert_eq!(done.code, Some(3), "{}{}", done.stdout, done.stderr);
        assert!(done.stderr.contains("2 pairs cannot show a difference, however large"), "{}", done.stderr);
        assert!(done.stdout.contains("The slowest requests: void in 1 of 1: stillgate-lab ("), "{}", done.stdout);
        let result = read(&json);
        let planned = json!([{"name": "stillgate-lab", "series": null, "scrape_every_s": 0.3}]);
        assert_eq!(result["design"]["plan"], planned);
        let blocks = result["cells"][0]["blocks"].as_array().unwrap();
        let shape: Vec<_> = blocks.iter().map(|block| (block["pair"].as_u64().unwrap(), &block["arm"])).collect();
        assert_eq!(shape.iter().map(|(pair, _)| *pair).collect::<Vec<_>>(), [0, 0, 1, 1]);
        // ABBA or BAAB.
        assert!(shape[0].1 == shape[3].1 && shape[1].1 == shape[2].1 && shape[0].1 != shape[1].1, "{shape:?}");
        for block in blocks {
            let scrapes = block["scrapes"].as_array().unwrap();
            assert_eq!(scrapes.is_empty(), block["arm"] == "without", "{block}");
            assert!(scrapes.iter().all(|scrape| scrape["error"].is_null()), "{scrapes:?}");
            assert!(block["run"]["requests"].as_u64().unwrap() > 0, "{block}");
            assert!(block["points"].as_array().unwrap().len() > 1, "{block}");
            assert!(block["cpu_us_per_request"].as_f64().unwrap() > 0.0, "{block}");
        }
        assert_eq!(verify(&json), (Some(0), format!("{}: verified: same verdict\n", json.display())));
    });
}

#[test]
fn hours_make_blocks_and_a_profile_shows_both_kinds() {
    require_tool("perf", "linux-perf");
    let folder = TempDir::new().unwrap();
    let (json, page) = (folder.path().join("tail.json"), folder.path().join("a profile.html"));
    let start = format!("'{}' respond --address {{address}}", env!("CARGO_BIN_EXE_stillgate-lab"));
    let own = ["--start", &start, "--metrics", "http://{address}/metrics", "--rate", "5k", "--connections", "4"];
    let more = ["--scrape-every", "500ms", "--pairs", "1", "--spares", "0", "--json"];
    let kept = [json.to_str().unwrap(), "--profile", page.to_str().unwrap()];
    let (mut hours, mut block) = (String::new(), 0.0);
    // Two blocks, their pauses, and as long again each time that the program got too little of the machine to be
    // sampled.
    with_longer_times(Duration::from_millis(3_600), "two blocks with samples", |time| {
        hours = format!("{}", time.as_secs_f64() / 3_600.0);
        let done = run(&["tail"], &[&own[..], &["--hours", &hours], &more, &kept].concat());
        if done.stdout.contains("the program used next to no CPU time") {
            return false;
        }
        assert!(matches!(done.code, Some(0 | 3)), "{}{}", done.stdout, done.stderr);
        block = read(&json)["design"]["block_s"].as_f64().unwrap();
        true
    });
    assert!(hours != "0.001" || block == 1.3, "{block}");
    let html = fs::read_to_string(&page).unwrap();
    for part in ["without scrapes", "with scrapes", "CPU time: B compared with A", "CPU time of A"] {
        assert!(html.contains(part), "{part}");
    }
    let changed = fs::read_to_string(&json).unwrap().replace(&format!("\"block_s\": {block}"), "\"block_s\": 1.2");
    assert_eq!(verify(&json).0, Some(0));
    fs::write(&json, changed).unwrap();
    let (code, said) = verify(&json);
    assert!(code == Some(1) && said.contains(&format!("{block}, by --hours {hours}")), "{said}");
}

#[test]
fn what_kills_it_in_the_middle_leaves_a_whole_file() {
    let folder = TempDir::new().unwrap();
    let json = folder.path().join("tail.json");
    let mut command = lab(&["tail"]);
    command.args(small(&json, "1000"));
    let mut process = Process::spawn("tail", &mut command, &folder.path().join("log"));
    eventually_within(RUN_PATIENCE, "the first pair is kept", || json.exists());
    process.signal("KILL");
    process.wait();
    let blocks = read(&json)["cells"][0]["blocks"].as_array().unwrap().len();
    assert!(blocks >= 2 && blocks.is_multiple_of(2), "{blocks}");
    let (code, said) = verify(&json);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn after_a_stop_signal_it_shows_the_finished_pairs() {
    let folder = TempDir::new().unwrap();
    let (json, log) = (folder.path().join("tail.json"), folder.path().join("log"));
    let mut command = lab(&["tail"]);
    command.args(small(&json, "1000"));
    let mut process = Process::spawn("tail", &mut command, &log);
    eventually_within(RUN_PATIENCE, "the first pair is kept", || json.exists());
    process.signal("INT");
    assert_eq!(process.wait().code(), Some(130), "{}", process.log());
    assert!(process.log().contains("The slowest requests: "), "{}", process.log());
    assert_eq!(verify(&json).0, Some(0));
}

#[test]
fn a_target_that_cannot_be_started_does_not_stop_the_others() {
    let folder = TempDir::new().unwrap();
    let json = folder.path().join("tail.json");
    let arguments =
        [vec!["haproxy=/no/such/program".to_owned(), "--series".to_owned(), "100".to_owned()], small(&json, "1")];
    let done = run(&["tail"], &words(&arguments.concat()));
    assert_eq!(done.code, Some(2), "{}", done.stderr);
    assert!(done.stdout.contains("Not run: haproxy, 100 series, every 300 ms: "), "{}", done.stdout);
    let result = read(&json);
    assert_eq!(result["cells"].as_array().unwrap().len(), 1);
    assert_eq!(result["failures"].as_array().unwrap().len(), 1);
    assert_eq!(verify(&json).0, Some(0));
}

#[test]
fn wrong_usage_is_explained() {
    let folder = TempDir::new().unwrap();
    let check = |arguments: &[&str], message: &str| {
        let done = run(&["tail"], arguments);
        assert_eq!(done.code, Some(2), "{arguments:?}");
        assert!(done.stderr.contains(message), "{arguments:?}: {}", done.stderr);
    };
    let unwritable = folder.path().join("missing/tail.json");
    check(&[], "TARGET");
    check(&["apache"], "not one of stillgate, nginx, nginx-lua, haproxy, envoy");
    check(&["nginx", "--rate", "0"], "above zero");
    check(&["nginx", "--pairs", "0"], "measures nothing");
    check(&["nginx", "--block", "1s", "--scrape-every", "5s"], "write --block 5s");
    check(&["nginx", "--json", unwritable.to_str().unwrap()], "its folder does not exist");
    check(&["nginx", "--json", "-", "--report", "page.html"], "name one with --json FILE");
    check(&["nginx", "--pairs", "1000000000000"], "at most 10000");
    check(&["nginx", "--spares", "10001"], "--spares 10001: at most 10000");
    check(&["haproxy", "--series", "1k,0"], "write at least 1 series");
    check(&["nginx", "nginx"], "\"nginx, every 5 s\" would be run twice");
    check(&["haproxy", "--series", "1k,1000"], "\"haproxy, 1,000 series, every 5 s\" would be run twice");
    check(&["nginx", "--start", "/opt/nginx -x", "--metrics", "http://{address}/"], "would be run twice");
    let page = folder.path().join("same").to_str().unwrap().to_owned();
    check(&["nginx", "--json", &page, "--report", &page], "name the same file");
    check(&["nginx", "--hours", "0.001"], "--hours 0.001: 40 blocks would be shorter than 1 s");
    check(&["nginx", "--hours", "1", "--block", "1s"], "cannot be used with");
    check(&["nginx", "--profile", "page.html"], "--profile needs exactly one combination, and these are 2");
    let missing = folder.path().join("missing/tail.html");
    check(&["nginx", "--report", missing.to_str().unwrap()], "its folder does not exist");
}

#[test]
fn verify_tells_changed_and_unreadable_files_apart() {
    let folder = TempDir::new().unwrap();
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tail-schema-1.json");
    let text = fs::read_to_string(&kept).unwrap();
    let check = |name: &str, text: &str, code: i32, message: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        let (ended, said) = verify(&path);
        assert!(ended == Some(code) && said.contains(message), "{name}: {ended:?} {said}");
    };
    // From the first layout; it must remain readable.
    check("kept.json", &text, 0, "verified: same verdict");
    check(
        "older.json",
        &text.replacen("\"lab_version\": \"0.1.0\"", "\"lab_version\": \"0.0.1\"", 1),
        0,
        "words were not compared",
    );
    check(
        "changed.json",
        &text.replacen("\"verdict\": \"void\"", "\"verdict\": \"slower\"", 1),
        1,
        "stored \"slower\", recomputed \"void\"",
    );
    check("cut.json", &text[..text.len() / 2], 2, "cut off");
    check("other.json", "{\"log\": {}}", 2, "not a result of stillgate-lab");
    // From a pipe.
    let piped = lab(&["verify", "-"]).stdin(fs::File::open(&kept).unwrap()).output().unwrap();
    let said = String::from_utf8_lossy(&piped.stdout);
    assert!(piped.status.success() && said == "standard input: verified: same verdict\n", "{said}");
    let empty = lab(&["verify", "-"]).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&empty.stderr);
    assert!(empty.status.code() == Some(2) && said.contains("standard input: it is empty"), "{said}");
    let both = run(&["verify"], &[kept.to_str().unwrap(), "/no/such/file.json"]);
    assert_eq!(both.code, Some(2));
    assert!(both.stdout.contains("verified: same verdict"), "{}", both.stdout);
}
