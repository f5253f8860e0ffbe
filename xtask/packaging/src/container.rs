//! The files of a container: the gateway, the shared libraries it is loaded with, CA certificates and a user, and nothing else.

use crate::contents::{Package, stage};
use crate::programs::shared_libraries;
use crate::{Release, Result};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

const CA_CERTIFICATES: &str = "etc/ssl/certs/ca-certificates.crt";
/// The number that images without a shell use for their user.
const USER: u32 = 65532;

/// `container/Containerfile`, `container/root` and `container/state`. Returns the folder.
pub fn container(release: &Release, out: &Path) -> Result<PathBuf> {
    let folder = out.join("container");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let root = folder.join("root");
    for only in ["usr/bin/", "etc/stillgate/"] {
        stage(Package::Gateway, release, &root, only)?;
    }
    let copy = |from: &Path, to: &Path| -> Result {
        fs::create_dir_all(to.parent().ok_or("a file needs a folder")?)?;
        fs::copy(from, to).map_err(|error| format!("cannot copy {}: {error}", from.display()))?;
        Ok(())
    };
    for library in shared_libraries(&release.programs.gateway)? {
        copy(&library, &root.join(library.strip_prefix("/")?))?;
    }
    let certificates = Path::new("/").join(CA_CERTIFICATES);
    copy(&certificates, &root.join(CA_CERTIFICATES))
        .map_err(|error| format!("{error}\nthe certificates are in Debian's package ca-certificates"))?;
    fs::write(root.join("etc/passwd"), format!("stillgate:x:{USER}:{USER}::/var/lib/stillgate:/sbin/nologin\n"))?;
    fs::write(root.join("etc/group"), format!("stillgate:x:{USER}:\n"))?;
    for (path, mode) in [("root/tmp", 0o1777), ("root/var/lib", 0o755), ("state", 0o755)] {
        let path = folder.join(path);
        fs::create_dir_all(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(mode))?;
    }
    copy(&release.repository.join("packaging/Containerfile"), &folder.join("Containerfile"))?;
    Ok(folder)
}
