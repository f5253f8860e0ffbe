//! `stillgate-lab profile`: a profile of any program, as a flame graph or for other tools.

use crate::error::{Error, Result, stop_flag};
use crate::output;
use crate::profile::{self, Output, Subject};
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use stillgate_profiler::output::format::OutputFormat;

/// `stillgate-lab profile`.
#[derive(Debug, Args)]
pub(crate) struct Profile {
    /// What is counted
    #[arg(long, value_enum, default_value_t = ProfileKind::Cpu)]
    kind: ProfileKind,
    /// Samples per second of CPU time, for cpu
    #[arg(long, value_name = "N", default_value_t = 999, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    hz: u32,
    /// A running process in place of a command, for cpu
    #[arg(long, value_name = "PID", conflicts_with = "command")]
    pid: Option<u32>,
    /// How long --pid is profiled
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Output file; its name selects the format: .html, .svg, .pb.gz (pprof), .folded, .speedscope.json
    #[arg(short, long, value_name = "FILE", default_value = "profile.html")]
    output: PathBuf,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, value_name = "COMMAND", required_unless_present = "pid")]
    command: Vec<OsString>,
}

/// The kinds of profiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ProfileKind {
    /// CPU time, by perf
    Cpu,
    /// Instructions, by valgrind's callgrind: exact, and some fifty times slower
    Instructions,
}

pub(crate) fn run(arguments: &Profile) -> Result<u8> {
    let output = &arguments.output;
    let unwritable = |error| Error::new(format!("{}: the profile cannot be written: {error}", output.display()));
    // Checked before a minute is spent on a profile that cannot be written.
    let format = OutputFormat::of_name(output).map_err(|unnamed| Error::new(unnamed.to_string()))?;
    if format == OutputFormat::Trace {
        return Err("a trace needs the time of each sample, which is not kept here; name another form".into());
    }
    output::check_replaceable(output).map_err(unwritable)?;
    // Ctrl-C is for the program; its profile is still wanted.
    let stop = stop_flag()?;
    let shown = Output::Shown { stop: &stop };
    let taken = match (arguments.kind, arguments.pid) {
        (ProfileKind::Instructions, Some(_)) => {
            return Err(
                "--pid: callgrind can only count a program that it starts; give a command, or use --kind cpu".into()
            );
        }
        (ProfileKind::Instructions, None) => profile::instructions(&arguments.command, shown)?,
        (ProfileKind::Cpu, Some(pid)) => {
            let watched = Subject::Processes { pids: &[pid], seconds: arguments.seconds };
            profile::cpu(&watched, arguments.hz, shown)?
        }
        (ProfileKind::Cpu, None) => profile::cpu(&Subject::Command(&arguments.command), arguments.hz, shown)?,
    };
    let bytes = format.write(&taken, None).map_err(|error| Error::new(error.to_string()))?;
    output::replace_file(output, &bytes).map_err(unwritable)?;
    output::show(format_args!("{}: {}\n", output.display(), taken.notes.join("; ")))?;
    Ok(0)
}
