//! Being asked to end: SIGINT, SIGTERM, or SIGHUP of a terminal that is closed, as a flag for what looks at it now and then, or as a stream for what waits.

use crate::error::{Error, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;
use std::fmt::Display;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use stillgate_rig::proc::Status;

/// What asks a command to end.
const SIGNALS: [i32; 2] = [SIGINT, SIGTERM];

/// Exit code of a process that was asked to end before it had anything to show, or a second time and so ends at once; what a shell
/// shows of one ended by SIGINT.
pub(crate) const EXIT_INTERRUPTED: u8 = 130;

/// True once the process was asked to end. Asked twice, it ends without finishing anything.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in SIGNALS {
        // In this order: the first signal finds the flag unset, and sets it.
        flag::register_conditional_shutdown(signal, EXIT_INTERRUPTED.into(), Arc::clone(&asked)).map_err(unheard)?;
        flag::register(signal, Arc::clone(&asked)).map_err(unheard)?;
    }
    // A terminal that is closed may send it several times, so a second one is no wish to end at once.
    if !is_ignored(SIGHUP) {
        flag::register(SIGHUP, Arc::clone(&asked)).map_err(unheard)?;
    }
    Ok(asked)
}

/// Readable once the process was asked to end.
pub(crate) fn stop_stream() -> Result<UnixStream> {
    let (ours, handlers) = UnixStream::pair().map_err(unheard)?;
    for signal in SIGNALS {
        let end = handlers.try_clone().map_err(unheard)?;
        pipe::register(signal, end).map_err(unheard)?;
    }
    Ok(ours)
}

/// Whether who started this process had it ignore a signal, as `nohup` does.
fn is_ignored(signal: i32) -> bool {
    Status::read("self").is_ok_and(|status| status.ignores(signal))
}

fn unheard(error: impl Display) -> Error {
    Error::new(format!("cannot listen for signals: {error}"))
}
