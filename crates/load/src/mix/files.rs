//! Files that a mix is made of, read whole and with a bound.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Largest file of requests, of a body or of values.
pub(super) const FILE_BYTES_MAX: u64 = 256 << 20;

/// All of a file; the error is a message.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, String> {
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error| format!("cannot be read ({error}); check the path and its permissions"))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("has more than {} MiB; use a part of it", FILE_BYTES_MAX >> 20));
    }
    Ok(bytes)
}

/// The lines of a file that are not empty; at least one.
pub(super) fn lines(path: &Path) -> Result<Vec<Box<[u8]>>, String> {
    let bytes = read(path)?;
    let lines = bytes.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let lines: Vec<Box<[u8]>> = lines.filter(|line| !line.is_empty()).map(Box::from).collect();
    if lines.is_empty() {
        return Err("has no values; write one per line".to_owned());
    }
    Ok(lines)
}
