//! Turns A and B (commands, binaries or git revisions, as typed) into targets that can be started.
//!
//! With `--repo` both are revisions. Otherwise a text with a space or a `{placeholder}` is a command, any other a
//! binary. A binary is started as the gateway given by `--target`, or else by its name, or with the arguments of
//! `--args`.

use super::revisions::Repository;
use crate::command_line::quoted_word;
use crate::error::{Error, Result};
use crate::result::compare::Side;
use crate::target::{Kind, Spec};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Names in tables are at most this long.
const NAME_CHARACTERS_MAX: usize = 48;

/// How both sides are started.
#[derive(Debug, Clone, Default)]
pub(crate) struct StartOptions {
    /// The kind of gateway; `None`: by its name.
    pub(crate) kind: Option<Kind>,
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
    if let Some(kind) = manner.kind.filter(|kind| *kind != Kind::Command) {
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
    if manner.configuration.is_some() && matches!(kind, None | Some(Kind::Command)) {
        return Err(Error::new(format!("{side:?}: --config is for gateways; choose one by --target, or use --args")));
    }
    match (kind, words) {
        (Some(Kind::Command) | None, Some(words)) => {
            let command = format!("{} {words}", quoted_word(&path.to_string_lossy()));
            Ok(Spec { command: Some(command), ..spec })
        }
        (Some(Kind::Command) | None, None) => Err(Error::new(format!(
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
    Spec { name, address: manner.address, ..Spec::built_in(Kind::Command, folder.to_owned()) }
}

/// `stillgate` from `stillgate-1.2`.
fn kind_in(name: &str) -> Option<Kind> {
    [Kind::Stillgate, Kind::Nginx, Kind::Haproxy, Kind::Envoy].into_iter().find(|kind| name.starts_with(kind.name()))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, manner: &StartOptions, expected: Result<(Kind, Option<&str>), &str>) {
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
        let nginx = StartOptions { kind: Some(Kind::Nginx), ..StartOptions::default() };
        let words = StartOptions { words: Some("-l {address}".to_owned()), ..StartOptions::default() };
        check("serve {address}", &plain, Ok((Kind::Command, Some("serve {address}"))));
        check("/bin/sh", &nginx, Ok((Kind::Nginx, None)));
        check("sh", &nginx, Ok((Kind::Nginx, None)));
        check("/bin/sh", &words, Ok((Kind::Command, Some("/bin/sh -l {address}"))));
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
            ("stillgate-1.2", Some(Kind::Stillgate)),
            ("nginx", Some(Kind::Nginx)),
            ("haproxy-3", Some(Kind::Haproxy)),
            ("server", None),
        ] {
            assert_eq!(kind_in(name), kind, "{name}");
        }
    }
}
