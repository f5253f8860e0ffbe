//! `stillgate-lab explain` of two builds of a program in C; one does 20% more work in one function.

use crate::processes::RUN_PATIENCE;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use stillgate_testkit::{eventually_within, is_nightly, require_tool};

/// Turns of its loops: some hundredths of a second, and under callgrind a second.
const SCALE: &str = "20000";

/// Samples per second: some hundreds in that time.
const HZ: &str = "4999";

fn built(folder: &Path, name: &str, options: &[&str]) -> PathBuf {
    require_tool("cc", "gcc");
    let program = folder.join(name);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/grown.c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-fno-omit-frame-pointer"]).args(options).arg(source).arg("-o").arg(&program);
    assert!(cc.status().unwrap().success());
    program
}

fn lab(folder: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_stillgate-lab")).args(words).current_dir(folder).output().unwrap()
}

fn row<'a>(result: &'a Value, function: &str) -> &'a Value {
    let rows = result["analysis"]["functions"].as_array().unwrap();
    rows.iter().find(|row| row["function"] == function).unwrap_or_else(|| panic!("{function}: {rows:?}"))
}

#[test]
fn the_function_that_grew_is_at_the_top() {
    require_tool("perf", "linux-perf");
    require_tool("valgrind", "valgrind");
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    built(folder, "old", &["-g"]);
    built(folder, "new", &["-g", "-DGROWN=2"]);
    // By itself, the part shows nothing of the change.
    let isolated = ["--isolated", "third=test -x {} && echo 5", "--", "{}", SCALE];
    let number = |value: &Value| value.as_f64().unwrap();
    // Times depend on what else runs at the same time: with more slices they become certain, which takes minutes.
    // Instructions do not.
    let slices: &[&str] = if is_nightly() { &["6", "12", "24"] } else { &["6"] };
    let measured = slices.iter().find_map(|slices| {
        let words =
            ["explain", "./old", "./new", "--slices", slices, "--seed", "1", "--json", "e.json", "--html", "e.html"];
        let done = lab(folder, &[&words[..], &["--hz", HZ], &isolated].concat());
        assert_eq!(done.status.code(), Some(0), "{done:?}");
        let result: Value = serde_json::from_str(&fs::read_to_string(folder.join("e.json")).unwrap()).unwrap();
        let first = &result["analysis"]["functions"][0];
        // Its loop may be compiled into slower instructions than others, as the ratio shows.
        let [before, after] = [0, 1].map(|side| number(&first["cpu_share"][side]));
        let ratio = before / number(&first["instruction_share"][0]);
        let is_measured = !is_nightly()
            || first["function"] == "third"
                && (0.2..0.6).contains(&before)
                && after > before + 0.03
                && (0.6..2.2).contains(&ratio)
                && (number(&first["ratio"][0]) / ratio - 1.0).abs() < 0.2
                && result["analysis"]["isolated"][0]["disagree"] == true;
        println!("{slices} slices: {first}");
        is_measured.then(|| (String::from_utf8_lossy(&done.stdout).into_owned(), result))
    });
    let (stdout, result) = measured.expect("the grown function is not certain after 24 slices; the figures are above");
    let first = row(&result, "third");
    assert_eq!(first["instructions"]["is_certain"], true, "{first}");
    let near = |value: &Value, expected: f64, by: f64| (value.as_f64().unwrap() - expected).abs() < by;
    // Two turns of ten are added.
    assert!(near(&first["instructions"]["value"], 0.2, 0.002), "{first}");
    assert_eq!(row(&result, "half")["instructions"]["is_certain"], false, "{stdout}");
    let said = format!("instructions {:+.2}%)", 100.0 * number(&first["instructions"]["value"]));
    assert!(stdout.contains("Changed most: third (") && stdout.contains(&said), "{stdout}");

    assert!(stdout.contains("third: by itself +0.00%"), "{stdout}");
    assert_eq!(stdout.contains("they disagree"), result["analysis"]["isolated"][0]["disagree"] == true, "{stdout}");

    let page = fs::read_to_string(folder.join("e.html")).unwrap();
    let data = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
    let data: Value = serde_json::from_str(data).unwrap();
    let views = data["views"].as_array().unwrap();
    assert_eq!(views.len(), 6, "two differences, four graphs");
    let certain = |view: &Value, function: &str| {
        let stacks = view["certain"].as_array().unwrap();
        stacks.iter().any(|stack| stack.as_array().unwrap().last().is_some_and(|last| last == function))
    };
    assert!(certain(&views[1], "third") && !certain(&views[1], "half"));

    let verified = lab(folder, &["verify", "e.json"]);
    assert_eq!(verified.status.code(), Some(0), "{verified:?}");
    assert!(lab(folder, &["report", "e.json", "-o", "r.html"]).status.success());
    assert!(fs::read_to_string(folder.join("r.html")).unwrap().contains("third"));
    let changed = fs::read_to_string(folder.join("e.json")).unwrap().replacen("\"third\"", "\"fourth\"", 1);
    fs::write(folder.join("e.json"), changed).unwrap();
    assert_eq!(lab(folder, &["verify", "e.json"]).status.code(), Some(1));
}

#[test]
fn a_stripped_program_says_what_is_missing() {
    require_tool("perf", "linux-perf");
    let folder = tempfile::tempdir().unwrap();
    built(folder.path(), "old", &["-s"]);
    let words =
        ["explain", "./old", "./old", "--slices", "5", "--no-instructions", "--json", "e.json", "--", "{}", SCALE];
    let done = lab(folder.path(), &words);
    let stdout = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{done:?}");
    assert!(stdout.contains("it is stripped; build it with its symbols"), "{stdout}");
    assert!(stdout.contains("--no-instructions was given"), "{stdout}");
}

/// Runs `$0`, but hangs, with a child, after this many runs.
const HANGING: &str = r#"
    runs=$(cat runs 2>/dev/null || echo 0); echo $((runs + 1)) > runs
    if [ "$runs" -ge "$RUNS" ]; then sleep 600 & echo "$!" > pid; mv pid hanging; wait; fi
    exec "$0" "$1""#;

/// Explains the same program twice with a hang after some runs, and then sends these signals at once; its folder has
/// `e.json` and `e.html` if it writes them.
fn interrupted(folder: &Path, options: &[&str], runs: usize, signals: &[&str]) -> Output {
    built(folder, "old", &["-g"]);
    let words = ["explain", "./old", "./old", "--json", "e.json", "--html", "e.html"];
    let command = ["--", "sh", "-c", HANGING, "{}", SCALE];
    let child = Command::new(env!("CARGO_BIN_EXE_stillgate-lab"))
        .args([&words[..], options, &command].concat())
        .current_dir(folder)
        .env("RUNS", runs.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually_within(RUN_PATIENCE, "the run that hangs", || folder.join("hanging").exists());
    let signal = |name: &str| {
        assert!(Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap().success());
    };
    // While stopped, it gets all of them before it can react to one.
    signal("STOP");
    signals.iter().for_each(|name| signal(name));
    signal("CONT");
    let done = child.wait_with_output().unwrap();
    let pid = fs::read_to_string(folder.join("hanging")).unwrap();
    eventually_within(RUN_PATIENCE, "the end of its children", || {
        !stillgate_rig::proc::runs(pid.trim().parse().unwrap())
    });
    done
}

#[test]
fn an_interrupt_keeps_what_there_is() {
    require_tool("perf", "linux-perf");
    require_tool("valgrind", "valgrind");
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // In the second half of the sixth slice.
    let done = interrupted(folder, &["--no-instructions"], 11, &["INT"]);
    let [stdout, stderr] = [&done.stdout, &done.stderr].map(|text| String::from_utf8_lossy(text));
    assert_eq!(done.status.code(), Some(130), "{done:?}");
    assert!(stderr.contains("explain: 12/20 CPU time of "), "{stderr}");
    let said = "interrupted after 5 of 10 profiles of CPU time of each; e.json has the profiles so far";
    assert!(stdout.starts_with("Interrupted after 5 of 10 ") && stderr.contains(said), "{stdout}{stderr}");
    let text = fs::read_to_string(folder.join("e.json")).unwrap();
    let result: Value = serde_json::from_str(&text).unwrap();
    let marks = (&result["interrupted"], &result["analysis"]["interrupted_after"]);
    assert_eq!(marks, (&true.into(), &5.into()));
    for side in ["a", "b"] {
        assert_eq!(result["cpu"][side]["work"].as_array().unwrap().len(), 5, "{side}");
    }
    // It is half of the program; the rest is starting it, which takes longer on a busy machine.
    assert!(row(&result, "half")["cpu_share"][0].as_f64().unwrap() > 0.1);
    assert!(fs::read_to_string(folder.join("e.html")).unwrap().contains("Interrupted after 5 of 10 "));
    assert_eq!(lab(folder, &["verify", "e.json"]).status.code(), Some(0));
    assert!(lab(folder, &["report", "e.json", "-o", "r.html"]).status.success());
    assert!(fs::read_to_string(folder.join("r.html")).unwrap().contains("5 of 10, interrupted"));
    let changed = text.replacen("\"interrupted_after\": 5", "\"interrupted_after\": 9", 1);
    fs::write(folder.join("e.json"), changed).unwrap();
    assert_eq!(lab(folder, &["verify", "e.json"]).status.code(), Some(1));
}

#[test]
fn an_interrupt_while_instructions_are_counted_keeps_times() {
    require_tool("perf", "linux-perf");
    require_tool("valgrind", "valgrind");
    let folder = tempfile::tempdir().unwrap();
    let done = interrupted(folder.path(), &["--slices", "5"], 10, &["TERM"]);
    let stdout = String::from_utf8_lossy(&done.stdout);
    assert_eq!(done.status.code(), Some(130), "{done:?}");
    assert!(stdout.contains("note: instructions were not counted: interrupted"), "{done:?}");
    assert_eq!(lab(folder.path(), &["verify", "e.json"]).status.code(), Some(0));
}

#[test]
fn an_interrupt_before_there_is_enough_keeps_nothing() {
    require_tool("perf", "linux-perf");
    let folder = tempfile::tempdir().unwrap();
    let done = interrupted(folder.path(), &[], 3, &["INT"]);
    let stderr = String::from_utf8_lossy(&done.stderr);
    let said = "interrupted after 1 of 10 profiles of CPU time of each; at least 5 are needed, so nothing is kept";
    assert!(done.status.code() == Some(130) && stderr.contains(said), "{done:?}");
    assert!(!folder.path().join("e.json").exists() && !folder.path().join("e.html").exists());
}

#[test]
fn a_second_interrupt_ends_it_at_once() {
    require_tool("perf", "linux-perf");
    // Another thread may end it after the first signal before the second is delivered, so it gets several tries.
    let is_at_once = (0..20).any(|_| {
        let folder = tempfile::tempdir().unwrap();
        let done = interrupted(folder.path(), &[], 1, &["INT", "TERM"]);
        assert_eq!(done.status.code(), Some(130), "{done:?}");
        !String::from_utf8_lossy(&done.stderr).contains("interrupted")
    });
    assert!(is_at_once, "it still prints something");
}

#[test]
fn a_server_that_does_not_show_its_functions_in_lua_says_so() {
    require_tool("perf", "linux-perf");
    let folder = tempfile::tempdir().unwrap();
    // It gets an address, but nothing listens there. Its answers wait, so that the load leaves CPUs to other tests.
    let lab_itself = env!("CARGO_BIN_EXE_stillgate-lab");
    let server =
        format!("sh -c 'exec \"{lab_itself}\" respond --latency fixed:5ms --address $0' {{address}} {{admin}}");
    let words =
        ["explain", &server, &server, "--slices", "5", "--seconds", "1", "--no-instructions", "--json", "e.json"];
    let done = lab(folder.path(), &words);
    let stdout = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{done:?}");
    assert!(stdout.contains("no profile of functions in Lua: ") && stdout.contains("cannot connect"), "{stdout}");
    assert!(!stdout.contains("Functions in Lua:"), "{stdout}");
    assert!(lab(folder.path(), &["verify", "e.json"]).status.success());
}

#[test]
fn what_makes_no_sense_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let check = |words: &[&str], why: &str| {
        let done = lab(folder.path(), &[&["explain", "--json", "e.json"], words].concat());
        let stderr = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.code() == Some(2) && stderr.contains(why), "{words:?}: {done:?}");
    };
    check(&["a", "b", "--", "echo"], "needs {} in the place of A and B");
    check(&["a", "b", "--target", "nginx", "--", "{}"], "are for servers");
    check(&["a", "b", "--slices", "2", "--", "{}"], "at least 5");
    check(&["/nowhere/a", "/nowhere/b", "--target", "nginx"], "is not a file");
    check(&["a", "b", "--html", "/nowhere/p.html", "--", "{}"], "cannot be written");
}
