//! `stillgate profile`: takes a profile of a running gateway, and writes it in the form that the file's name asks for.
//!
//! The gateway gives pprof's form only; every other is made here, so it costs the gateway nothing.

use super::cli::{EXIT_GOOD, Profile as Arguments, ProfileKind};
use super::stdout::show;
use super::transfer::{Failure, Remote};
use crate::configuration::source::read_bounded;
use std::fs;
use std::path::Path;
use stillgate_profiler::output::html::Shown;
use stillgate_profiler::output::{chrome, folded, html, pprof, speedscope, svg};
use stillgate_profiler::profile::Profile;

/// Bytes of a file with a profile.
const FILE_BYTES_MAX: usize = 256 << 20;

/// What a worker does, by the modules whose functions do it.
const PHASES: &[(&str, &str)] = &[
    ("TLS handshake", "stillgate_proxy::listen::handshake"),
    ("parsing", "stillgate_wire::"),
    ("routing", "stillgate_proxy::exchange::matching"),
    ("routing", "stillgate_route::"),
    ("plugins", "stillgate_plugins::"),
    ("choosing a node", "stillgate_upstream::"),
    ("connecting to a node", "stillgate_proxy::exchange::connecting"),
    ("relaying bodies", "stillgate_proxy::exchange::relay"),
    ("log and metrics", "stillgate_proxy::telemetry::"),
    ("log and metrics", "stillgate_metrics::"),
    ("HTTP/2", "h2::"),
    ("TLS records", "rustls::"),
    ("rest of an exchange", "stillgate_proxy::exchange::"),
    ("client connection", "stillgate_proxy::client::"),
    ("event loop", "stillgate_proxy::fleet::"),
    ("event loop", "tokio::runtime::"),
];

/// How a profile is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Pprof,
    Svg,
    Html,
    Folded,
    Speedscope,
    Trace,
}

/// Runs the command; returns the exit code.
pub(crate) fn run(arguments: &Arguments) -> u8 {
    match write(arguments) {
        Ok(notes) => {
            show(format_args!("{}: {notes}\n", arguments.output.display()));
            EXIT_GOOD
        }
        Err(failure) => failure.report(),
    }
}

fn write(arguments: &Arguments) -> Result<String, Failure> {
    let form = form_of(&arguments.output)?;
    if arguments.base.is_some() && form != Form::Html {
        return Err(Failure::Unusable("--base: only an .html page compares two profiles".to_owned()));
    }
    let base = arguments.base.as_deref().map(read).transpose()?;
    let bytes = match &arguments.from {
        Some(file) => bytes_of(file)?,
        None => Remote::new("--admin", &arguments.admin, &arguments.asking)?.page(&path(arguments))?.to_vec(),
    };
    let profile = pprof::read(&bytes).map_err(|error| Failure::Failed(error.to_string()))?;
    let value = profile.main;
    let text = match form {
        Form::Pprof => bytes,
        Form::Svg => svg::write(&profile, value).into(),
        Form::Html => html::write(Shown { profile: &profile, value, base: base.as_ref(), phases: PHASES }).into(),
        Form::Folded => folded::write(&profile, value).into(),
        Form::Speedscope => speedscope::write(&profile, value).into(),
        Form::Trace => chrome::write(&profile).map_err(|error| Failure::Failed(error.to_string()))?.into(),
    };
    let unwritten = |error| Failure::Unusable(format!("cannot write {}: {error}", arguments.output.display()));
    fs::write(&arguments.output, text).map_err(unwritten)?;
    Ok(profile.notes.join("; "))
}

/// By the longest ending that fits.
fn form_of(file: &Path) -> Result<Form, Failure> {
    const FORMS: &[(&str, Form)] = &[
        (".speedscope.json", Form::Speedscope),
        (".trace.json", Form::Trace),
        (".pb.gz", Form::Pprof),
        (".svg", Form::Svg),
        (".html", Form::Html),
        (".folded", Form::Folded),
    ];
    let name = file.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let form = FORMS.iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, form)| *form);
    form.ok_or_else(|| {
        let endings: Vec<&str> = FORMS.iter().map(|(ending, _)| *ending).collect();
        Failure::Unusable(format!("{}: end the name with one of {}", file.display(), endings.join(", ")))
    })
}

fn path(arguments: &Arguments) -> String {
    let Arguments { seconds, hz, over, .. } = arguments;
    match arguments.kind {
        ProfileKind::Cpu => format!("/debug/pprof/profile?seconds={seconds}&hz={hz}"),
        ProfileKind::Heap => "/debug/pprof/heap".to_owned(),
        ProfileKind::Allocs => "/debug/pprof/allocs".to_owned(),
        ProfileKind::Stalls => {
            let over: String = form_urlencoded::byte_serialize(over.as_bytes()).collect();
            format!("/debug/pprof/stalls?seconds={seconds}&over={over}")
        }
    }
}

fn bytes_of(file: &Path) -> Result<Vec<u8>, Failure> {
    let unreadable = |error| Failure::Unusable(format!("cannot read {}: {error}", file.display()));
    read_bounded(file, FILE_BYTES_MAX).map_err(unreadable)
}

fn read(file: &Path) -> Result<Profile, Failure> {
    let unusable = |error| Failure::Unusable(format!("{}: {error}", file.display()));
    pprof::read(&bytes_of(file)?).map_err(unusable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_says_the_form() {
        let form = |name: &str| form_of(Path::new(name)).map_err(|failure| format!("{failure:?}"));
        assert_eq!(form("a/b.html"), Ok(Form::Html));
        assert_eq!(form("b.pb.gz"), Ok(Form::Pprof));
        assert_eq!(form("b.speedscope.json"), Ok(Form::Speedscope));
        assert_eq!(form("b.trace.json"), Ok(Form::Trace));
        assert!(form("b.json").unwrap_err().contains(".speedscope.json, .trace.json, .pb.gz"));
        assert!(form("/").is_err());
    }
}
