//! Turns A and B (commands, binaries or git revisions, as typed) into targets that can be started.
//!
//! With `--repo` both are revisions. Otherwise a text with a space or a `{placeholder}` is a command, any other a
//! binary. A binary is started as the gateway given by `--target`, or else by its name, or with the arguments of
//! `--args`.
//!
//! Revisions are of a Cargo project: each is built once, in its own worktree, and kept. A revision's binary is kept under its
//! commit, profile, package and compiler, so a comparison with the same release tomorrow builds one side only. All
//! revisions of a repository share a target folder, so that their dependencies are compiled once. The repository itself is
//! not changed, except for the worktree during a build. Concurrent runs wait for each other at a lock that ends with its
//! holder. A failed build is reported with the compiler's last lines.

use crate::command_line::quoted_word;
use crate::error::{Error, Result};
use crate::git::{self, git, run, short, short_hash};
use crate::result::compare::Side;
use crate::target::{Spec, TargetKind};
use serde_json::Value;
use std::fs::{self, File, TryLockError};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names in tables are at most this long.
const NAME_CHARACTERS_MAX: usize = 48;

/// How both sides are started.
#[derive(Debug, Clone, Default)]
pub(crate) struct StartOptions {
    /// The kind of gateway; `None`: by its name.
    pub(crate) kind: Option<TargetKind>,
    /// Arguments of the binary.
    pub(crate) words: Option<String>,
    /// Address to listen at; `None`: a free port.
    pub(crate) address: Option<SocketAddr>,
    /// The gateway's configuration; `None`: one that proxies everything.
    pub(crate) configuration: Option<String>,
}

/// One side, ready to be started.
#[derive(Debug)]
pub(crate) struct ResolvedSide {
    pub(crate) spec: Spec,
    /// The commit, for a revision.
    pub(crate) revision: Option<String>,
}

/// A side from a command or a binary.
pub(crate) fn program(text: &str, side: Side, manner: &StartOptions, folder: &Path) -> Result<ResolvedSide> {
    let is_file = Path::new(text).is_file();
    if !is_file && text.contains([' ', '{']) {
        return command(text, side, manner, folder);
    }
    let path = find(text).ok_or_else(|| {
        Error::new(format!(
            "{side:?}: {text:?} is not a file and not on PATH; give a binary, a command in quotes (\"program --listen \
             {{address}}\"), or revisions with --repo"
        ))
    })?;
    Ok(ResolvedSide { spec: binary(text, &path, side, manner, folder)?, revision: None })
}

/// A side from a git revision, which is built unless that is done. `text` is its name as typed.
pub(crate) fn revision(
    text: &str,
    commit: &str,
    side: Side,
    manner: &StartOptions,
    folder: &Path,
    repository: &Repository,
    note: impl FnMut(&str),
) -> Result<ResolvedSide> {
    let built = repository.binary(commit, note).map_err(|error| error.context(format!("{side:?}, {text}")))?;
    let spec = binary(text, &built.binary, side, manner, folder)?;
    Ok(ResolvedSide { spec, revision: Some(built.commit) })
}

fn command(text: &str, side: Side, manner: &StartOptions, folder: &Path) -> Result<ResolvedSide> {
    if let Some(kind) = manner.kind.filter(|kind| *kind != TargetKind::Command) {
        return Err(Error::new(format!(
            "{side:?}: {text:?} is a command and needs no kind; leave out `--target {}`, or give the binary",
            kind.name()
        )));
    }
    if manner.configuration.is_some() {
        return Err(Error::new(format!(
            "{side:?}: {text:?} is a command; put its configuration into it instead of --config"
        )));
    }
    if manner.words.is_some() {
        return Err(Error::new(format!("{side:?}: {text:?} is a command; put the words of --args into it")));
    }
    let spec = spec(text, side, manner, folder);
    Ok(ResolvedSide { spec: Spec { command: Some(text.to_owned()), ..spec }, revision: None })
}

fn binary(text: &str, path: &Path, side: Side, manner: &StartOptions, folder: &Path) -> Result<Spec> {
    let spec = spec(text, side, manner, folder);
    let named = || path.file_name().and_then(|name| kind_in(&name.to_string_lossy()));
    let kind = manner.kind.or_else(|| if manner.words.is_some() { None } else { named() });
    let words = manner.words.as_deref();
    if manner.configuration.is_some() && matches!(kind, None | Some(TargetKind::Command)) {
        return Err(Error::new(format!("{side:?}: --config is for gateways; choose one by --target, or use --args")));
    }
    match (kind, words) {
        (Some(TargetKind::Command) | None, Some(words)) => {
            let command = format!("{} {words}", quoted_word(&path.to_string_lossy()));
            Ok(Spec { command: Some(command), ..spec })
        }
        (Some(TargetKind::Command) | None, None) => Err(Error::new(format!(
            "{side:?}: cannot tell how to start {text:?}; add --target stillgate, nginx, nginx-lua, haproxy or envoy, or its arguments: \
             --args '--listen {{address}} --upstream {{upstream}}'"
        ))),
        (Some(kind), words) => {
            let arguments = words.unwrap_or_default().split_whitespace().map(str::to_owned).collect();
            let configuration = manner.configuration.clone();
            Ok(Spec { kind, program: Some(path.to_owned()), configuration, arguments, ..spec })
        }
    }
}

/// As it was typed, with the end of a long command cut.
pub(crate) fn shown(text: &str) -> String {
    let mut name: String = text.chars().take(NAME_CHARACTERS_MAX).collect();
    if name.len() < text.len() {
        name.push('…');
    }
    name
}

fn spec(text: &str, side: Side, manner: &StartOptions, folder: &Path) -> Spec {
    let name = format!("{side:?} ({})", shown(text));
    Spec { name, address: manner.address, ..Spec::built_in(TargetKind::Command, folder.to_owned()) }
}

/// `stillgate` from `stillgate-1.2`.
fn kind_in(name: &str) -> Option<TargetKind> {
    [TargetKind::Stillgate, TargetKind::Nginx, TargetKind::Haproxy, TargetKind::Envoy]
        .into_iter()
        .find(|kind| name.starts_with(kind.name()))
}

/// A path as it is, a bare name from `PATH`.
fn find(text: &str) -> Option<PathBuf> {
    let path = Path::new(text);
    if path.is_file() {
        return std::path::absolute(path).ok();
    }
    if text.is_empty() || text.contains('/') {
        return None;
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(text)).find(|path| path.is_file())
}

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
        let kept = self.cache.join("binaries").join(format!("{}-{}", short(commit), self.build_key()?));
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
        let binary = copy_to_cache(&executable, &kept)?;
        Ok(BuiltRevision { commit: commit.to_owned(), binary, reused: false })
    }

    /// Everything but the commit that a binary depends on.
    fn build_key(&self) -> Result<String> {
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
fn copy_to_cache(executable: &Path, kept: &Path) -> Result<PathBuf> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, manner: &StartOptions, expected: Result<(TargetKind, Option<&str>), &str>) {
        let asked = program(text, Side::A, manner, Path::new("folder"));
        match (asked, expected) {
            (Ok(asked), Ok((kind, command))) => {
                assert_eq!((asked.spec.kind, asked.spec.command.as_deref()), (kind, command), "{text}");
            }
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{text}: {error}"),
            (asked, expected) => panic!("{text}: {asked:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn kinds_of_arguments_are_distinguished() {
        let plain = StartOptions::default();
        let nginx = StartOptions { kind: Some(TargetKind::Nginx), ..StartOptions::default() };
        let words = StartOptions { words: Some("-l {address}".to_owned()), ..StartOptions::default() };
        check("serve {address}", &plain, Ok((TargetKind::Command, Some("serve {address}"))));
        check("/bin/sh", &nginx, Ok((TargetKind::Nginx, None)));
        check("sh", &nginx, Ok((TargetKind::Nginx, None)));
        check("/bin/sh", &words, Ok((TargetKind::Command, Some("/bin/sh -l {address}"))));
        check("/bin/sh", &plain, Err("cannot tell how to start \"/bin/sh\""));
        check("no-such-binary", &plain, Err("is not a file and not on PATH"));
        check("./no/such", &nginx, Err("is not a file"));
        check("", &plain, Err("is not a file"));
        check("serve {address}", &nginx, Err("leave out `--target nginx`"));
        check("serve {address}", &words, Err("put the words of --args into it"));
    }

    #[test]
    fn a_name_tells_the_gateway() {
        for (name, kind) in [
            ("stillgate-1.2", Some(TargetKind::Stillgate)),
            ("nginx", Some(TargetKind::Nginx)),
            ("haproxy-3", Some(TargetKind::Haproxy)),
            ("server", None),
        ] {
            assert_eq!(kind_in(name), kind, "{name}");
        }
    }
}
