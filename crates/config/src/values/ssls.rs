//! The locations of certificates and keys, and versions of TLS.

use super::digest::digest;
use serde::{Serialize, Serializer};
use std::fmt;
use std::path::{Path, PathBuf};

/// A version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsVersion {
    /// RFC 5246.
    V12,
    /// RFC 8446.
    V13,
}

/// The location of PEM text.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// In the configuration itself.
    Inline(String),
    /// In a file; relative to the working directory at the start of the process, like all paths of the configuration.
    File(PathBuf),
}

impl Pem {
    /// The file, if it is one.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Pem::Inline(_) => None,
            Pem::File(file) => Some(file),
        }
    }
}

/// Omits the text, which may be a private key.
impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pem::Inline(text) => write!(f, "Inline({} bytes)", text.len()),
            Pem::File(file) => write!(f, "File({file:?})"),
        }
    }
}

/// Like `Debug`, omits the text, but includes its digest, so that different texts differ.
impl Serialize for Pem {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Pem::Inline(text) => to.serialize_newtype_variant("Pem", 0, "Inline", &digest(text.as_bytes())),
            Pem::File(file) => to.serialize_newtype_variant("Pem", 1, "File", file),
        }
    }
}
