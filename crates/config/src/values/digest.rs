//! A digest for comparing a text that is not kept, or is a secret.

use sha2::{Digest, Sha256};
use std::fmt::Write;

/// SHA-256 of a file's bytes in the form of [`Config::digest`](crate::Config::digest).
pub fn digest(bytes: &[u8]) -> String {
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        // Writing to a `String` cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}
