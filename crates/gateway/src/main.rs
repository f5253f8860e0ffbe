//! The binary `stillgate`: arguments, signals, wiring of the parts.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod access_log_writer;
mod acme;
mod admin;
mod allocator;
mod background;
mod cardinality;
mod check;
mod cli;
mod control;
mod deep_hosts;
mod demo;
mod demo_upstream;
mod environment;
mod explain;
mod explain_query;
mod explanation;
mod exporter;
mod health;
mod leaving;
mod logging;
mod metering;
mod names;
mod orders;
mod own_metrics;
mod process_stats;
mod reading;
mod reads;
mod reload;
mod replay;
mod request_head;
mod restart;
mod retired;
mod run;
mod signals;
mod source;
mod status;
mod stdout;
mod tls_material;
mod upgrade;
mod upstreams;
mod watch;

use clap::Parser;
use cli::{Cli, Command};
use std::process::ExitCode;

fn main() -> ExitCode {
    let code = match Cli::parse().command {
        Command::Run(arguments) => run::run(arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Demo => demo::run(),
        Command::Exporter(arguments) => exporter::run(&arguments),
        Command::Upgrade(arguments) => upgrade::run(arguments),
    };
    ExitCode::from(code)
}
