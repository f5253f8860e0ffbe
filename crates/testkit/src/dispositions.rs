//! Signal dispositions of a test's children: the defaults, regardless of the environment of the test itself.
//!
//! `nohup`, and a shell that starts a background job, ignore SIGHUP, SIGINT or SIGQUIT, and children inherit that. Some
//! programs respect it, so a test would signal them in vain. A signal with a handler is reset when a program is
//! started: so an ignored signal gets a handler that does nothing, which is equivalent for this process.

use signal_hook::consts::{SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::flag;
use std::sync::Once;
use stillgate_rig::proc::Status;

const SIGNALS: [i32; 8] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGCHLD];

/// From here on children are started without ignoring any of [`SIGNALS`].
pub(crate) fn reset_in_children() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        let status = Status::read("self").expect("/proc is there");
        for signal in SIGNALS.into_iter().filter(|signal| status.ignores(*signal)) {
            flag::register(signal, std::sync::Arc::default()).expect("it may be handled");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{END_PATIENCE, Process, eventually};
    use std::process::Command;
    use stillgate_rig::proc;

    /// In separate processes: the first ignores signals, the second is this test again, the third its child.
    #[test]
    fn children_ignore_nothing() {
        const AGAIN: &str = "STILLGATE_TEST_DISPOSITIONS";
        if std::env::var_os(AGAIN).is_none() {
            let mut shell = Command::new("sh");
            shell.args(["-c", r#"trap "" HUP INT QUIT CHLD; exec "$0" "$@""#]).arg(std::env::current_exe().unwrap());
            shell.args(["--exact", "dispositions::tests::children_ignore_nothing"]).env(AGAIN, "1");
            let output = shell.output().unwrap();
            let passed = String::from_utf8_lossy(&output.stdout).contains("1 passed");
            assert!(output.status.success() && passed, "{output:?}");
            return;
        }
        let status = Status::read("self").unwrap();
        assert!(status.ignores(SIGHUP) && status.ignores(SIGINT), "{status:?}");
        let folder = tempfile::tempdir().unwrap();
        for name in ["HUP", "INT", "QUIT"] {
            let mut command = Command::new("sleep");
            let mut child = Process::spawn("sleep", command.arg("600"), &folder.path().join("log"));
            eventually("it to run", || proc::name(child.pid()).is_ok_and(|name| name == "sleep"));
            child.signal(name);
            assert!(!child.wait_within(END_PATIENCE).success(), "{name}");
        }
    }
}
