//! Starting a target: its folder, its ports, its files, and the wait until it listens.
//!
//! A port is chosen by binding to port 0 and releasing it; if another program takes it in between, the start is
//! repeated.

use super::{MetricsAddress, Process, RoutePlan, RunningTarget, Spec, TargetKind, gateways, nginx, program, series};
use crate::error::{Error, Result};
use crate::result::run::{Placement, Subject};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use stillgate_rig::callgrind::Counter;
use stillgate_rig::{NotListening, Running, ports};
use tempfile::TempDir;

/// Time limit until it listens.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit for a large configuration or under valgrind: enough for a million series on a slow machine.
const START_TIMEOUT_LARGE: Duration = Duration::from_secs(180);

/// Makes what counts instructions, of files in the folder of a start.
pub(super) type CounterIn<'a> = dyn Fn(&Path) -> Counter + 'a;

/// Attempts, each with new ports.
const ATTEMPTS: usize = 4;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The inputs of one start.
#[derive(Debug, Clone, Copy)]
pub(super) struct LaunchInputs<'a> {
    pub(super) directory: &'a Path,
    pub(super) address: SocketAddr,
    pub(super) metrics: SocketAddr,
    /// For a gateway's admin interface; used if something contains `{admin}`.
    pub(super) admin: SocketAddr,
    pub(super) upstream: SocketAddr,
    /// Requested series, for kinds that make them.
    pub(super) series: Option<u64>,
    /// Idle servers or clusters that only make series.
    pub(super) idle: u64,
    /// Routes in place of the one that takes everything.
    pub(super) routes: Option<RoutePlan>,
    /// Tunnels for which there is a route and room.
    pub(super) tunnels: Option<usize>,
}

/// The command and the files that a kind makes from [`LaunchInputs`].
#[derive(Debug)]
pub(super) struct Launch {
    /// The arguments after the program.
    pub(super) words: Vec<String>,
    /// Files that must exist before the start; the configuration first.
    pub(super) files: Vec<(PathBuf, String)>,
}

/// The command to run, and the future address of its exposition.
struct Plan {
    program: PathBuf,
    launch: Launch,
    metrics: Option<MetricsAddress>,
    configuration: Option<String>,
}

impl LaunchInputs<'_> {
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    #[cfg(test)]
    pub(super) fn example(series: Option<u64>) -> LaunchInputs<'static> {
        let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        LaunchInputs {
            directory: Path::new("/dir"),
            address: address(8080),
            metrics: address(9090),
            admin: address(9180),
            upstream: address(3000),
            series,
            idle: 0,
            routes: None,
            tunnels: None,
        }
    }
}

/// See [`Spec::start`].
pub(super) fn start(
    spec: &Spec,
    upstream: SocketAddr,
    placement: &Placement,
    counter: Option<&CounterIn<'_>>,
) -> Result<RunningTarget> {
    let idle = series::idle_parts(spec, |idle| {
        let started = start_with(spec, (upstream, placement), idle, None)?;
        series::shown(&started)
    })?;
    start_with(spec, (upstream, placement), idle, counter)
}

fn start_with(
    spec: &Spec,
    place: (SocketAddr, &Placement),
    idle: u64,
    counter: Option<&CounterIn<'_>>,
) -> Result<RunningTarget> {
    if let Some(address) = spec.address
        && TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).is_ok()
    {
        return Err(
            format!("{}: something listens on {address} already; end it, or give another address", spec.name).into()
        );
    }
    let mut attempt = 1;
    loop {
        match start_once(spec, place, idle, counter) {
            Err(Failure { port_taken: true, .. }) if attempt < ATTEMPTS => attempt += 1,
            Err(Failure { error, .. }) => return Err(error),
            Ok(started) => return Ok(started),
        }
    }
}

fn start_once(
    spec: &Spec,
    (upstream, placement): (SocketAddr, &Placement),
    idle: u64,
    counter: Option<&CounterIn<'_>>,
) -> Result<RunningTarget, Failure> {
    let directory = new_directory(spec)?;
    let ports = ports::free(spec.ip.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)), 3)?;
    let (address, metrics, admin) = (ports[0], ports[1], ports[2]);
    let place = LaunchInputs {
        directory: directory.path(),
        address: spec.address.unwrap_or(address),
        metrics,
        admin,
        upstream,
        series: spec.series.filter(|_| spec.kind.makes_series()),
        idle,
        routes: spec.routes,
        tunnels: spec.tunnels,
    };
    let Plan { program, launch, metrics, configuration } = plan(spec, &place)?;
    for (file, text) in &launch.files {
        fs::write(file, text).map_err(|error| format!("{}: cannot be written: {error}", file.display()))?;
    }
    let file = launch.files.first().map(|(file, _)| file.clone());
    let mut words = vec![program.to_string_lossy().into_owned()];
    words.extend(launch.words);
    let log = directory.path().join("log");
    let run = counter.map_or_else(|| words.clone(), |counter| counter(directory.path()).command(&words));
    let begin = Instant::now();
    let mut process = Running::spawn(&spec.name, &run, &placement.target_cpus, &log, Stdio::null())?;
    let timeout = if idle > 0 || counter.is_some() { START_TIMEOUT_LARGE } else { START_TIMEOUT };
    process.wait_for(place.address, timeout)?;
    let listening_after = begin.elapsed();
    if let Some(metrics) = &metrics {
        process.wait_for(metrics.address, timeout)?;
    }
    let subject = Subject {
        name: spec.name.clone(),
        version: program::version(&program, spec.kind),
        command: words,
        configuration,
        binary_sha256: program::sha256(&program),
        revision: None,
    };
    let admin = spec.needs_admin().then_some(admin);
    Ok(RunningTarget {
        subject,
        address: place.address,
        metrics,
        admin,
        listening_after,
        configuration: file,
        process: Process::Here { process, folder: directory },
    })
}

fn plan(spec: &Spec, place: &LaunchInputs<'_>) -> Result<Plan> {
    if spec.kind == TargetKind::Command {
        let program::CommandLine { program, words, metrics } = program::read_command(spec, place)?;
        let configuration = spec.configuration.as_ref().map(|text| program::fill_placeholders(text, place));
        let file = |text: &String| (place.file(program::COMMAND_CONFIGURATION), text.clone());
        let files = configuration.iter().map(file).collect();
        return Ok(Plan { program, launch: Launch { words, files }, metrics, configuration });
    }
    let program = program::find(spec.kind, spec.program.as_deref())?;
    let mut launch = launch(spec.kind, place, &program)?;
    // One idle part of thousands is enough for a reader, and so are ten routes.
    let routes = place.routes.map(RoutePlan::shown);
    let mut shown = self::launch(spec.kind, &LaunchInputs { idle: place.idle.min(1), routes, ..*place }, &program)?;
    if let Some(written) = &spec.configuration {
        let text = program::fill_placeholders(written, place);
        for launch in [&mut launch, &mut shown] {
            launch.files[0].1.clone_from(&text);
        }
    }
    launch.words.extend(spec.arguments.iter().map(|word| program::fill_placeholders(word, place)));
    let path = if spec.kind == TargetKind::Envoy { gateways::ENVOY_METRICS_PATH } else { "/metrics" };
    let has_metrics = spec.configuration.as_ref().is_none_or(|written| written.contains(program::METRICS));
    let metrics = has_metrics.then(|| MetricsAddress { address: place.metrics, path: path.to_owned() });
    Ok(Plan { program, launch, metrics, configuration: Some(stored_files(&shown.files, place)) })
}

fn launch(kind: TargetKind, place: &LaunchInputs<'_>, program: &Path) -> Result<Launch> {
    match kind {
        TargetKind::Stillgate => Ok(gateways::launch_stillgate(place)),
        TargetKind::Nginx => Ok(nginx::launch(place)),
        TargetKind::NginxLua => nginx::launch_lua(place, program),
        TargetKind::Haproxy => Ok(gateways::launch_haproxy(place)),
        TargetKind::Envoy => Ok(gateways::launch_envoy(place)),
        TargetKind::Command => Err("a command has none of our configuration".into()),
    }
}

/// The files as the result stores them.
fn stored_files(files: &[(PathBuf, String)], place: &LaunchInputs<'_>) -> String {
    let mut text = String::new();
    for (number, (file, content)) in files.iter().enumerate() {
        if number > 0 {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            text.push_str(&format!("\n[{name}]\n"));
        }
        text.push_str(content);
    }
    if place.idle > 1 {
        text.push_str(&format!("\n[{} idle ones, one of which is shown]\n", place.idle));
    }
    if let Some(routes) = place.routes.filter(|routes| *routes != routes.shown()) {
        text.push_str(&format!("\n[{} routes, {} of which are shown]\n", routes.count, routes.shown().count));
    }
    text
}

fn new_directory(spec: &Spec) -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix(&format!("{}-", spec.kind.name())).tempdir_in(&spec.directory);
    made.map_err(|error| format!("{}: no folder can be made in it: {error}", spec.directory.display()).into())
}

/// Why a target did not start.
struct Failure {
    error: Error,
    /// Another program has its port: another port may work.
    port_taken: bool,
}

impl From<NotListening> for Failure {
    fn from(NotListening { error, port_taken }: NotListening) -> Failure {
        Failure { error: error.into(), port_taken }
    }
}

impl From<stillgate_rig::Error> for Failure {
    fn from(error: stillgate_rig::Error) -> Failure {
        Error::from(error).into()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { error, port_taken: false }
    }
}

impl From<String> for Failure {
    fn from(message: String) -> Failure {
        Error::from(message).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn what_is_kept_of_the_files() {
        let files = [(PathBuf::from("/d/a.conf"), "a\n".to_owned()), (PathBuf::from("/d/b.lua"), "b\n".to_owned())];
        let place = LaunchInputs::example(None);
        assert_eq!(stored_files(&files[..1], &place), "a\n");
        let idle = LaunchInputs { idle: 300, ..place };
        assert_eq!(stored_files(&files, &idle), "a\n\n[b.lua]\nb\n\n[300 idle ones, one of which is shown]\n");
        let routes = LaunchInputs { routes: Some(RoutePlan { count: 50_000, expressions: true }), ..place };
        assert_eq!(stored_files(&files[..1], &routes), "a\n\n[50000 routes, 10 of which are shown]\n");
    }

    #[test]
    fn an_address_that_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let spec = Spec { address: Some(address), ..Spec::built_in(TargetKind::Nginx, dir.path().to_owned()) };
        let error = start_with(&spec, (address, &Placement::default()), 0, None).unwrap_err();
        let expected = format!("nginx: something listens on {address} already; end it, or give another address");
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_folder_that_is_not_there() {
        let spec = Spec::built_in(TargetKind::Nginx, PathBuf::from("/nowhere"));
        let error = new_directory(&spec).unwrap_err().to_string();
        assert!(error.starts_with("/nowhere: no folder can be made in it: "), "{error}");
    }
}
