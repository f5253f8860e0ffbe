//! The real binary as processes: a responder, and loads that are run to their end.

// Each test file uses a part of this.
#![allow(dead_code)]

use serde_json::Value;
use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use stillgate_testkit::{Process, eventually_within};
use tempfile::TempDir;

/// Longer than any run of these tests takes, even on a busy machine.
pub(crate) const RUN_PATIENCE: Duration = Duration::from_secs(1200);

/// Interval of polling a process.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A `stillgate-lab` command, not started yet.
pub(crate) fn lab(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stillgate-lab"));
    command.args(arguments);
    command
}

/// A running responder; killed when dropped.
pub(crate) struct Responder {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    _folder: TempDir,
}

impl Responder {
    pub(crate) fn start(arguments: &[&str]) -> Responder {
        let folder = TempDir::new().unwrap();
        let mut command = lab(&["respond"]);
        command.args(arguments);
        let process = Process::spawn("respond", &mut command, &folder.path().join("log"));
        Responder { address: listening(&process), process, _folder: folder }
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// A connection with a read timeout.
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(RUN_PATIENCE)).unwrap();
        stream
    }

    /// Its final output.
    pub(crate) fn end(mut self) -> String {
        self.process.signal("TERM");
        assert!(self.process.wait().success());
        self.process.log()
    }
}

/// The address that a responder prints.
pub(crate) fn listening(process: &Process) -> SocketAddr {
    let mut address = None;
    eventually_within(RUN_PATIENCE, "the responder listens", || {
        let log = process.log();
        let line = log.split_inclusive('\n').next().filter(|line| line.ends_with('\n'));
        address = line.and_then(|line| line.trim().strip_prefix("listening on ")?.parse().ok());
        address.is_some()
    });
    address.unwrap()
}

/// A command that has ended: its exit code and both its outputs.
pub(crate) struct FinishedCommand {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a command to its end.
pub(crate) fn run(command: &[&str], arguments: &[&str]) -> FinishedCommand {
    let folder = TempDir::new().unwrap();
    let [out, err] = ["out", "err"].map(|name| folder.path().join(name));
    let mut child = lab(command)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(File::create(&out).unwrap())
        .stderr(File::create(&err).unwrap())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + RUN_PATIENCE;
    let mut is_over = false;
    while !is_over && Instant::now() < deadline {
        // Not a busy loop: the load needs the CPU.
        std::thread::sleep(POLL_INTERVAL);
        is_over = child.try_wait().unwrap().is_some();
    }
    if !is_over {
        child.kill().unwrap();
    }
    let status = child.wait().unwrap();
    let [stdout, stderr] = [out, err].map(|path| std::fs::read_to_string(path).unwrap());
    assert!(is_over, "{command:?} {arguments:?} does not end: {stdout}{stderr}");
    FinishedCommand { code: status.code(), stdout, stderr }
}

/// Runs a load to its end.
pub(crate) fn load(arguments: &[&str]) -> FinishedCommand {
    run(&["load"], arguments)
}

/// A load with JSON output; it must end with `code`.
pub(crate) fn load_json(arguments: &[&str], code: i32) -> Value {
    load_json_of(arguments, &[code])
}

/// A load whose figures do not matter: it may be void on a busy machine.
pub(crate) fn load_json_or_void(arguments: &[&str]) -> Value {
    load_json_of(arguments, &[0, 3])
}

fn load_json_of(arguments: &[&str], codes: &[i32]) -> Value {
    let done = load(&[arguments, &["--json", "-", "--quiet"]].concat());
    let is_expected = done.code.is_some_and(|code| codes.contains(&code));
    assert!(is_expected, "{:?} {arguments:?}\n{}{}", done.code, done.stdout, done.stderr);
    serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {}", done.stdout))
}

/// A running load with a log line per interval.
pub(crate) struct Loading {
    pub(crate) process: Process,
    folder: TempDir,
}

impl Loading {
    pub(crate) fn start(arguments: &[&str]) -> Loading {
        let folder = TempDir::new().unwrap();
        let json = folder.path().join("run.json");
        let mut command = lab(&["load"]);
        command.args(arguments).args([Path::new("--json"), &json]);
        let process = Process::spawn("load", &mut command, &folder.path().join("log"));
        Loading { process, folder }
    }

    /// Waits until some intervals are over.
    pub(crate) fn stretches(&self, count: usize) {
        eventually_within(RUN_PATIENCE, &format!("{count} intervals of the load"), || {
            self.process.log().lines().filter(|line| line.contains(" s  ")).count() >= count
        });
    }

    /// Waits for its end: exit code, JSON if any was written, and all its output.
    pub(crate) fn finish(mut self) -> (Option<i32>, Option<Value>, String) {
        let mut status = None;
        eventually_within(RUN_PATIENCE, "the end of the load", || {
            status = self.process.ended();
            status.is_some()
        });
        let json = std::fs::read_to_string(self.folder.path().join("run.json")).ok();
        let json = json.map(|text| serde_json::from_str(&text).unwrap());
        (status.unwrap().code(), json, self.process.log())
    }
}

/// A number of a result.
pub(crate) fn number(result: &Value, path: &[&str]) -> f64 {
    let value = path.iter().fold(result, |value, key| &value[*key]);
    value.as_f64().unwrap_or_else(|| panic!("{path:?} is {value}"))
}
