//! A worktree of each commit, built once and kept while the bisection needs it.
//!
//! Worktrees are in the user's cache, in a folder named by the repository, the build command and the patch, so a
//! resumed bisection, or another one of the same repository, finds the builds. A marker is written after a build, so a
//! build that was killed is repeated. The repository itself is not changed, except for its list of worktrees.

use super::candidates::Versions;
use super::measurement::{self, CommandContext, CommandOptions, CommandOutcome, last_lines};
use crate::error::{Error, Result};
use crate::git::{default_cache, short_hash};
use crate::git::{git, short};
use crate::result::bisect::{Applied, CommitRecord};
use crate::target::sha256;
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
            let why = match measurement::run_command(words, &manner)? {
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

// A patch that is applied to every commit before it is built, for example a probe that older ones lack.

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

// The source of the measured things: commits, which are built, or versions that were built before.

#[derive(Debug)]
pub(crate) enum CheckoutSource {
    Commits(Checkouts),
    Versions(Versions),
}

impl CheckoutSource {
    /// Whether it is already built.
    pub(crate) fn is_built(&self, record: &CommitRecord) -> bool {
        match self {
            CheckoutSource::Commits(checkouts) => checkouts.is_built(&record.commit),
            CheckoutSource::Versions(_) => true,
        }
    }

    /// Prepares it for a measurement.
    pub(crate) fn build(&self, record: &CommitRecord, stop: &AtomicBool) -> Result<BuildOutcome> {
        match (self, &record.artefact) {
            (CheckoutSource::Commits(checkouts), _) => checkouts.build(&record.commit, stop),
            (CheckoutSource::Versions(versions), Some(artefact)) => Ok(versions.ready(&record.commit, artefact)),
            (CheckoutSource::Versions(_), None) => Ok(BuildOutcome::Failed("no artefact is recorded".to_owned())),
        }
    }

    /// The default path of a bisection's record.
    pub(crate) fn record_path(&self, question: &str) -> PathBuf {
        match self {
            CheckoutSource::Commits(checkouts) => checkouts.record_path(question),
            CheckoutSource::Versions(versions) => versions.record_path(question),
        }
    }

    /// Removes what was built for them.
    pub(crate) fn tidy(&self, records: &[CommitRecord]) {
        if let CheckoutSource::Commits(checkouts) = self {
            let built = records.iter().filter(|record| checkouts.is_built(&record.commit));
            built.for_each(|record| checkouts.remove(&record.commit));
        }
    }
}
