//! One run of one of the user's commands, within a time limit.
//!
//! Only the end of its outputs is kept: it has the measured number, or the error messages.

use crate::error::{Error, Result};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use stillgate_rig::group::{self, Outcome};

/// How much is kept of the end of each output.
const OUTPUT_BYTES_MAX: u64 = 64 * 1024;

/// Lines of its error messages that are shown.
const LINES_SHOWN_MAX: usize = 12;

/// Where commands about a commit or a version run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommandContext {
    pub(crate) folder: PathBuf,
    /// Identifies the commit or version to the commands.
    pub(crate) environment: Vec<(&'static str, OsString)>,
}

/// Where a command runs, and its time limit.
pub(crate) struct CommandOptions<'a> {
    pub(crate) place: &'a CommandContext,
    pub(crate) limit: Duration,
    /// Set when the user interrupts.
    pub(crate) stop: &'a AtomicBool,
}

/// How it ended.
#[derive(Debug)]
pub(crate) enum CommandOutcome {
    /// It exited by itself.
    Ended { status: ExitStatus, stdout: String, stderr: String },
    /// It exceeded its time limit.
    TimedOut,
    /// The user interrupted it.
    Stopped,
}

/// Runs it in the shell, as if it were typed there.
pub(crate) fn run(words: &str, manner: &CommandOptions<'_>) -> Result<CommandOutcome> {
    let cannot = |error: std::io::Error| Error::new(format!("cannot run {words:?}: {error}"));
    let (mut out, mut err) = (tempfile::tempfile().map_err(cannot)?, tempfile::tempfile().map_err(cannot)?);
    let mut command = Command::new("sh");
    command
        .args(["-c", words])
        .current_dir(&manner.place.folder)
        // From this version for all commits: the measuring code must not change with the measured code.
        .envs(std::env::current_exe().map(|own| ("STILLGATE_LAB", own)))
        .envs(manner.place.environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(out.try_clone().map_err(cannot)?)
        .stderr(err.try_clone().map_err(cannot)?);
    // When run from a git hook, these name the hook's repository.
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(variable);
    }
    Ok(match group::run(&mut command, Some(manner.limit), manner.stop).map_err(cannot)? {
        Outcome::Exit(status) => CommandOutcome::Ended { status, stdout: end_of(&mut out), stderr: end_of(&mut err) },
        Outcome::Timeout => CommandOutcome::TimedOut,
        Outcome::Interrupt => CommandOutcome::Stopped,
    })
}

/// The last lines of a text.
pub(crate) fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(LINES_SHOWN_MAX)..].join("\n")
}

fn end_of(file: &mut File) -> String {
    let mut read = || -> std::io::Result<Vec<u8>> {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(OUTPUT_BYTES_MAX)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    // An output that cannot be read has no number in it, which is reported later.
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn done(words: &str, limit: Duration, stop: bool) -> CommandOutcome {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(stop);
        run(words, &CommandOptions { place: &place(folder.path()), limit, stop: &stop }).unwrap()
    }

    fn place(folder: &Path) -> CommandContext {
        CommandContext { folder: folder.to_owned(), environment: vec![("STILLGATE_COMMIT", "abc".into())] }
    }

    #[test]
    fn outputs_are_kept_apart() {
        let done = done("echo $STILLGATE_COMMIT; echo no >&2; exit 7", Duration::from_secs(60), false);
        let CommandOutcome::Ended { status, stdout, stderr } = done else { panic!("{done:?}") };
        assert_eq!((status.code(), stdout.as_str(), stderr.as_str()), (Some(7), "abc\n", "no\n"));
    }

    #[test]
    fn a_wish_to_end_is_heard() {
        let done = done("exec sleep 600", Duration::from_secs(600), true);
        assert!(matches!(done, CommandOutcome::Stopped), "{done:?}");
    }
}
