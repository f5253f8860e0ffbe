//! The errors that end a command: a message for its reader, and the exit code.

use std::fmt;

/// Exit code of wrong usage and of failures.
pub(crate) const EXIT_FAILED: u8 = 2;

pub(crate) type Result<T = (), E = Error> = std::result::Result<T, E>;

/// A message that says what, where and what to do, with an exit code.
#[derive(Debug)]
pub(crate) struct Error {
    message: String,
    pub(crate) exit: u8,
}

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Error {
        Error { message: message.into(), exit: EXIT_FAILED }
    }

    /// Replaces the exit code.
    pub(crate) fn exit(self, exit: u8) -> Error {
        Error { exit, ..self }
    }

    /// Puts `what` before the message.
    pub(crate) fn context(self, what: impl fmt::Display) -> Error {
        Error { message: format!("{what}: {}", self.message), exit: self.exit }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl From<stillgate_rig::Error> for Error {
    fn from(error: stillgate_rig::Error) -> Error {
        Error::new(error.to_string())
    }
}

impl From<String> for Error {
    fn from(message: String) -> Error {
        Error::new(message)
    }
}

impl From<&str> for Error {
    fn from(message: &str) -> Error {
        Error::new(message)
    }
}
