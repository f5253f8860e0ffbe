//! A measured process: started pinned, watched, and ended whatever happens to this program.
//!
//! It has a process group of its own, which is ended as a whole, by a [`Guard`] where we do not get to do it.

use super::accounting;
use super::placement;
use crate::error::{Error, Result};
use crate::guard::Guard;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// From asking it to end to ending it, and to its end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(10);
/// One attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How much of a log an error shows.
const LOG_SHOWN_BYTES: u64 = 4 * 1024;

/// A running process, its guard, and where its output goes.
#[derive(Debug)]
pub(super) struct Running {
    name: String,
    child: Child,
    /// For its end only.
    _guard: Guard,
    log: PathBuf,
}

/// Why a process does not listen.
#[derive(Debug)]
pub(super) struct NotListening {
    pub(super) error: Error,
    /// Another program has its port: another port may do.
    pub(super) port_taken: bool,
}

impl Running {
    /// Starts `words` on `cpus` (empty: on any), with its output in `log` and its input the one given.
    pub(super) fn spawn(name: &str, words: &[String], cpus: &[usize], log: &Path, input: Stdio) -> Result<Running> {
        let cannot = |what: &str, error: std::io::Error| Error::new(format!("{name}: cannot start {what}: {error}"));
        let (program, arguments) = words.split_first().ok_or_else(|| format!("{name}: the command is empty"))?;
        let out = File::create(log).map_err(|error| format!("{}: cannot be written: {error}", log.display()))?;
        let err = out.try_clone().map_err(|error| cannot(program, error))?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(input).stdout(out).stderr(err).process_group(0);
        // A log filter of the caller must not change what is measured.
        command.env_remove("RUST_LOG");
        let guard = "sh, which ends it when this program dies";
        let mut watching = Guard::start().map_err(|error| cannot(guard, error))?;
        let child = placement::on_cpus(cpus, || command.spawn())?.map_err(|error| cannot(program, error))?;
        let watched = watching.watch(child.id());
        let running = Running { name: name.to_owned(), child, _guard: watching, log: log.to_owned() };
        // Where it is not watched, `running` ends it here.
        watched.map(|()| running).map_err(|error| cannot(guard, error))
    }

    /// The process, then its descendants.
    pub(super) fn pids(&self) -> Vec<u32> {
        accounting::tree(self.child.id())
    }

    /// See [`accounting::cpu_time_us`].
    pub(super) fn cpu_time_us(&self) -> Result<f64> {
        accounting::cpu_time_us(self.child.id()).map_err(|error| self.gone(error))
    }

    /// See [`accounting::anonymous_kib`].
    pub(super) fn anonymous_kib(&self) -> Result<u64> {
        accounting::anonymous_kib(self.child.id()).map_err(|error| self.gone(error))
    }

    /// See [`accounting::rss_kib`].
    pub(super) fn rss_kib(&self) -> Result<u64> {
        accounting::rss_kib(self.child.id()).map_err(|error| self.gone(error))
    }

    /// Waits until something listens there.
    pub(super) fn wait_for(&mut self, address: SocketAddr, timeout: Duration) -> Result<(), NotListening> {
        let begin = Instant::now();
        loop {
            if let Err(error) = self.alive() {
                let port_taken = self.log_end().to_ascii_lowercase().contains("in use");
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

    /// Fails with the end of its log where it has ended.
    pub(super) fn alive(&mut self) -> Result {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(format!("{} has ended ({status}); {}", self.name, self.log_words()).into()),
            Err(error) => Err(format!("{}: cannot be waited for: {error}", self.name).into()),
        }
    }

    /// All it has printed so far.
    pub(super) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn log_words(&self) -> String {
        let end = self.log_end();
        let end = end.trim_end();
        if end.is_empty() {
            return "it has printed nothing".to_owned();
        }
        format!("the end of what it printed:\n{}", end.lines().map(|line| format!("    {line}\n")).collect::<String>())
    }

    fn log_end(&self) -> String {
        let read = || -> std::io::Result<Vec<u8>> {
            let mut file = File::open(&self.log)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(LOG_SHOWN_BYTES)))?;
            let mut end = Vec::new();
            file.take(LOG_SHOWN_BYTES).read_to_end(&mut end)?;
            Ok(end)
        };
        // Where the log cannot be read there is still the exit status to show.
        String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
    }

    fn gone(&self, error: std::io::Error) -> Error {
        format!("{}: its process cannot be read from /proc ({error}); {}", self.name, self.log_words()).into()
    }

    fn signal_group(&self, signal: Signal) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // Fails only where all of it has ended, which is what we want.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The end of its input is what tells some programs to end.
        drop(self.child.stdin.take());
        let members = self.pids();
        let goes_on = |child: &mut Child| {
            matches!(child.try_wait(), Ok(None)) || members.iter().skip(1).any(|&pid| accounting::runs(pid))
        };
        for signal in [Signal::TERM, Signal::KILL] {
            self.signal_group(signal);
            let begin = Instant::now();
            while begin.elapsed() < STOP_TIMEOUT && goes_on(&mut self.child) {
                sleep(POLL);
            }
        }
        // It was told to end; that it cannot be waited for would mean that somebody else has.
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Reached by a failure only.
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
    fn its_end_is_told_with_its_log() {
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
        let words = ["/nowhere/gateway".to_owned()];
        let error = Running::spawn("subject", &words, &[], &dir.path().join("log"), Stdio::null()).unwrap_err();
        assert!(error.to_string().starts_with("subject: cannot start /nowhere/gateway: No such file"), "{error}");
    }

    #[test]
    fn descendants_are_counted_and_end_with_it() {
        let dir = tempfile::tempdir().unwrap();
        // The first child refuses to end when asked.
        let running =
            start(dir.path(), "sh -c 'trap \"\" TERM; echo ready; while :; do sleep 0.1; done' & sleep 600 & wait");
        eventually("the children", || running.pids().len() >= 3 && running.log().contains("ready"));
        let pids = running.pids();
        eventually("some CPU time", || running.cpu_time_us().unwrap() > 0.0);
        assert!(running.rss_kib().unwrap() > 0);
        let guard = running._guard.shell.id();
        drop(running);
        for pid in pids.into_iter().chain([guard]) {
            assert!(!accounting::runs(pid), "{pid} goes on");
        }
    }

    #[test]
    fn it_ends_when_we_do_not_get_to_end_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut running = start(dir.path(), "sleep 600 & wait");
        eventually("the child", || running.pids().len() == 2);
        let pids = running.pids();
        // What the kernel does when this program dies.
        drop(running._guard.shell.stdin.take());
        eventually("the end of all", || running.alive().is_err() && pids.iter().all(|&pid| !accounting::runs(pid)));
    }

    #[test]
    fn it_runs_where_it_was_put() {
        let dir = tempfile::tempdir().unwrap();
        let cpus = placement::available().unwrap();
        let last = cpus[cpus.len() - 1];
        let list = ["sh", "-c", "grep Cpus_allowed_list /proc/self/status; exec sleep 600"].map(str::to_owned);
        let running = Running::spawn("subject", &list, &[last], &dir.path().join("log"), Stdio::null()).unwrap();
        eventually("its output", || running.log().contains('\n'));
        assert_eq!(running.log().trim_end(), format!("Cpus_allowed_list:\t{last}"));
        assert_eq!(placement::available().unwrap(), cpus, "this thread is back on all");
    }
}
