//! One file per command: its arguments, what it does with them, its exit code. The table below is all that knows them by name.
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
mod host_agent;
mod load;
mod man_pages;
mod measure;
mod nightly;
mod profile;
pub(crate) mod report;
mod respond;
mod tail;
mod verify;

use crate::error::Result;
use clap::Subcommand;

/// Commands whose exit code 2 means "undecided": wrong usage of them has another one.
pub(crate) const UNDECIDED: [&str; 3] = ["bisect", "compare", "nightly"];

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
    HostAgent: host_agent::HostAgent,
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
