//! A gateway that is upgraded: the process that the test has started, and those that follow it.

use crate::shared::STILLGATE;
use rustix::process::{Pid, Signal, kill_process};
use std::path::PathBuf;
use std::process::{Command, Output};
use stillgate_testkit::{END_PATIENCE, Gateway, Setup, eventually, eventually_within};
pub(crate) use stillgate_testkit::{children, is_gateway};

/// A gateway and its successors.
#[derive(Debug)]
pub(crate) struct UpgradedGateway {
    pub(crate) gateway: Gateway,
}

impl UpgradedGateway {
    /// Starts it.
    #[track_caller]
    pub(crate) fn start(setup: &Setup) -> UpgradedGateway {
        UpgradedGateway::start_from(STILLGATE, setup)
    }

    /// Starts it from this file.
    #[track_caller]
    pub(crate) fn start_from(binary: &str, setup: &Setup) -> UpgradedGateway {
        let upgraded = UpgradedGateway { gateway: Gateway::start(binary, &with_pid_file(setup)) };
        eventually("its number to be written", || upgraded.pid() == Some(upgraded.gateway.pid()));
        upgraded
    }

    /// `stillgate upgrade` with the gateway's configuration.
    pub(crate) fn try_upgrade(&self) -> Output {
        let config = self.gateway.config_path();
        Command::new(STILLGATE).arg("upgrade").arg("--config").arg(config).output().expect("run the command")
    }

    /// An upgrade that must succeed; returns the successor.
    #[track_caller]
    pub(crate) fn upgrade(&self) -> u32 {
        let before = self.pid();
        let output = self.try_upgrade();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&output.stderr);
        if is_impatient(&complaint) {
            return self.await_successor(before.expect("the number of the process that serves"));
        }
        assert!(output.status.success(), "{complaint}\n{}", self.gateway.log());
        let pid = said.split_whitespace().find_map(|word| word.parse().ok()).expect("it names the process");
        eventually("the successor to write its number", || self.pid() == Some(pid));
        pid
    }

    /// Waits until the process that serves has been followed.
    #[track_caller]
    fn await_successor(&self, before: u32) -> u32 {
        eventually_within(END_PATIENCE, "the successor to write its number", || {
            self.pid().is_some_and(|pid| pid != before)
        });
        eventually_within(END_PATIENCE, "the one before to leave", || has_left(before));
        self.pid().expect("it is written")
    }

    /// The contents of the pid file.
    pub(crate) fn pid(&self) -> Option<u32> {
        std::fs::read_to_string(self.pid_file()).ok()?.trim().parse().ok()
    }

    pub(crate) fn pid_file(&self) -> PathBuf {
        self.gateway.dir().join("pid")
    }

    /// Waits for the end of the process that the test has started.
    #[track_caller]
    pub(crate) fn await_old(&mut self) {
        let status = self.gateway.wait_within(END_PATIENCE);
        assert!(status.success(), "{status}\n{}", self.gateway.log());
    }

    /// Waits for the end of one of those that follow it.
    #[track_caller]
    pub(crate) fn await_end(&self, pid: u32) {
        eventually_within(END_PATIENCE, "a successor to end", || !is_gateway(pid, self.gateway.dir()));
    }

    /// Replaces the configuration file without waiting until it is read.
    pub(crate) fn configure(&self, setup: &Setup) {
        self.gateway.write_config(&with_pid_file(setup));
    }
}

pub(crate) fn with_pid_file(setup: &Setup) -> Setup {
    setup.clone().gateway("pid_file: \"{dir}/pid\"")
}

/// Waits until no child of this process is left, nor a zombie.
#[track_caller]
pub(crate) fn await_no_children(pid: u32) {
    eventually_within(END_PATIENCE, "no child to be left", || children(pid).is_empty());
}

/// The lines about the threads of a process whose names begin so, in the form of /proc/PID/stat, from the state on.
pub(crate) fn threads(pid: u32, name: &str) -> Vec<String> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    // One may end meanwhile.
    let stats = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("stat")).ok());
    let named = |stat: String| {
        let (named, rest) = stat.rsplit_once(") ")?;
        named.contains(&format!("({name}")).then(|| rest.to_owned())
    };
    stats.filter_map(named).collect()
}

/// Waits until all workers of a process sleep: earlier orders are then carried out.
#[track_caller]
pub(crate) fn await_rest(pid: u32) {
    eventually("the workers to rest", || threads(pid, "worker-").iter().all(|stat| stat.starts_with('S')));
}

/// Whether the command has only lost its patience on a busy machine: the gateway goes on with the upgrade.
pub(crate) fn is_impatient(complaint: &str) -> bool {
    ["did not start a new one", "has not finished the upgrade"].iter().any(|what| complaint.contains(what))
}

/// Whether another process has taken over from this one.
pub(crate) fn has_left(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).map_or(true, |name| name.trim() == "stillgate-old")
}

/// Sends a signal without a shell, which on a busy machine takes longer than the signal may.
#[track_caller]
pub(crate) fn signal(pid: u32, name: &str) {
    let signal = match name {
        "CONT" => Signal::CONT,
        "HUP" => Signal::HUP,
        "INT" => Signal::INT,
        "KILL" => Signal::KILL,
        "STOP" => Signal::STOP,
        "TERM" => Signal::TERM,
        "USR1" => Signal::USR1,
        "USR2" => Signal::USR2,
        _ => panic!("which signal is {name}?"),
    };
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("the number of a process");
    kill_process(pid, signal).unwrap_or_else(|error| panic!("{name} to {pid:?}: {error}"));
}

/// Runs these lines of the shell, which must succeed.
pub(crate) fn sh(script: &str) {
    let output = Command::new("sh").args(["-c", script]).output().expect("run sh");
    assert!(output.status.success(), "{script}: {output:?}");
}

/// A file in a folder of its own that runs these lines of the shell.
pub(crate) fn script(lines: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("wrapper");
    sh(&format!("printf '%s\\n' '#!/bin/sh' '{lines}' > {0} && chmod +x {0}", file.display()));
    (dir, file)
}
