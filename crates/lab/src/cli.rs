//! The command line of `stillgate-lab`, and how wrong usage ends.
//!
//! The commands and their arguments are in `commands`; the kinds of values they share, and the form in which
//! result files keep them, in `command_line`.

use crate::commands::{Command, UNDECIDED};
use crate::error::{EXIT_FAILED, EXIT_USAGE};
use clap::Parser;
use std::ffi::OsString;
use std::process::ExitCode;

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
