//! Ends a process group when this program ends, whatever ends it.
//!
//! A shell waits on a pipe from us: when we end, by `kill -9` too, the pipe closes and the shell ends the group. That needs no
//! unsafe code and no handler of signals. (The kernel's own means, a signal at the death of the parent, must be asked for
//! between fork and exec, and reaches no grandchildren.) A program that leaves its process group is not held by this.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

/// Reads the group, waits for the end of its input, then ends the group: politely, then not.
const SCRIPT: &str =
    r#"read -r group || exit; read -r line; kill -s TERM -- "-$group"; sleep 3; kill -s KILL -- "-$group""#;

/// Watches over one group until it is dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) shell: Child,
}

impl Guard {
    /// Is started before the group, so that starting it takes no time from what is measured.
    pub(crate) fn start() -> io::Result<Guard> {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Guard { shell: command.process_group(0).spawn()? })
    }

    /// From now on the group of this process ends with us.
    pub(crate) fn watch(&mut self, leader: u32) -> io::Result<()> {
        let input = self.shell.stdin.as_mut().expect("it was piped above");
        writeln!(input, "{leader}")
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Before its input closes: what it watched has ended, and its number may be another's soon.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}
