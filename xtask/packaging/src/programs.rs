//! The programs, and what they need of a system: the C library and its version.

use crate::{Result, output};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Paths of the built programs.
#[derive(Debug, Clone)]
pub struct Programs {
    /// `stillgate`.
    pub gateway: PathBuf,
    /// `stillgate-lab`.
    pub lab: PathBuf,
}

/// The name of a machine's architecture, as each format writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Architecture {
    X86_64,
    Aarch64,
}

impl Architecture {
    /// The architecture that a program was built for.
    pub(crate) fn of(program: &Path) -> Result<Architecture> {
        let header = output(Command::new("readelf").arg("--file-header").arg(program))?;
        let machine = header.lines().find_map(|line| line.trim().strip_prefix("Machine:")).map(str::trim);
        match machine {
            Some("Advanced Micro Devices X86-64") => Ok(Architecture::X86_64),
            Some("AArch64") => Ok(Architecture::Aarch64),
            other => Err(format!("{}: no packages are made for {other:?}", program.display()).into()),
        }
    }

    pub(crate) fn debian(self) -> &'static str {
        match self {
            Architecture::X86_64 => "amd64",
            Architecture::Aarch64 => "arm64",
        }
    }

    pub(crate) fn linux(self) -> &'static str {
        match self {
            Architecture::X86_64 => "x86_64",
            Architecture::Aarch64 => "aarch64",
        }
    }
}

/// The newest version of the C library that a program needs a symbol of: such as (2, 34).
pub(crate) fn glibc_version(program: &Path) -> Result<(u32, u32)> {
    let info = output(Command::new("readelf").args(["--version-info", "--wide"]).arg(program))?;
    newest_glibc(&info).ok_or_else(|| format!("{} needs no symbol of the C library", program.display()).into())
}

fn newest_glibc(info: &str) -> Option<(u32, u32)> {
    let versions = info.split_whitespace().filter_map(|word| {
        let mut parts = word.strip_prefix("GLIBC_")?.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    });
    versions.max()
}

/// The shared libraries that a program is loaded with, with the loader: where they are on this machine.
pub(crate) fn shared_libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let listed = output(Command::new("ldd").arg(program))?;
    let paths = listed.lines().filter_map(|line| {
        let line = line.trim();
        let path = line.split_once(" => ").map_or(line, |(_, path)| path).split(" (").next()?;
        path.starts_with('/').then(|| PathBuf::from(path))
    });
    Ok(paths.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_counts() {
        let info = "0x0010: Name: GLIBC_2.9  Flags: none\n Name: GLIBC_2.34  Flags\n GLIBC_PRIVATE GLIBC_2.3.4\n";
        assert_eq!(newest_glibc(info), Some((2, 34)));
        assert_eq!(newest_glibc("GCC_3.0"), None);
    }
}
