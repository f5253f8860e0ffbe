//! Other programs that read pprof's format: `go tool pprof`, and Python with Google's protobuf.

use serde_json::Value as Json;
use std::io::Write;
use std::process::{Command, Stdio};
use stillgate_profiler::output::pprof;
use stillgate_profiler::profile::Profile;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/read_pprof.py");

/// The output of `go tool pprof -top`.
#[track_caller]
pub(crate) fn go_top(profile: &Profile) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("profile.pb.gz");
    std::fs::write(&file, pprof::write(profile)).unwrap();
    stillgate_testkit::go_top(&file)
}

/// Python's results: `types`, `default`, `totals`, `samples`, `functions` with their sums, `labels`, `comments`. It has
/// checked every index.
#[track_caller]
pub(crate) fn python(profile: &Profile) -> Json {
    let mut python = Command::new("/usr/bin/python3");
    python.arg(SCRIPT).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = python.spawn().unwrap();
    child.stdin.take().unwrap().write_all(&pprof::write(profile)).unwrap();
    let printed = child.wait_with_output().unwrap();
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    let read: Json = serde_json::from_slice(&printed.stdout).unwrap();
    let totals: Vec<i64> = (0..profile.values.len()).map(|value| profile.total(value)).collect();
    assert_eq!(read["totals"], serde_json::json!(totals));
    assert_eq!(read["samples"], profile.samples.len());
    assert_eq!(read["default"], profile.values[profile.main].kind);
    assert_eq!(read["comments"], serde_json::json!(profile.notes));
    read
}
