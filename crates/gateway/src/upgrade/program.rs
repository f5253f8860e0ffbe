//! The program that a process starts as its successor: the file by which it was called itself, and its arguments.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the new process has until it serves.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// The program to start.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    /// The path of our own binary, as it is installed now.
    pub(crate) path: PathBuf,
    /// Its name in the command line.
    pub(crate) name: OsString,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) ready_timeout: Duration,
}

impl Program {
    /// This process's own program; to be determined at its start, since the file may be replaced later.
    pub(crate) fn own() -> io::Result<Program> {
        let mut arguments = std::env::args_os();
        let (name, file) = (arguments.next().unwrap_or_default(), std::env::current_exe()?);
        let path = as_called(&name, &file).unwrap_or(file);
        Ok(Program { path, name, arguments: arguments.collect(), ready_timeout: READY_TIMEOUT })
    }
}

/// The path by which `file` was called, where it still leads there: a link may lead to another version later, which the system's
/// own answer, with links resolved, does not show.
fn as_called(name: &OsStr, file: &Path) -> Option<PathBuf> {
    let called = Path::new(name);
    let is_it = |path: &PathBuf| path.canonicalize().is_ok_and(|path| path == file);
    match called.components().nth(1) {
        Some(_) => Some(std::path::absolute(called).ok()?).filter(is_it),
        None => std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(called)).find(is_it),
    }
    .filter(|path| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_the_file_is_kept() {
        let dir = tempfile::tempdir().expect("a folder");
        let dir = dir.path().canonicalize().expect("it is there");
        let (file, link) = (dir.join("v1"), dir.join("current"));
        std::fs::write(&file, "").expect("write");
        std::os::unix::fs::symlink(&file, &link).expect("link");
        let called = |name: &Path| as_called(name.as_os_str(), &file);
        assert_eq!(called(&link), Some(link.clone()));
        assert_eq!(called(&file), Some(file.clone()));
        assert_eq!(called(&dir.join("other")), None);
        assert_eq!(called(Path::new("sh")), None);
        let sh = Path::new("/bin/sh").canonicalize().expect("it is there");
        assert!(as_called(OsStr::new("sh"), &sh).is_some_and(|path| path.ends_with("sh") && path.is_absolute()));
    }
}
