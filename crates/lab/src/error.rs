//! What ends a command: errors, with a message for its reader and the exit code; and requests to stop (SIGINT, SIGTERM, or
//! SIGHUP of a closed terminal), as a flag to poll, or as a stream to wait for.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;
use std::fmt::{self, Display};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use stillgate_rig::proc::Status;

/// Exit code of wrong usage and of failures.
pub(crate) const EXIT_FAILED: u8 = 2;

/// Exit code for wrong usage (`EX_USAGE` of sysexits.h) for commands whose 2 means "undecided", after which a pipeline
/// may measure again.
pub(crate) const EXIT_USAGE: u8 = 64;

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

/// The signals that stop a command.
const SIGNALS: [i32; 2] = [SIGINT, SIGTERM];

/// Exit code of a process that was stopped before it had any result, or stopped a second time and so ended at once; a
/// shell shows the same for one ended by SIGINT.
pub(crate) const EXIT_INTERRUPTED: u8 = 130;

/// True once the process was asked to stop. A second request ends it without finishing anything.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in SIGNALS {
        // In this order: the first signal finds the flag unset, and sets it.
        flag::register_conditional_shutdown(signal, EXIT_INTERRUPTED.into(), Arc::clone(&asked)).map_err(unheard)?;
        flag::register(signal, Arc::clone(&asked)).map_err(unheard)?;
    }
    // A closed terminal may send it several times, so a second one does not mean to end at once.
    if !is_ignored(SIGHUP) {
        flag::register(SIGHUP, Arc::clone(&asked)).map_err(unheard)?;
    }
    Ok(asked)
}

/// Readable once the process was asked to stop.
pub(crate) fn stop_stream() -> Result<UnixStream> {
    let (ours, handlers) = UnixStream::pair().map_err(unheard)?;
    for signal in SIGNALS {
        let end = handlers.try_clone().map_err(unheard)?;
        pipe::register(signal, end).map_err(unheard)?;
    }
    Ok(ours)
}

/// Whether the parent of this process made it ignore a signal, as `nohup` does.
fn is_ignored(signal: i32) -> bool {
    Status::read("self").is_ok_and(|status| status.ignores(signal))
}

fn unheard(error: impl Display) -> Error {
    Error::new(format!("cannot listen for signals: {error}"))
}
