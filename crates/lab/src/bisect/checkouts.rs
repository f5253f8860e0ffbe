//! A worktree of each commit, built once and kept while the bisection needs it.
//!
//! Worktrees are in the user's cache, in a folder named by the repository, the build command and the patch, so a
//! resumed bisection, or another one of the same repository, finds the builds. A marker is written after a build, so a
//! build that was killed is repeated. The repository itself is not changed, except for its list of worktrees.

use super::command::{self, CommandContext, CommandOptions, CommandOutcome, last_lines};
use super::patch::Patch;
use crate::compare::revisions::{default_cache, short_hash};
use crate::error::{Error, Result};
use crate::git::{git, short};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The folder of the worktrees, and how commits are built.
#[derive(Debug)]
pub(crate) struct Checkouts {
    top: PathBuf,
    folder: PathBuf,
    build: Option<String>,
    patch: Option<Patch>,
    limit: Duration,
    /// Environment of its commands, without that of the commit.
    pub(crate) environment: Vec<(&'static str, OsString)>,
}

/// The result of a build.
#[derive(Debug)]
pub(crate) enum BuildOutcome {
    /// It succeeded; `reused` means that it was already there.
    There { place: CommandContext, reused: bool },
    /// It failed for this reason.
    Failed(String),
    /// The user interrupted it.
    Stopped,
}

impl Checkouts {
    pub(crate) fn open(
        top: &Path,
        cache: Option<&Path>,
        build: Option<&str>,
        patch: Option<Patch>,
        limit: Duration,
    ) -> Result<Checkouts> {
        let cache = match cache {
            Some(cache) => std::path::absolute(cache)
                .map_err(|error| Error::new(format!("--cache {}: {error}", cache.display())))?,
            None => default_cache()?,
        };
        let top_name = top.to_string_lossy();
        let patched = patch.as_ref().map(|patch| patch.applied.sha256.as_str());
        let words: Vec<&str> = [&top_name, build.unwrap_or_default()].into_iter().chain(patched).collect();
        let hash = short_hash(&words);
        let folder = cache.join("bisect").join(hash);
        fs::create_dir_all(&folder).map_err(|error| {
            Error::new(format!("cannot make the cache {}: {error}; choose another with --cache", folder.display()))
        })?;
        Ok(Checkouts {
            top: top.to_owned(),
            folder,
            build: build.map(str::to_owned),
            patch,
            limit,
            environment: Vec::new(),
        })
    }

    /// The default path of a bisection's record.
    pub(crate) fn record_path(&self, question: &str) -> PathBuf {
        self.folder.join(format!("bisect-{}.json", short_hash(&[question])))
    }

    /// Whether a commit is already built.
    pub(crate) fn is_built(&self, commit: &str) -> bool {
        self.marker(commit).is_file() && self.worktree(commit).is_dir()
    }

    /// Checks a commit out and builds it, unless that is done.
    pub(crate) fn build(&self, commit: &str, stop: &AtomicBool) -> Result<BuildOutcome> {
        let worktree = self.worktree(commit);
        if self.is_built(commit) {
            return Ok(BuildOutcome::There { place: self.place(worktree, commit), reused: true });
        }
        // Left by a killed run.
        self.remove(commit);
        let shown = worktree.to_string_lossy();
        if let Err(why) = git(&self.top, &["worktree", "add", "--force", "--detach", "--quiet", &shown, commit])? {
            return Ok(BuildOutcome::Failed(format!("cannot be checked out: {}", why.trim())));
        }
        if let Some(patch) = &self.patch
            && let Err(why) = patch.apply(&worktree)?
        {
            self.remove(commit);
            return Ok(BuildOutcome::Failed(why));
        }
        let place = self.place(worktree, commit);
        let manner = CommandOptions { place: &place, limit: self.limit, stop };
        let submodules = place.folder.join(".gitmodules").is_file().then_some(SUBMODULES);
        for (what, words) in [("its submodules", submodules), ("its build", self.build.as_deref())] {
            let Some(words) = words else { continue };
            let why = match command::run(words, &manner)? {
                CommandOutcome::Ended { status, .. } if status.success() => continue,
                CommandOutcome::Stopped => return Ok(BuildOutcome::Stopped),
                CommandOutcome::TimedOut => format!("{what}: not done after {} s", self.limit.as_secs()),
                CommandOutcome::Ended { status, stdout, stderr } => {
                    let said = if stderr.trim().is_empty() { stdout } else { stderr };
                    format!("{what} failed ({status}): {}", last_lines(&said))
                }
            };
            self.remove(commit);
            return Ok(BuildOutcome::Failed(why));
        }
        fs::write(self.marker(commit), commit)
            .map_err(|error| Error::new(format!("{}: {error}", self.marker(commit).display())))?;
        Ok(BuildOutcome::There { place, reused: false })
    }

    /// Removes the worktree of a commit.
    pub(crate) fn remove(&self, commit: &str) {
        let worktree = self.worktree(commit);
        let shown = worktree.to_string_lossy();
        // There usually is none; leftovers matter to the next `add` only, which reports them.
        let _ = fs::remove_file(self.marker(commit));
        let _ = git(&self.top, &["worktree", "remove", "--force", "--force", &shown]);
        let _ = fs::remove_dir_all(&worktree);
    }

    fn place(&self, worktree: PathBuf, commit: &str) -> CommandContext {
        let mut environment =
            vec![("STILLGATE_COMMIT", commit.into()), ("STILLGATE_WORKTREE", worktree.clone().into_os_string())];
        environment.extend(self.environment.iter().cloned());
        CommandContext { folder: worktree, environment }
    }

    fn worktree(&self, commit: &str) -> PathBuf {
        self.folder.join(short(commit))
    }

    fn marker(&self, commit: &str) -> PathBuf {
        self.folder.join(format!("{}.built", short(commit)))
    }
}

/// Worktrees are created without submodules.
const SUBMODULES: &str = "git submodule update --init --recursive --quiet";
