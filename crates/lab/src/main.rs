//! `stillgate-lab`: load, experiments and reports for HTTP gateways.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod atomic_file;
mod bisect;
mod cli;
mod commands;
mod compare;
mod devices;
mod display;
mod environment;
mod error;
mod explain;
mod git;
mod history;
mod hosts;
mod nightly;
mod profile;
mod report;
mod responder;
mod result;
mod scraper;
mod stdout;
mod stop;
mod store;
mod tail;
mod target;

use cli::{Cli, Command};
use std::process::ExitCode;

fn main() -> ExitCode {
    let command = match Cli::from_process() {
        Ok(cli) => cli.command,
        Err(code) => return code,
    };
    let done = match command {
        Command::Bisect(arguments) => commands::bisect::run(&arguments),
        Command::Compare(arguments) => commands::compare::run(&arguments),
        Command::Devices(arguments) => commands::devices::run(&arguments),
        Command::Explain(arguments) => commands::explain::run(&arguments),
        Command::History(arguments) => commands::history::run(&arguments),
        Command::HostAgent => commands::host_agent::run(),
        Command::Load(arguments) => commands::load::run(&arguments),
        Command::Measure(arguments) => commands::measure::run(&arguments),
        Command::Nightly(arguments) => commands::nightly::run(&arguments),
        Command::Profile(arguments) => commands::profile::run(&arguments),
        Command::Report(arguments) => commands::report::run(&arguments),
        Command::Respond(arguments) => commands::respond::run(&arguments),
        Command::Tail(arguments) => commands::tail::run(&arguments),
        Command::Verify(arguments) => commands::verify::run(&arguments),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("stillgate-lab: {}", report::plain(&error.to_string()));
            ExitCode::from(error.exit)
        }
    }
}
