//! Signatures of `resty.jwt`. Functions verify with few keys, and parsing a key takes as long as verifying with it, so
//! the last parsed ones are cached.

use aws_lc_rs::hmac;
use aws_lc_rs::signature::ParsedPublicKey;
use stillgate_jws::{ALGORITHMS, Algorithm, public_key};

/// Most public keys that a worker caches.
const KEYS_MAX: usize = 16;

/// Encoding of the algorithm and the signature's length in the prelude: the index into [`ALGORITHMS`], plus this times
/// the length.
const PACKED: usize = 64;

const _: () = assert!(ALGORITHMS.len() <= PACKED);

/// Public keys, most recently used first.
#[derive(Default)]
pub(crate) struct PublicKeys(Vec<(Algorithm, Box<[u8]>, ParsedPublicKey)>);

/// Signs a message; an error gives the reason.
pub(crate) fn sign(number: f64, key: &[u8], message: &[u8]) -> Result<Vec<u8>, &'static str> {
    let (_, algorithm) = ALGORITHMS.get(number as usize).ok_or(UNKNOWN)?;
    stillgate_jws::sign(*algorithm, key, message)
}

const UNKNOWN: &str = "no such algorithm";

impl PublicKeys {
    /// Whether a signature is that of a message. `signed`: the signature, followed by the key. Secrets are compared in
    /// constant time.
    pub(crate) fn verify(&mut self, number: f64, signed: &[u8], message: &[u8]) -> Result<bool, &'static str> {
        let packed = number as usize;
        let (_, algorithm) = *ALGORITHMS.get(packed % PACKED).ok_or(UNKNOWN)?;
        let (signature, key) = signed.split_at_checked(packed / PACKED).ok_or("no signature")?;
        match algorithm.hmac() {
            Some(hash) => Ok(hmac::verify(&hmac::Key::new(hash, key), message, signature).is_ok()),
            None => Ok(self.of(algorithm, key)?.verify_sig(message, signature).is_ok()),
        }
    }

    fn of(&mut self, algorithm: Algorithm, text: &[u8]) -> Result<&ParsedPublicKey, &'static str> {
        let known = self.0.iter().position(|(of, known, _)| *of == algorithm && **known == *text);
        match known {
            Some(at) => self.0[..=at].rotate_right(1),
            None => {
                let key = public_key(algorithm, text)?;
                self.0.truncate(KEYS_MAX - 1);
                self.0.insert(0, (algorithm, text.into(), key));
            }
        }
        Ok(&self.0[0].2)
    }
}
