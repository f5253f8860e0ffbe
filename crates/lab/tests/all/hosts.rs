//! `--hosts`: experiments over machines, which are this one under other addresses, with a script as ssh.

use crate::processes::RUN_PATIENCE;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use stillgate_rig::proc;
use stillgate_testkit::eventually_within;
use tempfile::TempDir;

const LAB: &str = env!("CARGO_BIN_EXE_stillgate-lab");

/// Runs the command here, as ssh would on the machine named before it, and records that machine.
const SSH: &str = r#"#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
echo "$1" >> "$SSH_LOG"; [ "$1" = nowhere ] && { echo "no route to nowhere" >&2; exit 255; }
shift; exec sh -c "$*"
"#;

const HOSTS: &str = "
up: echo starting; echo TARGET=127.0.0.2
target: {ssh: 'box', address: '{TARGET}'}
upstream: {ssh: other, address: 127.0.0.3}
down: echo $TARGET > down
";

const QUICK: &[&str] =
    &["--warm-up", "20ms", "--saturation", "60ms", "--latency", "60ms", "--connections", "4", "--late", "10s"];

struct Machines {
    folder: TempDir,
}

impl Machines {
    fn new(hosts: &str) -> Machines {
        let machines = Machines { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(machines.path("bin")).unwrap();
        let ssh = machines.path("bin/ssh");
        fs::write(&ssh, SSH).unwrap();
        fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(machines.path("hosts.yaml"), hosts).unwrap();
        machines
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn lab(&self, words: &[&str]) -> Command {
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(LAB);
        command.args(words).args(["--hosts", "hosts.yaml"]).current_dir(self.folder.path()).env("PATH", path);
        command.env("SSH_LOG", self.path("ssh.log")).env("XDG_CACHE_HOME", self.path("a cache"));
        command
    }

    /// The machines that were connected to, in order.
    fn connected(&self) -> String {
        fs::read_to_string(self.path("ssh.log")).unwrap_or_default()
    }

    /// Processes of programs that were copied.
    fn running(&self) -> usize {
        let copied = self.path("a cache").display().to_string();
        proc::all().into_iter().filter(|pid| proc::command_line(*pid).starts_with(&copied)).count()
    }
}

fn output_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A server in its own file, like one that was just built.
fn server(machines: &Machines) -> String {
    let own = machines.path("server");
    fs::copy(LAB, &own).unwrap();
    format!("{} respond --address {{address}}", own.display())
}

#[test]
fn programs_run_where_the_file_says_and_machines_go_down_again() {
    let machines = Machines::new(HOSTS);
    let server = server(&machines);
    let words = ["compare", &server, &server, "--pairs", "8", "--alpha", "0.2", "--json", "far.json"];
    let output = machines.lab(&[&words[..], QUICK].concat()).output().unwrap();
    assert_ne!(output.status.code(), Some(64), "{}", output_text(&output));
    let result: Value = serde_json::from_str(&fs::read_to_string(machines.path("far.json")).unwrap()).unwrap();
    let command = result["a"]["command"].to_string();
    assert!(command.contains("127.0.0.2:") && command.contains("a cache/stillgate-lab/hosts/"), "{command}");
    assert!(result["pairs"][0]["a"]["cpu_us_per_request"].as_f64().unwrap() > 0.0);
    assert_eq!(result["instructions_missing"], "the programs run on another machine");
    let hosts = result["environment"]["hosts"].as_array().unwrap();
    assert_eq!((hosts[0]["ip"].as_str(), hosts[1]["role"].as_str()), (Some("127.0.0.2"), Some("upstream")));
    assert!(hosts[0]["environment"]["cpus"].as_u64().unwrap() > 0);
    assert_eq!(result["design"]["placement"]["target_apart"], true);
    assert_eq!(fs::read_to_string(machines.path("down")).unwrap().trim(), "127.0.0.2");
    assert_eq!(machines.running(), 0, "nothing is left");
    let mut report = Command::new(LAB);
    report.args(["report", "far.json", "-o", "far.html"]).current_dir(machines.folder.path());
    assert!(report.status().unwrap().success());
    let page = fs::read_to_string(machines.path("far.html")).unwrap();
    assert!(page.contains("The machine of the target, 127.0.0.2") && page.contains("all, of another machine"));

    // What was copied is still there.
    let measured = |_| {
        let before = machines.connected().lines().count();
        let measured = machines.lab(&["measure", "cpu", &server, "--time", "60ms"]).output().unwrap();
        // The folder, this program, the agent; then the server.
        let connected = machines.connected().lines().skip(before).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(connected, ["box", "box", "box", "other", "other", "other", "box"]);
        let is_late = output_text(&measured).contains("generator") || output_text(&measured).contains("late");
        assert!(measured.status.success() || is_late, "{}", output_text(&measured));
        measured.status.success()
    };
    // The generator may be late on a busy machine.
    assert!((0..50).any(measured));
}

#[test]
fn a_tail_experiment_runs_over_machines() {
    let machines = Machines::new(HOSTS);
    let start = format!("{LAB} respond --address {{address}}");
    let words = ["tail", "--start", &start, "--metrics", "http://{address}/metrics", "--scrape-every", "50ms"];
    let more = ["--pairs", "1", "--spares", "0", "--block", "200ms", "--rate", "200", "--connections", "2"];
    let output = machines.lab(&[&words[..], &more, &["--json", "tail.json"]].concat()).output().unwrap();
    let result = fs::read_to_string(machines.path("tail.json")).unwrap_or_else(|_| panic!("{}", output_text(&output)));
    let result: Value = serde_json::from_str(&result).unwrap();
    assert!(result["cells"][0]["subject"]["command"].to_string().contains("127.0.0.2:"), "{}", output_text(&output));
    assert_eq!(result["environment"]["hosts"].as_array().unwrap().len(), 2);
}

#[test]
fn what_cannot_be_reached_is_said_and_machines_go_down() {
    let check = |hosts: &str, expected: &str| {
        let machines = Machines::new(hosts);
        let output = machines.lab(&["compare", "a b", "a b"]).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{}", output_text(&output));
        assert!(output_text(&output).contains(expected), "{expected}: {}", output_text(&output));
        machines
    };
    let unreachable = HOSTS.replace("'box'", "nowhere");
    let machines = check(&unreachable, "target: ssh nowhere failed");
    assert!(machines.path("down").exists(), "they were up");
    check(&unreachable, "no route to nowhere");
    check(&HOSTS.replace("TARGET=", "OTHER="), "`up` has printed no line TARGET=…");
    check(&HOSTS.replace("127.0.0.3", "there"), "\"there\" is not an IP address");
    let failed = check(&HOSTS.replace("echo starting", "exit 7"), "failed (exit status: 7)");
    assert!(failed.path("down").exists(), "half of them may be up");
    check("target: {ssh: box}", "a machine needs \"address\"");
}

#[test]
fn nothing_goes_on_there_when_this_program_is_killed() {
    let machines = Machines::new(HOSTS);
    let server = server(&machines);
    let words = ["compare", &server, &server, "--pairs", "1000", "--json", "killed.json"];
    let mut lab = machines.lab(&[&words[..], QUICK].concat());
    let mut lab = lab.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // Two agents, the upstream, and both servers.
    eventually_within(RUN_PATIENCE, "its programs", || machines.running() >= 5);
    lab.kill().unwrap();
    lab.wait().unwrap();
    eventually_within(RUN_PATIENCE, "their end", || machines.running() == 0);
}
