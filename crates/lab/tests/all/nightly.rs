//! `stillgate-lab nightly`, `history` and `verify` over nights of a generated repository.

use crate::history::{CommitSpec, History};
use crate::processes::RUN_PATIENCE;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use stillgate_testkit::eventually_within;

/// A steady series, one that commit 2 makes 20% worse, and one that is never measured. The scatter is 1%.
const SUITE: &str = r#"
build: test -f value
series:
  - name: steady
    measure: echo 100 | sh "$NOISE"
  - name: size
    measure: test -f "$STILLGATE_SUITE/suite.yaml" && test -x "$STILLGATE_LAB" && sh "$NOISE" < value
  - name: broken
    measure: exit 3
"#;

const NOISE: &str = r#"
n=$(($(cat "$COUNT" 2>/dev/null || echo 0) + 1)); echo $n > "$COUNT"
awk -v n=$n '{ v = $1 } END { srand(n * 7919); for (i = 0; i < 9; i++) rand()
    print v * exp(0.01 * sqrt(-2 * log(1 - rand())) * cos(6.2831853 * rand())) }'"#;

fn finish(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn lab(history: &History, words: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stillgate-lab"));
    command.args(words).env("NOISE", history.beside("noise.sh")).env("COUNT", history.beside("count"));
    finish(&command.current_dir(history.path()).output().unwrap())
}

#[test]
fn nights_find_a_step_and_history_says_where() {
    let values = [100.0, 100.0, 120.0, 120.0];
    let planned = |value: f64| CommitSpec { files: vec![("value", format!("{value}\n"))], ..CommitSpec::default() };
    let history = History::new(&values.map(planned));
    fs::write(history.beside("suite.yaml"), SUITE).unwrap();
    fs::write(history.beside("noise.sh"), NOISE).unwrap();
    let (cache, store) = (history.beside("a cache"), history.beside("store"));
    let night = |commit: usize| {
        let words = ["nightly", "--suite", "../suite.yaml", "--store", "../store", "--machine", "box", "--seed", "2"];
        let more = [
            "--html",
            "../night.html",
            "--cache",
            cache.to_str().unwrap(),
            "--release",
            &history.commits[0],
            "--commit",
        ];
        lab(&history, &[&words[..], &more, &[&history.commits[commit]]].concat())
    };
    let (code, stdout, stderr) = night(1);
    // A failed measurement leaves a night undecided.
    assert_eq!(code, 2, "{stdout}{stderr}");
    assert!(stdout.contains("0 worse, 0 better, 2 unchanged") && stdout.contains("Not measured: broken"), "{stdout}");
    let (code, stdout, stderr) = night(2);
    assert_eq!(code, 1, "{stdout}{stderr}");
    assert_eq!(stdout.matches("| **worse** |").count(), 2, "compared with the release and yesterday: {stdout}");
    let page = fs::read_to_string(history.beside("night.html")).unwrap();
    assert!(page.contains("2 worse, 0 better") && page.contains("broken") && page.contains("<svg"), "{page}");
    let (_, stdout, _) = night(3);
    // A slow creep shows against the release, though nothing changed since yesterday.
    assert_eq!(stdout.matches("| **worse** |").count(), 1, "{stdout}");
    assert_eq!(lab(&history, &["verify", store.to_str().unwrap()]).0, 0);

    // Some more nights, as they would be stored.
    let file = store.join("box").read_dir().unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(&file).unwrap();
    let mut all = String::new();
    for line in text.lines() {
        for scatter in [0.99, 1.012, 0.997, 1.006, 0.992] {
            let mut line: Value = serde_json::from_str(line).unwrap();
            for value in line["values"].as_array_mut().unwrap() {
                *value = (value.as_f64().unwrap() * scatter).into();
            }
            all.push_str(&format!("{line}\n"));
        }
    }
    fs::write(&file, all).unwrap();
    let page = history.beside("page.html");
    let words = ["history", "--store", store.to_str().unwrap(), "--repo", ".", "--html", page.to_str().unwrap()];
    let (code, stdout, stderr) = lab(&history, &words);
    assert_eq!(code, 1, "{stdout}{stderr}");
    assert!(stdout.contains("steady on box: no change in 15 nights"), "{stdout}");
    let bisect =
        format!("stillgate-lab bisect --good {} --bad {}", &history.commits[1][..12], &history.commits[2][..12]);
    assert!(stdout.contains("worse; p") && stdout.contains("Change 2") && stdout.contains(&bisect), "{stdout}");
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains(&bisect) && page.matches("<figure").count() == 2, "{page}");
    let (code, _, stderr) = lab(&history, &["history", "--store", store.to_str().unwrap(), "--series", "no-such"]);
    assert_eq!((code, stderr.contains("it has size, steady")), (2, true), "{stderr}");

    // A removed measurement is a contradiction.
    let cut = fs::read_to_string(&file).unwrap().replacen("\"first_look\":10", "\"first_look\":50", 1);
    fs::write(&file, cut).unwrap();
    assert_eq!(lab(&history, &["verify", store.to_str().unwrap()]).0, 1);
}

#[test]
fn a_branch_of_the_repository_can_be_the_store() {
    let planned = |value: f64| CommitSpec { files: vec![("value", format!("{value}\n"))], ..CommitSpec::default() };
    let history = History::new(&[100.0, 100.0, 130.0].map(planned));
    fs::write(history.beside("suite.yaml"), "series: [{name: size, measure: cat value}]").unwrap();
    let lab = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stillgate-lab"));
        command.args(words).current_dir(history.path()).env("XDG_CACHE_HOME", history.beside("a cache"));
        finish(&command.output().unwrap())
    };
    let night = |commit: usize| {
        let words = ["nightly", "--suite", "../suite.yaml", "--store", "git:bench", "--machine", "box", "--commit"];
        lab(&[&words[..], &[&history.commits[commit]]].concat())
    };
    assert_eq!(night(0).0, 3, "nothing to compare with yet");
    let (code, stdout, stderr) = night(2);
    assert_eq!(code, 1, "yesterday's is read from the branch: {stdout}{stderr}");
    let git = |words: &[&str]| {
        let output = Command::new("git").arg("-C").arg(history.path()).args(words).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(git(&["rev-list", "--count", "bench"]).trim(), "2", "a commit a night, without the code's");
    let files = git(&["ls-tree", "-r", "--name-only", "bench"]);
    assert!(files.starts_with("box/") && files.lines().count() == 1, "{files}");
    let (code, stdout, stderr) = lab(&["history", "--store", "git:bench", "--repo", "."]);
    assert_eq!((code, stdout.contains("size on box")), (0, true), "{stdout}{stderr}");
    let (code, _, stderr) = lab(&["history", "--store", "git:no..such", "--repo", "."]);
    assert_eq!((code, stderr.contains("--store git:no..such")), (2, true), "{stderr}");
}

#[test]
fn counts_name_the_commit_and_go_on_from_the_last_night() {
    // Commit 7 makes it larger by 3%; 8 cannot be built, and 0 to 2 lack the counted file.
    let planned = |number: usize| {
        let value = if number < 7 { 1000 } else { 1030 };
        let mut files = vec![("value", format!("{value}\n")), ("number", format!("{number}\n"))];
        files.extend((number != 8).then(|| ("builds", String::new())));
        files.extend((number > 2).then(|| ("is_there", String::new())));
        CommitSpec { files, ..CommitSpec::default() }
    };
    let mut commits: Vec<CommitSpec> = (0..16).map(planned).collect();
    // Files stay in later commits: 8 removes one, and 9 restores it.
    commits[8].files.push(("builds", "no\n".to_owned()));
    commits[9].files.push(("builds", "yes\n".to_owned()));
    let history = History::new(&commits);
    let suite = "
each_commit:
  build: test \"$(cat builds)\" != no && test -f \"$STILLGATE_SUITE/suite.yaml\"
  series:
    - name: parser | all
      measure: test -f is_there || exit 125; echo $STILLGATE_COMMIT >> ../../../../counted; cat value
    - {name: scattering, measure: 'n=$(cat ../../../../count 2>/dev/null || echo 1); echo $((n + 1)) > ../../../../count; echo $n'}
    - {name: broken, measure: exit 3}
";
    fs::write(history.beside("suite.yaml"), suite).unwrap();
    let night = |commit: usize, more: &[&str]| {
        let cache = history.beside("a cache");
        let words =
            ["nightly", "--suite", "../suite.yaml", "--store", "../store", "--machine", "box", "--commits", "4"];
        let more = [&["--cache", cache.to_str().unwrap(), "--commit", &history.commits[commit]][..], more].concat();
        lab(&history, &[&words[..], &more].concat())
    };
    let (code, stdout, stderr) = night(11, &["--since", &history.commits[0], "--html", "../night.html"]);
    assert_eq!(code, 1, "{stdout}{stderr}");
    let line = format!("| parser \\| all | +3.0% | {} Change 7 | **worse** |", &history.commits[7][..12]);
    assert!(stdout.contains(&line) && stdout.contains("counts: 1 worse, 0 better"), "{stdout}{stderr}");
    assert!(stdout.contains("scattering: not a count, because it scatters"), "{stdout}");
    let page = fs::read_to_string(history.beside("night.html")).unwrap();
    assert!(page.contains("Change 7") && page.contains("counts: 1 worse"), "{page}");
    let counted = || fs::read_to_string(history.beside("counted")).unwrap().lines().count();
    let before = counted();
    // Both sides of the change four times, 11 twice, and some others once.
    assert!((8..=14).contains(&before), "{before}");

    // The next night continues from there, and nothing changed.
    let (code, stdout, stderr) = night(15, &[]);
    assert_eq!((code, counted() - before), (0, 3), "15 twice, and 13: {stdout}{stderr}");
    assert!(stdout.contains("Counted on 3 commits") && stdout.contains("no count changed"), "{stdout}");
    // Nothing is left to count.
    let (code, stdout, stderr) = night(15, &[]);
    assert_eq!((code, counted() - before), (3, 3), "{stdout}{stderr}");
    assert_eq!(lab(&history, &["verify", "../store"]).0, 0);

    let (code, stdout, stderr) =
        lab(&history, &["history", "--store", "../store", "--repo", ".", "--html", "../h.html"]);
    assert_eq!(code, 1, "{stdout}{stderr}");
    assert!(stdout.contains("parser | all on box: 1 change in"), "{stdout}");
    let between = format!("after {}, at {}", &history.commits[6][..12], &history.commits[7][..12]);
    assert!(stdout.contains(&between) && fs::read_to_string(history.beside("h.html")).unwrap().contains(&between));
    let (code, stdout, _) = lab(&history, &["history", "--store", "../store", "--min-effect", "4%"]);
    assert_eq!(code, 0, "{stdout}");

    let (code, _, stderr) = night(3, &["--since", &history.commits[9]]);
    assert_eq!((code, stderr.contains("is not before")), (64, true), "{stderr}");
}

#[test]
fn a_count_with_two_states_changed_nowhere() {
    let commits: Vec<CommitSpec> = (0..6)
        .map(|number| CommitSpec { files: vec![("number", format!("{number}\n"))], ..CommitSpec::default() })
        .collect();
    let history = History::new(&commits);
    // The last commit twice, then 0, 4, 2, 1 and 3: as if 3 and 5 changed it. Repeated counts are in one state or the
    // other.
    let suite = "
each_commit:
  build: 'true'
  series:
    - name: states
      measure: 'n=$(($(cat ../../../../count 2>/dev/null || echo 0) + 1)); echo $n > ../../../../count;
        case $n in 4|7) echo 150;; [1-6]) echo 100;; *) echo $((100 + 50 * (n % 2)));; esac'
";
    fs::write(history.beside("suite.yaml"), suite).unwrap();
    let cache = history.beside("a cache");
    let words = ["nightly", "--suite", "../suite.yaml", "--store", "../store", "--machine", "box", "--cache"];
    let more = [cache.to_str().unwrap(), "--since", &history.commits[0]];
    let (_, stdout, stderr) = lab(&history, &[&words[..], &more].concat());
    assert!(
        stdout.contains("states: not a count, because it scatters: [100.0, 100.0, 150.0, 100.0]"),
        "{stdout}{stderr}"
    );
    assert!(stdout.contains("no count changed"), "{stdout}{stderr}");
    assert_eq!(fs::read_to_string(history.beside("count")).unwrap(), "13\n", "{stdout}{stderr}");
    assert_eq!(lab(&history, &["verify", "../store"]).0, 0);
    let (code, stdout, stderr) = lab(&history, &["history", "--store", "../store", "--repo", "."]);
    assert_eq!(code, 0, "{stdout}{stderr}");
}

#[test]
fn commits_that_are_the_same_where_it_matters_are_counted_once() {
    let planned = |number: usize| CommitSpec {
        files: vec![("src/value", format!("{}\n", if number < 5 { 100 } else { 110 })), ("docs", number.to_string())],
        ..CommitSpec::default()
    };
    let history = History::new(&(0..12).map(planned).collect::<Vec<_>>());
    let suite = "
each_commit:
  build: echo $STILLGATE_COMMIT >> ../../../../built
  depends_on: [src, no/such/path]
  series: [{name: size, measure: cat src/value}]
";
    fs::write(history.beside("suite.yaml"), suite).unwrap();
    let cache = history.beside("a cache");
    let words = ["nightly", "--suite", "../suite.yaml", "--store", "../store", "--cache", cache.to_str().unwrap()];
    let (code, stdout, stderr) = lab(&history, &[&words[..], &["--since", &history.commits[0]]].concat());
    assert!(code == 1 && stdout.contains("Counted on 12 commits") && stdout.contains("Change 5 |"), "{stdout}{stderr}");
    let built = fs::read_to_string(history.beside("built")).unwrap();
    // Two or three of them, and both sides of the change once more.
    assert!((4..=5).contains(&built.lines().count()), "{built}");
    let store = fs::read_dir(history.beside("store")).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(fs::read_dir(store).unwrap().next().unwrap().unwrap().path()).unwrap();
    assert_eq!(
        (text.lines().count(), text.matches("\"same_as\":").count()),
        (14, 14 - built.lines().count()),
        "{text}"
    );
}

#[test]
fn raw_data_are_kept_with_what_was_measured_and_verified() {
    let planned = |value: u64| CommitSpec { files: vec![("value", format!("{value}\n"))], ..CommitSpec::default() };
    let history = History::new(&[100, 100].map(planned));
    let suite = r#"
series:
  - name: latency
    measure: '"$STILLGATE_LAB" measure cpu "$STILLGATE_LAB respond --address {address}" --time 30ms --warm-up 10ms'
  - name: another figure
    measure: '"$STILLGATE_LAB" measure rss "$STILLGATE_LAB respond --address {address}" --time 30ms --warm-up 10ms >/dev/null; cat value'
  - name: foreign
    measure: echo "the histogram of $STILLGATE_COMMIT" > "$STILLGATE_RAW"; cat value
  - name: none
    measure: cat value
"#;
    fs::write(history.beside("suite.yaml"), suite).unwrap();
    let night = |commit: usize| {
        let cache = history.beside("a cache");
        let words = ["nightly", "--suite", "../suite.yaml", "--store", "../store", "--machine", "box", "--cache"];
        lab(&history, &[&words[..], &[cache.to_str().unwrap(), "--commit", &history.commits[commit]]].concat())
    };
    night(0);
    let (_, stdout, stderr) = night(1);
    let lines = || -> Vec<Value> {
        let file = fs::read_dir(history.beside("store/box")).unwrap().map(|entry| entry.unwrap().path());
        let file = file.filter(|path| path.extension().is_some()).last().unwrap();
        fs::read_to_string(file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let all = lines();
    let last =
        |name: &str| all.iter().rev().find(|line| line["series"] == name).unwrap_or_else(|| panic!("{stdout}{stderr}"));
    let latency = last("latency");
    assert_eq!(latency["raw"].as_array().unwrap().len(), latency["values"].as_array().unwrap().len());
    assert!(latency["beside"][0]["raw"][3].is_string(), "{latency}");
    // Equal for each measurement of a commit, and so one file.
    let foreign = last("foreign");
    assert!(foreign["raw"][0] == foreign["raw"][9] && foreign["raw"][0] != foreign["beside"][0]["raw"][0], "{foreign}");
    assert!(last("none")["raw"].is_null() && last("another figure")["raw"].is_null());

    let verify = || lab(&history, &["verify", "../store"]);
    let (code, stdout, _) = verify();
    assert!(code == 0 && stdout.contains("measurements their raw data") && !stdout.contains("note"), "{stdout}");
    let path_of = |name: &Value| {
        let name = name.as_str().unwrap();
        history.beside("store/box/raw").join(&name[..2]).join(name)
    };
    let check = |name: &Value, change: &dyn Fn(&Path), expected: &str| {
        let path = path_of(name);
        let whole = fs::read(&path).unwrap();
        change(&path);
        let (code, stdout, _) = verify();
        assert!(code == 1 && stdout.contains(expected), "{expected}: {stdout}");
        fs::write(&path, whole).unwrap();
    };
    let first = &latency["raw"][0];
    check(first, &|path| fs::remove_file(path).unwrap(), "are missing");
    check(first, &|path| fs::write(path, &fs::read(path).unwrap()[..99]).unwrap(), "were changed or cut off");
    check(&foreign["raw"][0], &|path| fs::write(path, "").unwrap(), "were changed or cut off");
    assert_eq!(verify().0, 0);

    // A measurement that does not match its histograms.
    let file = fs::read_dir(history.beside("store/box")).unwrap().map(|entry| entry.unwrap().path());
    let file = file.filter(|path| path.extension().is_some()).last().unwrap();
    let text = fs::read_to_string(&file).unwrap();
    let value = latency["values"][0].to_string();
    fs::write(&file, text.replace(&value, &format!("1{value}"))).unwrap();
    let (code, stdout, _) = verify();
    // The number of shown digits depends on the library.
    let raw = latency["raw"][0].as_str().unwrap();
    assert!(
        code == 1 && stdout.contains(&format!("its raw data {raw} give ")) && stdout.contains(", not 1"),
        "{stdout}"
    );
}

#[test]
fn a_night_that_ends_early_keeps_what_was_measured() {
    let planned = |value: u64| CommitSpec { files: vec![("value", format!("{value}\n"))], ..CommitSpec::default() };
    let mut commits = [100, 130, 130].map(planned);
    commits[2].files.push(("broken", String::new()));
    let history = History::new(&commits);
    let suite = r#"
build: test ! -e broken
series:
  - name: size
    measure: |
      n=$(($(cat "$COUNT" 2>/dev/null || echo 0) + 1)); echo $n > "$COUNT"
      if [ -e "$COUNT.hangs" ] && [ $n -gt 7 ]; then touch "$COUNT.mark"; sleep 600; fi
      cat value
"#;
    fs::write(history.beside("suite.yaml"), suite).unwrap();
    let night = |commit: usize, release: usize, more: &[&str]| {
        let cache = history.beside("a cache");
        let [commit, release] = [commit, release].map(|number| history.commits[number].clone());
        let words = ["nightly", "--suite", "../suite.yaml", "--store", "../store", "--cache", cache.to_str().unwrap()];
        let mut command = Command::new(env!("CARGO_BIN_EXE_stillgate-lab"));
        command.args(words).args(["--commit", &commit, "--release", &release]).args(more);
        command.env("COUNT", history.beside("count")).current_dir(history.path()).stdin(Stdio::null());
        command
    };
    let lines = || -> Vec<Value> {
        let folder = fs::read_dir(history.beside("store")).unwrap().next().unwrap().unwrap().path();
        let file = fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
        fs::read_to_string(file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };

    // By Ctrl-C in the fourth round.
    fs::write(history.beside("count.hangs"), "").unwrap();
    let child = night(1, 0, &[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually_within(RUN_PATIENCE, "the eighth measurement", || history.beside("count.mark").exists());
    assert!(Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap().success());
    let (code, stdout, stderr) = finish(&child.wait_with_output().unwrap());
    assert_eq!((code, stderr.contains("kept 1 series with up to 3 rounds")), (130, true), "{stdout}{stderr}");
    assert!(stdout.contains("0 undecided"), "three pairs give no interval: {stdout}");
    let line = lines().pop().unwrap();
    let count = |values: &Value| values.as_array().unwrap().len();
    assert_eq!((count(&line["values"]), count(&line["beside"][0]["values"])), (3, 3), "{line}");
    assert_eq!(line["cut_short"], "interrupted");
    fs::remove_file(history.beside("count.hangs")).unwrap();

    // The time does not suffice for the second look, which the first one requires.
    let (code, stdout, stderr) = finish(&night(1, 0, &["--budget", "1ms"]).output().unwrap());
    assert_eq!((code, stdout.contains("0 unchanged, 1 undecided")), (2, true), "{stdout}{stderr}");
    assert_eq!((count(&lines()[1]["values"]), &lines()[1]["cut_short"]), (10, &"budget".into()));
    let (code, stdout, _) = finish(&night(1, 0, &["--budget", "1h"]).output().unwrap());
    assert_eq!((code, stdout.contains("1 worse")), (1, true), "{stdout}");
    assert_eq!(lab(&history, &["verify", "../store"]).0, 0);

    // If the release does not build, yesterday is left to compare with; today's commit must build.
    let (code, stdout, stderr) = finish(&night(0, 2, &[]).output().unwrap());
    assert!(code == 2 && stdout.contains("Not measured: release"), "{stdout}{stderr}");
    let (code, stdout, stderr) = finish(&night(2, 0, &[]).output().unwrap());
    assert!(code == 64 && stderr.contains("today") && stderr.contains("its build failed"), "{stdout}{stderr}");
}
