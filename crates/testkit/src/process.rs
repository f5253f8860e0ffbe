//! A child process of a test: its output is kept, its resources are read from `/proc`, its end is guaranteed.

use crate::dispositions::reset_in_children;
use crate::{PATIENCE, POLL_INTERVAL, eventually_within};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use stillgate_rig::proc::{Stat, Status, Thread};
use stillgate_rig::{Child, Signal, proc};

/// How long a process may take to end, if that time is not what the test is about. Each of its threads must get a core
/// for that, even one with the idle policy, as exporters have: next to others that compute all the time that has taken
/// minutes, even after a kill.
pub const END_PATIENCE: Duration = Duration::from_secs(300);

/// How much of the log a failed test shows.
const LOG_SHOWN_BYTES: usize = 8 * 1024;

/// Number of searches for processes to end: one that was found may have started another just before.
const SWEEPS: usize = 3;

/// The gateway's log line when it has served everything: afterwards only threads that wait for a core, and the kernel,
/// delay its end.
const ENDED: &str = "\"message\":\"ended\"";

/// A running child, killed when dropped. When the test panics, its log is printed.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    is_killed: AtomicBool,
}

impl Process {
    /// Starts `command` with both outputs appended to `log`. It does not inherit ignored signals.
    ///
    /// # Panics
    /// If it cannot be started.
    #[track_caller]
    pub fn spawn(name: &str, command: &mut Command, log: &Path) -> Self {
        reset_in_children();
        let child = Child::spawn(command, Stdio::null(), log).unwrap_or_else(|error| panic!("start {name}: {error}"));
        Self { name: name.to_owned(), child, is_killed: AtomicBool::new(false) }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Everything it has printed so far.
    pub fn log(&self) -> String {
        self.child.log()
    }

    /// Sends a signal by name (`TERM`, `HUP`, `KILL`, …).
    pub fn signal(&self, name: &str) {
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.pid())]).status().expect("run sh");
        assert!(status.success(), "kill -{name} {} failed", self.pid());
        self.is_killed.fetch_or(name == "KILL", Ordering::Relaxed);
        if name == "STOP" {
            // A thread that runs on another CPU stops a moment later.
            let is_stopped = || Stat::read(self.pid()).is_ok_and(|stat| stat.state() == Some('T'));
            crate::eventually("the process to be stopped", is_stopped);
        }
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.exit().expect("wait for an own child")
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it runs for more than [`PATIENCE`], or [`END_PATIENCE`] if it was killed or has logged its end.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        while self.ended().is_none() && Instant::now() < deadline {
            std::thread::sleep(POLL_INTERVAL);
        }
        let is_over = self.is_killed.load(Ordering::Relaxed) || self.log().contains(ENDED);
        assert!(is_over || self.ended().is_some(), "{} did not end within {PATIENCE:?}", self.name);
        self.wait_within(END_PATIENCE)
    }

    /// [`Process::wait`] with its own deadline.
    ///
    /// # Panics
    /// If it runs longer.
    #[track_caller]
    pub fn wait_within(&mut self, limit: Duration) -> ExitStatus {
        let mut status = None;
        eventually_within(limit, &format!("the end of {}", self.name), || {
            status = self.child.exit().expect("wait for an own child");
            status.is_some()
        });
        status.expect("the loop above ends with a status")
    }

    /// Resident memory in bytes.
    pub fn rss(&self) -> usize {
        self.memory("VmRSS")
    }

    /// Anonymous resident memory, which the kernel cannot take back.
    pub fn rss_anonymous(&self) -> usize {
        self.memory("RssAnon")
    }

    /// Peak resident memory since the start.
    pub fn rss_peak(&self) -> usize {
        self.memory("VmHWM")
    }

    fn memory(&self, key: &str) -> usize {
        let status = Status::read(self.pid()).unwrap_or_else(|error| self.gone(&error));
        let kib = status.number(key).expect("a live process has it");
        usize::try_from(kib).expect("memory fits into addresses") * 1024
    }

    /// CPU time used so far, user and system.
    pub fn cpu(&self) -> Duration {
        let stat = Stat::read(self.pid()).unwrap_or_else(|error| self.gone(&error));
        Duration::from_secs_f64(stat.cpu_us().expect("a process has used some time or none") / 1e6)
    }

    /// How often its threads with this name have gone to sleep so far.
    pub fn sleeps(&self, name: &str) -> u64 {
        let named = |thread: &&Thread| thread.name().as_deref() == Some(name);
        // A thread may end meanwhile.
        self.each_thread().iter().filter(named).filter_map(Thread::sleeps).sum()
    }

    /// The number of its threads whose names begin with `prefix`.
    pub fn threads(&self, prefix: &str) -> usize {
        // A thread may end meanwhile.
        self.each_thread().iter().filter_map(Thread::name).filter(|name| name.starts_with(prefix)).count()
    }

    /// Whether all its threads are waiting: none has work left, such as opening files after its start.
    pub fn is_at_rest(&self) -> bool {
        self.each_thread().iter().all(|thread| matches!(thread.state(), None | Some('S')))
    }

    /// Open file descriptors.
    pub fn fd_count(&self) -> usize {
        proc::descriptors(self.pid()).expect("a live process has a fd table")
    }

    fn each_thread(&self) -> Vec<Thread> {
        proc::threads(self.pid()).expect("a live process has threads")
    }

    fn gone(&self, error: &std::io::Error) -> ! {
        panic!("{} is gone ({error}); log:\n{}", self.name, self.log())
    }
}

/// Whether a process runs with the configuration in this folder.
pub fn is_gateway(pid: u32, dir: &Path) -> bool {
    proc::command_line(pid).contains(&*dir.to_string_lossy())
}

/// Kills a gateway, if it still runs, and all its successors by upgrades: they are not our children, so nothing else
/// ends them.
pub(crate) fn kill_all(gateway: Option<u32>, dir: &Path) {
    for _ in 0..SWEEPS {
        let others = proc::all().into_iter().filter(|pid| is_gateway(*pid, dir));
        for pid in gateway.map(proc::children).into_iter().flatten().chain(others) {
            // One may have ended by itself.
            let _ = stillgate_rig::send(pid, Signal::KILL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.child.exit().ok().flatten().is_none() {
            // It may end by itself in between, which is fine.
            let _ = self.child.signal(Signal::KILL);
            let deadline = Instant::now() + END_PATIENCE;
            while self.child.exit().ok().flatten().is_none() && Instant::now() < deadline {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        if std::thread::panicking() {
            let log = self.log();
            let from = log.len().saturating_sub(LOG_SHOWN_BYTES);
            let shown = log.get(from..).unwrap_or(&log);
            eprintln!("--- log of {} ---\n{shown}\n--- end ---", self.name);
        }
    }
}
