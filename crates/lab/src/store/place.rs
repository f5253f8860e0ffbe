//! The location of a store: a folder, or a separate branch of the repository (`git:bench`), so that it travels with the
//! repository and is in no commit of the code.
//!
//! The branch begins without a parent. It is checked out in a worktree in the user's cache; each night is a commit.
//! Pushing it is left to the user.

use crate::compare::revisions::{default_cache, short_hash};
use crate::error::{Error, Result};
use crate::git::{self, git};
use std::path::{Path, PathBuf};

/// Prefix of a branch in place of a folder.
const BRANCH: &str = "git:";

/// The committer if git has none configured, as for a machine's service.
const NAME: &str = "user.name=stillgate-lab";
const EMAIL: &str = "user.email=stillgate-lab@localhost";

/// A store that can be read and appended to.
#[derive(Debug)]
pub(crate) struct StoreLocation {
    pub(crate) folder: PathBuf,
    is_branch: bool,
}

impl StoreLocation {
    /// `text` is a folder or `git:BRANCH`; `repo` any folder of the repository, `cache` the folder of worktrees.
    pub(crate) fn open(text: &str, repo: &Path, cache: Option<&Path>) -> Result<StoreLocation> {
        let Some(branch) = text.strip_prefix(BRANCH) else {
            return Ok(StoreLocation { folder: PathBuf::from(text), is_branch: false });
        };
        let failed = |why: String| Error::new(format!("--store {text}: {}", why.trim()));
        let done = |folder: &Path, words: &[&str]| git(folder, words)?.map_err(failed);
        done(repo, &["check-ref-format", "--branch", branch])?;
        let top = PathBuf::from(git::top(repo)?);
        let cache = cache.map_or_else(default_cache, |cache| Ok(cache.to_owned()))?;
        let cache = std::path::absolute(&cache).map_err(|error| failed(error.to_string()))?;
        let folder = cache.join("stores").join(short_hash(&[&top.to_string_lossy(), branch]));
        let shown = folder.to_string_lossy();
        let reference = format!("refs/heads/{branch}");
        let (is_there, is_checked_out) =
            (git(&top, &["rev-parse", "--verify", "--quiet", &reference])?.is_ok(), folder.join(".git").exists());
        if is_there && is_checked_out {
            // Others may have added to it.
            done(&folder, &["reset", "--hard", "--quiet"])?;
        } else if is_there {
            done(&top, &["worktree", "add", "--force", "--quiet", &shown, branch])?;
        } else if !is_checked_out {
            done(&top, &["worktree", "add", "--force", "--detach", "--no-checkout", "--quiet", &shown, "HEAD"])?;
            done(&folder, &["checkout", "--quiet", "--orphan", branch])?;
            // Files of the code's commit are not part of it.
            done(&folder, &["read-tree", "--empty"])?;
            done(&folder, &["clean", "--force", "-d", "-x", "--quiet"])?;
        }
        Ok(StoreLocation { folder, is_branch: true })
    }

    /// Commits the appended lines.
    pub(crate) fn keep(&self, message: &str) -> Result {
        if !self.is_branch {
            return Ok(());
        }
        let done = |words: &[&str]| {
            git(&self.folder, words)?.map_err(|why| {
                Error::new(format!("{}: the night cannot be committed: {}", self.folder.display(), why.trim()))
            })
        };
        done(&["add", "--all"])?;
        let is_known = git(&self.folder, &["config", "user.email"])?.is_ok();
        let who: &[&str] = if is_known { &[] } else { &["-c", NAME, "-c", EMAIL] };
        done(&[who, &["commit", "--quiet", "--message", message]].concat()).map(drop)
    }
}
