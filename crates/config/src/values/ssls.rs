//! Where certificates and keys are, and which TLS is spoken with them.

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

/// Where PEM text is found.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// In the configuration itself.
    Inline(String),
    /// In a file; relative to the folder that the process was started in, as all paths of the configuration are.
    File(PathBuf),
}

impl Pem {
    /// The file, where it is one.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Pem::Inline(_) => None,
            Pem::File(file) => Some(file),
        }
    }
}

/// Without the text, which may be a private key.
impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pem::Inline(text) => write!(f, "Inline({} bytes)", text.len()),
            Pem::File(file) => write!(f, "File({file:?})"),
        }
    }
}

/// As with `Debug`, not the text, but its digest, so that another text is another value.
impl Serialize for Pem {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Pem::Inline(text) => to.serialize_newtype_variant("Pem", 0, "Inline", &digest(text.as_bytes())),
            Pem::File(file) => to.serialize_newtype_variant("Pem", 1, "File", file),
        }
    }
}
