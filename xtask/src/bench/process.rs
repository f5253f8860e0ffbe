//! A measured process: started pinned, its CPU time and memory read from `/proc`, ended when it goes out of scope.

use crate::Result;
use crate::packages::on_path;
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions, getrlimit, kill_process, setrlimit, waitpid};
use std::collections::HashMap;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const START_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// Memory counts as stable once it has not changed for this long.
const STABLE: Duration = Duration::from_millis(1500);
const STABLE_TIMEOUT: Duration = Duration::from_secs(30);
const STABLE_POLL: Duration = Duration::from_millis(100);

/// A running process and where its output goes.
pub(super) struct Running {
    process: Process,
    log: PathBuf,
}

enum Process {
    Started(Child),
    /// Started by one that we started.
    Adopted(Pid),
}

impl Process {
    /// How it ended, where it has.
    fn ended(&mut self) -> Result<Option<String>> {
        Ok(match self {
            Process::Started(child) => child.try_wait()?.map(|status| status.to_string()),
            Process::Adopted(pid) => match waitpid(Some(*pid), WaitOptions::NOHANG) {
                Ok(ended) => ended.map(|(_, status)| format!("{status:?}")),
                // Its own parent still lives, or has taken note of its end.
                Err(Errno::CHILD) => is_gone(*pid).then(|| "taken note of by another".to_owned()),
                Err(error) => return Err(error.into()),
            },
        })
    }
}

/// Whether a process is no more, or waits for its parent to notice.
fn is_gone(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid()));
    stat.map_or(true, |stat| stat.rsplit(')').next().is_some_and(|fields| fields.trim_start().starts_with(['Z', 'X'])))
}

/// CPU time used so far.
#[derive(Clone, Copy, Default)]
pub(super) struct CpuTime {
    pub(super) user_ticks: u64,
    pub(super) system_ticks: u64,
}

/// Memory held, from `smaps_rollup`.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub(super) rss_kib: u64,
    pub(super) pss_kib: u64,
}

impl CpuTime {
    /// In µs.
    pub(super) fn us(self) -> f64 {
        (self.user_ticks + self.system_ticks) as f64 * 1e6 / rustix::param::clock_ticks_per_second() as f64
    }
}

impl Running {
    /// Starts `words`, on one CPU where one is given.
    pub(super) fn spawn(words: &[String], cpu: Option<usize>, log: &Path) -> Result<Self> {
        let program = words.first().ok_or("nothing to start")?;
        if !program.contains('/') && !on_path(program) {
            return Err(format!("{program} is not installed").into());
        }
        // Ends it with this thread, which may have no time to: after Ctrl-C. Both commands replace themselves by the
        // program: the process id stays right.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM"]);
        if let Some(cpu) = cpu {
            command.args(["taskset", "--cpu-list", &cpu.to_string()]);
        }
        command.arg(program);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin"));
        let out = File::create(log)?;
        let child = command
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .map_err(|error| format!("{program}: {error}"))?;
        Ok(Self { process: Process::Started(child), log: log.to_owned() })
    }

    /// Takes over a descendant, which writes where this one does.
    pub(super) fn adopt(&self, pid: u32) -> Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or("not a process id")?;
        Ok(Self { process: Process::Adopted(pid), log: self.log.clone() })
    }

    pub(super) fn pid(&self) -> u32 {
        match &self.process {
            Process::Started(child) => child.id(),
            Process::Adopted(pid) => pid.as_raw_pid().cast_unsigned(),
        }
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&mut self) -> Result<bool> {
        Ok(self.process.ended()?.is_some())
    }

    pub(super) fn signal(&self, signal: Signal) -> Result {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.ok_or("not a process id")?, signal)?)
    }

    /// The process and all its descendants: a peer's worker is a child of what was started.
    pub(super) fn tree(&self) -> Result<Vec<u32>> {
        tree(self.pid())
    }

    /// Waits till something listens; fails with the process's output if it ends before.
    pub(super) fn wait_for(&mut self, address: SocketAddr) -> Result {
        self.wait_long_for(address, START_TIMEOUT)
    }

    /// The same for a process that takes longer to start.
    pub(super) fn wait_long_for(&mut self, address: SocketAddr, limit: Duration) -> Result {
        let begin = Instant::now();
        while TcpStream::connect_timeout(&address, limit).is_err() {
            if self.has_ended()? || begin.elapsed() > limit {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                return Err(format!("nothing listens on {address}:\n{log}").into());
            }
            sleep(POLL);
        }
        Ok(())
    }

    /// Fails if the process has ended.
    pub(super) fn check_alive(&mut self) -> Result {
        match self.process.ended()? {
            None => Ok(()),
            Some(status) => {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                Err(format!("the process ended: {status}\n{log}").into())
            }
        }
    }

    /// CPU time of the process and all its descendants.
    pub(super) fn cpu_time(&self) -> Result<CpuTime> {
        let mut sum = CpuTime::default();
        for pid in self.tree()? {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
            let own = ticks(&stat).ok_or_else(|| format!("/proc/{pid}/stat: not as proc(5) has it"))?;
            sum.user_ticks += own.user_ticks;
            sum.system_ticks += own.system_ticks;
        }
        Ok(sum)
    }

    /// CPU time in µs of the process's own threads that run now and whose names begin so. Exact where the kernel keeps
    /// `schedstat`, else to the clock tick.
    pub(super) fn threads_cpu_us(&self, name: &str) -> Result<f64> {
        let mut sum = 0.0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            let thread = thread?.path();
            // A thread may end while we look.
            let Ok(own) = fs::read_to_string(thread.join("comm")) else { continue };
            if !own.starts_with(name) {
                continue;
            }
            sum += thread_us(&thread);
        }
        Ok(sum)
    }

    /// CPU time so far of each thread that runs now, of all its processes.
    pub(super) fn thread_times(&self) -> Result<ThreadTimes> {
        let mut times = HashMap::new();
        for pid in self.tree()? {
            for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
                let thread = thread?.path();
                times.insert(thread.clone(), thread_us(&thread));
            }
        }
        Ok(ThreadTimes(times))
    }

    /// What it has printed.
    pub(super) fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(&self.log)?)
    }

    /// Memory of the process and all its descendants; what they share counts once in PSS only.
    pub(super) fn memory(&self) -> Result<Memory> {
        let mut sum = Memory { rss_kib: 0, pss_kib: 0 };
        for pid in self.tree()? {
            let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
            let field = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name))?;
                line.split_whitespace().next()?.parse::<u64>().ok()
            };
            let (rss_kib, pss_kib) = field("Rss:").zip(field("Pss:")).ok_or("smaps_rollup: not as proc(5) has it")?;
            sum = Memory { rss_kib: sum.rss_kib + rss_kib, pss_kib: sum.pss_kib + pss_kib };
        }
        Ok(sum)
    }

    /// The memory once it has settled. PSS never does as long as others that share its libraries come and go.
    pub(super) fn stable_memory(&mut self) -> Result<Memory> {
        let begin = Instant::now();
        let mut last = self.memory()?;
        let mut since = Instant::now();
        while since.elapsed() < STABLE {
            if begin.elapsed() > STABLE_TIMEOUT {
                println!("(memory has not settled for {} s)", STABLE_TIMEOUT.as_secs());
                break;
            }
            sleep(STABLE_POLL);
            self.check_alive()?;
            let now = self.memory()?;
            if now.rss_kib != last.rss_kib {
                since = Instant::now();
            }
            last = now;
        }
        Ok(last)
    }

    /// The most memory the process ever held, in KiB.
    pub(super) fn peak_rss_kib(&self) -> Result<u64> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        peak.ok_or_else(|| "status: not as proc(5) has it".into())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Calls fail only where the process has ended, which is what we want.
        if !matches!(self.has_ended(), Ok(false)) {
            return;
        }
        let _ = self.signal(Signal::TERM);
        let begin = Instant::now();
        while begin.elapsed() < STOP_TIMEOUT {
            if !matches!(self.has_ended(), Ok(false)) {
                return;
            }
            sleep(POLL);
        }
        let _ = self.signal(Signal::KILL);
        while matches!(self.has_ended(), Ok(false)) {
            sleep(POLL);
        }
    }
}

/// CPU time in µs of each thread, by its folder in `/proc`.
pub(super) struct ThreadTimes(HashMap<PathBuf, f64>);

impl ThreadTimes {
    /// What was used between two looks, in µs; of a thread that ended meanwhile nothing is known.
    pub(super) fn since(&self, before: &ThreadTimes) -> f64 {
        self.0.iter().map(|(thread, us)| us - before.0.get(thread).unwrap_or(&0.0)).sum()
    }
}

/// CPU time in µs of one thread: exact where the kernel keeps `schedstat`, else to the clock tick. It may have ended.
fn thread_us(thread: &Path) -> f64 {
    let exact = fs::read_to_string(thread.join("schedstat")).ok();
    let exact = exact.and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok());
    match exact {
        Some(nanoseconds) => nanoseconds / 1e3,
        None => fs::read_to_string(thread.join("stat")).map_or(0.0, |stat| ticks(&stat).unwrap_or_default().us()),
    }
}

/// The CPU time in a `stat` file.
fn ticks(stat: &str) -> Option<CpuTime> {
    // The command's name may hold anything but ends at the last bracket; then come fields 3 and up.
    let fields = stat.rsplit(')').next()?;
    let field = |number: usize| fields.split_whitespace().nth(number - 3)?.parse().ok();
    Some(CpuTime { user_ticks: field(14)?, system_ticks: field(15)? })
}

/// The process and all its descendants.
fn tree(pid: u32) -> Result<Vec<u32>> {
    let mut all = vec![pid];
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let children = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace() {
            all.extend(tree(child.parse()?)?);
        }
    }
    Ok(all)
}

/// A port of loopback that nobody listens on.
pub(super) fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// So many of them, no two the same.
pub(super) fn free_ports(count: usize) -> Result<Vec<SocketAddr>> {
    // Held until all are chosen: one that is free again may be given a second time.
    let held = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<std::io::Result<Vec<_>>>()?;
    Ok(held.iter().map(TcpListener::local_addr).collect::<std::io::Result<_>>()?)
}

/// Files that a process may open, soft limit raised to the hard one; what we start inherits it.
pub(super) fn open_files_max() -> Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(limit.maximum.unwrap_or(u64::MAX))
}
