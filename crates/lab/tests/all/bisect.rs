//! `stillgate-lab bisect` as its users run it, on generated repositories whose measurements scatter.

use crate::history::{CommitSpec, History, git};
use crate::processes::RUN_PATIENCE;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use stillgate_testkit::eventually_within;

/// Prints the file `value` of the commit times a normal scatter of 1%, drawn from the number of the measurement.
const MEASURE: &str = r#"
n=$(($(cat "$COUNT" 2>/dev/null || echo 0) + 1)); echo $n > "$COUNT"
awk -v n=$n -v v=$(cat value) 'BEGIN { srand(n * 7919); for (i = 0; i < 9; i++) rand()
    print "took " v * exp(0.01 * sqrt(-2 * log(1 - rand())) * cos(6.2831853 * rand())) "ms" }'"#;

/// Commits with these values.
fn values(values: impl IntoIterator<Item = f64>) -> Vec<CommitSpec> {
    let planned = |value: f64| CommitSpec { files: vec![("value", value.to_string())], ..CommitSpec::default() };
    values.into_iter().map(planned).collect()
}

fn bisect(history: &History, words: &[&str]) -> (i32, String, String) {
    finish(&history.command(words).env("COUNT", history.beside("count")).output().unwrap())
}

fn finish(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn names(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect()
}

fn lab(words: &[&str]) -> (i32, String, String) {
    finish(&Command::new(env!("CARGO_BIN_EXE_stillgate-lab")).args(words).output().unwrap())
}

#[test]
fn a_change_among_unbuildable_commits_is_found_as_a_range() {
    let mut planned = values((0..64).map(|number| if number < 30 { 100.0 } else { 103.0 }));
    for (number, commit) in planned.iter_mut().enumerate() {
        let is_broken = [27, 28, 29, 31, 32].contains(&number);
        commit.files.push(("build.sh", if is_broken { "echo no such type >&2; exit 1" } else { "touch built" }.into()));
    }
    let history = History::new(&planned);
    let file = history.beside("result.json");
    let words = ["--build", "sh build.sh", "--measure", &format!("test -f built && {{ {MEASURE}\n}}"), "--json"];
    let words = [&words[..], &[file.to_str().unwrap()]].concat();
    let (code, stdout, stderr) = bisect(&history, &words);
    assert_eq!(code, 0, "{stdout}{stderr}");
    let result = json(&file);
    assert_eq!((&result["verdict"], &result["culprit"]), (&"found".into(), &Value::Null), "{stdout}");
    let range: Vec<&str> = history.commits[27..=30].iter().map(String::as_str).collect();
    assert_eq!(names(&result["changes"][0]["commits"]), range, "{stdout}");
    assert!(result["effect"]["low"].as_f64().unwrap() < 0.03 && result["effect"]["high"].as_f64().unwrap() > 0.03);
    let unbuildable = names(&result["unbuildable"]);
    assert!(history.commits[27..30].iter().all(|commit| unbuildable.contains(&commit.as_str())), "{unbuildable:?}");
    let measurements = result["measurements"].as_u64().unwrap();
    assert!((8..100).contains(&measurements), "{measurements}");
    assert!(stdout.contains("worse") && stderr.contains("no such type"), "{stdout}{stderr}");

    let file = file.to_str().unwrap();
    let (code, stdout, stderr) = lab(&["verify", file]);
    assert_eq!((code, stdout.contains("same verdict")), (0, true), "{stdout}{stderr}");
    let page = history.beside("page.html");
    assert_eq!(lab(&["report", file, "-o", page.to_str().unwrap()]).0, 0);
    assert!(fs::read_to_string(page).unwrap().contains(&history.commits[30][..12]));
    // A posterior typed into the file does not follow from the measurements.
    let text = fs::read_to_string(file).unwrap();
    fs::write(file, text.replacen("\"none\": ", "\"none\": 0.5, \"none_was\": ", 1)).unwrap();
    assert_eq!(lab(&["verify", file]).0, 1);
    // Worktrees are gone, also from the repository's list.
    let listed = Command::new("git").arg("-C").arg(history.path()).args(["worktree", "list"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&listed.stdout).lines().count(), 1);
}

#[test]
fn units_behind_numbers_are_read() {
    let printing = |printed: &[&str]| -> History {
        let planned = |text: &&str| CommitSpec { files: vec![("value", (*text).to_owned())], ..CommitSpec::default() };
        History::new(&printed.iter().map(planned).collect::<Vec<_>>())
    };
    let bisected = |history: &History, code: i32| -> Value {
        let file = history.beside("result.json");
        let words = ["--measure", r#"echo "  99%  $(cat value)""#, "--json", file.to_str().unwrap()];
        let (found, stdout, stderr) = bisect(history, &words);
        assert_eq!(found, code, "{stdout}{stderr}");
        json(&file)
    };
    let history = printing(&["980.00us", "980us", "0.98ms", "980 us", "1.03ms", "1030us", "1.03 ms", "1.03ms"]);
    let result = bisected(&history, 0);
    assert_eq!(result["culprit"], history.commits[4].as_str(), "{result}");
    let size = result["effect"]["value"].as_f64().unwrap();
    assert!((size - 0.051).abs() < 0.005, "{size}");
    assert_eq!(result["tries"][1]["unit"], "us", "{result}");
    // It has two meanings, and so has M.
    let result = bisected(&printing(&["980KB", "980KB", "1.03MB", "1.03MB"]), 3);
    assert_eq!((&result["verdict"], &result["culprit"]), (&"void".into(), &Value::Null), "{result}");
    let result = bisected(&printing(&["980us", "980us", "980", "980"]), 3);
    assert!(result.to_string().contains("no unit, earlier ones have the unit us"), "{result}");
}

#[test]
fn nothing_changed_is_said_so() {
    let history = History::new(&values([100.0; 16]));
    let (code, stdout, stderr) = bisect(&history, &["--measure", MEASURE, "--min-effect", "3%"]);
    assert_eq!(code, 1, "{stdout}{stderr}");
    assert!(stdout.starts_with("Nothing between "), "{stdout}");
}

#[test]
fn two_changes_of_opposite_sign_are_both_found() {
    let history = History::new(&values((0..12).map(|number| if (3..8).contains(&number) { 120.0 } else { 104.0 })));
    let file = history.beside("result.json");
    let words = ["--measure", MEASURE, "--min-effect", "2%", "--json", file.to_str().unwrap(), "--higher-is-better"];
    let (code, stdout, stderr) = bisect(&history, &words);
    // The ends are alike: whether the search continues in between depends on the prior of two changes.
    let result = json(&file);
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(result["several"].as_f64().unwrap() > 0.9, "{stdout}");
    let changes: Vec<_> =
        result["changes"].as_array().unwrap().iter().map(|change| names(&change["commits"])).collect();
    assert_eq!(changes, [[history.commits[3].as_str()], [history.commits[8].as_str()]], "{stdout}");
    assert!(stdout.contains("better") && stdout.contains("worse"), "{stdout}");
}

#[test]
fn failed_tries_are_tried_again_and_what_always_fails_is_left_out() {
    let mut planned = values((0..10).map(|number| if number < 6 { 50.0 } else { 60.0 }));
    let faults =
        [(3, "exit 125"), (4, "sleep 600"), (5, "echo NaN; exit 0"), (7, "exit 0"), (8, "echo 1; echo 2; exit 1")];
    for (number, commit) in planned.iter_mut().enumerate() {
        let fault = faults.iter().find(|(of, _)| *of == number).map_or("echo a line before: 1", |(_, fault)| fault);
        commit.files.push(("fault.sh", fault.to_owned()));
    }
    let history = History::new(&planned);
    let file = history.beside("result.json");
    let flaky = r#"if [ ! -e "$COUNT.flaky" ]; then touch "$COUNT.flaky"; exit 9; fi; . ./fault.sh"#;
    let measure = format!("{flaky}\n{MEASURE}");
    let words = ["--measure", &measure, "--measure-limit", "5s", "--json", file.to_str().unwrap()];
    let (code, stdout, stderr) = bisect(&history, &words);
    assert_eq!(code, 0, "{stdout}{stderr}");
    let result = json(&file);
    let range: Vec<&str> = history.commits[3..=6].iter().map(String::as_str).collect();
    assert_eq!(names(&result["changes"][0]["commits"]), range, "{stdout}{stderr}");
    for why in ["exit code 125", "took longer than 5s", "a measurement is a number above 0", "exit status: 9"] {
        assert!(stderr.contains(why), "{why}: {stderr}");
    }
}

#[test]
fn an_end_that_cannot_be_measured_voids_it() {
    let history = History::new(&values([1.0; 4]));
    let (code, stdout, stderr) = bisect(&history, &["--measure", "exit 125"]);
    assert_eq!((code, stdout.contains("cannot be measured")), (3, true), "{stdout}{stderr}");
    let (code, stdout, _) = bisect(&history, &["--measure", "echo 1", "--build", "false"]);
    assert_eq!((code, stdout.contains("its build failed")), (3, true), "{stdout}");
}

#[test]
fn it_goes_on_where_it_was_stopped() {
    let history = History::new(&values((0..8).map(|number| if number < 5 { 100.0 } else { 130.0 })));
    let file = history.beside("result.json");
    let words = ["--measure", MEASURE, "--json", file.to_str().unwrap()];
    let (code, stdout, stderr) = bisect(&history, &[&words[..], &["--max-tries", "4"]].concat());
    assert_eq!((code, stdout.starts_with("Not decided")), (2, true), "{stdout}{stderr}");
    let before = json(&file)["tries"].clone();
    let (code, stdout, stderr) = bisect(&history, &words);
    assert_eq!((code, stderr.contains("continuing from")), (0, true), "{stdout}{stderr}");
    let after = json(&file);
    assert_eq!(after["tries"].as_array().unwrap()[..4], before.as_array().unwrap()[..]);
    assert_eq!(after["culprit"], history.commits[5].as_str());
    // This file does not answer another question.
    let (code, _, stderr) = bisect(&history, &[&words[..], &["--min-effect", "2%"]].concat());
    assert_eq!((code, stderr.contains("another bisection")), (64, true), "{stderr}");
}

#[test]
fn an_interrupt_keeps_what_there_is() {
    let history = History::new(&values([1.0; 4]));
    let (file, mark) = (history.beside("result.json"), history.beside("mark"));
    let measure = r#"[ -e "$COUNT" ] && { touch "$MARK"; sleep 600; }; touch "$COUNT"; echo 1"#;
    let mut child = history
        .command(&["--measure", measure, "--json", file.to_str().unwrap()])
        .env("COUNT", history.beside("count"))
        .env("MARK", &mark)
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    eventually_within(RUN_PATIENCE, "the second measurement", || mark.exists());
    assert!(Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let result = json(&file);
    assert_eq!((&result["ended"], &result["measurements"]), (&"interrupted".into(), &1.into()));
}

#[test]
fn merges_are_one_step_or_many() {
    // 0 - 1 ------- 4 - 5
    //      \- 2 - 3 -/
    let mut planned = values([100.0, 100.0, 100.0, 140.0, 140.0, 140.0]);
    planned[4].parent = Some(1);
    planned[4].merged = Some(3);
    let history = History::new(&planned);
    let (code, stdout, stderr) = bisect(&history, &["--measure", MEASURE]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.starts_with(&history.commits[4][..12]) && stdout.contains("is a merge; look into it"), "{stdout}");
    assert!(stdout.contains("Along first parents: each of 1 merges is one step."), "{stdout}");
    let (code, stdout, stderr) = bisect(&history, &["--measure", MEASURE, "--merges", "linear"]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.starts_with(&history.commits[3][..12]), "{stdout}");
    let good = history.commits[2].as_str();
    let (code, _, stderr) = bisect(&history, &["--measure", MEASURE, "--good", good]);
    assert_eq!((code, stderr.contains("--merges linear")), (64, true), "{stderr}");
}

#[test]
fn what_a_repository_lacks_is_said() {
    let mut planned = values((0..6).map(|number| if number < 3 { 1.0 } else { 2.0 }));
    planned[4].files.push((".gitmodules", "[submodule \"gone\"]\npath = gone\nurl = /nowhere/gone".to_owned()));
    planned[5].files.push((".gitmodules", String::new()));
    let history = History::new(&planned);
    fs::write(history.path().join("value"), "7").unwrap();
    let (code, stdout, stderr) = bisect(&history, &["--measure", MEASURE]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(
        stdout.starts_with(&history.commits[3][..12]) && stderr.contains("uncommitted changes"),
        "{stdout}{stderr}"
    );

    let shallow = history.beside("shallow");
    let from = format!("file://{}", history.path().display());
    git(Path::new("/"), &["clone", "--quiet", "--depth", "2", &from, shallow.to_str().unwrap()]);
    let other = Command::new(env!("CARGO_BIN_EXE_stillgate-lab"))
        .args(["bisect", "--measure", "echo 1", "--good", &history.commits[0], "--repo"])
        .arg(&shallow)
        .output()
        .unwrap();
    let (code, _, stderr) = finish(&other);
    assert_eq!((code, stderr.contains("shallow clone")), (64, true), "{stderr}");

    let check = |words: &[&str], why: &str| {
        let (code, _, stderr) = bisect(&history, words);
        assert_eq!((code, stderr.contains(why)), (64, true), "{words:?}: {stderr}");
    };
    check(&["--measure", "echo 1", "--good", "no-such"], "is not a revision");
    check(&["--measure", "echo 1", "--good", "HEAD"], "the same commit");
    check(&["--measure", "echo 1", "--good", "HEAD", "--bad", "HEAD~1"], "is not before");
    check(&["--measure", "echo 1", "--min-effect", "0%"], "write the smallest change that counts");
    check(&["--measure", "echo 1", "--prior-paths", "docs"], "crates/route=4");
    check(&[], "--measure");
}

#[test]
fn versions_that_are_built_take_the_place_of_commits() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let mut list = String::from("# oldest first\n");
    for number in 0..9 {
        let value = if number < 4 { 100.0 } else { 110.0 };
        fs::write(file(&format!("a build {number}")), value.to_string()).unwrap();
        list.push_str(&format!("release-candidate-1.{number} a build {number}\n"));
    }
    fs::write(file("list"), list).unwrap();
    let measure = r#"[ "$STILLGATE_VERSION" = release-candidate-1.3 ] && exit 125; cp "$STILLGATE_ARTEFACT" value;"#;
    let run = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stillgate-lab"));
        command.args(["bisect", "--versions", "list", "--cache", "a cache", "--measure"]);
        command.arg(format!("{measure}{MEASURE}")).args(more);
        finish(&command.current_dir(folder.path()).env("COUNT", file("count")).output().unwrap())
    };
    let (code, stdout, stderr) = run(&["--json", "result.json"]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    let result = json(&file("result.json"));
    let range = ["release-candidate-1.3", "release-candidate-1.4"];
    assert_eq!(names(&result["changes"][0]["commits"]), range, "{stdout}");
    assert!(stdout.contains("measurements of 9 versions") && stdout.contains(range[1]), "{stdout}");
    assert_eq!(lab(&["verify", file("result.json").to_str().unwrap()]).0, 0);
    let (code, stdout, stderr) = run(&["--good", range[1], "--min-effect", "5%"]);
    assert_eq!((code, stdout.contains("of 5 versions")), (1, true), "{stdout}{stderr}");
    let (code, _, stderr) = run(&["--build", "make"]);
    assert_eq!((code, stderr.contains("cannot be used with")), (64, true), "{stderr}");
    // Other bytes under the same name are another question.
    fs::write(file("a build 2"), "7").unwrap();
    let (code, _, stderr) = run(&["--json", "result.json"]);
    assert_eq!((code, stderr.contains("another bisection")), (64, true), "{stderr}");
}

#[test]
fn a_patch_is_applied_before_each_build() {
    // The probe to measure is in the patch; commit 2 has the line that it changes in another form, commit 5 already has
    // the change.
    let mut planned = values((0..8).map(|number| if number < 4 { 100.0 } else { 125.0 }));
    let probe = |number: usize| match number {
        2 => "no probe at all\n",
        5 => "cat value\n",
        _ => "exit 1\n",
    };
    for (number, commit) in planned.iter_mut().enumerate() {
        commit.files.push(("probe", probe(number).to_owned()));
    }
    let history = History::new(&planned);
    let patch = history.beside("probe.patch");
    fs::write(&patch, "--- a/probe\n+++ b/probe\n@@ -1 +1 @@\n-exit 1\n+cat value\n").unwrap();
    let measure = format!("sh probe >value2 && mv value2 value || exit 9\n{MEASURE}");
    let file = history.beside("result.json");
    let words = ["--measure", &measure, "--json", file.to_str().unwrap(), "--apply", patch.to_str().unwrap()];
    let (code, stdout, stderr) = bisect(&history, &words);
    assert_eq!(code, 0, "{stdout}{stderr}");
    let result = json(&file);
    assert_eq!(result["culprit"], history.commits[4].as_str(), "{stdout}{stderr}");
    assert_eq!(result["design"]["apply"]["sha256"].as_str().unwrap().len(), 64);
    let words = ["--measure", &measure, "--good", &history.commits[2], "--apply", patch.to_str().unwrap()];
    let (code, stdout, _) = bisect(&history, &words);
    assert_eq!((code, stdout.contains("the patch does not apply")), (3, true), "{stdout}");
    let (code, _, stderr) = bisect(&history, &["--measure", "echo 1", "--apply", "/nowhere/p"]);
    assert_eq!((code, stderr.contains("--apply /nowhere/p: ")), (64, true), "{stderr}");
}

#[test]
fn nothing_goes_on_when_it_is_killed() {
    let history = History::new(&values([1.0; 4]));
    let mark = history.beside("mark");
    let mut child = history
        .command(&["--measure", r#"sleep 600 & echo $! $$ >"$MARK.new"; mv "$MARK.new" "$MARK"; wait"#])
        .env("MARK", &mark)
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    eventually_within(RUN_PATIENCE, "the measurement", || mark.exists());
    child.kill().unwrap();
    child.wait().unwrap();
    let pids = fs::read_to_string(mark).unwrap();
    let runs = |pid: &str| stillgate_rig::proc::runs(pid.parse().unwrap());
    eventually_within(RUN_PATIENCE, "its end", || !pids.split_whitespace().any(runs));
}

#[test]
fn counts_of_a_store_say_where_to_look_first() {
    let history = History::new(&values((0..32).map(|number| if number < 21 { 100.0 } else { 103.0 })));
    fs::write(history.beside("suite.yaml"), "each_commit: {series: [{name: count, measure: cat value}]}").unwrap();
    let [repo, store, suite, cache] =
        [history.path(), history.beside("store"), history.beside("suite.yaml"), history.beside("c")]
            .map(|path| path.to_str().unwrap().to_owned());
    let words = ["nightly", "--suite", &suite, "--store", &store, "--repo", &repo, "--cache", &cache, "--commits", "8"];
    let (code, stdout, stderr) = lab(&[&words[..], &["--since", &history.commits[0]]].concat());
    assert!(code == 1 && stdout.contains("Change 21"), "{stdout}{stderr}");
    let file = history.beside("result.json");
    let asked = |more: &[&str]| {
        let (code, stdout, stderr) = bisect(&history, &[&["--measure", MEASURE][..], more].concat());
        assert_eq!(code, 0, "{stdout}{stderr}");
        assert!(stdout.contains(&history.commits[21][..12]), "{stdout}");
        stderr
    };
    let stderr = asked(&["--prior-instructions", &store, "--json", file.to_str().unwrap()]);
    assert!(stderr.contains("of 32 commits were counted"), "{stderr}");
    let result = json(&file);
    let weights: Vec<f64> =
        result["commits"].as_array().unwrap().iter().map(|of| of["weight"].as_f64().unwrap()).collect();
    assert!(weights[21] == 10.0 && weights.iter().sum::<f64>() == 41.0, "{weights:?}");
    let (code, stdout, _) = lab(&["verify", file.to_str().unwrap()]);
    assert_eq!(code, 0, "{stdout}");
    let (code, _, stderr) = bisect(&history, &["--measure", MEASURE, "--prior-instructions", "/no/such/store"]);
    assert_eq!((code, stderr.contains("a store is a folder that `nightly` fills")), (64, true), "{stderr}");
}

#[test]
fn a_server_is_measured_without_a_command() {
    let serve = |latency: &str| format!("exec \"$STILLGATE_LAB\" respond --address \"$1\" --latency fixed:{latency}");
    let planned = ["2ms", "2ms", "20ms", "20ms"]
        .map(|latency| CommitSpec { files: vec![("serve.sh", serve(latency))], ..CommitSpec::default() });
    let history = History::new(&planned);
    let words = ["--target", "sh serve.sh {address}", "--figure", "p50", "--figure-args"];
    let load = "--rate 50 --time 200ms --warm-up 50ms --connections 4";
    let (code, stdout, stderr) = bisect(&history, &[&words[..], &[load, "--min-effect", "50%"]].concat());
    assert!(code == 0 && stdout.contains(&history.commits[2][..12]) && stdout.contains("worse"), "{stdout}{stderr}");
    let (code, _, stderr) = bisect(&history, &["--target", "x", "--measure", "y"]);
    assert!(code != 0 && stderr.contains("cannot be used with"), "{stderr}");
    let (code, _, stderr) = bisect(&history, &["--target", "x", "--figure", "speed"]);
    assert!(code != 0 && stderr.contains("not one of cpu"), "{stderr}");
    let (code, _, stderr) = bisect(&history, &[]);
    assert!(code != 0 && stderr.contains("--measure"), "{stderr}");
}
