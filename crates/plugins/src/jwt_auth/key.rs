//! Keys of credentials, and verifying signatures with them.
//!
//! A key is created for the algorithm that its credential names, and cannot be used for another: a token chooses
//! neither.

use super::JwtAuthCredential;
use super::key_set::KeySet;
use super::token::{ClaimValue, Token};
use crate::authentication::BASE64;
use aws_lc_rs::signature::ParsedPublicKey;
use aws_lc_rs::{constant_time, digest, hmac};
use base64::Engine;
use sha2::block_api::compress256;
use stillgate_jws::{Algorithm, is_slow, public_key};
use stillgate_plugin_api::identity::Identity;
use stillgate_plugin_api::{CompileCredential, Url};
use stillgate_schema::Fault;

/// Verifies the tokens of one credential.
pub(crate) struct Verifier {
    /// The required `alg` of a token.
    pub(super) algorithm: Algorithm,
    key: VerifyingKey,
    is_slow: bool,
    /// `lifetime_grace_period`
    pub(super) grace_s: u64,
    /// `issuers` and `audiences`
    pub(super) expected: Option<Box<ExpectedClaims>>,
}

enum VerifyingKey {
    Shared(SharedSecret),
    Public(Box<ParsedPublicKey>),
    /// A key from a set that is published at a URL.
    Set(Box<KeySet>),
}

/// A secret for HMAC. The expanded form, which is computed on the stack for each token that is not cached, would take
/// more than a kibibyte for each of up to a hundred thousand credentials.
struct SharedSecret {
    algorithm: hmac::Algorithm,
    secret: Box<[u8]>,
}

impl SharedSecret {
    fn new(algorithm: hmac::Algorithm, secret: &[u8]) -> SharedSecret {
        let hash = algorithm.digest_algorithm();
        // HMAC itself hashes a secret that is longer than a block of its hash (RFC 2104 section 2).
        let secret = match secret.len() > hash.block_len() {
            true => digest::digest(hash, secret).as_ref().into(),
            false => secret.into(),
        };
        SharedSecret { algorithm, secret }
    }
}

/// The expanded form of the last used secret, whose computation takes as long as hashing a short token: consecutive
/// tokens are usually of the same issuer. It is identified by the verifier that contains the secret.
#[derive(Default)]
pub(super) struct LastSecret(Option<(Identity, ExpandedKey)>);

enum ExpandedKey {
    Sha256(Pads),
    Other(Box<hmac::Key>),
}

impl ExpandedKey {
    fn of(algorithm: hmac::Algorithm, secret: &[u8]) -> ExpandedKey {
        match algorithm == hmac::HMAC_SHA256 {
            true => ExpandedKey::Sha256(Pads::new(secret)),
            false => ExpandedKey::Other(Box::new(hmac::Key::new(algorithm, secret))),
        }
    }
}

/// Size of a shared-secret credential's verifier, besides its secret of at most 128 bytes.
const SHARED_BYTES_MAX: usize = 128;
const _: () = assert!(size_of::<Verifier>() <= SHARED_BYTES_MAX);

impl Verifier {
    /// Compiles a credential's keys.
    pub(super) fn new(keys: JwtAuthCredential, cx: &mut CompileCredential<'_>) -> Option<Verifier> {
        let grace_s = keys.lifetime_grace_period;
        let expected = ExpectedClaims::new(keys.issuers.clone(), keys.audiences.clone());
        let key = match keys.algorithm.hmac() {
            Some(_) if keys.jwks_uri.is_some() => {
                let hint = "choose an algorithm with public keys, or remove the key";
                return refuse("jwks_uri", "secrets are not published at a URL", hint, cx);
            }
            Some(algorithm) => {
                let Some(secret) = &keys.secret else {
                    return missing("secret", "for this algorithm", "tokens are signed with it", cx);
                };
                let secret = secret.reveal().as_bytes();
                let secret = match keys.base64_secret {
                    false => secret.to_vec(),
                    true => match BASE64.decode(secret) {
                        Ok(secret) if !secret.is_empty() => secret,
                        _ => {
                            return refuse("secret", "it is not base64", "encode it, or leave `base64_secret` out", cx);
                        }
                    },
                };
                VerifyingKey::Shared(SharedSecret::new(algorithm, &secret))
            }
            None if keys.jwks_uri.is_some() => VerifyingKey::Set(Box::new(key_set(&keys, cx)?)),
            None => {
                let Some(text) = &keys.public_key else {
                    return missing("public_key", "for this algorithm", "tokens are verified with it", cx);
                };
                match public_key(keys.algorithm, text.reveal().as_bytes()) {
                    Ok(key) => VerifyingKey::Public(Box::new(key)),
                    Err(why) => {
                        return refuse("public_key", why, "give the PEM of the key that belongs to `algorithm`", cx);
                    }
                }
            }
        };
        let is_slow = match &key {
            VerifyingKey::Shared(_) | VerifyingKey::Set(_) => false,
            VerifyingKey::Public(key) => is_slow(keys.algorithm, key),
        };
        Some(Verifier { algorithm: keys.algorithm, key, is_slow, grace_s, expected })
    }

    /// The key set, if its keys are published at a URL.
    #[inline]
    pub(super) fn key_set(&self) -> Option<&KeySet> {
        match &self.key {
            VerifyingKey::Set(set) => Some(set),
            VerifyingKey::Shared(_) | VerifyingKey::Public(_) => None,
        }
    }

    /// Whether verifying takes more than 100 µs, which is too long for a worker.
    pub(super) fn is_slow(&self) -> bool {
        self.is_slow
    }

    /// [`Verifier::verifies`] with the expanded secret of the last call, if the credential is the same.
    pub(super) fn verifies_with(
        &self,
        prepared: &mut LastSecret,
        identity: Identity,
        signed: &[u8],
        signature: &[u8],
    ) -> bool {
        let VerifyingKey::Shared(SharedSecret { algorithm, secret }) = &self.key else {
            return self.verifies(signed, signature);
        };
        let made = match &mut prepared.0 {
            Some((of, made)) if *of == identity => made,
            other => &mut other.insert((identity, ExpandedKey::of(*algorithm, secret))).1,
        };
        match made {
            ExpandedKey::Sha256(pads) => pads.verifies(signed, signature),
            ExpandedKey::Other(key) => hmac::verify(key, signed, signature).is_ok(),
        }
    }

    /// Whether a signature is valid.
    pub(super) fn verifies(&self, signed: &[u8], signature: &[u8]) -> bool {
        match &self.key {
            VerifyingKey::Shared(SharedSecret { algorithm, secret }) => {
                hmac::verify(&hmac::Key::new(*algorithm, secret), signed, signature).is_ok()
            }
            VerifyingKey::Public(key) => key.verify_sig(signed, signature).is_ok(),
            // The key found in the set is used instead.
            VerifyingKey::Set(_) => false,
        }
    }
}

fn key_set(keys: &JwtAuthCredential, cx: &mut CompileCredential<'_>) -> Option<KeySet> {
    let text = keys.jwks_uri.as_deref()?;
    if keys.public_key.is_some() {
        return refuse("jwks_uri", "it cannot be combined with `public_key`", "keep one of the two", cx);
    }
    match Url::parse(text, keys.jwks_ssl_verify) {
        Ok(url) => Some(KeySet::new(url, text, keys.jwks_ssl_verify, keys.jwks_timeout, keys.jwks_ttl)),
        Err(_) => {
            let hint = "write it as in `https://issuer.example/.well-known/jwks.json`";
            refuse("jwks_uri", "it is not a URL of http or https", hint, cx)
        }
    }
}

fn missing<T>(key: &str, when: &str, why: &str, cx: &mut CompileCredential<'_>) -> Option<T> {
    let fault = Fault::new(format!("the key {key:?} is missing {when}")).hint(format!("add it: {why}"));
    cx.sink.error(cx.at, cx.path, fault);
    None
}

fn refuse<T>(key: &str, why: &str, hint: &str, cx: &mut CompileCredential<'_>) -> Option<T> {
    cx.sink.error(cx.at, &cx.path.key(key), Fault::new(why).hint(hint));
    None
}

#[cfg(test)]
mod vectors;

// Expected issuers and audiences of tokens: the claims `iss` and `aud` (RFC 7519 sections 4.1.1 and 4.1.3).
//
// An issuer signs the tokens of all its clients with the same keys. So a signature alone does not prove that a token
// was issued for this API.

/// The values that a credential accepts for both claims.
pub(super) struct ExpectedClaims {
    /// `iss` must be one of them; empty: any.
    issuers: Box<[String]>,
    /// `aud` must be, or contain, one of them; empty: any.
    audiences: Box<[String]>,
}

impl ExpectedClaims {
    /// `None`: any token is accepted.
    pub(super) fn new(issuers: Option<Vec<String>>, audiences: Option<Vec<String>>) -> Option<Box<ExpectedClaims>> {
        let (issuers, audiences) = (issuers.unwrap_or_default(), audiences.unwrap_or_default());
        let is_empty = issuers.is_empty() && audiences.is_empty();
        (!is_empty).then(|| Box::new(ExpectedClaims { issuers: issuers.into(), audiences: audiences.into() }))
    }

    /// Whether a token satisfies them. A claim that occurs twice satisfies nothing.
    pub(super) fn are_in(&self, token: &Token<'_>) -> bool {
        let mut buffer = Vec::new();
        let Some([issuer, audience]) = token.issuer_and_audience(&mut buffer) else { return false };
        let is_issuer = |issuer: &str| self.issuers.iter().any(|known| known == issuer);
        let is_audience = |audience: &str| self.audiences.iter().any(|known| known == audience);
        let has_issuer =
            self.issuers.is_empty() || matches!(&issuer, Some(ClaimValue::Text(issuer)) if is_issuer(issuer));
        let has_audience = || match &audience {
            _ if self.audiences.is_empty() => true,
            Some(ClaimValue::Text(audience)) => is_audience(audience),
            Some(ClaimValue::Other) => {
                token.audiences().is_some_and(|audiences| audiences.iter().any(|one| is_audience(one)))
            }
            Some(ClaimValue::Number(_) | ClaimValue::False) | None => false,
        };
        has_issuer && has_audience()
    }
}

// HMAC with SHA-256 (RFC 2104, FIPS 180-4), for a secret that signs many tokens.
//
// Each of HMAC's two hashes begins with a block that depends only on the secret. The state after that block is cached:
// for a short token that saves two of six blocks. The padding is done here, on top of the compression function of the
// crate `sha2`: its hasher buffers and copies its input, which takes as long as another block. `aws-lc-rs` allocates
// three times for each token.

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
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

    /// Lengths around block boundaries, and case 6 of RFC 4231.
    #[test]
    fn what_was_made_of_a_secret_is_not_used_for_another() {
        let verifier = |secret: &[u8]| Verifier {
            algorithm: Algorithm::Hs256,
            key: VerifyingKey::Shared(SharedSecret::new(hmac::HMAC_SHA256, secret)),
            is_slow: false,
            grace_s: 0,
            expected: None,
        };
        let sign = |secret| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), b"signed");
        let (one, two) = (verifier(b"one"), verifier(b"two"));
        let (by_one, by_two, mut prepared) = (sign(b"one"), sign(b"two"), LastSecret::default());
        for _ in 0..2 {
            assert!(one.verifies_with(&mut prepared, Identity(1), b"signed", by_one.as_ref()));
            assert!(!one.verifies_with(&mut prepared, Identity(1), b"signed", by_two.as_ref()));
            assert!(!two.verifies_with(&mut prepared, Identity(2), b"signed", by_one.as_ref()));
            assert!(two.verifies_with(&mut prepared, Identity(2), b"signed", by_two.as_ref()));
        }
    }

    #[test]
    fn secrets_of_any_length_are_those_of_hmac() {
        let check = |secret: &[u8]| {
            for algorithm in [hmac::HMAC_SHA256, hmac::HMAC_SHA384, hmac::HMAC_SHA512] {
                let key = VerifyingKey::Shared(SharedSecret::new(algorithm, secret));
                let verifier =
                    Verifier { algorithm: Algorithm::Hs256, key, is_slow: false, grace_s: 0, expected: None };
                let good = hmac::sign(&hmac::Key::new(algorithm, secret), b"signed");
                let mut prepared = LastSecret::default();
                for (signed, is_good) in [(b"signed", true), (b"signet", false)] {
                    assert_eq!(verifier.verifies(signed, good.as_ref()), is_good);
                    assert_eq!(verifier.verifies_with(&mut prepared, Identity(1), signed, good.as_ref()), is_good);
                }
                let VerifyingKey::Shared(shared) = &verifier.key else { panic!("made above") };
                assert!(size_of::<Verifier>() + shared.secret.len() < 1024);
            }
        };
        for length in [0, 1, 63, 64, 65, 127, 128, 129, 131, 60_000] {
            check(&vec![0xaa; length]);
        }
        let key = VerifyingKey::Shared(SharedSecret::new(hmac::HMAC_SHA256, &[0xaa; 131]));
        let verifier = Verifier { algorithm: Algorithm::Hs256, key, is_slow: false, grace_s: 0, expected: None };
        let expected = "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54";
        let expected: Vec<u8> =
            (0..64).step_by(2).map(|at| u8::from_str_radix(&expected[at..at + 2], 16).unwrap()).collect();
        assert!(verifier.verifies(b"Test Using Larger Than Block-Size Key - Hash Key First", &expected));
    }

    /// RFC 7515 appendix A.4, whose payload is not JSON, so it is not a token.
    #[test]
    fn the_example_of_es512_is_verified() {
        let decoded = |text: &str| URL_SAFE_NO_PAD.decode(text).unwrap();
        let x = "AekpBQ8ST8a8VcfVOTNl353vSrDCLLJXmPk06wTjxrrjcBpXp5EOnYG_NjFZ6OvLFV1jSfS9tsz4qUxcWceqwQGk";
        let y = "ADSmRA43Z1DSNx_RvcLI87cdL07l6jQyyBXMoxVg_l2Th-x3S1WDhjDly79ajL4Kkd0AZMaZmh9ubmf63e3kyMj2";
        // SubjectPublicKeyInfo of P-521 up to the point (RFC 5480).
        let before = [
            0x30, 0x81, 0x9b, 0x30, 0x10, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b, 0x81,
            0x04, 0x00, 0x23, 0x03, 0x81, 0x86, 0x00, 0x04,
        ];
        let der = [&before[..], &decoded(x), &decoded(y)].concat();
        let pem = format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(der));
        let key = VerifyingKey::Public(Box::new(public_key(Algorithm::Es512, pem.as_bytes()).unwrap()));
        let verifier = Verifier { algorithm: Algorithm::Es512, key, is_slow: true, grace_s: 0, expected: None };
        let mut signature = decoded(
            "AdwMgeerwtHoh-l192l60hp9wAHZFVJbLfD_UxMi70cwnZOYaRI1bKPWROc-mZZqwqT2SI-KGDKB34XO0aw_7XdtAG8GaSwFKdCAPZgoXD2YBJ\
             ZCPEX3xKpRwcdOO8KpEHwJjyqOgzDO7iKvU8vcnwNrmxYbSW9ERBXukOXolLzeO_Jn",
        );
        assert!(verifier.verifies(b"eyJhbGciOiJFUzUxMiJ9.UGF5bG9hZA", &signature));
        assert!(!verifier.verifies(b"eyJhbGciOiJFUzUxMiJ9.UGF5bG9hZB", &signature));
        signature[9] ^= 1;
        assert!(!verifier.verifies(b"eyJhbGciOiJFUzUxMiJ9.UGF5bG9hZA", &signature));
        assert!(!verifier.verifies(b"eyJhbGciOiJFUzUxMiJ9.UGF5bG9hZA", &[0; 132]));
    }
}

#[cfg(test)]
mod hmac_sha256_tests {
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
