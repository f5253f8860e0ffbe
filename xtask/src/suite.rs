//! The workspace's unit, property and end-to-end tests: cargo builds them, several executables run at a time.
//!
//! `cargo test` runs one executable after the other, and most wait more than they compute; those that measure still have the
//! machine to themselves. Each is started as cargo would: in its package's folder, which `CARGO_MANIFEST_DIR` names too.
//! What a good one prints is not shown. What a failed one printed is this step's error, so that it is near the end, where
//! readers of a long log look first.
//!
//! A few tests that fail are run once more, with nothing beside them: a machine that is busy with something else makes a good
//! test late. One that passes then is named at the end as flaky, with what it said, and does not fail the step.

use crate::parallel;
use crate::{Result, step};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Executables that run at a time beyond one for each CPU, in the place of those that wait.
const FURTHER_AT_A_TIME: usize = 1;

/// How the names of those begin that take longest. They are begun first: none should be left for the end.
const LONGEST: [&str; 5] = ["e2e_acme", "e2e_lua_profile", "e2e_profiling", "explain", "report"];

/// Packages and targets whose tests measure latencies and rates, which others beside them would change: run after the others,
/// one executable at a time.
const ALONE: &[(&str, &str)] = &[
    ("stillgate-lab", "compare"),
    ("stillgate-lab", "load_protocols"),
    ("stillgate-lab", "load_results"),
    ("stillgate-lab", "load_truth"),
    ("stillgate-lab", "stillgate-lab"),
    ("stillgate-lab", "tail"),
    ("stillgate-load", "engine"),
];

/// One that runs longer hangs.
const EXECUTABLE_SECONDS_MAX: u64 = 900;

/// Failed tests that are run once more. If more fail, it is not for a busy machine.
const RUN_AGAIN_MAX: usize = 4;

/// How much of a failed executable's output is shown: its end, where the failed tests are.
const OUTPUT_BYTES_SHOWN_MAX: usize = 32 * 1024;

/// Between two looks whether an executable has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// What cargo built of one target's tests.
pub(crate) struct Executable {
    path: PathBuf,
    /// Its package's.
    folder: PathBuf,
    package: String,
    target: String,
    /// The command that runs these tests only.
    command: String,
}

/// How an executable ended.
struct Outcome {
    /// What libtest said last, about numbers.
    summary: String,
    /// Where it failed: for the reader, and the names of the tests.
    failure: Option<(String, Vec<String>)>,
}

/// Builds all of them with clippy's driver, which compiles as rustc does and lints on the way, so that nothing is compiled twice.
/// Benches and examples are built too, to be linted. Returns the number of warnings.
pub(crate) fn build(into: &mut Vec<Executable>) -> Result<usize> {
    let mut cargo = step::cargo(["test", "--workspace", "--all-targets", "--no-run"]);
    let built = step::build(with_clippy(&mut cargo))?;
    *into = tests(&built);
    into.sort_by_key(|executable| !LONGEST.iter().any(|name| executable.target.starts_with(name)));
    println!("{} executables", into.len());
    Ok(built.warnings)
}

/// Lets clippy compile the workspace's crates. Cargo keeps what that makes apart from what rustc makes.
pub(crate) fn with_clippy(cargo: &mut Command) -> &mut Command {
    cargo.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver")
}

fn tests(built: &step::Built) -> Vec<Executable> {
    let is_test = |artifact: &&Value| artifact["profile"]["test"] == true && artifact["target"]["kind"][0] != "bench";
    built.executables.iter().filter(is_test).filter_map(Executable::of).collect()
}

/// The target of tests that must hold in release builds too, without debug assertions to stop the program first.
const WITHOUT_ASSERTIONS: &str = "e2e_plugins_splitting";

/// Switches debug assertions off in the workspace, and line tables, which take time. Crates of others stay as the other tests
/// have built them.
const ASSERTIONS_OFF: [&str; 6] = [
    "--config",
    "profile.dev.debug-assertions=false",
    "--config",
    "profile.dev.debug=false",
    "--config",
    "profile.dev.package.'*'.debug-assertions=true",
];

/// Builds and runs these with a gateway without debug assertions. It takes the place of the other one in cargo's folder, so
/// nothing that needs that comes after it.
pub(crate) fn run_without_assertions() -> Result {
    // For the whole workspace: for one package alone, dependencies would have fewer features and be built again.
    let arguments = ["test", "--workspace", "--test", WITHOUT_ASSERTIONS, "--no-run"];
    let mut executables = tests(&step::build(step::cargo(arguments).args(ASSERTIONS_OFF))?);
    for executable in &mut executables {
        executable.command = format!("{} {}", executable.command, shell_words(&ASSERTIONS_OFF));
    }
    run(&executables)
}

fn shell_words(words: &[&str]) -> String {
    let quoted = words.iter().map(|word| if word.contains('\'') { format!("\"{word}\"") } else { (*word).to_owned() });
    quoted.collect::<Vec<_>>().join(" ")
}

/// Runs them. The error has the output of those that failed, and then the failed tests' names.
pub(crate) fn run(executables: &[Executable]) -> Result {
    if executables.is_empty() {
        return Err("no tests were built".into());
    }
    let is_alone = |executable: &&Executable| ALONE.contains(&(&executable.package, &executable.target));
    let (alone, others): (Vec<&Executable>, Vec<&Executable>) = executables.iter().partition(is_alone);
    let mut failures = parallel::map(&others, parallel::cpus() + FURTHER_AT_A_TIME, |executable| executable.failure());
    failures.extend(alone.into_iter().map(Executable::failure));
    let failures: Vec<Failure<'_>> = failures.into_iter().flatten().collect();
    let count: usize = failures.iter().map(|failure| failure.tests.len()).sum();
    let (flaky, failed): (Vec<_>, Vec<_>) =
        failures.into_iter().partition(|failure| count <= RUN_AGAIN_MAX && failure.passes_alone());
    for failure in flaky {
        println!("{}\nFLAKY: {} passed when run again, with nothing beside", failure.said, failure.tests.join(", "));
    }
    let said: Vec<String> = failed.into_iter().map(|failure| failure.said).collect();
    if said.is_empty() { Ok(()) } else { Err(said.join("\n").into()) }
}

/// What the reader should know of an executable that failed.
struct Failure<'a> {
    executable: &'a Executable,
    said: String,
    /// Those that failed; none: it ended otherwise.
    tests: Vec<String>,
}

impl Failure<'_> {
    /// Runs the failed tests once more.
    fn passes_alone(&self) -> bool {
        let names = self.tests.iter().map(String::as_str);
        let arguments: Vec<&str> = ["--exact"].into_iter().chain(names).collect();
        let again = || self.executable.run(&arguments);
        !self.tests.is_empty() && again().is_ok_and(|outcome| outcome.failure.is_none())
    }
}

impl Executable {
    /// Runs it and prints how it ended; returns what the reader should know, where it failed.
    fn failure(&self) -> Option<Failure<'_>> {
        let begin = Instant::now();
        let outcome = self.run(&[]).unwrap_or_else(|error| Outcome {
            summary: "not run".to_owned(),
            failure: Some((format!("{}: {error}", self.path.display()), Vec::new())),
        });
        let verdict = if outcome.failure.is_none() { "ok" } else { "FAILED" };
        let took = begin.elapsed().as_secs_f64();
        println!("{verdict:>6}  {took:>6.1} s  {}: {}", self.command, outcome.summary);
        outcome.failure.map(|(said, tests)| Failure { executable: self, said, tests })
    }

    /// From cargo's message about an artifact.
    fn of(artifact: &Value) -> Option<Self> {
        let target = artifact["target"]["name"].as_str()?;
        let folder = Path::new(artifact["manifest_path"].as_str()?).parent()?;
        // "path+file:///…/crates/wire#stillgate-wire@0.1.0", or "path+file:///…/xtask#0.1.0".
        let (path, version) = artifact["package_id"].as_str()?.rsplit_once('#')?;
        let package = version.split_once('@').map_or(path.rsplit('/').next()?, |(name, _)| name);
        let selection = match artifact["target"]["kind"][0].as_str()? {
            "lib" => "--lib".to_owned(),
            kind => format!("--{kind} {target}"),
        };
        Some(Self {
            path: artifact["executable"].as_str()?.into(),
            folder: folder.to_owned(),
            package: package.to_owned(),
            target: target.to_owned(),
            command: format!("cargo test -p {package} {selection}"),
        })
    }

    fn run(&self, arguments: &[&str]) -> Result<Outcome> {
        let mut output = tempfile::tempfile()?;
        let mut child = Command::new(&self.path)
            .args(arguments)
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?)
            .spawn()?;
        let deadline = Instant::now() + Duration::from_secs(EXECUTABLE_SECONDS_MAX);
        let (status, hung) = loop {
            if let Some(status) = child.try_wait()? {
                break (status, false);
            }
            if Instant::now() > deadline {
                kill_with_descendants(child.id())?;
                break (child.wait()?, true);
            }
            std::thread::sleep(POLL_INTERVAL);
        };
        let mut bytes = Vec::new();
        output.rewind()?;
        output.read_to_end(&mut bytes)?;
        let said = String::from_utf8_lossy(&bytes);
        let ended =
            if hung { format!("ended, since it took over {EXECUTABLE_SECONDS_MAX} s") } else { status.to_string() };
        Ok(Outcome {
            summary: summary(&said).unwrap_or(&ended).to_owned(),
            failure: (!status.success())
                .then(|| (self.described(&said, &ended), failed(&said).map(str::to_owned).collect())),
        })
    }

    fn described(&self, said: &str, ended: &str) -> String {
        let mut from = said.len().saturating_sub(OUTPUT_BYTES_SHOWN_MAX);
        while !said.is_char_boundary(from) {
            from += 1;
        }
        let mut text = format!("---- {}: {ended}; it said (the end of it):\n{}\n", self.command, &said[from..]);
        for test in failed(said) {
            // Nothing can go wrong in writing to a String.
            let _ = writeln!(text, "FAILED: {} -- --exact {test}", self.command);
        }
        text
    }
}

/// The process and all that it has started: gateways and other servers would go on. It is in no group of its own, so that
/// Ctrl-C ends it with us.
fn kill_with_descendants(root: u32) -> io::Result<()> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // It may have ended meanwhile. "PID (name) state parent …", and the name may be anything.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        if let Some(parent) = fields.split_whitespace().nth(1).and_then(|parent| parent.parse::<u32>().ok()) {
            parents.push((pid, parent));
        }
    }
    let mut found = vec![root];
    let mut next = 0;
    while let Some(of) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, parent)| *parent == of).map(|(pid, _)| *pid));
        next += 1;
    }
    for pid in found.into_iter().filter_map(|pid| i32::try_from(pid).ok().and_then(Pid::from_raw)) {
        // It may have ended meanwhile.
        let _ = kill_process(pid, Signal::KILL);
    }
    Ok(())
}

/// "15 passed; 0 failed; …" of libtest's last line.
fn summary(said: &str) -> Option<&str> {
    let (_, result) = said.rsplit_once("test result: ")?;
    result.split_once(". ").and_then(|(_, numbers)| numbers.lines().next())
}

/// The names in libtest's last list.
fn failed(said: &str) -> impl Iterator<Item = &str> {
    let list = said.rsplit_once("\nfailures:\n").map_or("", |(_, list)| list);
    list.lines().map_while(|line| line.strip_prefix("    "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, Write as _};

    const SAID: &str = "\nrunning 2 tests\ntest a ... ok\ntest b::c ... FAILED\n\nfailures:\n\n---- b::c stdout ----\nwhy\n\n\n\
        failures:\n    b::c\n    d\n\ntest result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\n";

    #[test]
    fn what_libtest_says_is_understood() {
        assert_eq!(failed(SAID).collect::<Vec<_>>(), ["b::c", "d"]);
        assert_eq!(failed("thread 'x' has overflowed its stack").count(), 0);
        let expected = "1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        assert_eq!(summary(SAID), Some(expected));
        assert_eq!(summary("killed"), None);
    }

    #[test]
    fn an_artifact_is_named_by_the_command_that_runs_it() {
        let artifact = |id: &str, kind: &str| {
            let artifact = serde_json::json!({
                "package_id": id, "manifest_path": "/w/crates/wire/Cargo.toml", "executable": "/t/golden-1",
                "target": {"name": "golden", "kind": [kind]},
            });
            Executable::of(&artifact).unwrap()
        };
        let it = artifact("path+file:///w/crates/wire#stillgate-wire@0.1.0", "test");
        assert_eq!(it.command, "cargo test -p stillgate-wire --test golden");
        assert_eq!(it.folder, Path::new("/w/crates/wire"));
        assert_eq!(artifact("path+file:///w/xtask#0.1.0", "bin").command, "cargo test -p xtask --bin golden");
        assert_eq!(artifact("path+file:///w/a#b@0.1.0", "lib").command, "cargo test -p b --lib");
    }

    #[test]
    fn one_that_hangs_is_ended_with_all_that_it_has_started() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "(sleep 600 & echo $!; wait) & wait"]).stdout(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let mut line = String::new();
        io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let sleeps =
            || fs::read_to_string(format!("/proc/{}/cmdline", line.trim())).is_ok_and(|line| line.contains("600"));
        let until = |what: &str, reached: &dyn Fn() -> bool| {
            let deadline = Instant::now() + Duration::from_secs(10);
            while !reached() {
                assert!(Instant::now() < deadline, "{what}");
                std::thread::sleep(POLL_INTERVAL);
            }
        };
        // The number is told before the program is there.
        until("it does not sleep", &sleeps);
        kill_with_descendants(child.id()).unwrap();
        assert!(!child.wait().unwrap().success());
        until("it sleeps on", &|| !sleeps());
    }

    /// Scripts in place of executables of tests: the test `b` passes alone, `c` never does.
    #[test]
    fn failed_tests_are_run_again_alone() {
        let folder = tempfile::tempdir().unwrap();
        let executable = |names: &str| {
            let path = folder.path().join(names.replace(' ', "-"));
            // Another process writes it: what this one still had open could not be run.
            let text = "#!/bin/sh\n[ \"$*\" = \"--exact b\" ] && exit\nprintf '\\nfailures:\\n'\nprintf '    %s\\n' ";
            let write = format!("cat > '{0}' && chmod +x '{0}'", path.display());
            let mut shell = Command::new("sh").args(["-c", &write]).stdin(Stdio::piped()).spawn().unwrap();
            shell.stdin.take().unwrap().write_all(format!("{text}{names}\nexit 101\n").as_bytes()).unwrap();
            assert!(shell.wait().unwrap().success());
            let (package, target, command) = ("a".to_owned(), "a".to_owned(), "cargo test -p a --lib".to_owned());
            Executable { path, folder: folder.path().into(), package, target, command }
        };
        assert!(super::run(&[executable("b")]).is_ok());
        let failed = super::run(&[executable("b"), executable("c")]).unwrap_err().to_string();
        assert!(failed.contains("--exact c") && !failed.contains("--exact b"), "{failed}");
        assert!(super::run(&[executable("b b b b b")]).is_err(), "too many to be late only");
    }

    #[test]
    fn a_failed_one_shows_its_end_and_the_names() {
        let executable = |path: &str| Executable {
            path: path.into(),
            folder: "/".into(),
            package: "a".to_owned(),
            target: "a".to_owned(),
            command: "cargo test -p a --lib".to_owned(),
        };
        assert!(executable("/bin/true").run(&[]).unwrap().failure.is_none());
        let failed = executable("/bin/false").run(&[]).unwrap();
        assert_eq!(failed.summary, "exit status: 1");
        assert!(failed.failure.unwrap().0.contains("cargo test -p a --lib: exit status: 1"));
        assert!(executable("/bin/absent").run(&[]).is_err());
        let said = format!("é{}{SAID}", "x".repeat(OUTPUT_BYTES_SHOWN_MAX - SAID.len() - 1));
        let failure = executable("/bin/false").described(&said, "exit status: 101");
        assert!(failure.contains("---- b::c stdout ----\nwhy\n") && !failure.contains('é'), "{failure}");
        let names = failure.lines().filter(|line| line.starts_with("FAILED: "));
        let expected = ["FAILED: cargo test -p a --lib -- --exact b::c", "FAILED: cargo test -p a --lib -- --exact d"];
        assert_eq!(names.collect::<Vec<_>>(), expected);
    }
}
