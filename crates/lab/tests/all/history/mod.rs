//! Repositories made for tests: commits whose files determine the measurements, made at once by `git fast-import`.

// Each test file uses a part of this.
#![allow(dead_code)]

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A repository, in a folder whose name has a space.
pub(crate) struct History {
    folder: TempDir,
    /// Names of the commits, in the order they were given.
    pub(crate) commits: Vec<String>,
}

/// A commit to be made: files with their contents, and the number of a commit that is merged.
#[derive(Clone, Default)]
pub(crate) struct CommitSpec {
    pub(crate) files: Vec<(&'static str, String)>,
    /// Replaces the commit before as parent; numbers begin with 0.
    pub(crate) parent: Option<usize>,
    pub(crate) merged: Option<usize>,
}

impl History {
    pub(crate) fn new(planned: &[CommitSpec]) -> History {
        let folder = tempfile::tempdir().unwrap();
        let repository = folder.path().join("a repository");
        std::fs::create_dir(&repository).unwrap();
        git(&repository, &["init", "--quiet", "--initial-branch", "main"]);
        let mut stream = String::new();
        for (number, commit) in planned.iter().enumerate() {
            let message = format!("Change {number}");
            let when = 1_700_000_000 + number;
            writeln!(stream, "commit refs/heads/main\nmark :{}\ncommitter A <a@example.org> {when} +0000", number + 1)
                .unwrap();
            writeln!(stream, "data {}\n{message}", message.len()).unwrap();
            if let Some(parent) = commit.parent.or(number.checked_sub(1)) {
                writeln!(stream, "from :{}", parent + 1).unwrap();
            }
            if let Some(merged) = commit.merged {
                writeln!(stream, "merge :{}", merged + 1).unwrap();
            }
            for (name, content) in &commit.files {
                writeln!(stream, "M 100644 inline {name}\ndata {}\n{content}", content.len()).unwrap();
            }
        }
        let marks = folder.path().join("marks");
        let mut import = Command::new("git")
            .arg("-C")
            .arg(&repository)
            .args(["fast-import", "--quiet"])
            .arg(format!("--export-marks={}", marks.display()))
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        import.stdin.take().unwrap().write_all(stream.as_bytes()).unwrap();
        assert!(import.wait().unwrap().success());
        git(&repository, &["reset", "--quiet", "--hard", "main"]);
        let marks = std::fs::read_to_string(marks).unwrap();
        let mut named: Vec<(usize, String)> = marks
            .lines()
            .map(|line| {
                let (mark, name) = line.split_once(' ').unwrap();
                (mark.trim_start_matches(':').parse().unwrap(), name.to_owned())
            })
            .collect();
        named.sort();
        History { commits: named.into_iter().map(|(_, name)| name).collect(), folder }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("a repository")
    }

    /// A path for files next to the repository.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `stillgate-lab bisect` from the first commit to the last, not started yet.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stillgate-lab"));
        command.arg("bisect").arg("--repo").arg(self.path()).arg("--cache").arg(self.beside("a cache")).args(words);
        if !words.contains(&"--good") {
            command.args(["--good", &self.commits[0]]);
        }
        command.stdin(Stdio::null());
        command
    }
}

pub(crate) fn git(folder: &Path, words: &[&str]) {
    let output = Command::new("git").arg("-C").arg(folder).args(words).output().unwrap();
    assert!(output.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
}
