//! Signatures of `resty.jwt`. Keys that functions verify with are few, and reading one takes as long as verifying with it, so the last
//! ones are kept as they were read.

use aws_lc_rs::hmac;
use aws_lc_rs::signature::ParsedPublicKey;
use stillgate_jws::{ALGORITHMS, Algorithm, public_key};

/// Public keys that a worker keeps.
const KEYS_MAX: usize = 16;

/// How the prelude says which algorithm, and how long the signature is: the place in [`ALGORITHMS`], and this times the length.
const PACKED: usize = 64;

const _: () = assert!(ALGORITHMS.len() <= PACKED);

/// Public keys, the last one that was used first.
#[derive(Default)]
pub(crate) struct PublicKeys(Vec<(Algorithm, Box<[u8]>, ParsedPublicKey)>);

/// Signs a message; an error says why not.
pub(crate) fn sign(number: f64, key: &[u8], message: &[u8]) -> Result<Vec<u8>, &'static str> {
    let (_, algorithm) = ALGORITHMS.get(number as usize).ok_or(UNKNOWN)?;
    stillgate_jws::sign(*algorithm, key, message)
}

const UNKNOWN: &str = "no such algorithm";

impl PublicKeys {
    /// Whether a signature is that of a message. `signed`: the signature, and the key behind it. Secrets are compared in constant time.
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
