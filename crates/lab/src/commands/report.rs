//! `stillgate-lab report`: result files as one HTML page.
//!
//! A page replaces an older one in one step, so that whoever has it open never loads half of it.

use crate::commands::verify;
use crate::error::{Error, Result};
use crate::report::{self, Source};
use crate::result::file;
use crate::stdout;
use clap::Args;
use sha2::{Digest as _, Sha256};
use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// What the page may be read and written by, before the process's umask.
const FILE_MODE: u32 = 0o666;

/// Names standard output where a file is expected.
const STANDARD_OUTPUT: &str = "-";

/// `stillgate-lab report`.
#[derive(Debug, Args)]
pub(crate) struct Report {
    /// Result files, written with --json; the page has them in this order
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The page; `-` is standard output
    #[arg(short, long, value_name = "FILE.html", default_value = "report.html")]
    output: PathBuf,
}

pub(crate) fn run(arguments: &Report) -> Result<u8> {
    write(&arguments.files, &arguments.output)?;
    if arguments.output != Path::new(STANDARD_OUTPUT) {
        stdout::show(format_args!("{}\n", arguments.output.display()))?;
    }
    Ok(0)
}

/// Makes the page of these result files.
pub(crate) fn write(files: &[PathBuf], output: &Path) -> Result {
    let sources: Result<Vec<Source>> = files.iter().map(|path| source(path)).collect();
    let page = report::html(&sources?)?;
    if output == Path::new(STANDARD_OUTPUT) {
        return stdout::show(page);
    }
    replace(output, page.as_bytes()).map_err(|error| {
        Error::new(format!("{}: cannot be written: {error}; choose another with -o", output.display()))
    })
}

fn source(path: &Path) -> Result<Source> {
    let result = file::read(path)?;
    let name = path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
    // A page gives a verdict more weight than a file does; it must say where the two disagree with the data.
    let differences = verify::differences(&result).map_err(|error| error.context(path.display()))?.len();
    Ok(Source { name, sha256: sha256(path), differences, result })
}

/// Of a file that can be read again; what came through a pipe is gone.
fn sha256(path: &Path) -> Option<String> {
    let bytes = fs::metadata(path).ok().filter(fs::Metadata::is_file).and_then(|_| fs::read(path).ok())?;
    Some(Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}

fn replace(path: &Path, page: &[u8]) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return fs::OpenOptions::new().write(true).open(path)?.write_all(page);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let permissions = Permissions::from_mode(FILE_MODE);
    let mut file =
        tempfile::Builder::new().permissions(permissions).tempfile_in(folder).map_err(|error| plain(&error))?;
    file.write_all(page)?;
    file.persist(path).map(drop).map_err(|error| plain(&error.error))
}

/// Without the name of the temporary file, which nobody knows.
fn plain(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| io::Error::from(error.kind()), io::Error::from_raw_os_error)
}
