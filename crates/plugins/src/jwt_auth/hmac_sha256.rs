//! HMAC with SHA-256 (RFC 2104, FIPS 180-4), for a secret that signs many tokens.
//!
//! Each of HMAC's two hashes begins with a block that depends only on the secret. The state after that block is cached:
//! for a short token that saves two of six blocks. The padding is done here, on top of the compression function of the
//! crate `sha2`: its hasher buffers and copies its input, which takes as long as another block. `aws-lc-rs` allocates
//! three times for each token.

use aws_lc_rs::constant_time;
use sha2::block_api::compress256;

/// A block of SHA-256.
pub(super) const BLOCK_BYTES: usize = 64;
/// Bytes of the length at the end of the last block, in bits.
const LENGTH_BYTES: usize = 8;
/// FIPS 180-4 section 5.3.3.
const BEGIN: State =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

type State = [u32; 8];

/// The state after the first block of each of the two hashes.
pub(super) struct Pads {
    inner: State,
    outer: State,
}

impl Pads {
    /// Computes the state for a secret of at most one block; the rest of a longer one would be ignored.
    pub(super) fn new(secret: &[u8]) -> Pads {
        let behind = |pad: u8| {
            let mut block = [pad; BLOCK_BYTES];
            block.iter_mut().zip(secret).for_each(|(byte, secret)| *byte ^= secret);
            let mut state = BEGIN;
            compress256(&mut state, &[block]);
            state
        };
        Pads { inner: behind(0x36), outer: behind(0x5c) }
    }

    /// Whether a signature is that of a text.
    pub(super) fn verifies(&self, signed: &[u8], signature: &[u8]) -> bool {
        let tag = finish(self.outer, &finish(self.inner, signed));
        constant_time::verify_slices_are_equal(&tag, signature).is_ok()
    }
}

/// The hash of one block, whose state is `state`, and a text.
fn finish(mut state: State, text: &[u8]) -> [u8; 32] {
    let (blocks, rest) = text.as_chunks::<BLOCK_BYTES>();
    compress256(&mut state, blocks);
    // A one bit, zeros, and the length at the end of the block, or of another one.
    let mut last = [[0; BLOCK_BYTES]; 2];
    last.as_flattened_mut()[..rest.len()].copy_from_slice(rest);
    last.as_flattened_mut()[rest.len()] = 0x80;
    let needed = if rest.len() < BLOCK_BYTES - LENGTH_BYTES { 1 } else { 2 };
    let bits = ((BLOCK_BYTES + text.len()) as u64) * 8;
    last[needed - 1][BLOCK_BYTES - LENGTH_BYTES..].copy_from_slice(&bits.to_be_bytes());
    compress256(&mut state, &last[..needed]);
    let mut hash = [0; 32];
    hash.as_chunks_mut().0.iter_mut().zip(state).for_each(|(bytes, word)| *bytes = word.to_be_bytes());
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_lc_rs::hmac::{HMAC_SHA256, Key, sign};

    /// Secrets and texts of all lengths around block boundaries.
    #[test]
    fn it_is_the_hmac_of_another_library() {
        let bytes: Vec<u8> = (0..=255).cycle().take(3000).collect();
        for secret in (0..=BLOCK_BYTES).map(|length| &bytes[7..7 + length]) {
            let (pads, key) = (Pads::new(secret), Key::new(HMAC_SHA256, secret));
            for text in (0..200).chain([1000, 2500]).map(|length| &bytes[..length]) {
                let mut tag = sign(&key, text).as_ref().to_vec();
                assert!(pads.verifies(text, &tag), "{} {}", secret.len(), text.len());
                assert!(!pads.verifies(text, &tag[..31]));
                assert!(!pads.verifies(&bytes[..text.len() + 1], &tag));
                tag[text.len() % 32] ^= 1;
                assert!(!pads.verifies(text, &tag), "{} {}", secret.len(), text.len());
            }
        }
    }
}
