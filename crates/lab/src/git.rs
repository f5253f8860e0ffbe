//! Runs git: its answer, or its error message; and the cache in which checkouts are kept.

use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Characters of a commit's name in folders and messages.
const COMMIT_CHARACTERS: usize = 12;

/// Length of full names, by the repository's hash.
const SHA1_CHARACTERS: usize = 40;
const SHA256_CHARACTERS: usize = 64;

/// Git's answer, or its error message.
pub(crate) fn git(folder: &Path, words: &[&str]) -> Result<Result<String, String>> {
    let mut command = Command::new("git");
    // When run from a git hook, these name the hook's repository.
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(variable);
    }
    let output = run(command.arg("-C").arg(folder).args(words), "git")?;
    Ok(if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    })
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command, name: &str) -> Result<Output> {
    command
        .output()
        .map_err(|error| Error::new(format!("cannot run {name}: {error}; git revisions need git and cargo")))
}

/// The first characters of a commit's full name; the name of a version as it is.
pub(crate) fn short(commit: &str) -> &str {
    let is_full = [SHA1_CHARACTERS, SHA256_CHARACTERS].contains(&commit.len());
    let is_hash = is_full && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hash { &commit[..COMMIT_CHARACTERS] } else { commit }
}

/// The full name of a commit.
pub(crate) fn commit(top: &Path, revision: &str) -> Result<String> {
    let wanted = format!("{revision}^{{commit}}");
    git(top, &["rev-parse", "--verify", "--quiet", "--end-of-options", &wanted])?.map_err(|_| {
        let top = top.display();
        Error::new(format!(
            "{revision:?} is not a revision of {top}; `git -C {top} log --oneline --all` shows them \
             (in a shallow clone, fetch it first)"
        ))
    })
}

/// The root of the repository that a folder is in.
pub(crate) fn top(folder: &Path) -> Result<String> {
    let shown = folder.display();
    git(folder, &["rev-parse", "--show-toplevel"])?.map_err(|why| {
        Error::new(format!("--repo {shown}: no git repository ({}); name a folder of a clone", why.trim()))
    })
}

/// A note if there are uncommitted changes, which are in no revision.
pub(crate) fn uncommitted(top: &Path) -> Result<Option<String>> {
    let changed = git(top, &["status", "--porcelain", "--untracked-files=no"])?.map_err(Error::new)?;
    Ok((!changed.is_empty())
        .then(|| format!("{} has uncommitted changes; revisions are built as committed, without them", top.display())))
}

/// The folder of checkouts and builds without `--cache`.
pub(crate) fn default_cache() -> Result<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_CACHE_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".cache")))
        .map(|cache| cache.join("stillgate-lab"))
        .ok_or_else(|| "neither XDG_CACHE_HOME nor HOME is set; choose a folder for builds with --cache".into())
}

/// A name for a folder of the cache, from what it is for.
pub(crate) fn short_hash(parts: &[&str]) -> String {
    const BYTES: usize = 8;
    let digest = Sha256::digest(parts.join("\0"));
    digest[..BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
}
