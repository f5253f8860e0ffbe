//! `stillgate demo`: the printed commands work when they are typed.

use crate::shared::STILLGATE;
use crate::shared::dashboard::chromium::{DESK, Page};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use stillgate_testkit::{END_PATIENCE, Process, eventually, require_tool};
use tempfile::TempDir;

/// Two demos that start at the same moment would find the same ports free.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A demo, once it has printed everything; with the commands to type.
fn start(words: &[&str]) -> (Process, Vec<String>, TempDir) {
    require_tool("curl", "curl");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(STILLGATE);
    let mut demo = Process::spawn("stillgate demo", command.arg("demo").args(words), &folder.path().join("log"));
    let mut lines = Vec::new();
    eventually("all lines to be printed", || {
        assert!(demo.ended().is_none(), "the demo ended");
        let log = demo.log();
        lines = log.lines().filter_map(|line| Some(line[line.find("curl ")?..].to_owned())).collect();
        log.contains("Ctrl-C ends it.\n")
    });
    (demo, lines, folder)
}

fn type_all(lines: &[String]) {
    for line in lines {
        let output = Command::new("sh").args(["-c", line]).output().expect("run sh");
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(!shown.is_empty(), "{line} prints nothing");
        assert!(!shown.contains("error_msg"), "{line}: {shown}");
    }
}

#[test]
fn the_printed_curl_lines_work() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut demo, lines, _folder) = start(&[]);
    assert!(lines.len() >= 4, "{lines:?}");
    type_all(&lines);
    demo.signal("INT");
    assert!(demo.wait_within(END_PATIENCE).success(), "Ctrl-C ends it cleanly");
}

#[test]
fn nothing_is_left_where_the_invitation_cannot_be_written() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let full = || std::fs::File::options().write(true).open("/dev/full").expect("a full device");
    let mut demo = Command::new(STILLGATE);
    demo.arg("demo").env("TMPDIR", temporary.path()).stdout(full()).stderr(full());
    assert_eq!(demo.status().expect("run it").code(), Some(1));
    assert_eq!(std::fs::read_dir(temporary.path()).expect("a folder").count(), 0);
}

#[test]
fn appliances_in_a_page_are_devices() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (demo, lines, _folder) = start(&["--devices"]);
    let address = demo.log().lines().find_map(|line| line.trim().strip_suffix("/appliances").map(str::to_owned));
    let mut page = Page::open(DESK);
    page.navigate(&format!("{}/appliances", address.expect("an address")));
    page.until("document.querySelectorAll('li').length === 10 && !document.querySelector('li.is-away')");
    let own: Vec<String> = lines.iter().filter(|line| line.contains("/v1/devices")).cloned().collect();
    assert!(own.len() >= 3, "{lines:?}");
    type_all(&own[..1]);
    page.until("document.querySelector('#lamp-1').classList.contains('is-on')");
    type_all(&lines);
    // The last line switches all on.
    page.until("document.querySelectorAll('li.is-on').length === 10");
    page.picture("appliances");
    page.assert_calm("the page of appliances");
}
