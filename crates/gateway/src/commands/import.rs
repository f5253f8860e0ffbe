//! `stillgate import`: a configuration of Kong as one of Stillgate, and a line for everything that is lost.
//!
//! The crate `import` translates; here the file is read and the result is written: the configuration on standard
//! output, the losses on standard error. Losses are not errors: most files have some.

use super::cli::{EXIT_GOOD, EXIT_UNUSABLE, Import};
use super::stdout::show;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use stillgate_import::{ImportResult, Loss, Severity};
use stillgate_schema::text::writer;

/// Largest file that is read.
const FILE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Runs the command; returns the exit code.
pub(crate) fn run(arguments: &Import) -> u8 {
    let is_stdin = arguments.file == Path::new("-");
    let name = if is_stdin { "standard input".to_owned() } else { arguments.file.display().to_string() };
    let text = match read(&arguments.file, is_stdin) {
        Ok(text) => text,
        Err(why) => {
            eprintln!("stillgate: {name}: {why}");
            return EXIT_UNUSABLE;
        }
    };
    match stillgate_import::kong(&text) {
        Ok(ImportResult { document, losses }) => {
            report(&name, &losses);
            show(heading(&name, &losses));
            show(stillgate_import::with_variables(&writer::write(&document)));
            EXIT_GOOD
        }
        Err(mut errors) => {
            errors.file = Some(name);
            eprintln!("{errors}");
            EXIT_UNUSABLE
        }
    }
}

fn read(file: &Path, is_stdin: bool) -> Result<String, String> {
    let bytes = match is_stdin {
        true => {
            let mut bytes = Vec::new();
            io::stdin().lock().take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map(|_| bytes)
        }
        false => stillgate_files::read_bounded(file, FILE_BYTES_MAX),
    };
    let bytes = bytes.map_err(|error| error.to_string())?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(format!("the file is larger than {FILE_BYTES_MAX} bytes; split it"));
    }
    String::from_utf8(bytes).map_err(|error| format!("not UTF-8 at byte {}", error.utf8_error().valid_up_to()))
}

/// A line for each loss. If standard error is closed, the result is still written.
fn report(name: &str, losses: &[Loss]) {
    let mut out = io::stderr().lock();
    for loss in losses {
        let _ = writeln!(out, "{name}:{loss}");
    }
}

/// Comments that say what the file was made of. No date: the same file gives the same result.
fn heading(name: &str, losses: &[Loss]) -> String {
    let closed = losses.iter().filter(|loss| loss.severity == Severity::Closed).count();
    let name: String = name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    format!(
        "# Made from {name}, a configuration of Kong, by `stillgate import`.\n\
         # Differences from Kong: {} (that close a route, service or consumer: {closed}). Each had a line on standard error.\n",
        losses.len(),
    )
}
