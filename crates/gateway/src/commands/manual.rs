//! `stillgate completions` and `stillgate man-pages`: what packages bring along, made of the definition of the commands.

use super::cli::{Cli, EXIT_ERRORS, EXIT_GOOD};
use super::stdout::show;
use clap::CommandFactory as _;
use clap_complete::{Shell, generate};
use std::path::Path;

/// Prints completion of commands and options for a shell; returns the exit code.
pub(crate) fn completions(shell: Shell) -> u8 {
    let mut text = Vec::new();
    generate(shell, &mut Cli::command(), "stillgate", &mut text);
    show(String::from_utf8_lossy(&text));
    EXIT_GOOD
}

/// Writes a page of each command into a folder; returns the exit code.
pub(crate) fn man_pages(folder: &Path) -> u8 {
    match clap_mangen::generate_to(Cli::command(), folder) {
        Ok(()) => EXIT_GOOD,
        Err(error) => {
            eprintln!("stillgate: cannot write into {}: {error}", folder.display());
            EXIT_ERRORS
        }
    }
}
