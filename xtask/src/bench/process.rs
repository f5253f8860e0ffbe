//! A measured process: started pinned, its CPU time and memory read from `/proc`, ended when it goes out of scope.

use crate::Result;
use crate::packages::on_path;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const START_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// A running process and where its output goes.
pub(super) struct Running {
    child: Child,
    log: PathBuf,
}

/// CPU time used so far.
#[derive(Clone, Copy, Default)]
pub(super) struct CpuTime {
    pub(super) user_ticks: u64,
    pub(super) system_ticks: u64,
}

/// Memory held, from `smaps_rollup`.
#[derive(Clone, Copy, PartialEq)]
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
        let mut command = match cpu {
            None => Command::new(program),
            Some(cpu) => {
                // It replaces itself by the program: the process id stays right.
                let mut command = Command::new("taskset");
                command.args(["--cpu-list", &cpu.to_string(), program]);
                command
            }
        };
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
        Ok(Self { child, log: log.to_owned() })
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The process and all its descendants: a peer's worker is a child of what was started.
    pub(super) fn tree(&self) -> Result<Vec<u32>> {
        tree(self.pid())
    }

    /// Waits till something listens; fails with the process's output if it ends before.
    pub(super) fn wait_for(&mut self, address: SocketAddr) -> Result {
        let begin = Instant::now();
        while TcpStream::connect_timeout(&address, START_TIMEOUT).is_err() {
            let ended = self.child.try_wait()?;
            if ended.is_some() || begin.elapsed() > START_TIMEOUT {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                return Err(format!("nothing listens on {address}:\n{log}").into());
            }
            sleep(POLL);
        }
        Ok(())
    }

    /// Fails if the process has ended.
    pub(super) fn check_alive(&mut self) -> Result {
        match self.child.try_wait()? {
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
            let exact = fs::read_to_string(thread.join("schedstat")).ok();
            let exact = exact.and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok());
            sum += match exact {
                Some(nanoseconds) => nanoseconds / 1e3,
                None => {
                    fs::read_to_string(thread.join("stat")).map_or(0.0, |stat| ticks(&stat).unwrap_or_default().us())
                }
            };
        }
        Ok(sum)
    }

    /// What it has printed.
    pub(super) fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(&self.log)?)
    }

    /// Memory of the process itself.
    pub(super) fn memory(&self) -> Result<Memory> {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid()))?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let memory = field("Rss:").zip(field("Pss:"));
        let (rss_kib, pss_kib) = memory.ok_or("smaps_rollup: not as proc(5) has it")?;
        Ok(Memory { rss_kib, pss_kib })
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
        // Both calls fail only where the process has ended, which is what we want.
        if let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let begin = Instant::now();
        while begin.elapsed() < STOP_TIMEOUT {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            sleep(POLL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
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
