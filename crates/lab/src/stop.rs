//! Requests to stop: SIGINT, SIGTERM, or SIGHUP of a closed terminal, as a flag to poll, or as a stream to wait for.

use crate::error::{Error, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;
use std::fmt::Display;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use stillgate_rig::proc::Status;

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
