//! `stillgate upgrade`: which process it finds, what it recognises as a gateway, and which configuration it checks.

use crate::shared::STILLGATE;
use crate::shared::upgrade::{UpgradedGateway, children, is_gateway, script, sh, signal};
use std::path::Path;
use std::process::{Command, Output};
use stillgate_testkit::{Gateway, Setup, Upstream, eventually};

/// `stillgate upgrade` with these arguments, run in this folder.
fn run_in(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(STILLGATE).arg("upgrade").args(arguments).current_dir(dir).output().expect("run it")
}

#[track_caller]
fn check(output: &Output, code: i32, expected: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(expected), "{said}");
}

#[test]
fn a_gateway_is_known_whatever_its_binary_is_called() {
    let upstream = Upstream::echo();
    let dir = tempfile::tempdir().expect("a temporary folder");
    let binary = dir.path().join("sg-2.1");
    sh(&format!("cp {STILLGATE} {}", binary.display()));
    let mut upgraded = UpgradedGateway::start_from(binary.to_str().expect("a plain path"), &Setup::to(upstream.addr()));
    let successor = upgraded.upgrade();
    upgraded.await_old();
    let runs = std::fs::read_link(format!("/proc/{successor}/exe")).expect("it runs");
    assert_eq!(runs, binary.canonicalize().expect("it is there"));
    // A process with our name need not be a gateway: this one catches the signal, and does nothing else.
    let (_dir, other) = script(r#"trap : USR2; while :; do sleep 0.01; done"#);
    let named = other.with_file_name("stillgate");
    sh(&format!("mv {} {}", other.display(), named.display()));
    let mut process = Command::new(named).spawn().expect("a shell");
    eventually("its name", || {
        std::fs::read_to_string(format!("/proc/{}/comm", process.id())).is_ok_and(|name| name == "stillgate\n")
    });
    check(&run_in(dir.path(), &["--pid", &process.id().to_string()]), 2, "is not a gateway that can be upgraded");
    assert!(process.try_wait().expect("a child").is_none());
    process.kill().and_then(|()| process.wait()).expect("its end");
}

#[test]
fn the_configuration_is_that_of_the_process() {
    let upstream = Upstream::echo();
    let elsewhere = tempfile::tempdir().expect("a temporary folder");
    // It is started in the folder of its configuration (the third argument), by a path that leads there from nowhere else.
    let lines = format!("cd \"${{3%/*}}\"; export LEVEL=info; exec {STILLGATE} run -c stillgate.yaml");
    let (_dir, wrapper) = script(&lines);
    let setup = Setup::to(upstream.addr()).gateway("log: {level: \"${LEVEL}\"}");
    let mut upgraded = UpgradedGateway::start_from(wrapper.to_str().expect("a plain path"), &setup);
    let pid = upgraded.gateway.pid().to_string();
    let config = upgraded.gateway.config_path();
    let config = config.to_str().expect("a plain path");
    let other = elsewhere.path().join("stillgate.yaml");
    std::fs::copy(config, &other).expect("a copy");
    let other = other.to_str().expect("a plain path");
    check(&run_in(elsewhere.path(), &["--pid", &pid, "--config", other]), 2, "Omit --config");
    check(&run_in(elsewhere.path(), &["--pid", &pid, "--config", "stillgate.yaml"]), 2, config);
    // The configuration is found invalid without its path on the command line.
    let good = std::fs::read_to_string(config).expect("it is there");
    upgraded.gateway.write_config_text(&format!("{good}\nnonsense: true\n"));
    check(&run_in(elsewhere.path(), &["--pid", &pid]), 1, "nonsense");
    // Only the gateway's environment has LEVEL; the path of the number must not need it.
    let mut moved = good.clone();
    let at = moved.find("pid_file: \"").expect("it has one") + "pid_file: \"".len();
    moved.insert_str(at, "${NOT_SET_HERE}");
    upgraded.gateway.write_config_text(&moved);
    check(&run_in(elsewhere.path(), &["--config", config]), 2, "NOT_SET_HERE is not set; name the process with --pid");
    upgraded.gateway.write_config_text(&good);
    let output = run_in(elsewhere.path(), &["--config", config]);
    assert!(output.status.success(), "{output:?}");
    upgraded.await_old();
    let pid = upgraded.pid().expect("it has written its number").to_string();
    let link = elsewhere.path().join("link");
    std::os::unix::fs::symlink(config, &link).expect("a link");
    let output = run_in(elsewhere.path(), &["--pid", &pid, "--config", "link"]);
    assert!(output.status.success(), "{output:?}");
    upgraded.await_old();
    let successor = upgraded.pid().expect("it has written its number").to_string();
    let output = run_in(elsewhere.path(), &["--pid", &successor]);
    assert!(output.status.success(), "{output:?}");
    // Its command line does not show its owner, so nothing else ends it.
    let last = upgraded.pid().expect("it has written its number");
    signal(last, "TERM");
    eventually("its end", || !upgraded.pid_file().exists());
}

#[test]
fn the_command_finds_the_process_or_says_why_not() {
    let upstream = Upstream::echo();
    let upgraded = UpgradedGateway::start(&Setup::to(upstream.addr()));
    let config = upgraded.gateway.config_path();
    let run = |arguments: &[&str]| -> Output {
        Command::new(STILLGATE).arg("upgrade").arg("--config").arg(&config).args(arguments).output().expect("run it")
    };
    check(&run(&["--pid", "4194304"]), 2, "there is no process 4194304");
    check(&run(&["--pid", &std::process::id().to_string()]), 2, "not a gateway that can be upgraded");
    check(&run(&["--pid", "0"]), 2, "process ID");
    check(&run(&["--pid-file", "/nowhere/pid"]), 2, "cannot read /nowhere/pid");
    let other = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(other.path(), "seven").expect("write");
    check(&run(&["--pid-file", other.path().to_str().expect("a plain path")]), 2, "process ID");
    let missing = Command::new(STILLGATE).args(["upgrade", "--config", "/nowhere.yaml"]).output().expect("run it");
    check(&missing, 2, "/nowhere.yaml");
    let pid = upgraded.gateway.pid();
    assert!(is_gateway(pid, upgraded.gateway.dir()));
    // The file that it was started with has no pid file any more.
    upgraded.gateway.write_config(&Setup::to(upstream.addr()));
    check(&run(&[]), 2, "--pid");
    assert_eq!(children(pid), Vec::<u32>::new(), "nothing of all that started anything");
    let output = run(&["--pid", &pid.to_string()]);
    assert!(output.status.success(), "{output:?}");
    let gateway: &Gateway = &upgraded.gateway;
    assert_eq!(gateway.get("/").head.status(), 200);
}
