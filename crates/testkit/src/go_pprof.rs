//! `go tool pprof`: an independent reader of profiles.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::{PATIENCE, eventually};

/// The output of `-top` for a file.
///
/// # Panics
/// If it cannot read the file, or `go` is missing.
#[must_use]
#[track_caller]
pub fn go_top(file: &Path) -> String {
    let printed = Command::new("go").args(["tool", "pprof", "-nodefraction=0", "-top"]).arg(file).output();
    let printed = printed.expect("there is a `go`");
    let (text, error) = (String::from_utf8_lossy(&printed.stdout), String::from_utf8_lossy(&printed.stderr));
    assert!(printed.status.success(), "{}: {error}", file.display());
    text.into_owned()
}

/// Ends with its owner.
struct PprofServer(Child);

impl Drop for PprofServer {
    fn drop(&mut self) {
        // It may have ended by itself, which the test has then reported.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The pages `top` and `flamegraph` that `-http` serves for a file.
///
/// # Panics
/// If it serves none.
#[must_use]
#[track_caller]
pub fn go_pages(file: &Path) -> [String; 2] {
    // Without a port it chooses one. `go` finds the program, but does not run it: ending `go` would leave its child.
    let tool = Command::new("go").args(["tool", "-n", "pprof"]).output().expect("there is a `go`");
    let tool = String::from_utf8(tool.stdout).expect("a path");
    let mut command = Command::new(tool.trim());
    command.args(["-http=127.0.0.1:", "-no_browser"]).arg(file);
    command.env("PPROF_TMPDIR", file.parent().expect("in a folder")).stderr(Stdio::piped());
    let mut server = PprofServer(command.spawn().expect("it starts"));
    let lines = BufReader::new(server.0.stderr.take().expect("it is piped")).lines();
    let mut told = Vec::new();
    let address = lines.map_while(Result::ok).find_map(|line| {
        let address = line.split_once("http://").map(|(_, address)| address.trim_end_matches('/').to_owned());
        told.push(line);
        address
    });
    let address = address.unwrap_or_else(|| panic!("{}: {told:?}", file.display()));
    // It prints this before it listens.
    eventually("it to listen", || TcpStream::connect(&address).is_ok());
    ["top", "flamegraph"].map(|page| {
        let mut stream = TcpStream::connect(&address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        write!(stream, "GET /ui/{page} HTTP/1.0\r\nHost: {address}\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        assert!(answer.starts_with("HTTP/1.0 200"), "{}, {page}: {answer}", file.display());
        answer
    })
}
