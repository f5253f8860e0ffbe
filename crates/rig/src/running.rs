//! A process under measure: started on its CPUs, watched, and ended whatever happens to this program.
//!
//! It has a process group of its own, which is ended as a whole, by a [`Guard`] where we do not get to do it.
//! [`Child`] is the process itself, with the file that has its output.

use crate::cpus;
use crate::error::{Error, Result};
use crate::group::{self, Guard};
use crate::proc::{self, CpuTime, Memory, Status, Thread, ThreadTimes};
use rustix::process::{Pid, Signal, kill_process};
use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time between SIGTERM and SIGKILL, and from there to its end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(10);
/// One attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How much of a log an error shows.
const LOG_SHOWN_BYTES: u64 = 4 * 1024;

/// Memory counts as settled once it has not changed for this long.
const SETTLED: Duration = Duration::from_millis(1500);
const SETTLED_TIMEOUT: Duration = Duration::from_secs(30);
const SETTLED_POLL: Duration = Duration::from_millis(100);

/// A running process, its guard, and where its output goes.
#[derive(Debug)]
pub struct Running {
    name: String,
    child: Child,
    /// A descendant that has taken its place.
    successor: Option<u32>,
    /// Held only to be dropped.
    _guard: Guard,
}

/// The reason why a process does not listen.
#[derive(Debug)]
pub struct NotListening {
    /// What happened.
    pub error: Error,
    /// Another program has its port: another port may work.
    pub port_taken: bool,
}

impl fmt::Display for NotListening {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(out)
    }
}

impl std::error::Error for NotListening {}

impl Running {
    /// How long a program may take until it listens, where nothing makes it slow.
    pub const START_TIMEOUT: Duration = Duration::from_secs(30);

    /// Starts `words` on `cpus` (empty: any), with its output in `log` and the given input.
    pub fn spawn(name: &str, words: &[String], cpus: &[usize], log: &Path, input: Stdio) -> Result<Running> {
        let (program, arguments) = words.split_first().ok_or_else(|| format!("{name}: the command is empty"))?;
        let file = match program.contains('/') {
            true => program.into(),
            false => find_program(program).ok_or_else(|| format!("{name}: {program} is not installed"))?,
        };
        File::create(log).map_err(|error| format!("{}: cannot be written: {error}", log.display()))?;
        let mut command = Command::new(file);
        command.args(arguments).process_group(0);
        // A log filter of the caller must not change the measurement.
        command.env_remove("RUST_LOG");
        let guard_failed =
            |error| Error::new(format!("{name}: cannot start sh, which ends it when this program dies: {error}"));
        let mut guard = Guard::start().map_err(guard_failed)?;
        let child = cpus::on(cpus, || Child::spawn(&mut command, input, log))?;
        let child = child.map_err(|error| format!("{name}: {error}"))?;
        let watched = guard.watch(child.pid());
        let running = Running { name: name.to_owned(), child, successor: None, _guard: guard };
        // If it is not watched, dropping `running` ends it here.
        watched.map(|()| running).map_err(guard_failed)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.successor.unwrap_or_else(|| self.child.pid())
    }

    /// The process, then its descendants.
    pub fn pids(&self) -> Vec<u32> {
        proc::tree(self.pid())
    }

    /// From now on it is the descendant that takes over from it, in the same group and with the same output.
    pub fn follow(&mut self, successor: u32) {
        self.successor = Some(successor);
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result {
        send(self.pid(), signal)
    }

    /// See [`proc::cpu_time_us`].
    pub fn cpu_time_us(&self) -> Result<f64> {
        proc::cpu_time_us(self.pid()).map_err(|error| self.unreadable(error))
    }

    /// See [`proc::cpu_time`].
    pub fn cpu_time(&self) -> Result<CpuTime> {
        proc::cpu_time(self.pid()).map_err(|error| self.unreadable(error))
    }

    /// See [`proc::thread_times`].
    pub fn thread_times(&self) -> Result<ThreadTimes> {
        proc::thread_times(self.pid()).map_err(|error| self.unreadable(error))
    }

    /// CPU time in microseconds of the threads that run now and whose names begin so, without its descendants'.
    pub fn threads_cpu_us(&self, prefix: &str) -> Result<f64> {
        let threads = proc::threads(self.pid()).map_err(|error| self.unreadable(error))?;
        let counts = |thread: &&Thread| thread.name().is_some_and(|name| name.starts_with(prefix));
        Ok(threads.iter().filter(counts).filter_map(Thread::cpu_us).sum())
    }

    /// See [`proc::anonymous_kib`].
    pub fn anonymous_kib(&self) -> Result<u64> {
        proc::anonymous_kib(self.pid()).map_err(|error| self.unreadable(error))
    }

    /// See [`proc::rss_kib`].
    pub fn rss_kib(&self) -> Result<u64> {
        proc::rss_kib(self.pid()).map_err(|error| self.unreadable(error))
    }

    /// The most memory that the process ever held, without its descendants'.
    pub fn peak_rss_kib(&self) -> Result<u64> {
        let status = Status::read(self.pid()).map_err(|error| self.unreadable(error))?;
        status.number("VmHWM").ok_or_else(|| format!("{}: its status has no VmHWM", self.name).into())
    }

    /// See [`proc::memory`].
    pub fn memory(&self) -> Result<Memory> {
        proc::memory(self.pid()).map_err(|error| self.unreadable(error))
    }

    /// The memory once what is resident has settled, and whether it has. PSS never does as long as others that share its libraries come
    /// and go.
    pub fn settled_memory(&mut self) -> Result<(Memory, bool)> {
        let begin = Instant::now();
        let mut last = self.memory()?;
        let mut since = Instant::now();
        while since.elapsed() < SETTLED {
            if begin.elapsed() > SETTLED_TIMEOUT {
                return Ok((last, false));
            }
            sleep(SETTLED_POLL);
            self.alive()?;
            let now = self.memory()?;
            if now.rss_kib != last.rss_kib {
                since = Instant::now();
            }
            last = now;
        }
        Ok((last, true))
    }

    /// Waits until something listens there.
    pub fn wait_for(&mut self, address: SocketAddr, timeout: Duration) -> Result<(), NotListening> {
        let begin = Instant::now();
        loop {
            if let Err(error) = self.alive() {
                let port_taken = self.child.log_end(LOG_SHOWN_BYTES).to_ascii_lowercase().contains("in use");
                return Err(NotListening { error, port_taken });
            }
            if TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).is_ok() {
                return Ok(());
            }
            if begin.elapsed() > timeout {
                let error = format!(
                    "{}: nothing listens on {address} after {} s; {}",
                    self.name,
                    timeout.as_secs(),
                    self.log_words()
                );
                return Err(NotListening { error: error.into(), port_taken: false });
            }
            sleep(POLL);
        }
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.end()?.is_some())
    }

    /// Fails with the end of its log if it has ended.
    pub fn alive(&mut self) -> Result {
        match self.end()? {
            None => Ok(()),
            Some(how) => Err(format!("{} has ended{how}; {}", self.name, self.log_words()).into()),
        }
    }

    /// All it has printed so far.
    pub fn log(&self) -> String {
        self.child.log()
    }

    /// How it has ended, in words for behind "has ended"; `None`: it goes on.
    fn end(&mut self) -> Result<Option<String>> {
        if let Some(pid) = self.successor {
            // Its present parent knows how.
            return Ok((!proc::runs(pid)).then(String::new));
        }
        let exit = self.child.exit().map_err(|error| format!("{}: cannot be waited for: {error}", self.name))?;
        Ok(exit.map(|status| format!(" ({status})")))
    }

    fn log_words(&self) -> String {
        let end = self.child.log_end(LOG_SHOWN_BYTES);
        let end = end.trim_end();
        if end.is_empty() {
            return "it has printed nothing".to_owned();
        }
        format!("the end of what it printed:\n{}", end.lines().map(|line| format!("    {line}\n")).collect::<String>())
    }

    fn unreadable(&self, error: std::io::Error) -> Error {
        format!("{}: its process cannot be read from /proc ({error}); {}", self.name, self.log_words()).into()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.close_input();
        let members = self.pids();
        for signal in [Signal::TERM, Signal::KILL] {
            group::signal(self.child.pid(), signal);
            let begin = Instant::now();
            while begin.elapsed() < STOP_TIMEOUT {
                if !matches!(self.has_ended(), Ok(false)) && !members.iter().any(|&pid| proc::runs(pid)) {
                    break;
                }
                sleep(POLL);
            }
        }
        // It was signalled; that it cannot be waited for would mean that somebody else has.
        let _ = self.child.wait();
    }
}

/// A process that we have started. Dropping it leaves it alone.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    log: PathBuf,
}

impl Child {
    /// Starts a command with its input and with both outputs appended to `log`.
    pub fn spawn(command: &mut Command, input: Stdio, log: &Path) -> Result<Child> {
        let unwritable = |error| Error::new(format!("{}: cannot be written: {error}", log.display()));
        let out = File::options().create(true).append(true).open(log).map_err(unwritable)?;
        let err = out.try_clone().map_err(unwritable)?;
        let process = command.stdin(input).stdout(out).stderr(err).spawn();
        let program = command.get_program().to_string_lossy();
        let process = process.map_err(|error| format!("cannot start {program}: {error}"))?;
        Ok(Child { process, log: log.to_owned() })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// How it has ended; `None`: it goes on.
    pub fn exit(&mut self) -> std::io::Result<Option<ExitStatus>> {
        self.process.try_wait()
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> std::io::Result<ExitStatus> {
        self.process.wait()
    }

    /// Closes its input, where that is a pipe: what makes some programs end.
    pub(crate) fn close_input(&mut self) {
        drop(self.process.stdin.take());
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result {
        send(self.pid(), signal)
    }

    /// Where its output goes.
    pub fn log_file(&self) -> &Path {
        &self.log
    }

    /// All it has printed so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The end of what it has printed so far; empty where that cannot be read.
    pub fn log_end(&self, bytes: u64) -> String {
        let read = || -> std::io::Result<Vec<u8>> {
            let mut file = File::open(&self.log)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
            let mut end = Vec::new();
            file.take(bytes).read_to_end(&mut end)?;
            Ok(end)
        };
        String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
    }
}

/// Sends a signal to one process.
pub fn send(pid: u32, signal: Signal) -> Result {
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or("not a process id")?;
    kill_process(process, signal).map_err(|error| format!("process {pid}: no signal can be sent to it: {error}").into())
}

/// Debian's folder of daemons, which is not on every PATH.
const DAEMONS: &str = "/usr/sbin";

/// The file of a program, looked for as a shell does and among the daemons.
pub fn find_program(name: impl AsRef<Path>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from(DAEMONS)]);
    folders.map(|folder| folder.join(&name)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Reached by failures only.
    const PATIENCE: Duration = Duration::from_secs(600);

    fn words(script: &str) -> Vec<String> {
        ["sh", "-c", script].map(str::to_owned).to_vec()
    }

    fn start(dir: &Path, script: &str) -> Running {
        Running::spawn("subject", &words(script), &[], &dir.join("log"), Stdio::null()).unwrap()
    }

    #[track_caller]
    fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !holds() {
            assert!(begin.elapsed() < PATIENCE, "{what} did not come");
            sleep(POLL);
        }
    }

    #[test]
    fn its_end_is_reported_with_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let mut running = start(dir.path(), "echo it is broken; exit 3");
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let failed = running.wait_for(closed, PATIENCE).unwrap_err();
        let message = failed.error.to_string();
        assert_eq!(message, "subject has ended (exit status: 3); the end of what it printed:\n    it is broken\n");
        assert!(!failed.port_taken);
    }

    #[test]
    fn a_taken_port_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let mut running = start(dir.path(), "echo bind: Address already in use; exit 1");
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(running.wait_for(closed, PATIENCE).unwrap_err().port_taken);
    }

    #[test]
    fn silence_ends_the_wait() {
        let dir = tempfile::tempdir().unwrap();
        let mut running = start(dir.path(), "exec sleep 600");
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let message = running.wait_for(closed, Duration::ZERO).unwrap_err().error.to_string();
        assert_eq!(message, format!("subject: nothing listens on {closed} after 0 s; it has printed nothing"));
    }

    #[test]
    fn a_program_that_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let spawn = |program: &str| {
            let words = [program.to_owned()];
            Running::spawn("subject", &words, &[], &dir.path().join("log"), Stdio::null()).unwrap_err().to_string()
        };
        let error = spawn("/nowhere/gateway");
        assert!(error.starts_with("subject: cannot start /nowhere/gateway: No such file"), "{error}");
        assert_eq!(spawn("no-such-program-anywhere"), "subject: no-such-program-anywhere is not installed");
    }

    #[test]
    fn descendants_are_counted_and_end_with_it() {
        let dir = tempfile::tempdir().unwrap();
        // The first child ignores SIGTERM.
        let running =
            start(dir.path(), "sh -c 'trap \"\" TERM; echo ready; while :; do sleep 0.1; done' & sleep 600 & wait");
        eventually("the children", || running.pids().len() >= 3 && running.log().contains("ready"));
        let pids = running.pids();
        eventually("some CPU time", || running.cpu_time_us().unwrap() > 0.0);
        assert!(running.rss_kib().unwrap() > 0 && running.peak_rss_kib().unwrap() > 0);
        assert!(running.memory().unwrap().pss_kib > 0);
        let guard = running._guard.shell.id();
        drop(running);
        for pid in pids.into_iter().chain([guard]) {
            assert!(!proc::runs(pid), "{pid} goes on");
        }
    }

    #[test]
    fn memory_settles() {
        let dir = tempfile::tempdir().unwrap();
        let mut running = start(dir.path(), "exec sleep 600");
        eventually("the program", || proc::name(running.pid()).is_ok_and(|name| name == "sleep"));
        assert!(running.settled_memory().unwrap().1);
    }

    #[test]
    fn it_ends_when_we_do_not_get_to_end_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut running = start(dir.path(), "sleep 600 & wait");
        eventually("the child", || running.pids().len() == 2);
        let pids = running.pids();
        // As the kernel does when this program dies.
        drop(running._guard.shell.stdin.take());
        eventually("the end of all", || running.alive().is_err() && pids.iter().all(|&pid| !proc::runs(pid)));
    }

    #[test]
    fn a_successor_takes_its_place_and_ends_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut running = start(dir.path(), "sleep 600 & exit");
        eventually("its end", || running.has_ended().unwrap());
        let sleeper = proc::all().into_iter().find(|pid| {
            proc::Stat::read(pid).is_ok_and(|stat| stat.number(5) == Some(running.pid().into()) && proc::runs(*pid))
        });
        let sleeper = sleeper.unwrap();
        running.follow(sleeper);
        assert_eq!(running.pid(), sleeper);
        running.alive().unwrap();
        drop(running);
        assert!(!proc::runs(sleeper));
    }

    #[test]
    fn it_runs_where_it_was_put() {
        let dir = tempfile::tempdir().unwrap();
        let available = cpus::available().unwrap();
        let last = available[available.len() - 1];
        let list = words("grep Cpus_allowed_list /proc/self/status; exec sleep 600");
        let running = Running::spawn("subject", &list, &[last], &dir.path().join("log"), Stdio::null()).unwrap();
        eventually("its output", || running.log().contains('\n'));
        assert_eq!(running.log().trim_end(), format!("Cpus_allowed_list:\t{last}"));
        assert_eq!(cpus::available().unwrap(), available, "this thread is back on all");
    }

    #[test]
    fn a_program_is_found_by_its_name() {
        assert!(find_program("sh").unwrap().is_absolute());
        assert_eq!(find_program("no-such-program-anywhere"), None);
    }
}
