//! One profile at a time: its owner, and the signal to stop. Continuous work is done between two profiles.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

static RUNNING: Mutex<Option<RunningProfile>> = Mutex::new(None);

/// A profile in progress.
#[derive(Debug, Clone)]
struct RunningProfile {
    what: &'static str,
    who: String,
    since: Instant,
    wanted: Duration,
}

/// Why none can be taken now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Busy {
    /// The profile in progress.
    pub what: &'static str,
    /// Its owner.
    pub who: String,
    /// Its duration so far.
    pub age: Duration,
    /// Its intended duration.
    pub wanted: Duration,
}

impl fmt::Display for Busy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Busy { what, who, age, wanted } = self;
        let (age, wanted) = (age.as_secs(), wanted.as_secs());
        write!(formatter, "{who} has been taking a {what} profile for {age} s, of {wanted} s; one is taken at a time")
    }
}

impl std::error::Error for Busy {}

/// The right to take a profile, until it is dropped.
#[derive(Debug)]
pub struct ProfileSession(());

impl ProfileSession {
    /// Takes the right, unless another profile has it.
    pub fn begin(what: &'static str, who: &str, wanted: Duration) -> Result<ProfileSession, Busy> {
        let mut running = running();
        if let Some(RunningProfile { what, who, since, wanted }) = running.clone() {
            return Err(Busy { what, who, age: since.elapsed(), wanted });
        }
        *running = Some(RunningProfile { what, who: who.to_owned(), since: Instant::now(), wanted });
        Ok(ProfileSession(()))
    }
}

/// Does `work` unless a profile is in progress; none begins meanwhile.
pub(crate) fn between<T>(work: impl FnOnce() -> T) -> Option<T> {
    let running = running();
    let done = running.is_none().then(work);
    drop(running);
    done
}

impl Drop for ProfileSession {
    fn drop(&mut self) {
        *running() = None;
    }
}

fn running() -> MutexGuard<'static, Option<RunningProfile>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stops a profile early. The samples until then still make a profile.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Requests the stop.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the stop was requested.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
