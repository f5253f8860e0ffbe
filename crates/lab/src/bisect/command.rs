//! One run of a command of the user's, within a time limit.
//!
//! Of its outputs the end is kept, which has the number that it measured, or what it complains about.

use crate::error::{Error, Result};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use stillgate_rig::group::{self, Outcome};

/// Of each output, the end is kept.
const OUTPUT_BYTES_MAX: u64 = 64 * 1024;

/// Lines of its complaints that are shown.
const LINES_SHOWN_MAX: usize = 12;

/// Where commands about a commit or a version run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) folder: PathBuf,
    /// By which they know what they are about.
    pub(crate) environment: Vec<(&'static str, OsString)>,
}

/// Where, and for how long at most, a command runs.
pub(crate) struct Manner<'a> {
    pub(crate) place: &'a Place,
    pub(crate) limit: Duration,
    /// Set where the user wants an end.
    pub(crate) stop: &'a AtomicBool,
}

/// How it ended.
#[derive(Debug)]
pub(crate) enum Done {
    /// By itself.
    Ended { status: ExitStatus, stdout: String, stderr: String },
    /// It took longer than it may.
    TimedOut,
    /// The user wants an end.
    Stopped,
}

/// Runs it by the shell, as it would be typed.
pub(crate) fn run(words: &str, manner: &Manner<'_>) -> Result<Done> {
    let cannot = |error: std::io::Error| Error::new(format!("cannot run {words:?}: {error}"));
    let (mut out, mut err) = (tempfile::tempfile().map_err(cannot)?, tempfile::tempfile().map_err(cannot)?);
    let mut command = Command::new("sh");
    command
        .args(["-c", words])
        .current_dir(&manner.place.folder)
        // Of this very version for all commits: what measures must not change with what is measured.
        .envs(std::env::current_exe().map(|own| ("STILLGATE_LAB", own)))
        .envs(manner.place.environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(out.try_clone().map_err(cannot)?)
        .stderr(err.try_clone().map_err(cannot)?);
    // In a hook these name the repository of the hook.
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(variable);
    }
    Ok(match group::run(&mut command, Some(manner.limit), manner.stop).map_err(cannot)? {
        Outcome::Exit(status) => Done::Ended { status, stdout: end_of(&mut out), stderr: end_of(&mut err) },
        Outcome::Timeout => Done::TimedOut,
        Outcome::Interrupt => Done::Stopped,
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
    // An output that cannot be read has no number in it, which is said then.
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn done(words: &str, limit: Duration, stop: bool) -> Done {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(stop);
        run(words, &Manner { place: &place(folder.path()), limit, stop: &stop }).unwrap()
    }

    fn place(folder: &Path) -> Place {
        Place { folder: folder.to_owned(), environment: vec![("STILLGATE_COMMIT", "abc".into())] }
    }

    #[test]
    fn outputs_are_told_apart() {
        let done = done("echo $STILLGATE_COMMIT; echo no >&2; exit 7", Duration::from_secs(60), false);
        let Done::Ended { status, stdout, stderr } = done else { panic!("{done:?}") };
        assert_eq!((status.code(), stdout.as_str(), stderr.as_str()), (Some(7), "abc\n", "no\n"));
    }

    #[test]
    fn a_wish_to_end_is_heard() {
        let done = done("exec sleep 600", Duration::from_secs(600), true);
        assert!(matches!(done, Done::Stopped), "{done:?}");
    }
}
