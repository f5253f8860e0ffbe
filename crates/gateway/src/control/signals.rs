//! The signals of a process that serves: those that it acts on, and those that it survives although their default action ends a
//! process.
//!
//! They are caught before anything else is done: one that arrives during the start waits until it can be acted on. Inherited
//! dispositions do not matter: where `nohup`, or a shell that starts it in the background, ignores SIGHUP or SIGINT, they still
//! have their usual effect. A process that it starts gets the system's default actions again.

use rustix::process::Signal as Number;
use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals whose default action ends the process, although their senders want something else: timers and notifications that a
/// process inherits or is sent by mistake, and the limit of a file's size (`ulimit -f`), which writing reports as well. The list
/// also has the end of a child, which cannot be waited for where it is ignored. SIGPIPE is ignored by every Rust program.
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

/// Signals that end the process.
pub(crate) struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
}

/// Signals that a gateway acts on.
pub(crate) struct Signals {
    pub(crate) ending: EndSignals,
    pub(crate) hangup: Signal,
    pub(crate) reopen: Signal,
    pub(crate) upgrade: Signal,
}

impl EndSignals {
    /// From here on these signals are events. Needs a running runtime.
    pub(crate) fn take() -> io::Result<EndSignals> {
        survive(&SURVIVED)?;
        Ok(EndSignals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
        })
    }

    /// The signals of a process that has nothing to reload, to reopen or to upgrade, but often receives signals meant for one that
    /// has.
    pub(crate) fn take_alone() -> io::Result<EndSignals> {
        survive(&[Number::HUP, Number::USR1, Number::USR2])?;
        EndSignals::take()
    }

    /// The name of the next one.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.quit.recv() => "SIGQUIT",
        }
    }

    /// Waits for something, unless the process is signalled to end: `None`.
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
            ending: EndSignals::take()?,
            hangup: signal(SignalKind::hangup())?,
            reopen: signal(SignalKind::user_defined1())?,
            upgrade: signal(SignalKind::user_defined2())?,
        })
    }
}

/// Installs a handler that does nothing. It stays when nothing listens, and unlike an ignored signal it is not inherited.
fn survive(signals: &[Number]) -> io::Result<()> {
    signals.iter().try_for_each(|number| signal(SignalKind::from_raw(number.as_raw())).map(drop))
}
