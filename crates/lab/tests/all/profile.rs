//! `stillgate-lab profile` of a program in C whose split is known: by perf within a few per cent, by callgrind to the
//! instruction.

use crate::processes::RUN_PATIENCE;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use stillgate_profiler::output::pprof;
use stillgate_profiler::profile::Profile;
use stillgate_testkit::{eventually_within, require_tool};

const LAB: &str = env!("CARGO_BIN_EXE_stillgate-lab");

/// With the clock of the CPUs, in percentage points.
const POINTS_MAX: f64 = 5.0;

fn planted(folder: &Path) -> PathBuf {
    require_tool("cc", "gcc");
    let program = folder.join("planted");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/planted.c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-fno-omit-frame-pointer", source, "-o"]).arg(&program);
    assert!(cc.status().expect("run cc").success());
    program
}

fn lab(words: &[&str]) -> Output {
    Command::new(LAB).arg("profile").args(words).output().expect("run it")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary folder has a plain name")
}

/// The share of the stacks with this function, in percent.
fn share(profile: &Profile, name: &str) -> f64 {
    let names = |sample| -> Vec<&str> {
        profile.functions_of(sample).map(|line| &*profile.functions[line.function].name).collect()
    };
    let with = profile.samples.iter().filter(|sample| names(sample).contains(&name));
    100.0 * with.map(|sample| sample.values[profile.main]).sum::<i64>() as f64 / profile.total(profile.main) as f64
}

fn read(file: &Path) -> Profile {
    pprof::read(&std::fs::read(file).expect("it was written")).expect("it is a profile")
}

#[test]
fn instructions_are_counted_exactly() {
    require_tool("valgrind", "valgrind");
    let folder = tempfile::tempdir().expect("a folder");
    let (program, file) = (planted(folder.path()), folder.path().join("i.pb.gz"));
    let done = lab(&["--kind", "instructions", "-o", text(&file), text(&program), "2000"]);
    assert!(done.status.success(), "{done:?}");
    let profile = read(&file);
    let all = share(&profile, "half") + share(&profile, "third") + share(&profile, "fifth");
    for (name, planted) in [("half", 50.0), ("third", 30.0), ("fifth", 20.0)] {
        let found = 100.0 * share(&profile, name) / all;
        assert!((found - planted).abs() < 0.1, "{name}: {found:.2}% of {planted}%");
    }
    assert!(share(&profile, "leaf") > 90.0, "{}", share(&profile, "leaf"));
    let again = folder.path().join("again.pb.gz");
    lab(&["--kind", "instructions", "-o", text(&again), text(&program), "2000"]);
    let half = |profile: &Profile| share(profile, "half") * profile.total(0) as f64 / 100.0;
    assert_eq!(half(&profile).round(), half(&read(&again)).round(), "the same at every run");
}

#[test]
fn cpu_time_is_sampled() {
    require_tool("perf", "linux-perf");
    let folder = tempfile::tempdir().expect("a folder");
    let (program, file) = (planted(folder.path()), folder.path().join("c.pb.gz"));
    let done = lab(&["--hz", "1999", "-o", text(&file), text(&program), "3000000"]);
    assert!(done.status.success(), "{done:?}");
    let profile = read(&file);
    assert!(profile.total(0) > 500, "{} samples", profile.total(0));
    for (name, planted) in [("half", 50.0), ("third", 30.0), ("fifth", 20.0)] {
        let found = share(&profile, name);
        assert!((found - planted).abs() < POINTS_MAX, "{name}: {found:.2}% of {planted}%");
    }
    assert!(profile.samples.iter().any(|sample| sample.thread().starts_with("planted ")), "by name and number");
}

/// A server does not end by itself, and `kill` reaches this program only.
#[test]
fn an_interrupt_ends_the_program_and_keeps_its_profile() {
    require_tool("perf", "linux-perf");
    require_tool("valgrind", "valgrind");
    let folder = tempfile::tempdir().expect("a folder");
    let program = planted(folder.path());
    let script = r#""$0" "$2"; touch "$1"; while :; do sleep 0.1; done"#;
    // Half a second, so that there are samples; counting takes much longer.
    for (kind, rounds) in [("cpu", "2000000"), ("instructions", "20000")] {
        let (file, mark) = (folder.path().join(format!("{kind}.pb.gz")), folder.path().join(kind));
        let words = ["profile", "--kind", kind, "-o", text(&file), "--", "sh", "-c", script];
        let mut command = Command::new(LAB);
        command.args(words).args([&program, &mark]).arg(rounds).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.spawn().expect("run it");
        eventually_within(RUN_PATIENCE, "the work of the program", || mark.exists());
        let kill = Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status();
        assert!(kill.expect("run kill").success());
        assert_eq!(child.wait().expect("its end").code(), Some(0), "{kind}");
        assert!(share(&read(&file), "half") > 10.0, "{kind}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let mark = folder.path().join("ran");
    let refused = |words: &[&str], why: &str| {
        let mut all = words.to_vec();
        all.extend(["touch", text(&mark)]);
        let done = lab(&all);
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.code() == Some(2) && said.contains(why), "{words:?}: {done:?}");
        assert!(!mark.exists(), "{words:?}");
    };
    refused(&["-o", "profile.png"], "end the name with one of");
    refused(&["-o", "profile.trace.json"], "name another form");
    refused(&["-o", "/nowhere/profile.svg"], "cannot be written");
    refused(&["--hz", "0"], "--hz");
    refused(&["--pid", "1"], "cannot be used with");
    let output = folder.path().join("p.svg");
    let nowhere = lab(&["-o", text(&output), "/nowhere/program"]);
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("the program ended with exit status"), "{nowhere:?}");
    let none = lab(&["--kind", "instructions", "--pid", "1"]);
    assert!(String::from_utf8_lossy(&none.stderr).contains("only count a program that it starts"), "{none:?}");
}
