//! The binary `stillgate`: arguments, signals, wiring of the parts.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod admin;
mod commands;
mod configuration;
mod control;
mod upgrade;

use commands::cli::{Cli, Command, LuaCommand, StoreCommand};
use std::process::ExitCode;

fn main() -> ExitCode {
    let code = match Cli::read().command {
        Command::Run(arguments) => commands::run::run(arguments),
        Command::Check(arguments) => commands::check::run(&arguments),
        Command::Explain(arguments) => commands::explain::run(&arguments),
        Command::Demo(demo) => commands::demo::run(demo.devices),
        Command::Proxy(arguments) => commands::proxy::run(arguments),
        Command::Init(arguments) => commands::init::run(arguments),
        Command::Completions { shell } => commands::cli::completions(shell),
        Command::ManPages { folder } => commands::cli::man_pages(&folder),
        Command::Exporter(arguments) => commands::exporter::run(&arguments),
        Command::Import(arguments) => commands::import::run(&arguments),
        Command::Export(arguments) => commands::transfer::export(&arguments),
        Command::Diff(arguments) => commands::transfer::diff(&arguments),
        Command::Apply(arguments) => commands::transfer::apply(&arguments),
        Command::Profile(arguments) => commands::profile::run(&arguments),
        Command::Status(arguments) => commands::status::status(&arguments),
        Command::Slow(arguments) => commands::status::slow(&arguments),
        Command::Top(arguments) => commands::status::top(&arguments),
        Command::Lua(LuaCommand::Check(arguments)) => commands::lua::check(&arguments),
        Command::Store(StoreCommand::Backup(arguments)) => commands::transfer::backup(&arguments),
        Command::Upgrade(arguments) => commands::upgrade::run(arguments),
    };
    ExitCode::from(code)
}
