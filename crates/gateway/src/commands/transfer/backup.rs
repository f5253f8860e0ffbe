//! `stillgate store backup`: a copy of a store, from its file, or from the gateway that has it open.

use super::TransferFailure;
use super::remote::Remote;
use crate::commands::cli::{Backup, EXIT_GOOD};
use crate::commands::stdout::show;
use crate::configuration::kept::{Offline, back_up};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Runs the command; returns the exit code.
pub(crate) fn backup(arguments: &Backup) -> u8 {
    match run(arguments) {
        Ok(from) => {
            show(format_args!("copied {from} to {}\n", arguments.file.display()));
            EXIT_GOOD
        }
        Err(failure) => failure.report(),
    }
}

/// What was copied.
fn run(arguments: &Backup) -> Result<String, TransferFailure> {
    if let Some(store) = &arguments.store {
        match back_up(store, &arguments.file) {
            Ok(()) => return Ok(store.display().to_string()),
            Err(Offline::InUse) => {}
            Err(Offline::Unusable(why)) => return Err(TransferFailure::Unusable(why)),
        }
    }
    let (bytes, from) = Remote::new("--to", &arguments.to, &arguments.asking)?.backup()?;
    if let Some(store) = &arguments.store {
        let meant = fs::canonicalize(store).unwrap_or_else(|_| store.clone());
        if meant != Path::new(&from) {
            return Err(TransferFailure::Failed(format!(
                "{} is open in another gateway; the one at {} uses {from}. Name the right gateway with --to",
                store.display(),
                arguments.to
            )));
        }
    }
    let unwritten =
        |error: io::Error| TransferFailure::Unusable(format!("cannot write {}: {error}", arguments.file.display()));
    write(&bytes, &arguments.file).map_err(unwritten)?;
    Ok(format!("{from} from {}", arguments.to))
}

/// Only what is whole gets its name, and only its owner reads it.
fn write(bytes: &[u8], to: &Path) -> io::Result<()> {
    let mut partial = to.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let written = write_synced(bytes, &partial).and_then(|()| fs::rename(&partial, to));
    if written.is_err() {
        // What could not be written may not be there either.
        let _ = fs::remove_file(&partial);
    }
    written
}

fn write_synced(bytes: &[u8], to: &Path) -> io::Result<()> {
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(to)?;
    file.write_all(bytes)?;
    file.sync_all()
}
