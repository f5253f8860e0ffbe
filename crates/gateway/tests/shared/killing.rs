//! New processes that are killed soon after their start.

use crate::shared::upgrade::{UpgradedGateway, await_no_children, children, has_left, signal, threads};
use std::thread::sleep;
use std::time::{Duration, Instant};
use stillgate_testkit::{END_PATIENCE, eventually, eventually_within};

/// How long the new process serves before the old one leaves.
pub(crate) const PROBATION: Duration = Duration::from_secs(1);

/// Maximum number of tries to kill a new process in time.
const TRIES_MAX: usize = 20;

/// When the new process is killed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum When {
    /// So long after its start, wherever it is by then.
    After(Duration),
    /// Killed as soon as it accepts connections.
    Accepting,
    /// So long after that, well before the old process leaves.
    Serving(Duration),
}

/// The name of a process while it runs the command that it was started with.
pub(crate) fn is_old(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "stillgate-old")
}

/// Makes the process that serves start a new one, and kills that before it is confirmed. Returns the process that serves on: the
/// one of before, or one that has followed it where the machine stood still for so long that a new one was confirmed first.
///
/// Both processes serve until the kill. Where the machine is too slow for that, at every second try, the old one is stopped as soon
/// as it has sent the new one everything: however long the kill takes then, it comes in time.
#[track_caller]
pub(crate) fn kill_successor(upgraded: &UpgradedGateway, when: When) -> u32 {
    let killed = (0..TRIES_MAX).find_map(|number| try_to_kill(upgraded, when, number % 2 == 1));
    killed.unwrap_or_else(|| panic!("{when:?}: the machine stood still for a second in each of {TRIES_MAX} tries"))
}

/// `None`: this took so long that the old process may have left by now, and nothing was killed; another one serves.
fn try_to_kill(upgraded: &UpgradedGateway, when: When, is_held: bool) -> Option<u32> {
    let pid = upgraded.pid().expect("a process that serves");
    let followers = || upgraded.gateway.log().matches("upgrade: following a process").count();
    let before_this = followers();
    signal(pid, "USR2");
    eventually("the new process", || children(pid).len() == 1);
    let new = children(pid)[0];
    // It accepts connections once it has workers, and the probation begins after that.
    let accepts = || !threads(new, "worker-").is_empty();
    let mut is_early = false;
    if is_held {
        eventually("it to know everything", || followers() > before_this || accepts());
        stop(pid);
        // Nothing confirms it from here on.
        is_early = !accepts();
    }
    let mut before = Instant::now();
    let mut await_workers = || {
        eventually("its workers", || {
            let now = Instant::now();
            let accepts = accepts();
            if !accepts {
                before = now;
            }
            accepts
        });
    };
    match when {
        // Already past that, where it is held.
        When::After(time) => sleep(time),
        When::Accepting => await_workers(),
        When::Serving(time) => {
            await_workers();
            sleep(time);
        }
    }
    if !is_held {
        let now = Instant::now();
        before = if accepts() { before } else { now };
        // Stopped, the old process cannot confirm the new one between the look at the clock and the kill.
        stop(pid);
        is_early = before.elapsed() < PROBATION;
    }
    if !is_early {
        signal(pid, "CONT");
        eventually_within(END_PATIENCE, "the new process to serve alone", || {
            upgraded.pid() == Some(new) && has_left(pid)
        });
        return None;
    }
    signal(new, "KILL");
    // From here on the old one sees its end, however late that looks.
    eventually_within(END_PATIENCE, "the end of the new one", || all_are(new, 'Z'));
    signal(pid, "CONT");
    await_no_children(pid);
    Some(pid)
}

fn stop(pid: u32) {
    signal(pid, "STOP");
    eventually("the old one to stop", || all_are(pid, 'T'));
}

/// Whether all threads of a process are in this state.
pub(crate) fn all_are(pid: u32, state: char) -> bool {
    threads(pid, "").iter().all(|stat| stat.starts_with(state))
}
