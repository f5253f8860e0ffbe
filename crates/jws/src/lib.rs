//! Signatures of JSON Web Signatures (RFC 7515): which algorithms there are, which keys they take, how these verify and sign.
//!
//! A key is made for one algorithm, and can do nothing else: who verifies chooses it, and no token does. Tokens themselves are not
//! read here.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED, ECDSA_P384_SHA384_FIXED_SIGNING,
    ECDSA_P521_SHA512_FIXED, ECDSA_P521_SHA512_FIXED_SIGNING, ED25519, EcdsaKeyPair, EcdsaSigningAlgorithm,
    Ed25519KeyPair, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaEncoding,
    RsaKeyPair, VerificationAlgorithm,
};
use x509_parser::pem::{Pem, parse_x509_pem};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::{PublicKey, RSAPublicKey};
use x509_parser::x509::SubjectPublicKeyInfo;

/// How tokens are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// HMAC with SHA-256.
    Hs256,
    /// HMAC with SHA-384.
    Hs384,
    /// HMAC with SHA-512.
    Hs512,
    /// RSA, PKCS #1 version 1.5, with SHA-256.
    Rs256,
    /// RSA, PKCS #1 version 1.5, with SHA-384.
    Rs384,
    /// RSA, PKCS #1 version 1.5, with SHA-512.
    Rs512,
    /// RSA, PSS, with SHA-256.
    Ps256,
    /// RSA, PSS, with SHA-384.
    Ps384,
    /// RSA, PSS, with SHA-512.
    Ps512,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// ECDSA on P-384 with SHA-384.
    Es384,
    /// ECDSA on P-521 with SHA-512.
    Es512,
    /// Ed25519.
    EdDsa,
}

/// Their names (RFC 7518 section 3.1, RFC 8037 section 3.1).
pub const ALGORITHMS: &[(&str, Algorithm)] = &[
    ("HS256", Algorithm::Hs256),
    ("HS384", Algorithm::Hs384),
    ("HS512", Algorithm::Hs512),
    ("RS256", Algorithm::Rs256),
    ("RS384", Algorithm::Rs384),
    ("RS512", Algorithm::Rs512),
    ("ES256", Algorithm::Es256),
    ("ES384", Algorithm::Es384),
    ("ES512", Algorithm::Es512),
    ("PS256", Algorithm::Ps256),
    ("PS384", Algorithm::Ps384),
    ("PS512", Algorithm::Ps512),
    ("EdDSA", Algorithm::EdDsa),
];

/// RSA keys above this take more than 100 µs to verify with.
const FAST_RSA_BITS_MAX: usize = 4096;

impl Algorithm {
    /// The one of a name.
    pub fn named(name: &str) -> Option<Algorithm> {
        ALGORITHMS.iter().find(|(known, _)| *known == name).map(|(_, algorithm)| *algorithm)
    }

    /// HMAC with its hash; `None`: it has public keys.
    pub fn hmac(self) -> Option<hmac::Algorithm> {
        match self {
            Algorithm::Hs256 => Some(hmac::HMAC_SHA256),
            Algorithm::Hs384 => Some(hmac::HMAC_SHA384),
            Algorithm::Hs512 => Some(hmac::HMAC_SHA512),
            _ => None,
        }
    }
}

/// RSA keys below this are too weak, and none above the other are used.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// Whether verifying by a key takes more than 100 µs.
pub fn is_slow(algorithm: Algorithm, key: &ParsedPublicKey) -> bool {
    let is_slow_curve = matches!(algorithm, Algorithm::Es384 | Algorithm::Es512);
    is_slow_curve || rsa_bits(key.as_ref()) > Some(FAST_RSA_BITS_MAX)
}

/// What a public key must be, and how it verifies.
fn verification(algorithm: Algorithm) -> Option<&'static dyn VerificationAlgorithm> {
    Some(match algorithm {
        Algorithm::Hs256 | Algorithm::Hs384 | Algorithm::Hs512 => return None,
        Algorithm::Rs256 => &RSA_PKCS1_2048_8192_SHA256,
        Algorithm::Rs384 => &RSA_PKCS1_2048_8192_SHA384,
        Algorithm::Rs512 => &RSA_PKCS1_2048_8192_SHA512,
        Algorithm::Ps256 => &RSA_PSS_2048_8192_SHA256,
        Algorithm::Ps384 => &RSA_PSS_2048_8192_SHA384,
        Algorithm::Ps512 => &RSA_PSS_2048_8192_SHA512,
        Algorithm::Es256 => &ECDSA_P256_SHA256_FIXED,
        Algorithm::Es384 => &ECDSA_P384_SHA384_FIXED,
        Algorithm::Es512 => &ECDSA_P521_SHA512_FIXED,
        Algorithm::EdDsa => &ED25519,
    })
}

/// Reads a public key, or a certificate of one, in PEM.
///
/// # Errors
///
/// Why it cannot be used.
pub fn public_key(algorithm: Algorithm, text: &[u8]) -> Result<ParsedPublicKey, &'static str> {
    let (_, pem) = parse_x509_pem(text).map_err(|_| "it is not PEM")?;
    let der = match pem.label.as_str() {
        "PUBLIC KEY" | "RSA PUBLIC KEY" => pem.contents,
        "CERTIFICATE" => pem.parse_x509().map_err(|_| "the certificate is broken")?.public_key().raw.to_vec(),
        label if label.ends_with("PRIVATE KEY") => return Err("it is a private key, which only who signs should have"),
        _ => return Err("it is PEM of something else than a public key"),
    };
    parse_der(algorithm, der)
}

/// Reads a public key in DER: SubjectPublicKeyInfo, or RSAPublicKey.
///
/// # Errors
///
/// Why it cannot be used.
pub fn parse_der(algorithm: Algorithm, der: Vec<u8>) -> Result<ParsedPublicKey, &'static str> {
    if let Some(bits) = rsa_bits(&der)
        && !RSA_BITS.contains(&bits)
    {
        return Err("an RSA key has from 2048 to 8192 bits");
    }
    let verification = verification(algorithm).ok_or(OF_ANOTHER)?;
    ParsedPublicKey::new(verification, der).map_err(|_| OF_ANOTHER)
}

const OF_ANOTHER: &str = "the key is of another kind than `algorithm`";

/// How large an RSA key is; `None`: it is none.
fn rsa_bits(der: &[u8]) -> Option<usize> {
    let of_key = |key: &RSAPublicKey<'_>| {
        let first = key.modulus.iter().position(|byte| *byte != 0)?;
        Some((key.modulus.len() - first) * 8 - key.modulus[first].leading_zeros() as usize)
    };
    match SubjectPublicKeyInfo::from_der(der) {
        Ok((_, info)) => match info.parsed() {
            Ok(PublicKey::RSA(key)) => of_key(&key),
            _ => None,
        },
        Err(_) => RSAPublicKey::from_der(der).ok().and_then(|(_, key)| of_key(&key)),
    }
}

/// How an algorithm signs.
enum Signing {
    Shared(hmac::Algorithm),
    Rsa(&'static dyn RsaEncoding),
    Ecdsa(&'static EcdsaSigningAlgorithm),
    Ed25519,
}

fn signing(algorithm: Algorithm) -> Signing {
    use Signing::{Ecdsa, Ed25519, Rsa, Shared};
    match algorithm {
        Algorithm::Hs256 => Shared(hmac::HMAC_SHA256),
        Algorithm::Hs384 => Shared(hmac::HMAC_SHA384),
        Algorithm::Hs512 => Shared(hmac::HMAC_SHA512),
        Algorithm::Rs256 => Rsa(&RSA_PKCS1_SHA256),
        Algorithm::Rs384 => Rsa(&RSA_PKCS1_SHA384),
        Algorithm::Rs512 => Rsa(&RSA_PKCS1_SHA512),
        Algorithm::Ps256 => Rsa(&RSA_PSS_SHA256),
        Algorithm::Ps384 => Rsa(&RSA_PSS_SHA384),
        Algorithm::Ps512 => Rsa(&RSA_PSS_SHA512),
        Algorithm::Es256 => Ecdsa(&ECDSA_P256_SHA256_FIXED_SIGNING),
        Algorithm::Es384 => Ecdsa(&ECDSA_P384_SHA384_FIXED_SIGNING),
        Algorithm::Es512 => Ecdsa(&ECDSA_P521_SHA512_FIXED_SIGNING),
        Algorithm::EdDsa => Ed25519,
    }
}

/// Signs a message with a secret, or with a private key in PEM, as the algorithm wants it.
///
/// # Errors
///
/// Why the key cannot be used.
pub fn sign(algorithm: Algorithm, key: &[u8], message: &[u8]) -> Result<Vec<u8>, &'static str> {
    let random = SystemRandom::new();
    match signing(algorithm) {
        Signing::Shared(hash) => Ok(hmac::sign(&hmac::Key::new(hash, key), message).as_ref().to_vec()),
        Signing::Rsa(encoding) => {
            let (label, der) = private_key(key)?;
            let key = match label.as_str() {
                "RSA PRIVATE KEY" => RsaKeyPair::from_der(&der),
                _ => RsaKeyPair::from_pkcs8(&der),
            };
            let key = key.map_err(|_| OF_ANOTHER)?;
            if !RSA_BITS.contains(&(key.public_modulus_len() * 8)) {
                return Err("an RSA key has from 2048 to 8192 bits");
            }
            let mut signature = vec![0; key.public_modulus_len()];
            key.sign(encoding, &random, message, &mut signature).map_err(|_| FAILED)?;
            Ok(signature)
        }
        Signing::Ecdsa(curve) => {
            let key = EcdsaKeyPair::from_private_key_der(curve, &private_key(key)?.1).map_err(|_| OF_ANOTHER)?;
            Ok(key.sign(&random, message).map_err(|_| FAILED)?.as_ref().to_vec())
        }
        Signing::Ed25519 => {
            let key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&private_key(key)?.1).map_err(|_| OF_ANOTHER)?;
            Ok(key.sign(message).as_ref().to_vec())
        }
    }
}

const FAILED: &str = "the key could not sign";

/// The label and the bytes of the private key in a text, which may have parameters of a curve before it.
fn private_key(text: &[u8]) -> Result<(String, Vec<u8>), &'static str> {
    let mut last = "it is not PEM";
    for pem in Pem::iter_from_buffer(text) {
        let Ok(Pem { label, contents }) = pem else { break };
        match label.as_str() {
            "ENCRYPTED PRIVATE KEY" => return Err("the private key is encrypted"),
            label if label.ends_with("PRIVATE KEY") => return Ok((label.to_owned(), contents)),
            _ => last = "it is PEM of something else than a private key",
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
    use aws_lc_rs::rsa::KeySize;
    use aws_lc_rs::signature::KeyPair;

    fn pem(label: &str, der: &[u8]) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let encoded = der.chunks(3).flat_map(|chunk| {
            let bits = (0..3).fold(0_u32, |bits, at| bits << 8 | u32::from(*chunk.get(at).unwrap_or(&0)));
            let digit = move |at: usize| char::from(DIGITS[(bits >> (18 - 6 * at) & 63) as usize]);
            (0..4).map(move |at| if at <= chunk.len() { digit(at) } else { '=' }).collect::<Vec<char>>()
        });
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", encoded.collect::<String>())
    }

    /// A private key for an algorithm, and the public one.
    fn keys(algorithm: Algorithm) -> (String, String) {
        let (private, public) = match signing(algorithm) {
            Signing::Shared(_) => unreachable!("it has no public key"),
            Signing::Rsa(_) => {
                let key = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
                let private = AsDer::<Pkcs8V1Der<'_>>::as_der(&key).unwrap();
                (private.as_ref().to_vec(), key.public_key().as_der().unwrap().as_ref().to_vec())
            }
            Signing::Ecdsa(curve) => {
                let key = EcdsaKeyPair::generate(curve).unwrap();
                (key.to_pkcs8v1().unwrap().as_ref().to_vec(), key.public_key().as_der().unwrap().as_ref().to_vec())
            }
            Signing::Ed25519 => {
                let key = Ed25519KeyPair::generate().unwrap();
                let private = key.to_pkcs8().unwrap();
                (private.as_ref().to_vec(), key.public_key().as_der().unwrap().as_ref().to_vec())
            }
        };
        (pem("PRIVATE KEY", &private), pem("PUBLIC KEY", &public))
    }

    #[test]
    fn what_is_signed_is_verified_and_nothing_else() {
        for (name, algorithm) in ALGORITHMS.iter().filter(|(_, algorithm)| algorithm.hmac().is_none()) {
            let (private, public) = keys(*algorithm);
            let signature = sign(*algorithm, private.as_bytes(), b"message").unwrap();
            let key = public_key(*algorithm, public.as_bytes()).unwrap();
            assert!(key.verify_sig(b"message", &signature).is_ok(), "{name}");
            assert!(key.verify_sig(b"massage", &signature).is_err(), "{name}");
            // A key is of one family.
            for (other, wrong) in ALGORITHMS.iter().filter(|(other, _)| other[..2] != name[..2] && other[1..2] != *"S")
            {
                assert!(sign(*wrong, private.as_bytes(), b"message").is_err(), "{name} {other}");
                assert!(public_key(*wrong, public.as_bytes()).is_err(), "{name} {other}");
            }
        }
    }

    #[test]
    fn what_is_not_a_private_key_is_refused() {
        let (private, public) = keys(Algorithm::Es256);
        let with_parameters = format!("{}{private}", pem("EC PARAMETERS", &[6, 8, 42, 134, 72, 206, 61, 3, 1, 7]));
        assert!(sign(Algorithm::Es256, with_parameters.as_bytes(), b"m").is_ok());
        for (text, why) in [
            ("", "it is not PEM"),
            ("secret", "it is not PEM"),
            (&*public, "it is PEM of something else than a private key"),
            (&*pem("ENCRYPTED PRIVATE KEY", b"abc"), "the private key is encrypted"),
            (&*pem("PRIVATE KEY", b"abc"), OF_ANOTHER),
        ] {
            for algorithm in [Algorithm::Rs256, Algorithm::Es256, Algorithm::EdDsa] {
                assert_eq!(sign(algorithm, text.as_bytes(), b"m"), Err(why), "{text}");
            }
        }
    }
}
