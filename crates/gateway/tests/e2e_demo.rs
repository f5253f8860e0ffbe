//! `stillgate demo`: what it prints works when it is typed.

use std::process::Command;
use stillgate_testkit::{END_PATIENCE, Process, eventually, require_tool};

#[test]
fn the_printed_curl_lines_work() {
    require_tool("curl", "curl");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_stillgate"));
    let mut demo = Process::spawn("stillgate demo", command.arg("demo"), &folder.path().join("log"));
    let mut lines = Vec::new();
    eventually("all lines to be printed", || {
        assert!(demo.ended().is_none(), "the demo ended");
        let log = demo.log();
        lines = log.lines().filter_map(|line| Some(line[line.find("curl ")?..].to_owned())).collect();
        log.contains("Ctrl-C ends it.\n")
    });
    assert!(lines.len() >= 4, "{lines:?}");
    for line in &lines {
        let output = Command::new("sh").args(["-c", line]).output().expect("run sh");
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(!shown.is_empty(), "{line} prints nothing");
        assert!(!shown.contains("error_msg"), "{line}: {shown}");
    }
    demo.signal("INT");
    assert!(demo.wait_within(END_PATIENCE).success(), "Ctrl-C ends it cleanly");
}
