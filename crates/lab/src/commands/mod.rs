//! The command line of `stillgate-lab`, and how wrong usage ends. One file per command: its arguments, what it does with them, its
//! exit code. The table below is all that knows them by name.
//!
//! Each has `run(&Arguments) -> Result<u8>`: the exit code if the command was carried out, an error if it could not be.

mod bisect;
mod builds;
mod churn;
mod compare;
mod completions;
mod connections;
mod devices;
mod explain;
mod history;
mod load;
mod man_pages;
mod measure;
mod nightly;
mod profile;
pub(crate) mod report;
mod respond;
mod tail;
mod verify;

use crate::error::{EXIT_FAILED, EXIT_USAGE, Result};
use crate::hosts;
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// Commands whose exit code 2 means "undecided": wrong usage of them has another one.
const UNDECIDED: [&str; 3] = ["bisect", "compare", "nightly"];

macro_rules! commands {
    ($($(#[$about:meta])* $name:ident: $module:ident::$arguments:ident,)*) => {
        /// The commands.
        #[derive(Debug, Subcommand)]
        pub(crate) enum Command {
            $($(#[$about])* $name(Box<$module::$arguments>),)*
        }

        impl Command {
            /// Carries it out; returns its exit code.
            pub(crate) fn run(&self) -> Result<u8> {
                match self {
                    $(Command::$name(arguments) => $module::run(arguments),)*
                }
            }
        }
    };
}

commands! {
    /// Find the commit that changed a noisy measurement
    Bisect: bisect::Bisect,
    /// Show what changes beside the traffic cost it: reloads, writes, upgrades, readers
    Churn: churn::Churn,
    /// Compare two programs and report which is slower, with error bounds
    Compare: compare::Compare,
    /// Print completion of commands and options for a shell
    Completions: completions::Completions,
    /// Show what an idle connection costs a server, and a message over it
    Connections: connections::Connections,
    /// Simulate devices with one connection each, and check what becomes of messages to them
    Devices: devices::DevicesArguments,
    /// Show why one build costs more than another: profiles of time and of instructions, and their differences
    Explain: explain::Explain,
    /// Show what changed when, from a store of nightly measurements
    History: history::History,
    /// Serve `--hosts` of a laboratory on another machine
    #[command(hide = true)]
    HostAgent: hosts::HostAgent,
    /// Put load on a server and report what its clients would see
    Load: load::LoadArguments,
    /// Write a man page of each command into a folder
    #[command(hide = true)]
    ManPages: man_pages::ManPages,
    /// Measure one figure of a server, for bisect and nightly
    Measure: measure::Measure,
    /// Measure today's commit and compare it with yesterday's and the release
    Nightly: nightly::Nightly,
    /// Take a profile of any program: its CPU time by perf, or its instructions by callgrind
    Profile: profile::Profile,
    /// Make one HTML page of result files
    Report: report::Report,
    /// Answer HTTP requests as fast as possible, or after a delay of a known distribution
    Respond: respond::Respond,
    /// Measure how scrapes of its metrics affect a gateway's slowest requests
    Tail: tail::Tail,
    /// Recompute the analysis of result files from their raw data, and compare
    Verify: verify::Verify,
}

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

impl Cli {
    /// Parses the process's arguments; on failure the text is already shown, and the exit code is returned.
    pub(crate) fn from_process() -> Result<Cli, ExitCode> {
        let arguments: Vec<OsString> = std::env::args_os().collect();
        Cli::try_parse_from(&arguments).map_err(|error| {
            // Output may be closed; the exit code still reports it.
            let _ = error.print();
            match (error.use_stderr(), arguments.get(1)) {
                (false, _) => ExitCode::SUCCESS,
                (true, Some(command)) if UNDECIDED.iter().any(|has| command == has) => ExitCode::from(EXIT_USAGE),
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
