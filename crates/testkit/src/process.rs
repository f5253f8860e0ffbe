//! A child process of a test: its output is kept, its resources are read from `/proc`, its end is guaranteed.

use crate::dispositions::reset_in_children;
use crate::{PATIENCE, POLL_INTERVAL, eventually_within};
use std::fs::{DirEntry, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a process may take to end, if that time is not what the test is about. Each of its threads must get a core
/// for that, even one with the idle policy, as exporters have: next to others that compute all the time that has taken
/// minutes, even after a kill.
pub const END_PATIENCE: Duration = Duration::from_secs(300);

/// How much of the log a failed test shows.
const LOG_SHOWN_BYTES: usize = 8 * 1024;

/// Number of searches for processes to end: one that was found may have started another just before.
const SWEEPS: usize = 3;

/// The length of one clock tick of `/proc/PID/stat`; `USER_HZ` is 100 on every relevant Linux.
const CLOCK_TICK: Duration = Duration::from_millis(10);

/// The gateway's log line when it has served everything: afterwards only threads that wait for a core, and the kernel,
/// delay its end.
const ENDED: &str = "\"message\":\"ended\"";

/// A running child, killed when dropped. When the test panics, its log is printed.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
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
        let out = File::options().create(true).append(true).open(log).expect("open the child's log");
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone().expect("duplicate the log's descriptor"))
            .stderr(out)
            .spawn()
            .unwrap_or_else(|error| panic!("start {name}: {error}"));
        Self { name: name.to_owned(), child, log: log.to_owned(), is_killed: AtomicBool::new(false) }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything it has printed so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Sends a signal by name (`TERM`, `HUP`, `KILL`, …).
    pub fn signal(&self, name: &str) {
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.pid())]).status().expect("run sh");
        assert!(status.success(), "kill -{name} {} failed", self.pid());
        self.is_killed.fetch_or(name == "KILL", Ordering::Relaxed);
        if name == "STOP" {
            // A thread that runs on another CPU stops a moment later.
            let stat = format!("/proc/{}/stat", self.pid());
            let is_stopped = || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T "));
            crate::eventually("the process to stand still", is_stopped);
        }
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("wait for an own child")
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
            status = self.child.try_wait().expect("wait for an own child");
            status.is_some()
        });
        status.expect("the loop above ends with a status")
    }

    /// Resident memory in bytes.
    pub fn rss(&self) -> usize {
        self.memory("VmRSS:")
    }

    /// Anonymous resident memory, which the kernel cannot take back.
    pub fn rss_anonymous(&self) -> usize {
        self.memory("RssAnon:")
    }

    /// Peak resident memory since the start.
    pub fn rss_peak(&self) -> usize {
        self.memory("VmHWM:")
    }

    fn memory(&self, key: &str) -> usize {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix(key)).expect("a live process has it");
        let kib: usize = line.trim().trim_end_matches(" kB").parse().expect("a number of kB");
        kib * 1024
    }

    /// CPU time used so far, user and system.
    pub fn cpu(&self) -> Duration {
        let stat = self.proc("stat");
        let (_, after_name) = stat.rsplit_once(") ").expect("the name is in parentheses");
        let ticks: u32 = after_name
            .split(' ')
            .skip(11)
            .take(2)
            .map(|field| field.parse::<u32>().expect("utime and stime are numbers"))
            .sum();
        CLOCK_TICK * ticks
    }

    /// How often its threads with this name have gone to sleep so far.
    pub fn sleeps(&self, thread: &str) -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("a live process has threads");
        let sleeps = tasks.filter_map(|task| {
            // A thread may end meanwhile.
            let status = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
            let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
            (value("Name:") == Some(thread)).then(|| value("voluntary_ctxt_switches:")?.parse::<u64>().ok())?
        });
        sleeps.sum()
    }

    /// The number of its threads whose names begin with `prefix`.
    pub fn threads(&self, prefix: &str) -> usize {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("a live process has threads");
        // A thread may end meanwhile.
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.starts_with(prefix)).count()
    }

    /// Whether all its threads are waiting: none has work left, such as opening files after its start.
    pub fn is_at_rest(&self) -> bool {
        let mut tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("a live process has threads");
        tasks.all(|task| {
            let stat = task.and_then(|task| std::fs::read_to_string(task.path().join("stat"))).unwrap_or_default();
            stat.rsplit_once(") ").is_none_or(|(_, after_name)| after_name.starts_with('S'))
        })
    }

    /// Open file descriptors.
    pub fn fd_count(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("a live process has a fd table").count()
    }

    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.pid()))
            .unwrap_or_else(|error| panic!("{} is gone ({error}); log:\n{}", self.name, self.log()))
    }
}

/// Whether a process runs with the configuration in this folder.
pub fn is_gateway(pid: u32, dir: &Path) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).contains(&*dir.to_string_lossy())
}

/// Processes whose parent this is.
pub fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let of = |thread: DirEntry| std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
    let text: Vec<String> = threads.filter_map(Result::ok).map(of).collect();
    text.iter().flat_map(|text| text.split_whitespace()).filter_map(|pid| pid.parse().ok()).collect()
}

/// Kills a gateway, if it still runs, and all its successors by upgrades: they are not our children, so nothing else
/// ends them.
pub(crate) fn kill_all(gateway: Option<u32>, dir: &Path) {
    let number = |entry: io::Result<DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    for _ in 0..SWEEPS {
        let others = std::fs::read_dir("/proc").into_iter().flatten().filter_map(number);
        let others = others.filter(|pid| is_gateway(*pid, dir));
        for pid in gateway.map(children).into_iter().flatten().chain(others) {
            // One may have ended by itself.
            let _ = Command::new("sh").args(["-c", &format!("kill -9 {pid} 2>/dev/null")]).status();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.child.try_wait().ok().flatten().is_none() {
            // It may end by itself in between, which is fine.
            let _ = self.child.kill();
            let deadline = Instant::now() + END_PATIENCE;
            while self.child.try_wait().ok().flatten().is_none() && Instant::now() < deadline {
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
