//! Bodies that can be checked: reproducible bytes and their checksums.

use sha2::{Digest, Sha256};

/// `len` bytes that depend on `seed` and position only, so a shifted or swapped byte shows.
pub fn payload(seed: u64, len: usize) -> Vec<u8> {
    let mut next = seeded(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A small generator of reproducible numbers (xorshift*).
pub fn seeded(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

/// SHA-256 in lower-case hex.
pub fn sha256(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        write!(hex, "{byte:02x}").expect("writing to a String cannot fail");
    }
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_depend_on_the_seed_and_keep_their_prefix() {
        assert_eq!(payload(1, 100)[..50], payload(1, 50)[..]);
        assert_ne!(payload(1, 100), payload(2, 100));
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
