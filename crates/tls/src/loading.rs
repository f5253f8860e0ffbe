//! The state of one load: files, each read once, the time, the problems found, and digests of inputs, by which the next
//! load sees what has changed.

use crate::pem::{FILE_BYTES_MAX, Files};
use crate::problem::{ConfigLocation, Problems};
use aws_lc_rs::digest::{Context, SHA256};
use rustls::pki_types::UnixTime;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stillgate_config::Pem;

/// PEM text or a file's bytes.
pub(crate) type Text = Arc<[u8]>;

const UNREADABLE_HINT: &str = "fix the path or the file's permissions";

/// One load of one configuration.
pub(crate) struct TlsLoad<'a> {
    pub(crate) files: &'a dyn Files,
    pub(crate) now: UnixTime,
    pub(crate) problems: Problems,
    /// Bytes or error for each file. All keys that name a file get the same bytes.
    read: HashMap<PathBuf, Result<Text, String>>,
}

impl<'a> TlsLoad<'a> {
    pub(crate) fn new(files: &'a dyn Files, now: UnixTime) -> TlsLoad<'a> {
        TlsLoad { files, now, problems: crate::problem::Problems::default(), read: HashMap::new() }
    }

    /// The text that a key of the configuration contains or names. `None` if it cannot be read, which has been
    /// reported.
    pub(crate) fn pem(&mut self, pem: &Pem, path: &str) -> Option<Text> {
        match pem {
            Pem::Inline(text) => Some(text.as_bytes().into()),
            Pem::File(file) => self.file(file, path),
        }
    }

    /// A file's bytes. `None` if it cannot be read, which has been reported.
    pub(crate) fn file(&mut self, file: &Path, path: &str) -> Option<Text> {
        match self.read(file) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                if !is_file_name(file) {
                    let place = ConfigLocation { path, file: None };
                    let message = "it is neither PEM nor a file that can be read";
                    self.problems.error(place, message, "write a text that begins with -----BEGIN, or a path");
                    return None;
                }
                let place = ConfigLocation { path, file: Some(file) };
                self.problems.error(place, format!("cannot be read: {error}"), UNREADABLE_HINT);
                None
            }
        }
    }

    /// The bytes of a file that is not needed. `None` if it cannot be read, of which has been warned.
    pub(crate) fn optional_file(&mut self, file: &Path, path: &str) -> Option<Text> {
        let read = self.read(file);
        let warn = |error| {
            let place = ConfigLocation { path, file: Some(file) };
            self.problems.warning(place, format!("cannot be read, so it is not used: {error}"), UNREADABLE_HINT);
        };
        read.map_err(warn).ok()
    }

    fn read(&mut self, file: &Path) -> Result<Text, String> {
        if let Some(read) = self.read.get(file) {
            return read.clone();
        }
        let read = match self.files.read(file) {
            Ok(bytes) if bytes.len() > FILE_BYTES_MAX => Err(format!("it is larger than {FILE_BYTES_MAX} bytes")),
            Ok(bytes) => Ok(bytes.into()),
            Err(error) => Err(error.to_string()),
        };
        self.read.insert(file.to_owned(), read.clone());
        read
    }
}

/// Whether a text is meant as the name of a file. Any other may be a private key that lacks its first line, which no message
/// may show.
fn is_file_name(file: &Path) -> bool {
    const NAME_BYTES_MAX: usize = 255;
    let is_short = file.as_os_str().len() <= NAME_BYTES_MAX;
    is_short && (file.is_absolute() || file.extension().is_some())
}

/// A digest of all inputs of something. The texts themselves, keys among them, are not kept.
pub(crate) type Digest = [u8; 32];

/// SHA-256 over several texts, kept apart so that none can pass for a part of another.
pub(crate) struct Digester(Context);

impl Digester {
    pub(crate) fn new() -> Digester {
        Digester(Context::new(&SHA256))
    }

    pub(crate) fn add(&mut self, text: &[u8]) {
        self.0.update(&(text.len() as u64).to_le_bytes());
        self.0.update(text);
    }

    pub(crate) fn finish(self) -> Digest {
        let mut digest = [0; 32];
        digest.copy_from_slice(self.0.finish().as_ref());
        digest
    }
}
