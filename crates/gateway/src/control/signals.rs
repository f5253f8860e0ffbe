//! The signals of a process that serves: those that it acts on, and those that it survives although they end others.
//!
//! They are taken before anything else is done: one that comes during the start waits until it can be acted on. What a process
//! inherits makes no difference: also where `nohup`, or a shell that starts it in the background, has SIGHUP or SIGINT
//! ignored, they mean what they always mean. A process that is started in its turn gets the system's actions again.

use rustix::process::Signal as Number;
use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals whose default action ends the process, although who sends them wants something else: timers and notifications that
/// a process inherits or is sent by mistake, and a file that may not grow any further (`ulimit -f`), which writing tells as well.
/// Beside them the end of a child, which cannot be waited for where it is ignored. SIGPIPE is ignored by every Rust program.
const SURVIVED: [Number; 8] = [
    Number::ALARM,
    Number::VTALARM,
    Number::PROF,
    Number::IO,
    Number::POWER,
    Number::STKFLT,
    Number::XFSZ,
    Number::CHILD,
];

/// Those that ask the process to end.
pub(crate) struct Ending {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
}

/// Those that a gateway acts on.
pub(crate) struct Signals {
    pub(crate) ending: Ending,
    pub(crate) hangup: Signal,
    pub(crate) reopen: Signal,
    pub(crate) upgrade: Signal,
}

impl Ending {
    /// From here on these signals are events. Needs a running runtime.
    pub(crate) fn take() -> io::Result<Ending> {
        survive(&SURVIVED)?;
        Ok(Ending {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
        })
    }

    /// The same of a process that has nothing to reload, to reopen or to upgrade: it is often signalled with those that have.
    pub(crate) fn take_alone() -> io::Result<Ending> {
        survive(&[Number::HUP, Number::USR1, Number::USR2])?;
        Ending::take()
    }

    /// The name of the next one.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.quit.recv() => "SIGQUIT",
        }
    }

    /// Waits for something, unless the process is asked to end: `None`.
    pub(crate) async fn unless_asked<T>(&mut self, last: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = last => Some(done),
            _ = self.next() => None,
        }
    }
}

impl Signals {
    /// From here on these signals are events. Needs a running runtime.
    pub(crate) fn take() -> io::Result<Signals> {
        Ok(Signals {
            ending: Ending::take()?,
            hangup: signal(SignalKind::hangup())?,
            reopen: signal(SignalKind::user_defined1())?,
            upgrade: signal(SignalKind::user_defined2())?,
        })
    }
}

/// A handler that does nothing. It stays when nobody listens, and unlike an ignored signal it is not inherited.
fn survive(signals: &[Number]) -> io::Result<()> {
    signals.iter().try_for_each(|number| signal(SignalKind::from_raw(number.as_raw())).map(drop))
}
