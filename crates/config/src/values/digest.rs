//! A digest for comparing a text that is not kept, or is a secret.

use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};
use std::fmt::{self, Write};
use std::path::{Path, PathBuf};

/// SHA-256 of a file's bytes in the form of [`Config::digest`](crate::Config::digest).
pub fn digest(bytes: &[u8]) -> String {
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        // Writing to a `String` cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

// The locations of certificates and keys, and versions of TLS.

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
