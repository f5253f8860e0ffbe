//! Writes the output of a command to standard output.
//!
//! `println!` panics if the reader has gone (`stillgate-lab load … | head -1`) or the disk is full.

use crate::error::{Error, Result};
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// Names standard output where a file is expected.
pub(crate) const STANDARD_OUTPUT: &str = "-";

/// Writes all of it. A closed pipe is not an error.
pub(crate) fn show(text: impl Display) -> Result {
    let mut out = io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::new(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}
