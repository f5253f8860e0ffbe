//! Reads files that the operator named, within a bound, and without waiting for anybody.

#![forbid(unsafe_code)]

use rustix::fs::OFlags;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// The bytes of a regular file, at most one more than `bytes_max`: a longer result means that the file is too large.
pub fn read_bounded(file: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    // Opening a FIFO without this flag waits for a writer; a reload that waits would be the last one.
    let opened = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(file)?;
    let metadata = opened.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::with_capacity((metadata.len() as usize).min(bytes_max) + 1);
    opened.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_to_one_byte_beyond_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, b"12345").unwrap();
        assert_eq!(read_bounded(&file, 5).unwrap(), b"12345");
        assert_eq!(read_bounded(&file, 100).unwrap(), b"12345");
        assert_eq!(read_bounded(&file, 2).unwrap(), b"123");
        assert_eq!(read_bounded(&folder.path().join("none"), 2).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_is_not_a_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read_bounded(folder.path(), 2).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(read_bounded(Path::new("/dev/zero"), 2).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let fifo = folder.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
        assert_eq!(read_bounded(&fifo, 2).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
