//! Comparisons of times, on a machine that may be busy with something else.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

/// How often a comparison of times may fail before it counts as wrong. A machine that stops for a moment cannot be distinguished
/// from the process that the test has stopped; a wrong measurement fails every time.
const ATTEMPTS: usize = 3;

/// Runs a comparison of times, again if the machine may have interfered. Where it fails every time on a machine that is too busy to
/// wake a sleeper in time, nothing can be said: the test passes with a note. The nightly run, which has the machine to itself,
/// takes no excuse.
///
/// # Panics
/// When `check` panics each time, and the machine keeps time or the run is the nightly.
pub fn attempt(check: impl Fn()) {
    for attempt in 1..=ATTEMPTS {
        let Err(panic) = catch_unwind(AssertUnwindSafe(&check)) else { return };
        if attempt == ATTEMPTS {
            if !crate::is_nightly() && !keeps_time() {
                println!("this machine does not keep time at the moment: nothing is said about what failed above");
                return;
            }
            resume_unwind(panic);
        }
    }
}

/// Whether the machine wakes a sleeper in time now. If not, it is too busy for tests that compare times.
pub fn keeps_time() -> bool {
    const NAP: Duration = Duration::from_millis(5);
    (0..40).all(|_| {
        let since = Instant::now();
        std::thread::sleep(NAP);
        since.elapsed() < 2 * NAP
    })
}
