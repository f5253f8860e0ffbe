//! Digests that detect changes of input files and settings.

use aws_lc_rs::digest::{Context, SHA256};

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
