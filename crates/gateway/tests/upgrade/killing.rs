//! New processes that are killed soon after their start.

use crate::upgrade::{Upgraded, await_no_children, children, signal, threads};
use std::thread::sleep;
use std::time::{Duration, Instant};
use stillgate_testkit::{END_PATIENCE, eventually, eventually_within};

/// How long the new process serves before the old one leaves.
pub(crate) const PROBATION: Duration = Duration::from_secs(1);

/// How often the test is begun again on a machine that stands still for too long.
pub(crate) const TRIES_MAX: usize = 5;

/// When the new process is killed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum When {
    /// So long after its start, wherever it is by then.
    After(Duration),
    /// As soon as it accepts connections.
    Accepting,
    /// So long after that, well before the old process leaves.
    Serving(Duration),
}

/// What it is called while it runs the command that it was started with.
pub(crate) fn is_old(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "stillgate-old")
}

/// Has the old process start a new one, and kills that. False: this took so long that the old one may have left by now, and
/// nothing was killed.
pub(crate) fn kill_successor(upgraded: &Upgraded, when: When) -> bool {
    let pid = upgraded.gateway.pid();
    // The probation begins later than this.
    let mut before = Instant::now();
    signal(pid, "USR2");
    eventually("the new process", || children(pid).len() == 1);
    let new = children(pid)[0];
    let mut accepts = || {
        eventually("its workers", || {
            let now = Instant::now();
            let has_workers = !threads(new, "worker-").is_empty();
            if !has_workers {
                before = now;
            }
            has_workers
        });
    };
    match when {
        When::After(time) => sleep(time),
        When::Accepting => accepts(),
        When::Serving(time) => {
            accepts();
            sleep(time);
        }
    }
    // Stopped, the old process cannot confirm the new one between the look at the clock and the kill.
    signal(pid, "STOP");
    eventually("the old one to stop", || all_are(pid, 'T'));
    let is_early = before.elapsed() < PROBATION;
    if is_early {
        signal(new, "KILL");
        // From here on the old one sees its end, however late that looks.
        eventually_within(END_PATIENCE, "the end of the new one", || all_are(new, 'Z'));
    }
    signal(pid, "CONT");
    if is_early {
        await_no_children(pid);
    }
    is_early
}

/// Whether all threads of a process are in this state.
pub(crate) fn all_are(pid: u32, state: char) -> bool {
    threads(pid, "").iter().all(|stat| stat.starts_with(state))
}
