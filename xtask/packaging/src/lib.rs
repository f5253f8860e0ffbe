//! Makes what people install: Debian packages, an archive, a wheel, and the files of a container.
//!
//! `contents` says which files each has, `programs` reads what the programs need. Each format is a module, and takes the files from
//! the same table: a new file is a line there. Nothing here builds: programs are given.

pub mod archive;
pub mod container;
mod contents;
pub mod deb;
mod programs;
pub mod wheel;

use std::error::Error;
use std::path::PathBuf;
use std::process::{Command, Stdio};

pub use programs::Programs;

/// One message for the person who made the package.
pub type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// What is packaged.
#[derive(Debug, Clone)]
pub struct Release {
    /// Such as `0.1.0`.
    pub version: String,
    /// The repository, for files that are kept there.
    pub repository: PathBuf,
    /// What was built.
    pub programs: Programs,
    /// Seconds since 1970 that all files have as their time, so that the same programs make the same packages.
    pub time: u64,
    /// How well the packages are compressed, from 1 to 9; 0: not at all.
    pub compression: u32,
}

impl Release {
    /// Reads the version from the workspace, and the time from its last commit.
    pub fn of(repository: PathBuf, programs: Programs) -> Result<Release> {
        let manifest = std::fs::read_to_string(repository.join("Cargo.toml"))?;
        let version = manifest.lines().find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
        let version = version.ok_or("Cargo.toml has no version of the workspace")?.to_owned();
        let time = output(Command::new("git").arg("-C").arg(&repository).args(["log", "-1", "--format=%ct"]))?;
        let time = time.trim().parse().map_err(|_| format!("git has no time of the last commit: {time:?}"))?;
        Ok(Release { version, repository, programs, time, compression: 9 })
    }
}

/// Runs a command, and returns what it printed.
fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("cannot run {name}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout)?),
        false => Err(format!("{name} failed ({}): {}", output.status, said.trim()).into()),
    }
}
