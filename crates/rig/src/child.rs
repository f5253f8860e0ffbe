//! A child process and the file that has its output.

use crate::error::{Error, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

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
