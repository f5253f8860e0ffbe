//! Writes the output of a command to standard output.
//!
//! `println!` panics where the reader is gone (`stillgate check --schema | head -1`) or the disk is full.

use super::cli::EXIT_ERRORS;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// Writes all of it, or ends the process: quietly where the reader has closed the pipe, with a message otherwise.
pub(crate) fn show(text: impl Display) {
    show_or(text, || {});
}

/// [`show`] of a command that leaves something behind: `clean` removes it before the process ends.
#[expect(clippy::disallowed_methods, reason = "what has to be closed is closed by `clean`")]
pub(crate) fn show_or(text: impl Display, clean: impl FnOnce()) {
    let mut out = io::stdout().lock();
    let Err(error) = write!(out, "{text}").and_then(|()| out.flush()) else { return };
    clean();
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    // Where standard error cannot be written either, the exit code is all there is to say it.
    let _ = writeln!(io::stderr(), "stillgate: cannot write to standard output: {error}");
    std::process::exit(i32::from(EXIT_ERRORS));
}
