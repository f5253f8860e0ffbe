//! `stillgate run`: serves what the configuration file says until a signal ends it.

use super::cli::{EXIT_ERRORS, EXIT_GOOD, EXIT_UNUSABLE, RunArguments};
use crate::configuration::source::ConfigSource;
use crate::control::start::{RunError, serve};
use tracing::info;

/// Runs the command; returns the exit code.
pub(crate) fn run(arguments: RunArguments) -> u8 {
    let result = ConfigSource::find(arguments.config).map_err(RunError::Read).and_then(|source| {
        serve(source, |up| {
            let (admin, metrics) = (up.admin.map(tracing::field::display), up.metrics.map(tracing::field::display));
            info!(listeners = ?up.listeners, admin, metrics, "serving");
        })
    });
    exit_code(result)
}

/// Prints why it ended, if there is a reason.
pub(crate) fn exit_code(result: Result<(), RunError>) -> u8 {
    let Err(error) = result else {
        return EXIT_GOOD;
    };
    eprintln!("stillgate: {error}");
    match error {
        RunError::Read(_) => EXIT_UNUSABLE,
        _ => EXIT_ERRORS,
    }
}
