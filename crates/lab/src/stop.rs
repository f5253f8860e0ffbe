//! Being asked to end: SIGINT and SIGTERM, as a flag for what looks at it now and then, or as a stream for what waits.

use crate::error::{Error, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;
use std::fmt::Display;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What asks a command to end.
const SIGNALS: [i32; 2] = [SIGINT, SIGTERM];

/// Exit code of a process that is asked a second time and so ends at once; what a shell shows of one ended by SIGINT.
const EXIT_INTERRUPTED: i32 = 130;

/// True once the process was asked to end. Asked twice, it ends without finishing anything.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in SIGNALS {
        // In this order: the first signal finds the flag unset, and sets it.
        flag::register_conditional_shutdown(signal, EXIT_INTERRUPTED, Arc::clone(&asked)).map_err(unheard)?;
        flag::register(signal, Arc::clone(&asked)).map_err(unheard)?;
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

fn unheard(error: impl Display) -> Error {
    Error::new(format!("cannot listen for SIGINT and SIGTERM: {error}"))
}
