//! Builds on a command line: binaries, commands or git revisions, and how they are started.

use crate::compare::subject::{self, Build, Repository, ResolvedSide, StartOptions};
use crate::error::{Error, Result};
use crate::git::default_cache;
use crate::result::compare::Side;
use crate::target::{Spec, TargetKind};
use clap::Args;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub(crate) struct Builds {
    /// The baseline
    pub(crate) a: String,
    /// The build that is compared with it
    pub(crate) b: String,
    /// Kind of the binaries: stillgate, nginx, nginx-lua, haproxy, envoy, or command for any with --args [default: by
    /// their name]
    #[arg(long, value_name = "KIND", value_parser = kind)]
    target: Option<TargetKind>,
    /// Arguments of the binaries; {address}, {upstream} and {dir} are filled in
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    args: Option<String>,
    /// The gateway's configuration; {address}, {metrics}, {upstream} and {dir} are filled in [default: one that proxies
    /// everything]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address at which they listen [default: a free port, passed as {address}]
    #[arg(long, value_name = "IP:PORT")]
    address: Option<SocketAddr>,
    /// Repository of a Cargo project: A and B are revisions of it
    #[arg(long, value_name = "FOLDER")]
    repo: Option<PathBuf>,
    /// Package to build
    #[arg(long, value_name = "NAME", requires = "repo")]
    package: Option<String>,
    /// Binary to build
    #[arg(long, value_name = "NAME", requires = "repo")]
    bin: Option<String>,
    /// Cargo profile to build with
    #[arg(long, value_name = "NAME", requires = "repo", default_value = "release")]
    profile: String,
    /// Folder for built revisions [default: in the user's cache]
    #[arg(long, value_name = "FOLDER", requires = "repo")]
    cache: Option<PathBuf>,
}

impl Builds {
    /// A, B and `others` as servers that can be started.
    pub(crate) fn servers(&self, others: &[String], folder: &Path) -> Result<Vec<ResolvedSide>> {
        let manner = StartOptions {
            kind: self.target,
            words: self.args.clone(),
            address: self.address,
            configuration: self.config.as_deref().map(configuration).transpose()?,
        };
        let named = self.named(others);
        let Some((repository, commits)) = self.revisions(&named)? else {
            return named.iter().map(|(side, text)| subject::program(text, *side, &manner, folder)).collect();
        };
        let asked = |((side, text), commit): (&(Side, &str), &String)| {
            let note = |text: &str| eprintln!("{side:?}: {text}");
            subject::revision(text, commit, *side, &manner, folder, &repository, note)
        };
        named.iter().zip(&commits).map(asked).collect()
    }

    /// As commands: each replaces the `{}` of `command`.
    pub(crate) fn commands(&self, command: &[OsString]) -> Result<[Vec<OsString>; 2]> {
        if self.target.is_some() || self.args.is_some() || self.address.is_some() || self.config.is_some() {
            return Err(
                "--target, --args, --config and --address are for servers; leave them out where a command follows --"
                    .into(),
            );
        }
        if !command.iter().any(|word| word.to_string_lossy().contains("{}")) {
            return Err("the command after -- needs {} in the place of A and B: -- {} --threads 2".into());
        }
        let programs: [Vec<String>; 2] = match self.revisions(&self.named(&[]))? {
            None => {
                let words =
                    |text: &str| shlex::split(text).ok_or_else(|| Error::new(format!("{text}: a quote is not closed")));
                [words(&self.a)?, words(&self.b)?]
            }
            Some((repository, commits)) => {
                let built = |commit: &str| repository.binary(commit, |text| eprintln!("{text}"));
                let path = |built: subject::BuiltRevision| vec![built.binary.to_string_lossy().into_owned()];
                [path(built(&commits[0])?), path(built(&commits[1])?)]
            }
        };
        Ok(programs.map(|program| {
            let filled = command.iter().flat_map(|word| match word.to_str() {
                // Several words if it is a command itself.
                Some("{}") => program.iter().map(OsString::from).collect(),
                Some(text) => vec![OsString::from(text.replace("{}", &program.join(" ")))],
                None => vec![word.clone()],
            });
            filled.collect()
        }))
    }

    fn named<'a>(&'a self, others: &'a [String]) -> Vec<(Side, &'a str)> {
        Side::ALL.into_iter().zip([&self.a, &self.b].into_iter().chain(others).map(String::as_str)).collect()
    }

    /// With `--repo`: all commits, resolved before the first build.
    fn revisions(&self, named: &[(Side, &str)]) -> Result<Option<(Repository, Vec<String>)>> {
        let Some(repo) = &self.repo else { return Ok(None) };
        let cache = self.cache.clone().map_or_else(default_cache, Ok)?;
        let build = Build { package: self.package.clone(), bin: self.bin.clone(), profile: self.profile.clone() };
        let repository = Repository::open(repo, &cache, build)?;
        if let Some(note) = repository.uncommitted()? {
            eprintln!("note: {note}");
        }
        let commit =
            |(side, text): &(Side, &str)| repository.commit(text).map_err(|error| error.context(format!("{side:?}")));
        let commits = named.iter().map(commit).collect::<Result<Vec<_>>>()?;
        Ok(Some((repository, commits)))
    }
}

/// The text of a configuration.
pub(crate) fn configuration(path: &Path) -> Result<String> {
    std::fs::read_to_string(path)
        .map_err(|error| Error::new(format!("--config {}: cannot be read: {error}", path.display())))
}

pub(crate) fn kind(text: &str) -> Result<TargetKind, String> {
    match (text, TargetKind::named(text)) {
        ("command", _) => Ok(TargetKind::Command),
        (_, Some(kind)) => Ok(kind),
        _ => Err("not one of stillgate, nginx, nginx-lua, haproxy, envoy, command".to_owned()),
    }
}

/// A built-in target, optionally with its binary.
#[derive(Debug, Clone)]
pub(super) struct BuiltIn {
    pub(super) kind: TargetKind,
    pub(super) program: Option<PathBuf>,
}

impl BuiltIn {
    /// How it is started, in a folder of its own below this one.
    pub(super) fn spec(&self, folder: &Path) -> Spec {
        Spec { program: self.program.clone(), ..Spec::built_in(self.kind, folder.to_owned()) }
    }
}

/// `nginx`, or `nginx=PATH`.
pub(super) fn built_in(text: &str) -> Result<BuiltIn, String> {
    let (name, program) = match text.split_once('=') {
        Some((name, path)) => (name, Some(PathBuf::from(path))),
        None => (text, None),
    };
    let kind = TargetKind::named(name).ok_or_else(|| {
        format!(
            "not one of stillgate, nginx, nginx-lua, haproxy, envoy; start \"{name}\" by --start COMMAND --metrics URL"
        )
    })?;
    Ok(BuiltIn { kind, program })
}
