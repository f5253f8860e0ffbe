//! Which files each package has: one table.

use crate::{Release, Result, output};
use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

/// A package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Package {
    Gateway,
    Lab,
}

/// Where a file comes from.
#[derive(Debug, Clone, Copy)]
enum FileSource {
    Gateway,
    Lab,
    /// A file of the repository.
    Repository(&'static str),
    /// What the package's program prints for these arguments.
    Printed(&'static [&'static str]),
    /// A man page of each command, which the package's program writes into a folder.
    ManPages,
}

const PROGRAM: u32 = 0o755;
const PLAIN: u32 = 0o644;

/// Package, path in the system, mode, source.
const FILES: &[(Package, &str, u32, FileSource)] = &[
    (Package::Gateway, "usr/bin/stillgate", PROGRAM, FileSource::Gateway),
    (Package::Gateway, "etc/stillgate/stillgate.yaml", PLAIN, FileSource::Printed(&["init", "-"])),
    (
        Package::Gateway,
        "usr/lib/systemd/system/stillgate.service",
        PLAIN,
        FileSource::Repository("packaging/stillgate.service"),
    ),
    (
        Package::Gateway,
        "usr/lib/sysusers.d/stillgate.conf",
        PLAIN,
        FileSource::Repository("packaging/stillgate.sysusers"),
    ),
    (Package::Gateway, "etc/logrotate.d/stillgate", PLAIN, FileSource::Repository("packaging/stillgate.logrotate")),
    (
        Package::Gateway,
        "usr/share/bash-completion/completions/stillgate",
        PLAIN,
        FileSource::Printed(&["completions", "bash"]),
    ),
    (
        Package::Gateway,
        "usr/share/zsh/vendor-completions/_stillgate",
        PLAIN,
        FileSource::Printed(&["completions", "zsh"]),
    ),
    (
        Package::Gateway,
        "usr/share/fish/vendor_completions.d/stillgate.fish",
        PLAIN,
        FileSource::Printed(&["completions", "fish"]),
    ),
    (Package::Gateway, "usr/share/man/man1", PLAIN, FileSource::ManPages),
    (Package::Gateway, "usr/share/doc/stillgate/copyright", PLAIN, FileSource::Repository("LICENSE")),
    (Package::Gateway, "usr/share/doc/stillgate/CHANGELOG.md", PLAIN, FileSource::Repository("CHANGELOG.md")),
    (Package::Lab, "usr/bin/stillgate-lab", PROGRAM, FileSource::Lab),
    (
        Package::Lab,
        "usr/share/bash-completion/completions/stillgate-lab",
        PLAIN,
        FileSource::Printed(&["completions", "bash"]),
    ),
    (
        Package::Lab,
        "usr/share/zsh/vendor-completions/_stillgate-lab",
        PLAIN,
        FileSource::Printed(&["completions", "zsh"]),
    ),
    (
        Package::Lab,
        "usr/share/fish/vendor_completions.d/stillgate-lab.fish",
        PLAIN,
        FileSource::Printed(&["completions", "fish"]),
    ),
    (Package::Lab, "usr/share/man/man1", PLAIN, FileSource::ManPages),
    (Package::Lab, "usr/share/doc/stillgate-lab/copyright", PLAIN, FileSource::Repository("LICENSE")),
];

/// Writes the files of a package below a folder. `only`: those whose path begins so.
pub(crate) fn stage(package: Package, release: &Release, root: &Path, only: &str) -> Result {
    let program = match package {
        Package::Gateway => &release.programs.gateway,
        Package::Lab => &release.programs.lab,
    };
    for (_, path, mode, source) in FILES.iter().filter(|(of, path, ..)| *of == package && path.starts_with(only)) {
        let to = root.join(path);
        fs::create_dir_all(to.parent().ok_or("a file needs a folder")?)?;
        match source {
            FileSource::Gateway | FileSource::Lab => copy(program, &to)?,
            FileSource::Repository(file) => copy(&release.repository.join(file), &to)?,
            FileSource::Printed(arguments) => fs::write(&to, output(Command::new(program).args(*arguments))?)?,
            FileSource::ManPages => {
                fs::create_dir_all(&to)?;
                output(Command::new(program).arg("man-pages").arg(&to))?;
                continue;
            }
        }
        fs::set_permissions(&to, Permissions::from_mode(*mode))?;
    }
    settle(release, root)
}

fn copy(from: &Path, to: &Path) -> Result {
    fs::copy(from, to).map_err(|error| format!("cannot copy {} to {}: {error}", from.display(), to.display()))?;
    Ok(())
}

/// Gives all files and folders the release's time, and folders and man pages their mode, whatever the umask is.
fn settle(release: &Release, folder: &Path) -> Result {
    for path in below(folder)? {
        if path.is_dir() {
            settle(release, &path)?;
        } else if path.extension().is_some_and(|extension| extension == "1") {
            fs::set_permissions(&path, Permissions::from_mode(PLAIN))?;
        }
        set_time(release, &path)?;
    }
    fs::set_permissions(folder, Permissions::from_mode(PROGRAM))?;
    set_time(release, folder)
}

fn set_time(release: &Release, path: &Path) -> Result {
    let time = UNIX_EPOCH + Duration::from_secs(release.time);
    File::open(path)?.set_times(FileTimes::new().set_modified(time).set_accessed(time))?;
    Ok(())
}

/// The entries of a folder, sorted.
pub(crate) fn below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}
