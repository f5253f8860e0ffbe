//! `stillgate-lab compare` as its users run it: exit codes, result files, git revisions.
//!
//! Settings are tiny and the planted differences huge, because the machine of the tests is busy: a late generator voids
//! nothing here.

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;
use stillgate_testkit::{attempt, with_longer_times};

const LAB: &str = env!("CARGO_BIN_EXE_stillgate-lab");

/// Pairs and an error that tolerate one void pair.
const TINY: &[&str] = &[
    "--pairs",
    "8",
    "--alpha",
    "0.2",
    "--warm-up",
    "20ms",
    "--saturation",
    "100ms",
    "--latency",
    "100ms",
    "--connections",
    "4",
    "--late",
    "10s",
    "--no-instructions",
    "--seed",
    "1",
];

/// If answers take longer than the windows of [`TINY`] because the machine is busy, it measures in longer ones.
fn compare(folder: &Path, words: &[&str]) -> Output {
    let mut output = compare_once(folder, words);
    for window in ["400ms", "1600ms"] {
        if exit_code(&output) != 64 || !both(&output).contains("too long for a closed loop") {
            break;
        }
        let longer: Vec<_> = words.iter().map(|word| if *word == "100ms" { window } else { word }).collect();
        output = compare_once(folder, &longer);
    }
    output
}

fn compare_once(folder: &Path, words: &[&str]) -> Output {
    Command::new(LAB).arg("compare").args(words).current_dir(folder).output().unwrap()
}

fn lab(folder: &Path, words: &[&str]) -> Output {
    Command::new(LAB).args(words).current_dir(folder).output().unwrap()
}

fn responder(more: &str) -> String {
    format!("'{LAB}' respond --address {{address}} {more}")
}

fn exit_code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{}", stderr(output)))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn result(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn both(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(output)
}

/// The verdict on one measure.
fn verdict<'a>(result: &'a Value, name: &str) -> &'a str {
    verdict_in(&result["analysis"], name)
}

fn verdict_in<'a>(analysis: &'a Value, name: &str) -> &'a str {
    let measures = analysis["measures"].as_array().unwrap();
    measures.iter().find(|measure| measure["measure"] == name).unwrap()["verdict"].as_str().unwrap()
}

/// The note on A, B and the change, which do not add up.
const PAIRED_NOTE: &str = "It is not the ratio of columns A and B, which are separate medians.";

#[test]
fn a_program_against_itself_gives_a_decision_and_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let one = responder("");
    let output = compare(folder.path(), &[&[one.as_str(), &one, "--json", "same.json"], TINY].concat());
    let decision = match exit_code(&output) {
        0 => "not_worse",
        1 => "worse",
        2 => "undecided",
        3 => "void",
        other => panic!("exit code {other}: {}", stderr(&output)),
    };
    let result = result(&folder.path().join("same.json"));
    assert_eq!(result["analysis"]["decision"], decision);
    assert_eq!(result["pairs"].as_array().unwrap().len(), 8);
    assert!(result["design"]["rate"].as_f64().unwrap() > 0.0);
    assert_eq!(result["instructions_missing"], "--no-instructions was given");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains(result["analysis"]["sentence"].as_str().unwrap()), "{table}");
}

#[test]
fn a_hugely_slower_program_is_worse() {
    attempt(|| {
        let folder = tempfile::tempdir().unwrap();
        let (fast, slow) = (responder(""), responder("--latency fixed:20ms"));
        let words = [&[fast.as_str(), &slow, "--json", "slow.json", "--markdown"], TINY].concat();
        let output = compare(folder.path(), &words);
        assert_eq!(exit_code(&output), 1, "{}", both(&output));
        let result = result(&folder.path().join("slow.json"));
        assert_eq!(verdict(&result, "throughput"), "slower");
        let summary = String::from_utf8(output.stdout).unwrap();
        assert!(summary.starts_with("### Performance: worse\n"), "{summary}");
        assert!(summary.contains("\n\n**B is worse than A: ") && summary.contains("| p50 (us) |"), "{summary}");
        assert!(summary.contains(PAIRED_NOTE), "{summary}");
    });
}

#[test]
fn of_three_programs_the_slow_one_is_named() {
    attempt(|| {
        let folder = tempfile::tempdir().unwrap();
        let (fast, slow) = (responder(""), responder("--latency fixed:20ms"));
        let words = [&[fast.as_str(), &fast, &slow, "--json", "three.json", "--every-pair"], TINY].concat();
        let output = compare(folder.path(), &words);
        assert_eq!(exit_code(&output), 1, "{}", both(&output));
        let path = folder.path().join("three.json");
        let three = result(&path);
        let comparisons = three["analysis"]["comparisons"].as_array().unwrap();
        let judged = |one: &str, other: &str| {
            let is = |judged: &&Value| judged["one"] == one && judged["other"] == other;
            comparisons.iter().find(is).unwrap()
        };
        assert_eq!((comparisons.len(), &judged("a", "c")["decision"]), (3, &Value::from("worse")));
        for one in ["a", "b"] {
            assert_eq!(verdict_in(judged(one, "c"), "throughput"), "slower");
        }
        // Where the generator has no CPU left, the throughput of two fast programs is not judged.
        let is_throughput = |measure: &&Value| measure["measure"] == "throughput";
        let same = judged("a", "b")["measures"].as_array().unwrap().iter().find(is_throughput);
        assert!(same.is_none_or(|measure| measure["verdict"] == "no_difference"), "{}", both(&output));
        let table = String::from_utf8(output.stdout.clone()).unwrap();
        for part in ["C is worse than A", "not the ratio of columns B and C", "8 of 8 rounds", "of 3 comparisons"] {
            assert!(table.contains(part), "{part}: {table}");
        }
        // Each start of each round is there, in the order that the seed draws.
        let pairs = three["pairs"].as_array().unwrap();
        assert!(pairs.iter().all(|pair| pair["order"].as_array().unwrap().len() == 3 && pair["others"][0].is_object()));
        let verified = lab(folder.path(), &["verify", "three.json"]);
        assert!(verified.status.success(), "{}", both(&verified));
        let mut swapped = three.clone();
        swapped["pairs"][5]["order"].as_array_mut().unwrap().swap(1, 2);
        fs::write(folder.path().join("swapped.json"), swapped.to_string()).unwrap();
        let verified = lab(folder.path(), &["verify", "swapped.json"]);
        assert_eq!(exit_code(&verified), 1);
        assert!(both(&verified).contains("pairs[5].order"), "{}", both(&verified));
        let reported = lab(folder.path(), &["report", "three.json", "-o", "three.html"]);
        assert!(reported.status.success(), "{}", both(&reported));
        let page = fs::read_to_string(folder.path().join("three.html")).unwrap();
        for part in ["C against B", "throughput, C to A", "C, compared with it", "C went first"] {
            assert!(page.contains(part), "{part}");
        }
    });
}

#[test]
fn a_sequential_comparison_stops_early_at_a_planned_look() {
    attempt(|| {
        let folder = tempfile::tempdir().unwrap();
        let (fast, slow) = (responder(""), responder("--latency fixed:20ms"));
        // The later `--pairs` counts.
        let mut words = vec![fast.as_str(), &slow, "--json", "early.json", "--sequential"];
        words.extend(TINY.iter().map(|word| if *word == "8" { "16" } else { word }));
        let output = compare(folder.path(), &words);
        assert_eq!(exit_code(&output), 1, "{}", both(&output));
        let result = result(&folder.path().join("early.json"));
        assert_eq!(result["design"]["looks"], serde_json::json!([8, 12, 16]));
        assert_eq!(result["pairs"].as_array().unwrap().len(), 8);
        let table = String::from_utf8(output.stdout).unwrap();
        assert!(table.starts_with("B is worse than A: ") && table.contains(PAIRED_NOTE), "{table}");
    });
}

#[test]
fn what_cannot_be_done_ends_with_64_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let check = |words: &[&str], expected: &str| {
        let output = compare(folder.path(), words);
        assert_eq!(exit_code(&output), 64, "{words:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{words:?}: {}", stderr(&output));
    };
    let one = responder("");
    let tiny = |words: &[&'static str]| -> Vec<&str> { [words, TINY].concat() };
    check(&tiny(&["sh -c 'echo out of luck; exit 3' {address}", "sh -c true {address}"]), "out of luck");
    check(&tiny(&["no-such-binary", "no-such-binary"]), "not on PATH");
    check(&tiny(&["sh -c true", "sh -c true"]), "its address is unknown");
    check(&["a b", "a b", "--pairs", "5"], "at least 11 are needed");
    check(&["a b", "a b", "--sequential", "--pairs", "5"], "are needed");
    check(&[&one, &one, &one, &one, "--pairs", "12"], "at least 13 are needed");
    check(&[&one, &one, &one, &one, &one, &one, &one], "unexpected value");
    check(&[&one, &one, "--deciding", "beauty"], "not one of throughput, cpu");
    check(&[&one], "<B>");
    check(&[&one, &one, "--json", "no/such/folder.json"], "no/such/folder.json");
    check(&[&one, &one, "--markdown", "no/such/folder.md"], "no/such/folder.md");
    check(&[&one, &one, "--json", "one.json", "--markdown", "one.json"], "the result goes there");
    check(&[&one, &one, "--pairs", "1000000000000"], "at most 10000");
    check(&["HEAD", "HEAD", "--repo", "."], "no git repository");
}

#[test]
fn what_is_better_but_not_measured_well_enough_is_undecided() {
    attempt(|| {
        let folder = tempfile::tempdir().unwrap();
        let (slow, fast) = (responder("--latency fixed:20ms"), responder(""));
        let words = [&[slow.as_str(), &fast, "--deciding", "p99.9", "--json", "open.json"], TINY].concat();
        let output = compare(folder.path(), &words);
        assert_eq!(exit_code(&output), 2, "{}", both(&output));
        assert!(both(&output).contains("p99.9 was not judged"), "{}", both(&output));
        assert_eq!(result(&folder.path().join("open.json"))["analysis"]["decision"], "undecided");
    });
}

/// A server that leaves the process that was started, so that it cannot be measured; it ends soon after that one.
const BACKGROUND: &str = r#"
(setsid sh -c 'tail --pid="$0" -f /dev/null | "$1" respond --address "$2" --until-stdin-closes' "$$" "$1" "$2" >/dev/null 2>&1 &)
exec sleep 600
"#;

#[test]
fn what_cannot_be_measured_is_void() {
    attempt(|| {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("background.sh"), BACKGROUND).unwrap();
        let one = format!("sh '{}' '{LAB}' {{address}}", folder.path().join("background.sh").display());
        let output = compare(folder.path(), &[&[one.as_str(), &one, "--json", "void.json"], TINY].concat());
        assert_eq!(exit_code(&output), 3, "{}", both(&output));
        assert!(both(&output).contains("start it in the foreground"), "{}", both(&output));
    });
}

#[test]
fn a_program_that_fails_requests_is_worse_however_fast_it_is() {
    attempt(|| {
        let folder = tempfile::tempdir().unwrap();
        let well = server(folder.path(), "well", "()", WELL);
        let failing =
            server(folder.path(), "failing", "()", r#"if answered() % 100 == 99 { "503 No Luck" } else { "200 OK" }"#);
        let words = [&[well.as_str(), &failing, "--json", "failing.json"], TINY].concat();
        let output = compare(folder.path(), &words);
        assert_eq!(exit_code(&output), 1, "{}", both(&output));
        let result = result(&folder.path().join("failing.json"));
        assert_eq!(result["analysis"]["failures"]["verdict"], "slower", "{result:#}");
        assert_eq!(result["analysis"]["void_pairs"], 0);
        assert!(both(&output).contains("503"), "{}", both(&output));
    });
}

#[test]
fn slow_answers_are_no_failures() {
    with_longer_times(Duration::from_millis(100), "closed loops of answers after 40 ms", |time| {
        let folder = tempfile::tempdir().unwrap();
        // Longer than the slices of a fast program.
        let (a, b) = (responder("--latency fixed:40ms"), responder("--latency fixed:49ms"));
        let window = format!("{}ms", time.as_millis());
        let more = [a.as_str(), &b, "--json", "slow.json"];
        let tiny: Vec<_> = TINY.iter().map(|word| if *word == "100ms" { &window } else { *word }).collect();
        let output = compare(folder.path(), &[&more[..], &tiny].concat());
        let result = result(&folder.path().join("slow.json"));
        let failures = &result["analysis"]["failures"];
        assert_eq!((failures["a"].as_f64(), failures["b"].as_f64()), (Some(0.0), Some(0.0)), "{}", both(&output));
        let rates = |side: &str| -> Vec<f64> {
            let rate = |pair: &Value| pair[side]["saturation"]["rate_achieved"].as_f64().unwrap();
            result["pairs"].as_array().unwrap().iter().map(rate).collect()
        };
        // Four connections: at most 100 and 82 answers per second, fewer while the machine stalls.
        let (rates_a, rates_b) = (rates("a"), rates("b"));
        assert!(rates_a.iter().all(|rate| *rate < 102.0) && rates_b.iter().all(|rate| *rate < 84.0), "{result:#}");
        verdict(&result, "throughput") == "slower"
            && rates_a.iter().all(|rate| *rate > 60.0)
            && rates_b.iter().all(|rate| *rate > 50.0)
    });
}

#[test]
fn answers_that_take_too_long_for_the_closed_loop_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let slow = responder("--latency fixed:150ms");
    let output = compare_once(folder.path(), &[&[slow.as_str(), &slow, "--json", "slow.json"], TINY].concat());
    assert_eq!(exit_code(&output), 64, "{}", both(&output));
    assert!(both(&output).contains("too long for a closed loop of 0.1 s"), "{}", both(&output));
}

#[test]
fn a_program_that_ends_under_load_is_worse_and_its_log_is_shown() {
    attempt(|| {
        let folder = tempfile::tempdir().unwrap();
        let well = server(folder.path(), "well", "()", WELL);
        let ending = "if answered() == 200 { eprintln!(\"out of luck\"); std::process::abort() }";
        let ending = server(folder.path(), "ending", ending, WELL);
        let output = compare(folder.path(), &[&[well.as_str(), &ending, "--json", "ended.json"], TINY].concat());
        assert_eq!(exit_code(&output), 1, "{}", both(&output));
        for part in ["it ended under load", "out of luck", "signal: 6"] {
            assert!(both(&output).contains(part), "{part}: {}", both(&output));
        }
        let result = result(&folder.path().join("ended.json"));
        assert!(result["crash"]["words"].as_str().unwrap().contains("out of luck"), "{result:#}");

        // Without a baseline no result is possible.
        let output = compare(folder.path(), &[&[ending.as_str(), &well, "--json", "ended.json"], TINY].concat());
        assert_eq!(exit_code(&output), 64, "{}", both(&output));
        assert!(stderr(&output).contains("the baseline ended under load"), "{}", stderr(&output));
    });
}

#[test]
fn instructions_are_counted_by_callgrind() {
    attempt(|| {
        let folder = tempfile::tempdir().unwrap();
        let plain = server(folder.path(), "plain", "()", WELL);
        let more =
            server(folder.path(), "more", "(0..20_000).for_each(|round| drop(std::hint::black_box(round)))", WELL);
        let mut words = vec![plain.as_str(), &more, "--json", "counted.json"];
        words.extend(TINY.iter().filter(|word| **word != "--no-instructions"));
        let output = compare(folder.path(), &words);
        let result = result(&folder.path().join("counted.json"));
        if Command::new("valgrind").arg("--version").output().is_err() {
            assert!(result["instructions"].is_object() || result["instructions_missing"].is_string(), "{result:#}");
            return;
        }
        let counted = &result["instructions"];
        assert_eq!(counted["counted_by"], "callgrind", "{}", result["instructions_missing"]);
        let figures = |side: &str| -> Vec<f64> {
            counted[side].as_array().unwrap().iter().map(|figure| figure.as_f64().unwrap()).collect()
        };
        // Three, and as many more as two states would need.
        assert_eq!((figures("a").len(), figures("b").len()), (5, 5));
        let (most, least) =
            (figures("a").into_iter().fold(0.0, f64::max), figures("b").into_iter().fold(f64::MAX, f64::min));
        assert!(least > most + 20_000.0, "{counted:#}");
        assert_eq!((exit_code(&output), verdict(&result, "instructions")), (1, "slower"), "{}", both(&output));
    });
}

/// A project whose first revision answers at once, whose second sleeps, and whose third does not compile.
struct Project {
    folder: tempfile::TempDir,
}

const MANIFEST: &str = "[package]\nname = \"tiny\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n";

/// Answers every request with the status in place of `STATUS`, after the work in place of `WORK`.
const SERVER: &str = r#"use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};

#[allow(dead_code)]
static ANSWERED: AtomicUsize = AtomicUsize::new(0);

#[allow(dead_code)]
fn answered() -> usize {
    ANSWERED.fetch_add(1, Ordering::Relaxed)
}

fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    let mut buffer = [0; 4096];
    let mut filled = 0;
    loop {
        match stream.read(&mut buffer[filled..])? {
            0 => return Ok(()),
            read => filled += read,
        }
        if buffer[..filled].ends_with(b"\r\n\r\n") {
            filled = 0;
            WORK;
            let answer = format!("HTTP/1.1 {}\r\nContent-Length: 2\r\n\r\nok", STATUS);
            stream.write_all(answer.as_bytes())?;
        }
    }
}

fn main() {
    let listener = &TcpListener::bind(std::env::args().nth(1).unwrap()).unwrap();
    // No thread ends with its connection: the CPU time of ended threads is reported in ticks only.
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(move || loop {
                let _ = serve(listener.accept().unwrap().0);
            });
        }
    });
}
"#;

const WELL: &str = "\"200 OK\"";

fn server_source(work: &str, status: &str) -> String {
    SERVER.replace("WORK", work).replace("STATUS", status)
}

/// The command of such a server, compiled.
fn server(folder: &Path, name: &str, work: &str, status: &str) -> String {
    let (source, binary) = (folder.join(format!("{name}.rs")), folder.join(name));
    fs::write(&source, server_source(work, status)).unwrap();
    let output = Command::new("rustc").args(["--edition", "2024", "-o"]).args([&binary, &source]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    format!("'{}' {{address}}", binary.display())
}

impl Project {
    fn new() -> Project {
        let project = Project { folder: tempfile::tempdir().unwrap() };
        fs::create_dir_all(project.path().join("src")).unwrap();
        fs::write(project.path().join("Cargo.toml"), MANIFEST).unwrap();
        project.git(&["init", "--quiet"]);
        project.commit("()", "quick");
        project.commit("std::thread::sleep(std::time::Duration::from_millis(20))", "slow");
        project.commit("does not compile", "broken");
        project
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn commit(&self, work: &str, tag: &str) {
        fs::write(self.path().join("src/main.rs"), server_source(work, WELL)).unwrap();
        self.git(&["add", "--all"]);
        self.git(&["-c", "user.name=t", "-c", "user.email=t@t.example", "commit", "--quiet", "--message", tag]);
        self.git(&["tag", tag]);
    }

    fn git(&self, words: &[&str]) -> String {
        let output = Command::new("git").arg("-C").arg(self.path()).args(words).output().unwrap();
        assert!(output.status.success(), "git {words:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn compare(&self, a: &str, b: &str, cache: &Path) -> Output {
        let (repo, cache) = (self.path().to_str().unwrap(), cache.to_str().unwrap());
        let words = [a, b, "--repo", repo, "--cache", cache, "--profile", "dev", "--args", "{address}"];
        compare(cache.as_ref(), &[&words[..], &["--json", "result.json"], TINY].concat())
    }
}

#[test]
fn revisions_are_built_once_and_compared() {
    attempt(|| {
        let (project, cache) = (Project::new(), tempfile::tempdir().unwrap());
        let output = project.compare("quick", "slow", cache.path());
        assert_eq!(exit_code(&output), 1, "{}", both(&output));
        assert_eq!(stderr(&output).matches("building").count(), 2, "{}", stderr(&output));
        let result = result(&cache.path().join("result.json"));
        assert_eq!(verdict(&result, "throughput"), "slower");
        let commit = project.git(&["rev-parse", "slow"]);
        assert_eq!(result["b"]["revision"], commit.trim());

        // The other way round it is better, and both are already built.
        let output = project.compare("slow", "quick", cache.path());
        assert_eq!(stderr(&output).matches("building").count(), 0, "{}", stderr(&output));
        assert_ne!(exit_code(&output), 64, "{}", stderr(&output));
        assert_eq!(project.git(&["worktree", "list"]).lines().count(), 1, "no worktree is left");
    });
}

#[test]
fn a_revision_that_does_not_build_is_said_so() {
    let (project, cache) = (Project::new(), tempfile::tempdir().unwrap());
    let output = project.compare("quick", "broken", cache.path());
    assert_eq!(exit_code(&output), 64);
    let commit = &project.git(&["rev-parse", "broken"])[..12];
    for part in ["B, broken", commit, "does not build", "src/main.rs"] {
        assert!(stderr(&output).contains(part), "{part}: {}", stderr(&output));
    }
    let output = project.compare("quick", "no-such-revision", cache.path());
    assert_eq!(exit_code(&output), 64);
    assert!(stderr(&output).contains("B: \"no-such-revision\" is not a revision of"), "{}", stderr(&output));

    fs::write(project.path().join("src/main.rs"), "changed").unwrap();
    let output = project.compare("broken", "quick", cache.path());
    assert!(stderr(&output).contains("has uncommitted changes"), "{}", stderr(&output));
}
