//! A wheel with both programs, so that `pip install` and `pipx run` bring them: the binary distribution format of Python packages.

use crate::contents::{Package, stage};
use crate::programs::{Architecture, glibc_version};
use crate::{Release, Result};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// `stillgate-VERSION-py3-none-manylinux_*.whl`. Returns its path.
pub fn wheel(release: &Release, out: &Path) -> Result<PathBuf> {
    let programs = &release.programs;
    let architecture = Architecture::of(&programs.gateway)?.linux();
    let (major, minor) = glibc_version(&programs.gateway)?.max(glibc_version(&programs.lab)?);
    let tag = format!("py3-none-manylinux_{major}_{minor}_{architecture}");
    let version = &release.version;
    let info = format!("stillgate-{version}.dist-info");
    let staged = tempfile::tempdir()?;
    for package in [Package::Gateway, Package::Lab] {
        stage(package, release, staged.path(), "usr/bin/")?;
    }
    let mut files = Vec::new();
    for name in ["stillgate", "stillgate-lab"] {
        let program = fs::read(staged.path().join("usr/bin").join(name))?;
        files.push((format!("stillgate-{version}.data/scripts/{name}"), program, 0o755));
    }
    let metadata = format!(
        "Metadata-Version: 2.4\nName: stillgate\nVersion: {version}\n\
         Summary: API gateway whose measurements never cost a request, and its laboratory\n\
         License-Expression: Apache-2.0\nLicense-File: LICENSE\n"
    );
    let wheel = format!("Wheel-Version: 1.0\nGenerator: stillgate-packaging\nRoot-Is-Purelib: false\nTag: {tag}\n");
    files.push((format!("{info}/METADATA"), metadata.into_bytes(), 0o644));
    files.push((format!("{info}/WHEEL"), wheel.into_bytes(), 0o644));
    files.push((format!("{info}/licenses/LICENSE"), fs::read(release.repository.join("LICENSE"))?, 0o644));
    let list = format!("{info}/RECORD");
    let lines = files.iter().map(|(name, content, _)| {
        format!("{name},sha256={},{}\n", URL_SAFE_NO_PAD.encode(Sha256::digest(content)), content.len())
    });
    let record = lines.collect::<String>() + &format!("{list},,\n");
    files.push((list, record.into_bytes(), 0o644));

    fs::create_dir_all(out)?;
    let path = out.join(format!("stillgate-{version}-{tag}.whl"));
    let mut zip = ZipWriter::new(File::create(&path)?);
    for (name, content, mode) in files {
        let options = SimpleFileOptions::default().unix_permissions(mode);
        let options = match release.compression {
            0 => options.compression_method(CompressionMethod::Stored),
            level => options.compression_method(CompressionMethod::Deflated).compression_level(Some(i64::from(level))),
        };
        zip.start_file(name, options)?;
        zip.write_all(&content)?;
    }
    zip.finish()?;
    Ok(path)
}
