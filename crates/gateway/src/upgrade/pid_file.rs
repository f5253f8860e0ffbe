//! `gateway.pid_file`: the number of the process that serves.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tracing::warn;

/// The file, with our number in it. It is removed when this is dropped, unless another process has put its own there.
#[derive(Debug)]
pub(crate) struct PidFile(PathBuf);

impl PidFile {
    /// Writes it in one step: who reads it sees a former number or this one.
    pub(crate) fn write(path: &Path) -> Option<PidFile> {
        let pid = std::process::id();
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{pid}"));
        let written = fs::write(&beside, format!("{pid}\n")).and_then(|()| fs::rename(&beside, path));
        match written {
            Ok(()) => Some(PidFile(path.to_owned())),
            Err(error) => {
                // Nothing that is served depends on it.
                warn!(file = %path.display(), %error, "gateway.pid_file cannot be written");
                let _ = fs::remove_file(&beside);
                None
            }
        }
    }

    /// The number in a file.
    pub(crate) fn read(path: &Path) -> io::Result<u32> {
        let text = fs::read_to_string(path)?;
        text.trim().parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it holds no number of a process"))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if PidFile::read(&self.0).is_ok_and(|pid| pid == std::process::id()) {
            // Whoever removed it meanwhile wanted the same.
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
        drop(file);
        assert_eq!(PidFile::read(&path).unwrap(), 1);
        fs::write(&path, "one").unwrap();
        assert!(PidFile::read(&path).is_err());
        assert!(PidFile::write(&dir.path().join("no/folder")).is_none());
    }
}
