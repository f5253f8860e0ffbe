//! Counts the instructions that a program executes in each function, by valgrind's callgrind. It counts every one, so
//! two runs that do the same have the same profile; the program takes some fifty times as long. Instructions in the
//! kernel are not counted.
//!
//! Callgrind records callers, not stacks. It is configured to separate functions by their callers, which gives a stack
//! of that depth.

use super::{Frame, StackCollector};
use super::{Output, ProgramEnd, tool};
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::Command;
use stillgate_rig::callgrind;

const MISSING: &str = "valgrind is not installed; install it (package valgrind)";

/// Number of callers by which functions are separated. Frames further out are missing in a stack; more take more
/// memory.
pub(super) const CALLERS: usize = 30;

/// Makes counts have stacks, in one file per thread.
pub(super) fn options() -> [String; 3] {
    ["--separate-threads=yes".to_owned(), format!("--separate-callers={CALLERS}"), "--separate-recs=1".to_owned()]
}

/// Runs the program; its counts are then in the folder.
pub(super) fn run(words: &[OsString], output: Output<'_>, folder: &Path) -> Result<ProgramEnd> {
    // No debugger connects: its pipes would stay behind where a run is cut short.
    let options: Vec<String> = ["--vgdb=no".to_owned()].into_iter().chain(options()).collect();
    let [valgrind, arguments @ ..] = &callgrind::words(folder, &options)[..] else { return Err(MISSING.into()) };
    tool(Command::new(valgrind).args(arguments).arg("--").args(words), output, MISSING)
}

/// Gathers the stacks of all counts in a folder; each value is instructions.
pub(super) fn read(folder: &Path) -> Result<StackCollector> {
    let mut gathered = StackCollector::default();
    let unreadable = |error: io::Error| Error::new(format!("cannot read callgrind's counts: {error}"));
    for path in callgrind::files(folder).map_err(unreadable)? {
        let counts = parse(BufReader::new(File::open(&path).map_err(unreadable)?)).map_err(unreadable)?;
        counts.gather(&mut gathered);
    }
    Ok(gathered)
}

/// A callgrind file of one thread.
#[derive(Debug, Default)]
struct Counts {
    pid: String,
    thread: String,
    /// Names by their number, for each kind: files and functions.
    names: [HashMap<String, String>; 2],
    /// The file of each function.
    files: HashMap<String, String>,
    /// By function with its callers, and line.
    own: HashMap<(String, i64), i64>,
}

/// Reads a file in callgrind's format, as far as it is needed: the self costs of functions.
fn parse(text: impl BufRead) -> io::Result<Counts> {
    let mut counts = Counts::default();
    let (mut function, mut line_number, mut is_call, mut is_inlined) = (String::new(), 0_i64, false, false);
    let mut file = String::new();
    for line in text.split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end();
        let Some(first) = line.bytes().next() else { continue };
        if first.is_ascii_digit() || matches!(first, b'+' | b'-' | b'*') {
            let mut words = line.split(' ');
            line_number = position(words.next().unwrap_or_default(), line_number);
            // The cost of a call is part of the called function's own cost.
            if !std::mem::take(&mut is_call) {
                let cost: i64 = words.next().and_then(|cost| cost.parse().ok()).unwrap_or(0);
                let line = if is_inlined { 0 } else { line_number };
                *counts.own.entry((function.clone(), line)).or_default() += cost;
            }
            continue;
        }
        let Some((key, value)) = line.split_once('=').or_else(|| line.split_once(": ")) else { continue };
        match key {
            "pid" => counts.pid = value.to_owned(),
            "thread" => counts.thread = value.to_owned(),
            "fl" => (file, is_inlined) = (counts.name(0, value), false),
            "fi" | "fe" => is_inlined = counts.name(0, value) != file,
            "cfi" | "cfl" => drop(counts.name(0, value)),
            "cfn" => drop(counts.name(1, value)),
            "fn" => {
                (function, is_inlined) = (counts.name(1, value), false);
                let own = function.split('\'').next().unwrap_or_default();
                counts.files.entry(own.to_owned()).or_insert_with(|| file.clone());
            }
            "calls" => is_call = true,
            _ => {}
        }
    }
    Ok(counts)
}

/// `+3` and `-1` are relative to the last one, `*` repeats it.
fn position(text: &str, last: i64) -> i64 {
    match text.as_bytes().first() {
        Some(b'*') => last,
        Some(b'+' | b'-') => last + text.parse::<i64>().unwrap_or(0),
        _ => text.parse().unwrap_or(0),
    }
}

impl Counts {
    /// `(12) name` assigns a number to a name, `(12)` refers to it.
    fn name(&mut self, kind: usize, text: &str) -> String {
        let Some((number, name)) = text.strip_prefix('(').and_then(|rest| rest.split_once(')')) else {
            return text.to_owned();
        };
        if let Some(name) = name.strip_prefix(' ') {
            self.names[kind].insert(number.to_owned(), name.to_owned());
        }
        self.names[kind].get(number).cloned().unwrap_or_default()
    }

    fn gather(&self, gathered: &mut StackCollector) {
        let thread = format!("{} thread {}", self.pid, self.thread);
        for ((function, line), cost) in self.own.iter().filter(|(_, cost)| **cost > 0) {
            let frames: Vec<Frame> = function
                .split('\'')
                .enumerate()
                .map(|(depth, name)| Frame {
                    function: name.to_owned(),
                    file: self.files.get(name).cloned().unwrap_or_default(),
                    line: if depth == 0 { *line } else { 0 },
                })
                .collect();
            gathered.add(&thread, &frames, *cost);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_costs_are_read_and_those_of_calls_left_to_who_is_called() {
        let text = "# callgrind format\nversion: 1\npid: 12\nthread: 1\npositions: line\nevents: Ir\n\n\
                    fl=(1) a.c\nfn=(1) half'main\n3 5\ncfn=(2) leaf'half'main\ncalls=6 2\n+0 900\n* 1\n\
                    fi=(2) inlined.h\n+40 7\nfe=(1)\n-40 2\n\n\
                    fn=(2)\n2 600\n+1 300\n\ntotals: 915\n";
        let counts = parse(text.as_bytes()).unwrap();
        assert_eq!((&*counts.pid, &*counts.thread), ("12", "1"));
        let of = |function: &str, line| counts.own.get(&(function.to_owned(), line)).copied();
        assert_eq!(of("half'main", 3), Some(8));
        assert_eq!(of("half'main", 0), Some(7), "of another file, whose lines are not this one's");
        assert_eq!(of("leaf'half'main", 2), Some(600));
        assert_eq!(of("leaf'half'main", 3), Some(300));
        assert_eq!(counts.own.values().sum::<i64>(), 915);
        assert_eq!(counts.files["leaf"], "a.c");
    }
}
