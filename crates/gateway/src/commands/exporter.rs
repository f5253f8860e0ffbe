//! `stillgate exporter`: a process of its own that exposes what gateways write to a shared folder.
//!
//! It only reads, so it may be stopped, killed or restarted at any moment, and several may run side by side. The folder need not
//! exist when it starts: what a gateway writes later is picked up, and until then scrapes are answered 503.

use super::cli::{EXIT_ERRORS, EXIT_GOOD, EXIT_UNUSABLE, Exporter as Arguments};
use crate::control::signals::EndSignals;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;
use stillgate_config::{Log, LogFormat};
use stillgate_door::Hosts;
use stillgate_exporter::{Exporter, ExpositionSite};
use stillgate_measures::logging::{LevelError, RunningLog};
use stillgate_measures::process_stats;
use stillgate_metrics::encode;
use stillgate_metrics::reader::ReaderOptions;
use stillgate_metrics::{Collector, CollectorOptions};
use stillgate_proxy::StartError;
use tokio::task::spawn_blocking;
use tokio::time::interval;
use tracing::info;

/// How often it is looked whether the exporter's thread lives.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Why the exporter did not start, or ended as it should not have.
#[derive(Debug)]
enum ExporterError {
    /// The path to read is not a folder.
    NotAFolder(PathBuf),
    /// The folder cannot be read.
    Unreadable(PathBuf, io::Error),
    /// The log cannot be had.
    Log(LevelError),
    /// The address cannot be listened on.
    Listen(StartError),
    /// The system refuses something that nothing works without.
    System(&'static str, io::Error),
    /// A second signal came.
    Hurried,
    /// The thread has ended, by a bug.
    Lost,
}

impl fmt::Display for ExporterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExporterError::NotAFolder(folder) => write!(
                f,
                "--metrics-dir {}: not a folder; give the one that the gateway's gateway.metrics.shared names",
                folder.display()
            ),
            ExporterError::Unreadable(folder, error) => {
                write!(f, "--metrics-dir {}: {error}", folder.display())?;
                match error.kind() {
                    io::ErrorKind::PermissionDenied => write!(f, "; run it as the gateway's user"),
                    _ => Ok(()),
                }
            }
            ExporterError::Log(error) => error.fmt(f),
            ExporterError::Listen(error) => write!(f, "--listen: {error}"),
            ExporterError::System(what, error) => write!(f, "{what}: {error}"),
            ExporterError::Hurried => write!(f, "a second signal: ending at once, with scrapes in flight"),
            ExporterError::Lost => write!(f, "the exporter's thread has ended, which is a bug; see the log"),
        }
    }
}

impl std::error::Error for ExporterError {}

/// Runs the command; returns the exit code.
pub(crate) fn run(arguments: &Arguments) -> u8 {
    let Err(error) = serve(arguments) else {
        return EXIT_GOOD;
    };
    eprintln!("stillgate: {error}");
    match error {
        ExporterError::NotAFolder(_) | ExporterError::Unreadable(..) => EXIT_UNUSABLE,
        _ => EXIT_ERRORS,
    }
}

fn serve(arguments: &Arguments) -> Result<(), ExporterError> {
    let system = |what| move |error| ExporterError::System(what, error);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system("cannot start the runtime"))?;
    let mut signals = {
        let _entered = runtime.enter();
        EndSignals::take_alone().map_err(system("cannot take signals"))?
    };
    let folder = &arguments.metrics_dir;
    look_at(folder)?;
    let log = Log { level: "info".to_owned(), format: LogFormat::Auto };
    // Dropping it writes what waits.
    let _logging = RunningLog::start(&log).map_err(ExporterError::Log)?;
    let result = runtime.block_on(async {
        let listener = listen(arguments.listen)?;
        let exporter = Exporter::spawn(Some(listener), Collector::open(folder, options()), site(arguments))
            .map_err(system("cannot start the exporter's thread"))?;
        info!(
            version = env!("CARGO_PKG_VERSION"),
            address = exporter.address().map(tracing::field::display),
            path = arguments.path,
            folder = %folder.display(),
            "exposing"
        );
        let signal = tokio::select! {
            signal = signals.next() => signal,
            () = end_of(&exporter) => return Err(ExporterError::Lost),
        };
        info!("{signal}: finishing what is in flight");
        let stopped = spawn_blocking(|| exporter.stop());
        tokio::select! {
            stopped = stopped => match stopped {
                Ok(Ok(())) => Ok(()),
                Ok(Err(_)) | Err(_) => Err(ExporterError::Lost),
            },
            _ = signals.next() => Err(ExporterError::Hurried),
        }
    });
    // Not dropped: that would wait for scrapes although a second signal came.
    runtime.shutdown_background();
    if result.is_ok() {
        info!("ended");
    }
    result
}

/// A path that does not exist yet may still appear; a path that is not a folder will not become one.
fn look_at(folder: &Path) -> Result<(), ExporterError> {
    match std::fs::read_dir(folder) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Err(ExporterError::NotAFolder(folder.to_owned())),
        Err(error) => Err(ExporterError::Unreadable(folder.to_owned(), error)),
    }
}

/// What the gateway's own exporter exposes by default.
fn options() -> CollectorOptions {
    let encode = encode::EncodeOptions { created: true };
    CollectorOptions { reader: ReaderOptions { encode, ..ReaderOptions::default() }, ..CollectorOptions::default() }
}

fn site(arguments: &Arguments) -> ExpositionSite {
    let names = arguments.hosts.iter().cloned().chain([process_stats::hostname()]);
    ExpositionSite { path: arguments.path.clone(), hosts: Hosts::new("--host", names) }
}

fn listen(address: SocketAddr) -> Result<TcpListener, ExporterError> {
    TcpListener::bind(address).map_err(|error| ExporterError::Listen(StartError::Bind { address, error }))
}

async fn end_of(exporter: &Exporter) {
    let mut look = interval(LOOK_EVERY);
    while !exporter.has_ended() {
        look.tick().await;
    }
}
