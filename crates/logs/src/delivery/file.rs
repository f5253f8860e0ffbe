//! Appends to a file, which may be moved away at any time: then, or if it is missing, one is made.

use bytes::Bytes;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::{File, metadata};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::spawn_blocking;

/// The open file; `None` if it is not open.
#[derive(Default)]
pub(crate) struct AppendFile(Arc<Mutex<Option<File>>>);

impl AppendFile {
    /// Appends whole lines.
    pub(crate) async fn append(&self, path: &str, lines: Bytes) -> Result<u64, String> {
        let (open, path) = (self.0.clone(), path.to_owned());
        // A write may block on the disk.
        let written = spawn_blocking(move || {
            let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
            append(&mut open, &path, &lines).map_err(|error| format!("cannot append to {path}: {error}"))
        });
        written.await.map_err(|error| error.to_string())?
    }
}

fn append(open: &mut Option<File>, path: &str, lines: &[u8]) -> io::Result<u64> {
    let is_same = |file: &File| match (file.metadata(), metadata(path)) {
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        _ => false,
    };
    let mut file = match open.take().filter(is_same) {
        Some(file) => file,
        None => open_file(path)?,
    };
    // In one call, so that lines of two outlets with one file do not mix; after a short write they may.
    file.write_all(lines)?;
    *open = Some(file);
    Ok(lines.len() as u64)
}

fn open_file(path: &str) -> io::Result<File> {
    // Opening a FIFO would wait for a reader without this flag.
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = File::options().append(true).create(true).custom_flags(flags).open(path)?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_that_was_moved_away_is_recreated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        let (text, mut open) = (path.to_str().unwrap(), None);
        append(&mut open, text, b"1\n").unwrap();
        append(&mut open, text, b"2\n").unwrap();
        fs::rename(&path, folder.path().join("a.log.1")).unwrap();
        append(&mut open, text, b"3\n").unwrap();
        fs::remove_file(&path).unwrap();
        append(&mut open, text, b"4\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "4\n");
        assert_eq!(fs::read_to_string(folder.path().join("a.log.1")).unwrap(), "1\n2\n");
        assert!(append(&mut None, "/nowhere/at/all", b"5\n").is_err());
    }
}
