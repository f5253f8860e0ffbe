//! `stillgate-lab completions`: completion of commands and options for a shell.

use super::Cli;
use crate::error::{Error, Result};
use crate::output;
use clap::{Args, CommandFactory as _};
use clap_complete::{Shell, generate};

/// `stillgate-lab completions`.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn run(arguments: &Completions) -> Result<u8> {
    let mut text = Vec::new();
    generate(arguments.shell, &mut Cli::command(), "stillgate-lab", &mut text);
    let text = String::from_utf8(text).map_err(|error| Error::new(format!("completions: {error}")))?;
    output::show(text)?;
    Ok(0)
}
