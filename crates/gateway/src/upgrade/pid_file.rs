//! `gateway.pid_file`: the number of the process that serves.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tracing::warn;

/// The file, with our number in it. It is removed when this is dropped, unless another process has put its own there.
#[derive(Debug)]
pub(crate) struct PidFile(PathBuf);

/// Maximum size of a number and a line's end, in bytes.
const FILE_BYTES_MAX: u64 = 32;

impl PidFile {
    /// Writes it in one step: a reader sees a former number or this one.
    pub(crate) fn write(path: &Path) -> Option<PidFile> {
        put(path).then(|| PidFile(path.to_owned()))
    }

    /// Writes it again where a process that was to follow has written its own number, or removed the file as it ended.
    pub(crate) fn restore(&self) {
        if PidFile::read(&self.0).ok() != Some(std::process::id()) {
            put(&self.0);
        }
    }

    /// Whether the file may be written: an existing file must be a pid file, as it is replaced and in the end removed.
    pub(crate) fn check(path: &Path) -> io::Result<()> {
        let is_ours = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
            Ok(metadata) if metadata.len() == 0 => metadata.is_file(),
            Ok(metadata) => metadata.is_file() && metadata.len() <= FILE_BYTES_MAX && PidFile::read(path).is_ok(),
        };
        let foreign = "something else is there, which would be replaced: name a file that is not there yet";
        if is_ours { Ok(()) } else { Err(io::Error::new(io::ErrorKind::AlreadyExists, foreign)) }
    }

    /// From here on the file belongs to another process, which replaces it at any moment: checking and removing it then may remove
    /// that process's file.
    pub(crate) fn leave(self) {
        std::mem::forget(self);
    }

    /// The number in a file.
    pub(crate) fn read(path: &Path) -> io::Result<u32> {
        let text = fs::read_to_string(path)?;
        text.trim().parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it holds no process ID"))
    }
}

/// False: it cannot be written, which is in the log.
fn put(path: &Path) -> bool {
    let pid = std::process::id();
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{pid}"));
    let write = || fs::write(&beside, format!("{pid}\n")).and_then(|()| fs::rename(&beside, path));
    if let Err(error) = PidFile::check(path).and_then(|()| write()) {
        // Serving does not depend on it.
        warn!(file = %path.display(), %error, "gateway.pid_file cannot be written");
        let _ = fs::remove_file(&beside);
        return false;
    }
    true
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if PidFile::read(&self.0).is_ok_and(|pid| pid == std::process::id()) {
            // If another process removed it meanwhile, that is what was to be done.
            let _ = fs::remove_file(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_removes_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid");
        let file = PidFile::write(&path).unwrap();
        assert_eq!(PidFile::read(&path).unwrap(), std::process::id());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        drop(file);
        assert!(!path.exists());
        let file = PidFile::write(&path).unwrap();
        fs::write(&path, "1\n").unwrap();
        file.restore();
        assert_eq!(PidFile::read(&path).unwrap(), std::process::id());
        fs::remove_file(&path).unwrap();
        file.restore();
        assert_eq!(PidFile::read(&path).unwrap(), std::process::id());
        fs::write(&path, "1\n").unwrap();
        drop(file);
        assert_eq!(PidFile::read(&path).unwrap(), 1);
        fs::write(&path, "one").unwrap();
        assert!(PidFile::read(&path).is_err());
        assert!(PidFile::write(&dir.path().join("no/folder")).is_none());
    }

    #[test]
    fn what_is_no_pid_file_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("config.yaml"), "routes: []\n").unwrap();
        fs::write(at("long"), "1".repeat(100)).unwrap();
        fs::create_dir(at("folder")).unwrap();
        fs::write(at("number"), "1\n").unwrap();
        std::os::unix::fs::symlink(at("number"), at("link")).unwrap();
        for path in [at("config.yaml"), at("long"), at("folder"), at("link"), "/dev/null".into()] {
            let before = fs::symlink_metadata(&path).unwrap();
            assert!(PidFile::write(&path).is_none(), "{}", path.display());
            let after = fs::symlink_metadata(&path).unwrap();
            assert_eq!((before.file_type(), before.len()), (after.file_type(), after.len()), "{}", path.display());
        }
        fs::write(at("empty"), "").unwrap();
        assert!(PidFile::write(&at("empty")).is_some() && PidFile::write(&at("number")).is_some());
        PidFile::write(&at("left")).unwrap().leave();
        assert!(at("left").exists());
    }
}
