//! The process's own log: `tracing` to standard error, for people on a terminal and as JSON otherwise.
//!
//! A separate thread writes the lines from a bounded queue: if the reader of the log stops reading, lines are lost and no worker
//! waits. There is no log before the configuration is known; the caller prints earlier errors plainly. A reload can change the
//! level but not the format.

use std::fmt;
use std::io::IsTerminal;
use stillgate_config::{Log, LogFormat};
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

/// The most lines that wait for a slow reader; further ones are lost.
const LINES_WAITING_MAX: usize = 8192;

/// The running log.
pub struct RunningLog {
    /// Dropping it writes the waiting lines, for a second at most.
    _writer: WorkerGuard,
    filter: reload::Handle<EnvFilter, Registry>,
}

/// Why a level was not applied.
#[derive(Debug)]
pub struct LevelError {
    level: String,
    reason: String,
}

impl fmt::Display for LevelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "gateway.log.level: \"{}\": {}; write error, warn, info, debug or trace, or a filter such as \
             \"info,stillgate_proxy=debug\"",
            self.level, self.reason
        )
    }
}

impl std::error::Error for LevelError {}

impl RunningLog {
    /// Starts the log of this process; call it once.
    pub fn start(log: &Log) -> Result<RunningLog, LevelError> {
        let human = match log.format {
            LogFormat::Auto => std::io::stderr().is_terminal(),
            LogFormat::Human => true,
            LogFormat::Json => false,
        };
        let (filter, handle) = reload::Layer::new(parse(&log.level)?);
        let (writer, guard) =
            NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES_WAITING_MAX).finish(std::io::stderr());
        let lines = tracing_subscriber::fmt::layer().with_writer(writer);
        let registry = tracing_subscriber::registry().with(filter);
        let started = match human {
            true => registry.with(lines.with_target(false).with_ansi(std::io::stderr().is_terminal())).try_init(),
            false => registry.with(lines.json().flatten_event(true)).try_init(),
        };
        // Only a second start in one process fails, and then the first log continues.
        match started {
            Ok(()) => {}
            Err(error) => tracing::warn!("{error}"),
        }
        Ok(RunningLog { _writer: guard, filter: handle })
    }

    /// Changes the level.
    pub fn set_level(&self, level: &str) -> Result<(), LevelError> {
        let filter = parse(level)?;
        self.filter.reload(filter).map_err(|error| LevelError { level: level.to_owned(), reason: error.to_string() })
    }
}

/// rustls warns about what peers send, a line or more per connection, so anybody who connects could fill the log. Our own lines
/// report why a handshake failed. A level that names rustls takes precedence.
const QUIET: &str = "rustls=error";

fn parse(level: &str) -> Result<EnvFilter, LevelError> {
    EnvFilter::try_new(format!("{QUIET},{level}"))
        .map_err(|error| LevelError { level: level.to_owned(), reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels() {
        for good in ["info", "info,stillgate_proxy=debug", "off"] {
            assert!(parse(good).is_ok(), "{good}");
        }
        let error = parse("info,stillgate=loud").expect_err("no such level");
        assert!(error.to_string().starts_with("gateway.log.level: \"info,stillgate=loud\": "));
    }
}
