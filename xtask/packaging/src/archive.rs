//! An archive with both programs, for any Linux with a C library of the same age or newer.

use crate::contents::{Package, stage};
use crate::programs::Architecture;
use crate::{Release, Result, output};
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `stillgate-VERSION-linux-ARCHITECTURE.tar.gz`, with its digest beside it. Returns its path.
pub fn archive(release: &Release, out: &Path) -> Result<PathBuf> {
    let architecture = Architecture::of(&release.programs.gateway)?.linux();
    let name = format!("stillgate-{}-linux-{architecture}", release.version);
    let parent = tempfile::tempdir()?;
    let root = parent.path().join(&name);
    let staged = tempfile::tempdir()?;
    for package in [Package::Gateway, Package::Lab] {
        // Without the paths of a system: `bin`, `share`, `lib/systemd`.
        stage(package, release, staged.path(), "usr/")?;
    }
    fs::rename(staged.path().join("usr"), &root)?;
    fs::copy(release.repository.join("LICENSE"), root.join("LICENSE"))?;
    fs::create_dir_all(out)?;
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=rX"]);
    let tarball = parent.path().join("tarball");
    tar.arg(format!("--mtime=@{}", release.time)).arg("--directory").arg(parent.path());
    output(tar.arg("--file").arg(&tarball).arg(&name))?;
    let path = out.join(format!("{name}.tar.gz"));
    let mut gzip = GzEncoder::new(File::create(&path)?, Compression::new(release.compression));
    std::io::copy(&mut File::open(&tarball)?, &mut gzip)?;
    gzip.finish()?.flush()?;
    let line = format!("{}  {name}.tar.gz\n", digest(&path)?);
    fs::write(out.join(format!("{name}.tar.gz.sha256")), line)?;
    Ok(path)
}

/// The SHA-256 digest of a file, in hexadecimal.
fn digest(file: &Path) -> Result<String> {
    let digest = Sha256::digest(fs::read(file)?);
    Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}
