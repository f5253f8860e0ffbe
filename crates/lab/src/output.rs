//! The output of commands: files that a reader sees whole or not at all, and standard output.
//!
//! The content of a file goes to a new file in the same folder, which is then renamed over the target in one step; if
//! the program ends before that, the older file is unchanged. Only for regular files, not for pipes or terminals.
//!
//! Standard output is not written with `println!`, which panics if the reader has gone (`stillgate-lab load … | head
//! -1`) or the disk is full.

use crate::error::{Error, Result};
use std::fmt::Display;
use std::fs::Permissions;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use tempfile::NamedTempFile;

/// Suffix of a file that is not complete yet.
const PARTIAL_SUFFIX: &str = ".partial";

/// Mode of a new file before the process's umask.
const FILE_MODE: u32 = 0o666;

/// Replaces the file at `path` by one with `content`.
pub(crate) fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = partial(path)?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(path).map(drop).map_err(|error| plain(&error.error))
}

/// Whether [`replace`] would work; leaves no trace.
pub(crate) fn check_replaceable(path: &Path) -> io::Result<()> {
    partial(path).map(drop)
}

/// A new file in the folder of `path`, gone when it is dropped.
fn partial(path: &Path) -> io::Result<NamedTempFile> {
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidFilename))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut prefix = name.to_owned();
    prefix.push(".");
    tempfile::Builder::new()
        .prefix(&prefix)
        .suffix(PARTIAL_SUFFIX)
        .permissions(Permissions::from_mode(FILE_MODE))
        .tempfile_in(folder)
        .map_err(|error| plain(&error))
}

/// The error without the name of the temporary file, which means nothing to users.
fn plain(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| io::Error::from(error.kind()), io::Error::from_raw_os_error)
}

/// Names standard output where a file is expected.
pub(crate) const STANDARD_OUTPUT: &str = "-";

/// Writes all of it. A closed pipe is not an error.
pub(crate) fn show(text: impl Display) -> Result {
    let mut out = io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::new(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}
