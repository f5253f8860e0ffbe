//! `stillgate-lab report`: result files as one HTML page.
//!
//! A page replaces an older one in one step, so a browser never loads half of it.

use crate::commands::verify;
use crate::error::{Error, Result};
use crate::output::{self, STANDARD_OUTPUT};
use crate::report::{self, ReportInput};
use crate::result::file;
use clap::Args;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// `stillgate-lab report`.
#[derive(Debug, Args)]
pub(crate) struct Report {
    /// Result files, written with --json; the page has them in this order; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The page; `-` is standard output
    #[arg(short, long, value_name = "FILE.html", default_value = "report.html")]
    output: PathBuf,
}

pub(crate) fn run(arguments: &Report) -> Result<u8> {
    write(&arguments.files, &arguments.output)?;
    if arguments.output != Path::new(STANDARD_OUTPUT) {
        output::show(format_args!("{}\n", arguments.output.display()))?;
    }
    Ok(0)
}

/// Makes the page of these result files.
pub(crate) fn write(files: &[PathBuf], output: &Path) -> Result {
    check_output(output)?;
    let sources: Result<Vec<ReportInput>> = files.iter().map(|path| source(path)).collect();
    let page = report::html(&sources?)?;
    if output == Path::new(STANDARD_OUTPUT) {
        return output::show(page);
    }
    let written = match is_stream(output) {
        true => fs::OpenOptions::new().write(true).open(output).and_then(|mut file| file.write_all(page.as_bytes())),
        false => output::replace_file(output, page.as_bytes()),
    };
    written.map_err(|error| unwritable(output, &error))
}

/// Whether a page can be written there without overwriting measurements; checked before they begin.
pub(crate) fn check_output(output: &Path) -> Result {
    if output == Path::new(STANDARD_OUTPUT) || is_stream(output) {
        return Ok(());
    }
    if output.is_file() && file::read(output).is_ok() {
        return Err(Error::new(format!(
            "{}: contains a result, which the page would replace; name another file for the page",
            output.display()
        )));
    }
    output::check_replaceable(output).map_err(|error| unwritable(output, &error))
}

fn is_stream(output: &Path) -> bool {
    fs::metadata(output).is_ok_and(|there| !there.is_file())
}

fn unwritable(output: &Path, error: &io::Error) -> Error {
    let why = match error.kind() {
        io::ErrorKind::NotFound => "its folder does not exist".to_owned(),
        _ => error.to_string(),
    };
    Error::new(format!("{}: the page cannot be written: {why}; name another file for it", output.display()))
}

fn source(path: &Path) -> Result<ReportInput> {
    let result = file::read(path)?;
    let name = path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
    // A page gives a verdict more weight than a file does; it must report where the two disagree with the data.
    let verified = verify::verify_recomputed(result).map_err(|error| error.context(file::called(path)))?;
    Ok(ReportInput {
        name,
        sha256: file::sha256(path),
        differences: verified.differences.len(),
        words_compared: verified.words_compared,
        result: verified.result,
    })
}
