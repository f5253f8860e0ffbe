//! `stillgate-lab`: load, experiments and reports for HTTP gateways.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bisect;
mod churn;
mod client;
pub(crate) mod command_line;
mod commands;
mod compare;
mod connections;
mod devices;
mod display;
mod environment;
mod error;
mod explain;
mod figures;
mod git;
mod history;
mod hosts;
mod nightly;
mod output;
mod profile;
mod report;
mod responder;
mod result;
mod scraper;
mod store;
mod suite;
mod tail;
mod target;
mod websocket;

use commands::Cli;
use std::process::ExitCode;

fn main() -> ExitCode {
    let command = match Cli::from_process() {
        Ok(cli) => cli.command,
        Err(code) => return code,
    };
    match command.run() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("stillgate-lab: {}", report::plain(&error.to_string()));
            ExitCode::from(error.exit)
        }
    }
}
