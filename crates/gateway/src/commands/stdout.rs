//! Writes the output of a command to standard output.
//!
//! `println!` panics where the reader is gone (`stillgate check --schema | head -1`) or the disk is full.

use super::cli::EXIT_ERRORS;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// Writes all of it, or ends the process: quietly where the reader has closed the pipe, with a message otherwise.
#[expect(clippy::disallowed_methods, reason = "the commands that show something hold nothing that has to be closed")]
pub(crate) fn show(text: impl Display) {
    let mut out = io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            eprintln!("stillgate: cannot write to standard output: {error}");
            std::process::exit(i32::from(EXIT_ERRORS));
        }
    }
}
