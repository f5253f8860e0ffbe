//! Git revisions of a Cargo project: each is built once, in its own worktree, and kept.
//!
//! A revision's binary is kept under its commit, profile, package and compiler, so a comparison with the same release
//! tomorrow builds one side only. All revisions of a repository share a target folder, so that their dependencies are
//! compiled once. The repository itself is not changed, except for the worktree during a build. Concurrent runs wait
//! for each other at a lock that ends with its holder.
//!
//! A failed build is reported with the compiler's last lines.

use crate::error::{Error, Result};
use crate::git::{self, git, run, short};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lines of a failed build's output that are shown.
const BUILD_LINES_MAX: usize = 30;

/// What to build of a project, and how.
#[derive(Debug, Clone)]
pub(crate) struct Build {
    pub(crate) package: Option<String>,
    pub(crate) bin: Option<String>,
    pub(crate) profile: String,
}

/// A repository with its cache.
#[derive(Debug)]
pub(crate) struct Repository {
    top: PathBuf,
    /// Path of the project within the repository.
    prefix: PathBuf,
    cache: PathBuf,
    build: Build,
}

/// A built revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BuiltRevision {
    pub(crate) commit: String,
    pub(crate) binary: PathBuf,
    /// Whether it was already built.
    pub(crate) reused: bool,
}

impl Repository {
    /// `folder` is any folder of the repository that has the project's `Cargo.toml`; `cache` holds the builds of all
    /// repositories.
    pub(crate) fn open(folder: &Path, cache: &Path, build: Build) -> Result<Repository> {
        let top = git::top(folder)?;
        let prefix = git(folder, &["rev-parse", "--show-prefix"])?.map_err(Error::new)?;
        let top = PathBuf::from(top);
        let name = top.file_name().map_or_else(|| "repository".into(), |name| name.to_string_lossy());
        let cache = cache.join(format!("{name}-{}", short_hash(&[&top.to_string_lossy()])));
        fs::create_dir_all(&cache).map_err(|error| {
            Error::new(format!("cannot make the cache {}: {error}; choose another with --cache", cache.display()))
        })?;
        Ok(Repository { top, prefix: PathBuf::from(prefix), cache, build })
    }

    /// A note if there are uncommitted changes, which are in no revision.
    pub(crate) fn uncommitted(&self) -> Result<Option<String>> {
        git::uncommitted(&self.top)
    }

    /// The full name of a commit.
    pub(crate) fn commit(&self, revision: &str) -> Result<String> {
        git::commit(&self.top, revision)
    }

    /// The binary of a commit. `note` is called before anything that takes long.
    pub(crate) fn binary(&self, commit: &str, mut note: impl FnMut(&str)) -> Result<BuiltRevision> {
        let kept = self.cache.join("binaries").join(format!("{}-{}", short(commit), self.key()?));
        if let Some(binary) = the_file_in(&kept) {
            return Ok(BuiltRevision { commit: commit.to_owned(), binary, reused: true });
        }
        let _lock = self.lock(&mut note)?;
        // Another run may have built it while this one waited.
        if let Some(binary) = the_file_in(&kept) {
            return Ok(BuiltRevision { commit: commit.to_owned(), binary, reused: true });
        }
        note(&format!("building {} (its dependencies only once)", short(commit)));
        let worktree = Worktree::add(&self.top, &self.cache, commit)?;
        let executable = self.compile(&worktree.path.join(&self.prefix), commit)?;
        let binary = keep(&executable, &kept)?;
        Ok(BuiltRevision { commit: commit.to_owned(), binary, reused: false })
    }

    /// Everything but the commit that a binary depends on.
    fn key(&self) -> Result<String> {
        let rustc = run(Command::new("rustc").arg("-vV").current_dir(self.top.join(&self.prefix)), "rustc")?;
        let Build { package, bin, profile } = &self.build;
        let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
        let words = [package.as_deref().unwrap_or_default(), bin.as_deref().unwrap_or_default(), profile, &flags];
        let prefix = self.prefix.to_string_lossy();
        Ok(short_hash(&[&String::from_utf8_lossy(&rustc.stdout), &prefix, &words.join("\n")]))
    }

    /// Held until it is dropped; the system releases it if the process ends in any other way.
    fn lock(&self, note: &mut impl FnMut(&str)) -> Result<File> {
        let path = self.cache.join("lock");
        let failed = |error: std::io::Error| Error::new(format!("cannot lock {}: {error}", path.display()));
        let file = File::create(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                note("another run builds in the same cache; waiting for it");
                file.lock().map_err(failed)?;
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        Ok(file)
    }

    fn compile(&self, folder: &Path, commit: &str) -> Result<PathBuf> {
        let Build { package, bin, profile } = &self.build;
        let mut cargo = Command::new("cargo");
        cargo.current_dir(folder).env("CARGO_TARGET_DIR", self.cache.join("target")).args([
            "build",
            "--profile",
            profile,
            "--message-format",
            "json-render-diagnostics",
        ]);
        if let Some(package) = package {
            cargo.args(["--package", package]);
        }
        if let Some(bin) = bin {
            cargo.args(["--bin", bin]);
        }
        let output = run(&mut cargo, "cargo")?;
        if !output.status.success() {
            let log = String::from_utf8_lossy(&output.stderr);
            return Err(Error::new(format!("{} does not build:\n{}", short(commit), last_lines(&log))));
        }
        let mut executables = executables(&String::from_utf8_lossy(&output.stdout));
        match executables.len() {
            1 => Ok(executables.remove(0)),
            0 => Err(Error::new(format!("{} builds no binary; choose one with --package and --bin", short(commit)))),
            _ => {
                let names: Vec<_> = executables.iter().filter_map(|path| path.file_name()?.to_str()).collect();
                Err(Error::new(format!(
                    "{} builds several binaries ({}); choose one with --bin",
                    short(commit),
                    names.join(", ")
                )))
            }
        }
    }
}

/// Default folder of builds, without `--cache`.
pub(crate) fn default_cache() -> Result<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_CACHE_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".cache")))
        .map(|cache| cache.join("stillgate-lab"))
        .ok_or_else(|| "neither XDG_CACHE_HOME nor HOME is set; choose a folder for builds with --cache".into())
}

/// A checkout besides the repository's own, removed when dropped.
struct Worktree<'a> {
    top: &'a Path,
    path: PathBuf,
}

impl<'a> Worktree<'a> {
    fn add(top: &'a Path, cache: &Path, commit: &str) -> Result<Worktree<'a>> {
        let path = cache.join("worktrees").join(short(commit));
        let worktree = Worktree { top, path };
        // Left by a killed run.
        worktree.remove();
        let shown = worktree.path.to_string_lossy();
        git(top, &["worktree", "add", "--force", "--detach", "--quiet", &shown, commit])?
            .map_err(|why| Error::new(format!("cannot check out {}: {}", short(commit), why.trim())))?;
        Ok(worktree)
    }

    fn remove(&self) {
        let shown = self.path.to_string_lossy();
        // There usually is none; leftovers matter to the next `add` only, which reports them.
        let _ = git(self.top, &["worktree", "remove", "--force", &shown]);
        let _ = fs::remove_dir_all(&self.path);
    }
}

impl Drop for Worktree<'_> {
    fn drop(&mut self) {
        self.remove();
    }
}

fn executables(messages: &str) -> Vec<PathBuf> {
    let executable = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    };
    messages.lines().filter_map(executable).collect()
}

/// Copies a binary to the cache; a folder of this name is either complete or absent.
fn keep(executable: &Path, kept: &Path) -> Result<PathBuf> {
    let failed = |error: std::io::Error| Error::new(format!("cannot keep a binary in {}: {error}", kept.display()));
    let name = executable.file_name().unwrap_or(executable.as_os_str());
    let partial = kept.with_extension("partial");
    fs::create_dir_all(&partial).map_err(failed)?;
    fs::copy(executable, partial.join(name)).map_err(failed)?;
    fs::rename(&partial, kept).map_err(failed)?;
    Ok(kept.join(name))
}

fn the_file_in(folder: &Path) -> Option<PathBuf> {
    Some(fs::read_dir(folder).ok()?.next()?.ok()?.path())
}

fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(BUILD_LINES_MAX)..].join("\n")
}

pub(crate) fn short_hash(parts: &[&str]) -> String {
    const BYTES: usize = 8;
    let digest = Sha256::digest(parts.join("\0"));
    digest[..BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
}
