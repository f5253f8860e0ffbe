//! Turns the arguments into a run, or reports everything that is wrong with them.

use super::LoadArguments;
use crate::command_line::Header;
use crate::error::{Error, Result};
use crate::output::STANDARD_OUTPUT;
use std::num::NonZero;
use std::path::Path;
use std::time::Duration;
use std::{fs, thread};
use stillgate_load::plan::DURATION_UNBOUNDED;
use stillgate_load::{Arrivals, Bounds, Load, Mix, Pace, Protocol, Schedule, Target, Tls, TlsError, Trust};

/// Shorter intervals are meaningless and cost the generator time.
pub(super) const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// The run.
pub(super) fn load(arguments: &LoadArguments) -> Result<Load> {
    for (name, value) in [("--duration", arguments.duration), ("--timeout", Some(arguments.timeout))] {
        if value.is_some_and(|value| value.is_zero()) {
            return Err(Error::new(format!("{name} 0: must be above zero; for example {name} 10s")));
        }
    }
    if arguments.interval < INTERVAL_MIN {
        return Err(Error::new(format!("--interval {:?}: at least {INTERVAL_MIN:?}", arguments.interval)));
    }
    if arguments.rate_end.is_some() && arguments.requests.is_some() && arguments.duration.is_none() {
        return Err(Error::new(
            "--rate-end with --requests: also set the time in which the rate changes, for example --duration 60s",
        ));
    }
    files_of_their_own(arguments)?;
    let threads = threads(arguments)?;
    let target = Target::resolve(&arguments.url).map_err(|error| Error::new(error.to_string()))?;
    Ok(Load {
        mix: mix(arguments, &target)?,
        protocol: match arguments.http2 {
            true => Protocol::Http2 { streams: arguments.streams },
            false => Protocol::Http1,
        },
        tls: tls(arguments, &target)?,
        target,
        pace: pace(arguments),
        warm_up: arguments.warm_up,
        duration: arguments.duration.unwrap_or(match arguments.requests {
            Some(_) => DURATION_UNBOUNDED,
            None => DURATION_DEFAULT,
        }),
        requests: arguments.requests.map(|requests| requests as u64),
        connections: arguments.connections,
        threads,
        cpus: arguments.cpus.as_ref().map(|cpus| cpus.0.clone()).unwrap_or_default(),
        realtime: arguments.realtime,
        sources: arguments.sources.clone(),
        timeout: arguments.timeout,
        interval: arguments.interval,
        bounds: Bounds { late: arguments.late, late_share_max: arguments.late_share },
        seed: arguments.seed,
    })
}

/// The measured time if nothing else determines it.
const DURATION_DEFAULT: Duration = Duration::from_secs(10);

/// The TLS options if the URL uses TLS; otherwise there may be none.
fn tls(arguments: &LoadArguments, target: &Target) -> Result<Option<Tls>> {
    let said = [
        ("--cacert", arguments.cacert.is_some()),
        ("--insecure", arguments.insecure),
        ("--sni", arguments.sni.is_some()),
    ];
    if !target.is_secure {
        return match said.iter().find(|(_, is_said)| *is_said) {
            Some((option, _)) => Err(Error::new(format!("{option} needs TLS; use an https:// URL"))),
            None => Ok(None),
        };
    }
    let trust = match (&arguments.cacert, arguments.insecure) {
        (Some(path), _) => Trust::Authorities(path.clone()),
        (None, true) => Trust::Anyone,
        (None, false) => Trust::System,
    };
    let name = arguments.sni.as_deref().unwrap_or(&target.name);
    let option = |error| match error {
        TlsError::File { .. } => format!("--cacert {error}"),
        TlsError::Name { .. } if arguments.sni.is_some() => format!("--sni {error}"),
        TlsError::NoAuthorities { .. } => format!("{error} (--cacert FILE)"),
        other => other.to_string(),
    };
    Tls::new(&trust, name, arguments.http2).map(Some).map_err(|error| Error::new(option(error)))
}

/// An output file must not replace another file that is read or written.
fn files_of_their_own(arguments: &LoadArguments) -> Result {
    let body = arguments.body.as_deref().and_then(|body| body.strip_prefix('@')).map(Path::new);
    let files = [
        ("--json", arguments.json.as_deref().filter(|path| *path != Path::new(STANDARD_OUTPUT))),
        ("--hdr-log", arguments.hdr_log.as_deref()),
        ("--mix", arguments.mix.as_deref()),
        ("--cacert", arguments.cacert.as_deref()),
        ("--body", body),
    ];
    for (at, (written, path)) in files.iter().enumerate().take(WRITTEN) {
        for (other, its_path) in &files[at + 1..] {
            if let (Some(path), Some(its_path)) = (path, its_path)
                && is_same_file(path, its_path)
            {
                let shown = path.display();
                return Err(Error::new(format!(
                    "{written} and {other} name the same file, {shown}, and one would replace the other; name two"
                )));
            }
        }
    }
    Ok(())
}

/// The first of the files are written, the others read.
const WRITTEN: usize = 2;

/// Devices, for example /dev/null, may be written by several.
fn is_same_file(a: &Path, b: &Path) -> bool {
    let whole = |path: &Path| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::canonicalize(path).ok().or_else(|| Some(fs::canonicalize(folder).ok()?.join(path.file_name()?)))
    };
    let is_device = fs::metadata(a).is_ok_and(|there| !there.is_file() && !there.is_dir());
    !is_device && whole(a).is_some_and(|a| Some(a) == whole(b))
}

fn pace(arguments: &LoadArguments) -> Pace {
    match arguments.rate {
        None => Pace::Closed,
        Some(rate) => Pace::Open(Schedule {
            rate,
            rate_end: arguments.rate_end.unwrap_or(rate),
            arrivals: if arguments.poisson { Arrivals::Poisson } else { Arrivals::Uniform },
        }),
    }
}

/// The number that was given; otherwise one per given CPU, or half of all CPUs: the other half is for a target on this
/// machine.
fn threads(arguments: &LoadArguments) -> Result<usize> {
    let connections = arguments.connections;
    match (arguments.threads, &arguments.cpus) {
        (Some(threads), _) if threads > connections => Err(Error::new(format!(
            "--threads {threads} for --connections {connections}: each thread needs a connection of its own"
        ))),
        (Some(threads), _) => Ok(threads),
        (None, Some(cpus)) => Ok(cpus.0.len().min(connections)),
        (None, None) => {
            let cpus = thread::available_parallelism().map_or(1, NonZero::get);
            Ok((cpus / 2).clamp(1, connections))
        }
    }
}

fn mix(arguments: &LoadArguments, target: &Target) -> Result<Mix> {
    let mix = match &arguments.mix {
        Some(path) => Mix::from_file(path, target),
        None => {
            let body = body(arguments.body.as_deref())?;
            let headers: Vec<(String, String)> =
                arguments.headers.iter().map(|Header(name, value)| (name.clone(), value.clone())).collect();
            Mix::single(&arguments.method, &target.path_and_query, &target.host, &headers, body)
        }
    };
    let mix = mix.map_err(|errors| Error::new(errors.to_string()))?;
    mix.expecting(arguments.expect_status.as_deref(), arguments.expect_body_contains.as_deref())
        .map_err(|error| Error::new(format!("--expect-status: {error}")))
}

fn body(typed: Option<&str>) -> Result<Vec<u8>> {
    match typed {
        None => Ok(Vec::new()),
        Some(text) => match text.strip_prefix('@') {
            None => Ok(text.as_bytes().to_vec()),
            Some(path) => fs::read(path).map_err(|error| Error::new(format!("--body @{path}: {error}"))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::load::LoadArguments;
    use clap::{Args, FromArgMatches};

    fn typed(words: &[&str]) -> LoadArguments {
        let command = LoadArguments::augment_args(clap::Command::new("load").no_binary_name(true));
        let matches = command.try_get_matches_from(words).unwrap();
        LoadArguments::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn no_file_replaces_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (there, missing, link) = (path("there"), path("missing"), path("link"));
        std::fs::write(&there, "requests: []").unwrap();
        std::os::unix::fs::symlink(&there, &link).unwrap();
        let check = |options: &[&str], named: Option<&str>| {
            let done = files_of_their_own(&typed(&[&["http://127.0.0.1:1/"], options].concat()));
            match (done, named) {
                (Ok(()), None) => {}
                (Err(error), Some(named)) => assert!(error.to_string().contains(named), "{options:?}: {error}"),
                (done, _) => panic!("{options:?}: {done:?}"),
            }
        };
        check(&["--json", &missing, "--hdr-log", &missing], Some("--json and --hdr-log name the same file"));
        check(&["--json", &there, "--hdr-log", &link], Some("--json and --hdr-log"));
        check(&["--json", &format!("{}/./missing", folder.path().display()), "--hdr-log", &missing], Some("--hdr-log"));
        check(&["--hdr-log", &there, "--mix", &there], Some("--hdr-log and --mix"));
        check(&["--json", &there, "--body", &format!("@{link}")], Some("--json and --body"));
        check(&["--json", &missing, "--hdr-log", &there], None);
        check(&["--json", "/dev/null", "--hdr-log", "/dev/null"], None);
        check(&["--json", "-"], None);
    }
}
