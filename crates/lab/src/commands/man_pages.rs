//! `stillgate-lab man-pages`: a man page of each command, for packages.

use super::Cli;
use crate::error::{Error, Result};
use clap::{Args, CommandFactory as _};
use std::path::PathBuf;

/// `stillgate-lab man-pages`.
#[derive(Debug, Args)]
pub(crate) struct ManPages {
    /// An existing folder
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(crate) fn run(arguments: &ManPages) -> Result<u8> {
    let folder = &arguments.folder;
    let written = clap_mangen::generate_to(Cli::command(), folder);
    written.map_err(|error| Error::new(format!("cannot write into {}: {error}", folder.display())))?;
    Ok(0)
}
