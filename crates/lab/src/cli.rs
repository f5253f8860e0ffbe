//! The command line: the commands of `stillgate-lab`, and how wrong usage ends.
//!
//! The arguments of a command are defined in its file below `commands`; the kinds of values they share, in [`values`];
//! the form in which result files keep them, in [`typed`].

pub(crate) mod typed;
pub(crate) mod values;

use crate::commands;
use crate::error::EXIT_FAILED;
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// Exit code for wrong usage (`EX_USAGE` of sysexits.h) for commands whose 2 means "undecided", after which a pipeline
/// may measure again.
pub(crate) const EXIT_USAGE: u8 = 64;

/// The laboratory for HTTP gateways: load that keeps its schedule, experiments, and reports.
///
/// It serves any gateway: a target is an address, or a command that starts one.
#[derive(Debug, Parser)]
#[command(name = "stillgate-lab", version, arg_required_else_help = true, max_term_width = 100)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Find the commit that changed a noisy measurement
    Bisect(Box<commands::bisect::Bisect>),
    /// Compare two programs and report which is slower, with error bounds
    Compare(Box<commands::compare::Compare>),
    /// Simulate devices with one connection each, and check what becomes of messages to them
    Devices(Box<commands::devices::DevicesArguments>),
    /// Show why one build costs more than another: profiles of time and of instructions, and their differences
    Explain(Box<commands::explain::Explain>),
    /// Show what changed when, from a store of nightly measurements
    History(commands::history::History),
    /// Serve `--hosts` of a laboratory on another machine
    #[command(hide = true)]
    HostAgent,
    /// Put load on a server and report what its clients would see
    Load(Box<commands::load::LoadArguments>),
    /// Measure one figure of a server, for bisect and nightly
    Measure(Box<commands::measure::Measure>),
    /// Measure today's commit and compare it with yesterday's and the release
    Nightly(Box<commands::nightly::Nightly>),
    /// Take a profile of any program: its CPU time by perf, or its instructions by callgrind
    Profile(commands::profile::Profile),
    /// Make one HTML page of result files
    Report(commands::report::Report),
    /// Answer HTTP requests as fast as possible, or after a delay of a known distribution
    Respond(commands::respond::Respond),
    /// Measure how scrapes of its metrics affect a gateway's slowest requests
    Tail(Box<commands::tail::Tail>),
    /// Recompute the analysis of result files from their raw data, and compare
    Verify(commands::verify::Verify),
}

impl Cli {
    /// Parses the process's arguments; on failure the text is already shown, and the exit code is returned.
    pub(crate) fn from_process() -> Result<Cli, ExitCode> {
        let arguments: Vec<OsString> = std::env::args_os().collect();
        Cli::try_parse_from(&arguments).map_err(|error| {
            // Output may be closed; the exit code still reports it.
            let _ = error.print();
            match (error.use_stderr(), arguments.get(1)) {
                (false, _) => ExitCode::SUCCESS,
                (true, Some(command)) if ["bisect", "compare", "nightly"].iter().any(|has| command == has) => {
                    ExitCode::from(EXIT_USAGE)
                }
                (true, _) => ExitCode::from(EXIT_FAILED),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }
}
