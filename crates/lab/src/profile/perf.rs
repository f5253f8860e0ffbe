//! Profiles of CPU time by `perf`: it samples the clock of each CPU while the program runs there, and follows frame
//! pointers. A program that was compiled without them has stacks that end early.

use super::{Frame, StackCollector};
use super::{Output, ProgramEnd, Subject, cut_short, tool};
use crate::error::{Error, Result};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// The file of samples.
const DATA: &str = "perf.data";

const MISSING: &str =
    "perf is not installed; install it (package linux-perf), or count instructions with --kind instructions";

/// Runs or watches the program; its samples are then in the folder.
pub(super) fn record(subject: &Subject<'_>, hz: u32, output: Output<'_>, folder: &Path) -> Result<ProgramEnd> {
    let data = folder.join(DATA);
    let mut record = Command::new("perf");
    // It would keep a copy of every program in the user's home; they still exist when their names are read.
    record.args(["record", "--quiet", "--no-buildid-cache", "--event", "cpu-clock", "--call-graph", "fp"]);
    record.args(["--freq", &hz.to_string()]).arg("--output").arg(&data);
    match subject {
        Subject::Command(words) => record.arg("--").args(*words),
        Subject::Processes { pids, seconds } => {
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            record.args(["--pid", &pids.join(","), "--", "sleep", &seconds.to_string()])
        }
    };
    let ran = tool(&mut record, output, MISSING)?;
    if !data.metadata().is_ok_and(|data| data.len() > 0) {
        return Err("perf recorded nothing; see its messages above".into());
    }
    Ok(ran)
}

/// Gathers the stacks in a folder; each value is nanoseconds.
pub(super) fn read(folder: &Path, output: Output<'_>) -> Result<StackCollector> {
    let mut script = Command::new("perf");
    script.args(["script", "--no-inline", "--fields", "comm,pid,tid,time,period,ip,sym,dso", "--input"]);
    let mut script = script
        .arg(folder.join(DATA))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // Protected from Ctrl-C: its output would be cut off, and look complete.
        .process_group(0)
        .spawn()
        .map_err(|error| Error::new(format!("cannot run perf script: {error}")))?;
    let mut gathered = StackCollector::default();
    let text = BufReader::new(script.stdout.take().expect("it was piped above"));
    let read = parse(text, &mut gathered, || output.is_stopped());
    if output.is_stopped() {
        // Fails only if it has ended.
        let _ = script.kill();
    }
    let ended = script.wait();
    read.and(ended.map(drop)).map_err(|error| Error::new(format!("perf script: {error}")))?;
    if output.is_stopped() { Err(cut_short()) } else { Ok(gathered) }
}

/// Parses the output of `perf script`: a line with the thread and the period, then a line for each frame, then an empty
/// line.
fn parse(text: impl BufRead, gathered: &mut StackCollector, is_stopped: impl Fn() -> bool) -> std::io::Result<()> {
    let (mut head, mut frames) = (None, Vec::new());
    for line in text.split(b'\n').take_while(|_| !is_stopped()) {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        if line.trim().is_empty() {
            add(gathered, head.take(), &mut frames);
        } else if line.starts_with(char::is_whitespace) && head.is_some() {
            frames.extend(frame(line.trim()));
        } else {
            add(gathered, head.take(), &mut frames);
            head = head_of(&line);
        }
    }
    add(gathered, head, &mut frames);
    Ok(())
}

fn add(gathered: &mut StackCollector, head: Option<(String, i64)>, frames: &mut Vec<Frame>) {
    if let Some((thread, period)) = head {
        gathered.add(&thread, frames, period);
    }
    frames.clear();
}

/// Parses `a name 12/13 25592.348148:    5025125` into the thread and the period.
fn head_of(line: &str) -> Option<(String, i64)> {
    let mut words = line.split_ascii_whitespace().rev();
    let period = words.next()?.trim_end_matches(':').parse().ok()?;
    let _time = words.next()?;
    let (_, tid) = words.next()?.split_once('/')?;
    let name: Vec<&str> = words.rev().collect();
    Some((format!("{} {tid}", name.join(" ")), period))
}

/// Parses `1153 leaf (/tmp/a)`; a name may contain spaces and brackets.
fn frame(line: &str) -> Option<Frame> {
    let (address, rest) = line.split_once(' ')?;
    let (symbol, file) = rest.rsplit_once('(')?;
    let (symbol, file) = (symbol.trim(), file.trim_end_matches(')'));
    let function = match symbol {
        "[unknown]" | "" => format!("{}+0x{address}", file.rsplit('/').next().unwrap_or(file)),
        name => name.to_owned(),
    };
    Some(Frame { function, file: file.to_owned(), line: 0 })
}

#[cfg(test)]
mod tests {
    use super::super::ValueMeaning;
    use super::*;
    use stillgate_profiler::output::folded;
    use stillgate_profiler::profile::ValueType;

    #[test]
    fn what_perf_prints_is_read() {
        let text = "a worker 12/13 25592.348148:    5025125 \n\
                    \t            1153 <a::B as c::D<(u8, u8)>>::leaf (/tmp/pt/a)\n\
                    \t            1177 half (/tmp/pt/a)\n\n\
                    swapper 0/0 25592.353156:    5025125 \n\
                    \tffffffff81 [unknown] ([kernel.kallsyms])\n\n\
                    a worker 12/13 25592.358181:    1000 \n\
                    \t            1153 <a::B as c::D<(u8, u8)>>::leaf (/tmp/pt/a)\n\
                    \t            1177 half (/tmp/pt/a)\n";
        let mut gathered = StackCollector::default();
        parse(text.as_bytes(), &mut gathered, || false).unwrap();
        let value = ValueType::new("cpu", "nanoseconds");
        let meaning =
            ValueMeaning { value, period: 1, is_sampled: true, time_ns: 0, duration_ns: 1, notes: Vec::new() };
        let profile = gathered.finish(meaning);
        let mut lines: Vec<String> = folded::write(&profile, 1).lines().map(str::to_owned).collect();
        lines.sort();
        let expected = [
            "a worker 13;half;<a::B as c::D<(u8, u8)>>::leaf 5026125",
            "swapper 0;[kernel.kallsyms]+0xffffffff81 5025125",
        ];
        assert_eq!(lines, expected);
        assert_eq!(profile.total(0), 3);
    }
}
