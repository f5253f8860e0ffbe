//! A patch that is applied to every commit before it is built, for example a probe that older ones lack.

use super::command::last_lines;
use crate::error::{Error, Result};
use crate::git::git;
use crate::result::bisect::Applied;
use crate::target::sha256;
use std::path::{Path, PathBuf};

/// A patch file, with its content when the bisection began.
#[derive(Debug)]
pub(crate) struct Patch {
    path: PathBuf,
    pub(crate) applied: Applied,
}

impl Patch {
    pub(crate) fn open(path: &Path) -> Result<Patch> {
        let failed = |why: &dyn std::fmt::Display| Error::new(format!("--apply {}: {why}", path.display()));
        let full = std::fs::canonicalize(path).map_err(|error| failed(&error))?;
        let sha256 =
            sha256(&full).ok_or_else(|| failed(&"cannot be read; it must be a file as `git diff` writes it"))?;
        Ok(Patch { path: full, applied: Applied { path: path.to_string_lossy().into_owned(), sha256 } })
    }

    /// Applies the patch to a worktree, or returns why it cannot. A commit that already has the change stays as it is.
    pub(super) fn apply(&self, worktree: &Path) -> Result<Result<(), String>> {
        let path = self.path.to_string_lossy();
        // Three-way, because the lines around a change differ over a history.
        let done = git(worktree, &["apply", "--3way", "--whitespace=nowarn", &path])?;
        Ok(done.map(drop).map_err(|why| format!("the patch does not apply: {}", last_lines(&why))))
    }
}
