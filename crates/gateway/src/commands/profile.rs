//! `stillgate profile`: takes a profile of a running gateway, and writes it in the format that the file's name implies.
//!
//! The gateway serves pprof's format only; every other is made here, so it costs the gateway nothing.

use super::cli::{EXIT_GOOD, Profile as Arguments, ProfileKind, ProfileThreads};
use super::stdout::show;
use super::transfer::{Remote, TransferFailure};
use crate::admin::lua_profile::ACTIVITY_LABEL;
use std::fs;
use std::path::Path;
use stillgate_files::read_bounded;
use stillgate_profiler::output::format::{OutputFormat, WriteError};
use stillgate_profiler::output::pprof;
use stillgate_profiler::profile::{PHASE, PLUGIN, Profile, ROUTE, THREAD};

/// Bytes of a file with a profile.
const FILE_BYTES_MAX: usize = 256 << 20;

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

fn write(arguments: &Arguments) -> Result<String, TransferFailure> {
    let format =
        OutputFormat::of_name(&arguments.output).map_err(|unnamed| TransferFailure::Unusable(unnamed.to_string()))?;
    if arguments.base.is_some() && format != OutputFormat::Html {
        return Err(TransferFailure::Unusable("--base: only an .html page compares two profiles".to_owned()));
    }
    let base = arguments.base.as_deref().map(read).transpose()?;
    let bytes = match &arguments.from {
        Some(file) => bytes_of(file)?,
        None => Remote::new("--admin", &arguments.admin, &arguments.asking)?.page(&path(arguments))?.to_vec(),
    };
    let profile = pprof::read(&bytes).map_err(|error| TransferFailure::Failed(error.to_string()))?;
    let text = format.write(&profile, base.as_ref()).map_err(|error| match error {
        WriteError::Timeless(_) => TransferFailure::Failed(error.to_string()),
        WriteError::OtherKind { .. } => TransferFailure::Unusable(format!("--base: {error}")),
    })?;
    let unwritten = |error| TransferFailure::Unusable(format!("cannot write {}: {error}", arguments.output.display()));
    fs::write(&arguments.output, text).map_err(unwritten)?;
    let mut said = profile.notes.join("; ");
    let labels = [THREAD, PHASE, ROUTE, PLUGIN, ACTIVITY_LABEL].into_iter();
    for (title, label) in
        ["by thread", "by phase", "by route", "by plugin", "by what LuaJIT did"].into_iter().zip(labels)
    {
        said.push_str(&shares(&profile, title, label));
    }
    Ok(said)
}

/// A line of the 20 largest shares by what a label says; nothing where no sample has it.
fn shares(profile: &Profile, title: &str, label: &str) -> String {
    let (shares, total) = (profile.shares(label, profile.main), profile.total(profile.main));
    if shares.iter().all(|(name, _)| name.is_empty()) {
        return String::new();
    }
    let share = |(name, sum): &(&str, i64)| format!("{name} {:.1}%", 100.0 * *sum as f64 / total as f64);
    format!("\n{title}: {}", shares.iter().take(20).map(share).collect::<Vec<_>>().join(", "))
}

fn path(arguments: &Arguments) -> String {
    let Arguments { seconds, hz, over, .. } = arguments;
    let threads = match arguments.threads {
        ProfileThreads::Workers => "workers",
        ProfileThreads::All => "all",
    };
    match arguments.kind {
        ProfileKind::Cpu => format!("/debug/pprof/profile?seconds={seconds}&hz={hz}&threads={threads}"),
        ProfileKind::LuaCpu => format!("/debug/pprof/lua?kind=cpu&seconds={seconds}&hz={hz}"),
        ProfileKind::LuaBytecode => format!("/debug/pprof/lua?kind=bytecode&seconds={seconds}&hz={hz}"),
        ProfileKind::Heap => "/debug/pprof/heap".to_owned(),
        ProfileKind::Allocs => "/debug/pprof/allocs".to_owned(),
        ProfileKind::Stalls => {
            let over: String = form_urlencoded::byte_serialize(over.as_bytes()).collect();
            format!("/debug/pprof/stalls?seconds={seconds}&over={over}")
        }
    }
}

fn bytes_of(file: &Path) -> Result<Vec<u8>, TransferFailure> {
    let unreadable = |error| TransferFailure::Unusable(format!("cannot read {}: {error}", file.display()));
    read_bounded(file, FILE_BYTES_MAX).map_err(unreadable)
}

fn read(file: &Path) -> Result<Profile, TransferFailure> {
    let unusable = |error| TransferFailure::Unusable(format!("{}: {error}", file.display()));
    pprof::read(&bytes_of(file)?).map_err(unusable)
}
