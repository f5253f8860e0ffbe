//! Debian packages, made by `dpkg-deb`.

use crate::contents::{Package, below, stage};
use crate::programs::{Architecture, glibc_version};
use crate::{Release, Result, output};
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const MAINTAINER: &str = "The Stillgate project <noreply@stillgate.invalid>";
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// The gateway with its service: `stillgate_VERSION_ARCHITECTURE.deb`. Returns its path.
pub fn gateway(release: &Release, out: &Path) -> Result<PathBuf> {
    let package = DebianPackage {
        package: Package::Gateway,
        name: "stillgate",
        program: &release.programs.gateway,
        section: "httpd",
        recommends: "logrotate, systemd | systemd-standalone-sysusers",
        summary: "API gateway whose measurements never cost a request",
        text: "Accepts HTTP/1.1 and HTTP/2, TLS, TCP and UDP, and forwards by routes that are\n \
               written as in APISIX's standalone apisix.yaml or managed by its Admin API.",
    };
    package.build(release, out)
}

/// The laboratory: `stillgate-lab_VERSION_ARCHITECTURE.deb`. Returns its path.
pub fn lab(release: &Release, out: &Path) -> Result<PathBuf> {
    let package = DebianPackage {
        package: Package::Lab,
        name: "stillgate-lab",
        program: &release.programs.lab,
        section: "net",
        recommends: "stillgate",
        summary: "laboratory for HTTP gateways: load, comparison, bisection",
        text: "Puts load on any gateway without losing the latencies that a slow server hides,\n \
               compares builds with error bounds, and finds the commit that made one slower.",
    };
    package.build(release, out)
}

struct DebianPackage<'a> {
    package: Package,
    name: &'static str,
    program: &'a Path,
    section: &'static str,
    recommends: &'static str,
    summary: &'static str,
    text: &'static str,
}

impl DebianPackage<'_> {
    fn build(&self, release: &Release, out: &Path) -> Result<PathBuf> {
        let architecture = Architecture::of(self.program)?.debian();
        let root = tempfile::tempdir()?;
        stage(self.package, release, root.path(), "")?;
        let kilobytes = size(root.path())?.div_ceil(1024);
        let control = root.path().join("DEBIAN");
        fs::create_dir(&control)?;
        fs::write(control.join("control"), self.control(release, architecture, kilobytes)?)?;
        if self.package == Package::Gateway {
            // A file that an administrator has changed is kept by an upgrade.
            let configuration = files(&root.path().join("etc"))?;
            let mut list = String::new();
            for file in configuration {
                writeln!(list, "/{}", file.strip_prefix(root.path())?.display())?;
            }
            fs::write(control.join("conffiles"), list)?;
            for script in SCRIPTS {
                let to = control.join(script);
                fs::copy(release.repository.join("packaging").join(script), &to)?;
                fs::set_permissions(&to, Permissions::from_mode(0o755))?;
            }
        }
        fs::set_permissions(&control, Permissions::from_mode(0o755))?;
        fs::create_dir_all(out)?;
        let deb = out.join(format!("{}_{}_{architecture}.deb", self.name, release.version));
        let mut build = Command::new("dpkg-deb");
        build.env("SOURCE_DATE_EPOCH", release.time.to_string()).arg("--root-owner-group");
        match release.compression {
            0 => build.arg("-Znone"),
            level => build.arg("-Zxz").arg(format!("-z{level}")),
        };
        build.arg("--build").arg(root.path()).arg(&deb);
        output(&mut build)?;
        Ok(deb)
    }

    fn control(&self, release: &Release, architecture: &str, kilobytes: u64) -> Result<String> {
        let (major, minor) = glibc_version(self.program)?;
        Ok(format!(
            "Package: {}\nVersion: {}\nArchitecture: {architecture}\nMaintainer: {MAINTAINER}\n\
             Installed-Size: {kilobytes}\nDepends: libc6 (>= {major}.{minor}), libgcc-s1\nRecommends: {}\n\
             Section: {}\nPriority: optional\nDescription: {}\n {}\n",
            self.name, release.version, self.recommends, self.section, self.summary, self.text
        ))
    }
}

/// All files below a folder; of a folder that does not exist, none.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    if folder.exists() {
        for path in below(folder)? {
            match path.is_dir() {
                true => files.extend(self::files(&path)?),
                false => files.push(path),
            }
        }
    }
    Ok(files)
}

fn size(folder: &Path) -> Result<u64> {
    files(folder)?.iter().map(|file| Ok(fs::metadata(file)?.len())).sum()
}
