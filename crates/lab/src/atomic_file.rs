//! Files that a reader sees whole or not at all.
//!
//! What is written goes to a new file beside the one that is meant, which then takes its name in one step; whatever ends the
//! program before leaves the older one as it was. What is no regular file (a pipe, a terminal) is not for this.

use std::fs::Permissions;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use tempfile::NamedTempFile;

/// Of a file not yet whole.
const PARTIAL_SUFFIX: &str = ".partial";

/// What a new file may be read and written by, before the process's umask.
const FILE_MODE: u32 = 0o666;

/// Puts `content` in the place of what is at `path`.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = partial(path)?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(path).map(drop).map_err(|error| plain(&error.error))
}

/// Whether [`replace`] can be done; leaves no trace.
pub(crate) fn can_replace(path: &Path) -> io::Result<()> {
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

/// Without the name of the temporary file, which nobody knows.
fn plain(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| io::Error::from(error.kind()), io::Error::from_raw_os_error)
}
